"""Gradients and Hessians of a log density, and the metric |H| of saddle-free Newton.

Differentiation is forward (D JVPs for a gradient, D^2 second-order JVPs for a Hessian), reverse, or
gradients alone, whose differences are the Hessian.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation, differenced
from blackjax_ext.metrics import Dense
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.types import LogDensity, select

__all__ = ["curvature", "derivatives", "gradient_of", "identity"]


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
    """Gradient and the metric |H| at `x`."""
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
    """The metric |H|; where that overflows, steps along the gradient.

    Far out in float32 a Hessian can overflow where the gradient does not.
    """
    size, eps = gradient.size, float(jnp.finfo(gradient.dtype).eps)
    metric = scaled_eigen(-hessian).absolute(size * eps)
    is_usable = jnp.isfinite(metric.inverse_sqrt).all() & jnp.isfinite(metric.sqrt).all()
    length = jnp.maximum(jnp.max(jnp.abs(gradient)), 1.0) ** 0.5  # a norm would overflow too
    eye = identity(gradient).sqrt
    along_gradient = Dense(eye / length, eye * length, 2.0 * size * jnp.log(length))
    return select(is_usable, metric, along_gradient)


def identity(x: Array) -> Dense:
    """The metric of a start that has no curvature to go by."""
    eye = jnp.eye(x.size, dtype=x.dtype)
    return Dense(eye, eye, jnp.zeros((), x.dtype))
