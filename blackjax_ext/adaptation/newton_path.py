r"""A way out of a bad start: Newton's path, and the best normal approximation along it.

First-order kernels crawl out of a random start on a regression with unscaled covariates; a few
Newton steps jump. The path is the one of saddle-free Newton (Dauphin et al. 2014): with :math:`g`
the gradient and :math:`|H|` minus the Hessian with the absolute values of its eigenvalues, step
along :math:`|H|^{-1} g` and keep the best of a ladder of lengths. It is invariant to the scale of
each parameter and to their correlation.

Far from any mode that invariance is a fault: where H has no sign that means anything, a flat
direction is a leap, and the path ends in a basin that no chain would have drifted to. On a hidden
Markov model whose modes are 65 nats apart, a quarter of the paths ended at the better one. So the
first steps go along the gradient, in the coordinates in which starts are drawn evenly: nearly all
paths end there.

A mode need not be near the mass (Neal's funnel has its mode 13 sds from it), so the start is not
the end of the path. As in Pathfinder (Zhang et al. 2022), each point of the path proposes a normal,
:math:`\mathcal{N}(x, |H|^{-1})`, and the best of them wins; the chain starts at one of its draws,
taken by importance. Best means the largest importance-weighted bound of the log evidence (Burda et
al. 2016), which counts the mass that a normal covers. The plain evidence lower bound does not
serve: a single draw where the log density is -1e20 decides it.

In many dimensions no point of the path to a mode may be near the mass: of 190 effects that share a
scale, the mode has the smallest scale that there is, and paths from outside run past all others. So
beyond MANY dimensions a path ascends the log density averaged over a pair of draws,
:math:`x \pm |H|^{-1/2} z` with one z for the whole path, in place of that at x: the first step of
a variational Newton method (Opper & Archambeau 2009). For a normal the two are the same. With the
spread of the effects in it, the slope along their scale is zero where that of its marginal density
is, about. One pair will do, since a sum over many dimensions is near its mean. Where draws tell
nothing, their slope far above that at x, the path ascends the density at x.

Differentiation is forward (D JVPs for a gradient, D^2 second-order JVPs for a Hessian), reverse, or
gradients alone, whose differences are the Hessian.

*What it costs is bounded.* A search takes no more than CHEAP operations, or MAX_GRADIENTS gradients
for each chain, about those of 300 steps of AutoMALA, whichever is more. Operations are counted in
the density's program (:mod:`blackjax_ext.work`); no clock is read. Where that is not enough
for all paths, fewer are sent, with fewer steps and no further rounds; where it is not enough for
LEAST_TURNS of one path for each chain, paths take gradients alone
(:mod:`blackjax_ext.adaptation.start`).

*So is its memory*: about that of three steps of all chains, or 16 MiB. Rows of a Hessian that have
no room, and then paths, go after the others; and of each batch of paths its ends alone are kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext import work
from blackjax_ext.adaptation.windows import MANY
from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation, differenced
from blackjax_ext.metrics import Dense, Factor
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.types import LogDensity

__all__ = [
    "MAX_DIMENSION",
    "Approximation",
    "Effort",
    "Found",
    "Path",
    "affordable",
    "approximate",
    "batches",
    "derivatives",
    "each_of",
    "find",
    "find_all",
    "finite",
    "joined",
    "negligible",
    "nothing",
    "room_for",
    "takes_hessians",
    "walk",
]

Turn: TypeAlias = tuple[Array, Array, "Path"]  # its number, whether it is the last, and the paths
Slope: TypeAlias = Callable[["Path", Array], "Uphill"]

MAX_STEPS = 60
GRADIENT_STEPS = 3  # at first, of at most LENGTHS each
NUM_DRAWS = 16
MISLED = 4.0  # a slope of draws that is so much steeper than at the point they surround
LEAST_GAIN = 0.01  # for each dimension, of a step by a pair of draws: it is never at its end
MIN_PATHS = 4
MAX_PATHS = 16  # unless there are more chains; sent out where fewer disagree
LEAST_AGREEING = 2  # of all paths, with the best: one alone is as likely as what none has found
LEAST_SHARE = 0.25
FAR = 5.0  # sds of the best approximation
LENGTHS = 2.0 ** (2 - np.arange(16, dtype=np.float32))
NUDGES = np.array([0.0, -5.0, -2.0, 2.0, 5.0], np.float32)  # units in the last place
ROUNDING = 16.0  # how often their range is taken off the evidence
CHUNK = 16  # Hessian rows at once: bounds the memory of a big model
MAX_DIMENSION = {"forward": 128, "reverse": 512, "gradients": 512, "none": 0}
MAX_GRADIENTS = 1200  # of a search, for each chain: 300 steps of four gradients
CHEAP = 2e10  # operations of a search that are a matter of seconds, whatever a step costs
LEAST_TURNS = 8  # of a path that is worth its Hessians
NUM_POINTS = NUDGES.size + LENGTHS.size + NUM_DRAWS  # evaluations of a turn, without pairs
LARGE = 2**23  # bytes of all points' largest arrays, from which on they are evaluated one by one
ROOM = 2**24  # bytes of paths at once, the others after them
MATRICES = 7  # (D, D), that a path has in memory
NOISE = 7  # arrays of its size, that are in memory while noise is drawn
ARRAYS = 3  # as large as the largest of an evaluation, that a step of a chain has in memory


class Approximation(NamedTuple):
    """A normal approximation of the target.

    mean
        Its mean, shape (D,).
    metric
        Factor of its precision.
    draws
        A few draws from it, shape (S, D); its mean where the target is not finite.
    log_weights
        Log importance of each, shape (S,).
    """

    mean: Array
    metric: Any
    draws: Array
    log_weights: Array

    @property
    def evidence(self) -> Array:
        """Importance-weighted bound of the log evidence, -inf where there is no approximation."""
        return finite(jax.nn.logsumexp(self.log_weights) - jnp.log(self.log_weights.size))

    def draw(self, level: Array) -> Array:
        """One of the draws by importance, shape (D,): that at `level`, uniform on (0, 1)."""
        shares = jnp.cumsum(jax.nn.softmax(self.log_weights))
        return self.draws[jnp.minimum(jnp.sum(shares < level), self.log_weights.size - 1)]


class Path(NamedTuple):
    """Newton's path: point, whether it goes on, best so far, value at the start.

    `own` is the best approximation of all paths with draws of this one, once all have ended;
    `memory` is what a path that takes no Hessian remembers.
    """

    x: Array
    is_moving: Array
    best: Approximation
    own: Approximation
    first_value: Array
    memory: Any = None


class Uphill(NamedTuple):
    """Where a path goes from its point.

    gradient
        Of the log density, or of its mean over a pair of draws, shape (D,).
    metric
        Factor of |H|.
    pair
        The draws from the point, shape (2, D); zeros for the log density at the point; None where
        paths have no such pair.
    memory
        Of the path, with this point.
    """

    gradient: Array
    metric: Factor
    pair: Array | None = None
    memory: Any = None


class Found(NamedTuple):
    """Where C chains may start, and what R rounds of P paths say of it.

    x
        Positions, shape (C, D).
    metric
        Factor of the curvature at the best approximation; None if there is none to rely on.
    first_values
        Log densities at the points from which the paths went out, shape (C,).
    evidence, mean
        Log evidence and mean of the best approximation on each path, (R, P) and (R, P, D); NaN
        and zero where none was sent.
    is_settled
        Whether so many paths agree with the best that chains of others were put there.
    is_elsewhere
        Coordinates in which paths that disagree ended more than five sds from the best, shape (D,).
    """

    x: Array
    metric: Any
    first_values: Array
    evidence: Array
    mean: Array
    is_settled: Array
    is_elsewhere: Array


class Search(NamedTuple):
    """R rounds of P paths, so far.

    mine, first_values
        Starts of chains on the paths of the first round, (P, D), and log densities at their first
        points, (P,).
    from_best
        Starts of the same chains from the best approximation, (P, D).
    best
        That approximation.
    evidence, mean
        Log evidence and mean of the best approximation on each path, (R, P) and (R, P, D).
    """

    mine: Array
    first_values: Array
    from_best: Array
    best: Approximation
    evidence: Array
    mean: Array


class Ends(NamedTuple):
    """What a round of P paths found: see :class:`Search`, whose evidence and mean are of rounds."""

    mine: Array
    first_values: Array
    from_best: Array
    evidence: Array
    mean: Array


class Effort(NamedTuple):
    """How much a search may do.

    num_paths
        Paths of a round.
    max_turns
        Turns of a round's paths, in all rounds.
    is_large
        Whether arrays are so large that points are evaluated one by one.
    num_rows
        Rows of a Hessian that a path computes at once.
    at_once
        How many paths are in memory at once.
    """

    num_paths: int
    max_turns: int
    is_large: bool
    num_rows: int
    at_once: int

    @property
    def is_worthwhile(self) -> bool:
        """Whether it is enough for paths that take Hessians."""
        return self.max_turns >= LEAST_TURNS


def affordable(
    logdensity_fn: LogDensity, program: Any, x: Array, differentiation: Differentiation
) -> Effort:
    """What a search of `program`, traced from `logdensity_fn`, may do for C chains at x, (C, D)."""
    num_chains, size = x.shape
    num_paths = max(MIN_PATHS, num_chains)
    most = (MAX_STEPS + 1) * -(-MAX_PATHS // num_paths)
    value = work.operations(program)
    gradients, eigen = gradients_of_turn(size, differentiation), 4.0 * size**3
    evaluation = work.largest(program)
    num_points = points_of_turn(size)
    is_large = num_points * num_paths * evaluation > LARGE
    room = room_for(num_chains, evaluation)
    per_row = 2 * evaluation * (size if differentiation == "forward" else 1)
    num_rows = min(CHUNK, max(1, room // (num_paths * max(per_row, 1)) - 1))
    points = 0 if is_large else 2 * num_points * evaluation
    matrices = MATRICES * size**2 * x.dtype.itemsize
    at_once = max(1, room // (max(per_row * (num_rows + 1), points) + matrices))
    if num_paths * most * (4.0 * value * gradients + eigen) <= CHEAP:
        return Effort(num_paths, most, is_large, num_rows, min(at_once, num_paths))
    # a count of the derivatives' own program: much of it is shared by the rows of a Hessian
    traced = jax.make_jaxpr(lambda x: derivatives(logdensity_fn, x, differentiation))(x[0])
    turn = work.operations(traced) + num_points * value + eigen
    turns = max(MAX_GRADIENTS * num_chains / gradients, CHEAP / turn)
    if turns < LEAST_TURNS * num_paths:
        num_paths = num_chains
    most = min(most, int(turns / num_paths))
    return Effort(num_paths, most, is_large, num_rows, min(at_once, num_paths))


def room_for(num_chains: int, evaluation: int) -> int:
    """Bytes that a start may take: about those of three steps, or `ROOM` if that is more.

    `evaluation` is the largest array of an evaluation, in bytes.
    """
    return max(ROOM, 3 * ARRAYS * num_chains * evaluation)


def gradients_of_turn(size: int, differentiation: Differentiation) -> float:
    """What a turn of a path costs, in gradients; in forward mode, in JVPs."""
    rows = {"reverse": 2 * size, "gradients": 6 * size, "forward": 2 * size**2, "none": 0}
    gradient = size if differentiation == "forward" else 1
    pair = 2 * gradient if size > MANY else 0
    return rows[differentiation] + pair + 1 + points_of_turn(size) / 3


def takes_hessians(size: int, differentiation: Differentiation) -> bool:
    """Whether paths take Hessians whatever an evaluation costs."""
    turns = MAX_GRADIENTS / gradients_of_turn(size, differentiation)
    return turns >= LEAST_TURNS and size <= MAX_DIMENSION[differentiation]


def points_of_turn(size: int) -> int:
    """Evaluations of a turn: with a pair of draws at each rung and at the point itself."""
    return NUM_POINTS + (LENGTHS.size + 2 if size > MANY else 0)


def find(
    noise: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    best_before: Approximation | None = None,
) -> Path:
    """Best normal approximations along Newton's paths from `x`, shape (P, D), where these end.

    `noise`, standard normal of shape (P, S, D), makes the draws of every approximation on a path:
    what differs between two of them is not chance. `best_before` is what earlier paths found.

    Where the log density is known up to rounding only, the evidence is less by what that may add:
    for the concentration of a beta law, without a bound, 1e16 ends in sums of roundings that are
    larger than any evidence.

    Cost: up to 61 turns of all paths, each with one gradient, one Hessian, one eigenvalue problem
    and 37 evaluations; beyond MANY dimensions with three gradients and 55. In a program the density
    stands twice, beyond MANY dimensions three times: in the derivatives, and in the evaluations of
    a turn. One loop takes the steps of all paths, and then evaluates the draws of the best
    approximation in one turn more: a density in a loop of each path, and in a program of its own
    for those draws, takes twice as long to compile.
    """
    slope = partial(newton_slope, logdensity_fn, differentiation)
    before = nothing(x[0], noise[0]) if best_before is None else best_before
    return walk(slope, each_of(logdensity_fn), noise, first_paths(x, noise), before, MAX_STEPS)[1]


def walk(
    slope: Slope,
    evaluate: Callable[[Array], Array],
    noise: Array,
    first: Path,
    before: Approximation,
    max_steps: int | Array,
) -> tuple[Array, Path]:
    """Number of turns, and the ends of paths that step along `slope`, at most `max_steps` times."""
    turn_of_one = partial(turn, slope, evaluate)

    def is_going(carry: Turn) -> Array:
        return ~carry[1]

    def turn_of_all(carry: Turn) -> Turn:
        i, _, paths = carry
        is_last = ~jnp.any(paths.is_moving) | (i == max_steps)
        best = best_of(paths.best, before)
        new = jax.vmap(turn_of_one, (0, 0, None, None, None))(noise, paths, best, i, is_last)
        return i + 1, is_last, new

    i, _, paths = jax.lax.while_loop(is_going, turn_of_all, (jnp.array(0), jnp.array(False), first))
    return i, paths


def first_paths(x: Array, noise: Array) -> Path:
    """Newton's paths before their first turn."""
    nowhere = jax.vmap(nothing)(x, noise)
    moving, value = jnp.ones(x.shape[:1], bool), jnp.zeros(x.shape[:1], x.dtype)
    return Path(x, moving, nowhere, nowhere, value)


