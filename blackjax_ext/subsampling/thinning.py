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
:math:`D^{3/2} / \sqrt N`. With ``rule="weights"`` (Prado, Nemeth and Sherlock) every row has a
number of events :math:`n_i \sim \mathrm{Poisson}(\phi_i)`,

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
    q_2 = |w_* - w| \left( |w|^2 + w \cdot w_* + |w_*|^2 \right), \qquad
    q_1 = 2 |w_* - w| \sqrt{\left( |w|^2 + w \cdot w_* + |w_*|^2 \right) / 3},

the latter by Jensen's inequality. Both are symmetric in the ends of the move.

*Far from the anchor* bounds do not hold, where an end has :math:`|w| > R`, or more events than
rows would come, :math:`\Lambda > N`. (The way between two ends is within R if they are.) There all
rows are read once and the move is accepted with probability
:math:`\min(1, e^{U(x) - U(x_*) + \rho})`. Which of the two rules holds depends on the pair of ends
alone, in a symmetric way, so the ratio above holds for every pair: exact too, and no step reads
more than about N rows. `num_rows` says what was read.

Reference: R. Cornish, P. Vanetti, A. Bouchard-Côté, G. Deligiannidis and A. Doucet 2019, Scalable
Metropolis-Hastings for exact Bayesian inference with large datasets; E. Prado, C. Nemeth and
C. Sherlock 2024, Metropolis-Hastings with scalable subsampling (arXiv 2407.19602); P. A. W. Lewis
and G. S. Shedler 1979, Simulation of nonhomogeneous Poisson processes by thinning.
"""

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
from blackjax_ext.rows.shuffles import uniform_numbers, words_per_number
from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion, surrogate, whitened
from blackjax_ext.subsampling.predictors import loss_remainder
from blackjax_ext.types import Function

__all__ = [
    "RULES",
    "Decision",
    "RuleName",
    "expected_rows",
    "loss_remainders",
    "reach",
    "thinning_test",
]

RuleName = Literal["factors", "weights"]

LANES = 32  # rows at once
PIECE = 20.0  # events expected of a piece of the time, so that the lanes rarely run out
ROW_CHUNK = 2048  # rows at once where all are read
MAX_PASSES = 1.0  # expected events, in passes over the rows, beyond which all rows are read


class Decision(NamedTuple):
    """Outcome of the test; see :class:`blackjax_ext.sgmcmc.acceptance.Verdict`."""

    is_accepted: Array
    acceptance_rate: Array
    is_divergent: Array
    surrogate: Array
    num_rows: Array


class Proposal(NamedTuple):
    """A proposal, as the rows see it.

    Attributes
    ----------
    steps
        x - a of both ends, old and new, shape (2, D).
    reach
        q, so that the remainder of row i changes by at most psi_i q.
    """

    steps: Array
    reach: Array


class Events(NamedTuple):
    """A Poisson process while it runs.

    Attributes
    ----------
    piece
        Piece of the time that it is in.
    time
        Time within the piece, in expected events.
    is_ended
        Whether an event has decided the test.
    value
        What the events say: of factors an estimate without bias of the probability that none
        vetoes, of weights the logarithm of their product.
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


class EventRule(NamedTuple):
    """Rule by which events decide.

    Attributes
    ----------
    nothing
        Value before the first.
    see
        ``see(value, change, uniform, is_event, is_last) -> (value, is_ended)`` for a round of them:
        changes of remainders over their bounds, uniform numbers, which of them are events, and
        whether no other round follows.
    """

    nothing: float
    see: Callable[..., tuple[Array, Array]]


def veto(
    value: Array, change: Array, uniform: Array, is_event: Array, is_last: Array
) -> tuple[Array, Array]:
    """One event that vetoes is enough."""
    del value  # of rounds without a veto
    spared = jnp.prod(jnp.where(is_event, 1.0 - jnp.clip(change, 0.0, 1.0), 1.0))
    return jnp.where(is_last, spared, 0.0), jnp.any((uniform < change) & is_event)


def weigh_events(
    value: Array, change: Array, uniform: Array, is_event: Array, is_last: Array
) -> tuple[Array, Array]:
    """Events of the rates phi are weighed by phi'/phi, and all are needed."""
    del is_last
    change = jnp.clip(change, -1.0, 1.0)
    is_kept = is_event & (uniform < 1.0 + jnp.minimum(change, 0.0))
    # 1 - change where the energy rises, and 1 / (1 + change) where it falls
    logs = jnp.sign(change) * jnp.log1p(-jnp.abs(change))
    return value + jnp.sum(jnp.where(is_kept, logs, 0.0)), jnp.array(False)


