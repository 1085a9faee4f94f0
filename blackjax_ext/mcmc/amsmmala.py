r"""AMSMMALA: adaptive Metropolis with scheduled SMMALA steps (Papamarkou and Ford, Algorithm 2).

At iteration i the step is SMMALA's (:mod:`blackjax_ext.mcmc.smmala`) with probability p(i), else a
random walk with the empirical covariance :math:`\Sigma = R R^T` of the chain,

.. math::
    \theta_* = \theta + \epsilon R z, \qquad z \sim \mathcal{N}(0, I),

accepted with probability :math:`\min(1, \pi(\theta_*) / \pi(\theta))` (eq. 14), in coordinates
:math:`\theta` whitened by `inverse_mass_matrix`.

*Exact by default.* With :math:`\Sigma` fixed both steps leave :math:`\pi` invariant, and so does
their mixture, since the schedule does not depend on the chain. :math:`\Sigma` is that of the state
and stays.

*Adaptive* (`follow=True`, biased at every finite time), :math:`\Sigma` learns from each draw. It
starts from the inverse metric at the first position, counted as :math:`n_0 = D + 5` draws; with
:math:`n` draws so far, mean :math:`\bar\theta` and :math:`\delta = \theta - \bar\theta`, Welford's
form of the paper's recursion (15) is one update of rank one, where (15) needs three:

.. math::
    \Sigma \leftarrow \frac{n}{n + 1} \left(\Sigma + \frac{\delta \delta^T}{n + 1}\right), \qquad
    \bar\theta \leftarrow \bar\theta + \frac{\delta}{n + 1}.

It is carried as :math:`R` and :math:`R^{-1}`, so that an update is a few products of a matrix and a
vector (:func:`blackjax_ext.metrics.factors.rank_one`). Use it for warm-up: the state then goes
on with `follow=False` from the covariance it has.

Cost: one evaluation and O(D^2) per step; on SMMALA steps a gradient and a metric at both ends. With
many chains under ``vmap`` a decision per chain would turn the branch into a select and every chain
would pay for the metric in every step: give `refresh`, drawn once for all.

What goes wrong: both steps share epsilon, and the best random walk takes shorter steps
(:math:`2.4 / \sqrt D`) than the best Langevin step (:math:`D^{-1/6}`), so in high dimensions one of
them is badly scaled.

References: T. Papamarkou and E. Ford, Manifold Langevin Monte Carlo with partial metric updates,
Algorithm 2; H. Haario, E. Saksman and J. Tamminen 2001, An adaptive Metropolis algorithm.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.mcmc import random_walk, schedules, smmala
from blackjax_ext.mcmc.metric_moves import local_state
from blackjax_ext.mcmc.schedules import ScheduledInfo as AMSMMALAInfo
from blackjax_ext.metrics import factors
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["AMSMMALAInfo", "AMSMMALAState", "amsmmala", "build_kernel", "init"]

METRIC = metrics.absolute_hessian()
SCHEDULE = schedules.modulo(7)
BIASED = (
    "follow=True keeps adapting the covariance of AMSMMALA's random walk to the chain, which does "
    "not leave the target invariant. Use it for warm-up only, or leave it out."
)


class AMSMMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    covariance
        Factor whose inverse metric is the empirical covariance, in whitened coordinates.
    mean
        Mean of the draws, shape (D,).
    num_draws
        Number of draws the covariance counts for.
    iteration
        Number of steps taken.
    logdensity_grad
        Always None: most steps take no gradient, so there is none to offer to an adaptation.
    """

    position: ArrayTree
    logdensity: Array
    covariance: metrics.Dense
    mean: Array
    num_draws: Array
    iteration: Array
    logdensity_grad: None = None


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> AMSMMALAState:
    """Make the first state: one gradient, one metric. A key is accepted and not used."""
    start = smmala.init(position, logdensity_fn, rng_key, inverse_mass_matrix, metric_fn=metric_fn)
    x, _ = ravel_pytree(start.position)
    num_draws = jnp.asarray(x.size + 5.0, x.dtype)
    return AMSMMALAState(*start[:2], start.metric.dense(x), x, num_draws, jnp.array(0))


def is_scheduled(rng_key: PRNGKey, iteration: Array, schedule: schedules.Schedule) -> Array:
    """Whether the step at `iteration` is SMMALA's."""
    return jax.random.bernoulli(rng_key, schedule(iteration))


def build_kernel() -> Callable[..., tuple[AMSMMALAState, AMSMMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: AMSMMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        schedule: schedules.Schedule = SCHEDULE,
        metric_fn: metrics.MetricFn = METRIC,
        follow: bool | Array = False,
        refresh: Array | None = None,
    ) -> tuple[AMSMMALAState, AMSMMALAInfo]:
        """One step: one evaluation; if it is SMMALA's, two gradients and two metrics.

        Many chains are given `refresh` (`is_scheduled`) from outside ``vmap``.
        """
        key_refresh, key_step = jax.random.split(rng_key)
        if refresh is None:
            refresh = is_scheduled(key_refresh, state.iteration, schedule)
        preconditioner = metrics.factorize(inverse_mass_matrix, state.mean.size)

        def smmala_step() -> tuple[random_walk.RandomWalkState, random_walk.RandomWalkInfo]:
            start = local_state(logdensity_fn, state.position, preconditioner, metric_fn)
            new, info = smmala.build_kernel()(
                key_step, start, logdensity_fn, step_size, preconditioner, metric_fn=metric_fn
            )
            return random_walk.RandomWalkState(*new[:2]), random_walk.RandomWalkInfo(*info)

        def random_walk_step() -> tuple[random_walk.RandomWalkState, random_walk.RandomWalkInfo]:
            root = metrics.Composed(preconditioner, state.covariance.inverse_sqrt)
            start = random_walk.RandomWalkState(*state[:2])
            return random_walk.build_kernel()(key_step, start, logdensity_fn, step_size, root)

        new: random_walk.RandomWalkState
        info: random_walk.RandomWalkInfo
        new, info = jax.lax.cond(refresh, smmala_step, random_walk_step)
        new_state = state._replace(**new._asdict(), iteration=state.iteration + 1)
        if follow is not False:
            new_state = jax.lax.cond(
                follow, partial(welford_update, preconditioner), lambda state: state, new_state
            )
        return new_state, AMSMMALAInfo(*info, jnp.asarray(refresh))

    return kernel


def welford_update(preconditioner: metrics.Factor, state: AMSMMALAState) -> AMSMMALAState:
    """Welford's update of mean and covariance with the position: O(D^2)."""
    deviation = ravel_pytree(state.position)[0] - state.mean
    total = state.num_draws + 1.0
    covariance = factors.rank_one(
        state.covariance,
        state.num_draws / total,
        1.0 / total,
        preconditioner.sqrt_times(deviation),
    )
    return state._replace(
        covariance=covariance, mean=state.mean + deviation / total, num_draws=total
    )


@top_level(init, build_kernel, internal=("refresh",))
def amsmmala(
    schedule: schedules.Schedule, metric_fn: metrics.MetricFn, follow: bool
) -> dict[str, Any]:
    """AMSMMALA (Papamarkou and Ford, Algorithm 2): random walk with scheduled SMMALA steps.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, twice differentiable.
    step_size
        epsilon > 0, for both steps, in units of the metric and of the covariance.
    follow
        False: the covariance is the state's and stays, which is exact. True: it learns from each
        draw. Biased: for warm-up only.
    """
    schedules.check_schedule(schedule)
    if follow:
        warnings.warn(BIASED, stacklevel=5)
    return {"metric_fn": metrics.as_metric(metric_fn)}
