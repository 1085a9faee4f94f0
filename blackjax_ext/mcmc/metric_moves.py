"""Langevin moves in a metric of the position, and the state that keeps it."""

from collections.abc import Callable
from typing import NamedTuple

from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.checks import check_position
from blackjax_ext.mcmc import langevin
from blackjax_ext.types import LogDensity


class MetricState(NamedTuple):
    r"""State of a chain that keeps a metric.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    logdensity_grad
        Its gradient, a pytree like the position.
    metric
        Factor of the metric at the position, in whitened coordinates.
    divergence
        :math:`\sum_j \partial_j (G^{-1})_{ij}` there, shape (D,); None for algorithms without.
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: ArrayTree
    metric: metrics.Factor
    divergence: Array | None = None


def init_metric(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    inverse_mass_matrix: metrics.InverseMassMatrix,
    metric_fn: metrics.MetricFn,
    *,
    divergence: bool = False,
) -> MetricState:
    """Make the first state, whose metric must be positive definite: one gradient, one metric."""
    position = check_position(position)
    preconditioner = metrics.factorize(inverse_mass_matrix, ravel_pytree(position)[0].size)
    state = local_state(logdensity_fn, position, preconditioner, metric_fn, divergence=divergence)
    metrics.check_metric(state.metric)
    return state


def local_state(
    logdensity_fn: LogDensity,
    position: ArrayTree,
    preconditioner: metrics.Factor,
    metric_fn: metrics.MetricFn,
    *,
    divergence: bool = False,
) -> MetricState:
    """State at `position`: one gradient, one metric, and its derivative with `divergence`."""
    metric = metrics.as_metric(metric_fn)
    local = metric.evaluate(logdensity_fn, position, preconditioner, divergence=divergence)
    return MetricState(position, *local)


def metric_move(
    rng_key: PRNGKey,
    state: MetricState,
    logdensity_fn: LogDensity,
    step_size: Array | float,
    inverse_mass_matrix: metrics.InverseMassMatrix,
    metric_fn: metrics.MetricFn,
) -> tuple[MetricState, langevin.MoveInfo]:
    """One step: what the state keeps is evaluated at the proposal."""
    preconditioner = metrics.factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)
    divergence = state.divergence is not None

    def point(state: MetricState) -> langevin.Point:
        gradient = langevin.whitened_gradient(state, preconditioner)
        if state.divergence is not None:
            gradient = gradient + state.metric.times(state.divergence)
        return langevin.Point(state.logdensity, gradient, state.metric)

    def state_at(position: ArrayTree) -> MetricState:
        return local_state(
            logdensity_fn, position, preconditioner, metric_fn, divergence=divergence
        )

    return langevin.move(rng_key, state, step_size, preconditioner, point, state_at)


def metric_kernel(
    default: metrics.MetricFn,
) -> Callable[..., tuple[MetricState, langevin.MoveInfo]]:
    """The kernel of :func:`metric_move`, with the metric `default` where none is given."""

    def kernel(
        rng_key: PRNGKey,
        state: MetricState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        metric_fn: metrics.MetricFn = default,
    ) -> tuple[MetricState, langevin.MoveInfo]:
        """One step: one gradient, one metric, and its derivative if the state has that."""
        return metric_move(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, metric_fn)

    return kernel
