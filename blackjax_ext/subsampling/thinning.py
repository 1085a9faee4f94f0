r"""An exact acceptance test that reads a few rows: factors or weights, and Poisson thinning.

Split the energy at an anchor into a part that is known without the rows and their remainders
(:mod:`blackjax_ext.subsampling.predictors`),

.. math::
    U(x) = S(x) + \sum_{i=1}^N r_i(x) + \text{const}, \qquad |r_i(x)| \le \psi_i |w|^{k+1},

where S is minus the exact log prior plus the expansion of all rows. A trajectory of AMAGOLD from
:math:`x` to :math:`x_*` with accumulator :math:`\rho` is accepted in factors (Cornish et al. 2019,
their eq. 6, with one factor more for the accumulator),

.. math::
    \alpha = \min\left(1, e^{S(x) - S(x_*) + \rho}\right)
    \prod_{i=1}^N \min\left(1, e^{r_i(x) - r_i(x_*)}\right).

*Detailed balance.* Let :math:`y = (x, r)`, :math:`z = (x_*, r_*)`, and let a path be the noises and
random components of a trajectory. The derivation in :mod:`blackjax_ext.sgmcmc.amagold` gives, for
the density P of a path with its start and :math:`P^\perp` of the reversed path that leads from
:math:`z^\perp = (x_*, -r_*)` to :math:`y^\perp`,

.. math::
    \pi(z^\perp) P^\perp / [\pi(y) P] = e^{U(x) - U(x_*) + \rho},

and the reversed path has the accumulator :math:`-\rho`. The step is skew-reversible,
:math:`\pi(y) P \alpha = \pi(z^\perp) P^\perp \alpha^\perp`, if
:math:`\alpha / \alpha^\perp` is that ratio, and each factor gives its own part of it, since
:math:`\min(1, e^u) / \min(1, e^{-u}) = e^u`:

.. math::
    \alpha / \alpha^\perp = e^{S(x) - S(x_*) + \rho} \prod_i e^{r_i(x) - r_i(x_*)}
    = e^{U(x) - U(x_*) + \rho}.

A rejection returns :math:`(x, -r)`, so the whole step leaves :math:`\pi(x, r)` invariant; with
fresh momenta it is reversible in x. The rows that the test draws are independent of the path.

*Thinning.* The product over rows is the probability that none of N independent Poisson processes of
rates :math:`(r_i(x_*) - r_i(x))_+` has an event in unit time. With a bound
:math:`\psi_i\, q \ge |r_i(x_*) - r_i(x)|`, these are the processes of rates :math:`\psi_i q`
thinned: a process of rate :math:`\Lambda = \Psi q`, :math:`\Psi = \sum \psi_i`, where each event
picks a row in proportion to :math:`\psi_i` and vetoes with probability
:math:`(r_i(x_*) - r_i(x))_+ / (\psi_i q)`. One veto rejects. Events come in order of time, by
exponential gaps, until the time is over or a veto comes: there is no limit to their number. (The
unit interval is cut into equal pieces of at most `PIECE` events on average, since a float
that counts to millions has no digits left for gaps of one.)

*Acceptance rate.* Given the rows of a round of events, none of them vetoes with probability
:math:`s = \prod (1 - v)`. The last round is reached with the product of this over the rounds before
it, so :math:`s` of the last round, and zero if a veto came before it, is the probability of no veto
without bias. Most tests have one round, whose rate then is no longer zero or one.

*Weights in the place of factors.* A factor below one rejects, whatever others above one would have
given back: the product falls with the number of rows that matter, which grows as
:math:`D^{3/2} / \sqrt N`. Few matter to a group, whose tests are by factors; moves of rows without
groups are decided by weights (Prado, Nemeth and Sherlock). Every row has a number of events
:math:`n_i \sim \mathrm{Poisson}(\phi_i)`,

.. math::
    \phi_i = c_i + \min(0, \Delta_i), \qquad \phi_i' = \phi_i - \Delta_i, \qquad
    \Delta_i = r_i(x_*) - r_i(x), \quad c_i = \psi_i q,

where :math:`\phi_i'` is that of the way back. The move is accepted with probability

.. math::
    \min\left(1, e^{S(x) - S(x_*) + \rho}\right)
    \min\Big(1, \prod_i (\phi_i' / \phi_i)^{n_i}\Big).

*Detailed balance* with the numbers n: the ratio of the laws of n, there and back, is
:math:`\prod (\phi_i / \phi_i')^{n_i} e^{-\sum (\phi_i - \phi_i')}`, of which the second minimum
takes the product back, and :math:`\sum (\phi_i - \phi_i') = \sum \Delta_i` is what remains. So the
ratio of both ways is :math:`e^{S(x) - S(x_*) + \rho - \sum \Delta_i}`, as it must be, for each n,
and summed over n. The events are those of the rates :math:`c_i`, thinned to :math:`\phi_i`; none
ends the process, and none is drawn where the first minimum rejects.

*Bound of a change.* Two bounds hold, and q is the less of them. Each remainder is bounded by
itself, :math:`|w|^{k+1} + |w_*|^{k+1}`. And along the line from w to :math:`w_*`, where
:math:`|\nabla r_i \cdot t| \le \frac{M_i}{k!} |t_i|^k |t|`, the change is at most
:math:`(k+1) \psi_i |w_* - w| \int_0^1 |w_s|^k ds`, which is small for short moves:

.. math::
    q_2 = |w_* - w| \left( |w|^2 + w \cdot w_* + |w_*|^2 \right),

which is symmetric in the ends of the move.

*Groups.* Rows of group c have a reach :math:`q_c` of their own, of :math:`w_c` and :math:`w_c^*`,
and their events come at the rate :math:`\Lambda_c = \Psi_c q_c`. A move of what all groups share is
decided by their product, a move of the groups given the rest by a test of each; rows without groups
are one group. Of order 3, with the inequality of Cauchy and Schwarz for the way,
:math:`q_3 = 4 |w_* - w| \int_0^1 |w_s|^3 ds` where :math:`\int |w_s|^3 \le (\int |w_s|^2 \int
|w_s|^4)^{1/2}`. Rates of groups change from step to step, so there is no table of them. They are
rounded up to multiples of a power of two, whose cumulative sums are whole numbers: a uniform whole
number below the last finds its group with exactly the rate that the veto reckons with.

*Which rows are worth a look.* An event vetoes if a uniform number is below
:math:`\Delta r_i / (\psi_i q)`. The predictor of a row changes less than the bound for any row
allows, typically by :math:`\rho_i` instead of :math:`\rho_i |w_c|`. Where rows of groups have one
predictor, its change alone bounds :math:`\Delta r_i`, and most events are settled without a loss.
The rest are evaluated, so many at once; where there are more, time goes on from the last of these,
a stopping time: events before the next likely one are known not to be likely.

*Far from the anchor* bounds do not hold, where an end has :math:`|w| > R`, or more events than
rows would come, :math:`\Lambda > N`. (The way between two ends is within R if they are.) There all
rows of the group are read once, and the sum of their changes joins the ordinary ratio: without
groups the move is accepted with probability :math:`\min(1, e^{U(x) - U(x_*) + \rho})`. Which of the
two rules holds depends on the pair of ends alone, in a symmetric way, so the ratio above holds for
every pair: exact too, and no step reads more than about N rows. `num_rows` says what was read.

Reference: R. Cornish, P. Vanetti, A. Bouchard-Côté, G. Deligiannidis and A. Doucet 2019, Scalable
Metropolis-Hastings for exact Bayesian inference with large datasets; E. Prado, C. Nemeth and
C. Sherlock 2024, Metropolis-Hastings with scalable subsampling (arXiv 2407.19602); P. A. W. Lewis
and G. S. Shedler 1979, Simulation of nonhomogeneous Poisson processes by thinning.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import num_blocks
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair
from blackjax_ext.rows.consecutive import at_chunk
from blackjax_ext.rows.shuffles import times_fraction, uniform_numbers, words_per_number
from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion, surrogate
from blackjax_ext.subsampling.predictors import loss_remainder
from blackjax_ext.types import Function

__all__ = [
    "Decision",
    "MoveEnds",
    "Reaches",
    "RowTest",
    "expected_rows",
    "loss_remainders",
    "reaches_of",
    "run_test",
    "steps_to",
    "thinning_test",
]

# events at once, and those expected of a piece of the time, so that the lanes rarely run out
LANES, PIECE = 32, 20.0
GROUP_LANES, GROUP_PIECE = 256, 200.0
MAX_ROWS_EVALUATED = 32  # of these, whose losses are evaluated
ROW_CHUNK = 2048  # rows at once where all are read
MAX_PASSES = 1.0  # expected events, in passes over the rows, beyond which all rows are read
TINY = 1e-30
BOUND_MARGIN = 1.001  # of a bound, for rounding
RATE_STEPS = 2**29  # of the rates of groups: their sum stays below 2^30
GROUP_WORDS = 2  # random words of a group


class Decision(NamedTuple):
    """Outcome of the test; see :class:`blackjax_ext.sgmcmc.acceptance.Verdict`."""

    is_accepted: Array
    acceptance_rate: Array
    is_divergent: Array
    surrogate: Array
    num_rows: Array


class MoveEnds(NamedTuple):
    """Ends of a move, as the rows of each group see them, shapes (G,).

    Attributes
    ----------
    old, new
        Squared lengths of w.
    inner
        Their product.
    step
        Squared length of the move.
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
    """Reach of a move in each group.

    Attributes
    ----------
    reach
        q, so that the remainder of row i changes by at most psi_i q, shape (G,).
    is_far
        Whether all rows of a group are read, shape (G,).
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
    """Rule by which events decide.

    Attributes
    ----------
    nothing
        Value before the first.
    see
        ``see(events, round, is_joint) -> (value, is_ended)``; with `is_joint` one that ends the
        test of a group ends all.
    """

    nothing: float
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


@exact_products
def thinning_test(
    rng_key: PRNGKey,
    expansion: Expansion,
    old_position: ArrayTree,
    old_surrogate: Array,
    new_position: ArrayTree,
    rho: Array,
) -> Decision:
    """Whether to accept a move of rows without groups, by weights.

    Cost: D^2, one log prior, and the rows of the events.
    """
    key_first, key_second, key_events = jax.random.split(rng_key, 3)
    new_surrogate = surrogate(expansion, new_position)
    ends = (expansion.coordinates(x) for x in (old_position, new_position))
    reaches = reaches_of(expansion, MoveEnds.of(expansion, *ends))
    steps = steps_to(expansion, old_position, new_position)
    log_ratio = old_surrogate - new_surrogate + rho
    is_divergent = jnp.isnan(log_ratio) | ~jnp.isfinite(new_surrogate)

    # of a symmetric function of the two ends; an overflow is far too
    exact, num_far = changes_of(expansion, steps, reaches.is_far & ~is_divergent)
    log_ratio = log_ratio - exact[0]
    is_divergent = is_divergent | jnp.isnan(log_ratio)
    rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    is_first = jax.random.uniform(key_first, rate.shape, rate.dtype) < rate
    is_on = ~is_divergent & is_first
    events = thin(key_events, expansion, steps, reaches, is_on, WEIGHTS, is_joint=True)
    second = jnp.exp(jnp.minimum(events.value[0], 0.0))
    is_second = jax.random.uniform(key_second, rate.shape, rate.dtype) < second
    rate = jnp.where(reaches.is_far[0], rate, jnp.where(is_first, second, 0.0))
    num_rows = events.num_rows + num_far
    return Decision(is_first & is_second, rate, is_divergent, new_surrogate, num_rows)


class RowTest(NamedTuple):
    """Outcome of the rows' test of a move.

    Attributes
    ----------
    change
        Sum of the changes of the remainders of groups that were read whole, shape (G,).
    is_vetoed
        Whether an event of a group has vetoed, shape (G,).
    survival
        Probability that none of the events of a group vetoes, given them, shape (G,); of the last
        round where one veto is enough.
    num_rows
        Rows that were read.
    """

    change: Array
    is_vetoed: Array
    survival: Array
    num_rows: Array


def run_test(
    rng_key: PRNGKey,
    expansion: Expansion,
    steps: Array,
    ends: MoveEnds,
    is_on: Array,
    *,
    is_joint: bool,
) -> RowTest:
    """Test a move by the factors of its rows; no row is read where `is_on` is False.

    `steps` are those from the anchor to both ends, flat, shape (2, D). With `is_joint` one veto is
    enough for all groups, and events end with it.
    """
    reaches = reaches_of(expansion, ends)
    change, num_far = changes_of(expansion, steps, reaches.is_far & is_on)
    events = thin(rng_key, expansion, steps, reaches, is_on, FACTORS, is_joint=is_joint)
    return RowTest(change, events.is_ended, events.value, events.num_rows + num_far)


def steps_to(expansion: Expansion, *positions: ArrayTree) -> Array:
    """Steps from the anchor to each position, flat, shape (S, D)."""
    anchor = ravel_pytree(expansion.position)[0]
    return jnp.stack([ravel_pytree(x)[0] - anchor for x in positions])


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


class Read(NamedTuple):
    """Some rows, with how their predictors change on some steps.

    Attributes
    ----------
    eta, data
        Predictors at the anchor, and what the losses need beside.
    changes
        As `eta`, leading with the steps.
    """

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


def most(expansion: Expansion, rows: Read, at: Array) -> Array:
    r"""A bound of these changes that costs no loss, shape (n,), of rows at these places in order.

    It is the bound :math:`\psi_i q` with the change of the row's own predictor in the place of
    :math:`\rho_i |w_c|`: rows with one predictor have it, it is infinite for others.
    """
    assert expansion.steepness is not None
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


class Rates(NamedTuple):
    """Rates of the events of groups.

    Attributes
    ----------
    expected
        Events in all.
    reach
        As of :class:`Reaches`.
    counts, last, unit
        Rates as whole numbers of a unit, and their cumulative sums; None without groups.
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
    unit = unit_of(rate)
    counts = jnp.where(rate > 0, jnp.ceil(rate / unit).astype(jnp.int32), 0)
    last = jnp.cumsum(counts)
    return Rates(last[-1] * unit, reaches.reach, counts, last, unit)


