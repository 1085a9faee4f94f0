r"""Preconditioned forward-mode MALA (PC-FMALA), Algorithm 3 of Cobb and Jha.

Write :math:`f = \log \pi` and :math:`L L^T` for `inverse_mass_matrix`; :math:`\theta = L^{-1} x`.
A tangent :math:`v` from a law :math:`U` that does not depend on the position gives, by one
second-order JVP, slope and curvature along it. With the floor :math:`\delta`,

.. math::
    G(\theta, v) = \max(|v^T \nabla^2 f(\theta) v|, \delta),
    \qquad
    \theta_* = \theta + \frac{\epsilon^2}{2 G} (\nabla f(\theta) \cdot v)\, v
               + \frac{\epsilon}{\sqrt{G}} z, \qquad z \sim \mathcal{N}(0, I)

(eq. 8). *Persistent tangent (default).* As in FMALA the chain is on :math:`(\theta, v)` with target
:math:`\pi(\theta) U(v)`; :math:`v_* \sim U` is proposed with :math:`\theta_*`, every :math:`U`
cancels, and the log ratio is

.. math::
    f(\theta_*) - f(\theta) + \frac{D}{2} \log \frac{G(\theta_*, v_*)}{G(\theta, v)}
    + \frac12 |z|^2 - \frac12 |z_*|^2,

with :math:`z_*` the noise of the reverse move, which takes its curvature from :math:`v_*`. A
rejected move keeps :math:`v` with its slope and curvature: one second-order JVP per step. With
`persistent_tangent=False` (Algorithm 3 as printed) :math:`v` is drawn anew at the start of each
step, which costs a second one. A start without a key spends its first step on drawing the tangent
and does not move (see :mod:`blackjax_ext.mcmc.fmala`). The paper's unbiased form (eq. 15) divides
the variance of the noise by D; here it is eq. 8.

What goes wrong: forward and reverse scales come from different tangents. Where curvature varies
with direction they differ by a factor, which enters the ratio to the power D/2: acceptance falls
with D. PC-Line-FMALA has the same tangent at both ends and does not suffer from this.

References: A. D. Cobb and S. Jha, Backpropagation-Free Metropolis-Adjusted Langevin Algorithm.
"""

from collections.abc import Callable

from blackjax.types import ArrayLikeTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_positive
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import MoveInfo as PCFMALAInfo
from blackjax_ext.mcmc.tangent_moves import CURVATURE_FLOOR, Along, init_tangent, kept_tangent_move
from blackjax_ext.mcmc.tangent_moves import TangentState as PCFMALAState
from blackjax_ext.metrics.factors import InverseMassMatrix, absolute, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["PCFMALAInfo", "PCFMALAState", "build_kernel", "init", "pc_fmala"]


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: InverseMassMatrix = None,
    *,
    tangents: tangent_space.TangentLaw = "rademacher",
) -> PCFMALAState:
    """Make the first state: one second-order JVP with a key, one evaluation without."""
    derivatives = tangent_space.curvatures
    return init_tangent(
        position, rng_key, logdensity_fn, derivatives, inverse_mass_matrix, 1, tangents
    )


def build_kernel() -> Callable[..., tuple[PCFMALAState, PCFMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: PCFMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        curvature_floor: float = CURVATURE_FLOOR,
        persistent_tangent: bool = True,
        tangents: tangent_space.TangentLaw = "rademacher",
    ) -> tuple[PCFMALAState, PCFMALAInfo]:
        """One step: one second-order JVP, two with ``persistent_tangent=False``."""
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(value: Array, frame: Array, slopes: Array, curvatures: Array) -> langevin.Point:
            local = absolute(curvatures, curvature_floor)
            return langevin.Point(value, slopes @ frame, local)

        along = Along(logdensity_fn, tangent_space.curvatures, metric, 1, tangents)
        return kept_tangent_move(
            rng_key, state, step_size, along, point, persistent_tangent=persistent_tangent
        )

    return kernel


@top_level(init, build_kernel)
def pc_fmala(curvature_floor: float, tangents: tangent_space.TangentLaw) -> None:
    """PC-FMALA (Cobb and Jha, Algorithm 3): a forward-mode step scaled by the curvature seen.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    step_size
        epsilon > 0, in units of the local scale ``1 / sqrt(G)``.
    """
    check_positive("curvature_floor", curvature_floor)
    tangent_space.check(1, tangents)
