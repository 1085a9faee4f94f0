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
uniform to :math:`2^{-32}`. Whoever needs the law of the draws takes
`AliasTable.probability`, which is :math:`\hat{p}`, instead of the weights.

References: A. J. Walker 1977, An efficient method for generating discrete random variables with
general distributions; M. D. Vose 1991, A linear algorithm for generating random numbers with a
given distribution; L. Hübschle-Schneider and P. Sanders 2022, Parallel weighted random sampling.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.rows.shuffles import scaled

__all__ = ["AliasTable", "build", "draw", "realized"]

STEPS = 2.0**23
BLOCK = 2**20  # numbers whose intermediate results are kept at once


class AliasTable(NamedTuple):
    """Columns of the table, and the law of its draws.

    Attributes
    ----------
    threshold
        q, a multiple of 2^-23 between 0 and 1, shape (N,), float32.
    alias
        The other outcome of each column, shape (N,), int32.
    probability
        Probability of each outcome under the table as rounded, shape (N,), float64 of numpy or
        what the caller makes of it.
    """

    threshold: Array | np.ndarray
    alias: Array | np.ndarray
    probability: Array | np.ndarray


def build(weights: np.ndarray) -> AliasTable:
    """Table of the outcomes 0 to N - 1 with probabilities in proportion to `weights`.

    Parameters
    ----------
    weights
        Shape (N,), finite, at least zero, not all zero.

    Returns
    -------
    Arrays of numpy. Cost: two cumulative sums and two merges of N numbers on the host, 1 s for ten
    million rows, and 12 bytes a row; a draw costs O(1).

    Raises
    ------
    ValueError
        For weights of another shape, negative, not finite, or all zero.

    Examples
    --------
    >>> import numpy as np
    >>> table = build(np.array([1.0, 2.0, 5.0]))
    >>> table.probability.round(6).tolist()
    [0.125, 0.25, 0.625]
    """
    weights = check_weights(weights)
    height = weights * (weights.size / weights.sum())  # of mean one
    del weights  # eight bytes a row, if the caller does not keep them
    kind = np.int32 if height.size < 2**31 else np.int64
    alias = np.arange(height.size, dtype=kind)
    light = np.flatnonzero(height <= 1.0).astype(kind)
    heavy = np.flatnonzero(height > 1.0).astype(kind)
    threshold = quantized(height, np.ones(height.size, np.float32), light)
    if heavy.size and light.size:  # by rounding, equal weights may all be above their mean
        lacks, spares = height[light], height[heavy]
        del height  # a table of a hundred million rows is made in little more than it keeps
        np.cumsum(np.subtract(1.0, lacks, out=lacks), out=lacks)
        np.cumsum(np.subtract(spares, 1.0, out=spares), out=spares)
        for part in blocks(light.size):
            # the heavy outcome that still has more than one when the turn of a light one comes
            before = lacks[max(part.start - 1, 0) : part.stop - 1]
            before = before if part.start else np.concatenate([[0.0], before])
            giver = np.minimum(np.searchsorted(spares, before, side="right"), heavy.size - 1)
            alias[light[part]] = heavy[giver]
        for part in blocks(heavy.size - 1):
            # the light outcome that takes a heavy one below one; the next heavy one fills it up
            taker = np.searchsorted(lacks, spares[part], side="left")
            taken = lacks[np.minimum(taker, lacks.size - 1)]
            rest = np.clip(1.0 + spares[part] - taken, 0.0, 1.0)
            threshold[heavy[part]] = np.rint(rest * STEPS) / STEPS
        alias[heavy[:-1]] = heavy[1:]
    return AliasTable(threshold, alias.astype(np.int32, copy=False), realized(threshold, alias))


def blocks(size: int) -> Iterator[slice]:
    """Slices that go through `size` numbers."""
    for first in range(0, size, BLOCK):
        yield slice(first, min(first + BLOCK, size))


def quantized(height: np.ndarray, threshold: np.ndarray, light: np.ndarray) -> np.ndarray:
    """`threshold` with the heights of the light outcomes as multiples of 1 / STEPS."""
    for part in blocks(light.size):
        threshold[light[part]] = np.rint(height[light[part]] * STEPS) / STEPS
    return threshold


def check_weights(weights: np.ndarray) -> np.ndarray:
    """`weights` in double precision; ValueError unless they are the weights of a distribution."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 1 or not weights.size:
        raise ValueError(f"weights must be of shape (N,) with N > 0; got shape {weights.shape}.")
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if bad.size:
        raise ValueError(
            f"weights must be finite and at least zero; weights[{bad[0]}] is {weights[bad[0]]}."
        )
    if not weights.any():
        raise ValueError("weights must not all be zero.")
    return weights


def realized(threshold: np.ndarray, alias: np.ndarray) -> np.ndarray:
    """Probabilities of the outcomes under a table, in double precision."""
    given = np.zeros(threshold.size)
    for part in blocks(threshold.size):
        np.add.at(given, alias[part], 1.0 - threshold[part].astype(np.float64))
    for part in blocks(threshold.size):
        given[part] = (threshold[part].astype(np.float64) + given[part]) / threshold.size
    return given


def draw(rng_key: PRNGKey, table: AliasTable, shape: tuple[int, ...]) -> Array:
    """Independent outcomes. Cost: three random words and two reads each, whatever N."""
    *words, side = jax.random.bits(rng_key, (3, *shape), jnp.uint32)
    column = scaled(jnp.stack(words), table.alias.shape[0])
    threshold, alias = jnp.asarray(table.threshold), jnp.asarray(table.alias)
    is_alias = side // 2**9 >= threshold[column] * STEPS
    return jnp.where(is_alias, alias[column], column)