def unit_of(rate: Array) -> Array:
    """A power of two in which rates are whole numbers, rounded up, with a sum below 2^30."""
    least = jnp.maximum(jnp.sum(rate), TINY) / (RATE_STEPS - rate.size)
    return jnp.exp2(jnp.ceil(jnp.log2(least)) + 1.0)


class DrawnRows(NamedTuple):
    """Rows that events choose, shapes (n,).

    Attributes
    ----------
    group
        Their groups.
    at
        Their places in the order of groups.
    rate
        Rate of their events.
    """

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
        drawn, uniform = (
            draw_event_rows(of_rows, expansion, rates),
            uniform_numbers(of_vetoes, dtype),
        )
        number = drawn.at if expansion.rows is None else expansion.rows[drawn.at]
        read, likely = read_moved_rows(expansion, steps, number), jnp.ones(lanes, dtype)
        if expansion.steepness is not None:
            likely = jnp.minimum(most(expansion, read, drawn.at) / drawn.rate, 1.0)
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

    zero, groups = jnp.zeros((), int), jnp.zeros(expansion.num_groups, dtype)
    first = Events(
        zero, jnp.zeros((), dtype), groups > 0, jnp.full_like(groups, rule.nothing), zero, rng_key
    )
    return jax.lax.while_loop(is_going, body, first)


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
