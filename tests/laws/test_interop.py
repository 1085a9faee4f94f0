"""BlackJAX's own machinery drives the samplers."""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.smc import resampling

import blackjax_ext
from blackjax_ext.metrics import factorize

pytestmark = pytest.mark.long

SCALES = np.array([1.0, 3.0])

FORWARD = {
    "random_walk": {},
    "fmala": {},
    "line_fmala": {"num_tangents": 2},
    "pc_fmala": {"curvature_floor": 0.2},
    "pc_line_fmala": {},
}


def logdensity(x):
    return -0.5 * jnp.sum((x / SCALES) ** 2)


@pytest.mark.parametrize("name", [*FORWARD, "mala"])
def test_window_adaptation(name):
    arguments = FORWARD.get(name, {})
    warmup = blackjax.window_adaptation(
        getattr(blackjax_ext, name),
        logdensity,
        initial_step_size=0.5,
        target_acceptance_rate=0.55,
        **arguments,
    )
    (result, _) = warmup.run(jax.random.key(0), jnp.ones(2), num_steps=600)
    parameters = result.parameters
    sampler = getattr(blackjax_ext, name)(logdensity, **parameters)
    keys = jax.random.split(jax.random.key(1), 2000)
    _, (states, info) = jax.lax.scan(
        lambda state, key: (lambda new: (new[0], new))(sampler.step(key, state)), result.state, keys
    )
    assert 0.35 < np.mean(info.acceptance_rate) < 0.8
    assert 0.1 < parameters["step_size"] < 5.0
    # the second coordinate is nine times as variable as the first
    ratio = parameters["inverse_mass_matrix"][1] / parameters["inverse_mass_matrix"][0]
    assert ratio > 2.0
    assert np.std(states.position[:, 1]) > 1.5


@pytest.mark.parametrize("name", ["mala", "auto_mala"])
def test_low_rank_adaptation(name):
    """What it finds is taken in its steps, by the sampler and by the warm-up here."""
    mixed = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 25.0]])
    precision = jnp.asarray(np.linalg.inv(mixed), jnp.float32)

    def correlated(x):
        return -0.5 * x @ precision @ x

    algorithm = getattr(blackjax_ext, name)
    warmup = blackjax.window_adaptation_low_rank(
        algorithm, correlated, max_rank=2, target_acceptance_rate=0.6
    )
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.ones(3), num_steps=600)
    metric = parameters["inverse_mass_matrix"]
    sampler = algorithm(correlated, **parameters)
    keys = jax.random.split(jax.random.key(1), 2000)
    _, states = jax.lax.scan(lambda state, key: (sampler.step(key, state)[0],) * 2, state, keys)
    covariance = np.cov(states.position, rowvar=False) / np.sqrt(np.outer(*[np.diag(mixed)] * 2))
    np.testing.assert_allclose(
        covariance, mixed / np.sqrt(np.outer(*[np.diag(mixed)] * 2)), atol=0.25
    )
    found = factorize(metric, 3).inverse()
    np.testing.assert_allclose(found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]), 0.9, atol=0.1)


@pytest.mark.parametrize("name", [*FORWARD, "mala"])
def test_inner_kernel_of_tempered_smc(name):
    # N(0, 1) prior times N(y | x, 1) for y = 2: posterior N(1, 1/2), evidence N(2 | 0, 2)
    kernel = getattr(blackjax_ext, name).build_kernel()
    smc = blackjax.tempered_smc(
        lambda x: jnp.sum(-0.5 * x**2 - 0.5 * jnp.log(2 * jnp.pi)),
        lambda x: jnp.sum(-0.5 * (2.0 - x) ** 2 - 0.5 * jnp.log(2 * jnp.pi)),
        partial(kernel, **FORWARD.get(name, {}) if name != "line_fmala" else {}),
        getattr(blackjax_ext, name).init,
        {"step_size": jnp.array([1.0])},
        resampling.systematic,
        num_mcmc_steps=5,
    )
    state = smc.init(jax.random.normal(jax.random.key(2), (4_000, 1)))

    def anneal(state, pair):
        key, temperature = pair
        state, info = smc.step(key, state, temperature)
        return state, info.log_likelihood_increment

    keys = jax.random.split(jax.random.key(3), 5)
    state, increments = jax.jit(partial(jax.lax.scan, anneal))(
        state, (keys, jnp.linspace(0.2, 1.0, 5))
    )
    expected = -0.5 * np.log(2 * np.pi * 2.0) - 1.0
    assert abs(float(np.sum(increments)) - expected) < 0.05
    # BlackJAX resamples before it moves: the last particles carry weights
    mean = np.sum(state.weights * state.particles[:, 0])
    variance = np.sum(state.weights * (state.particles[:, 0] - mean) ** 2)
    assert abs(mean - 1.0) < 0.06
    assert abs(variance - 0.5) < 0.06
