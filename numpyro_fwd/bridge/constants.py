"""Arguments of a model that are no numbers, which compiled programs take as constants only.

NumPyro's MCMC closes over the arguments, so that a model may read names, dates or the size of a
plate from them. A program that takes the arrays as its arguments must leave these in their places.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from numpyro_fwd.bridge.arguments import SplitArguments, split_arguments

__all__ = ["as_constants", "check_arguments", "split_numbers"]

NUMBERS = "biufc"  # kinds of numpy's dtypes that jax knows, besides those that extend numpy


class Constant:
    """Something that no compiled program takes, kept out of its arguments."""

    def __init__(self, value: Any):
        self.value = value

    __hash__ = None  # type: ignore[assignment]  # an array of names may change in place


def check_arguments(model_args: tuple, model_kwargs: dict | None) -> None:
    """Raise TypeError for a masked array, whose mask would be lost, by its place."""
    leaves = jax.tree_util.tree_leaves_with_path((model_args, model_kwargs or {}))
    for path, leaf in leaves:
        if isinstance(leaf, np.ma.MaskedArray):
            name = ("model_args", "model_kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
            raise TypeError(
                f"{name} must not be a masked array, whose mask jax does not read; got one of "
                f"shape {leaf.shape}: fill it, and give its mask to numpyro.handlers.mask."
            )


def as_constants(tree: Any) -> Any:
    """`tree` without arrays that a program cannot take as arguments.

    Whole numbers of numpy without axes become scalars, since they may be shapes; names, dates and
    objects are wrapped.
    """
    return jax.tree.map(as_constant, tree)


def as_constant(leaf: Any) -> Any:
    """A scalar for a whole number, a :class:`Constant` for an array of no numbers."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 0 and leaf.dtype.kind in "biu":
        return leaf[()]
    is_number = leaf.dtype.kind in NUMBERS or is_extended(leaf.dtype)
    return leaf if is_number else Constant(leaf)


def is_extended(dtype: np.dtype) -> bool:
    """Whether a dtype is one that jax adds to those of numpy, such as bfloat16."""
    return jax.dtypes.issubdtype(dtype, np.number)


def split_numbers(model_args: tuple, model_kwargs: dict | None) -> SplitArguments:
    """Arguments of a model taken apart into the arrays of numbers, and the rest."""
    check_arguments(model_args, model_kwargs)
    split = split_arguments(*as_constants((model_args, model_kwargs)))
    return split._replace(join=opened(split.join))


def opened(join: Callable) -> Callable:
    """`join`, with the constants in their places as they were given."""

    def joined(arrays):
        return jax.tree.map(
            lambda leaf: leaf.value if isinstance(leaf, Constant) else leaf, join(arrays)
        )

    return joined
