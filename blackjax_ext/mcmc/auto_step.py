r"""Steps that adapt to the position: a step size selected before each move, and checked in reverse.

For every step :math:`\epsilon` let :math:`\Phi_\epsilon` be a move that preserves volume and is its
own inverse - a leapfrog step and a flip of the momentum - and
:math:`\ell_\epsilon(s) = \log \mu(\Phi_\epsilon(s)) - \log \mu(s)` its log ratio. Draw thresholds
(a band) :math:`0 < a < b < 1`, independently of the state, and try :math:`\epsilon_0 2^j` for
:math:`j = 0, \pm 1, ...`:

- while :math:`|\ell| < -\log b` double, and select the last step for which this holds;
- while :math:`|\ell| > -\log a` halve, and select the first step for which this does not hold;
- else select :math:`j = 0`.

With :math:`j(s)` the exponent selected at s, the move is
:math:`s_* = \Phi_{\epsilon_0 2^{j(s)}}(s)`, accepted with probability :math:`\min(1, e^\ell)` *if*
:math:`j(s_*) = j(s)`, and rejected otherwise.

*Exactness.* Given the band, fix j. On :math:`S_j = \{s: j(s) = j(\Phi_j(s)) = j\}` the map
:math:`\Phi_j` is an involution that preserves volume, and it maps :math:`S_j` onto itself, since
:math:`\Phi_j(\Phi_j(s)) = s`. There the step is a Metropolis step with that map, elsewhere it
stays. So it leaves :math:`\mu` invariant for each band, and on average over bands.

*What need not be evaluated.* The selected trial is the move, and is kept during the search. In the
reverse selection :math:`|\ell|` at the selected exponent is the same number, so it is not
evaluated. If j = 0 was selected at once, the reverse selection needs no trials. Otherwise all its
trials but the last must continue the search, and the first that does not ends it with a rejection;
they are tried from the selected exponent towards 0, the most likely to differ first. The uniform
random number of the decision is drawn before: a move that it rejects needs no reverse selection.

*Some coordinates at a time.* In a share of the steps only some leaves of the position move, a set
drawn independently of the state, while the others and their momenta are fixed: given the set each
step leaves :math:`\mu` invariant. In the neck of a funnel a step of all coordinates is limited by
the narrowest one, whereas the log sd alone can take steps a hundred times as long. Half of such
steps move effects with their parameters, if a hierarchy is given
(:mod:`blackjax_ext.mcmc.interweaving`).

*Batches.* Each iteration of one loop is a trial, forward or reverse. Under ``jax.vmap`` a step
takes as long as that of the slowest chain; ``benchmarks/hierarchies.py lock_step`` measures the
cost. Chains that run one by one do not wait.

References: M. Biron-Lattes et al. 2024, autoMALA (arXiv 2310.16782); T. Liu et al. 2024, AutoStep
MCMC (arXiv 2410.18929); A. M. Horowitz 1991 (a momentum that persists).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from blackjax_ext.checks import check_share
from blackjax_ext.mcmc import interweaving
from blackjax_ext.mcmc.interweaving import Hierarchy
from blackjax_ext.mcmc.noise import standard_normal
from blackjax_ext.metrics import Factor
from blackjax_ext.precision import inner
from blackjax_ext.types import Function, select

__all__ = [
    "MAX_EXPONENT",
    "AutoStepInfo",
    "Band",
    "Mover",
    "PhasePoint",
    "Shares",
    "StepSearch",
    "check_persistence",
    "draw_band",
    "draw_momentum",
    "draw_mover",
    "leapfrog_once",
    "refresh",
    "search",
    "transition",
]

MAX_EXPONENT = 20  # steps from a millionth to a million times the first one
# Steps grow only where they are needlessly exact, and shrink only where a move would be lost: of a
# narrow band the way back selects the same step less often, and more trials are needed
SLACK = 0.01
MAX_LOWER_BOUND = 0.5
# Steps of some leaves are what frees a chain from a neck, and are lost on other posteriors
BLOCKS, FEWER_BLOCKS = 0.5, 0.2
THERE, BACK, FINISHED = range(3)

Leap = Callable[["PhasePoint", Array], "PhasePoint"]


class AutoStepInfo(NamedTuple):
    """Facts about one transition.

    acceptance_rate
        1 for an accepted move, else 0: what is rejected is not looked into further.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether no step that was tried fitted, as where the density is flat or not finite.
    first_rate
        Acceptance probability of the first trial, the move with the step that was given. The
        warm-up adapts that step to it. NaN where effects went along, whose first trial is longer.
    exponent
        j: the step was 2^j times the one given.
    num_evaluations
        Places at which gradients, or K slopes, were evaluated.
    hidden
        Coordinate of the flat position whose noise rounding hides where the step began or tried to
        end, so that it was rejected or shortened; -1 if none.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    first_rate: Array
    exponent: Array
    num_evaluations: Array
    hidden: Array


