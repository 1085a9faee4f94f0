"""The arguments of a model: the arrays among them become arguments of a compiled program.

An argument that a model may need as it is stays what it is: whole numbers and truth values, which
may be shapes and branches, even in arrays without axes; strings, objects and tables; arrays that
are not of numbers, or that know more than their numbers, as masked arrays do.
"""

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.types import Function
from numpyro_fwd.bridge.numpyro_private import GIBBS_SITES_KWARG
from numpyro_fwd.disk import OnDisk, leaves_with_rows_on_disk
from numpyro_fwd.types import Args, Kwargs

__all__ = [
    "Fingerprint",
    "SplitArguments",
    "check_arguments",
    "evaluating",
    "fingerprint",
    "first_not_finite",
    "is_data",
    "is_other",
    "mutable_arrays",
    "naming_arguments",
    "not_finite",
    "run_with",
    "split_arguments",
    "traced_once",
]

SAMPLE = 256  # entries of each array that the fingerprint of traced arguments reads
MOST_ON_HOST = 4_000_000  # entries that NumPy reads in the time of a compilation
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


@contextlib.contextmanager
def naming_arguments(model_args: Args, model_kwargs: Kwargs | None) -> Iterator[None]:
    """Name the arguments that are not numbers in the errors of jax that say that something is not.

    Where all are numbers, an array of NumPy was indexed in a program.

    Raises
    ------
    TypeError
        In place of such an error.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        found = not_numbers(model_args, model_kwargs)
        if not found and isinstance(error, INDEXED):
            raise TypeError(
                "model indexes an array of NumPy with the rows of a plate, which are traced: give "
                "arrays of jax, jnp.asarray(x), or write jnp.asarray(x)[rows] in the model."
            ) from error
        if not found or not any(words in str(error) for words in NOT_NUMBERS):
            raise
        raise TypeError(
            f"the model computes with an argument that is not an array of numbers: {found}. Give "
            "the numbers in it as an array, or let the model use it before it computes. jax said: "
            f"{str(error).splitlines()[0]}"
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


def not_numbers(model_args: Args, model_kwargs: Kwargs | None) -> str:
    """Names of the arguments that are not numbers, and what they are; "" if all are."""
    named = [(f"argument {i}", value) for i, value in enumerate(model_args)]
    named += [(f"argument '{name}'", value) for name, value in (model_kwargs or {}).items()]
    found = [f"{name} is a list" for name, value in named if isinstance(value, list)]
    found += [
        f"{name}{jax.tree_util.keystr(path)} {description}"
        for name, value in named
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
        if (description := describe_other(leaf))
    ]
    return ", ".join(found)


def not_finite(model_args: Args, model_kwargs: Kwargs | None) -> list[str]:
    """Where the arrays of floats among the arguments first are NaN or infinite; traced ones pass.

    One text for each such array, as "model_args[0] is nan at (17, 2)".
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path((model_args, model_kwargs or {})):
        if isinstance(leaf, jax.core.Tracer) or not is_data(leaf):
            continue
        if not jnp.issubdtype(leaf.dtype, np.inexact):
            continue
        if (bad := first_not_finite(leaf)) is not None:
            place, value = bad
            name = ("model_args", "model_kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
            found.append(f"{name} is {value} at {place}")
    return found


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


class Fingerprint(NamedTuple):
    """Checksums of the numbers among a model's arguments.

    whole
        Of every entry.
    part
        Of a few entries of each array, which costs nothing in a step.
    """

    whole: Array
    part: Array


def fingerprint(model_args: Args, model_kwargs: Kwargs | None) -> Fingerprint:
    """Fingerprint of the arguments; the shapes count, and so does the order of the entries."""
    values = numbers(model_args, model_kwargs)
    with evaluating(values):
        return Fingerprint(digest(values, None), digest(values, SAMPLE))


def is_other(made: Fingerprint, model_args: Args, model_kwargs: Kwargs | None) -> Array:
    """Whether the arguments are not those of which the fingerprint was made.

    Where they are traced, a few entries of each array are compared.
    """
    values = numbers(model_args, model_kwargs)
    if any(isinstance(value, jax.core.Tracer) for value in values):
        return digest(values, SAMPLE) != made.part
    with evaluating(values):
        seen = digest(values, None)
    return seen != made.whole


def mutable_arrays(model_args: Args, model_kwargs: Kwargs | None) -> tuple[int, ...]:
    """Which arrays of NumPy, or files, are among the arguments: their identities alone."""
    leaves = leaves_with_rows_on_disk((model_args, model_kwargs or {}))
    return tuple(id(leaf) for leaf in leaves if isinstance(leaf, (np.ndarray, OnDisk)))


def numbers(model_args: Args, model_kwargs: Kwargs | None) -> list[Any]:
    """Numbers, arrays and tables among the arguments, without the other sites of a Gibbs step."""
    keywords = {k: v for k, v in (model_kwargs or {}).items() if k != GIBBS_SITES_KWARG}
    leaves = leaves_with_rows_on_disk((model_args, keywords))
    return [as_numbers(part) for leaf in leaves for part in parts_with_numbers(leaf)]


def parts_with_numbers(leaf: Any) -> list[Any]:
    """What is compared of an argument: a few rows of those on disk, the columns of a table."""
    if isinstance(leaf, OnDisk):
        return [leaf.sample()]
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array, bool, int, float, complex)):
        return [leaf]
    names = leaf if isinstance(leaf, Mapping) else getattr(leaf, "columns", ())
    found = [leaf[name] for name in names] or [leaf]
    return [np.asarray(part) for part in found if hasattr(part, "__array__")]


