"""Schedules are the paper's Table 1, and what they promise to cost is what is counted."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import metrics, schedules

N = 400
I = np.arange(N)

TABLE = {
    "exponential": (schedules.exponential(30.0, 0.1, N), 0.9 * np.exp(-30 * I / N) + 0.1),
    "linear": (schedules.linear(30.0, 0.0, N), 1 / (1 + 30 * I / N)),
    "quadratic": (schedules.quadratic(30.0, 0.2, N), 0.8 / (1 + 30 * (I / N) ** 2) + 0.2),
    "logarithmic": (schedules.logarithmic(30.0, 0.0, N), 1 / (1 + 30 * np.log(1 + I / N))),
    "modulo": (schedules.modulo(7), (I + 1) % 7 == 0),
    "geometric": (schedules.geometric(0.25), np.full(N, 0.25)),
}


@pytest.mark.parametrize("name", TABLE)
def test_schedule_is_the_formula(name):
    schedule, expected = TABLE[name]
    np.testing.assert_allclose(schedule(jnp.arange(N)), expected, rtol=1e-5)
    again = pickle.loads(pickle.dumps(schedule))
    np.testing.assert_array_equal(again(3), schedule(3))


def test_expected_cost_of_the_exponential_is_proposition_2():
    a = 7.0
    share = (1 - np.exp(-a)) / (N * (1 - np.exp(-a / N)))
    found = schedules.expected_cost(schedules.exponential(a, 0.0, N), N, 5.0, 2.0)
    np.testing.assert_allclose(found, share * 5.0 + (1 - share) * 2.0, rtol=1e-5)


def counted(algorithm, schedule, num_steps, **arguments):
    """Evaluations of the metric, refreshed steps, and beginnings of runs, in one chain."""
    calls = []

    def information(position):
        jax.debug.callback(lambda: calls.append(1))
        return 1.0 + position**2

    sampler = getattr(blackjax_ext, algorithm)(
        lambda x: -0.5 * jnp.sum(x**2),
        0.8,
        schedule=schedule,
        metric_fn=metrics.fisher(information),
        **arguments,
    )
    state = sampler.init(jnp.ones(2))
    jax.effects_barrier()
    calls.clear()
    keys = jax.random.split(jax.random.key(0), num_steps)
    _, info = jax.jit(lambda state: jax.lax.scan(lambda s, k: sampler.step(k, s), state, keys))(
        state
    )
    jax.effects_barrier()
    refreshed = np.asarray(info.is_refreshed)
    begins = refreshed & ~np.concatenate([[True], refreshed[:-1]])
    return len(calls), refreshed.sum(), begins.sum()


@pytest.mark.long
def test_metrics_are_evaluated_when_refreshed_and_where_a_run_begins():
    evaluations, refreshed, begins = counted("alsmmala", schedules.geometric(0.3), N)
    assert evaluations == refreshed + begins
    assert 0 < begins < refreshed / 3


@pytest.mark.long
def test_amsmmala_evaluates_two_metrics_when_refreshed():
    evaluations, refreshed, _ = counted("amsmmala", schedules.modulo(7), N)
    assert (evaluations, refreshed) == (2 * (N // 7), N // 7)


@pytest.mark.long
@pytest.mark.parametrize("run_length", [1, 12])
def test_counted_steps_are_those_of_theorem_1(run_length):
    schedule = schedules.exponential(5.0, 0.1, N)
    _, refreshed, _ = counted("alsmmala", schedule, N, run_length=run_length)
    expected = schedules.expected_cost(schedule, N, 1.0, 0.0) * N
    # a sum of runs of independent decisions: at five standard deviations
    deviation = np.sqrt(run_length * np.sum(schedule(I) * (1 - schedule(I))))
    assert abs(refreshed - expected) < 5 * deviation


@pytest.mark.parametrize("make", ["exponential", "linear", "quadratic", "logarithmic"])
def test_bad_cooling(make):
    make = getattr(schedules, make)
    with pytest.raises(ValueError, match=r"a must be positive and finite; got -1"):
        make(-1.0, 0.0, 10)
    with pytest.raises(ValueError, match=r"b must be between 0 and 1; got 1.5"):
        make(1.0, 1.5, 10)
    with pytest.raises(ValueError, match=r"num_steps must be at least 1; got 0"):
        make(1.0, 0.0, 0)


def test_bad_periods_and_probabilities():
    with pytest.raises(ValueError, match=r"a must be at least 1; got 0"):
        schedules.modulo(0)
    with pytest.raises(TypeError, match=r"a must be a whole number of at least 1, .*; got 2.5"):
        schedules.modulo(2.5)
    with pytest.raises(ValueError, match=r"p must be above 0 and at most 1; got 0"):
        schedules.geometric(0)


@pytest.mark.parametrize("algorithm", ["alsmmala", "amsmmala"])
def test_bad_schedules(algorithm):
    make = getattr(blackjax_ext, algorithm)
    with pytest.raises(TypeError, match=r"schedule must be a function .*; got 0.5"):
        make(lambda x: -(x**2), 1.0, schedule=0.5)
    with pytest.raises(ValueError, match=r"schedule must return a probability; .* it is 2"):
        make(lambda x: -(x**2), 1.0, schedule=lambda i: 2.0 + 0 * i)


def test_run_length_is_a_count():
    with pytest.raises(ValueError, match=r"run_length must be at least 1; got 0"):
        blackjax_ext.alsmmala(lambda x: -(x**2), 1.0, run_length=0)