class PhasePoint(NamedTuple):
    """A place and a momentum.

    x
        Flat position, shape (D,).
    momentum
        Shape (D,), in whitened coordinates.
    logdensity
        Log density at x.
    gradient
        What the force is made of, shape (D,).
    kept
        What the state keeps of the place, if x is not its position.
    """

    x: Array
    momentum: Array
    logdensity: Array
    gradient: Array
    kept: interweaving.Kept | None = None


class Band(NamedTuple):
    """Range in which the absolute log ratio of a move should be.

    inner
        -log b: below it, steps are doubled.
    outer
        -log a: above it, they are halved.
    """

    inner: Array
    outer: Array


class StepSearch(NamedTuple):
    """State of the search for a step size.

    stage
        There, back or done.
    exponent
        Of the trial.
    direction
        1 if steps are doubled, -1 if they are halved, 0 if neither.
    selected
        j, the exponent of the move.
    proposal, log_ratio
        The move, and what it gains.
    first_rate
        Acceptance probability of the first trial.
    is_confirmed
        Whether the way back selects the same step.
    is_exhausted
        Whether trials ended without a step that fits.
    num_evaluations
        Trials so far.
    hidden
        A coordinate whose noise rounding hides where the step begins or a trial ended; -1 if none.
    """

    stage: Array
    exponent: Array
    direction: Array
    selected: Array
    proposal: PhasePoint
    log_ratio: Array
    first_rate: Array
    is_confirmed: Array
    is_exhausted: Array
    num_evaluations: Array
    hidden: Array


class Shares(NamedTuple):
    """Probabilities of the kinds of steps, whatever the state is.

    isotropic
        All coordinates move alike, by the smallest scale of the metric.
    block
        Only some leaves of the position move; None for half of the steps with a hierarchy, and a
        fifth without one.
    """

    isotropic: float
    block: float | None


class Mover(NamedTuple):
    """Coordinates that a step moves, and its metric ``R R^T``.

    push, pull
        The maps ``R z`` and ``R^T g``.
    moves
        Which coordinates move, shape (D,); None for all.
    chart
        Coordinates in which they move; None for those of the position.
    """

    push: Function
    pull: Function
    moves: Array | None
    chart: interweaving.Chart | None

    def within(self, frame: Array) -> Function:
        """The map of slopes to the force along the columns of `frame`, (D, K), on what moves.

        Rows of a frame beyond the number of what moves may see both it and what stands still.
        """
        seen = frame if self.moves is None else jnp.where(self.moves[:, None], frame, 0.0)
        return seen.__matmul__


def check_persistence(persistence: float, shares: Shares) -> None:
    """Raise ValueError unless the persistence is in [0, 1) and the shares in [0, 1]."""
    if not 0 <= persistence < 1:
        raise ValueError(f"persistence must be at least 0 and below 1; got {persistence}.")
    check_share("isotropic_share", shares.isotropic)
    if shares.block is not None:
        check_share("block_share", shares.block)


def draw_band(rng_key: Array, dtype: DTypeLike) -> Band:
    """Draw b uniformly in (0.99, 1) and a in (0, 0.5)."""
    u = 1.0 - jax.random.uniform(rng_key, (2,), dtype)  # log(0) is not drawn
    return Band(-jnp.log1p(-SLACK * u[0]), -jnp.log(MAX_LOWER_BOUND * u[1]))


