"""Interval arithmetic with rounding outwards, for bounds of derivatives over a box.

An operation on intervals holds every value that the operation takes on numbers from them, and what
rounding may take from it.

Reference: R. E. Moore, R. B. Kearfott and M. J. Cloud 2009, Introduction to interval analysis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, arrays of one shape."""

    low: Array
    high: Array

    def __add__(self, other: "Operand") -> "Interval":
        """Sums."""
        other = as_interval(other)
        return outward(self.low + other.low, self.high + other.high)

    def __neg__(self) -> "Interval":
        """The numbers with the other sign."""
        return Interval(-self.high, -self.low)

    def __sub__(self, other: "Operand") -> "Interval":
        """Differences."""
        return self + -as_interval(other)

    def __rsub__(self, other: "Operand") -> "Interval":
        """Differences to a number."""
        return -self + other

    def __mul__(self, other: "Operand") -> "Interval":
        """Products."""
        other = as_interval(other)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return hull(*ends)

    __radd__ = __add__
    __rmul__ = __mul__


Operand: TypeAlias = Interval | Array | float


def as_interval(value: Operand) -> Interval:
    """An interval of one number, if it is none."""
    if isinstance(value, Interval):
        return value
    value = jnp.asarray(value, float)
    return Interval(value, value)


def outward(low: Array, high: Array) -> Interval:
    """The interval with what rounding may have taken from it."""
    # rounding of one operation, in units of eps; of an exponential or a logarithm too
    eps = 8.0 * jnp.finfo(low.dtype).eps
    tiny = jnp.finfo(low.dtype).tiny
    return Interval(low - (eps * jnp.abs(low) + tiny), high + (eps * jnp.abs(high) + tiny))


def hull(*values: Array) -> Interval:
    """The least interval around some numbers, rounded outwards."""
    stacked = jnp.stack(jnp.broadcast_arrays(*values))
    return around_all(stacked, stacked)


def around_all(low: Array, high: Array) -> Interval:
    """The least interval around numbers along the first axis, rounded outwards."""
    return outward(jnp.min(low, axis=0), jnp.max(high, axis=0))


def around(centre: Array, radius: Operand) -> Interval:
    """Numbers within `radius` of `centre`."""
    assert not isinstance(radius, Interval)
    return outward(centre - radius, centre + radius)


def magnitude(x: Operand) -> Array:
    """The largest absolute value."""
    x = as_interval(x)
    return jnp.maximum(jnp.abs(x.low), jnp.abs(x.high))


def square(x: Interval) -> Interval:
    """Squares, none below zero."""
    least = jnp.maximum(jnp.maximum(x.low, -x.high), 0.0)
    squares = outward(least * least, magnitude(x) ** 2)
    return Interval(jnp.maximum(squares.low, 0.0), squares.high)


def exp(x: Interval) -> Interval:
    """Exponentials, none below zero."""
    values = outward(jnp.exp(x.low), jnp.exp(x.high))
    return Interval(jnp.maximum(values.low, 0.0), values.high)


def points(x: Interval, turns: Sequence[float] = ()) -> Array:
    """The ends, and the turns that are within, one after the other: one evaluation for all."""
    within = [jnp.where((x.low <= turn) & (turn <= x.high), turn, x.low) for turn in turns]
    return jnp.stack([x.low, x.high, *within])


def piecewise(
    function: Callable[[Array], Array], x: Interval, turns: Sequence[float] = ()
) -> Interval:
    """Values of a function that is monotone between its `turns`."""
    values = function(points(x, turns))
    return around_all(values, values)
