"""Microcanonical Langevin ensembles (Sommer et al. 2025): members are optimized, then sampled.

Each member is trained by Adam on the log density from a draw of the prior, and keeps where its
validation loss was least; from there it is a chain of BlackJAX's MCLMC, tuned by BlackJAX to the
energy variance that the paper ends its schedule with, without preconditioning. What the members
keep is one mixture.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

__all__ = ["optimized", "sampled"]

LEARNING_RATE = 0.005
ENERGY_VARIANCE = 0.1  # per dimension


def optimized(
    start: Any,
    logdensity: Callable,
    validation: Callable,
    num_steps: int,
    num_checks: int = 50,
) -> Any:
    """The position with the least `validation(position)` of `num_checks` along Adam's way."""
    optimizer = optax.adam(LEARNING_RATE)

    def step(carry, _):
        position, state = carry
        slope = jax.grad(lambda p: -logdensity(p))(position)
        updates, state = optimizer.update(slope, state, position)
        return (optax.apply_updates(position, updates), state), None

    def check(carry, _):
        moving, best, least = carry
        moving, _ = jax.lax.scan(step, moving, length=num_steps // num_checks)
        loss = validation(moving[0])
        is_better = loss < least
        best = jax.tree.map(partial(jnp.where, is_better), moving[0], best)
        return (moving, best, jnp.where(is_better, loss, least)), None

    first = ((start, optimizer.init(start)), start, jnp.inf)
    return jax.lax.scan(check, first, length=num_checks)[0][1]


def sampled(
    rng_key: Array,
    position: Any,
    logdensity: Callable,
    collect: Callable,
    num_tuning: int,
    num_draws: int,
    thinning: int,
) -> Any:
    """What `collect(position)` has of each `thinning`-th step of a tuned chain."""
    flat, unravel = ravel_pytree(position)

    def target(x):
        return logdensity(unravel(x))

    key_init, key_tune, key_run = jax.random.split(rng_key, 3)
    kernel = blackjax.mclmc.build_kernel()
    state, found, _ = blackjax.mclmc_find_L_and_step_size(
        kernel,
        num_tuning,
        blackjax.mclmc.init(flat, target, key_init),
        key_tune,
        target,
        frac_tune1=0.4,
        frac_tune2=0.4,
        frac_tune3=0.2,
        desired_energy_var=ENERGY_VARIANCE,
        diagonal_preconditioning=False,
    )

    tuned = found.inverse_mass_matrix, found.L, found.step_size

    def step(state, rng_key):
        return kernel(rng_key, state, target, *tuned)[0], None

    def draw(state, rng_key):
        state, _ = jax.lax.scan(step, state, jax.random.split(rng_key, thinning))
        return state, collect(unravel(state.position))

    return jax.lax.scan(draw, state, jax.random.split(key_run, num_draws))[1]