def draw_momentum(rng_key: Array | None, like: Array) -> Array:
    """A draw of shape (D,); NaN without a key, which the first step replaces by a draw."""
    if rng_key is None:
        return jnp.full_like(like, jnp.nan)
    return standard_normal(rng_key, like.size, like.dtype)


def refresh(rng_key: Array, momentum: Array, persistence: float) -> Array:
    r"""``rho p + sqrt(1 - rho^2) z``: leaves the standard normal invariant."""
    noise = standard_normal(rng_key, momentum.size, momentum.dtype)
    kept = persistence * momentum + (1 - persistence**2) ** 0.5 * noise
    return jnp.where(jnp.isnan(momentum), noise, kept)


def draw_mover(
    rng_key: Array,
    metric: Factor,
    position: ArrayTree,
    shares: Shares,
    hierarchy: Hierarchy | None = None,
) -> Mover:
    """Draw the coordinates that the next step moves, whatever the state is: each step is exact.

    All coordinates by `metric`, or by the share `shares.isotropic` of such steps by its smallest
    scale; by the share `shares.block` of all steps some leaves of `position` only, each coordinate
    by its own scale, if there are several. Scales are those of a coordinate given the others. With
    a `hierarchy` half of the steps of some leaves hold effects by their noise.
    """
    is_effect = () if hierarchy is None else hierarchy.effects(position)
    block = shares.block
    if block is None:
        block = BLOCKS if any(is_effect) else FEWER_BLOCKS
    sizes = list(map(np.size, jax.tree.leaves(position)))
    # marginal ones would be too long by far where coordinates are correlated
    scales = metric.conditional_scales()
    is_alike = jax.random.bernoulli(rng_key, shares.isotropic)
    moves, chart, is_block = None, None, jnp.array(False)
    is_never = isinstance(block, int | float) and block == 0
    if np.count_nonzero(sizes) > 1 and not is_never:
        key_block, key_leaves = jax.random.split(jax.random.fold_in(rng_key, 1))
        is_block = jax.random.bernoulli(key_block, block)
        is_noise = None
        if hierarchy is not None and any(is_effect):
            key_along, key_noise = jax.random.split(jax.random.fold_in(rng_key, 2))
            is_along = is_block & jax.random.bernoulli(key_along, interweaving.SHARE)
            is_noise = is_along & interweaving.draw_noise(key_noise, is_effect, sizes)
            x, unravel = ravel_pytree(position)
            chart = interweaving.chart_of(hierarchy, unravel, is_noise, x.dtype)
        moves = ~is_block | draw_leaves(key_leaves, sizes, is_noise)

    def scaled(z: Array, all_of_it: Array) -> Array:
        alike = jnp.where(is_alike & ~is_block, jnp.min(scales) * z, all_of_it)
        return alike if moves is None else jnp.where(is_block, moves * scales * z, alike)

    def push(z: Array) -> Array:
        return scaled(z, metric.inverse_sqrt_times(z)).astype(z.dtype)

    def pull(g: Array) -> Array:
        return scaled(g, metric.inverse_sqrt_transpose_times(g)).astype(g.dtype)

    return Mover(push, pull, moves, chart)


def draw_leaves(rng_key: Array, sizes: list[int], is_noise: Array | None = None) -> Array:
    """Coordinates (D,) of some leaves, at least one and not all: any number, then any of so many.

    So each leaf is often without any other, however many there are. Coordinates in `is_noise` stand
    still, and with them all of their leaf.
    """
    key_number, key_which = jax.random.split(rng_key)
    places = np.flatnonzero(sizes)
    leaf_of = np.repeat(np.arange(places.size), np.asarray(sizes)[places])
    rank, most = jax.random.permutation(key_which, places.size), jnp.asarray(places.size)
    if is_noise is not None:
        is_held = jnp.zeros(places.size, bool).at[leaf_of].max(is_noise)
        rank = jnp.argsort(jnp.argsort(rank + places.size * is_held))
        held = jnp.sum(is_held)
        most = jnp.where(held, places.size - held + 1, places.size)
    is_drawn = rank < jax.random.randint(key_number, (), 1, most)
    return is_drawn[leaf_of]


