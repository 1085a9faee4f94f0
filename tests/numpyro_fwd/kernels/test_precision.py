"""A run on a device with coarse products says so where the model's energy suffers from them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from blackjax_ext import precision
from numpyro_fwd import AMAGOLD, MALA, LangevinSMC
from numpyro_fwd.bridge.starts import check_products
from tests.laws.coarse_products import BFLOAT16, coarse_products

NUM_ROWS = 1_000


def rows(mean):
    """Covariates some standard deviations from zero, and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 2))
    y = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
    return jnp.asarray(x + mean, jnp.float32), jnp.asarray(y, jnp.float32)


def model(x, y, batch_size=None):
    """Logistic regression."""
    slope = numpyro.sample("slope", dist.Normal(0, 3).expand([2]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 1000))
    with numpyro.plate("rows", NUM_ROWS, subsample_size=batch_size) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ slope + intercept), obs=y[i])


def few_rows(x, y):
    """The same, for a test that reads a few rows."""
    model(x, y, batch_size=10)


def started(kernel, data, num_chains=4):
    """Words of warning of a run's start."""
    keys = jax.random.split(jax.random.key(0), num_chains) if num_chains > 1 else jax.random.key(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernel.init(keys, 10, None, data, {})
    return [str(each.message) for each in seen if "products of matrices" in str(each.message)]


@pytest.mark.long
def test_a_coarse_energy_is_named_with_its_setting_and_price():
    """Of chains that run together; one chain alone multiplies with a vector."""
    with coarse_products():
        (text,) = started(MALA(model), rows(100.0))
        assert not started(MALA(model), rows(0.0))
        assert not started(MALA(model), rows(100.0), num_chains=1)
        with jax.default_matmul_precision("highest"):
            assert not started(MALA(model), rows(100.0))
    assert "nats" in text
    assert "jax_default_matmul_precision" in text
    assert "take longer" in text


@pytest.mark.long
def test_the_subsampled_test_has_its_own_precision():
    with coarse_products():
        assert not started(AMAGOLD(few_rows, acceptance="subsampled"), rows(100.0))


@pytest.mark.long
def test_particles_are_looked_at():
    with coarse_products(BFLOAT16):
        assert started(LangevinSMC(model, num_moves=1), rows(30.0), num_chains=40)


@pytest.mark.parametrize("energy", [0.0, 1e7])
def test_constants_and_rounding_are_no_error(energy, monkeypatch):
    """What full precision would not take away, and what no chain sees."""
    monkeypatch.setattr(precision, "are_coarse_here", lambda: True)
    calls = []

    def energies():
        calls.append(jax.config.jax_default_matmul_precision)
        return jnp.float32(energy) + jnp.arange(4.0) + len(calls)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_products(energies)
    assert calls == [None, "highest"]


def test_the_library_looks_where_the_default_is_coarse(monkeypatch):
    assert not precision.are_coarse_here()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert precision.are_coarse_here()
    with jax.default_matmul_precision("float32"):
        assert not precision.are_coarse_here()
