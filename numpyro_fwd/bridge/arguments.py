"""The arguments of a model: the arrays among them become arguments of a compiled program.

An argument that a model may need as it is stays what it is: whole numbers and truth values, which
may be shapes and branches, even in arrays without axes; strings, objects and tables; arrays that
are not of numbers, or that know more than their numbers, as masked arrays do.
"""

import contextlib
from collections.abc import Hashable
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from blackjax_ext.types import Function
from numpyro_fwd.types import Args, Kwargs

# errors of a model that needs the values of an argument, which a program does not know
NEED_VALUES = (TypeError, AttributeError, jax.errors.JAXIndexError)
ARRAY = object()  # stands for an array among the arguments of a model


class SplitArguments(NamedTuple):
    """Arguments of a model, taken apart into arrays and the rest.

    arrays
        The arrays among the leaves.
    join
        Put arrays back in their places: ``(model_args, model_kwargs)``.
    key
        Hashable description of the rest, None if there is none.
    """

    arrays: list[Any]
    join: Function
    key: Any

    def is_like(self, other: "SplitArguments") -> bool:
        """Whether arguments differ by no more than the values of their arrays."""
        shapes, others = (list(map(shape_of, each.arrays)) for each in (self, other))
        return self.key is not None and self.key == other.key and shapes == others

    def without_data(self) -> "SplitArguments":
        """The same with shapes in place of the arrays."""
        return self._replace(arrays=list(map(shape_of, self.arrays)))


def shape_of(array: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an array in a program."""
    return jax.eval_shape(lambda array: array, array)


def evaluating(*known: Any) -> contextlib.AbstractContextManager[Any]:
    """Context in which programs of `known` values run at once, in the middle of another's trace.

    Without effect where one of the values is traced.
    """
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(known))
    return contextlib.nullcontext() if is_traced else jax.core.eval_context()


class Unkeyed(Exception):
    """An argument has no description that changes when its value does."""


def is_data(leaf: Any) -> bool:
    """Whether an argument of a model is an array that a compiled program may take as its own."""
    if isinstance(leaf, jax.core.Tracer):
        return True
    if type(leaf) is not np.ndarray and not isinstance(leaf, jax.Array):
        return False
    if jnp.issubdtype(leaf.dtype, np.inexact) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    return leaf.ndim > 0 and (jnp.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool)


def split_arguments(model_args: Args, model_kwargs: Kwargs | None) -> SplitArguments:
    """Arguments of a model taken apart, so that a program can take the arrays as its own."""
    leaves, treedef = jax.tree.flatten((model_args, model_kwargs))
    arrays = [leaf for leaf in leaves if is_data(leaf)]
    # a place for each leaf: the array's, or the leaf itself
    others = [ARRAY if is_data(leaf) else leaf for leaf in leaves]

    def join(arrays):
        rest = iter(arrays)
        filled = [next(rest) if other is ARRAY else other for other in others]
        return jax.tree.unflatten(treedef, filled)

    try:
        key = (treedef, tuple(key_of(other) for other in others))
        hash(key)
    except (TypeError, Unkeyed):
        return SplitArguments(arrays, join, None)
    return SplitArguments(arrays, join, key)


def key_of(leaf: Any) -> Hashable:
    """The type and value of an argument that is no array: 1, 1.0 and True are three.

    Raises
    ------
    Unkeyed
        For an object that is hashed by its identity, which may change and keep its hash. Functions
        may not.
    """
    if leaf is ARRAY:
        return ARRAY
    if isinstance(leaf, (np.ndarray, jax.Array)):
        if leaf.ndim or leaf.dtype.hasobject:
            raise Unkeyed
        return type(leaf), leaf.dtype, leaf.item()
    by_identity = getattr(type(leaf), "__hash__", None) is object.__hash__
    if by_identity and not callable(leaf):
        raise Unkeyed
    return type(leaf), leaf


def run_with(split: SplitArguments, program: Any, *arguments: Any) -> Any:
    """What a compiled program returns whose first argument are the arrays of a model.

    A model that needs concrete values (a boolean mask, a shape, a method of NumPy's arrays) is
    compiled with them as constants.
    """
    try:
        return program(split.arrays, *arguments)
    except NEED_VALUES:
        return jax.jit(partial(program.__wrapped__, split.arrays))(*arguments)


def program_with(split: SplitArguments, function: Function, *arguments: Any) -> ClosedJaxpr:
    """The program that :func:`run_with` runs, of the arrays of a model and the other arguments."""
    try:
        return jax.make_jaxpr(function)(split.arrays, *arguments)
    except NEED_VALUES:
        return jax.make_jaxpr(lambda _, *rest: function(split.arrays, *rest))(
            split.arrays, *arguments
        )


def traced_once(function: Function) -> Function:
    """`function`, of the arrays of a model first, traced once for the shapes of what it is given.

    It becomes a part of the program that calls it, as if it had been traced there. A model that
    needs concrete values gets them where they are known, and is then traced by each program.
    """
    traced = jax.jit(function, inline=True)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return traced(*arguments)
        except NEED_VALUES:
            return function(*arguments)

    return call
