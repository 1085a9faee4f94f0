"""Mixtures and variances of particles: the same ones wherever the particles lie."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.smc import mixtures, tempered
from tests.laws.coarse_products import BFLOAT16, TF32, coarse_products

SIZE, NUM_PARTICLES = 3, 500
SDS = np.array([0.01, 1.0, 50.0])


def log_densities(mean, distance):
    """Of the particles, two clusters around `mean` sds, under the mixture fitted to them."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(NUM_PARTICLES, SIZE))
    z[::2, 0] += distance
    x = jnp.asarray((z + mean) * SDS, jnp.float32)
    scale = jnp.asarray(z.std(0) * SDS, jnp.float32)
    mixture = mixtures.fit(jax.random.key(1), x, jnp.zeros(NUM_PARTICLES), scale, 8)
    return np.asarray(mixture.logpdf(x), float)


def largest_error(mean, bits, distance=20.0):
    """In nats, against particles around zero in single precision."""
    exact = log_densities(0.0, distance)
    with coarse_products(bits) if bits else contextlib.nullcontext():
        return np.abs(log_densities(mean, distance) - exact).max()


@pytest.mark.first
@pytest.mark.parametrize("bits", [None, TF32, BFLOAT16])
@pytest.mark.parametrize("mean", [0.0, 60.0, 3_000.0])
def test_a_mixture_does_not_depend_on_where_zero_is(mean, bits):
    assert largest_error(mean, bits) < 0.1


def test_a_product_that_loses_digits_is_found(monkeypatch):
    monkeypatch.setattr(mixtures, "improved", mixtures.improved.__wrapped__)
    assert largest_error(0.0, BFLOAT16, distance=200.0) > 1.0


def variance_far_from_zero():
    """Of standard normal particles 3,000 sds away, by products of vectors that lose digits, too."""
    x = 3_000.0 + jax.random.normal(jax.random.key(0), (NUM_PARTICLES, 1))
    with coarse_products(BFLOAT16, of_vectors=True):
        return float(jax.jit(tempered.variances)(x, jnp.zeros(NUM_PARTICLES))[0])


def test_variances_do_not_depend_on_where_zero_is(monkeypatch):
    assert 0.8 < variance_far_from_zero() < 1.2
    monkeypatch.setattr(tempered, "variances", tempered.variances.__wrapped__)
    assert not 0.8 < variance_far_from_zero() < 1.2
