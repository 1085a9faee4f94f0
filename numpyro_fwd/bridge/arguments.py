"""The arguments of a model: the arrays among them become arguments of a compiled program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = [
    "Fingerprint",
    "SplitArguments",
    "fingerprint",
    "is_other",
    "run_with",
    "split_arguments",
]

SAMPLE = 256  # entries of each array that the fingerprint of traced arguments reads
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
    join: Callable
    key: Any


def split_arguments(model_args: tuple, model_kwargs: dict | None) -> SplitArguments:
    """Arguments of a model taken apart, so that a program can take the arrays as its own."""
    leaves, treedef = jax.tree.flatten((model_args, model_kwargs))
    arrays = [leaf for leaf in leaves if isinstance(leaf, (np.ndarray, jax.Array))]
    # a place for each leaf: the array's, or the leaf itself
    others = tuple(ARRAY if isinstance(leaf, (np.ndarray, jax.Array)) else leaf for leaf in leaves)

    def join(arrays):
        rest = iter(arrays)
        filled = [next(rest) if other is ARRAY else other for other in others]
        return jax.tree.unflatten(treedef, filled)

    key = (treedef, others)
    try:
        hash(key)
    except TypeError:
        return SplitArguments(arrays, join, None)
    return SplitArguments(arrays, join, key)


def run_with(split: SplitArguments, program: Any, *arguments: Any) -> Any:
    """What a compiled program returns whose first argument are the arrays of a model.

    A model that needs concrete values (a boolean mask, say) is compiled with them as constants.
    """
    try:
        return program(split.arrays, *arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        return jax.jit(partial(program.__wrapped__, split.arrays))(*arguments)


class Fingerprint(NamedTuple):
    """Checksums of the numbers among a model's arguments.

    whole
        Of every entry.
    part
        Of a few entries of each array, which costs nothing in a step.
    """

    whole: Array
    part: Array


def fingerprint(model_args: tuple, model_kwargs: dict | None) -> Fingerprint:
    """Fingerprint of the arguments; the shapes count, and so does the order of the entries."""
    values = numbers(model_args, model_kwargs)
    return Fingerprint(digest(values, None), digest(values, SAMPLE))


def is_other(made: Fingerprint, model_args: tuple, model_kwargs: dict | None) -> Array:
    """Whether the arguments are not those of which the fingerprint was made.

    Where they are traced, a few entries of each array are compared.
    """
    values = numbers(model_args, model_kwargs)
    if any(isinstance(value, jax.core.Tracer) for value in values):
        return digest(values, SAMPLE) != made.part
    with jax.ensure_compile_time_eval():
        seen = digest(values, None)
    return seen != made.whole


def numbers(model_args: tuple, model_kwargs: dict | None) -> list[Array]:
    """Numbers and arrays among the arguments, as arrays."""
    kinds = (np.ndarray, np.generic, jax.Array, bool, int, float, complex)
    leaves = jax.tree.leaves((model_args, model_kwargs))
    return [jnp.asarray(leaf) for leaf in leaves if isinstance(leaf, kinds)]


@partial(jax.jit, static_argnames="most")
def digest(values: list[Array], most: int | None) -> Array:
    """Checksum of the bits of arrays, of no more than about `most` entries of each."""
    total = jnp.zeros((), jnp.uint32)
    for value in values:
        flat = jnp.ravel(value)
        flat = flat if most is None else flat[:: max(flat.size // most, 1)]
        total = total * np.uint32(31) + shape_number(value.shape) + mixed(words(flat))
    return total


def shape_number(shape: tuple[int, ...]) -> np.uint32:
    """A number for a shape."""
    number = len(shape)
    for length in shape:
        number = (number * 1_000_003 + length) % 2**32
    return np.uint32(number)


def words(flat: Array) -> Array:
    """The bits of numbers as 32-bit words, in a flat array."""
    if jnp.issubdtype(flat.dtype, jax.dtypes.prng_key):
        return jnp.ravel(jax.random.key_data(flat))
    if jnp.iscomplexobj(flat):
        return jnp.concatenate([words(flat.real), words(flat.imag)])
    if flat.dtype.itemsize >= 4:
        return jnp.ravel(jax.lax.bitcast_convert_type(flat, jnp.uint32))
    if jnp.issubdtype(flat.dtype, jnp.floating):
        return words(flat.astype(jnp.float32))
    return flat.astype(jnp.uint32)


def mixed(words: Array) -> Array:
    """Sum of words, each stirred together with its place."""
    stirred = words ^ (jnp.arange(words.size, dtype=jnp.uint32) * np.uint32(0x9E3779B9))
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        stirred = (stirred ^ (stirred >> shift)) * np.uint32(factor)
    return jnp.sum(stirred ^ (stirred >> 16), dtype=jnp.uint32)
