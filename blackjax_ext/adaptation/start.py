r"""Where chains start: along Newton's path if its Hessians are affordable, else along gradients.

Each chain starts at a draw from what its own path found: chains exist to disagree. A path of Newton
may also end where there is next to nothing, its evidence more than D + 10 below the best in
logarithm. Then further paths are sent out, until there are sixteen. If a quarter of all, and not
one alone, agree with the best, chains of the others start at draws from it. If not, no one knows
what else there is: chains start where they are, one of them at the best, and R-hat tells.

A path of gradients is that of L-BFGS (Pathfinder; Zhang et al. 2022): the curvature along the last
few steps, a diagonal elsewhere, in O(D) memory. It takes the same steps as Newton's path, weighs
the same normals, and each chain starts at a draw from the best on its own path. Its curvature is
no more than a guess: a draw far below its mean in log density is drawn in, towards the mean, until
it is not; and no metric is handed on. Chains are left in the places that their own paths found.

Where even that costs more than a search may (:mod:`blackjax_ext.adaptation.budget`), or a
density has no derivatives, chains start where they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_factors, lbfgs_recover_alpha
from jax import Array

from blackjax_ext import equations
from blackjax_ext.adaptation import budget
from blackjax_ext.adaptation.budget import Effort, effort_of_gradients, effort_of_hessians
from blackjax_ext.adaptation.newton_path import (
    Approximation,
    Evaluate,
    LocalModel,
    ModelFn,
    Path,
    best_of,
    evaluator,
    finite,
    first_paths,
    follow_paths,
    identity,
    negligible,
    newton_model,
    no_approximation,
)
from blackjax_ext.factoring import density_in_parts, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation, gradient_of
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.stacking import stacked
from blackjax_ext.types import LogDensity, select

LEAST_AGREEING = 2  # of all paths, with the best: one alone is as likely as what none has found
LEAST_SHARE = 0.25
FAR = 5.0  # sds of the best approximation


class Starts(NamedTuple):
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
    """What R rounds of P paths found so far; of a single round, evidence and mean have no R."""

    own: Array  # starts of chains on the paths of the first round, (P, D)
    first_values: Array  # log densities at their first points, (P,)
    from_best: Array  # starts of the same chains from the best approximation, (P, D)
    best: Any  # that Approximation
    evidence: Array  # of the best approximation on each path, (R, P)
    mean: Array  # of the same, (R, P, D)

    def is_lesser(self) -> Array:
        """Which paths found too little to matter beside the best, shape (R, P)."""
        least: Array = self.best.evidence - negligible(self.best.mean)
        return self.evidence < least

    def with_round(self, i: Array, new: "Search") -> "Search":
        """The search after its round `i`."""
        is_first = i == 0
        return Search(
            jnp.where(is_first, new.own, self.own),
            jnp.where(is_first, new.first_values, self.first_values),
            new.from_best,
            new.best,
            self.evidence.at[i].set(new.evidence),
            self.mean.at[i].set(new.mean),
        )


Carry = tuple[Array, Array, Search]  # number of the round, turns that are left
Round = Callable[[Array, Array, Array, Approximation, Array], tuple[Array, Search]]


def find_starts(
    rng_key: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    effort: Effort | None = None,
) -> Starts:
    """Starts of C chains from `x`, shape (C, D), and the metric of the best approximation.

    Fewer than four chains send out further paths, uniform on (-2, 2) as NumPyro's starts are, so
    that one alone can tell too. `effort` bounds all this; None for what is affordable.
    """
    num_chains = len(x)
    if effort is None:
        logdensity_fn, program = equations.traced(logdensity_fn, x[0])
        effort = budget.effort_of_hessians(logdensity_fn, program, x, differentiation)
    num_paths, least_turns = effort.num_paths, budget.BUDGET.least_turns
    num_rounds = -(-budget.BUDGET.max_paths // num_paths)
    model_fn = partial(newton_model, logdensity_fn, differentiation, num_rows=effort.num_rows)
    evaluate = evaluator(logdensity_fn, is_large=effort.is_large)
    round_of: Round = partial(take_round, model_fn, evaluate)
    is_light = True
    if effort.at_once < num_paths:
        round_of = partial(in_batches, round_of, effort.at_once)
        is_light = budget.BUDGET.is_light_noise(num_paths, x[0])

    def send(carry: Carry) -> Carry:
        i, left, search = carry
        noise, more, level = uniforms(jax.random.fold_in(rng_key, i), num_paths, x[0], is_light)
        if not is_light:
            noise = jax.random.split(jax.random.fold_in(rng_key, num_rounds + i), num_paths)
        start = jnp.where(i == 0, jnp.concatenate([x, more[num_chains:]]), more)
        max_steps = jnp.minimum(budget.BUDGET.max_steps, left - 1)
        turns, new = round_of(noise, start, level, search.best, max_steps)
        return i + 1, left - turns, search.with_round(i, new)

    def is_open(carry: Carry) -> Array:
        i, left, search = carry
        is_affordable = (i < num_rounds) & (left >= least_turns)
        return (i == 0) | is_affordable & search.is_lesser().any()

    max_turns = max(effort.max_turns, least_turns)
    carry = jnp.array(0), jnp.array(max_turns), no_search(num_rounds, num_paths, x[0])
    return choose_starts(jax.lax.while_loop(is_open, send, carry)[2], num_chains)


def uniforms(
    rng_key: Array, num_paths: int, x: Array, is_light: bool
) -> tuple[Array, Array, Array]:
    """Noise of P paths, (P, S, D), if it is light; further starts, (P, D); and levels, (P,)."""
    # one call: each of jax.random is another program to compile
    sizes = budget.BUDGET.draws * x.size * is_light, x.size, 1
    least = np.nextafter(np.array(-1.0, x.dtype), 0.0)
    even = jax.random.uniform(rng_key, (num_paths, sum(sizes)), x.dtype, least, 1.0)
    noise, more, level = jnp.split(even, np.cumsum(sizes)[:2], axis=1)
    noise = (2.0**0.5 * jax.lax.erf_inv(noise)).reshape(num_paths, -1, x.size)
    return noise, 2.0 * more, 0.5 * (level[:, 0] + 1.0)


def no_search(num_rounds: int, num_paths: int, x: Array) -> Search:
    """The search before its first round."""
    zeros = jnp.zeros((num_paths, x.size), x.dtype)
    return Search(
        zeros,
        zeros[:, 0],
        zeros,
        no_approximation(x, budget.BUDGET.draws, identity(x)),
        jnp.full((num_rounds, num_paths), jnp.nan, x.dtype),
        jnp.zeros((num_rounds, num_paths, x.size), x.dtype),
    )


def take_round(
    model_fn: ModelFn,
    evaluate: Evaluate,
    noise: Array,
    x: Array,
    level: Array,
    before: Approximation,
    max_steps: Array,
) -> tuple[Array, Search]:
    """Number of turns of P paths from x, (P, D), and what they found; `before` is known."""
    turns, paths = follow_paths(model_fn, evaluate, noise, first_paths(x), before, max_steps)
    draw = jax.vmap(Approximation.draw)
    return turns, Search(
        draw(paths.best, level),
        paths.first_value,
        # of draws of a chain's own: chains that all took the same one could not disagree
        draw(paths.from_best, level),
        best_of(paths.best, before),
        paths.best.evidence,
        paths.best.mean,
    )


def in_batches(
    round_of: Round,
    at_once: int,
    noise: Array,
    x: Array,
    level: Array,
    before: Approximation,
    max_steps: Array,
) -> tuple[Array, Search]:
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
        turns, new = round_of(own, x[of], level[of], best, num_steps)
        return (new.best, jnp.maximum(most, turns)), new._replace(best=None)

    num_steps = jnp.where(jnp.arange(2 * num_batches) < num_batches, max_steps, 0)
    twice = jnp.concatenate([places, places])
    (best, turns), ends = jax.lax.scan(next_batch, (before, jnp.array(0)), (twice, num_steps))
    first, second = (
        jax.tree.map(lambda leaf, which=which: unbatched(len(x), leaf[which]), ends)
        for which in (slice(num_batches), slice(num_batches, None))
    )
    return turns, first._replace(from_best=second.from_best, best=best)


def noise_from(source: Array, x: Array) -> Array:
    """Noise of P paths at `x`, (P, D), shape (P, S, D), if `source` is it or a key of each path."""
    if jnp.issubdtype(source.dtype, jnp.floating):
        return source
    shape = budget.BUDGET.draws, x.shape[1]
    return jax.vmap(lambda key: jax.random.normal(key, shape, x.dtype))(source)


def batches(num: int, at_once: int) -> Array:
    """Numbers below `num` in rows of equal length, at most `at_once`; the first fill up the last.

    A shorter row would be another program.
    """
    num_batches = -(-num // at_once)
    size = -(-num // num_batches)
    return jnp.arange(num_batches * size).reshape(num_batches, size) % num


def unbatched(num: int, leaf: Array) -> Array:
    """What was found for :func:`batches`, of shape (num, ...)."""
    return leaf.reshape(-1, *leaf.shape[2:])[:num]


def choose_starts(search: Search, num_chains: int) -> Starts:
    """Starts of the chains, whose paths are the first of the first round."""
    best, is_lesser = search.best, search.is_lesser()
    # a path that never had a density has found no place, better or worse
    is_place = jnp.isfinite(search.evidence)
    num_paths, num_lesser = jnp.sum(is_place), jnp.sum(is_place & is_lesser)
    is_settled = agree(num_paths - num_lesser, num_paths) | (num_lesser == 0)
    own = search.evidence[0, :num_chains]
    is_lost = is_lesser[0, :num_chains]
    # the best was found by none of them: one goes there
    is_sent = is_lost.all() & (jnp.arange(num_chains) == jnp.argmin(own))
    is_moved = (is_lost & is_settled) | is_sent
    x = jnp.where(is_moved[:, None], search.from_best[:num_chains], search.own[:num_chains])
    sd = jnp.sqrt(best.metric.diagonal().inverse())
    is_far = ~(jnp.abs(search.mean - best.mean) <= FAR * sd)
    is_elsewhere = jnp.any(is_far & (is_place & is_lesser)[..., None], axis=(0, 1))
    first_values = search.first_values[:num_chains]
    return Starts(
        x, best.metric, first_values, search.evidence, search.mean, is_settled, is_elsewhere
    )


def agree(num_agreeing: Any, num_paths: Any) -> Any:
    """Whether so many of the paths are enough to say that what they found is the best."""
    return (num_agreeing >= LEAST_AGREEING) & (num_agreeing >= LEAST_SHARE * num_paths)


CURVATURE_MEMORY = 10  # steps of which the curvature is remembered
SHRINKAGES = 2.0 ** -np.arange(12, dtype=np.float32)


class History(NamedTuple):
    """Memory of a path of gradients.

    x, gradient
        The last point and the gradient there, shape (D,).
    steps, changes
        The last steps, and minus the changes of the gradient along them, shape (D, M).
    variances
        Diagonal of the inverse curvature, shape (D,).
    """

    x: Array
    gradient: Array
    steps: Array
    changes: Array
    variances: Array


def find_start(
    rng_key: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    *,
    is_one_by_one: bool = False,
) -> Starts:
    """Starts of C chains from `x`, shape (C, D), for what a search may cost.

    Its `metric` is None where no curvature is known that could be relied on. Points go
    `is_one_by_one` where those that are evaluated together have no density if one has none.
    """
    if differentiation == "none":
        return starts_at(x, jax.vmap(logdensity_fn)(x))
    logdensity_fn = density_in_parts(logdensity_fn, differentiation)
    logdensity_fn, program = equations.traced(stacked(logdensity_fn), x[0])
    apart: dict[str, Any] = {"is_large": True, "at_once": 1} if is_one_by_one else {}
    if x.shape[1] <= budget.BUDGET.dimensions[differentiation]:
        effort = effort_of_hessians(logdensity_fn, program, x, differentiation)
        effort = effort._replace(**apart)
        if effort.is_worthwhile:
            return find_starts(rng_key, logdensity_fn, x, differentiation, effort)
    effort = effort_of_gradients(program, x, differentiation)
    effort = effort._replace(**apart)
    if effort.is_worthwhile:
        return along_gradients(rng_key, logdensity_fn, x, differentiation, effort)
    return starts_at(x, evaluator(logdensity_fn, is_large=is_one_by_one)(x))


def starts_at(x: Array, first_values: Array) -> Starts:
    """Starts of which nothing is known but where they are."""
    evidence, is_elsewhere = jnp.zeros((1, len(x)), x.dtype), jnp.zeros(x.shape[1], bool)
    return Starts(x, None, first_values, evidence, x[None], jnp.array(True), is_elsewhere)


def along_gradients(
    rng_key: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    effort: Effort,
) -> Starts:
    """Starts of C chains on L-BFGS paths from `x`, shape (C, D)."""
    grad_fn, (num_chains, size) = gradient_of(logdensity_fn, differentiation), x.shape
    evaluate = evaluator(logdensity_fn, is_large=effort.is_large)
    key_noise, key_level = jax.random.split(rng_key)

    def model_fn(path: Path, noise: Array) -> LocalModel:
        del noise  # normals of so little memory are no guide to the mass: paths end outside of it
        memory = remembered(path.memory, path.x, grad_fn(path.x))
        return LocalModel(memory.gradient, in_parts(curvature_of, memory), memory=memory)

    def ends_of(noise: Array, x: Array, level: Array) -> tuple[Array, Array]:
        first = first_paths(x, first_metric, no_history)
        before = jax.tree.map(lambda leaf: leaf[0], first.best)
        paths = follow_paths(model_fn, evaluate, noise, first, before, effort.max_turns - 1)[1]
        return jax.vmap(partial(drawn_in, evaluate))(paths.best, level), paths.first_value

    is_whole = effort.at_once >= num_chains
    if is_whole or budget.BUDGET.is_light_noise(num_chains, x[0]):
        noise = jax.random.normal(key_noise, (num_chains, budget.BUDGET.draws, size), x.dtype)
    else:
        noise = jax.random.split(key_noise, num_chains)
    level = jax.random.uniform(key_level, x.shape[:1], x.dtype)
    if is_whole:
        return starts_at(*ends_of(noise, x, level))

    def next_batch(of: Array) -> tuple[Array, Array]:
        return ends_of(noise_from(noise[of], x[of]), x[of], level[of])

    ends = jax.lax.map(next_batch, batches(num_chains, effort.at_once))
    return starts_at(*(unbatched(num_chains, leaf) for leaf in ends))


def first_metric(x: Array) -> LowRank:
    """The metric before any step.

    It has vectors: those of one with steps, as many as its memory spans, are its structure.
    """
    return LowRank.of(jnp.ones_like(x), min(x.size, 2 * CURVATURE_MEMORY))


def no_history(x: Array) -> History:
    """The memory before any step."""
    zeros = jnp.zeros((x.size, CURVATURE_MEMORY), x.dtype)
    return History(x, jnp.zeros_like(x), zeros, zeros, jnp.ones_like(x))


def remembered(memory: History, x: Array, gradient: Array) -> History:
    """The memory with the step to `x`, if the log density is concave along it."""
    step, change = x - memory.x, memory.gradient - gradient
    is_known = jnp.any(memory.gradient != 0)
    variances, _ = lbfgs_recover_alpha(memory.variances, step, change)
    bend = step @ change
    is_usable = is_known & (bend > 1e-12 * jnp.linalg.norm(change)) & jnp.isfinite(bend)
    is_usable &= jnp.all(jnp.isfinite(variances) & (variances > 0))

    def pushed(columns: Array, new: Array) -> Array:
        return jnp.where(is_usable, jnp.column_stack([columns[:, 1:], new]), columns)

    return History(
        x,
        jnp.where(jnp.isfinite(gradient), gradient, 0.0),
        pushed(memory.steps, step),
        pushed(memory.changes, change),
        jnp.where(is_usable, variances, memory.variances),
    )


def curvature_of(memory: History) -> LowRank:
    r"""The L-BFGS metric :math:`\mathrm{diag}(\alpha) + \beta \gamma \beta^T`, by eigenvectors."""
    scale = jnp.sqrt(memory.variances)
    # columns of zeros, for steps not taken yet, would make the factors singular
    beta, gamma = lbfgs_inverse_hessian_factors(memory.steps, memory.changes, memory.variances)
    basis, triangle = jnp.linalg.qr(beta / scale[:, None])
    inner = triangle @ gamma @ triangle.T
    values, turned = jnp.linalg.eigh(0.5 * (inner + inner.T))
    eps = jnp.finfo(scale.dtype).eps
    metric = LowRank(scale, basis @ turned, jnp.maximum(1.0 + values, eps))
    plain = LowRank.of(scale, values.size)
    is_usable = jnp.isfinite(metric.vectors).all() & jnp.isfinite(metric.values).all()
    return select(is_usable, metric, plain)


def drawn_in(evaluate: Evaluate, best: Approximation, level: Array) -> Array:
    """A draw, as far from the mean of `best` as it has not fallen too low."""
    x, mean = best.draw(level), best.mean
    points = jnp.concatenate([mean[None], mean + SHRINKAGES[:, None].astype(x.dtype) * (x - mean)])
    value, *values = finite(evaluate(points))
    is_near = jnp.stack(values) > value - negligible(mean)
    return jnp.where(is_near.any(), points[1 + jnp.argmax(is_near)], mean)
