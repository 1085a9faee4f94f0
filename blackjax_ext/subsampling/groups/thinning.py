r"""Acceptance tests of moves by the rows of groups: of all groups as one, or each for itself.

The factors are those of :mod:`blackjax_ext.subsampling.thinning`, with a reach of each group: the
remainder of a row of group c changes on a move from :math:`w_c` to :math:`w_c^*` by at most
:math:`\psi_i q(w_c, w_c^*)` (of order 3, with the inequality of Cauchy and Schwarz for the way,
:math:`q = \min(|w|^4 + |w^*|^4,\; 4 |w^* - w| \int_0^1 |w_s|^3 ds)` where :math:`\int |w_s|^3 \le
(\int |w_s|^2 \int |w_s|^4)^{1/2}`), so the events of group c come at the rate :math:`\Lambda_c =
\Psi_c q_c`. Where an end of the move is beyond the radius for a group, or where :math:`\Lambda_c`
exceeds its number of rows, all its rows are read, and the sum of their changes joins the ordinary
ratio. Which of the two holds for a group depends on the two ends in a symmetric way, so the
acceptance

.. math::
    \min\Big(1, e^{-\Delta S - \sum_{c\,\text{far}} \sum_{i \in c} \Delta r_i}\Big)
    \prod_{c\,\text{near}} \prod_{i \in c} \min(1, e^{-\Delta r_i})

keeps the ratio of every pair of ends, as there.

*Which rows are worth a look.* An event vetoes if a uniform number is below
:math:`\Delta r_i / (\psi_i q)`. The predictor of a row changes less than the bound for any row
allows, typically by :math:`\rho_i` instead of :math:`\rho_i |w_c|`. Where rows have one predictor,
its change alone bounds :math:`\Delta r_i`, and most events are settled without a loss.

*Which group.* Rates change from step to step, so there is no table of them. They are rounded up to
multiples of a power of two, whose cumulative sums are whole numbers: a uniform whole number below
the last finds its group with exactly the rate that the veto reckons with.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.rows.shuffles import times_fraction
from blackjax_ext.subsampling.groups.expansion import GroupedExpansion
from blackjax_ext.subsampling.predictors import loss_remainder

__all__ = ["Outcome", "Reaches", "expected_group_rows", "reaches_of", "run_test"]

GROUP_LANES = 256  # events at once
MAX_ROWS_EVALUATED = 32  # of these, whose losses are evaluated
GROUP_PIECE = 200.0  # events expected of a piece of the time, so that the lanes rarely run out
GROUP_CHUNK = 1024  # rows at once of groups that are read whole
TINY = 1e-30
BOUND_MARGIN = 1.001  # of a bound, for rounding
RATE_STEPS = 2**29  # of the rates: their sum stays below 2^30
MAX_GROUP_PASSES = (
    1.0  # expected events of a group, in passes over its rows, beyond which all are read
)


class Reaches(NamedTuple):
    """Reach of a move in each group.

    Attributes
    ----------
    reach
        q, shape (G,).
    is_far
        Whether all rows of a group are read, shape (G,).
    """

    reach: Array
    is_far: Array


def reaches_of(expansion: GroupedExpansion, old: Array, new: Array, inner: Array) -> Reaches:
    r"""Reaches of moves between :math:`w_c` of squared lengths `old` and `new`, shapes (G,).

    `inner` are the products of the two ends, shape (G,).
    """
    length = jnp.sqrt(jnp.maximum(old - 2.0 * inner + new, 0.0))
    if expansion.order == 2:
        apart, way = old**1.5 + new**1.5, length * (old + inner + new)
    else:
        fourth = 0.2 * (old**2 + new**2 + inner * (old + new)) + (2.0 * inner**2 + old * new) / 15.0
        second = (old + inner + new) / 3.0
        apart, way = old**2 + new**2, 4.0 * length * jnp.sqrt(jnp.maximum(second * fourth, 0.0))
    q = jnp.minimum(apart, way)
    is_cheap = expansion.total * q <= MAX_GROUP_PASSES * expansion.sizes  # not if NaN
    is_within = jnp.maximum(old, new) <= expansion.radius**2
    return Reaches(q, ~(is_cheap & is_within) & (expansion.total > 0))


def expected_group_rows(
    rng_key: PRNGKey, expansion: GroupedExpansion, num_moves: int = 32
) -> Array:
    """Rows that a test of a shared move reads on average, between draws of u given one v.

    The draws are those of the normal approximation. No row is read.
    """
    num_groups, width, size = expansion.frame.shear.shape
    dtype = expansion.frame.root.dtype

    def rows_of(key: PRNGKey) -> Array:
        key_u, key_v = jax.random.split(key)
        u = jax.random.normal(key_u, (2, size), dtype)
        of_groups = jnp.sum(jax.random.normal(key_v, (num_groups, width), dtype) ** 2, axis=1)
        squares = (of_groups + u[i] @ u[j] for i, j in ((0, 0), (1, 1), (0, 1)))
        reaches = reaches_of(expansion, *squares)
        events = expansion.total * reaches.reach
        return jnp.sum(jnp.where(reaches.is_far, expansion.sizes.astype(dtype), events))

    return jnp.mean(jax.vmap(rows_of)(jax.random.split(rng_key, num_moves)))


class Outcome(NamedTuple):
    """Outcome of the rows' test of a move.

    Attributes
    ----------
    change
        Sum of the changes of the remainders of groups that were read whole, shape (G,).
    is_vetoed
        Whether an event of a group has vetoed, shape (G,).
    survival
        Probability that none of the events of a group vetoes, given them, shape (G,).
    num_rows
        Rows that were read.
    """

    change: Array
    is_vetoed: Array
    survival: Array
    num_rows: Array


def run_test(
    rng_key: PRNGKey,
    expansion: GroupedExpansion,
    steps: Array,
    reaches: Reaches,
    is_on: Array,
    *,
    is_joint: bool,
) -> Outcome:
    """Test a move by its rows; no row is read where `is_on` is False.

    `steps` are those from the anchor to both ends, flat, shape (2, D). With `is_joint` one veto is
    enough, and events end with it; the survival of the groups is then that of the last round.
    """
    change, num_far = changes_of(expansion, steps, reaches.is_far & is_on)
    rate = jnp.where(reaches.is_far | ~is_on, 0.0, expansion.total * reaches.reach)
    events = thin_groups(rng_key, expansion, steps, rate, reaches.reach, is_joint=is_joint)
    return Outcome(change, events.is_vetoed, events.survival, events.num_rows + num_far)


class Read(NamedTuple):
    """Some rows, with how their predictors change to both ends of a move.

    Attributes
    ----------
    eta, data
        Predictors at the anchor, and what the losses need beside.
    changes
        As `eta`, leading with the two ends.
    """

    eta: Any
    data: Any
    changes: Any


def read_group_rows(expansion: GroupedExpansion, steps: Array, indices: Array) -> Read:
    """Some rows. Cost: they are read once, their predictors three times."""
    rows = expansion.posterior().rows
    a, unravel = ravel_pytree(expansion.position)
    eta, push, data = jax.linearize(lambda x: rows.read(unravel(x), indices), a, has_aux=True)
    return Read(eta, data, jax.vmap(push)(steps))


def remainder_change(expansion: GroupedExpansion, read: Read) -> Array:
    """Changes of the remainders of the losses of some rows, shape (n,).

    Cost: two dozen evaluations of the loss for each row.
    """
    rows, order = expansion.posterior().rows, expansion.order

    def at(changes: Any) -> Array:
        one: Callable[..., Array] = jax.vmap(
            lambda e, t, row: loss_remainder(rows, order, e, t, row)
        )
        return one(read.eta, changes, read.data)

    old, new = jax.vmap(at)(read.changes)
    change: Array = new - old
    return change


def most(expansion: GroupedExpansion, rows: Read, at: Array) -> Array:
    r"""A bound of these changes that costs no loss, shape (n,), of rows at these places in order.

    It is the bound :math:`\psi_i q` with the change of the row's own predictor in the place of
    :math:`\rho_i |w_c|`: rows with one predictor have it, it is infinite for others.
    """
    steepness = expansion.steepness[at]
    old, new = (leaf.reshape(at.size, -1)[:, 0] for leaf in jax.tree.leaves(rows.changes)[0])
    old, new, order = steepness * old, steepness * new, expansion.order
    # the integral of |t|^k along the way
    apart = (jnp.abs(old) ** (order + 1) + jnp.abs(new) ** (order + 1)) / math.factorial(order + 1)
    if order == 2:
        way = (old * old + old * new + new * new) / 6.0
    else:
        way = jnp.abs(old + new) * (old * old + new * new) / 24.0
    q = jnp.where(old * new < 0, apart, jnp.minimum(apart, jnp.abs(new - old) * way))
    return jnp.where(jnp.isfinite(steepness), BOUND_MARGIN * q, jnp.inf)


def changes_of(expansion: GroupedExpansion, steps: Array, is_read: Array) -> tuple[Array, Array]:
    """Sums of the changes of the remainders of some groups, shape (G,), and how many rows."""
    sizes = jnp.where(is_read, expansion.sizes, 0)
    last = jnp.cumsum(sizes)
    num_rows, length = last[-1], min(GROUP_CHUNK, expansion.num_rows)

    def body(carry: Any) -> Any:
        begin, sums = carry
        items = begin + jnp.arange(length)
        group = jnp.searchsorted(last, items, side="right")
        group = jnp.minimum(group, sizes.size - 1)
        within = items - (last - sizes)[group]
        at = jnp.clip(expansion.first[group] + within, 0, expansion.num_rows - 1)
        changes = remainder_change(expansion, read_group_rows(expansion, steps, expansion.rows[at]))
        changes = jnp.where(items < num_rows, changes, 0.0)
        return begin + length, sums.at[group].add(changes)

    first = jnp.zeros((), num_rows.dtype), jnp.zeros(sizes.size, steps.dtype)
    sums = jax.lax.while_loop(lambda carry: carry[0] < num_rows, body, first)[1]
    return sums, num_rows


class GroupEvents(NamedTuple):
    """Poisson processes of all groups while they run.

    Attributes
    ----------
    piece, time
        Piece of the time that they are in, and the time within it in expected events.
    is_vetoed, survival
        As of :class:`Outcome`.
    num_rows
        Events so far.
    rng_key
        Key of what comes next.
    """

    piece: Array
    time: Array
    is_vetoed: Array
    survival: Array
    num_rows: Array
    rng_key: PRNGKey


def thin_groups(
    rng_key: PRNGKey,
    expansion: GroupedExpansion,
    steps: Array,
    rate: Array,
    reach: Array,
    *,
    is_joint: bool,
) -> GroupEvents:
    """Events of processes of the rates (G,), until the time is over, or one vetoes a joint move."""
    unit = unit_of(rate)
    counts = jnp.where(rate > 0, jnp.ceil(rate / unit).astype(jnp.int32), 0)
    last = jnp.cumsum(counts)
    expected = last[-1] * unit
    num_pieces = jnp.ceil(expected / GROUP_PIECE).astype(int)
    length = expected / jnp.maximum(num_pieces, 1)

    def is_going(events: GroupEvents) -> Array:
        is_over = events.piece >= num_pieces
        return ~is_over & ~(is_joint & jnp.any(events.is_vetoed))

    def body(events: GroupEvents) -> GroupEvents:
        key_next, key_rows, key_uniform = jax.random.split(events.rng_key, 3)
        of_gaps, of_vetoes = jax.random.uniform(key_uniform, (2, GROUP_LANES), rate.dtype)
        times = events.time + jnp.cumsum(-jnp.log1p(-of_gaps))
        group, at, of_group = draw_group_rows(key_rows, expansion, last)
        # the rate of a row's events, of which the shares are those of whole numbers
        row_rate = jnp.maximum(of_group * counts[group] * unit, TINY)
        rows = read_group_rows(expansion, steps, expansion.rows[at])
        likely = jnp.minimum(most(expansion, rows, at) / row_rate, 1.0)
        is_likely = (times < length) & (of_vetoes < likely)

        # what comes after as many likely vetoes as there are places is drawn anew, as time has no
        # memory; so is what comes after the end of a piece
        rank = jnp.cumsum(is_likely)
        is_done = rank <= MAX_ROWS_EVALUATED
        num_done = jnp.sum(is_done)
        until = times[num_done - 1]
        is_over = until >= length
        place = jnp.nonzero(is_likely & is_done, size=MAX_ROWS_EVALUATED, fill_value=GROUP_LANES)[0]
        is_placed, place = place < GROUP_LANES, jnp.minimum(place, GROUP_LANES - 1)
        of_place = jax.tree.map(lambda leaf: leaf[place], rows._replace(changes=None))
        of_place = of_place._replace(
            changes=jax.tree.map(lambda leaf: leaf[:, place], rows.changes)
        )
        veto = jnp.where(is_placed, remainder_change(expansion, of_place) / row_rate[place], 0.0)
        is_veto = of_vetoes[place] < veto
        # given that it was likely; log(0) would spoil what is never accepted anyhow
        share = jnp.clip(veto / jnp.maximum(likely[place], TINY), 0.0, 1.0)
        spared = jnp.maximum(1.0 - share, TINY)
        is_last = is_over & (events.piece + 1 == num_pieces)
        kept = jnp.full_like(rate, is_last) if is_joint else events.survival
        return GroupEvents(
            events.piece + is_over,
            jnp.where(is_over, 0.0, until),
            events.is_vetoed.at[group[place]].max(is_veto),
            kept.at[group[place]].multiply(spared),
            events.num_rows + jnp.sum(is_done & (times < length)),
            key_next,
        )

    zero = jnp.zeros((), int)
    first = GroupEvents(
        zero,
        jnp.zeros((), rate.dtype),
        jnp.zeros(rate.shape, bool),
        jnp.ones_like(rate),
        zero,
        rng_key,
    )
    return jax.lax.while_loop(is_going, body, first)


def unit_of(rate: Array) -> Array:
    """A power of two in which rates are whole numbers, rounded up, with a sum below 2^30."""
    least = jnp.maximum(jnp.sum(rate), TINY) / (RATE_STEPS - rate.size)
    return jnp.exp2(jnp.ceil(jnp.log2(least)) + 1.0)


def draw_group_rows(
    rng_key: PRNGKey, expansion: GroupedExpansion, last: Array
) -> tuple[Array, Array, Array]:
    """Groups by their rates and rows by their bounds, with a row's share of its group's rate.

    `last` are the cumulative sums of the rates, whole numbers. Rows are in the order of groups.
    """
    *words, high, low, side = jax.random.bits(rng_key, (5, GROUP_LANES), jnp.uint32)
    group = jnp.searchsorted(last, times_fraction(jnp.stack(words), last[-1]), side="right")
    group = jnp.minimum(group, last.size - 1)
    begin = expansion.first[group]
    column = begin + times_fraction(jnp.stack([high, low]), expansion.first[group + 1] - begin)
    column = jnp.minimum(column, expansion.num_rows - 1)  # where there is no event at all
    is_alias = side // 2**9 >= expansion.threshold[column] * 2.0**23
    at = jnp.where(is_alias, begin + expansion.alias[column], column)
    share = expansion.bound[at] / jnp.maximum(expansion.total[group], TINY)
    return group, at, share