def newton_slope(
    logdensity_fn: LogDensity,
    differentiation: Differentiation,
    path: Path,
    noise: Array,
    *,
    num_rows: int = CHUNK,
) -> Uphill:
    """Gradient and metric |H| where the path is, in many dimensions that of a pair of draws."""
    uphill = Uphill(*curvature(logdensity_fn, path.x, differentiation, num_rows))
    if path.x.size <= MANY:
        return uphill
    return to_the_mass(gradient_of(logdensity_fn, differentiation), path.x, noise, uphill)


def to_the_mass(grad_fn: LogDensity, x: Array, noise: Array, uphill: Uphill) -> Uphill:
    """`uphill` by the mean of a pair of draws about x, where they tell something."""
    metric = uphill.metric
    # nearly independent of the draws, of each row of the noise, that weigh what the path finds
    signs = jnp.where(jnp.sum(noise, axis=0) < 0, -1.0, 1.0).astype(x.dtype)
    offset = metric.inverse_sqrt_times(signs)
    pair = jnp.stack([offset, -offset])
    # one after the other, in the memory of one gradient
    mean = jnp.mean(jax.lax.map(grad_fn, x + pair), axis=0)
    of_pair, at_x = (
        jnp.sum(metric.inverse_sqrt_transpose_times(gradient) ** 2)
        for gradient in (mean, uphill.gradient)
    )
    is_telling = of_pair <= MISLED * (at_x + x.size)  # False of what is not finite
    return uphill._replace(
        gradient=jnp.where(is_telling, mean, uphill.gradient),
        pair=jnp.where(is_telling, pair, 0.0),
    )


