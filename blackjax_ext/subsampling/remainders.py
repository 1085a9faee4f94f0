"""Remainders of the losses of rows, and their changes on a move: some rows, or all of a group."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import num_blocks
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair
from blackjax_ext.rows.consecutive import at_chunk
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.predictors import loss_remainder
from blackjax_ext.types import Function

ROW_CHUNK = 2048  # rows at once where all are read


def steps_to(expansion: Expansion, *positions: ArrayTree) -> Array:
    """Steps from the anchor to each position, flat, shape (S, D)."""
    anchor = ravel_pytree(expansion.position)[0]
    return jnp.stack([ravel_pytree(x)[0] - anchor for x in positions])


class Read(NamedTuple):
    """Some rows: predictors at the anchor, what losses need beside, and changes on some steps."""

    eta: Any
    data: Any
    changes: Any

    def at(self, places: Array) -> "Read":
        """Some of them."""
        eta, data = jax.tree.map(lambda leaf: leaf[places], (self.eta, self.data))
        return Read(eta, data, jax.tree.map(lambda leaf: leaf[:, places], self.changes))


def read_moved_rows(expansion: Expansion, steps: Array, indices: Array) -> Read:
    """Some rows, and their changes on steps (S, D). Cost: their predictors are read S + 1 times."""
    rows = expansion.posterior
    a, unravel = ravel_pytree(expansion.position)
    eta, push, data = jax.linearize(lambda x: rows.read(unravel(x), indices), a, has_aux=True)
    return Read(eta, data, jax.vmap(push)(steps))


def remainders(expansion: Expansion, read: Read) -> Array:
    """Remainders of the losses of some rows on the steps, shape (S, n).

    Cost: a dozen evaluations of the loss for each.
    """
    rows, order = expansion.posterior, expansion.order
    of_row: Function = lambda e, t, row: loss_remainder(rows, order, e, t, row)  # noqa: E731
    on_steps: Array = jax.vmap(lambda t: jax.vmap(of_row)(read.eta, t, read.data))(read.changes)
    return on_steps


def remainder_change(expansion: Expansion, read: Read) -> Array:
    """Changes of the remainders between the two ends of a move, shape (n,)."""
    old, new = remainders(expansion, read)
    change: Array = new - old
    return change


@exact_products
def loss_remainders(expansion: Expansion, steps: Array, indices: Array) -> Array:
    """Remainders of the losses of some rows at the anchor plus each of the `steps`, shape (S, n).

    `steps` has the shape (S, D). Cost: the rows are read once, their predictors S + 1 times.
    """
    return remainders(expansion, read_moved_rows(expansion, steps, indices))


def changes_of(expansion: Expansion, steps: Array, is_read: Array) -> tuple[Array, Array]:
    """Sums of the changes of the remainders of some groups, shape (G,), and how many rows.

    No row is read of the others.
    """
    if expansion.first is None:
        return change_of_all(expansion, steps, is_read[0])[None], jnp.where(
            is_read[0], expansion.num_rows, 0
        )
    order, begins = expansion.rows, expansion.first
    assert order is not None
    sizes = jnp.where(is_read, expansion.sizes, 0)
    last = jnp.cumsum(sizes)
    num_rows, length = last[-1], min(ROW_CHUNK, expansion.num_rows)

    def body(carry: Any) -> Any:
        begin, sums = carry
        items = begin + jnp.arange(length)
        group = jnp.searchsorted(last, items, side="right")
        group = jnp.minimum(group, sizes.size - 1)
        within = items - (last - sizes)[group]
        at = jnp.clip(begins[group] + within, 0, expansion.num_rows - 1)
        changes = remainder_change(expansion, read_moved_rows(expansion, steps, order[at]))
        changes = jnp.where(items < num_rows, changes, 0.0)
        return begin + length, sums.at[group].add(changes)

    first = jnp.zeros((), num_rows.dtype), jnp.zeros(sizes.size, steps.dtype)
    sums = jax.lax.while_loop(lambda carry: carry[0] < num_rows, body, first)[1]
    return sums, num_rows


def change_of_all(expansion: Expansion, steps: Array, is_on: Array) -> Array:
    """Sum of the changes of all remainders; zero, and no row read, where `is_on` is False."""
    num_rows, blocks = expansion.num_rows, num_blocks(expansion.num_rows)
    size = num_rows // blocks
    length = min(ROW_CHUNK, size)
    num_chunks = jnp.where(is_on, -(-size // length), 0)

    def body(carry: Any) -> Any:
        i, sum = carry

        def change_of(indices: Array, is_new: Array) -> Array:
            change = remainder_change(expansion, read_moved_rows(expansion, steps, indices))
            return jnp.where(is_new, change, 0.0)

        return i + 1, add(sum, jnp.sum(at_chunk(change_of, i, length, num_rows, blocks)))

    first = jnp.zeros((), int), as_pair(jnp.zeros((), steps.dtype))
    total: Pair = jax.lax.while_loop(lambda carry: carry[0] < num_chunks, body, first)[1]
    return total.value()
