r"""Functions of row numbers, evaluated at rows in order.

A function that indexes its data with the numbers of rows gathers them one by one, which takes a
processor several times as long as what most likelihoods then do with them. A pass over all data
asks for consecutive rows, which are a slice. :func:`at_consecutive` traces the function and puts
slices where it gathers the rows it was given.

*Blocks.* Where devices hold one block of the rows each, a chunk has consecutive rows of every
block: an array of N rows is read as one of blocks, sliced along their rows, which no device has to
ask another one for.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Literal

from blackjax_ext.equations import outputs_of, read_program
from blackjax_ext.meshes import ROWS, shard_first_axis


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
    >>> from blackjax_ext.rows.consecutive import at_consecutive
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
