r"""Manifold MALA (MMALA) of Girolami and Calderhead, with the drift of Xifara et al.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`, and
:math:`G(\theta)` for the metric there. The Langevin diffusion with volatility :math:`G^{-1}` that
leaves :math:`\pi` invariant has the drift (Xifara et al. 2014)

.. math::
    \frac12 G^{-1} \nabla f + \Gamma, \qquad
    \Gamma_i = \frac12 \sum_j \frac{\partial (G^{-1})_{ij}}{\partial \theta_j},

so the proposal is :math:`\theta + \frac{\epsilon^2}{2} (G^{-1} \nabla f + 2 \Gamma) + \epsilon
G^{-1/2} z`. It is SMMALA's with :math:`\nabla f + 2 G \Gamma` in place of the gradient, and so is
its acceptance ratio, with both terms taken anew at the other end.

Papamarkou and Ford's equation 6 (Girolami and Calderhead's drift) has
:math:`-\epsilon^2 \sum_{ij} G^{-1}_{ij} \Gamma^k_{ij} = \epsilon^2 (2 \Gamma_k + \frac12 (G^{-1}
\nabla \log |G|)_k)` instead of :math:`\epsilon^2 \Gamma_k`: it is the diffusion for a density
with respect to the volume of the manifold, not to Lebesgue measure. The acceptance step makes
both exact; the proposal with the drift above is closer to the correct diffusion.

Cost: SMMALA's, and the derivative of the metric: D gradients of second derivatives for a Hessian
metric (as the Hessian itself, up to a constant), D JVPs of the metric function for another.

What goes wrong: clipped and absolute eigenvalues have derivatives that jump; SoftAbs has none.

References: T. Xifara et al. 2014, Langevin diffusions and the Metropolis-adjusted Langevin
algorithm; M. Girolami and B. Calderhead 2011; T. Papamarkou and E. Ford.
"""

from collections.abc import Callable
from typing import Any

from blackjax.types import ArrayLikeTree, PRNGKey

from blackjax_ext import metrics
from blackjax_ext.mcmc.langevin import MoveInfo as MMALAInfo
from blackjax_ext.mcmc.metric_moves import MetricState as MMALAState
from blackjax_ext.mcmc.metric_moves import init_metric, metric_kernel
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["MMALAInfo", "MMALAState", "build_kernel", "init", "mmala"]

METRIC = metrics.softabs_hessian()


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> MMALAState:
    """Make the first state: one gradient, one metric and its derivative. No key is used."""
    del rng_key
    return init_metric(position, logdensity_fn, inverse_mass_matrix, metric_fn, divergence=True)


def build_kernel() -> Callable[..., tuple[MMALAState, MMALAInfo]]:
    """Build the transition kernel."""
    return metric_kernel(METRIC)


@top_level(init, build_kernel)
def mmala(metric_fn: metrics.MetricFn) -> dict[str, Any]:
    """MMALA (Girolami and Calderhead 2011; Xifara et al. 2014): SMMALA with curvature terms.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, three times differentiable.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the metric: of the order of 1
        where it is the local precision.
    """
    return {"metric_fn": metrics.as_metric(metric_fn)}
