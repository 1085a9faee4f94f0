"""Trajectories on a vector are those on the tree that it holds."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import metrics
from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm

pytestmark = pytest.mark.usefixtures("x64")
TREES = {
    # leaves in an order that is not that of their names
    "sites": {"w": np.array(0.3), "b": np.array([0.1, -0.2]), "a": np.ones((2, 1)) / 5},
    "nested": (np.array([0.4]), [np.array(0.2), {"x": np.zeros((0,)), "y": np.ones(3) / 7}]),
    "vector": np.array([0.3, 0.1, -0.2, 0.2, 0.2]),
}


def logdensity_fn(z):
    """Leaves of different scales, which depend on each other."""
    leaves = jax.tree.leaves(z)
    total = sum(jnp.sum(leaf) for leaf in leaves)
    return -0.1 * total**2 - sum((1 + j) * jnp.sum(x**2) for j, x in enumerate(leaves))


@pytest.mark.first
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    ("api", "options"), [(blackjax.hmc, {"num_integration_steps": 5}), (blackjax.nuts, {})]
)
def test_steps_are_those_of_blackjax(api, options, dense, tree):
    z = jax.tree.map(jnp.asarray, TREES[tree])
    variances = jnp.linspace(0.1, 0.5, sum(leaf.size for leaf in jax.tree.leaves(z)))
    covariance = jnp.diag(variances) + 0.02 if dense else variances
    bound = BoundAlgorithm(Algorithm(api, options), logdensity_fn)
    theirs = api(logdensity_fn, 0.5, covariance, **options)
    state = bound.init(z, jax.random.key(0), metrics.factorize(covariance))
    expected = theirs.init(z)
    for key in jax.random.split(jax.random.key(1), 4):
        state, info = bound.step(key, state, 0.5, metrics.factorize(covariance))
        expected, their_info = theirs.step(key, expected)
        np.testing.assert_allclose(info.acceptance_rate, their_info.acceptance_rate, rtol=1e-8)
        assert jax.tree.structure(state) == jax.tree.structure(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), state, expected)
