"""BlackJAX's microcanonical samplers with BlackJAX's tuning, for the leaderboard."""

from collections.abc import Callable
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from numpyro.infer.util import initialize_model

import numpyro_fwd

__all__ = ["GRADIENTS", "NUM_INTEGRATION_STEPS", "microcanonical"]

GRADIENTS = 2  # of a step of the isokinetic integrator
NUM_INTEGRATION_STEPS = 2  # of a proposal of the adjusted one: BlackJAX's default in its tuning
# shares of `num_steps` that BlackJAX's tunings take in all: they shall take the warm-up's steps
SHARE, SHARE_ADJUSTED = 1 / 3, 0.2
TARGET = 0.65  # acceptance probability that the adjusted one is tuned to


def tuned(api: Any, logdensity: Callable, num_steps: int, rng_key: Any, z: Any, variances: Any):
    """Step size, length and variances of one chain from `z`."""
    key_init, key_tune = jax.random.split(rng_key)
    kernel, length = api.build_kernel(), variances.size**0.5
    if api is blackjax.mclmc:
        _, found, _ = blackjax.mclmc_find_L_and_step_size(
            kernel,
            round(num_steps / SHARE),
            api.init(z, logdensity, key_init),
            key_tune,
            logdensity,
            params=MCLMCAdaptationState(length, 0.25 * length, variances),
        )
        return found

    def step(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, **_):
        supplied = {"step_size": step_size, "inverse_mass_matrix": inverse_mass_matrix}
        supplied["integration_steps_params"] = (NUM_INTEGRATION_STEPS,)
        return kernel(rng_key, state, logdensity_fn, **supplied)

    _, found, _ = blackjax.adjusted_mclmc_find_L_and_step_size(
        step,
        logdensity,
        round(num_steps / SHARE_ADJUSTED),
        api.init(z, logdensity),
        key_tune,
        TARGET,
        params=MCLMCAdaptationState(length, 0.2 * length, variances),
        target_num_integration_steps=float(NUM_INTEGRATION_STEPS),
    )
    return found


def microcanonical(
    api: Any, model: Callable, arguments: tuple, steps: tuple[int, int], num_chains: int
) -> Callable[[int], tuple[dict[str, np.ndarray], float]]:
    """From a seed to unconstrained draws (chains, draws, ...) and evaluations of a chain.

    Chains start where our kernels do, are tuned for the steps of the warm-up, share the medians of
    what they found, and burn in for as many steps again.
    """
    num_warmup, num_draws = steps
    starter = numpyro_fwd.MALA(model, dense_mass=False)
    info = initialize_model(
        jax.random.key(0), model, model_args=arguments, dynamic_args=True, validate_grad=False
    )
    is_adjusted = api is blackjax.adjusted_mclmc
    cost = GRADIENTS * (NUM_INTEGRATION_STEPS if is_adjusted else 1)

    @jax.jit
    def sample(z, variances, data, key_tune, key_draw):
        def logdensity(position):
            return -info.potential_fn(*data)(position)

        keys = jax.random.split(key_tune, num_chains)
        tune = partial(tuned, api, logdensity, num_warmup, variances=variances)
        found = jax.vmap(tune)(keys, z)
        found = jax.tree.map(lambda leaf: jnp.median(leaf, axis=0), found)
        own = {"L": found.L}
        if is_adjusted:
            own = {"integration_steps_params": (NUM_INTEGRATION_STEPS,)}
        chain = api(
            logdensity,
            step_size=found.step_size,
            inverse_mass_matrix=found.inverse_mass_matrix,
            **own,
        )
        states = jax.vmap(chain.init)(z, keys)

        def body(states, key):
            states, _ = jax.vmap(chain.step)(jax.random.split(key, num_chains), states)
            return states, states.position

        keys = jax.random.split(key_draw, num_warmup + num_draws)
        _, draws = jax.lax.scan(body, states, keys)
        return jax.tree.map(lambda leaf: leaf[num_warmup:], draws)

    def run(seed: int) -> tuple[dict[str, np.ndarray], float]:
        key_start, key_tune, key_draw = jax.random.split(jax.random.key(seed), 3)
        state = starter.init(
            jax.random.split(key_start, num_chains), num_warmup, None, arguments, {}
        )
        variances = state.adapt_state.frame.inverse()
        z = sample(state.z, variances, arguments, key_tune, key_draw)
        draws = {name: np.moveaxis(np.asarray(value), 0, 1) for name, value in z.items()}
        return draws, float(cost * (2 * num_warmup + num_draws))

    return run
