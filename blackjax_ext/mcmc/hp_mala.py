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
from blackjax_ext.mcmc import smmala
from blackjax_ext.mcmc.smmala import SMMALAInfo as HPMALAInfo
from blackjax_ext.mcmc.smmala import SMMALAState as HPMALAState
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
    metric_fn = metrics.clipped_hessian(floor)
    return smmala.init(position, logdensity_fn, rng_key, inverse_mass_matrix, metric_fn=metric_fn)


def build_kernel() -> Callable[..., tuple[HPMALAState, HPMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        floor=0.1) -> (state, info)``.
    """
    step = smmala.build_kernel()

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
        metric_fn = metrics.clipped_hessian(floor)
        return step(
            rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, metric_fn=metric_fn
        )

    return kernel


@top_level(init, build_kernel)
def hp_mala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    floor: float = FLOOR,
) -> None:
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

    Raises
    ------
    ValueError, TypeError
        For a step size or floor that is not positive and finite, a position that is empty or not
        floating, a density that is not scalar, a Hessian that is not finite at the start.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> rosenbrock = lambda x: -0.05 * (1 - x[0]) ** 2 - (x[1] - x[0] ** 2) ** 2
    >>> hp_mala = blackjax_ext.hp_mala(rosenbrock, step_size=1.0, floor=0.1)
    >>> state = hp_mala.init(jnp.zeros(2))
    >>> state, info = jax.jit(hp_mala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (2,)
    """
    check_positive("floor", floor)
