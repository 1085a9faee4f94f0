r"""Metropolis adjusted kinetic Langevin with the BCSS2 integrator (MAKLA, arXiv 2509.09162).

Of the paper what is certain: generalized HMC (Horowitz 1991) of one step of the integrator a
transition. With the metric M and a step size h, a transition is

.. math::
    p \leftarrow \eta p + \sqrt{1 - \eta^2}\, M^{1/2} z, \quad \eta = e^{-\gamma h},
    \qquad (x', p') = \text{BCSS2}_h(x, p),

which is accepted with probability :math:`\min(1, \exp(-\Delta H))`, and :math:`p` is reversed
where it is not. The refreshment keeps the normal law of the momentum. BCSS2 (Blanes, Casas,
Sanz-Serna 2014: kicks of b h, (1 - 2 b) h and b h around two drifts of h / 2, b = 0.211781) keeps
volume and, followed by a reversal of the momentum, undoes itself, so its acceptance keeps the
target. Reversing the momentum of either outcome once more, which the target does not notice, leaves
the accepted as they are and reverses the rejected.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax import GenerateSamplingAPI
from blackjax.base import build_sampling_algorithm
from blackjax.mcmc import hmc, integrators
from blackjax.mcmc.metrics import default_metric

__all__ = ["State", "build_kernel", "kinetic_langevin"]

B = 0.211781
BCSS2 = integrators.generate_euclidean_integrator([B, 0.5, 1 - 2 * B, 0.5, B])
COST = 2  # gradients of a step


class State(NamedTuple):
    """Position and momentum."""

    position: Any
    momentum: Any
    logdensity: Any
    logdensity_grad: Any


def init(position: Any, logdensity_fn: Any) -> State:
    """At rest, which the first refreshments forget."""
    logdensity, gradient = jax.value_and_grad(logdensity_fn)(position)
    return State(position, jax.tree.map(jnp.zeros_like, position), logdensity, gradient)


def build_kernel(friction: float = 1.0, num_transitions: int = 8):
    """``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info)``.

    friction
        gamma, in the time of whitened coordinates.
    num_transitions
        So many make a draw, with the mean of their acceptance rates.
    """

    def kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix):
        metric = default_metric(inverse_mass_matrix)
        integrate = BCSS2(logdensity_fn, metric.kinetic_energy)
        eta = jnp.exp(-friction * step_size)

        def energy(at):
            return metric.kinetic_energy(at.momentum, position=at.position) - at.logdensity

        def transition(state, rng_key):
            key_momentum, key_accept = jax.random.split(rng_key)
            fresh = metric.sample_momentum(key_momentum, state.position)
            momentum = jax.tree.map(
                lambda old, new: eta * old + jnp.sqrt(1 - eta**2) * new, state.momentum, fresh
            )
            start = integrators.IntegratorState(*state._replace(momentum=momentum))
            end = integrate(start, step_size)
            error = energy(end) - energy(start)
            error = jnp.where(jnp.isnan(error), jnp.inf, error)
            rate = jnp.exp(jnp.minimum(-error, 0.0))
            is_accepted = jax.random.uniform(key_accept) < rate
            back = start._replace(momentum=jax.tree.map(jnp.negative, momentum))
            new = jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), State(*end), State(*back))
            return new, (rate, is_accepted, error > 1000)

        keys = jax.random.split(rng_key, num_transitions)
        new, (rates, accepted, divergent) = jax.lax.scan(transition, state, keys)
        num = jnp.asarray(COST * num_transitions)
        end = integrators.IntegratorState(*new)
        flags = accepted.any(), divergent.any()
        return new, hmc.HMCInfo(new.momentum, rates.mean(), *flags, energy(end), end, num)

    return kernel


def as_top_level_api(
    logdensity_fn: Any,
    step_size: float,
    inverse_mass_matrix: Any,
    friction: float = 1.0,
    num_transitions: int = 8,
):
    """A BlackJAX algorithm."""
    kernel = build_kernel(friction, num_transitions)
    parameters = (step_size, inverse_mass_matrix)
    return build_sampling_algorithm(kernel, init, logdensity_fn, kernel_args=parameters)


kinetic_langevin = GenerateSamplingAPI(as_top_level_api, init, build_kernel)
