r"""Warm-up: step size by dual averaging, metric by pooled, shrunk covariances over windows.

*Windows.* The warm-up is cut into windows that grow (5, 10, 25, 45 and 15 % of it). Each but the
last ends in a new metric, estimated from the draws of that window alone; the last serves the step
size.

*Covariance.* Draws are whitened by the current metric and pooled over the chains that share it.
With S their second central moment, the new covariance in whitened coordinates is

.. math::
    \frac{n_e S + n_0 I}{n_e + n_0}, \qquad n_0 = D + 5 \text{ (dense)}, \; 5 \text{ (diagonal)},

so what the draws do not say is left to the metric before them, the curvature found at the start in
the first place. :math:`n_e` counts effective draws, not draws: a slow kernel's window may hold a
thousand draws and ten effective ones, and a covariance from ten is worse than none. It comes from
the squared jumps: with lag-one autocorrelation :math:`\rho = 1 - J / (2 S)`, J the mean squared
jump, :math:`n_e = n (1 - \rho) / (1 + \rho)` per coordinate.

*Step size.* Dual averaging (Hoffman and Gelman 2014) of the acceptance probability, averaged over
vectorized chains, restarted at each new metric.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from blackjax.optimizers.dual_averaging import DualAveragingState, dual_averaging
from jax import Array

from blackjax_ext.metrics import Factor

__all__ = [
    "AdaptState",
    "Moments",
    "cap",
    "ends",
    "init",
    "update_metric",
    "update_moments",
    "update_step",
]

FRACTIONS = (0.05, 0.15, 0.4, 0.85)
MIN_WARMUP = 20  # below, the step size alone is adapted


class Moments(NamedTuple):
    """Sums over the draws of one window, whitened and pooled over chains.

    origin
        Point the sums are taken about, shape (D,).
    previous
        Last draw of each chain, shape (C, D).
    num_draws, first, second, jumps
        Number of draws, their sum (D,), sum of squares (D,) or products (D, D), sum of squared
        jumps (D,).
    """

    origin: Array
    previous: Array
    num_draws: Array
    first: Array
    second: Array
    jumps: Array


class AdaptState(NamedTuple):
    """What the warm-up adapts.

    step_size
        Step size, one per chain.
    metric
        Factor of the preconditioner, shared by vectorized chains.
    averaging
        Dual averaging, one per chain.
    moments
        Moments of the current window, None if the metric is not adapted.
    """

    step_size: Array
    metric: Factor
    averaging: DualAveragingState
    moments: Moments | None

    @property
    def inverse_mass_matrix(self) -> Array:
        """Covariance (D, D) or variances (D,) of the preconditioner; one per vectorized chain."""
        inverse = self.metric.inverse()
        return jnp.broadcast_to(inverse, jnp.shape(self.step_size) + inverse.shape)


def ends(num_warmup: int) -> np.ndarray:
    """Iterations after which the metric is renewed."""
    if num_warmup < MIN_WARMUP:
        return np.array([], dtype=int)
    return np.unique([round(fraction * num_warmup) for fraction in FRACTIONS]) - 1


def init(step_size: Array, metric: Factor, x: Array, *, adapt_metric: bool) -> AdaptState:
    """First state for chains at `x`, shape (C, D), with step sizes of any shape."""
    averaging = averaging_at(step_size)
    return AdaptState(
        step_size, metric, averaging, start_window(metric, x) if adapt_metric else None
    )


def averaging_at(step_size: Array) -> DualAveragingState:
    """Dual averaging about `step_size`, its average included in case the window is empty."""
    state = dual_averaging()[0](step_size)
    step = jnp.ones_like(step_size)
    return state._replace(
        log_x_avg=jnp.log(step_size), step=step, avg_error=jnp.zeros_like(step_size)
    )


def start_window(metric: Factor, x: Array) -> Moments:
    """Empty sums about the mean of the chains."""
    size = x.shape[1]
    zeros = jnp.zeros(size, x.dtype)
    none = metric.products(jnp.zeros((1, size), x.dtype))
    return Moments(x.mean(axis=0), x, jnp.zeros((), x.dtype), zeros, none, zeros)


def update_step(
    state: AdaptState, acceptance_rate: Array, target: float, is_last: Array
) -> AdaptState:
    """One update of dual averaging; after the last, the averaged step size is taken."""
    averaging = dual_averaging()[1](state.averaging, target - acceptance_rate)
    log_step = jnp.where(is_last, averaging.log_x_avg, averaging.log_x)
    return state._replace(averaging=averaging, step_size=representable(log_step))


def cap(state: AdaptState, longest: float) -> AdaptState:
    """No step size, and no average of them, above `longest`."""
    averaging = state.averaging
    averaging = averaging._replace(log_x_avg=jnp.minimum(averaging.log_x_avg, np.log(longest)))
    return state._replace(step_size=jnp.minimum(state.step_size, longest), averaging=averaging)


def update_moments(state: AdaptState, x: Array) -> AdaptState:
    """Add the draws `x`, shape (C, D), to the window."""
    moments, metric = state.moments, state.metric
    assert moments is not None
    whitened = metric.sqrt_times(x - moments.origin)
    jump = metric.sqrt_times(x - moments.previous)
    moments = Moments(
        moments.origin,
        x,
        moments.num_draws + x.shape[0],
        moments.first + whitened.sum(axis=0),
        moments.second + metric.products(whitened),
        moments.jumps + jnp.sum(jump**2, axis=0),
    )
    return state._replace(moments=moments)


def update_metric(state: AdaptState, x: Array) -> AdaptState:
    """End a window of chains at `x`: new metric, dual averaging restarted, empty sums."""
    assert state.moments is not None
    metric = shrunk(state.metric, state.moments)
    step_size = representable(state.averaging.log_x_avg)
    return AdaptState(step_size, metric, averaging_at(step_size), start_window(metric, x))


def representable(log_step: Array) -> Array:
    """``exp(log_step)``, kept away from zero and infinity."""
    limits = jnp.finfo(log_step.dtype)
    return jnp.clip(jnp.exp(log_step), 1e3 * limits.tiny, 1e-3 * limits.max)


def shrunk(metric: Factor, moments: Moments) -> Factor:
    """The metric of the pooled covariance, shrunk towards the current one by effective draws."""
    n, mean = moments.num_draws, moments.first / moments.num_draws
    covariance = metric.covariance(moments.second / n, mean)
    weights = shrinkage(
        metric.variances(covariance), moments.jumps / n, n, metric.num_prior_draws(mean.size)
    )
    return metric.shrink(covariance, weights)


def usable(variance: Array) -> Array:
    """`variance` where it is positive and finite, else 1, which changes nothing."""
    return jnp.where(jnp.isfinite(variance) & (variance > 0), variance, 1.0)


def shrinkage(variance: Array, jump: Array, n: Array, prior_draws: float) -> Array:
    """Weight of `variance` against the metric it was seen in, per coordinate."""
    rho = 1 - 0.5 * jump / usable(variance)
    effective = n * jnp.clip((1 - rho) / jnp.maximum(1 + rho, 1e-3), 0.0, 1.0)
    return effective / (effective + prior_draws)
