r"""L2MC: Langevin trajectories with the exact gradient and one acceptance test (Horowitz 1991).

:func:`blackjax_ext.amagold` with :math:`\nabla\tilde{U} = \nabla U`, the paper's full-batch
reference: T steps of

.. math::
    r_* = ((1 - \epsilon\beta) r - \epsilon \nabla U(\theta_t) + \eta_t) / (1 + \epsilon\beta),
    \qquad \eta_t \sim \mathcal{N}(0, 4 \epsilon\beta I)

between half steps of the position, accepted together with probability :math:`\min(1, \exp[U(\theta)
- U(\theta_*) + \rho])`. The derivation is AMAGOLD's. Without friction and with fresh momentum this
is HMC with the leapfrog that starts with the position: :math:`\rho` is then the kinetic energy at
the start less that at the end (Appendix D). Without `resample_momentum` it is generalized HMC whose
partial refreshments happen inside the trajectory.

Cost: T full gradients and one energy per transition.

References: A. M. Horowitz 1991, A generalized guided Monte Carlo algorithm; R. Zhang, A. F. Cooper
and C. De Sa 2020, AMAGOLD.
"""

from collections.abc import Callable
from typing import Any

from blackjax.types import PRNGKey

from blackjax_ext.metrics import factors
from blackjax_ext.rows.potentials import StochasticPotential, check_potential, exact
from blackjax_ext.sgmcmc import amagold
from blackjax_ext.sgmcmc.amagold import AMAGOLDInfo as L2MCInfo
from blackjax_ext.sgmcmc.amagold import AMAGOLDState as L2MCState
from blackjax_ext.sgmcmc.amagold import init as init
from blackjax_ext.sgmcmc.leapfrog import check_friction
from blackjax_ext.top_level import top_level

__all__ = ["L2MCInfo", "L2MCState", "build_kernel", "init", "l2mc"]


def build_kernel() -> Callable[..., tuple[L2MCState, L2MCInfo]]:
    """Build the transition kernel."""
    stochastic = amagold.build_kernel()

    def kernel(
        rng_key: PRNGKey,
        state: L2MCState,
        potential: StochasticPotential,
        step_size: float,
        inverse_mass_matrix: factors.InverseMassMatrix = None,
        *,
        num_integration_steps: int = 10,
        friction: float = 0.25,
        resample_momentum: bool = True,
    ) -> tuple[L2MCState, L2MCInfo]:
        """One transition: T full gradients, one energy."""
        return stochastic(
            *(rng_key, state, exact(potential), step_size, inverse_mass_matrix),
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
        )

    return kernel


@top_level(init, build_kernel)
def l2mc(
    potential: StochasticPotential,
    num_integration_steps: int,
    friction: float,
    resample_momentum: bool,
) -> dict[str, Any]:
    """L2MC (Horowitz 1991): AMAGOLD with the exact gradient; with no friction, HMC.

    Parameters
    ----------
    potential
        Of :mod:`blackjax_ext.potentials`; only its energy is used.
    step_size
        epsilon > 0 of the leapfrog, in units of the posterior's scale as given by
        `inverse_mass_matrix`.
    """
    check_friction(friction, num_integration_steps, resample_momentum)
    return {"potential": exact(check_potential(potential))}
