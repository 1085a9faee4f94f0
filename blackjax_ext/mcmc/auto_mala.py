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

*Hierarchies.* Selected steps move within a funnel, but do not make it wider: where the scale of
effects is sampled with them, let a warm-up learn coordinates of the effects in which there is none
(:mod:`blackjax_ext.coordinates.partial`).

Cost: one gradient for each trial, forward or reverse: 1.1 on average on a normal, about 2 on
funnels, and at most 41. Nothing is evaluated twice. On a density that is flat, infinite or NaN the
trials never end by themselves: they are stopped, and the step is rejected as divergent.

References: M. Biron-Lattes et al. 2024, autoMALA: locally adaptive Metropolis-adjusted Langevin
algorithm (arXiv 2310.16782); T. Liu et al. 2024, AutoStep (arXiv 2410.18929); A. M. Horowitz 1991,
A generalized guided Monte Carlo algorithm.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc.auto_step import Leap, PhasePoint, draw_band, search
from blackjax_ext.mcmc.langevin import init_gradient, standard_normal
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import Function, LogDensity, select


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


class AutoMALAInfo(NamedTuple):
    """Facts about one transition.

    acceptance_rate
        1 for an accepted move, else 0: what is rejected is not looked into further.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether no step that was tried fitted, as where the density is flat or not finite.
    first_rate
        Acceptance probability of the first trial, the move with the step that was given. The
        warm-up adapts that step to it.
    exponent
        j: the step was 2^j times the one given.
    num_evaluations
        Places at which gradients were evaluated.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    first_rate: Array
    exponent: Array
    num_evaluations: Array


def init(
    position: ArrayLikeTree, logdensity_fn: LogDensity, rng_key: PRNGKey | None = None
) -> AutoMALAState:
    """Make the first state: one gradient. Without a key the momentum is drawn by the first step."""
    start = init_gradient(position, logdensity_fn)
    x, _ = ravel_pytree(start.position)
    if rng_key is None:
        momentum = jnp.full_like(x, jnp.nan)
    else:
        momentum = standard_normal(rng_key, x.size, x.dtype)
    value, gradient = start.logdensity, start.logdensity_grad
    return AutoMALAState(start.position, value, gradient, momentum, jnp.zeros((), jnp.int32))


def build_kernel() -> Callable[..., tuple[AutoMALAState, AutoMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: AutoMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        persistence: float = 0.9,
    ) -> tuple[AutoMALAState, AutoMALAInfo]:
        """One step: one gradient for each trial."""
        _, key_step = jax.random.split(rng_key)  # a seed gives what it gave before
        x, unravel = ravel_pytree(state.position)
        gradient, unravel_gradient = ravel_pytree(state.logdensity_grad)
        metric = factorize(inverse_mass_matrix, x.size)

        def evaluate(x: Array) -> tuple[Array, Array]:
            logdensity, gradient = jax.value_and_grad(logdensity_fn)(unravel(x))
            return logdensity, ravel_pytree(gradient)[0]

        start = PhasePoint(x, state.momentum, state.logdensity, gradient)
        leap = leapfrog(evaluate, metric, step_size)
        end, info = transition(key_step, start, leap, persistence)
        position, gradient = unravel(end.x), unravel_gradient(end.gradient)
        new = AutoMALAState(position, end.logdensity, gradient, end.momentum, info.exponent)
        return new, info

    return kernel


@top_level(init, build_kernel)
def auto_mala(persistence: float) -> None:
    """MALA with a step size selected at each place (Biron-Lattes et al. 2024), for hierarchies.

    Parameters
    ----------
    step_size
        epsilon_0 > 0: the step of the first trial, in units of the posterior's scale as given by
        `inverse_mass_matrix`. Best where its moves, alone, would be accepted with probability 0.8.
    persistence
        rho, from 0 (a fresh momentum for each step) to below 1.

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
    if not 0 <= persistence < 1:
        raise ValueError(f"persistence must be at least 0 and below 1; got {persistence}.")


def refresh(rng_key: PRNGKey, momentum: Array, persistence: float) -> Array:
    r"""``rho p + sqrt(1 - rho^2) z``: leaves the standard normal invariant."""
    noise = standard_normal(rng_key, momentum.size, momentum.dtype)
    fresh = persistence * momentum + (1 - persistence**2) ** 0.5 * noise
    return jnp.where(jnp.isnan(momentum), noise, fresh)


def leapfrog(evaluate: Function, metric: Factor, step_size: Array | float) -> Leap:
    """A leapfrog step of size ``2^j step_size`` in coordinates that `metric` whitens.

    It preserves volume, and is undone by itself between two flips of the momentum.
    """

    def leap(start: PhasePoint, exponent: Array) -> PhasePoint:
        epsilon = step_size * jnp.exp2(exponent.astype(start.x.dtype))
        half = start.momentum + 0.5 * epsilon * force(start.gradient)
        x = start.x + epsilon * metric.inverse_sqrt_times(half).astype(start.x.dtype)
        logdensity, gradient = evaluate(x)
        end = half + 0.5 * epsilon * force(gradient)
        return PhasePoint(x, end, logdensity, gradient)

    def force(gradient: Array) -> Array:
        return metric.inverse_sqrt_transpose_times(gradient).astype(gradient.dtype)

    return leap


def transition(
    rng_key: PRNGKey, start: PhasePoint, leap: Leap, persistence: float
) -> tuple[PhasePoint, AutoMALAInfo]:
    """Refresh the momentum, select a step, decide."""
    key_momentum, key_band, key_accept = jax.random.split(rng_key, 3)
    dtype = start.x.dtype
    start = start._replace(momentum=refresh(key_momentum, start.momentum, persistence))
    log_uniform = jnp.log(1.0 - jax.random.uniform(key_accept, (), dtype))
    found = search(leap, start, draw_band(key_band, dtype), log_uniform)
    is_accepted = found.is_confirmed & (log_uniform < found.log_ratio)
    info = AutoMALAInfo(
        is_accepted.astype(dtype),
        is_accepted,
        found.is_exhausted,
        found.first_rate.astype(dtype),
        found.selected,
        found.num_evaluations,
    )
    return accept_or_flip(is_accepted, found.proposal, start), info


def accept_or_flip(is_accepted: Array, proposal: PhasePoint, start: PhasePoint) -> PhasePoint:
    """The new point, or the old one with its momentum turned round.

    That is what keeps a momentum that persists exact: the move ends with a flip, and every step
    with another.
    """
    end = select(is_accepted, proposal, start)
    return end._replace(momentum=-end.momentum)