RULES: dict[RuleName, EventRule] = {
    "factors": EventRule(1.0, veto),
    "weights": EventRule(0.0, weigh_events),
}


@exact_products
def thinning_test(
    rng_key: PRNGKey,
    expansion: Expansion,
    old_position: ArrayTree,
    old_surrogate: Array,
    new_position: ArrayTree,
    rho: Array,
    rule: RuleName = "weights",
) -> Decision:
    """Whether to accept. Cost: D^2, one log prior, and the rows of the events."""
    key_first, key_second, key_events = jax.random.split(rng_key, 3)
    new_surrogate = surrogate(expansion, new_position)
    (old_d, old_w), (new_d, new_w) = (whitened(expansion, x) for x in (old_position, new_position))
    move = Proposal(jnp.stack([old_d, new_d]), reach(old_w, new_w, expansion.order))
    log_ratio = old_surrogate - new_surrogate + rho
    is_divergent = jnp.isnan(log_ratio) | ~jnp.isfinite(new_surrogate)

    # of a symmetric function of the two ends; an overflow is far too
    is_far = ~is_near(expansion, old_w, new_w, move.reach)
    exact = change_of_all(expansion, move, is_far & ~is_divergent)
    log_ratio = log_ratio - jnp.where(is_far, exact, 0.0)
    is_divergent = is_divergent | jnp.isnan(log_ratio)
    rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    is_first = jax.random.uniform(key_first, rate.shape, rate.dtype) < rate
    is_on = ~is_far & ~is_divergent
    if rule == "factors":
        events = thin(key_events, expansion, move, is_on, RULES[rule])
        is_accepted, rate = is_first & ~events.is_ended, rate * events.value
    else:
        events = thin(key_events, expansion, move, is_on & is_first, RULES[rule])
        second = jnp.exp(jnp.minimum(events.value, 0.0))
        is_second = jax.random.uniform(key_second, rate.shape, rate.dtype) < second
        is_accepted = is_first & is_second
        rate = jnp.where(is_far, rate, jnp.where(is_first, second, 0.0))
    num_rows = events.num_rows + jnp.where(is_far & ~is_divergent, expansion.num_rows, 0)
    return Decision(is_accepted, rate, is_divergent, new_surrogate, num_rows)


def is_near(expansion: Expansion, old: Array, new: Array, reach: Array) -> Array:
    """Whether bounds hold on the way between two whitened positions, and are worth their rows."""
    furthest = jnp.sqrt(jnp.maximum(old @ old, new @ new))
    is_cheap = expansion.total * reach <= MAX_PASSES * expansion.num_rows
    return is_cheap & (furthest <= expansion.radius)


def reach(old: Array, new: Array, order: int) -> Array:
    """The bound q for a move between the whitened positions `old` and `new`, shape (P,)."""
    squares = (old @ old, new @ new)
    apart = sum(square ** (0.5 * (order + 1)) for square in squares)
    between = squares[0] + old @ new + squares[1]
    path = between if order == 2 else 2.0 * jnp.sqrt(jnp.maximum(between, 0.0) / 3.0)
    return jnp.minimum(apart, jnp.linalg.norm(new - old) * path)


def expected_rows(rng_key: PRNGKey, expansion: Expansion, num_moves: int = 256) -> Array:
    r"""Rows that a test reads on average, of moves between independent draws around the mode.

    Parameters
    ----------
    rng_key
        Key of the draws.
    expansion
        Of :func:`blackjax_ext.potentials.expand`.
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
    >>> expansion = potentials.expand(rows, x[0], order=2)
    >>> bool(potentials.expected_rows(jax.random.key(2), expansion) < 1)
    True
    """
    size, dtype = expansion.whitener.shape[0], expansion.whitener.dtype
    ends = jax.random.normal(rng_key, (2, num_moves, size), dtype)

    def rows_of(old: Array, new: Array) -> Array:
        q = reach(old, new, expansion.order)
        near = is_near(expansion, old, new, q)
        return jnp.where(near, expansion.total * q, float(expansion.num_rows))

    return jnp.mean(jax.vmap(rows_of)(*ends))


