r"""SGHMC, Algorithm 1 of Zhang, Cooper and De Sa: biased, since nothing is accepted or rejected.

In whitened coordinates :math:`\theta = L^{-1} x` with :math:`r \sim \mathcal{N}(0, I)` a transition
makes T steps of

.. math::
    \theta_t &= \theta_{t-1} + \epsilon\, r_{t-\frac12} \\
    r_{t+\frac12} &= r_{t-\frac12} - \epsilon \nabla\tilde{U}_t(\theta_t)
    - 2 \epsilon\beta\, r_{t-\frac12} + \eta_t, \qquad \eta_t \sim \mathcal{N}(0, 4\epsilon\beta I).

The bias has two sources, the discretization and the noise of the gradient, which acts as heat; both
vanish with the step size only. There is no acceptance ratio to derive and none is computed:
:func:`blackjax_ext.amagold` is the exact algorithm with the same dynamics. Use this one as a
burn-in, or where even one pass over the data is too expensive.

Cost: T minibatch gradients per transition; the energy is never evaluated.

References: T. Chen, E. Fox and C. Guestrin 2014, Stochastic gradient Hamiltonian Monte Carlo; R.
Zhang, A. F. Cooper and C. De Sa 2020, AMAGOLD.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position
from blackjax_ext.metrics import Factor, factors
from blackjax_ext.rows.potentials import StochasticPotential, check_potential
from blackjax_ext.sgmcmc import leapfrog
from blackjax_ext.sgmcmc.leapfrog import Phase, check_friction
from blackjax_ext.sgmcmc.leapfrog import TrajectoryInfo as SGHMCInfo
from blackjax_ext.top_level import top_level

__all__ = ["SGHMCInfo", "SGHMCState", "build_kernel", "init", "sghmc"]


class SGHMCState(NamedTuple):
    """State of the chain.

    Attributes
    ----------
    position
        Pytree of arrays.
    momentum
        Momentum in whitened coordinates, shape (D,).
    """

    position: ArrayTree
    momentum: Array

    @property
    def logdensity(self) -> Array:
        """Not a number, since the log density is never evaluated."""
        return jnp.full(self.momentum.shape[:-1], jnp.nan, self.momentum.dtype)


def init(
    position: ArrayLikeTree, potential: StochasticPotential, rng_key: PRNGKey | None = None
) -> SGHMCState:
    """Make the first state: a momentum, which is zero without a key."""
    check_potential(potential)
    position = check_position(position)
    return SGHMCState(position, leapfrog.first_momentum(rng_key, ravel_pytree(position)[0]))


def sghmc_step(
    phase: Phase,
    gradient_fn: Callable[[Array], Array],
    noise: Array,
    metric: Factor,
    step_size: Array | float,
    friction: Array | float,
) -> Phase:
    """Lines 8 to 11 of Algorithm 1."""
    r, b = phase.momentum, step_size * friction
    x = phase.x + step_size * metric.inverse_sqrt_times(r)
    gradient = metric.inverse_sqrt_transpose_times(gradient_fn(x))
    momentum = r - step_size * gradient - 2.0 * b * r + 2.0 * jnp.sqrt(b) * noise
    return phase._replace(x=x, momentum=momentum)


def build_kernel() -> Callable[..., tuple[SGHMCState, SGHMCInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: SGHMCState,
        potential: StochasticPotential,
        step_size: float,
        inverse_mass_matrix: factors.InverseMassMatrix = None,
        *,
        num_integration_steps: int = 10,
        friction: float = 0.25,
        resample_momentum: bool = True,
    ) -> tuple[SGHMCState, SGHMCInfo]:
        """One transition: T minibatch gradients."""
        key_momentum, key_path = jax.random.split(rng_key)
        start, end, unravel = leapfrog.propose(
            *(key_momentum, key_path, state, sghmc_step),
            *(potential, step_size, inverse_mass_matrix),
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
        )
        is_finite = jnp.isfinite(end.x).all() & jnp.isfinite(end.momentum).all()
        # where it is not, the step is undone and the momentum turned
        x = jnp.where(is_finite, end.x, start.x)
        momentum = jnp.where(is_finite, end.momentum, -start.momentum)
        rate = is_finite.astype(x.dtype)
        no_rows = jnp.zeros((), int)
        info = SGHMCInfo(rate, is_finite, ~is_finite, num_integration_steps, no_rows)
        return SGHMCState(unravel(x), momentum), info

    return kernel


@top_level(init, build_kernel)
def sghmc(
    potential: StochasticPotential,
    num_integration_steps: int,
    friction: float,
    resample_momentum: bool,
) -> dict[str, Any]:
    """SGHMC (Chen, Fox and Guestrin 2014), biased: no Metropolis-Hastings test.

    Parameters
    ----------
    potential
        Of :mod:`blackjax_ext.potentials`; its energy is not used.
    step_size
        epsilon > 0, in units of the posterior's scale as given by `inverse_mass_matrix`. The bias
        grows with it.
    """
    check_friction(friction, num_integration_steps, resample_momentum)
    return {"potential": check_potential(potential)}
