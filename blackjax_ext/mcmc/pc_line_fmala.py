r"""Preconditioned line forward-mode MALA (PC-Line-FMALA), Algorithm 4 of Cobb and Jha.

Write :math:`f = \log \pi` and :math:`L L^T` for `inverse_mass_matrix`; :math:`\theta = L^{-1} x`.
As Line-FMALA, with a step scaled by the curvature along the line. Draw a tangent :math:`v` (for K
tangents, an orthonormal frame :math:`V`) and let

.. math::
    G(\theta) = \left| V \nabla^2 f(\theta) V^T \right|_{\geq \delta},

the K x K matrix of second derivatives with the absolute values of its eigenvalues, none below the
floor :math:`\delta` (for K = 1, :math:`\max(|v^T \nabla^2 f v|, \delta)`). The move is (eqs. 9, 10)

.. math::
    \theta_* = \theta + V^T r, \qquad
    r = \frac{\epsilon^2}{2} G^{-1} V \nabla f(\theta) + \epsilon G^{-1/2} z,
    \qquad z \sim \mathcal{N}(0, I_K).

The proposal from :math:`\theta` is :math:`q = \mathcal{N}(\frac{\epsilon^2}{2} G^{-1} V \nabla f,
\epsilon^2 G^{-1})`, and the reverse one has :math:`G(\theta_*)` and the slopes there, with the same
:math:`V`. Given :math:`V` the ratio

.. math::
    \log \frac{\pi(\theta_*)}{\pi(\theta)}
    + \frac12 \log \frac{|G(\theta_*)|}{|G(\theta)|} + \frac12 |z|^2 - \frac12 |z_*|^2

makes a Metropolis-Hastings step for the conditional of :math:`\pi` on the subspace, so
:math:`\pi` is invariant. :math:`v^T \nabla^2 f v` can be 0: the floor applies to both ends alike.

Cost: density, slopes and curvature at both ends: 2 second-order JVPs, 2 K^2 for K tangents.

What goes wrong: where the curvature vanishes (far tails, flat plateaus) the floor bounds the step
by epsilon over its square root; too small a floor proposes far away from there and is rejected.

References: A. D. Cobb and S. Jha, Backpropagation-Free Metropolis-Adjusted Langevin Algorithm.
"""

from collections.abc import Callable

from blackjax.types import PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_positive
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import DensityState as PCLineFMALAState
from blackjax_ext.mcmc.langevin import MoveInfo as PCLineFMALAInfo
from blackjax_ext.mcmc.langevin import init_density as init
from blackjax_ext.mcmc.tangent_moves import CURVATURE_FLOOR, Along, line_move
from blackjax_ext.metrics.factors import InverseMassMatrix, absolute, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["PCLineFMALAInfo", "PCLineFMALAState", "build_kernel", "init", "pc_line_fmala"]


def build_kernel() -> Callable[..., tuple[PCLineFMALAState, PCLineFMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: PCLineFMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        num_tangents: int = 1,
        curvature_floor: float = CURVATURE_FLOOR,
        tangents: tangent_space.TangentLaw = "rademacher",
    ) -> tuple[PCLineFMALAState, PCLineFMALAInfo]:
        """One step: 2 second-order JVPs, 2 K^2 for K tangents."""
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(value: Array, slopes: Array, curvatures: Array) -> langevin.Point:
            return langevin.Point(value, slopes, absolute(curvatures, curvature_floor))

        along = Along(logdensity_fn, tangent_space.curvatures, metric, num_tangents, tangents)
        return line_move(rng_key, state, step_size, along, point)

    return kernel


@top_level(init, build_kernel)
def pc_line_fmala(
    num_tangents: int, curvature_floor: float, tangents: tangent_space.TangentLaw
) -> None:
    """PC-Line-FMALA (Cobb and Jha, Algorithm 4): a line move scaled by the curvature along it.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    num_tangents
        K in 1..D: the move explores a K-dimensional subspace, scaled by its K x K Hessian.
    """
    check_positive("curvature_floor", curvature_floor)
    tangent_space.check(num_tangents, tangents)
