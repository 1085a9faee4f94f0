r"""A way out of a bad start: Newton's path, and the best normal approximation along it.

First-order kernels crawl out of a random start on a regression with unscaled covariates; a few
Newton steps jump. The path is the one of saddle-free Newton (Dauphin et al. 2014): with :math:`g`
the gradient and :math:`|H|` minus the Hessian with the absolute values of its eigenvalues, step
along :math:`|H|^{-1} g` and keep the best of a ladder of lengths. It is invariant to the scale of
each parameter and to their correlation.

A mode need not be near the mass (Neal's funnel has its mode 13 sds from it), so the start is not
the end of the path. As in Pathfinder (Zhang et al. 2022), each point of the path proposes a normal,
:math:`\mathcal{N}(x, |H|^{-1})`, and the best of them wins; the chain starts at one of its draws,
taken by importance. Best means the largest importance-weighted bound of the log evidence (Burda et
al. 2016), which counts the mass that a normal covers. The plain evidence lower bound does not
serve: a single draw where the log density is -1e20 decides it.

Differentiation is forward (D JVPs for a gradient, D^2 second-order JVPs for a Hessian) or reverse.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.metrics import Dense
from blackjax_ext.metrics.factors import scaled_eigen

__all__ = [
    "MAX_DIMENSION",
    "Approximation",
    "Differentiation",
    "approximate",
    "derivatives",
    "find",
    "find_all",
]

Differentiation: TypeAlias = Literal["forward", "reverse"]
LogDensity: TypeAlias = Callable[[Array], Array]

MAX_STEPS = 60
NUM_DRAWS = 16
MIN_PATHS = 4
LENGTHS = 2.0 ** (2 - jnp.arange(16.0))
CHUNK = 16  # Hessian rows at once: bounds the memory of a big model
MAX_DIMENSION = {"forward": 128, "reverse": 512}


class Approximation(NamedTuple):
    """A normal approximation of the target.

    mean
        Its mean, shape (D,).
    draw
        A draw from it, shape (D,).
    metric
        Factor of its precision.
    evidence
        Importance-weighted bound of the log evidence, -inf where there is no approximation.
    """

    mean: Array
    draw: Array
    metric: Dense
    evidence: Array


class Path(NamedTuple):
    """Newton's path: number of steps, point, its log density, whether to go on, best so far."""

    num_steps: Array
    x: Array
    value: Array
    is_moving: Array
    best: Approximation


def find(
    rng_key: Array, logdensity_fn: LogDensity, x: Array, differentiation: Differentiation
) -> Approximation:
    """Best normal approximation along Newton's path from `x`, shape (D,).

    Cost: up to 60 steps of one gradient, one Hessian, one eigenvalue problem and 32 evaluations.
    """
    initial = Path(
        jnp.array(0),
        x,
        logdensity_fn(x),
        jnp.array(True),
        Approximation(x, x, identity(x), jnp.array(-jnp.inf)),
    )

    def is_going(path):
        return path.is_moving & (path.num_steps < MAX_STEPS)

    def step(path):
        key = jax.random.fold_in(rng_key, path.num_steps)
        gradient, metric = curvature(logdensity_fn, path.x, differentiation)
        here = approximate(key, logdensity_fn, path.x, metric)
        best = jax.tree.map(partial(jnp.where, here.evidence > path.best.evidence), here, path.best)
        slope = metric.inverse_sqrt_transpose_times(gradient)
        direction = metric.inverse_sqrt_times(slope)
        ladder = path.x + LENGTHS[:, None].astype(x.dtype) * direction
        values = finite(jax.vmap(logdensity_fn)(ladder))
        top = jnp.argmax(values)
        is_better = values[top] > path.value
        # |slope|^2 / 2 is what a quadratic has yet to gain; a path may also run away from the mass
        is_astray = here.evidence < best.evidence - negligible(x)
        is_moving = is_better & (slope @ slope > 1e-2) & ~is_astray
        point = jnp.where(is_better, ladder[top], path.x)
        return Path(
            path.num_steps + 1, point, jnp.maximum(values[top], path.value), is_moving, best
        )

    return jax.lax.while_loop(is_going, step, initial).best


