r"""AMAGOLD, Algorithm 2 of Zhang, Cooper and De Sa: exact MCMC with minibatch gradients.

Write :math:`U = -\log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`,
and :math:`r \sim \mathcal{N}(0, I)` for the momentum of :math:`\theta` (the paper's, with
:math:`\sigma^2 = 1`; that of :math:`x` is :math:`L^{-T} r`). A transition proposes
:math:`(\theta_*, r_*)` by T steps of the stochastic leapfrog of
:mod:`blackjax_ext.sgmcmc.leapfrog`, each with its own random component :math:`\tilde{U}_t` and
noise, and accepts with probability

.. math::
    \min\left(1, \exp\left[ U(\theta) - U(\theta_*) + \rho \right]\right), \qquad
    \rho = \sum_{t=0}^{T-1} \tfrac12 \epsilon \nabla\tilde{U}_t(\theta_t)^T
    (r_{t-\frac12} + r_{t+\frac12}).

*Derivation.* The reverse of a trajectory starts from :math:`(\theta_*, -r_*)` and meets the random
components in the opposite order, which is as likely as the order it was drawn in. Step by step,
the ratio of the density of the way back to that of the way there is (derived in the file of the
leapfrog)

.. math::
    \exp\left[ \tfrac12 (|r_{t+\frac12}|^2 - |r_{t-\frac12}|^2)
    + \tfrac12 \epsilon \nabla\tilde{U}_t(\theta_t)^T (r_{t-\frac12} + r_{t+\frac12}) \right].

The kinetic energies telescope and cancel against those of
:math:`\pi(\theta, r) \propto \exp(-U(\theta) - \frac12 |r|^2)`; what is left is the ratio above. So
the chain is skew-reversible, :math:`\pi(y) G(y, z) = \pi(z^\perp) G(z^\perp, y^\perp)` with
:math:`(\theta, r)^\perp = (\theta, -r)`, provided that a rejection returns :math:`(\theta, -r)`.

*Two forms* (Theorem 1). With `resample_momentum` the momentum is drawn anew before each trajectory
and the chain is reversible. Without, it persists, is refreshed by the friction alone and is flipped
by a rejection: the chain is skew-reversible, and each step of a run may be short.

Both are exact for every step size and every noise of the gradient; what the noise costs is
acceptance. With minibatches of a large data set it costs all of it, unless the gradient has a
control variate (:func:`blackjax_ext.potentials.control_variate`).

Cost: T minibatch gradients and one acceptance test per transition. The test is one exact energy, a
full pass over the data, unless `acceptance` is another (:mod:`blackjax_ext.sgmcmc.acceptance`).

What goes wrong: acceptance falls as :math:`\exp(-O(\epsilon T V^2 / \beta))` with the variance
:math:`V^2` of the gradient (Theorem 2): a control variate, a larger batch, a smaller step or fewer
of them help. The random components must not be drawn with a look at the chain, and those of one
trajectory must be exchangeable.

Reference: R. Zhang, A. F. Cooper and C. De Sa 2020, AMAGOLD: Amortized Metropolis Adjustment for
Efficient Stochastic Gradient MCMC.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position
from blackjax_ext.metrics import factors
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.rows.potentials import StochasticPotential, check_potential
from blackjax_ext.sgmcmc import leapfrog
from blackjax_ext.sgmcmc.acceptance import FULL_PASS, Acceptance, check_acceptance
from blackjax_ext.sgmcmc.leapfrog import TrajectoryInfo as AMAGOLDInfo
from blackjax_ext.sgmcmc.leapfrog import check_friction
from blackjax_ext.top_level import top_level
from blackjax_ext.types import select

__all__ = ["AMAGOLDInfo", "AMAGOLDState", "amagold", "build_kernel", "init"]


class AMAGOLDState(NamedTuple):
    """State of the chain.

    Attributes
    ----------
    position
        Pytree of arrays.
    momentum
        Momentum in whitened coordinates, where it is standard normal: r, shape (D,).
    cache
        What the acceptance test keeps about the position: of the full pass, the exact energy and
        what its rounding left.
    """

    position: ArrayTree
    momentum: Array
    cache: Any

    @property
    def logdensity(self) -> Array:
        """Log density at the position; NaN where the test does not evaluate it."""
        if isinstance(self.cache, Pair):
            return -self.cache.value()
        return jnp.full(self.momentum.shape[:-1], jnp.nan, self.momentum.dtype)


def init(
    position: ArrayLikeTree,
    potential: StochasticPotential,
    rng_key: PRNGKey | None = None,
    acceptance: Acceptance = FULL_PASS,
) -> AMAGOLDState:
    """Make the first state: what the test keeps, and a momentum, which is zero without a key."""
    potential = check_potential(potential)
    position = check_position(position)
    momentum = leapfrog.first_momentum(rng_key, ravel_pytree(position)[0])
    return AMAGOLDState(position, momentum, check_acceptance(acceptance).init(potential, position))


def build_kernel() -> Callable[..., tuple[AMAGOLDState, AMAGOLDInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: AMAGOLDState,
        potential: StochasticPotential,
        step_size: float,
        inverse_mass_matrix: factors.InverseMassMatrix = None,
        *,
        num_integration_steps: int = 10,
        friction: float = 0.25,
        resample_momentum: bool = True,
        acceptance: Acceptance = FULL_PASS,
    ) -> tuple[AMAGOLDState, AMAGOLDInfo]:
        """One transition: T minibatch gradients, one test."""
        key_momentum, key_path, key_accept = jax.random.split(rng_key, 3)
        start, end, unravel = leapfrog.propose(
            *(key_momentum, key_path, state, leapfrog.step),
            *(potential, step_size, inverse_mass_matrix),
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
        )
        position = unravel(end.x)
        verdict = acceptance.test(
            key_accept, potential, state.position, state.cache, position, end.accumulator
        )
        accepted = AMAGOLDState(position, end.momentum, verdict.cache)
        rejected = AMAGOLDState(state.position, -start.momentum, state.cache)
        info = AMAGOLDInfo(
            verdict.acceptance_rate,
            verdict.is_accepted,
            verdict.is_divergent,
            num_integration_steps,
            verdict.num_rows,
        )
        return select(verdict.is_accepted, accepted, rejected), info

    return kernel


@top_level(init, build_kernel)
def amagold(
    potential: StochasticPotential,
    num_integration_steps: int,
    friction: float,
    resample_momentum: bool,
    acceptance: Acceptance,
) -> dict[str, Any]:
    """AMAGOLD (Zhang, Cooper and De Sa, Algorithm 2): exact MCMC with minibatch gradients.

    Parameters
    ----------
    step_size
        epsilon > 0 of the leapfrog, in units of the posterior's scale as given by
        `inverse_mass_matrix`.
    acceptance
        Test of a proposal: :func:`blackjax_ext.acceptance.full_pass`, or
        :func:`blackjax_ext.acceptance.subsampled`, which reads fewer rows and is exact too.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import potentials
    >>> y = jnp.linspace(-1.0, 3.0, 1000)
    >>> potential = potentials.minibatch(
    ...     lambda x: -0.5 * x**2, lambda x, y: -0.5 * (y - x) ** 2, y, batch_size=100
    ... )
    >>> potential = potentials.control_variate(potential, jnp.array(1.0))
    >>> amagold = blackjax_ext.amagold(potential, 0.3, inverse_mass_matrix=jnp.array([1e-3]))
    >>> state = amagold.init(jnp.array(1.0))
    >>> state, info = jax.jit(amagold.step)(jax.random.key(1), state)
    >>> bool(info.acceptance_rate > 0.9)
    True
    """
    check_friction(friction, num_integration_steps, resample_momentum)
    return {"potential": check_potential(potential), "acceptance": check_acceptance(acceptance)}
