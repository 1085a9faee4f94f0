"""Densities that factor matrices: no more of them at once on a CPU than it can do.

jaxlib (seen: 0.9.2 to 0.10.2) shares out a large batch of LAPACK calls on the threads of its pool,
and the thread that began it waits for them. As many such batches at a time as there are threads
wait for each other, for ever. Chains, points and directions that ``jax.vmap`` evaluates together
make such batches of the Cholesky factor and the triangular solves of a Gaussian process, and two of
them in a model are enough where there are two processors. So are the eigenvalues of the metrics of
a start's paths, where two devices of one host run chains in parallel. Here a batch goes in parts
that are too small to be shared out; what a chain computes by itself is left as it is, and so is
everything on other devices and every density that factors nothing.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.custom_derivatives import SymbolicZero

from blackjax_ext.equations import batch_of_factorizations, evaluated, is_factoring, traced
from blackjax_ext.types import Function, LogDensity

MOST_AT_ONCE = 2e5  # operations of a batch, beyond which jaxlib shares it out


def in_parts(function: Function, *arguments: Any) -> Any:
    """``function(*arguments)``, of which a batch under ``jax.vmap`` is evaluated in small parts.

    It has a forward mode. Reverse mode stops at it: gradients are taken inside of `function`.
    """
    if jax.default_backend() != "cpu":
        return function(*arguments)
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    # what the program closes over are arguments: a rule must not hold values of a loop around it
    plain = partial(evaluated, program.jaxpr)
    evaluate = evaluated_in_parts(plain) if is_factoring(program.jaxpr) else plain
    leaves = evaluate(program.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def along_each(function: Function, x: ArrayTree, directions: ArrayTree) -> tuple[Any, Any]:
    """``function(x)``, and its derivatives along `directions`, whose leaves lead with K.

    K JVPs that share one primal evaluation; where they factor matrices, in parts.
    """
    if jax.default_backend() == "cpu":
        function, program = traced(function, x)
        if is_factoring(program.jaxpr):
            value, push = jax.linearize(function, x)
            return value, jax.vmap(partial(in_parts, push))(directions)

    def derivative(direction: ArrayTree) -> Any:
        return jax.jvp(function, (x,), (direction,))

    found: tuple[Any, Any] = jax.vmap(derivative, out_axes=(None, 0))(directions)
    return found


def evaluated_in_parts(function: Function) -> Function:
    """`function`, whose batches are evaluated in parts where they factor too much at once.

    So are those of its derivatives in forward mode.
    """
    call = jax.custom_jvp(in_batches(function))

    def along(primals: Any, tangents: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(primals)
        slopes = jax.tree.leaves(tangents, is_leaf=is_zero_tangent)
        pairs = zip(leaves, slopes, strict=True)
        moves = [not is_zero_tangent(slope) and is_real(leaf) for leaf, slope in pairs]

        def slope(leaves: list[Any], slopes: list[Any]) -> Any:
            def of(moving: list[Any]) -> Any:
                return function(*jax.tree.unflatten(structure, replaced(leaves, moves, moving)))

            return jax.jvp(of, (moving_leaves(leaves, moves),), (slopes,))[1]

        # apart: where directions alone are a batch, the value is none
        return call(*primals), evaluated_in_parts(slope)(leaves, moving_leaves(slopes, moves))

    call.defjvp(along, symbolic_zeros=True)
    return call


def in_batches(function: Function) -> Function:
    """`function` with a rule for its batches: all together, or as many as do not lock up."""

    @jax.custom_batching.custom_vmap
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    @call.def_vmap
    def batched(size: int, is_batched: Any, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        moves = jax.tree.leaves(is_batched)
        if not any(moves):  # a rule is asked for values of other batches, too
            result = evaluated_in_parts(function)(*arguments)
            return result, jax.tree.map(lambda _: False, result)

        def of_leaves(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(structure, leaves))

        def one(moving: list[Any]) -> Any:
            return evaluated_in_parts(of_leaves)(*replaced(leaves, moves, moving))

        axes = [0 if is_moving else None for is_moving in moves]
        together, program = traced(jax.vmap(of_leaves, axes), *leaves)
        # of the batch itself: a matrix that all have in common is no batch
        cost = batch_of_factorizations(program.jaxpr)
        most = int(size * MOST_AT_ONCE / cost) if cost else size
        if size <= max(most, 1):
            result = evaluated_in_parts(together)(*leaves)
        else:
            result = jax.lax.map(
                one, moving_leaves(leaves, moves), batch_size=most if most > 1 else None
            )
        return result, jax.tree.map(lambda _: True, result)

    return call


def moving_leaves(leaves: list[Any], moves: list[bool]) -> list[Any]:
    """The leaves that move."""
    return [leaf for leaf, is_moving in zip(leaves, moves, strict=True) if is_moving]


def replaced(leaves: list[Any], moves: list[bool], moving: list[Any]) -> list[Any]:
    """The leaves, with `moving` in the places of those that move."""
    new = iter(moving)
    return [next(new) if moves_it else x for x, moves_it in zip(leaves, moves, strict=True)]


def density_in_parts(logdensity_fn: LogDensity, differentiation: str) -> LogDensity:
    """`logdensity_fn`, whose batches and those of its first derivatives are evaluated in parts.

    With `differentiation` "reverse" or "gradients" a derivative along a direction is a product with
    the gradient, and second derivatives are those of `logdensity_fn`; else it has no reverse mode.
    """
    if jax.default_backend() != "cpu":
        return logdensity_fn

    def function(position: ArrayTree) -> Array:
        plain, program = traced(logdensity_fn, position)
        if not is_factoring(program.jaxpr):
            value: Array = plain(position)
        elif differentiation in ("reverse", "gradients"):
            value = with_gradient(program.jaxpr)(program.consts, jax.tree.leaves(position))
        else:
            value = in_parts(plain, position)
        return value

    return function


def with_gradient(program: Any) -> Function:
    """The density of a program's constants and leaves, with its gradient by the leaves."""

    def plain(constants: list[Any], leaves: list[Any]) -> Array:
        value: Array = evaluated(program, constants, leaves)[0]
        return value

    both = jax.value_and_grad(plain, 1)
    gradient = jax.custom_jvp(partial(in_parts, both))
    gradient.defjvp(partial(jax.jvp, both))
    density = jax.custom_jvp(partial(in_parts, plain))

    def along(primals: Any, tangents: Any) -> tuple[Array, Array]:
        of_constants = jax.tree.leaves(tangents[0], is_leaf=is_zero_tangent)
        tangents = jax.tree.map(filled, tangents, is_leaf=is_zero_tangent)
        if not all(map(is_zero_tangent, of_constants)):
            return jax.jvp(plain, primals, tangents)
        value, slopes = gradient(*primals)
        slope = jnp.zeros_like(value)  # of the density's type, whatever those of positions are
        for one, tangent in zip(slopes, tangents[1], strict=True):
            slope += jnp.sum(one * tangent).astype(slope.dtype)
        return value, slope

    density.defjvp(along, symbolic_zeros=True)
    return density


def is_zero_tangent(tangent: Any) -> bool:
    """Whether a tangent is known to be zero."""
    return isinstance(tangent, SymbolicZero)


def is_real(leaf: Any) -> bool:
    """Whether a leaf is of numbers that have derivatives."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def filled(tangent: Any) -> Any:
    """A tangent as an array."""
    return np.zeros(tangent.shape, tangent.dtype) if is_zero_tangent(tangent) else tangent