def find_all(
    rng_key: Array, logdensity_fn: LogDensity, x: Array, differentiation: Differentiation
) -> tuple[Array, Dense]:
    """Starts of C chains from `x`, shape (C, D), and the metric of the best approximation.

    A chain whose path found a mode too poor to matter, its evidence more than D + 10 below the best
    in logarithm, starts at a draw from the best one instead. Fewer than four chains send out
    further paths, uniform on (-2, 2) as NumPyro's starts are, so that one alone can tell too.
    """
    num_chains, size = x.shape
    key_more, key_path, key_draw = (
        jax.vmap(partial(jax.random.fold_in, data=i))(rng_key) for i in range(3)
    )
    num_more = max(MIN_PATHS - num_chains, 0)
    key_first, key_second = jax.random.split(key_more[0])
    more = jax.random.uniform(key_first, (num_more, size), x.dtype, -2.0, 2.0)
    key_path = jnp.concatenate([key_path, jax.random.split(key_second, num_more)])
    found = jax.vmap(lambda key, x: find(key, logdensity_fn, x, differentiation))(
        key_path, jnp.concatenate([x, more])
    )
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(found.evidence)], found)
    others = jax.vmap(lambda key: approximate(key, logdensity_fn, best.mean, best.metric))(key_draw)
    is_poor = found.evidence[:num_chains] < best.evidence - negligible(x[0])
    return jnp.where(is_poor[:, None], others.draw, found.draw[:num_chains]), best.metric


def negligible(x: Array) -> float:
    """Difference of log evidence at which the lesser approximation does not matter."""
    return x.size + 10.0


def finite(values: Array) -> Array:
    """`values` with -inf for what is not finite."""
    return jnp.where(jnp.isfinite(values), values, -jnp.inf)


def identity(x: Array) -> Dense:
    """The metric of a start that has no curvature to go by."""
    eye = jnp.eye(x.size, dtype=x.dtype)
    return Dense(eye, eye, jnp.zeros((), x.dtype))


def curvature(
    logdensity_fn: LogDensity, x: Array, differentiation: Differentiation
) -> tuple[Array, Dense]:
    """Gradient and the metric |H| at `x`."""
    gradient, hessian = derivatives(logdensity_fn, x, differentiation)
    return gradient, metric_of(gradient, hessian)


def derivatives(
    logdensity_fn: LogDensity, x: Array, differentiation: Differentiation
) -> tuple[Array, Array]:
    """Gradient (D,) and Hessian (D, D) at `x`."""
    grad_fn = jax.jacfwd(logdensity_fn) if differentiation == "forward" else jax.grad(logdensity_fn)

    def row(direction):
        return jax.jvp(grad_fn, (x,), (direction,))

    gradients, hessian = jax.lax.map(row, jnp.eye(x.size, dtype=x.dtype), batch_size=CHUNK)
    return gradients[0], 0.5 * (hessian + hessian.T)


def metric_of(gradient: Array, hessian: Array) -> Dense:
    """The metric |H|; where that overflows, steps along the gradient.

    Far out in float32 a Hessian can overflow where the gradient does not.
    """
    size, eps = gradient.size, float(jnp.finfo(gradient.dtype).eps)
    metric = scaled_eigen(-hessian).absolute(size * eps)
    is_usable = jnp.isfinite(metric.inverse_sqrt).all() & jnp.isfinite(metric.sqrt).all()
    length = jnp.maximum(jnp.max(jnp.abs(gradient)), 1.0) ** 0.5  # a norm would overflow too
    eye = identity(gradient).sqrt
    along_gradient = Dense(eye / length, eye * length, 2.0 * size * jnp.log(length))
    return jax.tree.map(partial(jnp.where, is_usable), metric, along_gradient)


def approximate(
    rng_key: Array, logdensity_fn: LogDensity, x: Array, metric: Dense
) -> Approximation:
    """The normal N(x, G^-1), its bound of the evidence, and one of its draws by importance."""
    key_noise, key_choice = jax.random.split(rng_key)
    noise = jax.random.normal(key_noise, (NUM_DRAWS, x.size), x.dtype)
    draws = x + metric.inverse_sqrt_times(noise)
    log_q = -0.5 * jnp.sum(noise**2, axis=1) + 0.5 * metric.log_det(x.size)
    log_weights = finite(jax.vmap(logdensity_fn)(draws)) - log_q
    choice = jax.random.categorical(key_choice, log_weights)
    is_usable = jnp.isfinite(log_weights[choice])
    evidence = jax.nn.logsumexp(log_weights) - jnp.log(NUM_DRAWS)
    draw = jnp.where(is_usable, draws[choice], x)
    return Approximation(x, draw, metric, finite(evidence))
