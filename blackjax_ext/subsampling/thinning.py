r"""Rows that are drawn by their bounds: Poisson processes, thinned to what the rows say.

The product :math:`\prod_i \min(1, e^{r_i(x) - r_i(x_*)})` over rows is the probability that none of
N independent Poisson processes of rates :math:`(r_i(x_*) - r_i(x))_+` has an event in unit time.
With a bound :math:`\psi_i\, q \ge |r_i(x_*) - r_i(x)|`
(:mod:`blackjax_ext.subsampling.remainders`), these are the processes of rates :math:`\psi_i q`
thinned: a process of rate :math:`\Lambda = \Psi q`, :math:`\Psi = \sum \psi_i`, where each event
picks a row in proportion to :math:`\psi_i` and vetoes with probability :math:`(r_i(x_*) - r_i(x))_+
/ (\psi_i q)`. One veto rejects. Events come in order of time, by exponential gaps, until the time
is over or a veto comes: there is no limit to their number. (The unit interval is cut into equal
pieces of at most `PIECE` events on average, since a float that counts to millions has no digits
left for gaps of one.)

*Acceptance rate.* Given the rows of a round of events, none of them vetoes with probability
:math:`s = \prod (1 - v)`. The last round is reached with the product of this over the rounds before
it, so :math:`s` of the last round, and zero if a veto came before it, is the probability of no veto
without bias. Most tests have one round, whose rate then is no longer zero or one.

*Groups.* Events of group c come at the rate :math:`\Lambda_c = \Psi_c q_c`. Rates of groups change
from step to step, so there is no table of them. They are rounded up to multiples of a power of two,
whose cumulative sums are whole numbers: a uniform whole number below the last finds its group with
exactly the rate that the veto reckons with.

*Which rows are worth a look.* An event vetoes if a uniform number is below
:math:`\Delta r_i / (\psi_i q)`. The predictor of a row changes less than the bound for any row
allows, typically by :math:`\rho_i` instead of :math:`\rho_i |w_c|`. Where rows of groups have one
predictor, its change alone bounds :math:`\Delta r_i`, and most events are settled without a loss.
The rest are evaluated, so many at once; where there are more, time goes on from the last of these,
a stopping time: events before the next likely one are known not to be likely.

Reference: P. A. W. Lewis and G. S. Shedler 1979, Simulation of nonhomogeneous Poisson processes by
thinning.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.rows.shuffles import times_fraction, uniform_numbers, words_per_number
from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.remainders import (
    Reaches,
    change_bounds,
    read_moved_rows,
    remainder_change,
)

# events at once, and those expected of a piece of the time, so that the lanes rarely run out
LANES, PIECE = 32, 20.0
GROUP_LANES, GROUP_PIECE = 256, 200.0
MAX_ROWS_EVALUATED = 32  # of these, whose losses are evaluated
TINY = 1e-30
GROUP_WORDS = 2  # random words of a group


class Events(NamedTuple):
    """Poisson processes of all groups while they run.

    Attributes
    ----------
    piece
        Piece of the time that they are in.
    time
        Time within the piece, in expected events.
    is_ended
        Whether an event has decided the test of a group, shape (G,).
    value
        What the events of a group say, shape (G,): of factors an estimate without bias of the
        probability that none vetoes, of weights the logarithm of their product.
    num_rows
        Events so far.
    rng_key
        Key of what comes next.
    """

    piece: Array
    time: Array
    is_ended: Array
    value: Array
    num_rows: Array
    rng_key: PRNGKey


class Round(NamedTuple):
    """Some events together.

    Attributes
    ----------
    group
        Their groups, shape (n,).
    change
        Changes of remainders over their bounds, shape (n,).
    likely
        Bounds of these that cost no loss, below which `uniform` is known to be, shape (n,).
    uniform
        Uniform numbers, shape (n,).
    is_event
        Which of them are events, shape (n,).
    is_last
        Whether no other round follows.
    """

    group: Array
    change: Array
    likely: Array
    uniform: Array
    is_event: Array
    is_last: Array


class EventRule(NamedTuple):
    """Rule by which events decide, and the value before the first.

    ``see(events, round, is_joint) -> (value, is_ended)``; with `is_joint` one that ends the test of
    a group ends all.
    """

    start: float
    see: Callable[[Events, Round, bool], tuple[Array, Array]]


def gathered(
    so_far: Array, group: Array, values: Array, how: Literal["add", "max", "multiply"]
) -> Array:
    """Values of groups with those of events, shape (G,); of one group without a scatter."""
    if so_far.size > 1:
        scattered: Array = getattr(so_far.at[group], how)(values)
        return scattered
    reductions: dict[str, Any] = {"add": jnp.sum, "max": jnp.any, "multiply": jnp.prod}
    reduced: Array = reductions[how](jnp.append(so_far, values), keepdims=True)
    return reduced


def veto(events: Events, seen: Round, is_joint: bool) -> tuple[Array, Array]:
    """One event that vetoes is enough."""
    # given that it was likely; log(0) would spoil what is never accepted anyhow
    share = jnp.clip(seen.change / jnp.maximum(seen.likely, TINY), 0.0, 1.0)
    spared = jnp.where(seen.is_event, jnp.maximum(1.0 - share, TINY), 1.0)
    is_veto = (seen.uniform < seen.change) & seen.is_event
    # of rounds without a veto where the first ends all
    value = jnp.full_like(events.value, seen.is_last) if is_joint else events.value
    is_ended = gathered(events.is_ended, seen.group, is_veto, "max")
    return gathered(value, seen.group, spared, "multiply"), is_ended


def weigh_events(events: Events, seen: Round, is_joint: bool) -> tuple[Array, Array]:
    """Events of the rates phi are weighed by phi'/phi, and all are needed."""
    del is_joint
    change = jnp.clip(seen.change, -1.0, 1.0)
    is_kept = seen.is_event & (seen.uniform < 1.0 + jnp.minimum(change, 0.0))
    # 1 - change where the energy rises, and 1 / (1 + change) where it falls
    logs = jnp.sign(change) * jnp.log1p(-jnp.abs(change))
    logs = jnp.where(is_kept, logs, 0.0)
    return gathered(events.value, seen.group, logs, "add"), events.is_ended


