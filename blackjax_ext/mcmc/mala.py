r"""Preconditioned MALA, the reverse-mode reference of the forward-mode family.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`:

.. math::
    \theta_* = \theta + \frac{\epsilon^2}{2} \nabla f(\theta) + \epsilon z,
    \qquad z \sim \mathcal{N}(0, I),

accepted with the Metropolis-Hastings ratio
:math:`\pi(\theta_*) q(\theta | \theta_*) / (\pi(\theta) q(\theta_* | \theta))`. In :math:`x` the
drift is :math:`\frac{\epsilon^2}{2} L L^T \nabla_x f` and the noise :math:`\epsilon L z`. State and
start are those of ``blackjax.mala``, whose own kernel has no preconditioner and counts its step as
:math:`\epsilon^2 / 2`.

Cost: one gradient per step.

References: G. O. Roberts and R. L. Tweedie 1996, Exponential convergence of Langevin distributions
and their discrete approximations; G. O. Roberts and J. S. Rosenthal 1998 (acceptance 0.574).
"""

from collections.abc import Callable
from functools import partial

from blackjax.types import PRNGKey
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import GradientState as MALAState
from blackjax_ext.mcmc.langevin import MoveInfo as MALAInfo
from blackjax_ext.mcmc.langevin import init_gradient as init
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.structures import IDENTITY
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["MALAInfo", "MALAState", "build_kernel", "init", "mala"]


def build_kernel() -> Callable[..., tuple[MALAState, MALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: MALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
    ) -> tuple[MALAState, MALAInfo]:
        """One step: one gradient."""
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(state: MALAState) -> langevin.Point:
            gradient = langevin.whitened_gradient(state, metric)
            return langevin.Point(state.logdensity, gradient, IDENTITY)

        state_at = partial(langevin.state_at, logdensity_fn)
        return langevin.move(rng_key, state, step_size, metric, point, state_at)

    return kernel


@top_level(init, build_kernel)
def mala() -> None:
    """Preconditioned MALA (Roberts and Tweedie 1996)."""