def gradient_of(logdensity_fn: LogDensity, differentiation: Differentiation) -> LogDensity:
    """The gradient, in the mode that there is."""
    if differentiation == "gradients":
        logdensity_fn = differenced(logdensity_fn)
    return jax.jacfwd(logdensity_fn) if differentiation == "forward" else jax.grad(logdensity_fn)


def each_of(logdensity_fn: LogDensity, *, is_large: bool = False) -> Callable[[Array], Array]:
    """Log densities of n points (n, D) at once, or one by one where that would fill the memory."""
    return partial(jax.lax.map, logdensity_fn) if is_large else jax.vmap(logdensity_fn)


def turn(
    slope: Slope,
    evaluate: Callable[[Array], Array],
    noise: Array,
    path: Path,
    best: Approximation,
    i: Array,
    is_last: Array,
) -> Path:
    """One step of one path; in the last turn, draws of the `best` approximation of all instead."""
    gradient, metric, pair, memory = slope(path, noise)
    whitened = metric.inverse_sqrt_transpose_times(gradient)
    newton = metric.inverse_sqrt_times(whitened)
    is_early = i < GRADIENT_STEPS
    direction = jnp.where(is_early, unit(gradient), newton)
    ladder = path.x + LENGTHS[:, None].astype(path.x.dtype) * direction
    seen = ladder if pair is None else seen_from(jnp.concatenate([path.x[None], ladder]), pair)
    mean, shape = jax.tree.map(
        partial(jnp.where, is_last), (best.mean, best.metric), (path.x, metric)
    )
    draws = mean + shape.inverse_sqrt_times(noise)
    values = evaluate(jnp.concatenate([nudged(path.x), seen, draws]))
    values, first_value = finite(values), values[0]
    near, rungs, drawn = jnp.split(values, [NUDGES.size, NUDGES.size + len(seen)])
    height, least_gain = values[0], 0.0
    if pair is not None:
        means = finite(jnp.mean(rungs.reshape(len(pair), -1), axis=0))
        height, rungs, least_gain = means[0], means[1:], LEAST_GAIN * path.x.size
    rounding = jnp.where(is_last, 0.0, ROUNDING * jnp.ptp(near))
    here = weigh(mean, shape, noise, drawn - rounding)
    own = jax.tree.map(partial(jnp.where, is_last), here, path.own)
    is_on = path.is_moving & ~is_last
    is_new = is_on & (here.evidence > path.best.evidence)
    best_here = jax.tree.map(partial(jnp.where, is_new), here, path.best)
    top = jnp.argmax(rungs)
    is_better = rungs[top] > height
    # |whitened|^2 / 2 is what a quadratic has yet to gain; a path may also run away from the mass
    is_astray = here.evidence < best_here.evidence - negligible(path.x)
    has_far_to_go = whitened @ whitened > 1e-2
    is_worth_it = rungs[top] > height + least_gain
    is_moving = is_on & (is_early | is_worth_it & has_far_to_go & ~is_astray)
    x = jnp.where(is_on & is_better, ladder[top], path.x)
    first_value = jnp.where(i == 0, first_value, path.first_value)
    return Path(x, is_moving, best_here, own, first_value, memory)


