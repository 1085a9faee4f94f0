r"""A way out of a bad start: Newton's path, and the best normal approximation along it.

First-order kernels crawl out of a random start on a regression with unscaled covariates; a few
Newton steps jump. The path is the one of saddle-free Newton (Dauphin et al. 2014): with :math:`g`
the gradient and :math:`|H|` minus the Hessian with the absolute values of its eigenvalues, step
along :math:`|H|^{-1} g` and keep the best of a ladder of lengths. It is invariant to the scale of
each parameter and to their correlation.

Far from any mode that invariance is a fault: where H has no sign that means anything, a flat
direction is a leap, and the path ends in a basin that no chain would have drifted to. On a hidden
Markov model whose modes are 65 nats apart, a quarter of the paths ended at the better one. So the
first steps go along the gradient, in the coordinates in which starts are drawn evenly: nearly all
paths end there.

A mode need not be near the mass (Neal's funnel has its mode 13 sds from it), so the start is not
the end of the path. As in Pathfinder (Zhang et al. 2022), each point of the path proposes a normal,
:math:`\mathcal{N}(x, |H|^{-1})`, and the best of them wins; the chain starts at one of its draws,
taken by importance. The best has the largest importance-weighted bound of the log evidence (Burda
et al. 2016), which counts the mass that a normal covers. The plain evidence lower bound does not
serve: a single draw where the log density is -1e20 decides it.

In many dimensions no point of the path to a mode may be near the mass: of 190 effects that share a
scale, the mode has the smallest scale that there is, and paths from outside run past all others. So
beyond MANY dimensions a path ascends the log density averaged over a pair of draws,
:math:`x \pm |H|^{-1/2} z` with one z for the whole path, in place of that at x: the first step of
a variational Newton method (Opper & Archambeau 2009). For a normal the two are the same. With the
spread of the effects in it, the slope along their scale is zero where that of its marginal density
is, about. One pair will do, since a sum over many dimensions is near its mean. Where draws tell
nothing, their slope far above that at x, the path ascends the density at x.

Cost and memory are bounded by :mod:`blackjax_ext.adaptation.budget`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import budget
from blackjax_ext.adaptation.windows import MANY
from blackjax_ext.factoring import in_parts
from blackjax_ext.mcmc.derivatives import Differentiation, derivatives, gradient_of
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.types import Function, LogDensity, select


class Approximation(NamedTuple):
    """A normal approximation of the target; several have leading axes.

    mean
        Its mean, shape (D,).
    metric
        Factor of its precision.
    draws
        A few draws from it, shape (S, D); its mean where the target is not finite.
    log_weights
        Log importance of each, shape (S,).
    """

    mean: Array
    metric: Any
    draws: Array
    log_weights: Array

    @property
    def evidence(self) -> Array:
        """Importance-weighted bound of the log evidence, -inf where there is no approximation."""
        total = jax.nn.logsumexp(self.log_weights, axis=-1)
        return finite(total - jnp.log(self.log_weights.shape[-1]))

    def draw(self, level: Array) -> Array:
        """One of the draws by importance, shape (D,): that at `level`, uniform on (0, 1)."""
        shares = jnp.cumsum(jax.nn.softmax(self.log_weights))
        return self.draws[jnp.minimum(jnp.sum(shares < level), self.log_weights.size - 1)]


def no_approximation(x: Array, num_draws: int, metric: Factor) -> Approximation:
    """Before there is any; `metric` has the structure of those that will come."""
    draws = jnp.tile(x, (num_draws, 1))
    return Approximation(x, metric, draws, jnp.full(num_draws, -jnp.inf, x.dtype))


def best_of(several: Approximation, before: Approximation) -> Approximation:
    """The best of several approximations and of one before them."""
    evidence = several.evidence
    top = jnp.argmax(evidence)
    best: Approximation = jax.tree.map(lambda leaf: leaf[top], several)
    return select(evidence[top] > before.evidence, best, before)


def sampled(noise: Array, logdensity_fn: LogDensity, x: Array, metric: Dense) -> Approximation:
    """The normal N(x, G^-1) with draws from it, weighed by a log density at one after the other."""
    values = finite(jax.lax.map(logdensity_fn, x + metric.inverse_sqrt_times(noise)))
    return weigh(x, metric, noise, values)


def weigh(x: Array, metric: Any, noise: Array, values: Array) -> Approximation:
    """The normal N(x, G^-1) and its draws from `noise`, (S, D), with their log densities (S,)."""
    draws = x + metric.inverse_sqrt_times(noise)
    log_q = -0.5 * jnp.sum(noise**2, axis=1) + 0.5 * metric.log_det(x.size)
    log_weights = finite(values - log_q)
    is_usable = jnp.isfinite(log_weights)[:, None]
    return Approximation(x, metric, jnp.where(is_usable, draws, x), log_weights)


def negligible(x: Array | np.ndarray) -> float:
    """Difference of log evidence at which the lesser approximation does not matter."""
    return x.size + 10.0


def finite(values: Array) -> Array:
    """`values` with -inf for what is not finite."""
    return jnp.where(jnp.isfinite(values), values, -jnp.inf)


def curvature(
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    num_rows: int | None = None,
) -> tuple[Array, Dense]:
    """Gradient and the metric ``|H|`` at `x`."""
    gradient, hessian = derivatives(logdensity_fn, x, differentiation, num_rows)
    return gradient, in_parts(metric_of, gradient, hessian)


def metric_of(gradient: Array, hessian: Array) -> Dense:
    """The metric ``|H|``; where that overflows, steps along the gradient.

    Far out in float32 a Hessian can overflow where the gradient does not. A coordinate without any
    curvature, as of a Laplace law, has the scale that its slope says: 1 / |gradient|.
    """
    size, eps = gradient.size, float(jnp.finfo(gradient.dtype).eps)
    is_straight = jnp.diagonal(hessian) == 0
    curvature = jnp.diag(jnp.where(is_straight, gradient**2, 0.0)) - hessian
    metric = scaled_eigen(curvature).absolute(size * eps)
    is_usable = jnp.isfinite(metric.inverse_sqrt).all() & jnp.isfinite(metric.sqrt).all()
    length = jnp.maximum(jnp.max(jnp.abs(gradient)), 1.0) ** 0.5  # a norm would overflow too
    eye = identity(gradient).sqrt
    along_gradient = Dense(eye / length, eye * length, 2.0 * size * jnp.log(length))
    return select(is_usable, metric, along_gradient)


def identity(x: Array) -> Dense:
    """The metric of a start that has no curvature to go by."""
    eye = jnp.eye(x.size, dtype=x.dtype)
    return Dense(eye, eye, jnp.zeros((), x.dtype))


Turn: TypeAlias = tuple[Array, Array, "Path"]  # its number, whether it is the last, and the paths
ModelFn: TypeAlias = Callable[["Path", Array], "LocalModel"]
Evaluate: TypeAlias = Callable[[Array], Array]

GRADIENT_STEPS = 3  # at first, of at most LENGTHS each
LENGTHS = 2.0 ** (2 - np.arange(budget.BUDGET.rungs, dtype=np.float32))
NUDGES = np.array([0.0, -5.0, -2.0, 2.0, 5.0], np.float32)  # units in the last place


class Path(NamedTuple):
    """Newton's path: point, whether it goes on, best so far, value at the start.

    `from_best` is the best approximation of all paths with draws of this one, once all have ended;
    `memory` is what a path that takes no Hessian remembers.
    """

    x: Array
    is_moving: Array
    best: Approximation
    from_best: Approximation
    first_value: Array
    memory: Any = None


class LocalModel(NamedTuple):
    """The quadratic model by which a path steps from its point.

    gradient
        Of the log density, or of its mean over a pair of draws, shape (D,).
    metric
        Factor of ``|H|``.
    pair
        The draws from the point, shape (2, D); zeros for the log density at the point; None where
        paths have no such pair.
    memory
        Of the path, with this point.
    """

    gradient: Array
    metric: Factor
    pair: Array | None = None
    memory: Any = None


def follow_paths(
    model_fn: ModelFn,
    evaluate: Evaluate,
    noise: Array,
    first: Path,
    before: Approximation,
    max_steps: int | Array,
) -> tuple[Array, Path]:
    """Number of turns, and the ends of paths that step by local models, at most `max_steps` times.

    `noise`, standard normal of shape (P, S, D), makes the draws of every approximation on a path:
    what differs between two of them is not chance. `before` is what earlier paths found.

    Cost: in each turn of a path a local model and 37 evaluations; beyond MANY dimensions 55. In a
    program the density stands twice, beyond MANY dimensions three times: in the derivatives, and
    in the evaluations of a turn. One loop takes the steps of all paths, and then evaluates the
    draws of the best approximation in one turn more: a density in a loop of each path, and in a
    program of its own for those draws, takes twice as long to compile.
    """
    turn_of_one = partial(take_turn, model_fn, evaluate)

    def is_going(carry: Turn) -> Array:
        return ~carry[1]

    def turn_of_all(carry: Turn) -> Turn:
        i, _, paths = carry
        is_last = ~jnp.any(paths.is_moving) | (i == max_steps)
        best = best_of(paths.best, before)
        new = jax.vmap(turn_of_one, (0, 0, None, None, None))(noise, paths, best, i, is_last)
        return i + 1, is_last, new

    i, _, paths = jax.lax.while_loop(is_going, turn_of_all, (jnp.array(0), jnp.array(False), first))
    return i, paths


def first_paths(
    x: Array, metric_of: Function = identity, memory_of: Function = lambda x: None
) -> Path:
    """Paths from `x`, (P, D), before their first turn, with metric and memory of each."""

    def first(x: Array) -> Path:
        nowhere = no_approximation(x, budget.BUDGET.draws, metric_of(x))
        return Path(x, jnp.array(True), nowhere, nowhere, jnp.zeros((), x.dtype), memory_of(x))

    return jax.vmap(first)(x)


def newton_model(
    logdensity_fn: LogDensity,
    differentiation: Differentiation,
    path: Path,
    noise: Array,
    *,
    num_rows: int | None = None,
) -> LocalModel:
    """Gradient and metric ``|H|`` where the path is, in many dimensions that of a pair of draws."""
    model = LocalModel(*curvature(logdensity_fn, path.x, differentiation, num_rows))
    if path.x.size <= MANY:
        return model
    return averaged_over_pair(gradient_of(logdensity_fn, differentiation), path.x, noise, model)


def averaged_over_pair(
    grad_fn: LogDensity, x: Array, noise: Array, model: LocalModel
) -> LocalModel:
    """`model` with the mean gradient of a pair of draws about x, where they tell something."""
    metric = model.metric
    # nearly independent of the draws, of each row of the noise, that weigh what the path finds
    signs = jnp.where(jnp.sum(noise, axis=0) < 0, -1.0, 1.0).astype(x.dtype)
    offset = metric.inverse_sqrt_times(signs)
    pair = jnp.stack([offset, -offset])
    # one after the other, in the memory of one gradient
    mean = jnp.mean(jax.lax.map(grad_fn, x + pair), axis=0)
    of_pair, at_x = (
        jnp.sum(metric.inverse_sqrt_transpose_times(gradient) ** 2)
        for gradient in (mean, model.gradient)
    )
    # a slope of draws that is so much steeper than at the point they surround
    is_telling = of_pair <= 4.0 * (at_x + x.size)  # False of what is not finite
    return model._replace(
        gradient=jnp.where(is_telling, mean, model.gradient),
        pair=jnp.where(is_telling, pair, 0.0),
    )


def evaluator(logdensity_fn: LogDensity, *, is_large: bool = False) -> Evaluate:
    """Log densities of n points (n, D) at once, or one by one where that would fill the memory."""
    return partial(jax.lax.map, logdensity_fn) if is_large else jax.vmap(logdensity_fn)


def take_turn(
    model_fn: ModelFn,
    evaluate: Evaluate,
    noise: Array,
    path: Path,
    best: Approximation,
    i: Array,
    is_last: Array,
) -> Path:
    """One step of one path; in the last turn, draws of the `best` approximation of all instead.

    Where the log density is known up to rounding only, the evidence is less by what that may add:
    for the concentration of a beta law, without a bound, 1e16 ends in sums of roundings that are
    larger than any evidence.
    """
    gradient, metric, pair, memory = model_fn(path, noise)
    whitened = metric.inverse_sqrt_transpose_times(gradient)
    newton = metric.inverse_sqrt_times(whitened)
    is_early = i < GRADIENT_STEPS
    direction = jnp.where(is_early, normalized(gradient), newton)
    ladder = path.x + LENGTHS[:, None].astype(path.x.dtype) * direction
    tried = ladder
    if pair is not None:  # a pair about the point, and about each of the ladder
        points = jnp.concatenate([path.x[None], ladder])
        tried = (points + pair[:, None]).reshape(-1, path.x.size)
    mean, shape = select(is_last, (best.mean, best.metric), (path.x, metric))
    draws = mean + shape.inverse_sqrt_times(noise)
    values = evaluate(jnp.concatenate([nudged(path.x), tried, draws]))
    values, first_value = finite(values), values[0]
    near, rungs, drawn = jnp.split(values, [NUDGES.size, NUDGES.size + len(tried)])
    height, least_gain = values[0], 0.0
    if pair is not None:
        means = finite(jnp.mean(rungs.reshape(len(pair), -1), axis=0))
        # for each dimension, of a step by a pair of draws: it is never at its end
        height, rungs, least_gain = means[0], means[1:], 0.01 * path.x.size
    # at the nudged points the density differs by rounding alone: that is taken off the evidence
    rounding = jnp.where(is_last, 0.0, 16.0 * jnp.ptp(near))
    here = weigh(mean, shape, noise, drawn - rounding)
    from_best = select(is_last, here, path.from_best)
    is_on = path.is_moving & ~is_last
    is_new = is_on & (here.evidence > path.best.evidence)
    best_here = select(is_new, here, path.best)
    top = jnp.argmax(rungs)
    is_better = rungs[top] > height
    # |whitened|^2 / 2 is what a quadratic has yet to gain; a path may also run away from the mass
    is_astray = here.evidence < best_here.evidence - negligible(path.x)
    has_far_to_go = whitened @ whitened > 1e-2
    is_worth_it = rungs[top] > height + least_gain
    is_moving = is_on & (is_early | is_worth_it & has_far_to_go & ~is_astray)
    x = jnp.where(is_on & is_better, ladder[top], path.x)
    first_value = jnp.where(i == 0, first_value, path.first_value)
    return Path(x, is_moving, best_here, from_best, first_value, memory)


def normalized(gradient: Array) -> Array:
    """The gradient with length 1; a sum of its squares could overflow."""
    gradient = gradient / jnp.maximum(jnp.max(jnp.abs(gradient)), jnp.finfo(gradient.dtype).tiny)
    return gradient / jnp.maximum(jnp.linalg.norm(gradient), 0.5)


def nudged(x: Array) -> Array:
    """The point, and others in whose values it differs by rounding alone, (n, D)."""
    last_digit = float(jnp.finfo(x.dtype).eps) * jnp.maximum(jnp.abs(x), 1.0)
    return x + NUDGES[:, None].astype(x.dtype) * last_digit
