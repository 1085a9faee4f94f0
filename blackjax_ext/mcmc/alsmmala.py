r"""ALSMMALA: MALA with a cached metric, and scheduled SMMALA steps (Papamarkou and Ford).

At iteration i the step is SMMALA's (:mod:`blackjax_ext.mcmc.smmala`) with probability p(i), else
preconditioned MALA's in a cached metric :math:`C`:

.. math::
    \theta_* = \theta + \frac{\epsilon^2}{2} C^{-1} \nabla f(\theta) + \epsilon C^{-1/2} z,

in coordinates :math:`\theta` whitened by `inverse_mass_matrix`.

*Exact by default.* The schedule does not depend on the chain, and with :math:`C` fixed both steps
leave :math:`\pi` invariant, so their mixture does. Here :math:`C` is the metric where the chain
started, and it stays.

*As published* (`follow=True`, biased), :math:`C` is the metric of the chain's state after the last
SMMALA step (Algorithm 1). It then depends on the past, :math:`(\theta, C)` is the Markov chain, and
its invariant law does not have :math:`\pi` as its marginal: 30 steps at p = 1/2 from equilibrium
leave a 4-D funnel's neck with 1.24 times its variance (tests/blackjax_ext/mcmc). Use it for
warm-up: the state then continues with `follow=False` and the metric it has.

*Runs.* An SMMALA step needs the metric at both of its ends. After a step of MALA neither is known;
after one of SMMALA the first is. So SMMALA steps come in runs of `run_length`, drawn with the mean
of the schedule over the run: (run_length + 1) / run_length metrics per SMMALA step instead of two,
and the expected cost of Theorem 1 as it stands.

Cost: one gradient per step, and the products of MALA's with a matrix that each chain has for
itself; on SMMALA steps, one metric, and a second one where a run begins. With many chains under
``vmap`` and a decision per chain, every chain would pay for the metric whenever one of them takes
such a step: give `refresh` and `is_current`, drawn once for all.

What goes wrong: MALA steps with a fixed metric do not enter the neck of a funnel; only the SMMALA
steps do.

References: T. Papamarkou and E. Ford, Manifold Langevin Monte Carlo with partial metric updates,
Algorithm 1 and section 3.2.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.checks import check_count
from blackjax_ext.mcmc import mala, schedules, smmala
from blackjax_ext.mcmc.metric_moves import local_state
from blackjax_ext.mcmc.schedules import ScheduledInfo as ALSMMALAInfo
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity, once

__all__ = ["ALSMMALAInfo", "ALSMMALAState", "alsmmala", "build_kernel", "init"]

METRIC = metrics.absolute_hessian()
SCHEDULE = schedules.geometric(0.1)
RUN_LENGTH = 12
Moved: TypeAlias = tuple[smmala.SMMALAState, Array, smmala.SMMALAInfo]  # `cached` in the middle
BIASED = (
    "follow=True is ALSMMALA as published: the metric of its MALA steps follows the chain, which "
    "does not leave the target invariant. Use it for warm-up only, or leave it out."
)


class ALSMMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    logdensity_grad
        Its gradient, a pytree like the position.
    metric
        Factor of the metric where the last SMMALA step ended, in whitened coordinates.
    cached
        What MALA steps multiply by: ``L C^{-1/2}``, shape (D, D), where ``L`` whitens; or
        ``C^{-1/2}`` alone, shape (D,), if it is diagonal.
    is_current
        Whether `metric` belongs to the position: the last step was SMMALA's.
    iteration
        Number of steps taken.
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: ArrayTree
    metric: metrics.Factor
    cached: Array
    is_current: Array
    iteration: Array


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> ALSMMALAState:
    """Make the first state: one gradient, one metric. A key is accepted and not used."""
    start = smmala.init(position, logdensity_fn, rng_key, inverse_mass_matrix, metric_fn=metric_fn)
    preconditioner = metrics.factorize(inverse_mass_matrix, ravel_pytree(start.position)[0].size)
    cached = root_of(preconditioner, start.metric)
    return ALSMMALAState(*start[:4], cached, jnp.array(True), jnp.array(0))


def root_of(preconditioner: metrics.Factor, metric: metrics.Factor) -> Array:
    """The field `cached`, composed once: each step would pay for both of its factors."""
    root = metric.root()
    return preconditioner.inverse_sqrt_times(root.T).T if root.ndim == 2 else root


def decide(
    rng_key: PRNGKey,
    iteration: Array,
    is_current: Array,
    schedule: schedules.Schedule,
    run_length: int = RUN_LENGTH,
) -> Array:
    """Whether the step at `iteration` is SMMALA's: drawn where a run begins, kept through it."""
    probability = jnp.mean(schedule(iteration + jnp.arange(run_length)))
    begins = iteration % run_length == 0
    return jnp.where(begins, jax.random.bernoulli(rng_key, probability), is_current)


