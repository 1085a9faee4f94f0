"""From the prior to the posterior in as many temperatures as it takes, with a record of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.equations import traced
from blackjax_ext.types import Function


class Schedule(NamedTuple):
    """Record of each temperature; NaN after the last of them.

    Attributes
    ----------
    temperature
        Power of the likelihood, shape (M,) for at most M temperatures.
    ess
        Effective sample size there, before any resampling, likewise.
    least_ess
        The least of it and of those after each move, likewise.
    acceptance_rate
        Of the moves there, likewise.
    step_size
        Of the moves there; NaN if it is part of the algorithm and does not change.
    log_evidence
        Of prior times likelihood to that power, likewise.
    remembered
        Correlation of the log likelihood after the moves there with that before them, likewise.
    num_temperatures
        How many there were.
    """

    temperature: Array
    ess: Array
    least_ess: Array
    acceptance_rate: Array
    step_size: Array
    log_evidence: Array
    remembered: Array
    num_temperatures: Array


def mixed_ancestors(schedule: Schedule, num_particles: int, ess_threshold: float) -> Array:
    r"""The genealogical effective sample size of particles whose moves forget where they began.

    A resampling at the effective sample size E adds :math:`N / E - 1` to the variance of the number
    of descendants of a draw, whatever its draw was, so that
    :math:`N / (1 + \sum (N / E - 1))` are left. Where descendants resemble each other, whole
    families win at once: fewer ancestors are left, and neither the evidence nor its standard error
    can be trusted.

    Parameters
    ----------
    schedule
        Of Metropolis moves, which leave the weights as they are.
    num_particles
        N.
    ess_threshold
        Share of the particles below which they were resampled.

    Returns
    -------
    A number of draws of the prior, to compare with `genealogical_ess`.
    """
    index = jnp.arange(schedule.ess.shape[0])
    is_resampled = schedule.ess < ess_threshold * num_particles
    counts = is_resampled | (index == schedule.num_temperatures - 1)
    spread = jnp.where(counts, num_particles / schedule.ess - 1.0, 0.0)
    return num_particles / (1.0 + jnp.sum(spread))


def empty(max_temperatures: int, dtype: Any) -> Schedule:
    """A schedule without temperatures yet."""
    unknown = jnp.full(max_temperatures, jnp.nan, dtype)
    return Schedule._make([*[unknown] * 7, jnp.zeros((), int)])


def noted(schedule: Schedule, state: Any, info: Any, step_size: Array) -> Schedule:
    """`schedule` with one more temperature."""
    facts = (
        *(state.temperature, info.ess, info.least_ess, info.acceptance_rate),
        *(step_size, state.log_evidence, info.remembered),
    )
    i = schedule.num_temperatures
    columns = [leaf.at[i].set(fact) for leaf, fact in zip(schedule[:-1], facts, strict=True)]
    return Schedule._make([*columns, i + 1])


def climb(
    step_fn: Function,
    state: Any,
    step_size: Array | float,
    max_temperatures: int,
    min_temperatures: int = 0,
    last_temperature: Array | float = 1.0,
) -> tuple[Any, Any, Array, Schedule]:
    """Step until the temperature is 1, or `last_temperature`.

    Parameters
    ----------
    step_fn
        ``(i, state, step_size) -> (state, info, step_size)``: one temperature, and the step size
        for the next one.
    state
        State with a `temperature` and a `log_evidence`.
    step_size
        First step size.
    max_temperatures
        Bound on the number of steps: the temperature may be below 1 after them.
    min_temperatures
        Steps that are taken even if the temperature is 1.
    last_temperature
        Where the steps end.

    Returns
    -------
    State, info of the last step (zeros if there was none), step size, and the schedule.
    """
    step_size = jnp.asarray(step_size, state.temperature.dtype)
    # traced once: it is most of what a program of sequential Monte Carlo is
    step_fn, _ = traced(step_fn, jnp.zeros((), int), state, step_size)

    def goes_on(carry: tuple[Any, Any, Array, Schedule]) -> Array:
        state, _, _, schedule = carry
        i = schedule.num_temperatures
        is_on: Array = state.temperature < last_temperature
        return (i < min_temperatures) | (is_on & (i < max_temperatures))

    def step(carry: tuple[Any, Any, Array, Schedule]) -> tuple[Any, Any, Array, Schedule]:
        state, _, step_size, schedule = carry
        new_state, info, new_size = step_fn(schedule.num_temperatures, state, step_size)
        return new_state, info, new_size, noted(schedule, new_state, info, step_size)

    shapes = jax.eval_shape(step_fn, jnp.zeros((), int), state, step_size)[1]
    info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = state, info, step_size, empty(max_temperatures, state.temperature.dtype)
    return jax.lax.while_loop(goes_on, step, start)


def anneal(
    rng_key: PRNGKey, algorithm: SamplingAlgorithm, state: Any, max_steps: int = 1000
) -> tuple[Any, Schedule]:
    """State at temperature 1, or after `max_steps` temperatures, and the schedule that led there.

    Parameters
    ----------
    rng_key
        Key of all steps.
    algorithm
        What ``blackjax_ext.langevin_smc`` returns.
    state
        What its ``init`` returns.
    max_steps
        Bound on the number of temperatures. Where it is hit, the temperature of the state is below
        1, and its evidence is not that of the model.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> smc = blackjax_ext.langevin_smc(
    ...     lambda x: -0.5 * x**2, lambda x: -50.0 * (x - 1.0) ** 2, step_size=0.1
    ... )
    >>> state = smc.init(jax.random.normal(jax.random.key(0), (500,)))
    >>> state, schedule = blackjax_ext.anneal(jax.random.key(1), smc, state)
    >>> num = int(schedule.num_temperatures)
    >>> bool(jnp.all(jnp.diff(schedule.temperature[:num]) > 0) & (state.temperature == 1))
    True
    """

    def step(i: Array, state: Any, step_size: Array) -> tuple[Any, Any, Array]:
        state, info = algorithm.step(jax.random.fold_in(rng_key, i), state)
        return state, info, step_size

    state, _, _, schedule = climb(step, state, jnp.nan, max_steps)
    return state, schedule
