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
from typing import Any, NamedTuple

from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.checks import check_position
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import MoveInfo as MMALAInfo
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["MMALAInfo", "MMALAState", "build_kernel", "init", "mmala"]

METRIC = metrics.softabs_hessian()


class MMALAState(NamedTuple):
    r"""State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    logdensity_grad
        Its gradient, a pytree like the position.
    metric
        Factor of the metric at the position, in whitened coordinates.
    divergence
        Twice :math:`\Gamma` there, shape (D,).
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: ArrayTree
    metric: metrics.Factor
    divergence: Array


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
    position = check_position(position)
    preconditioner = metrics.factorize(inverse_mass_matrix, ravel_pytree(position)[0].size)
    state = curved_state(logdensity_fn, position, preconditioner, metric_fn)
    metrics.check_metric(state.metric)
    return state


def curved_state(
    logdensity_fn: LogDensity,
    position: ArrayTree,
    preconditioner: metrics.Factor,
    metric_fn: metrics.MetricFn,
) -> MMALAState:
    """State at `position`: one gradient, one metric and its derivative."""
    local = metrics.as_metric(metric_fn).evaluate(
        logdensity_fn, position, preconditioner, divergence=True
    )
    assert local.divergence is not None
    return MMALAState(position, *local[:3], local.divergence)


def build_kernel() -> Callable[..., tuple[MMALAState, MMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        metric_fn=softabs_hessian(10.0)) -> (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: MMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        metric_fn: metrics.MetricFn = METRIC,
    ) -> tuple[MMALAState, MMALAInfo]:
        """One step: one gradient, one metric and its derivative."""
        size = ravel_pytree(state.position)[0].size
        preconditioner = metrics.factorize(inverse_mass_matrix, size)

        def point(state: MMALAState) -> langevin.Point:
            gradient = ravel_pytree(state.logdensity_grad)[0]
            whitened = preconditioner.inverse_sqrt_transpose_times(gradient)
            curved = whitened + state.metric.times(state.divergence)
            return langevin.Point(state.logdensity, curved, state.metric)

        def state_at(position: ArrayTree) -> MMALAState:
            return curved_state(logdensity_fn, position, preconditioner, metric_fn)

        return langevin.move(rng_key, state, step_size, preconditioner, point, state_at)

    return kernel


@top_level(init, build_kernel)
def mmala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> dict[str, Any]:
    """MMALA (Girolami and Calderhead 2011; Xifara et al. 2014): SMMALA with curvature terms.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, three times differentiable.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the metric: of the order of 1
        where it is the local precision.
    inverse_mass_matrix
        Estimate of the posterior covariance: None, shape (D,), shape (D, D), or a factor. The
        floors of a metric are measured in coordinates that it whitens.

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive and finite, a position that is empty or not floating,
        a density that is not scalar, a metric of the wrong shape, or one that is not positive
        definite at the start. One that is not so later is rejected, and shows as divergent.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import metrics
    >>> mmala = blackjax_ext.mmala(
    ...     lambda x: -0.5 * jnp.sum(x**2), 1.0, metric_fn=metrics.softabs_hessian(10.0)
    ... )
    >>> state = mmala.init(jnp.zeros(3))
    >>> state, info = jax.jit(mmala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (3,)
    """
    return {"metric_fn": metrics.as_metric(metric_fn)}
