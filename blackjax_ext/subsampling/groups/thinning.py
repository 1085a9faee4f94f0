r"""Acceptance tests of moves by the rows of groups: of all groups as one, or each for itself.

The factors are those of :mod:`blackjax_ext.subsampling.thinning`, with a reach of each group: the
remainder of a row of group c changes on a move from :math:`w_c` to :math:`w_c^*` by at most
:math:`\psi_i q(w_c, w_c^*)`, so the events of group c come at the rate
:math:`\Lambda_c = \Psi_c q_c`. Where an end of the move is beyond the radius for a group, or where
:math:`\Lambda_c` exceeds its number of rows, all its rows are read, and the sum of their changes
joins the ordinary ratio. Which of the two holds for a group depends on the two ends in a symmetric
way, so the acceptance

.. math::
    \min\Big(1, e^{-\Delta S - \sum_{c\,\text{far}} \sum_{i \in c} \Delta r_i}\Big)
    \prod_{c\,\text{near}} \prod_{i \in c} \min(1, e^{-\Delta r_i})

keeps the ratio of every pair of ends, as there.

*Which group.* Rates change from step to step, so there is no table of them. They are rounded up to
multiples of a power of two, whose cumulative sums are whole numbers: a uniform whole number below
the last finds its group with exactly the rate that the veto reckons with.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.rows.shuffles import scaled
from blackjax_ext.subsampling.groups.expansion import GroupedExpansion
from blackjax_ext.subsampling.predictors import loss_remainder

__all__ = ["Outcome", "Reaches", "outcome_of", "reaches_of"]

LANES = 128  # events at once
PIECE = 96.0  # events expected of a piece of the time, so that the lanes rarely run out
CHUNK = 1024  # rows at once of groups that are read whole
STEPS = 2**29  # of the rates: their sum stays below 2^30
MAX_PASSES = 1.0  # expected events of a group, in passes over its rows, beyond which all are read


class Reaches(NamedTuple):
    """How far a move goes, for each group.

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
    r"""Of moves between :math:`w_c` of squared lengths `old` and `new`, shapes (G,).

    `inner` are the products of the two ends, shape (G,).
    """
    apart = old**1.5 + new**1.5
    way = jnp.sqrt(jnp.maximum(old - 2.0 * inner + new, 0.0)) * (old + inner + new)
    q = jnp.minimum(apart, way)
    is_cheap = expansion.total * q <= MAX_PASSES * expansion.sizes  # not if NaN
    is_within = jnp.maximum(old, new) <= expansion.radius**2
    return Reaches(q, ~(is_cheap & is_within) & (expansion.total > 0))


