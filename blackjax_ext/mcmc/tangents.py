r"""Random tangents, and what a density does along them, by forward-mode differentiation.

A frame is K orthonormal tangents in the whitened space ``L^{-1} x``, one per row, shape (K, D).
Its law does not depend on the position. That is all exactness asks of it: the law then cancels in
every acceptance ratio, and a kernel that holds for each frame holds on average.

Along all D axes a density gives the gradient, for densities without a reverse mode.
"""

from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from blackjax_ext.checks import check_choice, check_count
from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.mcmc.langevin import in_blocks, standard_normal
from blackjax_ext.types import LogDensity

TangentLaw: TypeAlias = Literal["sphere", "rademacher"]


def check(num_tangents: int, tangents: str, size: int | None = None) -> None:
    """Raise ValueError unless a frame of `num_tangents` `tangents` exists in `size` dimensions."""
    check_choice("tangents", tangents, ("sphere", "rademacher"))
    check_count("num_tangents", num_tangents, most=size, of="dimensions of the position")


def draw(
    rng_key: Array,
    num_tangents: int,
    like: Array,
    tangents: TangentLaw,
) -> Array:
    """Draw a frame.

    Parameters
    ----------
    rng_key
        Key, used once.
    num_tangents
        K, between 1 and D.
    like
        Flat position of shape (D,): gives D and the dtype.
    tangents
        "sphere": uniform on the sphere, and on frames for K > 1 (D normals each). "rademacher":
        random signs over sqrt(D) (D random bits each), orthonormalized for K > 1.

    Returns
    -------
    Array of shape (K, D) with orthonormal rows. Householder's QR returns such rows whatever its
    argument, also when signs happen to be dependent.
    """
    check(num_tangents, tangents, like.size)
    size = num_tangents * like.size
    if tangents == "sphere":
        frame = standard_normal(rng_key, size, like.dtype)
        frame = frame if num_tangents > 1 else frame / jnp.linalg.norm(frame)
    else:
        frame = signs(rng_key, size, like.dtype)
    frame = frame.reshape(num_tangents, like.size)
    return frame if num_tangents == 1 else jnp.linalg.qr(frame.T)[0].T


def signs(rng_key: Array, size: int, dtype: DTypeLike) -> Array:
    """Independent random signs over sqrt(size), shape (size,), 32 from each random word."""
    scale = size**-0.5

    def unpack(key: Array, n: int) -> Array:
        words = jax.random.bits(key, (-(-n // 32), 1), jnp.uint32)
        bits = (words >> jnp.arange(32, dtype=jnp.uint32)) & 1
        drawn: Array = scale * (2 * bits.ravel()[:n].astype(dtype) - 1)
        return drawn

    return in_blocks(unpack, rng_key, size)


def slopes(logdensity_fn: LogDensity, x: ArrayTree, directions: ArrayTree) -> tuple[Array, Array]:
    """Log density at `x` and its derivatives along `directions`, shape (K, D).

    `x` may be a pytree. The leaves of `directions` then lead with K, as ``jax.vmap(unravel)`` makes
    them, and no step copies the whole position into one array.

    Cost: K JVPs that share one primal evaluation.
    """
    if number_of(directions) == 1:  # a batch axis of one would turn gemm into batched gemm
        value, slope = jax.jvp(logdensity_fn, (x,), (first_of(directions),))
        return value, slope[None]
    found: tuple[Array, Array] = in_parts(partial(along_each, logdensity_fn), x, directions)
    return found


def curvatures(
    logdensity_fn: LogDensity, x: ArrayTree, directions: ArrayTree
) -> tuple[Array, Array, Array]:
    """Log density, slopes (K,) and minus the Hessian (K, K) in the span of `directions`.

    `x` and `directions`: see :func:`slopes`.

    Cost: one second-order JVP for K = 1, else K^2 of them that share one primal.
    """
    if number_of(directions) == 1:
        direction = first_of(directions)

        def first(y: ArrayTree) -> tuple[Array, Array]:
            return jax.jvp(logdensity_fn, (y,), (direction,))

        (value, slope), (_, curvature) = jax.jvp(first, (x,), (direction,))
        return value, slope[None], -curvature[None, None]

    def second(x: ArrayTree, directions: ArrayTree) -> Any:
        return along_each(lambda y: slopes(logdensity_fn, y, directions), x, directions)

    (value, slope), (_, curvature) = in_parts(second, x, directions)
    return value, slope, -0.5 * (curvature + curvature.T)


def number_of(directions: ArrayTree) -> int:
    """The number K of tangents."""
    num: int = jax.tree.leaves(directions)[0].shape[0]
    return num


def first_of(directions: ArrayTree) -> ArrayTree:
    """The first direction."""
    return jax.tree.map(lambda leaf: leaf[0], directions)


def forward_gradient(logdensity_fn: LogDensity) -> LogDensity:
    """`logdensity_fn` with a reverse mode that is made of D JVPs, which share one primal.

    Algorithms that call ``jax.grad`` then sample densities that have forward mode alone.
    """

    @jax.custom_vjp
    def function(x: ArrayTree) -> Array:
        return logdensity_fn(x)

    def forward(x: ArrayTree) -> tuple[Array, ArrayTree]:
        flat, unravel = ravel_pytree(x)
        basis = jnp.eye(flat.size, dtype=flat.dtype)
        value, gradient = slopes(lambda y: logdensity_fn(unravel(y)), flat, basis)
        return value, unravel(gradient)

    def backward(gradient: ArrayTree, cotangent: Array) -> tuple[ArrayTree]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    function.defvjp(forward, backward)
    return function
