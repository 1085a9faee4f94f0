"""Normal approximations of all groups at once, by Newton's method on small blocks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def gradient_and_blocks(gradient: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
    """A gradient at v, shape (G, d), and its derivatives by the own group, shape (G, d, d).

    Of an energy that is a sum over the groups. Cost: d + 1 gradients.
    """
    width = v.shape[1]
    units = jnp.broadcast_to(jnp.eye(width, dtype=v.dtype)[:, None], (width, *v.shape))
    g, push = jax.linearize(gradient, v)
    return g, jnp.moveaxis(jax.vmap(push)(units), 0, -1)


def laplace_approximation(gradient: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
    """Mean and lower Cholesky factor of the precision of the normal densities that fit at v.

    Where an energy is not convex, or is flat as beside a kink, the precision is one: that of the
    anchor, in its coordinates.
    """
    g, blocks = gradient_and_blocks(gradient, v)
    factor = jnp.linalg.cholesky(blocks)
    # root of a precision in coordinates of the anchor: below, it is no precision
    is_curved = jnp.all(jnp.diagonal(factor, axis1=1, axis2=2) > 1e-3, axis=1)  # not if NaN
    is_fine = jnp.all(jnp.isfinite(factor), axis=(1, 2)) & is_curved
    factor = jnp.where(is_fine[:, None, None], factor, jnp.eye(v.shape[1], dtype=v.dtype))
    step = solved(factor, solved(factor, g), is_transposed=True)
    return jnp.where(jnp.isfinite(step), v - step, v), factor


def solved(factor: Array, x: Array, *, is_transposed: bool = False) -> Array:
    """Triangular systems of small lower factors (G, d, d), or of their transposes, for x (G, d)."""
    width = x.shape[1]
    order = range(width)[::-1] if is_transposed else range(width)
    solution: dict[int, Array] = {}
    for i in order:
        entries = factor[:, :, i] if is_transposed else factor[:, i]
        rest = sum((entries[:, j] * solution[j] for j in solution), jnp.zeros_like(x[:, 0]))
        solution[i] = (x[:, i] - rest) / factor[:, i, i]
    return jnp.stack([solution[i] for i in range(width)], axis=1)
