"""BlackJAX's RMHMC with a metric of ours as its mass matrix."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import metrics

pytestmark = pytest.mark.long


def test_rmhmc_samples_the_funnel_with_a_metric_of_ours():
    scale = 1.5

    def logdensity(x):
        return -0.5 * (x[0] / scale) ** 2 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]

    mass_matrix = metrics.mass_matrix(metrics.softabs_hessian(1.0), logdensity)
    rmhmc = blackjax.rmhmc(logdensity, 0.3, mass_matrix, num_integration_steps=4)
    rng = np.random.default_rng(4)
    neck = scale * rng.normal(size=1000)
    starts = np.stack([neck, np.exp(neck / 2) * rng.normal(size=1000)], axis=1)

    def chain(start, key):
        def one(state, key):
            state, info = rmhmc.step(key, state)
            return state, info.acceptance_rate

        state, rate = jax.lax.scan(one, rmhmc.init(start), jax.random.split(key, 10))
        return state.position, rate.mean()

    ends, rate = jax.jit(jax.vmap(chain))(
        jnp.asarray(starts), jax.random.split(jax.random.key(5), 1000)
    )
    assert 0.5 < rate.mean() < 1.0 and (ends != starts).any(axis=1).mean() > 0.9
    # equilibrium is kept: the neck is N(0, 1.5^2), and the rest scaled by it N(0, 1)
    scores = np.stack([ends[:, 0] / scale, ends[:, 1] * np.exp(-ends[:, 0] / 2)])
    for score in scores:
        assert abs(score.mean()) < 5 / np.sqrt(1000)
        assert abs(score.var() - 1) < 5 * np.sqrt(2 / 1000)
