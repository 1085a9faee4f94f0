r"""AutoMALA: MALA whose step size adapts to the position, with persistent momentum.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`. On
:math:`\mu(\theta, p) = \pi(\theta) \mathcal{N}(p; 0, I)` a step is

1. :math:`p \leftarrow \rho p + \sqrt{1 - \rho^2} z` with :math:`z \sim \mathcal{N}(0, I)`;
2. a leapfrog step of size :math:`\epsilon`, with a flip,

   .. math::
       p' = p + \frac{\epsilon}{2} \nabla f(\theta), \quad \theta_* = \theta + \epsilon p', \quad
       p_* = -\big(p' + \frac{\epsilon}{2} \nabla f(\theta_*)\big),

   where :math:`\epsilon = \epsilon_0 2^j` is selected at :math:`(\theta, p)` by trials, and
   accepted with probability :math:`\min(1, \mu(\theta_*, p_*) / \mu(\theta, p))` if
   :math:`(\theta_*, p_*)` selects the same j (:mod:`blackjax_ext.mcmc.auto_step`);
3. another flip, so that the momentum is kept after an accepted move and reversed after a rejection.

Each leaves :math:`\mu` invariant. With :math:`\rho = 0` and the step fixed this is MALA:
:math:`\theta_* = \theta + \frac{\epsilon^2}{2} \nabla f(\theta) + \epsilon z`.

*Persistence.* A step that suits the neck of a funnel is short, and a random walk of short steps is
slow: n of them move a distance of :math:`\sqrt n` steps. With :math:`\rho` near 1 they move n steps
far, until a rejection reverses the momentum.

*Metric.* In a share `isotropic_share` of the steps the smallest standard deviation of
`inverse_mass_matrix` is used for all coordinates in place of L, because the estimated scales are
those of the mouth of a funnel, and wrong by different factors in the neck. In a share `block_share`
of the steps only some leaves of the position move, by the scales of `inverse_mass_matrix`: a log sd
can then take long steps where its effects can only take short ones. Without such steps, chains that
reach deep into a neck stay there for tens of thousands of steps. With a `hierarchy` half of them
move effects together with their parameters, as in a non-centred model
(:mod:`blackjax_ext.mcmc.interweaving`).

Cost: one gradient for each trial, forward or reverse: 1.1 on average on a normal, about 2 on
funnels, and at most 41. Nothing is evaluated twice. On a density that is flat, infinite or NaN the
trials never end by themselves: they are stopped, and the step is rejected as divergent.

References: M. Biron-Lattes et al. 2024, autoMALA: locally adaptive Metropolis-adjusted Langevin
algorithm (arXiv 2310.16782); T. Liu et al. 2024, AutoStep (arXiv 2410.18929); A. M. Horowitz 1991,
A generalized guided Monte Carlo algorithm.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm, build_sampling_algorithm
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import metrics
from blackjax_ext.checks import check_position, check_positive, check_scalar
from blackjax_ext.mcmc import auto_step, interweaving
from blackjax_ext.mcmc.auto_step import AutoStepInfo as AutoMALAInfo
from blackjax_ext.mcmc.interweaving import Hierarchy
from blackjax_ext.top_level import public
from blackjax_ext.types import LogDensity

__all__ = ["AutoMALAInfo", "AutoMALAState", "auto_mala", "build_kernel", "init"]


class AutoMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity, logdensity_grad
        Log density at the position, and its gradient.
    momentum
        Shape (D,), in whitened coordinates; NaN before the first step of a start without a key.
    exponent
        j, selected by the last step: no step needs it.
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: ArrayTree
    momentum: Array
    exponent: Array


def init(
    position: ArrayLikeTree, logdensity_fn: LogDensity, rng_key: PRNGKey | None = None
) -> AutoMALAState:
    """Make the first state: one gradient. Without a key the momentum is drawn by the first step."""
    position = check_position(position)
    value_and_grad = jax.value_and_grad(lambda x: check_scalar(logdensity_fn(x)))
    momentum = auto_step.draw_momentum(rng_key, ravel_pytree(position)[0])
    return AutoMALAState(position, *value_and_grad(position), momentum, jnp.zeros((), jnp.int32))


def build_kernel() -> Callable[..., tuple[AutoMALAState, AutoMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        persistence=0.9, isotropic_share=0.1, block_share=None, hierarchy=None) -> (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: AutoMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        persistence: float = 0.9,
        isotropic_share: float = 0.1,
        block_share: float | None = None,
        hierarchy: Hierarchy | None = None,
    ) -> tuple[AutoMALAState, AutoMALAInfo]:
        """One step: one gradient for each trial."""
        key_metric, key_step = jax.random.split(rng_key)
        x, unravel = ravel_pytree(state.position)
        gradient, unravel_gradient = ravel_pytree(state.logdensity_grad)
        metric = metrics.factorize(inverse_mass_matrix, x.size)
        shares = auto_step.Shares(isotropic_share, block_share)
        mover = auto_step.draw_mover(key_metric, metric, state.position, shares, hierarchy)

        def evaluate(x: Array) -> tuple[Array, Array]:
            logdensity, gradient = jax.value_and_grad(logdensity_fn)(unravel(x))
            return logdensity, ravel_pytree(gradient)[0]

        pull = interweaving.pull_reverse
        kept = interweaving.Kept(x, state.logdensity, gradient)
        start = auto_step.PhasePoint(*interweaving.start(mover.chart, kept, state.momentum, pull))
        seen = interweaving.evaluation(mover.chart, evaluate, pull)
        step_size = interweaving.longer(mover.chart, step_size)
        leap = auto_step.leapfrog_once(seen, mover.push, mover.pull, step_size)
        end, info = auto_step.transition(key_step, start, leap, persistence, mover.moves)
        kept = interweaving.keeps(mover.chart, end)
        info = info._replace(first_rate=interweaving.rated(mover.chart, info.first_rate))
        position, gradient = unravel(kept.x), unravel_gradient(kept.gradient)
        new = AutoMALAState(position, kept.logdensity, gradient, end.momentum, info.exponent)
        return new, info

    return kernel


@public(init, build_kernel)
def auto_mala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    persistence: float = 0.9,
    isotropic_share: float = 0.1,
    block_share: float | None = None,
    hierarchy: Hierarchy | None = None,
) -> SamplingAlgorithm:
    """MALA with a step size selected at each place (Biron-Lattes et al. 2024), for hierarchies.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar.
    step_size
        epsilon_0 > 0: the step of the first trial, in units of the posterior's scale as given by
        `inverse_mass_matrix`. Best where its moves, alone, would be accepted with probability 0.8.
    inverse_mass_matrix
        Estimate of the posterior covariance: None, shape (D,), shape (D, D), or a factor.
    persistence
        rho, from 0 (a fresh momentum for each step) to below 1.
    isotropic_share
        From 0 to 1: how often a step of all coordinates moves them alike, by the smallest scale of
        `inverse_mass_matrix`, scales being those of a coordinate given the others.
    block_share
        From 0 to 1: how often a step moves some leaves of the position only, if it has several.
        Give a hierarchy's scales leaves of their own. None for half of the steps with a
        `hierarchy` that has effects, and a fifth without.
    hierarchy
        Which leaves are effects, with locations and scales computed from others: half of the steps
        of some leaves then take effects along. None, or a
        :class:`~blackjax_ext.interweaving.LocScaleHierarchy`.

    Returns
    -------
    A ``SamplingAlgorithm`` with ``init(position, rng_key=None)`` and ``step(rng_key, state)``.

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive and finite, a persistence outside [0, 1), a share
        outside [0, 1], a position that is empty or not floating, a density that is not scalar.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> def funnel(x):
    ...     return -x[0] ** 2 / 18 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0]
    >>> auto_mala = blackjax_ext.auto_mala(funnel, step_size=0.3)
    >>> state = auto_mala.init(jnp.array([-8.0, 0.01, 0.01]), jax.random.key(0))
    >>> state, info = jax.jit(auto_mala.step)(jax.random.key(1), state)
    >>> int(info.exponent) < 0
    True
    """
    check_positive("step_size", step_size)
    auto_step.check_persistence(persistence, auto_step.Shares(isotropic_share, block_share))
    return build_sampling_algorithm(
        partial(
            build_kernel(),
            persistence=persistence,
            isotropic_share=isotropic_share,
            block_share=block_share,
            hierarchy=hierarchy,
        ),
        init,
        logdensity_fn,
        kernel_args=(step_size, metrics.factorize(inverse_mass_matrix)),
        pass_rng_key_to_init=True,
    )
