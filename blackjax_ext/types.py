"""Types that signatures of more than one room name, and choices between two of a type."""

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


def once(condition: Array, function: Callable[[T], T], value: T) -> T:
    """``function(value)`` if `condition` else `value`, of which nothing is copied then.

    ``jax.lax.cond`` copies all that a branch hands on. A loop of at most one turn leaves it where
    it is, which counts where a state is large and seldom changes. It has no reverse mode.
    """
    condition = jnp.asarray(condition)

    def turn(carry: tuple[Array, T]) -> tuple[Array, T]:
        return jnp.zeros_like(carry[0]), function(carry[1])

    result: T = jax.lax.while_loop(lambda carry: carry[0], turn, (condition, value))[1]
    return result
