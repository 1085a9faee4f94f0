r"""The derivatives that a log density has, and differences in the place of those that it lacks.

A solver of differential equations that brings its own backward rule has no forward mode, a loop of
unknown length no reverse mode, a simulator outside of JAX neither. :func:`differentiation_of` asks
by tracing: nothing is evaluated. :func:`differenced` gives a density that has gradients alone the
forward mode and the second derivatives that Newton's path and metrics take:

.. math::
    D f(x)[v] = g(x)^T v, \qquad
    D g(x)[v] = \frac{g(x + h v) - g(x - h v)}{2 h}.

The width h is a tenth of the density's own scale along v, :math:`|v^T H v|^{-1/2}`, found from the
differences themselves, so that neither units nor correlation matter. What is made of them is a
function of the position alone: a metric of differences leaves a sampler exact.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree

from blackjax_ext.equations import primitives_in
from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.types import Function, LogDensity

Wanted: TypeAlias = Literal["reverse", "forward", "none"]
# "gradients" is reverse mode where forward mode fails, of the density or of its gradient
Differentiation: TypeAlias = Literal["reverse", "gradients", "forward", "none"]

SERVING: dict[Wanted, tuple[Differentiation, ...]] = {
    "reverse": ("reverse", "gradients"),
    "forward": ("forward",),
    "none": ("forward", "reverse", "gradients", "none"),
}


def differentiation_of(
    logdensity_fn: LogDensity, position: ArrayTree, wanted: Wanted
) -> Differentiation | None:
    """The way in which a density at positions like `position` can be differentiated.

    Parameters
    ----------
    logdensity_fn
        From a pytree to a scalar.
    position
        Its shapes and types are used.
    wanted
        What a sampler takes: gradients in "reverse" mode, derivatives in "forward" mode, or "none".
        With "none" the answer is what its start may use.

    Returns
    -------
    "reverse" (with a forward mode, of the density and of its gradient), "forward", "gradients"
    (reverse mode alone) or "none"; None if what is wanted does not exist. Cost: one trace of the
    density, and one or two of its derivatives; nothing else than what is wanted is tried.
    """
    leaves, treedef = jax.tree.flatten(position)
    leaves = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
    program = jax.make_jaxpr(lambda *leaves: logdensity_fn(jax.tree.unflatten(treedef, leaves)))
    function = jaxpr_as_fun(program(*leaves))

    def exists(mode: Differentiation) -> bool:
        return mode == "none" or not leaves or is_traceable(DERIVATIVES[mode], function, leaves)

    return next((mode for mode in SERVING[wanted] if exists(mode)), None)


def is_traceable(derivative: Function, function: Function, leaves: list[Any]) -> bool:
    """Whether a derivative of `function`, which returns a list of one scalar, has a program."""
    try:
        traced = jax.make_jaxpr(lambda *x: derivative(lambda *x: function(*x)[0], x))(*leaves)
    except Exception:  # the function itself has been traced: whatever it is, it is the derivative's
        return False
    # a custom_vjp under forward mode raises when it is lowered, and not before
    return "custom_lin" not in primitives_in(traced)


def forward(function: Function, x: tuple[Any, ...]) -> Any:
    """A directional derivative."""
    return jax.jvp(function, x, x)


def gradient(function: Function, x: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gradient by all arguments, in reverse mode."""
    slopes: tuple[Any, ...] = jax.grad(function, tuple(range(len(x))))(*x)
    return slopes


def both(function: Function, x: tuple[Any, ...]) -> Any:
    """A directional derivative, and one of the gradient."""
    return forward(function, x), forward(lambda *x: gradient(function, x), x)


DERIVATIVES: dict[str, Callable[[Function, tuple[Any, ...]], Any]] = {
    "forward": forward,
    "gradients": gradient,
    "reverse": both,
}


def differenced(logdensity_fn: LogDensity) -> LogDensity:
    """`logdensity_fn`, which has a reverse mode, with a forward mode of it and of its gradient.

    Cost: a gradient for a directional derivative, and six gradients for one of the gradient.

    Examples
    --------
    >>> import blackjax_ext, jax, jax.numpy as jnp
    >>> @jax.custom_vjp
    ... def double(x):
    ...     return 2 * x
    >>> double.defvjp(lambda x: (double(x), None), lambda _, slope: (double(slope),))
    >>> hessian = jax.hessian(blackjax_ext.differenced(lambda x: -jnp.sum(double(x) ** 2)))
    >>> [round(float(value), 2) for value in jnp.diagonal(hessian(jnp.array([1.0, 5.0])))]
    [-8.0, -8.0]
    """

    def function(position: ArrayTree) -> Array:
        x, unravel = ravel_pytree(position)
        return of_flat(lambda x: logdensity_fn(unravel(x)))(x)

    return function


def of_flat(flat_fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """:func:`differenced` for a flat position."""

    @jax.custom_jvp
    def value(x: Array) -> Array:
        return flat_fn(x)

    @jax.custom_jvp
    def value_and_gradient(x: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(flat_fn)(x)

    @value.defjvp
    def value_along(primals: Any, tangents: Any) -> tuple[Array, Array]:
        value, gradient = value_and_gradient(*primals)
        return value, gradient @ tangents[0]

    @value_and_gradient.defjvp
    def gradient_along(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (x,), (v,) = primals, tangents
        value, gradient = value_and_gradient(x)
        slope = central_difference(lambda x: value_and_gradient(x)[1], x, v)
        return (value, gradient), (gradient @ v, slope)

    return value


def central_difference(gradient_fn: Callable[[Array], Array], x: Array, v: Array) -> Array:
    """Derivative of `gradient_fn` at x along v, both (D,): three pairs of gradients."""
    length = jnp.max(jnp.abs(v), initial=0.0)
    v = v / jnp.where(length > 0, length, 1.0)
    eps = float(jnp.finfo(x.dtype).eps)

    def until_moved_by(size: Array) -> Array:
        # how far until the first coordinate has moved so much
        width = jnp.min(jnp.where(v == 0, jnp.inf, size / jnp.abs(v)), initial=jnp.inf)
        return jnp.where(jnp.isfinite(width), width, 1.0)

    least, most = 32 * eps * until_moved_by(jnp.abs(x)), until_moved_by(jnp.maximum(jnp.abs(x), 1))

    def improve(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        h, slope = carry
        ends = jnp.stack([x + h * v, x - h * v])
        ahead, behind = jax.vmap(gradient_fn)(ends)
        moved = (ends[0] - ends[1]) @ v / (v @ v)  # as rounded
        second = (ahead - behind) / jnp.where(moved > 0, moved, 1.0)
        is_finite = jnp.isfinite(second).all()
        # a tenth of the scale of the density: truncation 0.2 %, rounding 5 eps |g|
        better = 0.1 * jnp.abs(v @ second) ** -0.5
        # where rounding or an overflow says nothing of the next width
        better = jnp.clip(jnp.where(is_finite, better, 0.0), h / 1e3, h * 1e3)
        return jnp.clip(better, least, most), jnp.where(is_finite, second, slope)

    first = eps ** (1 / 3) * most, jnp.full_like(x, jnp.nan)
    # each halves the digits by which the first guess is off
    slope: Array = jax.lax.fori_loop(0, 3, improve, first)[1]
    return length * slope


def gradient_of(logdensity_fn: LogDensity, differentiation: Differentiation) -> LogDensity:
    """The gradient, in the mode that there is."""
    if differentiation == "gradients":
        logdensity_fn = differenced(logdensity_fn)
    return jax.jacfwd(logdensity_fn) if differentiation == "forward" else jax.grad(logdensity_fn)


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