def leapfrog_once(
    evaluate: Function, push: Function, pull: Function, step_size: Array | float
) -> Leap:
    """One leapfrog step: preserves volume, and is undone by itself between two flips of momentum.

    Parameters
    ----------
    evaluate
        x to the log density, the gradient and what the state keeps, shared with the next step.
    push
        Momentum to velocity: ``R p``.
    pull
        Gradient to force: ``R^T g``, in whitened coordinates.
    step_size
        Of exponent 0.
    """

    def leap(start: PhasePoint, exponent: Array) -> PhasePoint:
        epsilon = step_size * jnp.exp2(exponent.astype(start.x.dtype))
        half = start.momentum + 0.5 * epsilon * pull(start.gradient)
        x = start.x + epsilon * push(half)
        logdensity, gradient, kept = evaluate(x)
        return PhasePoint(x, half + 0.5 * epsilon * pull(gradient), logdensity, gradient, kept)

    return leap


def log_joint_ratio(start: PhasePoint, end: PhasePoint) -> Array:
    """Log ratio of the joint density at `end` to that at `start`; NaN if `end` is not finite."""
    # a difference of squares, which keeps its digits where the squares are large
    kinetic = 0.5 * inner(start.momentum - end.momentum, start.momentum + end.momentum)
    log_ratio = end.logdensity - start.logdensity + kinetic
    return jnp.where(jnp.isfinite(end.logdensity), log_ratio, jnp.nan)


def distance(log_ratio: Array) -> Array:
    """Distance of a move's log ratio from zero; infinite if something was not finite."""
    return jnp.where(jnp.isnan(log_ratio), jnp.inf, jnp.abs(log_ratio))


def search(leap: Leap, start: PhasePoint, band: Band, log_uniform: Array) -> StepSearch:
    """Select the step at `start`, and look whether the way back selects the same.

    Cost: one evaluation for each trial; 1 if the first one is in the band.
    """

    def turn(trials: StepSearch) -> StepSearch:
        begin = origin(trials, start)
        end = leap(begin, trials.exponent)
        end = end._replace(momentum=-end.momentum)
        log_ratio = log_joint_ratio(begin, end)
        forth = go_there(trials, end, log_ratio, band, log_uniform)
        new = select(trials.stage == BACK, go_back(trials, log_ratio, band), forth)
        hidden = jnp.where(trials.hidden < 0, interweaving.reached(end), trials.hidden)
        return new._replace(num_evaluations=trials.num_evaluations + 1, hidden=hidden)

    zero, no = jnp.zeros((), jnp.int32), jnp.array(False)
    nothing = jnp.zeros_like(start.logdensity)
    is_lost = jnp.isnan(start.logdensity)  # no trial would be in the band
    stage = jnp.where(is_lost, FINISHED, THERE).astype(jnp.int32)
    hidden = zero + interweaving.reached(start)
    first = StepSearch(
        *(stage, zero, zero, zero, start, nothing, nothing, no, is_lost, zero, hidden)
    )
    return jax.lax.while_loop(lambda trials: trials.stage != FINISHED, turn, first)


def origin(trials: StepSearch, start: PhasePoint) -> PhasePoint:
    """Start of a trial: that of the step, or on the way back the end of the move."""
    return select(trials.stage == BACK, trials.proposal, start)


