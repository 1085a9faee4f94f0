r"""Preconditioned MALA, the reverse-mode reference of the forward-mode family.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`:

.. math::
    \theta_* = \theta + \frac{\epsilon^2}{2} \nabla f(\theta) + \epsilon z,
    \qquad z \sim \mathcal{N}(0, I),

accepted with the Metropolis-Hastings ratio
:math:`\pi(\theta_*) q(\theta | \theta_*) / (\pi(\theta) q(\theta_* | \theta))`. In :math:`x` the
drift is :math:`\frac{\epsilon^2}{2} L L^T \nabla_x f` and the noise :math:`\epsilon L z`. State and
start are those of ``blackjax.mala``, whose own kernel has no preconditioner and counts its step as
:math:`\epsilon^2 / 2`.

Cost: one gradient per step.

References: G. O. Roberts and R. L. Tweedie 1996, Exponential convergence of Langevin distributions
and their discrete approximations; G. O. Roberts and J. S. Rosenthal 1998 (acceptance 0.574).
"""

from collections.abc import Callable

import jax
from blackjax.mcmc import mala as blackjax_mala
from blackjax.mcmc.mala import MALAState
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position, check_scalar
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import MoveInfo as MALAInfo
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.structures import IDENTITY
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["MALAInfo", "MALAState", "build_kernel", "init", "mala"]


def init(
    position: ArrayLikeTree, logdensity_fn: LogDensity, rng_key: PRNGKey | None = None
) -> MALAState:
    """Make the first state: one gradient. No key is needed; one is accepted and not used."""
    del rng_key
    position = check_position(position)
    return blackjax_mala.init(position, lambda x: check_scalar(logdensity_fn(x)))


def build_kernel() -> Callable[..., tuple[MALAState, MALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None)
        -> (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: MALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
    ) -> tuple[MALAState, MALAInfo]:
        """One step: one gradient."""
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(state: MALAState) -> langevin.Point:
            gradient = ravel_pytree(state.logdensity_grad)[0]
            whitened = metric.inverse_sqrt_transpose_times(gradient)
            return langevin.Point(state.logdensity, whitened, IDENTITY)

        def state_at(position: ArrayTree) -> MALAState:
            return MALAState(position, *jax.value_and_grad(logdensity_fn)(position))

        return langevin.move(rng_key, state, step_size, metric, point, state_at)

    return kernel


@top_level(init, build_kernel)
def mala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: InverseMassMatrix = None,
) -> None:
    """Preconditioned MALA (Roberts and Tweedie 1996).

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive and finite, a position that is empty or not floating,
        a density that is not scalar.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> mala = blackjax_ext.mala(lambda x: -0.5 * jnp.sum(x**2), step_size=1.0)
    >>> state = mala.init(jnp.zeros(3))
    >>> state, info = jax.jit(mala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (3,)
    """
