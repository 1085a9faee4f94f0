"""Chains that freeze: what the step size answers to, how they are put back, what is said."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.adaptation import report, windows
from blackjax_ext.adaptation.run import warmup
from blackjax_ext.metrics import Diagonal

TARGET = 0.574


def watched(rates, num_steps=100, moved=None):
    """The state after so many steps of chains with these acceptance probabilities."""
    rates = jnp.asarray(rates, float)
    x = jnp.zeros((rates.size, 2))
    state = windows.init(jnp.ones(()), Diagonal(jnp.ones(2)), x, num_steps=500)
    moved = rates > 0.01 if moved is None else jnp.asarray(moved)

    def step(i, state):
        return windows.update_moments(windows.update_motion(state, rates, moved), x + 1e-5 * i)

    return jax.jit(lambda state: jax.lax.fori_loop(0, num_steps, step, state))(state)


def test_one_chain_cannot_hide_in_the_mean():
    rates = jnp.array([0.0, 0.75, 0.75, 0.75])
    assert windows.rate_to_adapt_to(watched(rates), rates, TARGET) < 0.8 * TARGET


@pytest.mark.parametrize("rates", [[0.5, 0.6, 0.55, 0.65], [0.9, 0.2], [1.0], [0.0], [0.01, 0.02]])
def test_where_chains_agree_the_step_size_answers_to_the_mean(rates):
    """Or where steps are too long for all: then there is nothing to hide."""
    rates = jnp.array(rates)
    found = windows.rate_to_adapt_to(watched(rates), rates, TARGET)
    assert found == rates.mean()


@pytest.mark.long
def test_a_chain_is_behind_only_after_many_steps():
    rates = jnp.array([0.0, 0.75])
    assert windows.rate_to_adapt_to(watched(rates, 20), rates, TARGET) == rates.mean()


@pytest.mark.long
@pytest.mark.parametrize("rest", [[], [0.0], [0.6, 0.0, 0.0, 0.0], [0.4, 0.5]])
def test_frozen_chains_are_put_back_where_others_are(rest):
    """Dealt round: no chain is given twice more often than another."""
    rates = np.array([0.0, 0.75, 0.001, 0.5, *rest])
    state, num, is_frozen = watched(rates), rates.size, rates < 0.01
    states = {
        "position": jnp.arange(2.0 * num).reshape(num, 2),
        "logdensity": jnp.arange(1.0 * num),
    }
    moved, after = windows.rescue(states, state)
    source = np.asarray(moved["logdensity"], int)
    np.testing.assert_array_equal(source[~is_frozen], np.flatnonzero(~is_frozen))
    given = np.bincount(source[is_frozen], minlength=num)
    assert not given[is_frozen].any() and np.ptp(given[~is_frozen]) <= 1
    np.testing.assert_array_equal(moved["position"], states["position"][source])
    assert (after.motion.rate > 0.3).all()


@pytest.mark.long
@pytest.mark.parametrize("rates", [[0.0, 0.0], [0.5, 0.6]])
def test_nobody_is_put_back_where_all_or_none_are_frozen(rates):
    states = jnp.arange(2.0)
    np.testing.assert_array_equal(windows.rescue(states, watched(rates))[0], states)


@pytest.mark.long
def test_one_chain_is_left_where_it_is():
    states = jnp.ones((1, 2))
    moved, after = windows.rescue(states, watched([0.0]))
    np.testing.assert_array_equal(moved, states)
    assert after.motion.rate == watched([0.0]).motion.rate


def test_a_short_window_freezes_nobody():
    assert not windows.frozen(watched([0.0, 0.5], 30).motion).any()


def said(state):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report.warn("Advice.", report.judge(state, jnp.zeros(1)), (("x", 2),))
    return [str(warning.message) for warning in caught]


@pytest.mark.long
def test_the_report_names_a_frozen_chain():
    (message,) = said(watched([0.5, 0.0, 0.7]))
    assert (
        "chain 1 of 3" in message
        and "moved to where another" in message
        and message.endswith("Advice.")
    )


@pytest.mark.long
def test_the_report_names_collapsed_steps():
    (message,) = said(watched([0.9, 0.9]))
    assert "collapsed" in message and "Advice." in message


@pytest.mark.long
def test_a_warmup_that_goes_well_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warmup(
            blackjax_ext.mala,
            lambda x: -0.5 * jnp.sum(x**2),
            jax.random.key(0),
            jnp.ones((3, 2)),
            300,
            target_acceptance_rate=TARGET,
        )


@pytest.mark.long
def test_a_warmup_with_a_frozen_chain_says_so():
    """Both sit on a spike that no step leaves."""

    def logdensity(x):
        is_spike = jnp.sum((x - 50.0) ** 2) < 1e-12
        return jnp.where(is_spike, 1e6, -0.5 * jnp.sum(x**2))

    with pytest.warns(UserWarning, match=r"chain \d of 2 .* is frozen"):
        warmup(
            blackjax_ext.random_walk,
            logdensity,
            jax.random.key(0),
            jnp.array([[50.0], [50.0]]),
            300,
            target_acceptance_rate=0.234,
            newton_start=False,
            inverse_mass_matrix=jnp.ones(1),
        )


@pytest.mark.parametrize(
    ("far", "apart", "disagree"),
    [(0, 0, False), (1e4, 0, False), (0, 3, True), (0, 1e4, True), (0, 1e5, True), (0, 1e6, True)],
)
def test_chains_disagree_where_their_means_differ(far, apart, disagree):
    """Also where rounding leaves nothing of the variance within them, or less."""
    noise = jax.random.normal(jax.random.key(0), (100, 4, 2))
    place = far + apart * jnp.array([[-1.0], [-1.0], [1.0], [1.0]])
    state = windows.init(jnp.ones(()), Diagonal(jnp.ones(2)), jnp.zeros((4, 2)), num_steps=500)

    def step(i, state):
        state = windows.update_motion(state, jnp.full(4, 0.6), jnp.full(4, True))
        return windows.update_moments(state, place + noise[i])

    state = jax.jit(lambda state: jax.lax.fori_loop(0, 100, step, state))(state)
    found = report.r_hat(report.judge(state, jnp.zeros(4)))
    assert (found > report.MAX_R_HAT).all() if disagree else (found < 1.2).all()
