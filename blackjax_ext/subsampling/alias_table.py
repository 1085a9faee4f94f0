r"""Draws from a fixed discrete distribution in constant time: an alias table.

Walker's table has N columns of height one, each shared by at most two of the N outcomes: column
:math:`j` gives :math:`j` with probability :math:`q_j` and its alias :math:`a_j` otherwise. A draw
is a uniform column and a uniform number. Outcome :math:`i` has the probability

.. math::
    \hat{p}_i = \frac1N \Big( q_i + \sum_{j: a_j = i} (1 - q_j) \Big).

*Construction.* Vose fills the columns of the light outcomes (:math:`N p_i \le 1`) from the heavy
ones, one after the other; when the rest of a heavy outcome falls below one, the next heavy outcome
fills its column. Both orders are that of the index, so each column can be written down from two
cumulative sums, of what the light ones lack and of what the heavy ones have too much, and a merge
of the two (the sweep of Hübschle-Schneider and Sanders 2022), without a loop.

*Rounding.* The cumulative sums are in double precision on the host; then each :math:`q_j` is
rounded to a multiple of :math:`2^{-23}`, the step of a uniform float32 number. So the table gives
:math:`\hat{p}_i` exactly, in either precision, up to the generator of the columns, which is
uniform to :math:`2^{-32}`. Whoever needs the law of the draws takes :func:`realized`, which is
:math:`\hat{p}`, instead of the weights.

References: A. J. Walker 1977, An efficient method for generating discrete random variables with
general distributions; M. D. Vose 1991, A linear algorithm for generating random numbers with a
given distribution; L. Hübschle-Schneider and P. Sanders 2022, Parallel weighted random sampling.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.rows.shuffles import times_fraction

PROBABILITY_STEPS = 2.0**23
NUM_WORDS = 3  # random words of an outcome
BLOCK_SIZE = 2**17  # numbers whose intermediate results are kept at once


class AliasTable(NamedTuple):
    """Columns of the table.

    Attributes
    ----------
    threshold
        q, a multiple of 2^-23 between 0 and 1, shape (N,), float32.
    alias
        The other outcome of each column, shape (N,), int32.
    """

    threshold: Any
    alias: Any


def columns(weights: np.ndarray, least: float = 0.0) -> AliasTable:
    """Table of arrays of NumPy, of probabilities in proportion to ``weights + least``.

    Nothing checks that these are finite, at least zero and not all zero. Both merges go through
    blocks of the light and of the heavy outcomes, whose cumulative sums are carried from one to the
    next: no array of N is made but those of the table. Cost: two cumulative sums and two merges on
    the host, 2 s for ten million rows.
    """
    size = weights.size
    total = sum(
        float(double_weights(weights, least, part).sum()) for part in blocks(size, BLOCK_SIZE)
    )
    lights, heavies = (
        partial(
            outcomes, lambda part: double_weights(weights, least, part) * (size / total), size, kind
        )
        for kind in (True, False)
    )
    table = AliasTable(np.ones(size, np.float32), np.arange(size, dtype=np.int32))
    for some in lights():
        table.threshold[some.which] = np.rint(some.height * PROBABILITY_STEPS) / PROBABILITY_STEPS
    # by rounding, equal weights may all be above their mean
    if next(lights(), None) is not None and next(heavies(), None) is not None:
        fill_lights(table, lights(), Merge(heavies(), "right"))
        empty_heavies(table, heavies(), Merge(lights(), "left"))
    return table


class Outcomes(NamedTuple):
    """Some light or some heavy outcomes, in order.

    Attributes
    ----------
    which
        Which they are.
    height
        N p, their probabilities in units of a column.
    sums
        What they and those before them lack, or have too much, in columns.
    before
        The same of those before each alone.
    """

    which: np.ndarray
    height: np.ndarray
    sums: np.ndarray
    before: np.ndarray


def outcomes(
    height: Callable[[slice], np.ndarray], size: int, is_light: bool
) -> Iterator[Outcomes]:
    """All light or all heavy outcomes, a block after the other."""
    total = 0.0
    for part in blocks(size, BLOCK_SIZE):
        heights = height(part)
        index = np.flatnonzero((heights <= 1.0) == is_light)
        if index.size:
            own = heights[index]
            steps = np.concatenate([[total], 1.0 - own if is_light else own - 1.0])
            sums = np.cumsum(steps)
            total = sums[-1]
            yield Outcomes(part.start + index, own, sums[1:], sums[:-1])


class Merge:
    """Where ascending numbers belong among the cumulative sums of outcomes, one block at a time.

    With the side "right" it is the first outcome whose sum is above a number, with "left" the first
    whose sum is not below it; the last outcome where none is.
    """

    def __init__(self, some: Iterator[Outcomes], side: Literal["left", "right"]):
        self.rest, self.side = some, side
        self.other_side: Literal["left", "right"] = "left" if side == "right" else "right"
        self.here = next(self.rest)
        self.next = next(self.rest, None)

    def find(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outcomes and their sums for `values`, none of which is below one that was asked for."""
        parts = [self.in_block(values)]
        while (done := sum(index.size for index, _ in parts)) < values.size:
            assert self.next is not None
            self.here, self.next = self.next, next(self.rest, None)
            parts.append(self.in_block(values[done:]))
        index, sums = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return index, sums

    def in_block(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map the leading values that fall into the current block to outcomes."""
        sums = self.here.sums
        if self.next is not None:
            values = values[: np.searchsorted(values, sums[-1], self.other_side)]
        at = np.minimum(np.searchsorted(sums, values, self.side), sums.size - 1)
        return self.here.which[at], sums[at]


def fill_lights(table: AliasTable, lights: Iterator[Outcomes], heavies: Merge) -> None:
    """The aliases of light outcomes.

    They are the heavy ones that still have more than one when their turn comes.
    """
    for some in lights:
        table.alias[some.which] = heavies.find(some.before)[0]


def empty_heavies(table: AliasTable, heavies: Iterator[Outcomes], lights: Merge) -> None:
    """Thresholds and aliases of heavy outcomes.

    A light outcome takes a heavy one below one, and the next heavy one fills it up.
    """
    last = None
    for some in heavies:
        taken = lights.find(some.sums)[1]
        rest = np.clip(1.0 + some.sums - taken, 0.0, 1.0)
        table.threshold[some.which] = np.rint(rest * PROBABILITY_STEPS) / PROBABILITY_STEPS
        table.alias[some.which[:-1]] = some.which[1:]
        if last is not None:
            table.alias[last] = some.which[0]
        last = some.which[-1]
    table.threshold[last] = 1.0  # nothing is left to fill it up


def blocks(size: int, length: int) -> Iterator[slice]:
    """Slices that go through `size` numbers."""
    for first in range(0, size, length):
        yield slice(first, min(first + length, size))


def double_weights(weights: np.ndarray, least: float, part: slice) -> np.ndarray:
    """Some weights in double precision."""
    return weights[part].astype(np.float64) + least


def realized(threshold: Any, alias: Any, part: slice) -> np.ndarray:
    """Probabilities of some outcomes under a table, without error. Cost: all columns are read."""
    given = np.zeros(part.stop - part.start)
    for those in blocks(threshold.size, BLOCK_SIZE):
        takers = alias[those]
        is_here = np.flatnonzero((takers >= part.start) & (takers < part.stop))
        rest = 1.0 - threshold[those][is_here].astype(np.float64)
        np.add.at(given, takers[is_here] - part.start, rest)
    given += threshold[part]
    shares: np.ndarray = given / threshold.size
    return shares


def draw(rng_key: PRNGKey, table: AliasTable, shape: tuple[int, ...]) -> Array:
    """Independent outcomes. Cost: three random words and two reads each, whatever N."""
    return outcome(jax.random.bits(rng_key, (NUM_WORDS, *shape), jnp.uint32), table)


def outcome(words: Array, table: AliasTable) -> Array:
    """The outcomes that random words give, of shape (3, ...)."""
    column = times_fraction(words[:2], table.alias.shape[0])
    threshold, alias = (
        jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in (table.threshold, table.alias)
    )
    is_alias = words[2] // 2**9 >= threshold[column] * PROBABILITY_STEPS
    return jnp.where(is_alias, alias[column], column)
