"""Centredness from draws and gradients, where the best is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.coordinates import learning
from blackjax_ext.coordinates.laws import LocFactor, LocScale, LongWalk
from tests.laws.coordinates import learned, posterior


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

        best = [
            min(learning.CENTREDNESS_GRID, key=lambda c, j=j: criterion(c, j)) for j in range(2)
        ]
        np.testing.assert_array_equal(c, best)


@pytest.mark.parametrize("kind", ["factor", "walk"])
def test_coordinates_that_are_mapped_together_have_one_centredness(kind):
    rng = np.random.default_rng(2)
    scales = jnp.asarray(np.exp(rng.normal(size=500)))
    x = scales[:, None] * jnp.cumsum(jnp.asarray(rng.normal(size=(500, 4))), -1)
    law = LongWalk(scales)
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
