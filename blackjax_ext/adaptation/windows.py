r"""Warm-up: step size by dual averaging, metric by pooled, shrunk covariances over windows.

*Windows.* The warm-up is cut into windows that grow (5, 10, 25, 45 and 15 % of it). Each but the
last ends in a new metric, estimated from the draws of that window alone; the last serves the step
size.

*Covariance.* Draws are whitened by the current metric and pooled over the chains that share it.
With S their second central moment, the new covariance in whitened coordinates is

.. math::
    \frac{n_e S + n_0 I}{n_e + n_0}, \qquad n_0 = D + 5 \text{ (dense)}, \; 5 \text{ (diagonal)},

so with few effective draws the new metric stays close to the one before, of which the first is the
curvature at the start. :math:`n_e` counts effective draws: a slow kernel's window may hold a
thousand draws and ten effective ones, and a covariance from ten is worse than none. It comes from
the squared jumps: with lag-one autocorrelation :math:`\rho = 1 - J / (2 S)`, J the mean squared
jump, :math:`n_e = n (1 - \rho) / (1 + \rho)` per coordinate.

*Gradients.* Beyond 64 dimensions a window has fewer effective draws than a covariance needs, and
chains with the wrong scales have hardly any. Algorithms that take gradients g then learn the metric
from both: the one of least Fisher divergence (nutpie; Seyboldt et al. 2026), whose inverse is the
geometric mean of the covariance of x and of the inverse of that of g. For a diagonal that is
:math:`\sqrt{\mathrm{var}\,x / \mathrm{var}\,g}`. On a normal it is right after a few steps, however
short they are.

*Chains that are apart.* Where chains move well, and each about a place of its own, the draws of
all span what none of them crosses: a metric from them makes steps longer than any of the places.
Along such coordinates the means of the chains are taken out: those in which the means are two
standard deviations apart, each chain has four effective draws, and drifts in a window by less than
a fifth of what lies between them. A chain that crawls drifts, and the distance of the chains from
each other stays what it is: the best that is known of the scale.

*Step size.* Dual averaging (Hoffman and Gelman 2014) of the acceptance probability, averaged over
vectorized chains, restarted at each new metric. A mean hides one chain that accepts nothing: of
four chains, three at 0.75 and one at 0 have the mean 0.56. So a running mean is kept of each chain,
and while one of them is below a quarter of the target, the steps get shorter whatever the others
do. They do so slowly: following that chain alone would shorten them tenfold before it moves, and
the others would then hardly move. If the chains agree, the mean is unchanged.

*Frozen chains.* A chain that moved in fewer than 2 % of the steps of a window is put back where
another one is, when the window ends.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.optimizers.dual_averaging import DualAveragingState, dual_averaging
from jax import Array

from blackjax_ext.adaptation.half_turns import Trial
from blackjax_ext.checks import item_of
from blackjax_ext.metrics.factor import Factor

MANY = 64  # dimensions, beyond which gradients tell more of a metric than draws alone
MIN_WINDOW = 40  # steps, below which too few moves may be chance
# Chains are apart where the variance of their means is so often that within chains, and so often
# the square of their drift in the window, of which each has so many effective draws. (A chain that
# crawls through a part of the posterior has 1.5 by its jumps, however long the window is.)
APART, SETTLED, SURE = 4.0, 25.0, 4.0


class Moments(NamedTuple):
    """Sums over the draws of one window, whitened and pooled over chains.

    origin
        Point the sums are taken about, shape (D,).
    previous
        Last draw of each chain, shape (C, D).
    num_draws, first, timed, second, jumps
        Number of draws; for each chain their sum, and that of draws times their number in the
        window (C, D); sum of squares (D,) or products (D, D), sum of squared jumps (D,).
    squares
        Sum of squares of draws about their origin that are not whitened, shape (D,).
    """

    origin: Array
    previous: Array
    num_draws: Array
    first: Array
    timed: Array
    second: Array
    jumps: Array
    squares: Array


class Slopes(NamedTuple):
    """Gradients of one window, whitened and pooled over chains.

    first, second
        Their sum (D,), and that of their squares (D,) or products (D, D).
    draws, gradients
        The last draws and gradients as they are, (N, D), for metrics of low rank; None for others.
    """

    first: Array
    second: Array
    draws: Array | None = None
    gradients: Array | None = None


class Centres(NamedTuple):
    """Centres of the chains of a window, whitened.

    mean
        Mean of all draws about their origin, shape (D,).
    offsets
        Means of the chains about that, shape (C, D).
    is_apart
        Coordinates in which chains move well, each about a place of its own, shape (D,).
    variances
        Of all draws, without what lies between chains that are apart, shape (D,).
    """

    mean: Array
    offsets: Array
    is_apart: Array
    variances: Array


class Motion(NamedTuple):
    """Statistics of how each of C chains moves in the warm-up.

    rate
        Running mean of the acceptance probability, shape (C,).
    num_steps
        Steps of the current window.
    num_moved
        In how many of them each chain moved, shape (C,).
    """

    rate: Array
    num_steps: Array
    num_moved: Array


class AdaptationSchedule(NamedTuple):
    """When the warm-up adapts; it travels with the chains, whatever kernel steps them.

    num_steps
        Steps of the warm-up.
    ends
        Iterations after which the metric is renewed.
    """

    num_steps: Array
    ends: Array


class AdaptState(NamedTuple):
    """State of the adaptation: step size and metric, and what they are learned from.

    step_size
        Step size, one per chain.
    metric
        Factor of the preconditioner, shared by vectorized chains.
    averaging
        Dual averaging, one per chain.
    moments
        Moments of the current window; they tell how far chains get where the metric stays, too.
    motion
        How the chains move.
    schedule
        When all this is adapted; None for never.
    coordinates
        What is learned of coordinates; None for steps in the position itself.
    slopes
        Gradients of the current window; None for a metric from draws alone.
    trial
        Of a longer step, by algorithms that double trajectories; None for others.
    """

    step_size: Array
    metric: Factor
    averaging: DualAveragingState
    moments: Moments
    motion: Motion
    schedule: AdaptationSchedule | None
    coordinates: Any = None
    slopes: Slopes | None = None
    trial: Trial | None = None

    def __getitem__(self, key: Any) -> Any:
        return item_of(self, key)

    @property
    def frame(self) -> Any:
        """The metric that steps are taken in, with pseudo-observations of effects if there are."""
        if self.coordinates is None:
            return self.metric
        return self.coordinates.frame(self.metric)

    @property
    def inverse_mass_matrix(self) -> Array:
        """Covariance (D, D) or variances (D,) of the preconditioner; one per vectorized chain."""
        inverse = self.metric.inverse()
        return jnp.broadcast_to(inverse, jnp.shape(self.step_size) + inverse.shape)

    if not TYPE_CHECKING:  # type: ignore[misc]  # else every name is an attribute

        def __getattr__(self, name: str) -> Any:
            """Say which names there are: NumPyro's state of the same place has others."""
            raise AttributeError(
                f"{name!r} is not kept of what the warm-up adapts; there are "
                f"{', '.join(self._fields)} and inverse_mass_matrix (an array; its inverse is the "
                "mass matrix)"
            )


