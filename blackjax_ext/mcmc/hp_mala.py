r"""Hessian-preconditioned MALA (HP-MALA), Algorithm 1 of its paper.

SMMALA whose metric is minus the Hessian with eigenvalues no smaller than a floor: with
:math:`-\nabla^2 f = U \Lambda U^T` and :math:`\tilde\lambda_i = \max(\lambda_i, \delta)`,

.. math::
    \theta_* = \theta + \frac{\epsilon^2}{2} U \tilde\Lambda^{-1} U^T \nabla f(\theta)
    + \epsilon\, U \tilde\Lambda^{-1/2} z, \qquad z \sim \mathcal{N}(0, I),

in coordinates whitened by `inverse_mass_matrix`, accepted with the ratio of
:mod:`blackjax_ext.mcmc.smmala`, whose state and information this module shares.

As :math:`\delta \to \infty` the metric becomes :math:`\delta I`: HP-MALA with step size
:math:`\epsilon \sqrt\delta` is then MALA with :math:`\epsilon`.

Cost: one gradient, one Hessian (D Hessian-vector products) and one eigenvalue problem per step; the
paper's Algorithm 1 counts two of each, since it computes those of the position anew.

What goes wrong: where the density is convex (:math:`\lambda_i < \delta`, the mouth of a funnel) the
step is as long as the floor allows, epsilon over its square root: a small floor is rejected there.

References: Hessian-Preconditioned MALA for Geometry-Adaptive Sampling; M. Girolami and B.
Calderhead 2011, Riemann manifold Langevin and Hamiltonian Monte Carlo methods.
"""

from collections.abc import Callable

from blackjax.types import ArrayLikeTree, PRNGKey

from blackjax_ext import metrics
from blackjax_ext.checks import check_positive
from blackjax_ext.mcmc.langevin import MoveInfo as HPMALAInfo
from blackjax_ext.mcmc.metric_moves import MetricState as HPMALAState
from blackjax_ext.mcmc.metric_moves import init_metric, metric_move
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["HPMALAInfo", "HPMALAState", "build_kernel", "hp_mala", "init"]

FLOOR = 0.1


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    floor: float = FLOOR,
) -> HPMALAState:
    """Make the first state: one gradient, one Hessian. A key is accepted and not used."""
    del rng_key
    metric_fn = metrics.clipped_hessian(floor)
    return init_metric(position, logdensity_fn, inverse_mass_matrix, metric_fn)


def build_kernel() -> Callable[..., tuple[HPMALAState, HPMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: HPMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        floor: float = FLOOR,
    ) -> tuple[HPMALAState, HPMALAInfo]:
        """One step: one gradient, one Hessian, one eigenvalue problem."""
        return metric_move(
            rng_key,
            state,
            logdensity_fn,
            step_size,
            inverse_mass_matrix,
            metrics.clipped_hessian(floor),
        )

    return kernel


@top_level(init, build_kernel)
def hp_mala(floor: float) -> None:
    """HP-MALA (its paper's Algorithm 1): Langevin steps scaled by the clipped Hessian.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, twice differentiable.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the local scale.
    floor
        delta > 0, lower bound of the eigenvalues in coordinates that `inverse_mass_matrix` whitens,
        where a normal posterior has eigenvalues of 1.
    """
    check_positive("floor", floor)
