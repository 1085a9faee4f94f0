"""Laws of open-horizon sequential Monte Carlo, and planted bugs that they must find."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.stats import norm

import blackjax_ext
from blackjax_ext.smc import open_horizon as algorithm
from blackjax_ext.smc import sampler
from tests.laws import open_horizon

BUILD_EVALUATORS, UPDATE_PARAMETERS = algorithm.build_evaluators, algorithm.update_parameters
WEIGH, RESAMPLE_BELOW = sampler.update_weights, sampler.resample_below


@pytest.mark.first
@pytest.mark.parametrize("name", open_horizon.CASES)
def test_evidence_is_unbiased(name):
    open_horizon.evidence_is_unbiased(name)


@pytest.mark.parametrize("broken", [False, True])
def test_gradient_is_that_of_the_bound(broken):
    open_horizon.gradient_is_that_of_the_bound(broken)


def test_a_random_walk_is_not_guided():
    with pytest.raises(ValueError, match="guided"):
        blackjax_ext.open_horizon_smc(
            open_horizon.potential,
            optax.sgd(0.1),
            step_size=0.3,
            proposal="random_walk",
            guided=True,
        )
    outcomes = []
    for guided in (None, False):
        smc = blackjax_ext.open_horizon_smc(
            open_horizon.potential,
            optax.sgd(0.1),
            step_size=0.3,
            proposal="random_walk",
            guided=guided,
        )
        state = smc.init(jnp.linspace(-1, 1, 20), {"shift": jnp.zeros(())}, open_horizon.logprior)
        outcomes.append(smc.step(jax.random.key(0), state, open_horizon.BATCHES[0])[0])
    np.testing.assert_array_equal(outcomes[0].log_weights, outcomes[1].log_weights)
    np.testing.assert_array_equal(outcomes[0].params["shift"], outcomes[1].params["shift"])


def test_parameters_reach_the_maximum_of_the_evidence():
    """y ~ N(shift + x, 0.5^2), x ~ N(0, 1): the evidence is largest where shift is the mean."""
    y = jnp.array([0.4, 1.6, 2.2, 1.0])

    def potential(shift, x, batch):
        return -norm.logpdf(x) - jnp.sum(norm.logpdf(batch, shift + x, 0.5))

    smc = blackjax_ext.open_horizon_smc(potential, optax.adam(0.03), step_size=0.15)
    state = smc.init(jax.random.normal(jax.random.key(1), (300,)), jnp.zeros(()), norm.logpdf)

    def step(state, key):
        state, _ = smc.step(key, state, y)
        return state, (state.params, jnp.exp(state.log_weights) @ state.position)

    keys = jax.random.split(jax.random.key(2), 1500)
    _, (shift, mean) = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    shift, mean = shift[-700:].mean(), mean[-700:].mean()
    assert abs(shift - y.mean()) < 0.12
    # given shift, the posterior mean of x is 16/17 of what is left of the mean of y
    assert abs(mean - 16 / 17 * (y.mean() - shift)) < 0.05


def evaluate_the_previous_target_anew(monkeypatch):
    """The weight is divided by the new target at the old particle, not by the value kept of it."""
    seen: dict = {}

    def resample_below(*arguments):
        population, is_resampled = RESAMPLE_BELOW(*arguments)
        seen["x"], kept, _ = population.particles
        seen["kept"] = kept.logdensity
        return population, is_resampled

    def build_evaluators(*arguments):
        seen["evaluate"], evaluate_both = BUILD_EVALUATORS(*arguments)
        return seen["evaluate"], evaluate_both

    def weigh(population, log_factors):
        anew = seen["evaluate"](seen["x"]).logdensity
        return WEIGH(population, log_factors + seen["kept"] - anew)

    monkeypatch.setattr(sampler, "resample_below", resample_below)
    monkeypatch.setattr(algorithm, "build_evaluators", build_evaluators)
    monkeypatch.setattr(sampler, "update_weights", weigh)


def test_previous_target_on_the_new_batch_is_found(monkeypatch):
    evaluate_the_previous_target_anew(monkeypatch)
    # the weights no longer telescope: the estimates scatter ten thousand times as far
    with pytest.raises(AssertionError, match=r"no power: .*[0-9]{3}"):
        open_horizon.evidence_is_unbiased("guided")


def unweighted(optimizer, weights, *rest):
    """The parameters follow the mean over the particles, whatever their weights."""
    return UPDATE_PARAMETERS(optimizer, jnp.full_like(weights, 1.0 / weights.size), *rest)


def unguarded(optimizer, weights, slopes, params, opt_state, *_):
    """A particle that has no weight adds zero times NaN."""
    gradient = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), slopes)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def test_unweighted_gradient_is_found(monkeypatch):
    monkeypatch.setattr(algorithm, "update_parameters", unweighted)
    with pytest.raises(AssertionError, match="Not equal"):
        open_horizon.gradient_is_that_of_the_bound()


def test_nan_in_the_gradient_is_found(monkeypatch):
    monkeypatch.setattr(algorithm, "update_parameters", unguarded)
    with pytest.raises(AssertionError, match="Not equal"):
        open_horizon.gradient_is_that_of_the_bound(broken=True)


def test_weights_without_the_backward_kernel_are_found(monkeypatch):
    monkeypatch.setattr(algorithm, "as_l_kernel", lambda name: lambda move, weights: 0.0 * weights)
    with pytest.raises(AssertionError, match="off by"):
        open_horizon.evidence_is_unbiased("guided")
