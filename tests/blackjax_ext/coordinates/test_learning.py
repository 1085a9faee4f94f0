"""Pseudo-observations from draws and gradients, where the best is known."""

import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.coordinates.laws import LocFactor, LocFactorNoise, LocScale
from blackjax_ext.coordinates.sequences import LongWalk, walk
from tests.laws.coordinates import learned, posterior


@pytest.mark.parametrize("kind", ["factor", "noise of a factor", "long walk", "walk"])
def test_a_prior_without_data_asks_for_no_observation(kind):
    rng = np.random.default_rng(2)
    scales = jnp.asarray(np.exp(rng.normal(size=500)))
    z = jnp.asarray(rng.normal(size=(500, 4)))
    x = scales[:, None] * jnp.cumsum(z, -1)
    steps = jnp.diff(x, axis=-1, prepend=0 * x[:, :1]) / scales[:, None] ** 2
    gradient = -steps + jnp.pad(steps[:, 1:], ((0, 0), (0, 1)))
    factor = scales[:, None, None] * jnp.tril(jnp.ones((4, 4)))
    leaf, gradient, law = {
        "factor": (x, gradient, LocFactor(jnp.zeros((500, 4)), factor)),
        "noise of a factor": (z, -z, LocFactorNoise(jnp.zeros((500, 4)), factor)),
        "long walk": (x, gradient, LongWalk(scales)),
        "walk": (x, gradient, walk(scales, 4)._replace(loc=jnp.zeros((500, 4)))),
    }[kind]
    known, ratio = learned(leaf, gradient, law)
    typical = np.exp(2 * np.log(scales).mean())
    assert (known.pseudo.information * typical < 1e-3).all()
    np.testing.assert_allclose(ratio, 1.0, atol=1e-2)


def test_components_of_a_factor_are_observed_one_by_one():
    """Where the first is measured and the second is not."""
    rng = np.random.default_rng(4)
    scales = np.exp(rng.normal(size=4000))
    factor = scales[:, None, None] * np.array([[1.0, 0.0], [0.8, 0.6]])
    prior = factor @ np.swapaxes(factor, 1, 2)
    precision = np.linalg.inv(prior) + np.diag([25.0, 0.0])
    covariance = np.linalg.inv(precision)
    mean = covariance @ np.array([25.0 * 1.5, 0.0])
    x = mean + (np.linalg.cholesky(covariance) @ rng.normal(size=(4000, 2, 1)))[..., 0]
    g = np.stack([25.0 * (1.5 - x[:, 0]), 0 * x[:, 0]], 1)
    g -= (np.linalg.inv(prior) @ x[..., None])[..., 0]
    law = LocFactor(jnp.zeros((4000, 2)), jnp.asarray(factor, jnp.float32))
    known, _ = learned(jnp.asarray(x, jnp.float32), jnp.asarray(g, jnp.float32), law)
    np.testing.assert_allclose(known.pseudo.information, [25.0, 0.0], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(known.pseudo.value[0], 1.5, rtol=0.05)


@pytest.mark.parametrize("what", ["few", "still", "infinite", "scale"])
def test_draws_that_say_nothing_change_nothing(what):
    rng = np.random.default_rng(3)
    n = 4 if what == "few" else 100
    scales = np.exp(rng.normal(size=n)) if what != "scale" else np.zeros(n)
    x, g = posterior(rng, np.exp(rng.normal(size=n)), np.array([1.0]), 1)
    x = 0 * x if what == "still" else x
    if what == "infinite":
        g[:] = np.nan
    law = LocScale(jnp.zeros(n), jnp.asarray(scales))
    known, ratio = learned(jnp.asarray(x), jnp.asarray(g), law)
    assert known.pseudo.information == 0.0 and known.pseudo.value == 0.0 and ratio == 1.0


def test_draws_that_are_no_numbers_are_left_out():
    rng = np.random.default_rng(5)
    scales = np.exp(rng.normal(size=400))
    x, g = posterior(rng, scales, np.array([1.0, 0.5]), 2)
    g[7, 0], x[11, 1] = np.nan, np.inf
    known, _ = learned(
        jnp.asarray(x), jnp.asarray(g), LocScale(jnp.zeros(400), jnp.asarray(scales))
    )
    np.testing.assert_allclose(known.pseudo.information, [1.0, 4.0], rtol=0.01)
