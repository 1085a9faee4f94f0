r"""Metropolis adjusted Langevin trajectories (Riou-Durand and Vogrinc 2022, arXiv 2202.13230).

With the metric M, from a position x and a fresh momentum p, each of L steps of size h is

.. math::
    p \leftarrow \eta p + \sqrt{1 - \eta^2}\, M^{1/2} z, \quad
    (x, p) \leftarrow \text{leapfrog}_h(x, p), \quad
    p \leftarrow \eta p + \sqrt{1 - \eta^2}\, M^{1/2} z', \qquad \eta = e^{-\gamma h / 2}.

The refreshments keep the normal law of the momentum, and the leapfrog keeps volume and is
reversible, so the path as a whole is accepted by the energy errors of its leapfrog steps alone:
with probability :math:`\min(1, \exp(-\sum \Delta_i))`. Without friction it is HMC.
"""

from typing import Any

import jax
import jax.numpy as jnp
from blackjax import GenerateSamplingAPI
from blackjax.base import build_sampling_algorithm
from blackjax.mcmc import hmc, integrators
from blackjax.mcmc.metrics import default_metric

__all__ = ["build_kernel", "malt"]


def build_kernel(num_steps: int = 8, friction: float = 1.0):
    """``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info)``.

    num_steps
        L, leapfrog steps of a path, each a gradient.
    friction
        gamma, in the time of whitened coordinates.
    """

    def kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix):
        metric = default_metric(inverse_mass_matrix)
        leapfrog = integrators.velocity_verlet(logdensity_fn, metric.kinetic_energy)
        eta = jnp.exp(-0.5 * friction * step_size)

        def refreshed(rng_key, at):
            fresh = metric.sample_momentum(rng_key, at.position)
            mixed = jax.tree.map(
                lambda old, new: eta * old + jnp.sqrt(1 - eta**2) * new, at.momentum, fresh
            )
            return at._replace(momentum=mixed)

        def energy(at):
            return metric.kinetic_energy(at.momentum, position=at.position) - at.logdensity

        def step(carry, rng_key):
            at, error = carry
            first, second = jax.random.split(rng_key)
            before = refreshed(first, at)
            after = leapfrog(before, step_size)
            return (refreshed(second, after), error + energy(after) - energy(before)), None

        key_momentum, key_path, key_accept = jax.random.split(rng_key, 3)
        momentum = metric.sample_momentum(key_momentum, state.position)
        start = integrators.IntegratorState(
            state.position, momentum, state.logdensity, state.logdensity_grad
        )
        zero = jnp.zeros_like(state.logdensity)
        keys = jax.random.split(key_path, num_steps)
        (end, error), _ = jax.lax.scan(step, (start, zero), keys)
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        rate = jnp.exp(jnp.minimum(-error, 0.0))
        is_accepted = jax.random.uniform(key_accept) < rate
        new = hmc.HMCState(end.position, end.logdensity, end.logdensity_grad)
        is_divergent = error > 1000
        info = hmc.HMCInfo(momentum, rate, is_accepted, is_divergent, energy(end), end, num_steps)
        return jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), new, state), info

    return kernel


def as_top_level_api(
    logdensity_fn: Any,
    step_size: float,
    inverse_mass_matrix: Any,
    num_steps: int = 8,
    friction: float = 1.0,
):
    """A BlackJAX algorithm."""
    kernel = build_kernel(num_steps, friction)
    parameters = (step_size, inverse_mass_matrix)
    return build_sampling_algorithm(kernel, hmc.init, logdensity_fn, kernel_args=parameters)


malt = GenerateSamplingAPI(as_top_level_api, hmc.init, build_kernel)