def ends(num_warmup: int) -> np.ndarray:
    """Iterations after which the metric is renewed."""
    if num_warmup < 20:  # the step size alone is adapted
        return np.array([], dtype=int)
    return np.unique([round(fraction * num_warmup) for fraction in (0.05, 0.15, 0.4, 0.85)]) - 1


def init(
    step_size: Array, metric: Factor, x: Array, *, num_steps: int, with_gradients: bool = False
) -> AdaptState:
    """First state of a warm-up of `num_steps` steps for chains at `x`, shape (C, D).

    Step sizes may have any shape. `with_gradients` says that the metric is learned from gradients,
    too.
    """
    averaging = averaging_at(step_size)
    schedule = AdaptationSchedule(jnp.array(num_steps, int), jnp.array(ends(num_steps), int))
    return AdaptState(
        step_size,
        metric,
        averaging,
        start_window(metric, x),
        Motion(
            jnp.ones(x.shape[0], step_size.dtype), jnp.zeros((), int), jnp.zeros(x.shape[0], int)
        ),
        schedule if num_steps else None,
        slopes=start_slopes(metric, x) if with_gradients else None,
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
    sums = jnp.zeros_like(x)
    return Moments(x.mean(axis=0), x, jnp.zeros((), x.dtype), sums, sums, none, zeros, zeros)


def start_slopes(metric: Factor, x: Array) -> Slopes:
    """Empty sums, and room for rows if the metric is of low rank."""
    zeros = jnp.zeros_like(x[0])
    slopes = Slopes(zeros, metric.products(zeros[None]))
    if not metric.learns_from_rows:
        return slopes
    # draws that a metric of low rank is learned from
    num_rows = int(np.clip(2**22 // zeros.size, 64, 1024))
    rows = jnp.zeros((max(num_rows, len(x)), zeros.size), x.dtype)
    return slopes._replace(draws=rows, gradients=rows)


def update_motion(state: AdaptState, acceptance_rate: Array, has_moved: Array) -> AdaptState:
    """Count a step of C chains, of which some moved."""
    motion = state.motion
    # of each chain, averaged over about 25 steps
    rate = motion.rate + (acceptance_rate.astype(motion.rate.dtype) - motion.rate) / 25
    return state._replace(
        motion=Motion(rate, motion.num_steps + 1, motion.num_moved + has_moved.astype(int))
    )


def rate_to_adapt_to(state: AdaptState, acceptance_rate: Array, target: float) -> Array:
    """The acceptance probability that the step size answers to, of probabilities (C,).

    Their mean; while a chain is left behind by others, no more than three quarters of the target.
    """
    mean = jnp.mean(acceptance_rate)
    # below a quarter of the target a chain is not averaged with others, and shortens their steps
    num_behind = jnp.sum(state.motion.rate < 0.25 * target)
    is_hiding = (num_behind > 0) & (num_behind < acceptance_rate.size)
    return jnp.where(is_hiding, jnp.minimum(mean, target) - 0.25 * target, mean)


def frozen(motion: Motion) -> Array:
    """Which chains moved in hardly any step of the window, if it is long enough to tell."""
    # share of the steps of a window in which a chain that is not frozen moves
    few = motion.num_moved < 0.02 * motion.num_steps
    return few & (motion.num_steps >= MIN_WINDOW)


def rescue(states: Any, state: AdaptState) -> tuple[Any, AdaptState]:
    """Put the frozen chains back where others are, dealt round; `states` lead with the chains."""
    is_frozen = frozen(state.motion)
    num_chains = is_frozen.size
    if num_chains == 1:  # there are no others
        return states, state
    moving = jnp.argsort(is_frozen)  # first
    turn = (jnp.cumsum(is_frozen) - 1) % jnp.maximum(num_chains - is_frozen.sum(), 1)
    source = jnp.where(is_frozen & ~is_frozen.all(), moving[turn], jnp.arange(num_chains))
    states = jax.tree.map(lambda leaf: leaf[source], states)
    return states, state._replace(motion=state.motion._replace(rate=state.motion.rate[source]))


def update_step(
    state: AdaptState, acceptance_rate: Array, target: float, is_last: Array
) -> AdaptState:
    """One update of dual averaging; after the last, the averaged step size is taken."""
    averaging = dual_averaging()[1](state.averaging, target - acceptance_rate)
    log_step = jnp.where(is_last, averaging.log_x_avg, averaging.log_x)
    return state._replace(averaging=averaging, step_size=representable(log_step))


def limit_step_size(state: AdaptState, longest: float) -> AdaptState:
    """No step size, and no average of them, above `longest`."""
    averaging = state.averaging
    averaging = averaging._replace(log_x_avg=jnp.minimum(averaging.log_x_avg, np.log(longest)))
    return state._replace(step_size=jnp.minimum(state.step_size, longest), averaging=averaging)


def update_moments(state: AdaptState, x: Array) -> AdaptState:
    """Add the draws `x`, shape (C, D), to the window."""
    moments, metric = state.moments, state.metric
    off = x - moments.origin
    whitened, jump = metric.sqrt_times(jnp.stack([off, x - moments.previous]))
    moments = Moments(
        moments.origin,
        x,
        moments.num_draws + x.shape[0],
        moments.first + whitened,
        moments.timed + (moments.num_draws / x.shape[0]) * whitened,
        moments.second + metric.products(whitened),
        moments.jumps + jnp.sum(jump**2, axis=0),
        moments.squares + jnp.sum(off**2, axis=0),
    )
    return state._replace(moments=moments)


def update_slopes(state: AdaptState, x: Array, gradients: Array) -> AdaptState:
    """Add the gradients at `x`, both (C, D), to the window; before `update_moments`."""
    slopes, metric = state.slopes, state.metric
    assert slopes is not None
    gradients = jnp.where(jnp.isfinite(gradients), gradients, 0.0)
    whitened = metric.inverse_sqrt_transpose_times(gradients)
    slopes = slopes._replace(
        first=slopes.first + jnp.sum(whitened, axis=0),
        second=slopes.second + metric.products(whitened),
    )
    if slopes.draws is not None and slopes.gradients is not None:
        num_rows = len(slopes.draws)
        place = (state.moments.num_draws.astype(int) + jnp.arange(len(x))) % num_rows
        slopes = slopes._replace(
            draws=slopes.draws.at[place].set(x),
            gradients=slopes.gradients.at[place].set(gradients),
        )
    return state._replace(slopes=slopes)


def balanced(metric: Factor, moments: Moments, slopes: Slopes) -> Factor:
    """The metric of draws and gradients."""
    n = moments.num_draws
    if slopes.draws is not None and slopes.gradients is not None:
        return metric.of_rows(slopes.draws, slopes.gradients, n.astype(int))
    curvature = metric.covariance(slopes.second / n, slopes.first / n)
    return metric.balanced(pooled(metric, moments)[0], curvature, n)


def update_metric(state: AdaptState, x: Array) -> AdaptState:
    """End a window of chains at `x`: new metric, dual averaging restarted, empty sums."""
    if state.slopes is None:
        metric = shrunk(state.metric, state.moments)
    else:
        metric = balanced(state.metric, state.moments, state.slopes)
    step_size = representable(state.averaging.log_x_avg)
    state = state._replace(step_size=step_size, metric=metric, averaging=averaging_at(step_size))
    return start_counting(state, x)


def start_counting(state: AdaptState, x: Array) -> AdaptState:
    """Begin to count the steps and the moments of a window of chains at `x`."""
    motion = state.motion
    zeros = jax.tree.map(jnp.zeros_like, (motion.num_steps, motion.num_moved))
    state = state._replace(
        motion=Motion(motion.rate, *zeros), moments=start_window(state.metric, x)
    )
    if state.slopes is None:
        return state
    # rows need not be emptied: those of another window are not counted
    first, second = jax.tree.map(jnp.zeros_like, (state.slopes.first, state.slopes.second))
    return state._replace(slopes=state.slopes._replace(first=first, second=second))


def representable(log_step: Array) -> Array:
    """``exp(log_step)``, kept away from zero and infinity."""
    limits = jnp.finfo(log_step.dtype)
    return jnp.clip(jnp.exp(log_step), 1e3 * limits.tiny, 1e-3 * limits.max)


def shrunk(metric: Factor, moments: Moments) -> Factor:
    """The metric of the pooled covariance, shrunk towards the current one by effective draws."""
    n, (covariance, variances) = moments.num_draws, pooled(metric, moments)
    num_prior_draws = metric.num_prior_draws(moments.jumps.size)
    return metric.shrink(covariance, shrinkage(variances, moments.jumps / n, n, num_prior_draws))


def pooled(metric: Factor, moments: Moments) -> tuple[Any, Array]:
    """Whitened covariance of all draws, without what lies between chains apart, and variances."""
    mean, offsets, is_apart, variances = centres(metric, moments)
    covariance = metric.covariance(moments.second / moments.num_draws, mean)
    if offsets.shape[0] == 1:
        return covariance, variances
    near = jnp.where(is_apart, 0.0, offsets)
    between = metric.products(offsets) - metric.products(near)
    covariance = jnp.where(is_apart.any(), covariance - between / offsets.shape[0], covariance)
    return covariance, variances


def centres(metric: Factor, moments: Moments) -> Centres:
    """Centres of the chains, and the coordinates in which they are apart."""
    num_chains = moments.first.shape[0]
    length = moments.num_draws / num_chains
    means = moments.first / length
    mean = means.mean(axis=0)
    offsets = means - mean
    total = metric.variances(metric.covariance(moments.second / moments.num_draws, mean))
    between = jnp.mean(offsets**2, axis=0)
    within = total - between
    # rounding leaves of a chain that stands still what it pleases
    is_known = within > 100 * jnp.finfo(within.dtype).eps * total
    effective = num_effective(within, moments.jumps / moments.num_draws, length)
    # the slope in time, of independent draws of variance 12 within / length^3, times the length
    drift = 12.0 * (moments.timed / length - 0.5 * (length - 1.0) * means) / length
    drift = jnp.mean(drift**2, axis=0)
    effective = jnp.minimum(effective, 12.0 * within / drift)
    is_apart = is_known & (between > APART * within) & (effective > SURE)
    is_apart &= (between > SETTLED * drift) & (length >= MIN_WINDOW)
    return Centres(mean, offsets, is_apart, jnp.where(is_apart, within, total))


def chain_offsets(metric: Factor, moments: Moments) -> Array:
    """Means of the chains of a window, from its origin, (C, D)."""
    return metric.inverse_sqrt_times(moments.first * (len(moments.first) / moments.num_draws))


def chain_moments(metric: Factor, moments: Moments) -> tuple[Array, Array]:
    """Means of the chains of a window, (C, D), and the variance within them, (D,)."""
    means = chain_offsets(metric, moments)
    total = moments.squares / moments.num_draws
    # what rounding leaves of a small difference would make chains that moved together disagree
    least = 100 * jnp.finfo(total.dtype).eps * total
    within = jnp.maximum(total - jnp.mean(means**2, axis=0), least)
    return moments.origin + means, within


def usable(variance: Array) -> Array:
    """`variance` where it is positive and finite, else 1, which changes nothing."""
    return jnp.where(jnp.isfinite(variance) & (variance > 0), variance, 1.0)


def shrinkage(variance: Array, jump: Array, n: Array, prior_draws: float | Array) -> Array:
    """Weight of `variance` against the metric it was seen in, per coordinate."""
    effective = num_effective(variance, jump, n)
    return effective / (effective + prior_draws)


def num_effective(variance: Array, jump: Array, n: Array) -> Array:
    """Effective draws of n, per coordinate, by the mean squared `jump` from one to the next."""
    rho = 1 - 0.5 * jump / usable(variance)
    return n * jnp.clip((1 - rho) / jnp.maximum(1 + rho, 1e-3), 0.0, 1.0)