def as_numbers(leaf: Any) -> Any:
    """Keys, and arrays of NumPy that JAX does not take, as numbers."""
    if isinstance(leaf, jax.Array):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, np.number) or jnp.issubdtype(array.dtype, np.bool_):
        return leaf
    if array.dtype.hasobject:  # as text, since the bits are addresses
        array = array.astype(str)
    return np.frombuffer(array.tobytes(), np.uint8)  # of text, dates, records


def digest(values: list[Any], most: int | None) -> Array:
    """Checksum of the bits of arrays, of no more than about `most` entries of each."""
    if is_on_host(values):  # nothing to compile
        with np.errstate(over="ignore"):
            return jnp.asarray(checksum([on_host(value) for value in values], most, np))
    return compiled_checksum([jnp.asarray(value) for value in values], most, jnp)


def is_on_host(values: list[Any]) -> bool:
    """Whether NumPy reads values sooner than JAX compiles a program that does."""
    arrays = [value for value in values if isinstance(value, jax.Array)]
    return sum(map(np.size, values)) <= MOST_ON_HOST and not any(
        isinstance(value, jax.core.Tracer) or not value.is_fully_addressable for value in arrays
    )


def on_host(value: Any) -> np.ndarray:
    """A value as an array of NumPy with the bits that JAX would give it."""
    if isinstance(value, jax.Array):
        return np.asarray(value)
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(value))
    return np.asarray(value).astype(dtype, copy=False)


def checksum(values: list[Any], most: int | None, xp: Any) -> Any:
    """Of the bits of arrays and of their shapes, by NumPy or by JAX: the same number."""
    total = xp.zeros((), np.uint32)
    for value in values:
        flat = value.reshape(-1)
        flat = flat if most is None else flat[:: max(flat.size // most, 1)]
        total = total * np.uint32(31) + shape_number(value.shape) + mixed(words(flat, xp), xp)
    return total


compiled_checksum = jax.jit(checksum, static_argnums=(1, 2))


def shape_number(shape: tuple[int, ...]) -> np.uint32:
    """A number for a shape."""
    number = len(shape)
    for length in shape:
        number = (number * 1_000_003 + length) % 2**32
    return np.uint32(number)


def words(flat: Any, xp: Any) -> Any:
    """The bits of numbers as 32-bit words, in a flat array."""
    if jnp.iscomplexobj(flat):
        return xp.concatenate([words(flat.real, xp), words(flat.imag, xp)])
    if flat.dtype.itemsize >= 4:
        return (np.ascontiguousarray(flat) if xp is np else flat).view(np.uint32)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        return words(flat.astype(np.float32), xp)
    return flat.astype(np.uint32)


def mixed(words: Any, xp: Any) -> Any:
    """Sum of words, each stirred together with its place."""
    stirred = words ^ (xp.arange(words.size, dtype=np.uint32) * np.uint32(0x9E3779B9))
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        stirred = (stirred ^ (stirred >> np.uint32(shift))) * np.uint32(factor)
    return xp.sum(stirred ^ (stirred >> np.uint32(16)), dtype=np.uint32)
