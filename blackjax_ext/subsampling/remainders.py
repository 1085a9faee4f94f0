r"""Remainders of the losses of rows: on moves, their bounds, and in the tails of the expansion.

Two bounds of the change of a remainder hold, with the notation of
:mod:`blackjax_ext.subsampling.predictors`, and q is the less of them:
:math:`|r_i(x_*) - r_i(x)| \le \psi_i q`. Each remainder is bounded by itself,
:math:`|w|^{k+1} + |w_*|^{k+1}`. And along the line from w to :math:`w_*`, where
:math:`|\nabla r_i \cdot t| \le \frac{M_i}{k!} |t_i|^k |t|`, the change is at most
:math:`(k+1) \psi_i |w_* - w| \int_0^1 |w_s|^k ds`, which is small for short moves:

.. math::
    q_2 = |w_* - w| \left( |w|^2 + w \cdot w_* + |w_*|^2 \right),

which is symmetric in the ends of the move. Of order 3, with the inequality of Cauchy and Schwarz
for the way, :math:`q_3 = 4 |w_* - w| \int_0^1 |w_s|^3 ds` where :math:`\int |w_s|^3 \le
(\int |w_s|^2 \int |w_s|^4)^{1/2}`. Rows of group c have a reach :math:`q_c` of their own, of
:math:`w_c` and :math:`w_c^*`; rows without groups are one group.

*Far from the anchor* bounds do not hold, where an end has :math:`|w| > R`, or more events than
rows would come, :math:`\Psi q > N`. (The way between two ends is within R if they are.) There all
rows of the group are read once.

*Tails.* Trajectories of :func:`blackjax_ext.subsampling.row_tests.expanded_minibatch` without
minibatches follow the expansion of the rows at the anchor, which is quadratic. Where
rows say little, as ten of them do, or one event among a thousand, the likelihood flattens away from
the mode: the posterior has more mass in a tail than such trajectories propose. The test is exact,
and the chain leaves the posterior invariant; it visits that tail so rarely that a run may not.

With the remainders :math:`r_i` of the energy, the log density at w is above that of the expansion
by :math:`-\sum r_i(w)`. :func:`tail_gap` looks at four standard deviations along the coordinates of
the metric, and along the predictors of rows that matter; its greatest value is the logarithm of how
often too seldom such a place is proposed.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import num_blocks, on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, at_chunk
from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.passes import jacobians
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


MAX_PASSES = 1.0  # expected events, in passes over the rows, beyond which all rows are read


class MoveEnds(NamedTuple):
    """Ends of a move, as the rows of each group see them, shapes (G,).

    Squared lengths of w, the product of both w, and the squared length of the move.
    """

    old: Array
    new: Array
    inner: Array
    step: Array

    @classmethod
    def of(
        cls, expansion: Expansion, old: tuple[Array, Array], new: tuple[Array, Array]
    ) -> "MoveEnds":
        """Those of a move between coordinates u (p,) and v (G, d)."""
        (u, v), (new_u, new_v) = ((u[: expansion.num_seen], v) for u, v in (old, new))

        def product(a: Array, b: Array, c: Array, d: Array) -> Array:
            return a @ b + jnp.sum(c * d, axis=1)

        du, dv = new_u - u, new_v - v  # the difference of squares has no digits
        return cls(
            product(u, u, v, v),
            product(new_u, new_u, new_v, new_v),
            product(u, new_u, v, new_v),
            product(du, du, dv, dv),
        )


class Reaches(NamedTuple):
    """Reach of a move in each group, and whether all of its rows are read, shapes (G,).

    With the reach q the remainder of row i changes by at most psi_i q.
    """

    reach: Array
    is_far: Array


def reaches_of(expansion: Expansion, ends: MoveEnds) -> Reaches:
    """Reaches of a move, and whether bounds hold on its way and are worth their rows."""
    old, new, inner, step = ends
    length, order = jnp.sqrt(step), expansion.order
    between = old + inner + new
    apart = old ** (0.5 * (order + 1)) + new ** (0.5 * (order + 1))
    if order == 2:
        way = length * between
    else:
        fourth = 0.2 * (old**2 + new**2 + inner * (old + new)) + (2.0 * inner**2 + old * new) / 15.0
        way = 4.0 * length * jnp.sqrt(jnp.maximum(between / 3.0 * fourth, 0.0))
    q = jnp.minimum(apart, way)
    is_cheap = expansion.totals * q <= MAX_PASSES * expansion.sizes  # not if NaN
    is_within = jnp.maximum(old, new) <= expansion.radius**2
    return Reaches(q, ~(is_cheap & is_within) & (expansion.totals > 0))


def expected_rows(rng_key: PRNGKey, expansion: Expansion, num_moves: int = 256) -> Array:
    r"""Rows that a test reads on average, of moves between independent draws around the mode.

    Parameters
    ----------
    rng_key
        Key of the draws.
    expansion
        Of :func:`blackjax_ext.potentials.expand`, or of `expand_groups`: then of moves of what is
        shared, given the groups.
    num_moves
        Number of pairs of draws.

    Returns
    -------
    The mean of :math:`\min(\Psi q, N)`, a scalar; the draws are those of the normal approximation.
    A trajectory of length 2 is about as long. No row is read.

    Examples
    --------
    >>> import jax
    >>> from blackjax_ext import families, potentials
    >>> x = jax.random.normal(jax.random.key(0), (100_000, 3))
    >>> y = jax.random.bernoulli(jax.random.key(1), jax.nn.sigmoid(x[:, 0]))
    >>> rows = potentials.linear_predictor(lambda z: -z @ z, families.bernoulli(), (x, y))
    >>> expansion = potentials.expand(rows, x[0])
    >>> bool(potentials.expected_rows(jax.random.key(2), expansion) < 1)
    True
    """
    num_groups, width, size = expansion.frame.shear.shape
    dtype = expansion.frame.root.dtype

    def rows_of(key: PRNGKey) -> Array:
        key_u, key_v = jax.random.split(key)
        old, new = jax.random.normal(key_u, (2, size), dtype)
        v = jax.random.normal(key_v, (num_groups, width), dtype)
        reaches = reaches_of(expansion, MoveEnds.of(expansion, (old, v), (new, v)))
        events = expansion.totals * reaches.reach
        return jnp.sum(jnp.where(reaches.is_far, expansion.sizes.astype(dtype), events))

    return jnp.mean(jax.lax.map(rows_of, jax.random.split(rng_key, num_moves)))


def change_bounds(expansion: Expansion, changes: Any, at: Array) -> Array:
    r"""Bounds of changes of remainders that cost no loss, shape (n,), of rows `at` these places.

    It is the bound :math:`\psi_i q` with the change of the row's own predictor in the place of
    :math:`\rho_i |w_c|`, `changes` being those on both steps: rows with one predictor have it, it
    is infinite for others.
    """
    assert expansion.steepness is not None
    steepness = expansion.steepness[at]
    old, new = (leaf.reshape(at.size, -1)[:, 0] for leaf in jax.tree.leaves(changes)[0])
    old, new, order = steepness * old, steepness * new, expansion.order
    # the integral of |t|^k along the way
    apart = (jnp.abs(old) ** (order + 1) + jnp.abs(new) ** (order + 1)) / math.factorial(order + 1)
    if order == 2:
        way = (old * old + old * new + new * new) / 6.0
    else:
        way = jnp.abs(old + new) * (old * old + new * new) / 24.0
    q = jnp.where(old * new < 0, apart, jnp.minimum(apart, jnp.abs(new - old) * way))
    return jnp.where(jnp.isfinite(steepness), 1.001 * q, jnp.inf)  # of a bound, for rounding


DISTANCE = 4.0  # standard deviations
MAX_GAP = 3.0  # a gap from which on tails are missed
# rows that tell; where there are more, these are drawn in proportion to bounds
NUM_ROWS_COMPARED = 4096


def may_differ(expansion: Expansion) -> bool:
    """Whether the bounds of the rows leave room for a gap of `MAX_GAP`. Cost: nothing."""
    most = float(on_host(expansion.totals).sum()) * DISTANCE ** (expansion.order + 1)
    return not most <= MAX_GAP  # not if NaN either


def tail_gap(rng_key: PRNGKey, expansion: Expansion) -> Array:
    """How far the log density is above the expansion at the worst of some places, a scalar.

    Of more than 4,096 rows it is estimated, less two standard errors. Cost: that many rows, their
    remainders at two places for each coordinate and each predictor of sixteen rows.
    """
    key_rows, key_seen = jax.random.split(rng_key)
    directions = jnp.concatenate(
        [jnp.eye(len(expansion.frame.root)), seen_by_rows(key_seen, expansion)]
    )
    ends = DISTANCE * jnp.concatenate([directions, -directions])
    assert expansion.metric is not None
    steps = jax.vmap(expansion.metric.inverse_sqrt_times)(ends)
    if expansion.num_rows <= NUM_ROWS_COMPARED:
        rows = jnp.arange(expansion.num_rows)
        return jnp.max(-jnp.sum(loss_remainders(expansion, steps, rows), axis=1))
    rows = alias_table.draw(key_rows, expansion.table, (NUM_ROWS_COMPARED,))
    weight = expansion.total / expansion.bound[rows]
    terms = -weight * loss_remainders(expansion, steps, rows)
    error = jnp.std(terms, axis=1) / np.sqrt(NUM_ROWS_COMPARED)
    return jnp.max(jnp.mean(terms, axis=1) - 2.0 * error)


def seen_by_rows(rng_key: PRNGKey, expansion: Expansion) -> Array:
    """Unit vectors along the predictors of rows drawn in proportion to their bounds, (m, D)."""
    num_seen = 16
    if expansion.num_rows <= num_seen:
        rows = jnp.arange(expansion.num_rows)
    else:
        rows = alias_table.draw(rng_key, expansion.table, (num_seen,))
    matrix = jacobians(expansion.grouped, expansion.position, rows) @ expansion.frame.root
    along: Array = matrix.reshape(-1, matrix.shape[-1])
    length = jnp.linalg.norm(along, axis=1, keepdims=True)
    return along / jnp.where(length > 0, length, 1.0)
