r"""A step size selected before each move, and checked in reverse: the search of AutoMALA.

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

*Batches.* Each iteration of one loop is a trial, forward or reverse. Under ``jax.vmap`` a step
takes as long as that of the slowest chain. Chains that run one by one do not wait.

References: M. Biron-Lattes et al. 2024, autoMALA (arXiv 2310.16782); T. Liu et al. 2024, AutoStep
MCMC (arXiv 2410.18929).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from blackjax_ext.precision import inner
from blackjax_ext.types import select

MAX_EXPONENT = 20  # steps from a millionth to a million times the first one
THERE, BACK, FINISHED = range(3)

Leap = Callable[["PhasePoint", Array], "PhasePoint"]


class PhasePoint(NamedTuple):
    """A place and a momentum.

    x
        Flat position, shape (D,).
    momentum
        Shape (D,), in whitened coordinates.
    logdensity
        Log density at x.
    gradient
        Shape (D,).
    """

    x: Array
    momentum: Array
    logdensity: Array
    gradient: Array


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


def draw_band(rng_key: Array, dtype: DTypeLike) -> Band:
    """Draw b uniformly in (0.99, 1) and a in (0, 0.5).

    Steps grow only where they are needlessly exact, and shrink only where a move would be lost: of
    a narrow band the way back selects the same step less often, and more trials are needed.
    """
    u = 1.0 - jax.random.uniform(rng_key, (2,), dtype)  # log(0) is not drawn
    return Band(-jnp.log1p(-0.01 * u[0]), -jnp.log(0.5 * u[1]))


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
        return new._replace(num_evaluations=trials.num_evaluations + 1)

    zero, no = jnp.zeros((), jnp.int32), jnp.array(False)
    nothing = jnp.zeros_like(start.logdensity)
    is_lost = jnp.isnan(start.logdensity)  # no trial would be in the band
    stage = jnp.where(is_lost, FINISHED, THERE).astype(jnp.int32)
    first = StepSearch(stage, zero, zero, zero, start, nothing, nothing, no, is_lost, zero)
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
    # whether the first trial says double, halve or neither
    told = (d < band.inner).astype(jnp.int32) - (d > band.outer).astype(jnp.int32)
    direction = jnp.where(is_first, told, trials.direction)
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
