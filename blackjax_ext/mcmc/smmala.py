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
from typing import Any

from blackjax.types import ArrayLikeTree, PRNGKey

from blackjax_ext import metrics
from blackjax_ext.mcmc.langevin import MoveInfo as SMMALAInfo
from blackjax_ext.mcmc.metric_moves import MetricState as SMMALAState
from blackjax_ext.mcmc.metric_moves import init_metric, metric_kernel
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["SMMALAInfo", "SMMALAState", "build_kernel", "init", "smmala"]

METRIC = metrics.absolute_hessian()


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
    return init_metric(position, logdensity_fn, inverse_mass_matrix, metric_fn)


def build_kernel() -> Callable[..., tuple[SMMALAState, SMMALAInfo]]:
    """Build the transition kernel."""
    return metric_kernel(METRIC)


@top_level(init, build_kernel)
def smmala(metric_fn: metrics.MetricFn) -> dict[str, Any]:
    """SMMALA (Girolami and Calderhead 2011): Langevin steps in a metric of the position.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar, twice differentiable.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the metric: of the order of 1
        where it is the local precision.

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
