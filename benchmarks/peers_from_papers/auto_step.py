r"""BlackJAX's ``gist_step_size`` with all its gradients counted.

AutoStep HMC (Liu et al. 2024, arXiv 2410.18929; Bou-Rabee, Carpenter, Marsden 2024,
arXiv 2404.15253): thresholds a < b are drawn, a search from the start doubles or halves a first
step size until L leapfrog steps have an energy error between them, and the proposal counts if the
same search from its end finds the same. BlackJAX counts the L steps of the proposal alone. Here the
paths of both searches count, the selected one once, though BlackJAX evaluates it again. Draws are
BlackJAX's.
"""

from typing import Any

import blackjax
import jax.numpy as jnp
from blackjax import GenerateSamplingAPI
from blackjax.base import build_sampling_algorithm
from blackjax.mcmc.metrics import default_metric

__all__ = ["auto_step", "build_kernel", "paths"]


def paths(index: Any, is_doubling: Any) -> Any:
    """Paths of a search that ends with :math:`2^{index}` times the first step size.

    The first one decides the direction, each doubling or halving takes one, and doublings end with
    one that is too long.
    """
    return 1 + jnp.abs(index) + is_doubling


def build_kernel(num_integration_steps: int = 8, initial_step_size: float = 0.3):
    """``kernel(rng_key, state, logdensity_fn, inverse_mass_matrix) -> (state, info)``."""
    inner = blackjax.gist_step_size.build_kernel()

    def kernel(rng_key, state, logdensity_fn, inverse_mass_matrix):
        parameters = initial_step_size, inverse_mass_matrix, num_integration_steps
        new, info = inner(rng_key, state, logdensity_fn, *parameters)
        # an error below b at the first step size has made the search try its double, from both ends
        metric = default_metric(inverse_mass_matrix)
        error = info.energy + state.logdensity - metric.kinetic_energy(info.momentum)
        is_small = jnp.abs(error) < -jnp.log(info.tuning_parameter.b)
        there, back = info.step_index, info.reverse_step_index
        num = paths(there, (there > 0) | ((there == 0) & is_small))
        num += paths(back, (back > 0) | ((back == 0) & (there == 0) & is_small))
        return new, info._replace(num_integration_steps=num_integration_steps * num)

    return kernel


def as_top_level_api(
    logdensity_fn: Any,
    inverse_mass_matrix: Any,
    num_integration_steps: int = 8,
    initial_step_size: float = 0.3,
):
    """A BlackJAX algorithm."""
    kernel = build_kernel(num_integration_steps, initial_step_size)
    init = blackjax.gist_step_size.init
    parameters = (inverse_mass_matrix,)
    return build_sampling_algorithm(kernel, init, logdensity_fn, kernel_args=parameters)


auto_step = GenerateSamplingAPI(as_top_level_api, blackjax.gist_step_size.init, build_kernel)
