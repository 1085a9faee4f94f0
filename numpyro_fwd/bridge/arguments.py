"""The arguments of a model: the arrays among them become arguments of a compiled program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = ["SplitArguments", "run_with", "split_arguments"]

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
