r"""Sums over many rows, in chunks, with the rounding errors kept.

The energy of a million rows is of the order of 1e6, where neighbours in float32 are 0.06 apart: the
difference of two such energies would be noise. So a sum is kept as a pair :math:`h + l`, each
addition giving its rounding error exactly (Knuth), and the difference of two sums is that of the
high parts plus that of the low parts.

Reference: D. E. Knuth 1998, The Art of Computer Programming 2, section 4.2.2; T. J. Dekker 1971, A
floating-point technique for extending the available precision.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from blackjax_ext.equations import bytes_of
from blackjax_ext.meshes import ROWS, num_blocks, shard_first_axis
from blackjax_ext.rows.consecutive import at_chunk

BUDGET = 2**25  # bytes for the intermediate results of a chunk
MIN_CHUNKED_ROWS = 256  # so few rows are never divided into chunks
SUM_WIDTH = 128


class Pair(NamedTuple):
    """A number, or an array of numbers, as the unevaluated sum of two floats.

    Attributes
    ----------
    high
        The number, rounded.
    low
        What the rounding left, no larger than half a unit in the last place of `high`.
    """

    high: Array
    low: Array

    def value(self) -> Array:
        """The number in one float; its derivative is that of the sum."""
        return self.high + self.low


def as_pair(value: Array | Pair) -> Pair:
    """`value` as a pair: one float has nothing left over."""
    return value if isinstance(value, Pair) else Pair(value, jnp.zeros_like(value))


def add(a: Pair, b: Pair | Array) -> Pair:
    """``a + b`` elementwise, right to about twice the digits of the dtype.

    Only the high part has a derivative: that of the low part is zero.
    """
    b = as_pair(b)
    high = a.high + b.high
    x, y, s = jax.lax.stop_gradient((a.high, b.high, high))
    back = s - x
    error = (x - (s - back)) + (y - back) + jax.lax.stop_gradient(a.low + b.low)
    # an infinite energy leaves nothing over
    error, carried = (jnp.where(jnp.isfinite(s), e, 0.0) for e in (error, (s + error) - s))
    # the derivative goes with the first term, the correction with the second
    return Pair(high + carried, error - carried)


def difference(a: Pair, b: Pair) -> Array:
    """``a - b`` in one float: exact in the high parts when `a` and `b` are close."""
    return (a.high - b.high) + (a.low - b.low)


def collapse(terms: Pair) -> Pair:
    """Sum of a pair of arrays, shape (n,): columns of a table first, then along its last row.

    Written as loops: a chain of unrolled additions would be fused, and what each of them reads
    computed again.
    """
    num_terms = terms.high.shape[0]
    padding = -num_terms % SUM_WIDTH if num_terms > SUM_WIDTH else 0
    width = min(num_terms, SUM_WIDTH)
    table = jax.tree.map(lambda x: jnp.pad(x, (0, padding)).reshape(-1, width), terms)
    return fold(fold(table))


def fold(terms: Pair) -> Pair:
    """Sum along the first axis."""
    first, rest = (jax.tree.map(lambda x, at=at: x[at], terms) for at in (0, slice(1, None)))
    total: Pair = jax.lax.scan(lambda sum, term: (add(sum, term), None), first, rest)[0]
    return total


def rows_at_once(values_at: Callable[[Array], Array], num_rows: int) -> int:
    """How many rows have their intermediate results in :data:`BUDGET` bytes.

    A loop over chunks costs more than a pass without one, because each chunk of the data is copied.
    """
    if num_rows <= MIN_CHUNKED_ROWS:
        return num_rows

    def size(length: int) -> int:
        rows = jax.ShapeDtypeStruct((length,), jnp.result_type(int))
        program = jax.make_jaxpr(values_at)(rows).jaxpr
        return sum(bytes_of(result) for equation in program.eqns for result in equation.outvars)

    if size(num_rows) <= BUDGET:
        return num_rows
    # what does not grow with the rows is not counted
    per_row = (size(MIN_CHUNKED_ROWS) - size(MIN_CHUNKED_ROWS // 2)) / (MIN_CHUNKED_ROWS // 2)
    most = max(int(BUDGET / max(per_row, 1.0)), MIN_CHUNKED_ROWS)
    # of equal length, because the last one is filled up with rows that are counted already
    return -(-num_rows // -(-num_rows // most))


def over_rows(
    values_at: Callable[[Array], Array], num_rows: int, chunk_size: int | None, dtype: DTypeLike
) -> Pair:
    """Sum of a value per row, evaluated `chunk_size` rows at a time.

    Parameters
    ----------
    values_at
        ``values_at(rows)`` gives the values of rows with these numbers, shape (n,). Arrays that it
        indexes with them are read as slices.
    num_rows
        Number of rows, N.
    chunk_size
        Rows at once, of each device that holds some; None for as many as have their intermediate
        results in 32 MiB.
    dtype
        Of the values.

    Returns
    -------
    The sum as a pair. Cost: N rows. Memory: that of a chunk, also where the sum is differentiated
    in reverse mode, which evaluates each chunk once more.
    """
    blocks = num_blocks(num_rows)  # each device reads chunks of its own rows
    size = num_rows // blocks
    length = min(chunk_size or rows_at_once(values_at, size), size)

    # a differentiated chunk is made again, its mask too, or reverse mode would keep all of them
    @jax.checkpoint
    def values(i: Array) -> Any:
        def counted_once(rows: Array, is_new: Array) -> Array:
            return jnp.where(is_new, values_at(rows), 0.0)

        return at_chunk(counted_once, i, length, num_rows, blocks)

    def body(lanes: Pair, i: Array) -> tuple[Pair, None]:
        return add(lanes, values(i)), None

    zeros = jnp.zeros(blocks * length, dtype)
    lanes, _ = jax.lax.scan(body, Pair(zeros, zeros), jnp.arange(-(-size // length)))
    if blocks == 1:
        return collapse(lanes)
    of_blocks = jax.tree.map(lambda x: shard_first_axis(x.reshape(blocks, length), ROWS), lanes)
    return fold(jax.vmap(collapse)(of_blocks))
