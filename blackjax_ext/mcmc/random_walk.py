r"""Preconditioned random-walk Metropolis, the reference for samplers that use gradients.

The chain of BlackJAX's additive-step random walk with the step :math:`\epsilon L z`, where
:math:`L L^T` is `inverse_mass_matrix` and :math:`z \sim \mathcal{N}(0, I)`: a symmetric proposal,
accepted with probability :math:`\min(1, \pi(x_*) / \pi(x))`.

Cost: one evaluation of the density per step, no derivative.

References: N. Metropolis et al. 1953; G. O. Roberts, A. Gelman and W. R. Gilks 1997 (acceptance
0.234, step size 2.38/sqrt(D)).
"""

from collections.abc import Callable

import jax
from blackjax.types import PRNGKey
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import DensityState as RandomWalkState
from blackjax_ext.mcmc.langevin import MoveInfo as RandomWalkInfo
from blackjax_ext.mcmc.langevin import init_density as init
from blackjax_ext.mcmc.langevin import standard_normal
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["RandomWalkInfo", "RandomWalkState", "build_kernel", "init", "random_walk"]


def build_kernel() -> Callable[..., tuple[RandomWalkState, RandomWalkInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: RandomWalkState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
    ) -> tuple[RandomWalkState, RandomWalkInfo]:
        """One step: one evaluation."""
        key_noise, key_accept = jax.random.split(rng_key)
        x, unravel = ravel_pytree(state.position)
        metric = factorize(inverse_mass_matrix, x.size)
        noise = standard_normal(key_noise, x.size, x.dtype)
        position = unravel(x + metric.inverse_sqrt_times(step_size * noise))

        logdensity = logdensity_fn(position)
        log_ratio = logdensity - state.logdensity
        proposal = RandomWalkState(position, logdensity)
        new_state, *facts = langevin.accept(key_accept, log_ratio, logdensity, proposal, state)
        return new_state, RandomWalkInfo(*facts)

    return kernel


@top_level(init, build_kernel)
def random_walk() -> None:
    """Random-walk Metropolis with the step ``epsilon L z``.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is not differentiated.
    step_size
        epsilon > 0, in units of the posterior's scale as given by `inverse_mass_matrix`.
    """