def smmala_step(
    rng_key: PRNGKey,
    logdensity_fn: LogDensity,
    step_size: float,
    preconditioner: metrics.Factor,
    metric_fn: metrics.MetricFn,
    is_current: Array,
    follow: bool | Array,
    here: Moved,
) -> Moved:
    """A step with the metric of the position, which is evaluated where it is not the state's."""
    before, cached, _ = here

    def metric_here() -> metrics.Factor:
        return local_state(logdensity_fn, before.position, preconditioner, metric_fn).metric

    # one after the other also under vmap, where both branches run: two eigenvalue problems of a
    # batch at once can block each other on a CPU with few threads
    metric = jax.lax.cond(is_current, lambda: before.metric, metric_here)
    target = logdensity_fn, step_size, preconditioner
    new, info = smmala.build_kernel()(
        jax.random.clone(rng_key),  # of two loops one has a turn: the key is used once
        before._replace(metric=metric),
        *target,
        metric_fn=metric_fn,
    )
    if follow is not False:
        cached = jnp.where(follow, root_of(preconditioner, new.metric), cached)
    return new, cached, info


def mala_step(
    rng_key: PRNGKey,
    logdensity_fn: LogDensity,
    step_size: float,
    preconditioner: metrics.Factor,
    here: Moved,
) -> Moved:
    """A step with the metric that is kept."""
    before, cached, _ = here
    outer = metrics.IDENTITY if cached.ndim == 2 else preconditioner
    root = metrics.Composed(outer, cached)
    start = mala.MALAState(*before[:3])
    new, info = mala.build_kernel()(
        jax.random.clone(rng_key), start, logdensity_fn, step_size, root
    )
    moved = smmala.SMMALAState(new.position, new.logdensity, new.logdensity_grad, before.metric)
    return moved, cached, smmala.SMMALAInfo(*info)


def build_kernel() -> Callable[..., tuple[ALSMMALAState, ALSMMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: ALSMMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        schedule: schedules.Schedule = SCHEDULE,
        metric_fn: metrics.MetricFn = METRIC,
        follow: bool | Array = False,
        run_length: int = RUN_LENGTH,
        refresh: Array | None = None,
        is_current: Array | None = None,
    ) -> tuple[ALSMMALAState, ALSMMALAInfo]:
        """One step: one gradient; if it is SMMALA's, one metric, two where a run begins.

        Many chains are given `refresh` (`decide`) and `is_current` (the state's, the same for all)
        from outside ``vmap``.
        """
        key_refresh, key_step = jax.random.split(rng_key)
        is_current = state.is_current if is_current is None else is_current
        if refresh is None:
            refresh = decide(key_refresh, state.iteration, is_current, schedule, run_length)
        refresh = jnp.asarray(refresh)
        preconditioner = metrics.factorize(
            inverse_mass_matrix, ravel_pytree(state.position)[0].size
        )

        target = key_step, logdensity_fn, step_size, preconditioner
        smmala_turn = partial(smmala_step, *target, metric_fn, is_current, follow)
        mala_turn = partial(mala_step, *target)

        no = jnp.array(False)
        nothing = smmala.SMMALAInfo(jnp.zeros_like(state.logdensity), no, no)
        here = smmala.SMMALAState(*state[:4]), state.cached, nothing
        # not two branches: XLA copies all that a branch hands on, and both metrics are (D, D)
        new, cached, info = once(~refresh, mala_turn, once(refresh, smmala_turn, here))
        new_state = ALSMMALAState(*new[:4], cached, refresh, state.iteration + 1)
        return new_state, ALSMMALAInfo(*info, refresh)

    return kernel


@top_level(init, build_kernel, internal=("refresh", "is_current"))
def alsmmala(
    schedule: schedules.Schedule, metric_fn: metrics.MetricFn, follow: bool, run_length: int
) -> dict[str, Any]:
    """ALSMMALA (Papamarkou and Ford, Algorithm 1, made exact): MALA with scheduled SMMALA steps.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, twice differentiable.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the metric, for both steps.
    follow
        False: the metric of the MALA steps is the state's and stays, which is exact. True: it
        follows the SMMALA steps, as published. Biased: for warm-up only.
    run_length
        Number of SMMALA steps in a row, at least 1.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import schedules
    >>> alsmmala = blackjax_ext.alsmmala(
    ...     lambda x: -0.5 * jnp.sum(x**2), 1.0, schedule=schedules.exponential(7.0, 0.05, 1000)
    ... )
    >>> state = alsmmala.init(jnp.zeros(3))
    >>> state, info = jax.jit(alsmmala.step)(jax.random.key(1), state)
    >>> bool(info.is_refreshed)
    True
    """
    schedules.check_schedule(schedule)
    check_count("run_length", run_length)
    if follow:
        warnings.warn(BIASED, stacklevel=5)
    return {"metric_fn": metrics.as_metric(metric_fn)}
