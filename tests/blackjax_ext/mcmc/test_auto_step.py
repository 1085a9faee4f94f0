"""Steps that adapt: what they cost, where no step fits, and bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import metrics
from blackjax_ext.mcmc import auto_step
from tests.laws import steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"persistence": 1.0}, "persistence must be at least 0 and below 1; got 1.0"),
        ({"persistence": -0.1}, "persistence must be at least 0 and below 1; got -0.1"),
        ({"persistence": float("nan")}, "persistence must be .*; got nan"),
        ({"isotropic_share": 1.5}, "isotropic_share must be between 0 and 1; got 1.5"),
        ({"block_share": -0.5}, "block_share must be between 0 and 1; got -0.5"),
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


def test_some_leaves_move_alone():
    """With block_share=1 never all of them, each often without any other, none left out."""
    start = {name: jnp.zeros(2) for name in "abcd"}

    def logdensity(x):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))

    sampler = blackjax_ext.auto_mala(
        logdensity, 0.5, jnp.array([1.0, 2, 3, 4, 1, 2, 3, 4]), block_share=1.0
    )
    states, info = steps.run(sampler, sampler.init(start, jax.random.key(0)), 400)
    x = np.stack([np.asarray(leaf) for leaf in states.position.values()], axis=1)
    moved = np.any(np.diff(x, axis=0) != 0, axis=2)[np.asarray(info.is_accepted)[1:]]
    assert not np.any(moved.all(1)) and np.all(moved.any(1))
    assert np.all(moved[moved.sum(1) == 1].mean(0) > 0.1)


def test_dense_metrics_give_scales_given_the_others():
    """Marginal ones are too long by 1 / sqrt(1 - rho^2), and shorten all steps."""
    rho = 0.999
    covariance = jnp.array([[1.0, rho], [rho, 1.0]])
    precision = jnp.linalg.inv(covariance)
    sampler = blackjax_ext.auto_mala(
        lambda x: -0.5 * x @ precision @ x, 0.9, covariance, isotropic_share=1.0
    )
    _, info = steps.run(sampler, sampler.init(jnp.zeros(2), jax.random.key(0)), 400)
    assert np.mean(info.first_rate) > 0.6
    np.testing.assert_allclose(
        metrics.factorize(covariance).conditional_scales(), (1 - rho**2) ** 0.5, rtol=1e-3
    )


def test_momenta_of_what_stands_still_are_kept():
    """Also where the move is rejected, which turns that of what moves."""
    sampler = blackjax_ext.auto_mala(
        lambda x: -0.5 * jnp.sum(x["a"] ** 2 + x["b"] ** 2), 2.5, block_share=1.0, persistence=0.9
    )
    start = sampler.init({"a": jnp.zeros(1), "b": jnp.zeros(1)}, jax.random.key(0))
    states, info = steps.run(sampler, start, 200)
    p = np.asarray(states.momentum)
    same = p[1:] == p[:-1]
    np.testing.assert_array_equal(same.sum(1), 1)
    assert 0 < np.mean(~np.asarray(info.is_accepted))


def test_leaves_without_coordinates_do_not_move_alone():
    """A plate of size zero: a step of it would double for ever."""
    sampler = blackjax_ext.auto_mala(
        lambda x: -0.5 * jnp.sum(x["a"] ** 2), 0.8, block_share=1.0, isotropic_share=0.0
    )
    state = sampler.init({"a": jnp.ones(2), "none": jnp.zeros(0)}, jax.random.key(0))
    _, info = steps.run(sampler, state, 50)
    assert not np.any(info.is_divergent)
