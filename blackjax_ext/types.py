"""Types that signatures of more than one room name."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from blackjax.types import ArrayTree
from jax import Array

Function: TypeAlias = Callable[..., Any]  # of arguments that only its user knows
LogDensity: TypeAlias = Callable[[ArrayTree], Array]
Unravel: TypeAlias = Callable[[Array], ArrayTree]  # from a flat position, (D,)
T = TypeVar("T")  # a pytree of which another with the same structure is made
