r"""Simplified manifold MALA (SMMALA) of Girolami and Calderhead.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`, and
:math:`G(\theta)` for the metric there. The proposal is (Papamarkou and Ford, eqs. 7 and 8)

.. math::
    q(\theta_* | \theta) = \mathcal{N}\left(\theta + \frac{\epsilon^2}{2} G^{-1}(\theta)
    \nabla f(\theta),\; \epsilon^2 G^{-1}(\theta)\right),

and since its covariance depends on where it starts, so does its normalizing constant:

.. math::
    \log \frac{\pi(\theta_*) q(\theta | \theta_*)}{\pi(\theta) q(\theta_* | \theta)}
    = f(\theta_*) - f(\theta) + \frac12 \log \frac{|G(\theta_*)|}{|G(\theta)|}
    + \frac12 |z|^2 - \frac12 |z_*|^2,

with :math:`z` the noise that makes the move and :math:`z_*` the noise that would make its reverse
with the metric and the gradient at :math:`\theta_*`. Any metric that is a function of the position
alone is exact; a constant one is preconditioned MALA.

Cost: one gradient and one metric per step, both at the proposal: the state keeps those of the
position.

What goes wrong: where the metric changes over the length of a step (the neck of a funnel), the
reverse proposal does not reach back and acceptance falls.

References: M. Girolami and B. Calderhead 2011, Riemann manifold Langevin and Hamiltonian Monte
Carlo methods; T. Papamarkou and E. Ford, Manifold Langevin Monte Carlo with partial metric updates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.checks import check_position
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import MoveInfo as SMMALAInfo
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["SMMALAInfo", "SMMALAState", "build_kernel", "init", "smmala"]

METRIC = metrics.absolute_hessian()


class SMMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    logdensity_grad
        Its gradient, a pytree like the position.
    metric
        Factor of the metric at the position, in whitened coordinates.
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: ArrayTree
    metric: metrics.Factor


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> SMMALAState:
    """Make the first state: one gradient, one metric. A key is accepted and not used."""
    del rng_key
    position = check_position(position)
    preconditioner = metrics.factorize(inverse_mass_matrix, ravel_pytree(position)[0].size)
    state = local_state(logdensity_fn, position, preconditioner, metric_fn)
    metrics.check_metric(state.metric)
    return state


def local_state(
    logdensity_fn: LogDensity,
    position: ArrayTree,
    preconditioner: metrics.Factor,
    metric_fn: metrics.MetricFn,
) -> SMMALAState:
    """State at `position`: one gradient, one metric."""
    local = metrics.as_metric(metric_fn).evaluate(logdensity_fn, position, preconditioner)
    return SMMALAState(position, *local[:3])


def build_kernel() -> Callable[..., tuple[SMMALAState, SMMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        metric_fn=absolute_hessian(0.1)) -> (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: SMMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        metric_fn: metrics.MetricFn = METRIC,
    ) -> tuple[SMMALAState, SMMALAInfo]:
        """One step: one gradient, one metric."""
        size = ravel_pytree(state.position)[0].size
        preconditioner = metrics.factorize(inverse_mass_matrix, size)

        def point(state: SMMALAState) -> langevin.Point:
            gradient = ravel_pytree(state.logdensity_grad)[0]
            whitened = preconditioner.inverse_sqrt_transpose_times(gradient)
            return langevin.Point(state.logdensity, whitened, state.metric)

        def state_at(position: ArrayTree) -> SMMALAState:
            return local_state(logdensity_fn, position, preconditioner, metric_fn)

        return langevin.move(rng_key, state, step_size, preconditioner, point, state_at)

    return kernel


@top_level(init, build_kernel)
def smmala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    metric_fn: metrics.MetricFn = METRIC,
) -> dict[str, Any]:
    """SMMALA (Girolami and Calderhead 2011): Langevin steps in a metric of the position.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, twice differentiable.
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
    >>> smmala = blackjax_ext.smmala(
    ...     lambda x: -0.5 * jnp.sum(x**2), 1.0, metric_fn=metrics.softabs_hessian(10.0)
    ... )
    >>> state = smmala.init(jnp.zeros(3))
    >>> state, info = jax.jit(smmala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (3,)
    """
    return {"metric_fn": metrics.as_metric(metric_fn)}
