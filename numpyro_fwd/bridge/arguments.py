"""The arguments of a model: the arrays among them become arguments of a compiled program.

An argument that a model may need as it is stays what it is: whole numbers and truth values, which
may be shapes and branches, even in arrays without axes; strings, objects and tables; arrays that
are not of numbers, or that know more than their numbers, as masked arrays do. Where a model cannot
use an argument, errors name it.
"""

import contextlib
import re
from collections.abc import Callable, Hashable, Iterator
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


def check_arguments(model_args: Args, model_kwargs: Kwargs | None) -> None:
    """Raise TypeError for a masked array, whose mask would be lost, by its place."""
    leaves = jax.tree_util.tree_leaves_with_path((model_args, model_kwargs or {}))
    for path, leaf in leaves:
        if isinstance(leaf, np.ma.MaskedArray):
            name = ("model_args", "model_kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
            raise TypeError(
                f"{name} must not be a masked array, whose mask jax does not read; got one of "
                f"shape {leaf.shape}: fill it, and give its mask to numpyro.handlers.mask."
            )


@contextlib.contextmanager
def naming_arguments(model_args: Args, model_kwargs: Kwargs | None) -> Iterator[None]:
    """Name the arguments that are not numbers in the errors of jax that say that such ones are not.

    Raises
    ------
    TypeError
        In place of such an error.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        said = str(error)
        found = not_numbers(model_args, model_kwargs, said)
        if not found and isinstance(error, INDEXED):
            raise TypeError(
                "model gives NumPy what is traced by JAX: the rows of a plate index an array of "
                "NumPy or pandas, or a function of NumPy takes a latent. Give arrays of jax, or "
                f"write jnp.asarray(x)[rows], jnp.exp(latent). jax said: {said.splitlines()[0]}"
            ) from error
        if not found or not any(words in said for words in NOT_NUMBERS):
            raise
        raise TypeError(
            f"the model computes with an argument that is not an array of numbers: {found}. Give "
            "the numbers in it as an array, or let the model use it before it computes. jax said: "
            f"{said.splitlines()[0]}"
        ) from error


INDEXED = (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError)
# what jax says of values that are not numbers
NOT_NUMBERS = (
    "abstract array",
    "JAX array type",
    "masked arrays",
    "numpy.ndarray conversion",
    "unsupported operand",
)


def not_numbers(model_args: Args, model_kwargs: Kwargs | None, said: str) -> str:
    """Names of the arguments that are not numbers and whose type is told of; "" for none."""

    def is_told_of(value: Any) -> bool:
        words = {type(value).__name__, type(value).__module__.split(".")[0]} - {"builtins", "numpy"}
        words |= {"masked"} if isinstance(value, np.ma.MaskedArray) else set()
        return any(re.search(rf"\b{word}\b", said) for word in words)

    named = [(f"argument {i}", value) for i, value in enumerate(model_args)]
    named += [(f"argument '{name}'", value) for name, value in (model_kwargs or {}).items()]
    found = [f"{n} is a list" for n, each in named if isinstance(each, list) and is_told_of(each)]
    found += [
        f"{name}{jax.tree_util.keystr(path)} {description}"
        for name, value in named
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
        if (description := describe_other(leaf)) and is_told_of(leaf)
    ]
    return ", ".join(found)


def to_blame(
    model_args: Args, model_kwargs: Kwargs | None, is_fine: Callable[..., bool]
) -> list[str]:
    """What is :func:`not_finite`, if all is fine with ones in its place; else nothing."""

    def whole(leaf: Any) -> Any:
        return jnp.where(jnp.isfinite(leaf), leaf, 1.0) if has_floats(leaf) else leaf

    found = not_finite(model_args, model_kwargs)
    with contextlib.suppress(ValueError, TypeError, RuntimeError):
        if found and is_fine(*jax.tree.map(whole, (model_args, model_kwargs or {}))):
            return found
    return []


def not_finite(model_args: Args, model_kwargs: Kwargs | None) -> list[str]:
    """Where the arrays of floats among the arguments first are NaN or infinite; traced ones pass.

    One text for each such array, as "model_args[0] is nan at (17, 2)".
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path((model_args, model_kwargs or {})):
        if has_floats(leaf) and (bad := first_not_finite(leaf)) is not None:
            place, value = bad
            name = ("model_args", "model_kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
            found.append(f"{name} is {value} at {place}")
    return found


def has_floats(leaf: Any) -> bool:
    """Whether an argument is an array of floats that are known."""
    is_known = is_data(leaf) and not isinstance(leaf, jax.core.Tracer)
    return is_known and bool(jnp.issubdtype(leaf.dtype, np.inexact))


def first_not_finite(array: Any) -> tuple[tuple[int, ...], Any] | None:
    """Where an array is first NaN or infinite, and which; None if it is finite.

    Of an array of JAX other processes may hold a part: it is looked for where the numbers are.
    """
    xp = jnp if isinstance(array, jax.Array) else np
    is_bad = ~xp.isfinite(array)
    if not bool(is_bad.any()):
        return None
    place = tuple(map(int, np.unravel_index(int(is_bad.argmax()), is_bad.shape)))
    return place, array[place]


def describe_other(leaf: Any) -> str:
    """What a leaf is that jax does not take for an array; "" if it does."""
    if isinstance(leaf, np.ndarray):
        is_number = jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool
        if is_number and not isinstance(leaf, np.ma.MaskedArray):
            return ""
        return f"is a {type(leaf).__name__} of dtype {leaf.dtype} and shape {leaf.shape}"
    if isinstance(leaf, (jax.Array, bool, int, float, complex, np.number, np.bool_)):
        return ""
    return f"is a {type(leaf).__name__}"