def go_there(
    trials: StepSearch, end: PhasePoint, log_ratio: Array, band: Band, log_uniform: Array
) -> StepSearch:
    """A trial from the start of the step."""
    d = distance(log_ratio)
    is_first = trials.exponent == 0  # every other trial is further away
    direction = jnp.where(is_first, direction_of(d, band), trials.direction)
    goes_on = jnp.where(direction > 0, d < band.inner, (direction < 0) & (d > band.outer))
    # from outside the support, where no chain that is in equilibrium is, any way in will do
    is_entry = jnp.isposinf(log_ratio)
    goes_on = goes_on & ~is_entry
    # doubling ends one step too far: what is proposed then is the trial before
    is_taken = (direction <= 0) | (d < band.inner)
    proposal, selected, log_ratio_of_move = select(
        is_taken,
        (end, trials.exponent, log_ratio),
        (trials.proposal, trials.selected, trials.log_ratio),
    )
    is_exhausted = goes_on & (jnp.abs(trials.exponent) >= MAX_EXPONENT)
    is_known = ~goes_on & ((direction == 0) | is_entry)
    is_over = is_exhausted | is_known | ~(goes_on | (log_uniform < log_ratio_of_move))
    stage = jnp.where(is_over, FINISHED, jnp.where(goes_on, THERE, BACK))
    rate = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return trials._replace(
        stage=stage.astype(jnp.int32),
        exponent=jnp.where(goes_on, trials.exponent + direction, selected + 1),
        direction=direction,
        selected=selected,
        proposal=proposal,
        log_ratio=log_ratio_of_move,
        first_rate=jnp.where(is_first, rate, trials.first_rate),
        is_confirmed=is_known,
        is_exhausted=is_exhausted,
    )


def direction_of(d: Array, band: Band) -> Array:
    """Whether the first trial says double, halve or neither."""
    return (d < band.inner).astype(jnp.int32) - (d > band.outer).astype(jnp.int32)


def go_back(trials: StepSearch, log_ratio: Array, band: Band) -> StepSearch:
    """A trial from the end of the move: it must go on where the way there did."""
    d, tried, selected = distance(log_ratio), trials.exponent, trials.selected
    is_up, is_beyond = trials.direction > 0, tried > selected
    goes_on = jnp.where(is_up, d < band.inner, d > band.outer)
    agrees = goes_on != (is_up & is_beyond)
    # after one step too many of a doubling come those before the selected one, down to 0
    following = jnp.where(is_up, jnp.minimum(tried, selected) - 1, tried + 1)
    is_last = jnp.where(is_up, following < 0, following > 0)
    return trials._replace(
        stage=jnp.where(agrees & ~is_last, BACK, FINISHED).astype(jnp.int32),
        exponent=following,
        is_confirmed=agrees & is_last,
    )


def accept_or_flip(
    is_accepted: Array, proposal: PhasePoint, start: PhasePoint, moves: Array | None
) -> PhasePoint:
    """The new point. A rejected move turns round the momentum of what `moves`.

    That is what keeps a momentum that persists exact: the move ends with a flip, and every step
    with another.
    """
    turned = -start.momentum if moves is None else jnp.where(moves, -1.0, 1.0) * start.momentum
    end = select(is_accepted, proposal, start)
    return end._replace(momentum=jnp.where(is_accepted, -end.momentum, turned))


def transition(
    rng_key: Array, start: PhasePoint, leap: Leap, persistence: float, moves: Array | None = None
) -> tuple[PhasePoint, AutoStepInfo]:
    """Refresh the momentum, select a step, decide.

    Parameters
    ----------
    rng_key
        Key, used once.
    start
        Where the step begins.
    leap
        Moves the coordinates `moves`, and no other.
    persistence
        rho.
    moves
        Shape (D,); None for all. The momenta of the others are kept as they are.

    Returns
    -------
    The new point, and the facts about the step.
    """
    key_momentum, key_band, key_accept = jax.random.split(rng_key, 3)
    dtype = start.x.dtype
    momentum = refresh(key_momentum, start.momentum, persistence)
    if moves is not None:
        momentum = jnp.where(moves | jnp.isnan(start.momentum), momentum, start.momentum)
    start = start._replace(momentum=momentum)
    log_uniform = jnp.log(1.0 - jax.random.uniform(key_accept, (), dtype))
    selection = search(leap, start, draw_band(key_band, dtype), log_uniform)
    is_accepted = selection.is_confirmed & (log_uniform < selection.log_ratio)
    info = AutoStepInfo(
        is_accepted.astype(dtype),
        is_accepted,
        selection.is_exhausted,
        selection.first_rate.astype(dtype),
        selection.selected,
        selection.num_evaluations,
        selection.hidden,
    )
    return accept_or_flip(is_accepted, selection.proposal, start, moves), info
