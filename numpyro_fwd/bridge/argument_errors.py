"""What is wrong with the arguments of a model: which of them is no array of finite numbers."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.bridge.arguments import is_data
from numpyro_fwd.types import Args, Kwargs


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
