"""Types that signatures of more than one room name, and a choice between two of a type."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array

Function: TypeAlias = Callable[..., Any]  # of arguments that only its user knows
LogDensity: TypeAlias = Callable[[ArrayTree], Array]
Unravel: TypeAlias = Callable[[Array], ArrayTree]  # from a flat position, (D,)
T = TypeVar("T")  # a pytree of which another with the same structure is made


def select(condition: Array, first: T, second: T) -> T:
    """``first`` if `condition` else ``second``, leaf by leaf."""
    chosen: T = jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
    return chosen