@exact_products
def loss_remainders(expansion: Expansion, steps: Array, indices: Array) -> Array:
    """Remainders of the losses of some rows at the anchor plus each of the `steps`, shape (S, n).

    `steps` has the shape (S, D). Cost: the rows are read once, their predictors S + 1 times.
    """
    posterior = expansion.posterior
    assert posterior is not None
    a, unravel = ravel_pytree(expansion.position)

    def read(x: Array) -> Any:
        return posterior.read(unravel(x), indices)

    eta, changes, rows = jax.linearize(read, a, has_aux=True)

    def remainders_at(step: Array) -> Array:
        of_row: Function = lambda e, t, row: loss_remainder(posterior, expansion.order, e, t, row)  # noqa: E731
        remainders: Array = jax.vmap(of_row)(eta, changes(step), rows)
        return remainders

    return jax.vmap(remainders_at)(steps)


def thin(
    rng_key: PRNGKey, expansion: Expansion, move: Proposal, is_on: Array, rule: EventRule
) -> Events:
    """Events until the time is over or one of them decides; none where `is_on` is False."""
    expected = jnp.where(is_on, expansion.total * move.reach, 0.0)
    num_pieces = jnp.ceil(expected / PIECE).astype(int)
    length = expected / jnp.maximum(num_pieces, 1)
    dtype = move.reach.dtype

    def is_going(events: Events) -> Array:
        return (events.piece < num_pieces) & ~events.is_ended

    def body(events: Events) -> Events:
        # three keys, of which one is left: XLA compiles the same split once, wherever it is
        key_next, key_round, _ = jax.random.split(events.rng_key, 3)
        of_rows, of_gaps, of_vetoes = words_of_round(key_round, dtype)
        times = events.time + sums(-jnp.log1p(-uniform_numbers(of_gaps, dtype)))
        is_event = times < length
        rows = alias_table.outcome(of_rows, expansion.table)
        old, new = loss_remainders(expansion, move.steps, rows)
        change = (new - old) / (expansion.bound[rows] * move.reach)
        # time has no memory: what comes after the end of a piece is drawn anew
        is_over = times[-1] >= length
        is_last = is_over & (events.piece + 1 == num_pieces)
        value, is_ended = rule.see(
            events.value, change, uniform_numbers(of_vetoes, dtype), is_event, is_last
        )
        return Events(
            events.piece + is_over,
            jnp.where(is_over, 0.0, times[-1]),
            is_ended,
            value,
            events.num_rows + jnp.sum(is_event),
            key_next,
        )

    zero = jnp.zeros((), int)
    time = jnp.zeros((), dtype)
    nothing = jnp.full_like(time, rule.nothing)
    first = Events(zero, time, jnp.array(False), nothing, zero, rng_key)
    return jax.lax.while_loop(is_going, body, first)


def words_of_round(rng_key: PRNGKey, dtype: Any) -> tuple[Array, Array, Array]:
    """Random words of rows, of gaps and of vetoes, shapes (n, LANES), by one call: it compiles."""
    of_row, of_number = alias_table.NUM_WORDS, words_per_number(dtype)
    words = jax.random.bits(rng_key, (of_row + 2 * of_number, LANES), jnp.uint32)
    return words[:of_row], words[of_row:-of_number], words[-of_number:]


def sums(gaps: Array) -> Array:
    """Cumulative sums of a few numbers: ``jnp.cumsum`` is four programs in one."""
    upto = jnp.tri(gaps.size, dtype=bool)
    return jnp.sum(jnp.where(upto, gaps, 0.0), axis=1)


def change_of_all(expansion: Expansion, move: Proposal, is_on: Array) -> Array:
    """Sum of the changes of all remainders; zero, and no row read, where `is_on` is False."""
    num_rows, blocks = expansion.num_rows, num_blocks(expansion.num_rows)
    size = num_rows // blocks
    length = min(ROW_CHUNK, size)
    num_chunks = jnp.where(is_on, -(-size // length), 0)

    def body(carry: Any) -> Any:
        i, sum = carry

        def change_of(indices: Array, is_new: Array) -> Array:
            old, new = loss_remainders(expansion, move.steps, indices)
            return jnp.where(is_new, new - old, 0.0)

        return i + 1, add(sum, jnp.sum(at_chunk(change_of, i, length, num_rows, blocks)))

    first = jnp.zeros((), int), as_pair(jnp.zeros((), move.steps.dtype))
    total: Pair = jax.lax.while_loop(lambda carry: carry[0] < num_chunks, body, first)[1]
    return total.value()
