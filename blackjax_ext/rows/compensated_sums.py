r"""Sums over many rows, in chunks that are read in order, with the rounding errors kept.

The energy of a million rows is of the order of 1e6, where neighbours in float32 are 0.06 apart: the
difference of two such energies would be noise. So a sum is kept as a pair :math:`h + l`, each
addition giving its rounding error exactly (Knuth), and the difference of two sums is that of the
high parts plus that of the low parts.

*Rows in order.* A function that indexes its data with the numbers of rows gathers them one by one,
which takes a processor several times as long as what most likelihoods then do with them. A pass
over all data asks for consecutive rows, which are a slice. ``at_consecutive`` traces the
function and puts slices where it gathers the rows it was given.

*Blocks.* Where devices hold one block of the rows each, a chunk has consecutive rows of every
block: an array of N rows is read as one of blocks, sliced along their rows, which no device has to
ask another one for.

Reference: D. E. Knuth 1998, The Art of Computer Programming 2, section 4.2.2; T. J. Dekker 1971, A
floating-point technique for extending the available precision.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Literal
from jax.typing import DTypeLike

from blackjax_ext.equations import bytes_of, outputs_of, read_program
from blackjax_ext.meshes import ROWS, num_blocks, shard_first_axis


class Known(Enum):
    """Facts about a value in the program.

    ROWS are the rows, shape (n, 1, ..., 1); NEVER is false for each of them.
    """

    ROWS = auto()
    NEVER = auto()


def at_consecutive(
    function: Callable[[Array], Any],
    first: Array | int,
    length: int,
    num_rows: int,
    num_blocks: int = 1,
) -> Any:
    """``function(first + jnp.arange(length))``, by slices of what has at least `num_rows` rows.

    Any other use of the row numbers, or of an array that is shorter, stays as it is.

    Parameters
    ----------
    function
        Function of row numbers, shape (n,), to any pytree; one that jax can trace.
    first
        First row of a block, may be traced; ``first + length`` must not exceed its rows.
    length
        Number of rows of a block, so that n is as many of each block.
    num_rows
        Number of all rows, N.
    num_blocks
        Number of blocks of N / num_blocks consecutive rows, from each of which rows are taken.

    Returns
    -------
    What `function` returns.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from blackjax_ext.rows.compensated_sums import at_consecutive
    >>> data = jnp.arange(100.0) ** 2
    >>> at_consecutive(lambda rows: data[rows] + 1, 10, 3, 100).tolist()
    [101.0, 122.0, 145.0]
    """
    rows = first + jnp.arange(length)
    if num_blocks > 1:
        rows = jnp.add.outer(jnp.arange(num_blocks) * (num_rows // num_blocks), rows).ravel()
    closed, shape = jax.make_jaxpr(function, return_shape=True)(rows)
    length = rows.shape[0] // num_blocks

    def sliced(operand: Array) -> Array:
        if num_blocks == 1:
            return jax.lax.dynamic_slice_in_dim(operand, first, length)
        if operand.shape[0] > num_rows:
            return operand[rows]
        blocks = shard_first_axis(operand.reshape(num_blocks, -1, *operand.shape[1:]), ROWS)
        some = jax.lax.dynamic_slice_in_dim(blocks, first, length, axis=1)
        return some.reshape(-1, *operand.shape[1:])

    # rows that a function maps over are slices of blocks alone: on one device a gather rounds as
    # it always has
    most_axes = 1 if num_blocks == 1 else 8  # of rows, (n, 1, ..., 1), as jax.vmap makes them
    outputs = read_program(
        closed,
        [(rows, Known.ROWS)],
        partial(results_of, sliced=sliced, num_rows=num_rows, most_axes=most_axes),
        lambda _, number: (number, None),
        is_opened=lambda arguments: any(fact for _, fact in arguments),
        reads_all=True,
    )
    return jax.tree.unflatten(jax.tree.structure(shape), [result for result, _ in outputs])


def at_chunk(
    visit: Callable[[Array, Array], Any],
    i: Array | int,
    length: int,
    num_rows: int,
    num_blocks: int = 1,
) -> Any:
    """``visit(rows, is_new)`` at the i-th chunk, of `length` rows of each block of all rows.

    The last chunk begins among rows that have been counted, for which `is_new` is False.
    """
    size = num_rows // num_blocks
    first = jnp.minimum(i * length, size - length)

    def at(rows: Array) -> Any:
        place = rows if num_blocks == 1 else rows % size
        return visit(rows, place >= i * length)

    return at_consecutive(at, first, length, num_rows, num_blocks)


def results_of(
    equation: Any,
    arguments: list[tuple[Any, Known | None]],
    sliced: Callable[[Array], Array],
    num_rows: int,
    most_axes: int,
) -> list[tuple[Any, Known | None]]:
    """Results of an equation, and what is known of each of them."""
    values, known = [value for value, _ in arguments], [fact for _, fact in arguments]
    if takes_rows(equation, known, num_rows, most_axes):
        return [(sliced(values[0]).reshape(atom_shape(equation.outvars[0])), None)]
    results = outputs_of(equation, *values)
    if len(results) == 1:
        return [(results[0], known_result(equation, known))]
    return [(result, None) for result in results]


def takes_rows(equation: Any, known: list[Known | None], num_rows: int, most_axes: int) -> bool:
    """Whether an equation is ``operand[rows]`` with an operand that has all of them.

    The rows have at most that many axes.
    """
    if equation.primitive.name != "gather" or known[1] is not Known.ROWS:
        return False
    shape, numbers = atom_shape(equation.invars[0]), equation.params["dimension_numbers"]
    # the last axis of the indices is that of the one number which each of them is
    num_axes = len(atom_shape(equation.invars[1])) - 1
    return (
        0 < num_axes <= most_axes
        and shape[0] >= num_rows
        and numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
        and numbers.offset_dims == tuple(range(num_axes, num_axes + len(shape) - 1))
        and not numbers.operand_batching_dims
        and equation.params["slice_sizes"] == (1, *shape[1:])
    )


def known_result(equation: Any, known: list[Known | None]) -> Known | None:
    """Facts about the one result of an equation, from those about its arguments.

    Only the steps by which jax turns rows into indices tell anything: these count negative rows
    from the end, which no row here is, and add an axis.
    """
    name, shape = equation.primitive.name, atom_shape(equation.outvars[0])
    match name, known:
        case "lt", [Known.ROWS, None] if is_zero(equation.invars[1]):
            return Known.NEVER
        case "select_n", [Known.NEVER, Known.ROWS, _]:
            return Known.ROWS
        case "convert_element_type", [Known.ROWS]:
            new = equation.params["new_dtype"]
            is_wide = jnp.issubdtype(new, jnp.integer) and new.itemsize >= 4
            return Known.ROWS if is_wide else None
        case "broadcast_in_dim" | "reshape" | "squeeze", [Known.ROWS, *_]:
            # not one row that is repeated
            num = atom_shape(equation.invars[0])[0]
            return Known.ROWS if shape == (num, *[1] * (len(shape) - 1)) else None
    return None


def atom_shape(atom: Any) -> tuple[int, ...]:
    """Shape of a value of the program."""
    shape: tuple[int, ...] = atom.aval.shape
    return shape


def is_zero(atom: Any) -> bool:
    """Whether an argument is the number zero."""
    return isinstance(atom, Literal) and jnp.shape(atom.val) == () and atom.val == 0


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
