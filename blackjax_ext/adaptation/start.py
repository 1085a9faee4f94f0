r"""Where chains start: along Newton's path if its Hessians are affordable, else along gradients.

A path of gradients is that of L-BFGS (Pathfinder; Zhang et al. 2022): the curvature along the last
few steps, a diagonal elsewhere, in O(D) memory. It takes the same steps as Newton's path, weighs
the same normals, and each chain starts at a draw from the best on its own path. Its curvature is
no more than a guess: a draw far below its mean in log density is drawn in, towards the mean, until
it is not; and no metric is handed on. Chains are left in the places that their own paths found.

Where even that costs more than a search may (:mod:`blackjax_ext.adaptation.budget`), or a
density has no derivatives, chains start where they are.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_factors, lbfgs_recover_alpha
from jax import Array

from blackjax_ext import work
from blackjax_ext.adaptation import budget
from blackjax_ext.adaptation.approximations import Approximation, finite, gradient_of, negligible
from blackjax_ext.adaptation.budget import Effort, effort_of_gradients, effort_of_hessians
from blackjax_ext.adaptation.multistart import Starts, batches, find_starts, noise_from, unbatched
from blackjax_ext.adaptation.newton_path import (
    Evaluate,
    LocalModel,
    Path,
    evaluator,
    first_paths,
    follow_paths,
)
from blackjax_ext.factoring import density_in_parts, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.stacking import stacked
from blackjax_ext.types import LogDensity, select

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
    logdensity_fn, program = work.traced(stacked(logdensity_fn), x[0])
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
