"""Whether arguments and programs are those of before: checksums of them."""

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from blackjax_ext.equations import primitives_in, read_program
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import GIBBS_SITES_KWARG
from numpyro_fwd.disk import OnDisk, leaves_with_rows_on_disk
from numpyro_fwd.types import Args, Kwargs

SAMPLE = 256  # entries of each array that the fingerprint of traced arguments reads
MOST_ON_HOST = 4_000_000  # entries that NumPy reads in the time of a compilation


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


def checksum_of(argument: Any) -> int | None:
    """Checksum of the numbers in one leaf of the arguments; None if it has none."""
    values = numbers((argument,), None)
    with evaluating(values):
        return int(digest(values, None)) if values else None


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
            return jnp.asarray(checksum([as_numpy(value) for value in values], most, np))
    return compiled_checksum([jnp.asarray(value) for value in values], most, jnp)


def is_on_host(values: list[Any]) -> bool:
    """Whether NumPy reads values sooner than JAX compiles a program that does."""
    arrays = [value for value in values if isinstance(value, jax.Array)]
    return sum(map(np.size, values)) <= MOST_ON_HOST and not any(
        isinstance(value, jax.core.Tracer) or not value.is_fully_addressable for value in arrays
    )


def as_numpy(value: Any) -> np.ndarray:
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
        total = total * np.uint32(31) + shape_number(value.shape) + mixed_bits(words(flat, xp), xp)
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


def mixed_bits(words: Any, xp: Any) -> Any:
    """Sum of words, each stirred together with its place."""
    stirred = words ^ (xp.arange(words.size, dtype=np.uint32) * np.uint32(0x9E3779B9))
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        stirred = (stirred ^ (stirred >> np.uint32(shift))) * np.uint32(factor)
    return xp.sum(stirred ^ (stirred >> np.uint32(16)), dtype=np.uint32)


def describe_leaf(leaf: Any) -> str:
    """The value of a number or text, a checksum of an array or table, the type of anything else."""
    if isinstance(leaf, (bool, int, float, complex, str, bytes)):
        return repr(leaf)
    kind = f"{getattr(leaf, 'dtype', type(leaf).__qualname__)}{getattr(leaf, 'shape', '')}"
    checksum = checksum_of(leaf)
    return kind if checksum is None else f"{kind} {checksum:08x}"


def describe_program(program: ClosedJaxpr) -> str:
    """A checksum of a traced program and of the numbers in it."""
    return Programs().digest(program.jaxpr, program.consts)


class Programs:
    """Checksums of programs, each of which may be part of others many times."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, str]] = {}

    def digest(self, jaxpr: Jaxpr, consts: Any = ()) -> str:
        """Checksum of a program: its operations, and which results they work on."""
        if id(jaxpr) not in self.known:
            self.known[id(jaxpr)] = (jaxpr, self.digest_of_operations(jaxpr))
        parts = [self.known[id(jaxpr)][1], *map(describe_leaf, consts)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def digest_of_operations(self, jaxpr: Jaxpr) -> str:
        """Checksum of a program whose constants are any."""
        names = map(str, count())
        constants = [next(names) for _ in jaxpr.constvars]
        inputs = [next(names) for _ in jaxpr.invars]
        digest = hashlib.sha256(str([v.aval for v in (*jaxpr.constvars, *jaxpr.invars)]).encode())

        def rule(equation: Any, arguments: list[str]) -> list[str]:
            name, params = equation.primitive.name, equation.params
            shapes = [str(var.aval) for var in equation.outvars]
            options = [(key, self.option(params[key])) for key in sorted(params)]
            digest.update(repr((name, arguments, shapes, options)).encode())
            return [next(names) for _ in shapes]

        program = ClosedJaxpr(jaxpr, constants)
        outputs = read_program(program, inputs, rule, self.known_value, calls=(), reads_all=True)
        digest.update(repr(outputs).encode())
        return digest.hexdigest()[:24]

    @staticmethod
    def known_value(variable: Any, value: Any) -> str:
        """A number that stands in a program, or the name of a constant."""
        is_number = isinstance(variable, Literal)
        return f"{describe_leaf(value)}:{variable.aval}" if is_number else value

    def option(self, value: Any) -> str:
        """A parameter of an operation."""
        if isinstance(value, ClosedJaxpr):
            return self.digest(value.jaxpr, value.consts)
        if isinstance(value, Jaxpr):
            return self.digest(value)
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.option, value))})"
        if isinstance(value, dict):
            return self.option([*value.items()])
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return describe_leaf(value)
        if callable(value):  # what it does is in the program, its name may have an address
            return type(value).__name__
        return re.sub(r"0x[0-9a-f]+", "", str(value))


def key_of_program(traced: Any, *structures: Any) -> Hashable:
    """What a program computes of arrays, as JAX traced it; None for one that is not kept.

    That calls Python, or holds data: it would be another one for others, and keep them in memory.
    `structures` are those of its arguments.
    """
    if sum(map(np.size, traced.jaxpr.consts)) > 10_000:  # entries: data
        return None
    if any("callback" in name for name in primitives_in(traced.jaxpr)):
        return None
    key = describe_program(traced.jaxpr), jax.tree.structure(traced.out_info), *structures
    try:
        hash(key)
    except TypeError:
        return None
    return key


class KnownPrograms:
    """Compiled programs by what they compute, the `most` that were used last."""

    def __init__(self, most: int):
        self.most, self.programs = most, dict[Any, Any]()

    def take(self, key: Any, make: Callable[[], Any]) -> Any:
        """The program for a key, or the one that is made; a new one for None."""
        if key is None:
            return make()
        program = self.programs.pop(key, None)
        self.programs[key] = program = make() if program is None else program
        for oldest in list(self.programs)[: -self.most]:
            del self.programs[oldest]
        return program

    def keep(self, traced: Any, given: Any, make: Callable[[], Any]) -> Any:
        """A program that is traced, or one that is known to be the same."""
        return self.take(key_of_program(traced, given), make)