def seen_from(points: Array, pair: Array) -> Array:
    """A pair about each of n points, (2 n, D)."""
    return (points + pair[:, None]).reshape(-1, points.shape[1])


def best_of(found: Approximation, before: Approximation) -> Approximation:
    """The best of several approximations and of one before them."""
    evidence = evidences(found)
    top = jnp.argmax(evidence)
    is_new = evidence[top] > before.evidence
    best: Approximation = jax.tree.map(
        lambda new, old: jnp.where(is_new, new[top], old), found, before
    )
    return best


def unit(gradient: Array) -> Array:
    """The gradient with length 1; a sum of its squares could overflow."""
    gradient = gradient / jnp.maximum(jnp.max(jnp.abs(gradient)), jnp.finfo(gradient.dtype).tiny)
    return gradient / jnp.maximum(jnp.linalg.norm(gradient), 0.5)


def nothing(x: Array, noise: Array, metric: Factor | None = None) -> Approximation:
    """Before there is any approximation; `metric` has the structure of those that will come."""
    num_draws = noise.shape[0]
    draws = jnp.tile(x, (num_draws, 1))
    metric = identity(x) if metric is None else metric
    return Approximation(x, metric, draws, jnp.full(num_draws, -jnp.inf, x.dtype))


def evidences(found: Approximation) -> Array:
    """Evidence of each of several approximations, shape (P,)."""
    evidence: Array = jax.vmap(lambda each: each.evidence)(found)
    return evidence


