r"""Schedules: the probability of a step with a new metric at iteration i = 0, 1, ...

Papamarkou and Ford's Table 1 and section 3.4, with their :math:`i - 1` written as i. A schedule is
a function of the iteration (an integer or an array of them) that can be pickled.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.checks import check_count, check_positive

Schedule: TypeAlias = Callable[[Array | int], Array]


class ScheduledInfo(NamedTuple):
    """Facts about one transition.

    acceptance_rate
        Metropolis-Hastings acceptance probability.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether the proposal was rejected because something there was not finite.
    is_refreshed
        Whether it was an SMMALA step.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    is_refreshed: Array


def exponential(a: float, b: float = 0.0, num_steps: int = 1000) -> Schedule:
    r"""``(1 - b) exp(-a i / n) + b`` (eqs. 10 and 11).

    Parameters
    ----------
    a
        Rate of decay, a > 0.
    b
        Probability in the long run, 0 <= b <= 1.
    num_steps
        n >= 1 iterations over which the rate is counted.

    Examples
    --------
    >>> from blackjax_ext import schedules
    >>> schedule = schedules.exponential(a=5.0, b=0.1, num_steps=1000)
    >>> [round(float(schedule(i)), 3) for i in (0, 200, 1000)]
    [1.0, 0.431, 0.106]
    """
    return cooling("exponential", a, b, num_steps)


def linear(a: float, b: float = 0.0, num_steps: int = 1000) -> Schedule:
    """``(1 - b) / (1 + a i / n) + b``; parameters as in :func:`exponential`."""
    return cooling("linear", a, b, num_steps)


def quadratic(a: float, b: float = 0.0, num_steps: int = 1000) -> Schedule:
    """``(1 - b) / (1 + a (i / n)^2) + b``; parameters as in :func:`exponential`."""
    return cooling("quadratic", a, b, num_steps)


def logarithmic(a: float, b: float = 0.0, num_steps: int = 1000) -> Schedule:
    """``(1 - b) / (1 + a log(1 + i / n)) + b``; parameters as in :func:`exponential`."""
    return cooling("logarithmic", a, b, num_steps)


def modulo(a: int) -> Schedule:
    """1 at every a-th iteration, else 0 (Algorithm 2): a >= 1."""
    check_count("a", a)
    return partial(every, int(a))


def geometric(p: float) -> Schedule:
    """Constant `p` in (0, 1]: gaps between new metrics are geometric with mean 1 / p - 1."""
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1; got {p}.")
    return partial(constant, float(p))


def expected_cost(schedule: Schedule, num_steps: int, c1: float, c2: float) -> float:
    """Mean cost per step of a mixture (Theorem 1, of which Proposition 2 is the exponential case).

    Parameters
    ----------
    schedule
        Probability p(i) of a step of cost `c1`; the others cost `c2`.
    num_steps
        Number of iterations, at least 1.

    Returns
    -------
    ``mean(p) c1 + (1 - mean(p)) c2``.

    >>> from blackjax_ext import schedules
    >>> schedules.expected_cost(schedules.modulo(4), 100, c1=9.0, c2=1.0)
    3.0
    """
    check_schedule(schedule)
    check_count("num_steps", num_steps)
    probability = float(jnp.mean(schedule(jnp.arange(num_steps))))
    return probability * c1 + (1 - probability) * c2


def check_schedule(schedule: Schedule) -> None:
    """Raise unless `schedule` is a function of the iteration with probabilities as values."""
    if not callable(schedule):
        raise TypeError(
            "schedule must be a function of the iteration, such as schedules.geometric(0.1); "
            f"got {schedule!r}."
        )
    with jax.ensure_compile_time_eval():
        value = jnp.asarray(schedule(jnp.asarray(0)))
    if value.shape != () or not 0 <= float(value) <= 1:
        raise ValueError(f"schedule must return a probability; at iteration 0 it is {value}.")


def cooling(decay: str, a: float, b: float, num_steps: int) -> Schedule:
    """Schedule that decays from 1 to `b`, by the name of its decay: functions are not pickled."""
    check_positive("a", a)
    if not 0 <= b <= 1:
        raise ValueError(f"b must be between 0 and 1; got {b}.")
    check_count("num_steps", num_steps)
    return partial(cool, decay, float(a), float(b), int(num_steps))


DECAYS: dict[str, Callable[[float, Array], Array]] = {
    "exponential": lambda a, t: jnp.exp(-a * t),
    "linear": lambda a, t: 1 / (1 + a * t),
    "quadratic": lambda a, t: 1 / (1 + a * t**2),
    "logarithmic": lambda a, t: 1 / (1 + a * jnp.log1p(t)),
}


def cool(decay: str, a: float, b: float, num_steps: int, i: Array | int) -> Array:
    """``(1 - b) decay(a, i / n) + b``."""
    return (1 - b) * DECAYS[decay](a, jnp.asarray(i) / num_steps) + b


def every(a: int, i: Array | int) -> Array:
    """1 at the last of each `a` iterations."""
    return jnp.asarray((jnp.asarray(i) + 1) % a == 0, float)


def constant(p: float, i: Array | int) -> Array:
    """`p` for every iteration."""
    return jnp.full(jnp.shape(i), p)
