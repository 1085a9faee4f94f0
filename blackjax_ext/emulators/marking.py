"""Functions that are dear, marked in the programs of log densities, and densities split there.

A call of a marked function is a call of a program by a name. :func:`split` reads a log density's
program, with its marked calls evaluated for what they return, or with other values in the place of
that. Whoever does not look for the name sees the function as it is.
"""

import math
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.emulators.evaluations import Dear
from blackjax_ext.equations import equations_in, outputs_of, programs_in, read_program
from blackjax_ext.mcmc.dependence import dependent_outputs
from blackjax_ext.primitives import INLINED, RULED
from blackjax_ext.types import Function

NAME = "expensive_function"
F = TypeVar("F", bound=Callable[..., Any])


def expensive(function: F) -> F:
    """Mark a function that is dear to evaluate, such as a solver: ``expensive(solve)(theta)``.

    :class:`numpyro_fwd.Emulated` then emulates what it returns and evaluates it once a draw. All
    other kernels, and calls outside of a program, see the function as it is.

    Parameters
    ----------
    function
        From any arguments to a pytree of arrays; whole numbers and truth values among them, such as
        whether a solver has come to its end, are rounded where they are emulated. It may be called
        several times, under plates and under ``jax.vmap``, but not within a loop (``scan``,
        ``while_loop``, ``cond``).

    Returns
    -------
    The marked function, of the same arguments.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from numpyro_fwd import expensive
    >>> solve = expensive(lambda rate: jnp.exp(-rate * jnp.arange(3.0)))
    >>> solve(0.0)
    Array([1., 1., 1.], dtype=float32)
    """
    if not callable(function):
        raise TypeError(f"function must be callable; got {type(function).__name__}.")

    def marked(*args: Any, **keywords: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, keywords))
        is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        if not any(is_traced):
            return function(*args, **keywords)

        def expensive_function(traced: list[Any]) -> Any:
            rest = iter(traced)
            whole = [
                next(rest) if is_in else leaf for is_in, leaf in zip(is_traced, leaves, strict=True)
            ]
            args, keywords = jax.tree.unflatten(treedef, whole)
            return function(*args, **keywords)

        return jax.jit(expensive_function)(
            [leaf for is_in, leaf in zip(is_traced, leaves, strict=True) if is_in]
        )

    return update_wrapper(marked, function)  # type: ignore[return-value]


def is_marked(equation: Any) -> bool:
    """Whether an equation calls a marked function."""
    return bool(equation.params.get("name") == NAME)


def calls_marked(equation: Any) -> bool:
    """Whether a marked function is called in the programs of an equation."""
    return any(any(map(is_marked, equations_in(program))) for program in programs_in(equation))


def is_whole(equation: Any) -> bool:
    """Whether a call is not read: a marked one, or one with derivatives of its own and none."""
    return is_marked(equation) or (equation.primitive.name in RULED and not calls_marked(equation))


def check_loop(equation: Any) -> None:
    """Raise ValueError for a loop or a choice in which a marked function is called."""
    if calls_marked(equation):
        raise ValueError(
            f"a function marked by expensive is called within a {equation.primitive.name}, "
            "where its outputs have no place of their own: call it outside, on all inputs at "
            "once, as by jax.vmap, or mark the function that has the loop in it."
        )


def split(logdensity_fn: Callable[[Array], Array], x: Array) -> Dear:
    """A log density of flat positions like x, (D,), taken apart at its marked calls.

    Raises
    ------
    ValueError
        If there is none, or one within a loop.
    """
    program = jax.make_jaxpr(logdensity_fn)(x)

    def read(x: Array, given: list[Array] | None = None) -> tuple[Array, list[Array]]:
        outputs: list[Array] = []

        def rule(equation: Any, values: list[Any]) -> list[Any]:
            if not is_marked(equation):
                check_loop(equation)
                return outputs_of(equation, *values)
            first = len(outputs)
            size = len(equation.outvars)
            outputs.extend(
                outputs_of(equation, *values) if given is None else given[first : first + size]
            )
            return outputs[first:]

        (value,) = read_program(program, [x], rule, calls=INLINED | RULED, is_kept=is_whole)
        return value, outputs

    shapes = jax.eval_shape(lambda x: read(x)[1], x)
    if not shapes:
        raise ValueError(
            "the model calls no function that is marked as dear, or none that leads from latents "
            "to data: put expensive(solve)(...) in the place of solve(...), with "
            "numpyro_fwd.expensive; or take numpyro_fwd.AutoNUTS."
        )

    def outputs_fn(x: Array) -> Array:
        return flattened(read(x)[1], x.dtype)

    def logdensity_of_outputs(x: Array, outputs: Array) -> Array:
        return read(x, unflattened(outputs, shapes))[0]

    return Dear(outputs_fn, logdensity_of_outputs)


def flattened(outputs: Sequence[Array], dtype: Any) -> Array:
    """Outputs of any types as real numbers, (M,)."""
    parts = [jnp.zeros(0, dtype)]
    for each in outputs:
        both = (each.real, each.imag) if jnp.iscomplexobj(each) else (each,)
        parts += [part.ravel().astype(dtype) for part in both]
    return jnp.concatenate(parts)


def unflattened(values: Array, shapes: Sequence[Any]) -> list[Array]:
    """Outputs of these shapes and types from real numbers, (M,)."""
    found, first = [], 0
    for shape in shapes:
        size = math.prod(shape.shape)
        num_parts = 2 if jnp.issubdtype(shape.dtype, jnp.complexfloating) else 1
        parts = values[first : first + num_parts * size].reshape(num_parts, *shape.shape)
        found.append(as_type(parts, shape.dtype))
        first += num_parts * size
    return found


def as_type(parts: Array, dtype: Any) -> Array:
    """Emulated values, or their real and imaginary parts, as those of a type."""
    if len(parts) == 2:
        return jax.lax.complex(parts[0], parts[1]).astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return parts[0].astype(dtype)
    return parts[0] > 0.5 if jnp.issubdtype(dtype, bool) else jnp.round(parts[0]).astype(dtype)


def active_coordinates(function: Function, z: Any) -> np.ndarray:
    """Indices of the coordinates of a pytree, as ``ravel_pytree`` has them, with leaves that count.

    A leaf counts if the arguments of a marked call are computed from it; of a function without
    one, if what it returns is.
    """
    program = jax.make_jaxpr(function)(z)
    leaves = jax.tree.leaves(z)
    found = []
    for i, leaf in enumerate(leaves):
        is_asked: list[bool] = []

        def rule(equation: Any, flags: list[bool], is_asked: list[bool] = is_asked) -> list[bool]:
            if is_marked(equation):
                is_asked.append(any(flags))
            return list(dependent_outputs(equation, flags))

        first, calls = [i == j for j in range(len(leaves))], INLINED | RULED
        flags = read_program(
            program, first, rule, lambda *_: False, calls=calls, is_opened=any, is_kept=is_marked
        )
        found.append(np.full(jnp.size(leaf), any(is_asked or flags)))
    return np.flatnonzero(np.concatenate(found)).astype(np.int32)
