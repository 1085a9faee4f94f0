"""What is wrong with the arguments of a model: which of them is no array of finite numbers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.bridge.arguments import is_data
from numpyro_fwd.types import Args, Kwargs

__all__ = ["check_arguments", "first_not_finite", "naming_arguments", "not_finite"]


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
