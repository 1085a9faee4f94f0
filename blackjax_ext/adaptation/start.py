r"""Where chains start: along Newton's path if its Hessians are affordable, else along gradients.

A path of gradients is that of L-BFGS (Pathfinder; Zhang et al. 2022): the curvature along the last
few steps, a diagonal elsewhere, in O(D) memory. It takes the same steps as Newton's path, weighs
the same normals, and each chain starts at a draw from the best on its own path. Its curvature is
no more than a guess: a draw far below its mean in log density is drawn in, towards the mean, until
it is not; and no metric is handed on. Chains are left in the places that their own paths found.

Where even that costs more than a search may (:mod:`blackjax_ext.adaptation.newton_path`), or a
density has no derivatives, chains start where they are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_factors, lbfgs_recover_alpha
from jax import Array

from blackjax_ext import work
from blackjax_ext.adaptation import newton_path
from blackjax_ext.adaptation.newton_path import Approximation, Found, Path, Uphill
from blackjax_ext.factoring import density_in_parts, in_parts
from blackjax_ext.mcmc.derivatives import Differentiation
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.stacking import stacked
from blackjax_ext.types import LogDensity, select

__all__ = ["find_start"]

CURVATURE_MEMORY = 10  # steps of which the curvature is remembered
VECTORS_OF_PATH = 190  # (D,), that a path has in memory
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
    rng_key: Array, logdensity_fn: LogDensity, x: Array, differentiation: Differentiation
) -> Found:
    """Starts of C chains from `x`, shape (C, D), for what a search may cost.

    Its `metric` is None where no curvature is known that could be relied on.
    """
    if differentiation == "none":
        return left_alone(logdensity_fn, x)
    logdensity_fn = density_in_parts(logdensity_fn, differentiation)
    logdensity_fn, program = work.traced(stacked(logdensity_fn), x[0])
    if x.shape[1] <= newton_path.MAX_DIMENSION[differentiation]:
        effort = newton_path.affordable(logdensity_fn, program, x, differentiation)
        if effort.is_worthwhile:
            return newton_path.find_all(rng_key, logdensity_fn, x, differentiation, effort)
    max_turns = affordable_turns(program, x.shape[1], differentiation)
    if max_turns < newton_path.LEAST_TURNS:
        return left_alone(logdensity_fn, x)
    evaluation = work.largest(program)
    is_large = len(x) * newton_path.NUM_POINTS * evaluation > newton_path.LARGE
    num_evaluations = 1 if is_large else newton_path.NUM_POINTS
    if differentiation == "forward":
        num_evaluations = max(num_evaluations, x.shape[1])
    own = VECTORS_OF_PATH * x.shape[1] * x.dtype.itemsize
    room = newton_path.room_for(len(x), evaluation)
    at_once = max(1, room // (2 * num_evaluations * evaluation + own))
    arguments = rng_key, logdensity_fn, x, differentiation, max_turns, is_large
    return along_gradients(*arguments, at_once=at_once)


def affordable_turns(program: Any, size: int, differentiation: Differentiation) -> int:
    """Turns of a path that takes a gradient in each."""
    jvps = size if differentiation == "forward" else 1
    gradients = jvps + newton_path.NUM_POINTS / 3
    turn = 4.0 * gradients * work.operations(program)
    cheap = newton_path.CHEAP / (newton_path.MIN_PATHS * max(turn, 1.0))
    turns = max(newton_path.MAX_GRADIENTS / gradients, cheap)
    return int(min(turns, newton_path.MAX_STEPS + 1))


def left_alone(logdensity_fn: LogDensity, x: Array) -> Found:
    """Chains where they are."""
    return found_at(x, jax.vmap(logdensity_fn)(x))


def found_at(x: Array, first_values: Array) -> Found:
    """Starts of which nothing is known but where they are."""
    return Found(
        x,
        None,
        first_values,
        jnp.zeros((1, len(x)), x.dtype),
        x[None],
        jnp.array(True),
        jnp.zeros(x.shape[1], bool),
    )


def along_gradients(
    rng_key: Array,
    logdensity_fn: LogDensity,
    x: Array,
    differentiation: Differentiation,
    max_turns: int,
    is_large: bool,
    *,
    at_once: int,
) -> Found:
    """Starts of C chains on L-BFGS paths from `x`, shape (C, D); `at_once` of them in memory."""
    grad_fn = newton_path.gradient_of(logdensity_fn, differentiation)
    evaluate = newton_path.each_of(logdensity_fn, is_large=is_large)
    key_noise, key_level = jax.random.split(rng_key)

    def slope(path: Path, noise: Array) -> Uphill:
        del noise  # normals of so little memory are no guide to the mass: paths end outside of it
        memory = remembered(path.memory, path.x, grad_fn(path.x))
        return Uphill(memory.gradient, in_parts(curvature_of, memory), memory=memory)

    def settled(path: Path, level: Array) -> Any:
        return drawn_in(evaluate, path.best, level)

    def walked(noise: Array, x: Array, level: Array) -> tuple[Array, Array]:
        first = initial_paths(x, noise)
        before = jax.tree.map(lambda leaf: leaf[0], first.best)
        paths = newton_path.walk(slope, evaluate, noise, first, before, max_turns - 1)[1]
        return jax.vmap(settled)(paths, level), paths.first_value

    is_light = at_once >= len(x) or newton_path.is_light_noise(len(x), x[0])
    if is_light:
        noise = jax.random.normal(key_noise, (len(x), newton_path.NUM_DRAWS, x.shape[1]), x.dtype)
    else:
        noise = jax.random.split(key_noise, len(x))
    level = jax.random.uniform(key_level, x.shape[:1], x.dtype)
    if at_once >= len(x):
        return found_at(*walked(noise, x, level))

    def next_batch(of: Array) -> tuple[Array, Array]:
        return walked(newton_path.noise_from(noise[of], x[of]), x[of], level[of])

    ends = jax.lax.map(next_batch, newton_path.batches(len(x), at_once))
    return found_at(*(newton_path.joined(len(x), leaf) for leaf in ends))


def initial_paths(x: Array, noise: Array) -> Path:
    """Paths before their first turn, of which nothing is remembered."""

    def first(x: Array, noise: Array) -> Path:
        zeros = jnp.zeros((x.size, CURVATURE_MEMORY), x.dtype)
        memory = History(x, jnp.zeros_like(x), zeros, zeros, jnp.ones_like(x))
        # a metric without steps has vectors: those of one with steps are its structure
        nowhere = newton_path.nothing(x, noise, LowRank.of(jnp.ones_like(x), rank_of(x.size)))
        value = jnp.zeros((), x.dtype)
        return Path(x, jnp.array(True), nowhere, nowhere, value, memory)

    return jax.vmap(first)(x, noise)


def rank_of(size: int) -> int:
    """Number of directions that a memory of steps and changes spans."""
    return min(size, 2 * CURVATURE_MEMORY)


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


def drawn_in(evaluate: Any, best: Approximation, level: Array) -> Array:
    """A draw, as far from the mean of `best` as it has not fallen too low."""
    x, mean = best.draw(level), best.mean
    points = jnp.concatenate([mean[None], mean + SHRINKAGES[:, None].astype(x.dtype) * (x - mean)])
    value, *values = newton_path.finite(evaluate(points))
    is_near = jnp.stack(values) > value - newton_path.negligible(mean)
    return jnp.where(is_near.any(), points[1 + jnp.argmax(is_near)], mean)
