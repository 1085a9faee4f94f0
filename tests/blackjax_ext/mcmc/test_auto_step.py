"""Steps that adapt: what they cost, where no step fits, and bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.mcmc import auto_step
from tests.laws import steps

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"persistence": 1.0}, "persistence must be at least 0 and below 1; got 1.0"),
        ({"persistence": -0.1}, "persistence must be at least 0 and below 1; got -0.1"),
        ({"persistence": float("nan")}, "persistence must be .*; got nan"),
    ],
)
def test_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        blackjax_ext.auto_mala(lambda x: -x @ x, 0.5, **arguments)


@pytest.mark.parametrize("value", [0.0, jnp.inf])
def test_a_density_without_a_band_is_rejected_and_counted(value):
    """Flat: doubling never ends. Infinite: no trial is finite."""
    at_start = {0.0: 0.0, jnp.inf: 1.0}[value]

    def logdensity(x):
        return jnp.where(jnp.all(x == 0), at_start, value) + 0.0 * jnp.sum(x)

    sampler = blackjax_ext.auto_mala(logdensity, 0.5)
    state = sampler.init(jnp.zeros(2), jax.random.key(0))._replace(logdensity=jnp.array(at_start))
    state, info = jax.jit(sampler.step)(jax.random.key(1), state)
    assert info.is_divergent and not info.is_accepted and info.acceptance_rate == 0
    assert info.num_evaluations == auto_step.MAX_EXPONENT + 1
    np.testing.assert_array_equal(state.position, 0.0)


def test_trials_are_counted():
    """One where the first is in the band; there and back none is evaluated twice."""
    sampler = blackjax_ext.auto_mala(lambda x: -0.5 * jnp.sum(x**2), 1.2)
    _, info = steps.run(sampler, sampler.init(jnp.ones(10), jax.random.key(0)), 400)
    j, n = np.asarray(info.exponent), np.asarray(info.num_evaluations)
    assert np.all(n[j < 0] >= 1 - j[j < 0]) and np.all(n[j < 0] <= 1 - 2 * j[j < 0])
    assert np.all(n[j > 0] >= j[j > 0] + 2) and np.all(n[j > 0] <= 2 * j[j > 0] + 3)
    assert set(n[j == 0]) <= {1, 2, 3} and np.sum(j < 0) > 20 and np.sum(n == 1) > 100
    assert np.mean(info.first_rate) < np.mean(info.acceptance_rate)


def test_the_step_shrinks_in_the_neck():
    def funnel(x):
        return -(x[0] ** 2) / 18 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 2 * x[0]

    sampler = blackjax_ext.auto_mala(funnel, 0.4)

    def mean_exponent(neck):
        key = jax.random.key(0)
        rest = jnp.exp(neck / 2) * jax.random.normal(key, (4,))
        state = sampler.init(jnp.append(jnp.array([neck]), rest), key)
        return steps.run(sampler, state, 20)[1].exponent.mean()

    assert mean_exponent(-10.0) < -3 < -1 < mean_exponent(0.0)
