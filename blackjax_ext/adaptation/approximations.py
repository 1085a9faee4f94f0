"""Normal approximations of a target: gradient and ``|H|`` at a point, draws weighted by importance.

Differentiation is forward (D JVPs for a gradient, D^2 second-order JVPs for a Hessian), reverse, or
gradients alone, whose differences are the Hessian.

The best of several has the largest importance-weighted bound of the log evidence (Burda et al.
2016), which counts the mass that a normal covers. The plain evidence lower bound does not serve: a
single draw where the log density is -1e20 decides it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation, differenced
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.types import LogDensity, select


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


def gradient_of(logdensity_fn: LogDensity, differentiation: Differentiation) -> LogDensity:
    """The gradient, in the mode that there is."""
    if differentiation == "gradients":
        logdensity_fn = differenced(logdensity_fn)
    return jax.jacfwd(logdensity_fn) if differentiation == "forward" else jax.grad(logdensity_fn)


def curvature(
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    num_rows: int | None = None,
) -> tuple[Array, Dense]:
    """Gradient and the metric ``|H|`` at `x`."""
    gradient, hessian = derivatives(logdensity_fn, x, differentiation, num_rows)
    return gradient, in_parts(metric_of, gradient, hessian)


def derivatives(
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    num_rows: int | None = None,
) -> tuple[Array, Array]:
    """Gradient (D,) and Hessian (D, D) at `x`, at most `num_rows` of its rows at once."""
    grad_fn = gradient_of(logdensity_fn, differentiation)

    rows = partial(in_parts, partial(along_each, grad_fn), x)
    directions = directions_of(x, num_rows or x.size)
    if len(directions) == 1:
        gradient, hessian = rows(directions[0])
    else:
        gradients, hessian = jax.lax.map(rows, directions)
        gradient, hessian = gradients[0], hessian.reshape(-1, x.size)[: x.size]
    return gradient, 0.5 * (hessian + hessian.T)


def directions_of(x: Array, num_rows: int) -> Array:
    """The unit vectors in equal chunks, (n, m, D); zeros fill the last one up.

    A chunk of another size would be another program.
    """
    num_chunks = -(-x.size // num_rows)
    size = -(-x.size // num_chunks)
    return jnp.eye(num_chunks * size, x.size, dtype=x.dtype).reshape(num_chunks, size, x.size)


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