class Outcome(NamedTuple):
    """What the rows say of a move.

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


def outcome_of(
    rng_key: PRNGKey,
    expansion: GroupedExpansion,
    steps: Array,
    reaches: Reaches,
    is_on: Array,
    *,
    is_joint: bool,
) -> Outcome:
    """What the rows say; nothing where `is_on` is False.

    `steps` are those from the anchor to both ends, flat, shape (2, D). With `is_joint` one veto is
    enough, and events end with it; the survival of the groups is then that of the last round.
    """
    change, num_far = changes_of(expansion, steps, reaches.is_far & is_on)
    rate = jnp.where(reaches.is_far | ~is_on, 0.0, expansion.total * reaches.reach)
    events = thin(rng_key, expansion, steps, rate, reaches.reach, is_joint=is_joint)
    return Outcome(change, events.is_vetoed, events.survival, events.num_rows + num_far)


def remainders(expansion: GroupedExpansion, steps: Array, indices: Array) -> Array:
    """Remainders of the losses of some rows after each of the steps, shape (2, n)."""
    rows = expansion.posterior().rows
    a, unravel = ravel_pytree(expansion.position)
    eta, changes, data = jax.linearize(
        lambda x: rows.read(unravel(x), indices), a, has_aux=True
    )

    def at(step):
        return jax.vmap(lambda e, t, row: loss_remainder(rows, 2, e, t, row))(
            eta, changes(step), data
        )

    return jax.vmap(at)(steps)


def changes_of(expansion: GroupedExpansion, steps: Array, is_read: Array) -> tuple[Array, Array]:
    """Sums of the changes of the remainders of some groups, shape (G,), and how many rows."""
    sizes = jnp.where(is_read, expansion.sizes, 0)
    last = jnp.cumsum(sizes)
    num_rows, length = last[-1], min(CHUNK, expansion.num_rows)

    def body(carry):
        begin, sums = carry
        items = begin + jnp.arange(length)
        group = jnp.searchsorted(last, items, side="right")
        group = jnp.minimum(group, sizes.size - 1)
        within = items - (last - sizes)[group]
        at = jnp.clip(expansion.first[group] + within, 0, expansion.num_rows - 1)
        old, new = remainders(expansion, steps, expansion.rows[at])
        changes = jnp.where(items < num_rows, new - old, 0.0)
        return begin + length, sums.at[group].add(changes)

    first = jnp.zeros((), num_rows.dtype), jnp.zeros(sizes.size, steps.dtype)
    sums = jax.lax.while_loop(lambda carry: carry[0] < num_rows, body, first)[1]
    return sums, num_rows


class Events(NamedTuple):
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


def thin(
    rng_key: PRNGKey,
    expansion: GroupedExpansion,
    steps: Array,
    rate: Array,
    reach: Array,
    *,
    is_joint: bool,
) -> Events:
    """Events of processes of the rates (G,), until the time is over, or one vetoes a joint move."""
    unit = unit_of(rate)
    counts = jnp.where(rate > 0, jnp.ceil(rate / unit).astype(jnp.int32), 0)
    last = jnp.cumsum(counts)
    expected = last[-1] * unit
    num_pieces = jnp.ceil(expected / PIECE).astype(int)
    length = expected / jnp.maximum(num_pieces, 1)

    def is_going(events):
        is_over = events.piece >= num_pieces
        return ~is_over & ~(is_joint & jnp.any(events.is_vetoed))

    def body(events):
        key_next, key_rows, key_uniform = jax.random.split(events.rng_key, 3)
        of_gaps, of_vetoes = jax.random.uniform(key_uniform, (2, LANES), rate.dtype)
        times = events.time + jnp.cumsum(-jnp.log1p(-of_gaps))
        is_event = times < length
        group, at, share = draw(key_rows, expansion, last)
        old, new = remainders(expansion, steps, expansion.rows[at])
        # the rate of this row's events, of which the shares are those of whole numbers
        row_rate = share * counts[group] * unit
        veto = jnp.where(is_event, (new - old) / jnp.maximum(row_rate, TINY), 0.0)
        is_veto = of_vetoes < veto
        is_over = times[-1] >= length
        # a rounding of log(0) would spoil what is never accepted anyhow
        spared = jnp.maximum(1.0 - jnp.clip(veto, 0.0, 1.0), TINY)
        is_last = is_over & (events.piece + 1 == num_pieces)
        kept = jnp.full_like(rate, is_last) if is_joint else events.survival
        return Events(
            events.piece + is_over,
            jnp.where(is_over, 0.0, times[-1]),
            events.is_vetoed.at[group].max(is_veto),
            kept.at[group].multiply(spared),
            events.num_rows + jnp.sum(is_event),
            key_next,
        )

    zero = jnp.zeros((), int)
    first = Events(
        zero,
        jnp.zeros((), rate.dtype),
        jnp.zeros(rate.shape, bool),
        jnp.ones_like(rate),
        zero,
        rng_key,
    )
    return jax.lax.while_loop(is_going, body, first)


TINY = 1e-30


def unit_of(rate: Array) -> Array:
    """A power of two in which rates are whole numbers, rounded up, with a sum below 2^30."""
    least = jnp.maximum(jnp.sum(rate), TINY) / (STEPS - rate.size)
    return jnp.exp2(jnp.ceil(jnp.log2(least)) + 1.0)


def draw(
    rng_key: PRNGKey, expansion: GroupedExpansion, last: Array
) -> tuple[Array, Array, Array]:
    """Groups by their rates and rows by their bounds, with a row's share of its group's rate.

    `last` are the cumulative sums of the rates, whole numbers. Rows are in the order of groups.
    """
    *words, high, low, side = jax.random.bits(rng_key, (5, LANES), jnp.uint32)
    group = jnp.searchsorted(last, scaled(jnp.stack(words), last[-1]), side="right")
    group = jnp.minimum(group, last.size - 1)
    begin = expansion.first[group]
    column = begin + scaled(jnp.stack([high, low]), expansion.first[group + 1] - begin)
    column = jnp.minimum(column, expansion.num_rows - 1)  # where there is no event at all
    is_alias = side // 2**9 >= expansion.threshold[column] * 2.0**23
    at = jnp.where(is_alias, begin + expansion.alias[column], column)
    share = expansion.bound[at] / jnp.maximum(expansion.total[group], TINY)
    return group, at, share