FACTORS, WEIGHTS = EventRule(1.0, veto), EventRule(0.0, weigh_events)


class Rates(NamedTuple):
    """Events expected in all, reaches, and rates of the groups, as whole numbers of a unit.

    Of these `last` are the cumulative sums. None without groups.
    """

    expected: Array
    reach: Array
    counts: Array | None = None
    last: Array | None = None
    unit: Array | None = None


def rates_of(expansion: Expansion, reaches: Reaches, is_on: Array) -> Rates:
    """Rates of the events of groups whose rows are not all read; zero where `is_on` is False."""
    rate = jnp.where(is_on & ~reaches.is_far, expansion.totals * reaches.reach, 0.0)
    if not expansion.has_groups:
        return Rates(rate[0], reaches.reach)
    # a power of two in which rates are whole numbers, rounded up, with a sum below 2^30
    # of the rates of groups: their sum stays below 2^30
    least = jnp.maximum(jnp.sum(rate), TINY) / (2**29 - rate.size)
    unit = jnp.exp2(jnp.ceil(jnp.log2(least)) + 1.0)
    counts = jnp.where(rate > 0, jnp.ceil(rate / unit).astype(jnp.int32), 0)
    last = jnp.cumsum(counts)
    return Rates(last[-1] * unit, reaches.reach, counts, last, unit)


class DrawnRows(NamedTuple):
    """Rows that events choose: groups, places in the order of groups, rates; shapes (n,)."""

    group: Array
    at: Array
    rate: Array


def draw_event_rows(words: Array, expansion: Expansion, rates: Rates) -> DrawnRows:
    """Groups by their rates and rows by their bounds, from random words (W, n)."""
    if expansion.first is None:
        at = alias_table.outcome(words, expansion.table)
        return DrawnRows(jnp.zeros_like(at), at, expansion.bound[at] * rates.reach[0])
    assert rates.counts is not None and rates.last is not None and rates.unit is not None
    side, last = words[-1], rates.last
    group = jnp.searchsorted(last, times_fraction(words[:GROUP_WORDS], last[-1]), side="right")
    group = jnp.minimum(group, last.size - 1)
    begin = expansion.first[group]
    place = times_fraction(words[GROUP_WORDS:-1], expansion.first[group + 1] - begin)
    column = jnp.minimum(begin + place, expansion.num_rows - 1)  # where there is no event at all
    is_alias = side // 2**9 >= expansion.threshold[column] * alias_table.PROBABILITY_STEPS
    at = jnp.where(is_alias, begin + expansion.alias[column], column)
    share = expansion.bound[at] / jnp.maximum(expansion.totals[group], TINY)
    # of which the shares are those of whole numbers
    return DrawnRows(group, at, jnp.maximum(share * rates.counts[group] * rates.unit, TINY))


