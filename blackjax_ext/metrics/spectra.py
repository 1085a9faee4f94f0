r"""Functions of a spectrum, and their derivatives where eigenvalues coincide.

The derivative of :math:`Q f(\Lambda) Q^T` is :math:`Q (J \circ Q^T dA\, Q) Q^T` with the divided
differences :math:`J_{ab} = (f(\lambda_a) - f(\lambda_b)) / (\lambda_a - \lambda_b)` (Daleckii and
Krein), where that of an eigenvector would divide by zero.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def above(floor: float, values: Array) -> Array:
    """Values, none below `floor`."""
    return jnp.maximum(values, floor)


def absolute_above(floor: float, values: Array) -> Array:
    """Absolute values, none below `floor`."""
    return jnp.maximum(jnp.abs(values), floor)


def softabs(alpha: float, values: Array) -> Array:
    """``x coth(alpha x)``, by its series about 0."""
    scaled = alpha * values
    is_small = jnp.abs(scaled) < 0.01
    series = (1.0 + scaled**2 / 3.0) / alpha
    return jnp.where(is_small, series, values / jnp.tanh(jnp.where(is_small, 1.0, scaled)))


def divided_differences(function: Callable[[Array], Array], values: Array) -> Array:
    """``(f(a) - f(b)) / (a - b)`` for all pairs of `values`; the derivative where they coincide."""
    a, b = values[:, None], values[None, :]
    gap = a - b
    middle = 0.5 * (a + b)
    closeness = jnp.finfo(values.dtype).eps ** 0.5 * (1.0 + jnp.abs(middle))
    is_close = jnp.abs(gap) < closeness
    slope = jax.jvp(function, (middle,), (jnp.ones_like(middle),))[1]
    return jnp.where(is_close, slope, (function(a) - function(b)) / jnp.where(is_close, 1.0, gap))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def matrix_function(function: Callable[[Array], Array], matrix: Array) -> Array:
    """``Q f(Lambda) Q^T`` of a symmetric matrix."""
    vectors: Array
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)) @ vectors.T


@matrix_function.defjvp
def matrix_function_jvp(
    function: Callable[[Array], Array], primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """Daleckii and Krein's formula."""
    (matrix,), (tangent,) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    inner = divided_differences(function, values) * (vectors.T @ tangent @ vectors)
    return (vectors * function(values)) @ vectors.T, vectors @ inner @ vectors.T