def find_all(
    rng_key: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    effort: Effort | None = None,
) -> Found:
    """Starts of C chains from `x`, shape (C, D), and the metric of the best approximation.

    Each chain starts at a draw from what its own path found: chains exist to disagree. A path may
    also end where there is next to nothing, its evidence more than D + 10 below the best in
    logarithm. Then further paths are sent out, until there are sixteen. If a quarter of all, and
    not one alone, agree with the best, chains of the others start at draws from it. If not, no one
    knows what else there is: chains start where they are, one of them at the best, and R-hat tells.

    Fewer than four chains send out further paths, uniform on (-2, 2) as NumPyro's starts are, so
    that one alone can tell too. `effort` bounds all this; None for what is affordable.
    """
    num_chains, size = x.shape
    if effort is None:
        logdensity_fn, program = work.traced(logdensity_fn, x[0])
        effort = affordable(logdensity_fn, program, x, differentiation)
    num_paths, max_turns = effort.num_paths, max(effort.max_turns, LEAST_TURNS)
    num_rounds = -(-MAX_PATHS // num_paths)
    slope = partial(newton_slope, logdensity_fn, differentiation, num_rows=effort.num_rows)
    round_of = partial(walk_to_ends, slope, each_of(logdensity_fn, is_large=effort.is_large))
    is_light = True
    if effort.at_once < num_paths:
        round_of = partial(in_turn, round_of, effort.at_once)
        is_light = is_light_noise(num_paths, x[0])
    # one call: each of jax.random is another program to compile
    sizes = NUM_DRAWS * size * is_light, size, 1
    least = np.nextafter(np.array(-1.0, x.dtype), 0.0)

    def send(carry: tuple[Array, Array, Search]) -> tuple[Array, Array, Search]:
        i, left, search = carry
        key = jax.random.fold_in(rng_key, i)
        even = jax.random.uniform(key, (num_paths, sum(sizes)), x.dtype, least, 1.0)
        noise, more, level = jnp.split(even, np.cumsum(sizes)[:2], axis=1)
        noise = (2.0**0.5 * jax.lax.erf_inv(noise)).reshape(num_paths, -1, size)
        if not is_light:
            noise = jax.random.split(jax.random.fold_in(rng_key, num_rounds + i), num_paths)
        more, level = 2.0 * more, 0.5 * (level[:, 0] + 1.0)
        is_first = i == 0
        start = jnp.where(is_first, jnp.concatenate([x, more[num_chains:]]), more)
        max_steps = jnp.minimum(MAX_STEPS, left - 1)
        best, turns, ends = round_of(noise, start, level, search.best, max_steps)
        return (
            i + 1,
            left - turns,
            Search(
                jnp.where(is_first, ends.mine, search.mine),
                jnp.where(is_first, ends.first_values, search.first_values),
                ends.from_best,
                best,
                search.evidence.at[i].set(ends.evidence),
                search.mean.at[i].set(ends.mean),
            ),
        )

    def is_open(carry: tuple[Array, Array, Search]) -> Array:
        i, left, search = carry
        is_affordable = (i < num_rounds) & (left >= LEAST_TURNS)
        return (i == 0) | is_affordable & is_poor(search).any()

    zeros = jnp.zeros((num_paths, size), x.dtype)
    first = Search(
        zeros,
        zeros[:, 0],
        zeros,
        nothing(x[0], jnp.zeros((NUM_DRAWS, size), x.dtype)),
        jnp.full((num_rounds, num_paths), jnp.nan, x.dtype),
        jnp.zeros((num_rounds, num_paths, size), x.dtype),
    )
    found = jax.lax.while_loop(is_open, send, (jnp.array(0), jnp.array(max_turns), first))[2]
    return settle(found, num_chains)


def walk_to_ends(
    slope: Slope,
    evaluate: Callable[[Array], Array],
    noise: Array,
    x: Array,
    level: Array,
    before: Approximation,
    max_steps: Array,
) -> tuple[Approximation, Array, Ends]:
    """The best approximation of P paths and of `before`, the number of turns, and the ends."""
    turns, paths = walk(slope, evaluate, noise, first_paths(x, noise), before, max_steps)
    draw = jax.vmap(Approximation.draw)
    ends = Ends(
        draw(paths.best, level),
        paths.first_value,
        # of draws of a chain's own: chains that all took the same one could not disagree
        draw(paths.own, level),
        evidences(paths.best),
        paths.best.mean,
    )
    return best_of(paths.best, before), turns, ends


def in_turn(
    round_of: Callable[..., tuple[Approximation, Array, Ends]],
    at_once: int,
    noise: Array,
    x: Array,
    level: Array,
    before: Approximation,
    max_steps: Array,
) -> tuple[Approximation, Array, Ends]:
    """The same by batches of paths, of which only the ends stay in memory.

    Once the best of all is known, each batch takes a turn without a step, for its draws of that.
    `noise` may be a key of each path, if that of all would take much memory.
    """
    places = batches(len(x), at_once)
    num_batches = len(places)

    def next_batch(carry: tuple[Approximation, Array], batch: tuple[Array, Array]) -> Any:
        best, most = carry
        of, num_steps = batch
        own = noise_from(noise[of], x[of])
        best, turns, ends = round_of(own, x[of], level[of], best, num_steps)
        return (best, jnp.maximum(most, turns)), ends

    num_steps = jnp.where(jnp.arange(2 * num_batches) < num_batches, max_steps, 0)
    twice = jnp.concatenate([places, places])
    (best, turns), ends = jax.lax.scan(next_batch, (before, jnp.array(0)), (twice, num_steps))

    def half(which: slice) -> Ends:
        found: Ends = jax.tree.map(lambda leaf: joined(len(x), leaf[which]), ends)
        return found

    from_best = half(slice(num_batches, None)).from_best
    return best, turns, half(slice(num_batches))._replace(from_best=from_best)


def is_light_noise(num_paths: int, x: Array) -> bool:
    """Whether the noise of so many paths may be drawn at once; one starts at `x`, shape (D,)."""
    return NOISE * NUM_DRAWS * num_paths * x.nbytes <= ROOM


def noise_from(source: Array, x: Array) -> Array:
    """Noise of P paths at `x`, (P, D), shape (P, S, D), if `source` is it or a key of each path."""
    if jnp.issubdtype(source.dtype, jnp.floating):
        return source
    return jax.vmap(lambda key: jax.random.normal(key, (NUM_DRAWS, x.shape[1]), x.dtype))(source)


def batches(num: int, at_once: int) -> Array:
    """Numbers below `num` in rows of equal length, at most `at_once`; the first fill up the last.

    A shorter row would be another program.
    """
    num_batches = -(-num // at_once)
    size = -(-num // num_batches)
    return jnp.arange(num_batches * size).reshape(num_batches, size) % num


def joined(num: int, leaf: Array) -> Array:
    """What was found for :func:`batches`, of shape (num, ...)."""
    return leaf.reshape(-1, *leaf.shape[2:])[:num]


def settle(search: Search, num_chains: int) -> Found:
    """Starts of the chains, whose paths are the first of the first round."""
    best, is_worse = search.best, is_poor(search)
    # a path that never had a density has found no place, better or worse
    is_place = jnp.isfinite(search.evidence)
    num_paths, num_worse = jnp.sum(is_place), jnp.sum(is_place & is_worse)
    is_settled = num_paths - num_worse >= jnp.maximum(LEAST_AGREEING, LEAST_SHARE * num_paths)
    is_settled |= num_worse == 0
    own = search.evidence[0, :num_chains]
    is_lost = is_worse[0, :num_chains]
    # the best was found by none of them: one goes there
    is_sent = is_lost.all() & (jnp.arange(num_chains) == jnp.argmin(own))
    is_moved = (is_lost & is_settled) | is_sent
    x = jnp.where(is_moved[:, None], search.from_best[:num_chains], search.mine[:num_chains])
    sd = jnp.sqrt(best.metric.diagonal().inverse())
    is_far = jnp.abs(search.mean - best.mean) > FAR * sd
    is_elsewhere = jnp.any(is_far & (is_place & is_worse)[..., None], axis=(0, 1))
    first_values = search.first_values[:num_chains]
    return Found(
        x, best.metric, first_values, search.evidence, search.mean, is_settled, is_elsewhere
    )


def is_poor(search: Search) -> Array:
    """Which paths found too little to matter beside the best, shape (R, P)."""
    return search.evidence < search.best.evidence - negligible(search.best.mean)


def nudged(x: Array) -> Array:
    """The point, and others in whose values it differs by rounding alone, (n, D)."""
    unit = float(jnp.finfo(x.dtype).eps) * jnp.maximum(jnp.abs(x), 1.0)
    return x + NUDGES[:, None].astype(x.dtype) * unit


def negligible(x: Array | np.ndarray) -> float:
    """Difference of log evidence at which the lesser approximation does not matter."""
    return x.size + 10.0


def finite(values: Array) -> Array:
    """`values` with -inf for what is not finite."""
    return jnp.where(jnp.isfinite(values), values, -jnp.inf)


def identity(x: Array) -> Dense:
    """The metric of a start that has no curvature to go by."""
    eye = jnp.eye(x.size, dtype=x.dtype)
    return Dense(eye, eye, jnp.zeros((), x.dtype))


def curvature(
    logdensity_fn: LogDensity, x: Array, differentiation: Differentiation, num_rows: int = CHUNK
) -> tuple[Array, Dense]:
    """Gradient and the metric |H| at `x`."""
    gradient, hessian = derivatives(logdensity_fn, x, differentiation, num_rows)
    return gradient, in_parts(metric_of, gradient, hessian)


def derivatives(
    logdensity_fn: LogDensity, x: Array, differentiation: Differentiation, num_rows: int = CHUNK
) -> tuple[Array, Array]:
    """Gradient (D,) and Hessian (D, D) at `x`, at most `num_rows` of its rows at once."""
    grad_fn = gradient_of(logdensity_fn, differentiation)

    rows = partial(in_parts, partial(along_each, grad_fn), x)
    directions = directions_of(x, num_rows)
    if len(directions) == 1:
        gradient, hessian = rows(directions[0])
    else:
        gradients, hessian = jax.lax.map(rows, directions)
        gradient, hessian = gradients[0], hessian.reshape(-1, x.size)[: x.size]
    return gradient, 0.5 * (hessian + hessian.T)


def directions_of(x: Array, num_rows: int) -> Array:
    """The unit vectors in equal chunks, (n, m, D); zeros fill the last one up.

    A chunk of another size would be another program.
    """
    num_chunks = -(-x.size // num_rows)
    size = -(-x.size // num_chunks)
    return jnp.eye(num_chunks * size, x.size, dtype=x.dtype).reshape(num_chunks, size, x.size)


def metric_of(gradient: Array, hessian: Array) -> Dense:
    """The metric |H|; where that overflows, steps along the gradient.

    Far out in float32 a Hessian can overflow where the gradient does not.
    """
    size, eps = gradient.size, float(jnp.finfo(gradient.dtype).eps)
    metric = scaled_eigen(-hessian).absolute(size * eps)
    is_usable = jnp.isfinite(metric.inverse_sqrt).all() & jnp.isfinite(metric.sqrt).all()
    length = jnp.maximum(jnp.max(jnp.abs(gradient)), 1.0) ** 0.5  # a norm would overflow too
    eye = identity(gradient).sqrt
    along_gradient = Dense(eye / length, eye * length, 2.0 * size * jnp.log(length))
    chosen: Dense = jax.tree.map(partial(jnp.where, is_usable), metric, along_gradient)
    return chosen


def approximate(
    rng_key: Array, logdensity_fn: LogDensity, x: Array, metric: Dense
) -> Approximation:
    """The normal N(x, G^-1) with draws from it, weighed by a log density at one after the other."""
    noise = jax.random.normal(rng_key, (NUM_DRAWS, x.size), x.dtype)
    values = finite(jax.lax.map(logdensity_fn, x + metric.inverse_sqrt_times(noise)))
    return weigh(x, metric, noise, values)


def weigh(x: Array, metric: Dense, noise: Array, values: Array) -> Approximation:
    """The normal N(x, G^-1) and its draws from `noise`, (S, D), with their log densities (S,)."""
    draws = x + metric.inverse_sqrt_times(noise)
    log_q = -0.5 * jnp.sum(noise**2, axis=1) + 0.5 * metric.log_det(x.size)
    log_weights = finite(values - log_q)
    is_usable = jnp.isfinite(log_weights)[:, None]
    return Approximation(x, metric, jnp.where(is_usable, draws, x), log_weights)
