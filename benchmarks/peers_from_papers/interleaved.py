"""Interleaved HMC (Gorinova, Moore, Hoffman 2020, arXiv 1906.03028).

A draw is a transition of NUTS in the coordinates of the centred model and then one in those of the
model that is not centred, each with a step size and a metric of its own that the warm-up adapts.

Why it is exact. The densities of both forms are those of one posterior in two coordinate systems:
the map between them takes the one to the other, its Jacobian with it. A transition that keeps the
density of its form therefore keeps the posterior, and so do the two of them, one after the other.

The map is read off the model that is not centred: its effects are loc + scale * noise, of which a
noise of zero tells loc, and a derivative scale.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import NUTS
from numpyro.infer.hmc import HMCState
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import potential_energy

from benchmarks.harness.hierarchies import NOISE, Model

__all__ = ["Interleaved", "State", "to_centred", "to_noise"]


def to_centred(deterministic: Any, z: dict) -> dict:
    """Effects in place of their noise; `deterministic` gives a model's sites at `z`."""
    effects = [k.removesuffix(NOISE) for k in z if k.endswith(NOISE)]
    sites = deterministic(z)
    others = {k: x for k, x in z.items() if not k.endswith(NOISE)}
    return others | {k: sites[k] for k in effects}


def to_noise(deterministic: Any, effects: tuple[str, ...], z: dict) -> dict:
    """Inverse of :func:`to_centred`."""
    others = {k: x for k, x in z.items() if k not in effects}

    def effects_of(noise):
        sites = deterministic(others | {k + NOISE: x for k, x in noise.items()})
        return {k: sites[k] for k in effects}

    zeros, ones = ({k: jnp.full_like(z[k], to) for k in effects} for to in (0, 1))
    loc, scale = jax.jvp(effects_of, (zeros,), (ones,))
    return others | {k + NOISE: (z[k] - loc[k]) / scale[k] for k in effects}


class State(NamedTuple):
    """Of both kernels; `z` is the position in the centred form after both transitions.

    `num_steps` counts all gradients: those of both transitions, and one where each of them starts.
    """

    z: dict
    num_steps: Any
    diverging: Any
    centred: HMCState
    not_centred: HMCState
    rng_key: Any


class Interleaved(MCMCKernel):
    """Kernel for ``numpyro.infer.MCMC`` from both forms of a model without arguments."""

    sample_field = "z"

    def __init__(self, centred: Model, not_centred: Model):
        self.centred, self.not_centred = NUTS(centred), NUTS(not_centred)
        self._sample_fn = None

    @property
    def model(self) -> Model:
        """Whose sites are the draws."""
        return self.centred.model

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict) -> Any:
        """Of the centred model."""
        return self.centred.postprocess_fn(model_args, model_kwargs)

    def get_diagnostics_str(self, state: State) -> str:
        """Both step sizes."""
        sizes = (each.adapt_state.step_size for each in (state.centred, state.not_centred))
        return "step sizes " + ", ".join(f"{size:.2e}" for size in sizes)

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs) -> State:
        """Chains where the centred model starts."""
        is_single = jnp.ndim(rng_key) == 0
        keys = jax.random.split(rng_key) if is_single else jax.vmap(jax.random.split)(rng_key).T
        arguments = (num_warmup, init_params, model_args, model_kwargs)
        centred = self.centred.init(keys[0], *arguments)
        not_centred = self.not_centred.init(keys[1], num_warmup, None, model_args, model_kwargs)
        self._sample_fn = self.sample  # MCMC initializes again while there is none
        num = jnp.zeros_like(centred.num_steps)
        return State(centred.z, num, centred.diverging, centred, not_centred, rng_key)

    def sample(self, state: State, model_args: tuple, model_kwargs: dict) -> State:
        """A transition in each form."""
        over_chains = jax.vmap if jnp.ndim(state.centred.i) else lambda function: function
        deterministic = self.not_centred.postprocess_fn(model_args, model_kwargs)
        effects = tuple(k for k in state.z if k + NOISE in state.not_centred.z)

        def moved(kernel, old, z):
            def potential(z):
                return potential_energy(kernel.model, model_args, model_kwargs, z)

            energy, gradient = over_chains(jax.value_and_grad(potential))(z)
            there = old._replace(z=z, potential_energy=energy, z_grad=gradient)
            return kernel.sample(there, model_args, model_kwargs)

        centred = moved(self.centred, state.centred, state.z)
        noise = over_chains(lambda z: to_noise(deterministic, effects, z))(centred.z)
        not_centred = moved(self.not_centred, state.not_centred, noise)
        z = over_chains(lambda z: to_centred(deterministic, z))(not_centred.z)
        z = {k: z[k] for k in state.z}
        num_steps = centred.num_steps + not_centred.num_steps + 2
        diverging = centred.diverging | not_centred.diverging
        return State(z, num_steps, diverging, centred, not_centred, state.rng_key)
