r"""Line forward-mode MALA (Line-FMALA), Algorithm 2 of Cobb and Jha.

Write :math:`f = \log \pi` and :math:`L L^T` for `inverse_mass_matrix`; :math:`\theta = L^{-1} x`.
Each step draws a tangent :math:`v` (for K tangents, an orthonormal frame :math:`V`) from a law that
does not depend on the position, and makes a MALA move of the coordinate :math:`\alpha` along it
(eqs. 6 and 7):

.. math::
    \theta_* = \theta + V^T r, \qquad
    r = \frac{\epsilon^2}{2} V \nabla f(\theta) + \epsilon z, \qquad z \sim \mathcal{N}(0, I_K).

Given :math:`V` this is a Metropolis-Hastings step for the conditional of :math:`\pi` on the
subspace through :math:`\theta`, with ratio

.. math::
    \frac{\pi(\theta_*)\,
          \mathcal{N}(-r;\, \frac{\epsilon^2}{2} V \nabla f(\theta_*), \epsilon^2 I)}
         {\pi(\theta)\, \mathcal{N}(r;\, \frac{\epsilon^2}{2} V \nabla f(\theta), \epsilon^2 I)},

and leaves :math:`\pi` invariant for every :math:`V`, hence on average. With K = D it is MALA. The
step size is that of a K-dimensional move, about sqrt(D) times that of FMALA.

Cost: the density and its K slopes at both ends, 2 K JVPs. The tangent is new at every step, so the
slope at the start cannot be carried over.

References: A. D. Cobb and S. Jha, Backpropagation-Free Metropolis-Adjusted Langevin Algorithm.
"""

from collections.abc import Callable

from blackjax.types import PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import DensityState as LineFMALAState
from blackjax_ext.mcmc.langevin import MoveInfo as LineFMALAInfo
from blackjax_ext.mcmc.langevin import init_density as init
from blackjax_ext.mcmc.tangent_moves import Along, line_move
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.structures import IDENTITY
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["LineFMALAInfo", "LineFMALAState", "build_kernel", "init", "line_fmala"]


def build_kernel() -> Callable[..., tuple[LineFMALAState, LineFMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: LineFMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        num_tangents: int = 1,
        tangents: tangent_space.TangentLaw = "rademacher",
    ) -> tuple[LineFMALAState, LineFMALAInfo]:
        """One step: 2 K JVPs."""
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(value: Array, slopes: Array) -> langevin.Point:
            return langevin.Point(value, slopes, IDENTITY)

        along = Along(logdensity_fn, tangent_space.slopes, metric, num_tangents, tangents)
        return line_move(rng_key, state, step_size, along, point)

    return kernel


@top_level(init, build_kernel)
def line_fmala(num_tangents: int, tangents: tangent_space.TangentLaw) -> None:
    """Line-FMALA (Cobb and Jha, Algorithm 2): a MALA move along a random line.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    num_tangents
        K in 1..D: the move explores a K-dimensional subspace; K = D is MALA.
    """
    tangent_space.check(num_tangents, tangents)