def thin(
    rng_key: PRNGKey,
    expansion: Expansion,
    steps: Array,
    reaches: Reaches,
    is_on: Array,
    rule: EventRule,
    *,
    is_joint: bool,
) -> Events:
    """Events of groups that are not far, until the time is over or an event ends a joint test.

    `steps` are those from the anchor to both ends, flat, shape (2, D); nothing is drawn where
    `is_on` is False.
    """
    rates = rates_of(expansion, reaches, is_on)
    expected, dtype = rates.expected, steps.dtype
    lanes, piece = (GROUP_LANES, GROUP_PIECE) if expansion.has_groups else (LANES, PIECE)
    num_pieces = jnp.ceil(expected / piece).astype(int)
    length = expected / jnp.maximum(num_pieces, 1)

    def is_going(events: Events) -> Array:
        return (events.piece < num_pieces) & ~(is_joint & jnp.any(events.is_ended))

    def body(events: Events) -> Events:
        # three keys, of which one is left: XLA compiles the same split once, wherever it is
        key_next, key_round, _ = jax.random.split(events.rng_key, 3)
        of_rows, of_gaps, of_vetoes = words_of_round(key_round, expansion.has_groups, lanes, dtype)
        times = events.time + sums(-jnp.log1p(-uniform_numbers(of_gaps, dtype)))
        uniform = uniform_numbers(of_vetoes, dtype)
        drawn = draw_event_rows(of_rows, expansion, rates)
        number = drawn.at if expansion.rows is None else expansion.rows[drawn.at]
        read, likely = read_moved_rows(expansion, steps, number), jnp.ones(lanes, dtype)
        if expansion.steepness is not None:
            likely = jnp.minimum(change_bounds(expansion, read.changes, drawn.at) / drawn.rate, 1.0)
        is_event = times < length
        place, is_seen, until = first_likely(times, is_event & (uniform < likely))
        # time has no memory: what comes after the end of a piece, or of what is looked at, is
        # drawn anew
        is_over = until >= length
        change = remainder_change(expansion, read.at(place)) / drawn.rate[place]
        seen = Round(
            drawn.group[place],
            jnp.where(is_seen, change, 0.0),
            likely[place],
            uniform[place],
            is_seen,
            is_over & (events.piece + 1 == num_pieces),
        )
        value, is_ended = rule.see(events, seen, is_joint)
        return Events(
            events.piece + is_over,
            jnp.where(is_over, 0.0, until),
            is_ended,
            value,
            events.num_rows + jnp.sum(is_event & (times <= until)),
            key_next,
        )

    return jax.lax.while_loop(is_going, body, no_events(rng_key, expansion.num_groups, rule, dtype))


def no_events(rng_key: PRNGKey, num_groups: int, rule: EventRule, dtype: Any) -> Events:
    """Those before the first."""
    zero, groups = jnp.zeros((), int), jnp.zeros(num_groups, dtype)
    value = jnp.full_like(groups, rule.start)
    return Events(zero, jnp.zeros((), dtype), groups > 0, value, zero, rng_key)


def first_likely(times: Array, is_likely: Array) -> tuple[Array, Array, Array]:
    """Places of the first likely events, as many as are evaluated at once, and up to when.

    Also whether there is one at a place, shape (n,).
    """
    lanes = times.size
    if lanes <= MAX_ROWS_EVALUATED:
        return jnp.arange(lanes), is_likely, times[-1]
    # up to the last that is evaluated, and no further: that the next is likely would be known
    is_done = jnp.cumsum(is_likely) - is_likely < MAX_ROWS_EVALUATED
    (place,) = jnp.nonzero(is_likely & is_done, size=MAX_ROWS_EVALUATED, fill_value=lanes)
    return jnp.minimum(place, lanes - 1), place < lanes, times[jnp.sum(is_done) - 1]


def words_of_round(
    rng_key: PRNGKey, has_groups: bool, lanes: int, dtype: Any
) -> tuple[Array, Array, Array]:
    """Random words of rows, of gaps and of vetoes, shapes (n, lanes), by one call: it compiles."""
    of_row = alias_table.NUM_WORDS + has_groups * GROUP_WORDS
    of_number = words_per_number(dtype)
    words = jax.random.bits(rng_key, (of_row + 2 * of_number, lanes), jnp.uint32)
    return words[:of_row], words[of_row:-of_number], words[-of_number:]


def sums(gaps: Array) -> Array:
    """Cumulative sums of a few numbers: ``jnp.cumsum`` is four programs in one."""
    upto = jnp.tri(gaps.size, dtype=bool)
    return jnp.sum(jnp.where(upto, gaps, 0.0), axis=1)
