"""Passes over all rows in chunks: sums with their rounding errors, maxima, values of each row."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.meshes import ROWS, num_blocks, shard_first_axis
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair
from blackjax_ext.rows.consecutive import at_chunk

MAX_CHUNK = 8192  # rows at once


class Largest(NamedTuple):
    """A term of which a pass keeps the largest of all chunks, not their sum; at least zero."""

    value: Array


def over_chunks(
    visit: Callable[[Array, Array], tuple[Any, Any]], num_rows: int, length: int
) -> tuple[Any, Any]:
    """``visit(indices, is_new) -> (terms, values)`` over all rows, `length` of a device at once.

    Terms are summed over the chunks as pairs, with their rounding errors, but for those that are
    :class:`Largest`; values, which lead with the rows of a chunk, are put together in order, in one
    array of all rows.
    """
    visit = jax.jit(visit)  # which is traced once, for its shapes and for its chunk
    blocks = num_blocks(num_rows)
    size = num_rows // blocks
    length = min(length, size)
    if blocks > 1:  # as many rows as there are would not be read by slices
        length = min(length, -(-size // 2))

    def body(carry: Any, i: Array) -> tuple[Any, None]:
        sums, kept = carry
        terms, values = at_chunk(visit, i, length, num_rows, blocks)
        first = jnp.minimum(i * length, size - length)
        put = partial(with_chunk, first=first, blocks=blocks)
        return (merged(sums, terms), jax.tree.map(put, kept, values)), None

    num_chunks = -(-size // length)
    at_once = length * blocks
    shapes, values = jax.eval_shape(visit, jnp.arange(at_once), jnp.ones(at_once, bool))
    kept = jax.tree.map(lambda v: jnp.zeros((blocks, size, *v.shape[1:]), v.dtype), values)
    kept = jax.tree.map(lambda v: shard_first_axis(v, ROWS), kept)
    first = jax.tree.map(empty_term, shapes, is_leaf=is_largest), kept
    sums, kept = jax.lax.scan(body, first, jnp.arange(num_chunks))[0]
    return sums, jax.tree.map(lambda v: v.reshape(num_rows, *v.shape[2:]), kept)


def with_chunk(all_rows: Array, some: Array, first: Array, blocks: int) -> Array:
    """Values of all rows of each block with those of a chunk of it, in the same memory."""
    some = some.reshape(blocks, -1, *some.shape[1:])
    return shard_first_axis(
        jax.lax.dynamic_update_slice_in_dim(all_rows, some, first, axis=1), ROWS
    )


def empty_term(term: Any) -> Any:
    """Zeros of the shape of a term, before the first chunk."""
    zero = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), term)
    return zero if is_largest(term) else as_pair(zero)


def merged(sums: Any, terms: Any) -> Any:
    """Terms of the chunks so far merged with those of one more."""

    def both(sum: Any, term: Any) -> Any:
        return Largest(jnp.maximum(*sum, *term)) if is_largest(sum) else add(sum, term)

    return jax.tree.map(both, sums, terms, is_leaf=lambda leaf: isinstance(leaf, (Pair, Largest)))


def is_largest(leaf: Any) -> bool:
    """Whether a leaf is a term of which the largest counts."""
    return isinstance(leaf, Largest)


def new_rows_only(is_new: Array, values: Array) -> Array:
    """`values` of rows, zero for those that have been counted."""
    return jnp.where(is_new.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)
