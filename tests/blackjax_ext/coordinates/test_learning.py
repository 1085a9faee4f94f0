"""Centredness from draws and gradients, where the best is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.coordinates import learning
from blackjax_ext.coordinates.laws import LocFactor, LocScale, Walk


def posterior(rng, scales, noise, size):
    """Draws of x ~ N(0, s) given an observation of sd `noise`, and the slopes of their density."""
    s = scales[:, None]
    variance = 1 / (1 / s**2 + 1 / noise**2)
    x = variance / noise**2 * 1.3 + np.sqrt(variance) * rng.normal(size=(len(s), size))
    return x, (1.3 - x) / noise**2 - x / s**2


@jax.jit
def learned(draws, gradients, laws):
    """The centredness after a window of draws, which are the effects themselves."""
    c = jnp.ones(draws.shape[1:])
    found = learning.begin(c)
    tried = jax.vmap(lambda u, g, law: learning.trials(u, g, c, law))(draws, gradients, laws)
    for part in jnp.split(tried, 2):
        found = learning.count(found, part)
    found, ratio = learning.learn(found, jax.tree.map(lambda leaf: leaf[0], laws))
    return found.centredness, ratio


@pytest.mark.parametrize("x64", [False, True])
def test_effects_with_data_are_centred_and_those_without_are_not(x64):
    with jax.enable_x64(x64):
        rng = np.random.default_rng(0)
        scales = np.exp(rng.normal(size=2000))
        noise = np.array([0.03, 0.3, 1.0, 3.0, 100.0])
        x, g = (jnp.asarray(a) for a in posterior(rng, scales, noise, 5))
        law = LocScale(jnp.zeros(2000), jnp.asarray(scales))
        c, ratio = learned(x, g, law)
        assert c[0] > 0.9 and c[-1] < 0.1
        assert (jnp.diff(c) <= 0).all()
        # and the sds of the coordinates are those that the metric is told
        s = np.asarray(scales)[:, None]
        expected = np.std(s ** (np.asarray(c) - 1) * np.asarray(x), 0) / np.std(np.asarray(x), 0)
        np.testing.assert_allclose(ratio, expected, rtol=1e-3)


def test_the_best_is_the_least_of_the_criterion():
    """Beside a search that knows nothing of how the sums are made."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        scales = np.exp(0.5 * rng.normal(size=500))
        x, g = posterior(rng, scales, np.array([0.5, 2.0]), 2)
        loc = 0.2 * rng.normal(size=500)
        law = LocScale(jnp.asarray(loc), jnp.asarray(scales))
        c, _ = learned(jnp.asarray(x), jnp.asarray(g), law)

        def criterion(c, j):
            u = c * loc + (x[:, j] - loc) * scales ** (c - 1)
            return np.log(np.var(u)) + np.log(np.var(g[:, j] * scales ** (1 - c)))

        best = [min(learning.GRID, key=lambda c, j=j: criterion(c, j)) for j in range(2)]
        np.testing.assert_array_equal(c, best)


@pytest.mark.parametrize("kind", ["factor", "walk"])
def test_coordinates_that_are_mapped_together_have_one_centredness(kind):
    rng = np.random.default_rng(2)
    scales = jnp.asarray(np.exp(rng.normal(size=500)))
    x = scales[:, None] * jnp.cumsum(jnp.asarray(rng.normal(size=(500, 4))), -1)
    law = Walk(scales)
    if kind == "factor":
        law = LocFactor(jnp.zeros((500, 4)), scales[:, None, None] * jnp.tril(jnp.ones((4, 4))))
    steps = jnp.diff(x, axis=-1, prepend=0 * x[:, :1]) / scales[:, None] ** 2
    gradient = -steps + jnp.pad(steps[:, 1:], ((0, 0), (0, 1)))
    c, _ = learned(x, gradient, law)
    np.testing.assert_array_equal(c, np.zeros(4))  # a prior without data


@pytest.mark.parametrize("what", ["few", "still", "slope", "infinite", "scale"])
def test_draws_that_say_nothing_change_nothing(what):
    rng = np.random.default_rng(3)
    n = 4 if what == "few" else 100
    scales = np.exp(rng.normal(size=n)) if what != "scale" else np.zeros(n)
    x, g = posterior(rng, np.exp(rng.normal(size=n)), np.array([1.0]), 1)
    x, g = (0 * x if what == "still" else x), (0 * g if what == "slope" else g)
    if what == "infinite":
        g[3] = np.nan
    law = LocScale(jnp.zeros(n), jnp.asarray(scales))
    c, ratio = learned(jnp.asarray(x), jnp.asarray(g), law)
    assert c == 1.0 and ratio == 1.0
