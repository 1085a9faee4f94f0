r"""Forward-mode MALA (FMALA), Algorithm 1 of Cobb and Jha, in Metropolis-adjusted form.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, and work on
:math:`\theta = L^{-1} x`. With a tangent :math:`v` drawn from a law :math:`U` that does not depend
on the position (for K tangents, an orthonormal frame :math:`V` of rows), one JVP gives
:math:`\nabla f(\theta) \cdot v`, and the proposal is (eq. 5)

.. math::
    \theta_* = \theta + \frac{\epsilon^2}{2} (\nabla f(\theta) \cdot v)\, v + \epsilon z,
    \qquad z \sim \mathcal{N}(0, I).

*Persistent tangent (default).* The state is :math:`(\theta, v)` with target
:math:`\pi(\theta) U(v)`, whose marginal is :math:`\pi`. Propose :math:`\theta_*` from
:math:`q(\cdot | \theta, v)` and, independently, :math:`v_* \sim U`. The reverse move from
:math:`(\theta_*, v_*)` proposes :math:`\theta` with density :math:`q(\theta | \theta_*, v_*)` and
:math:`v` with density :math:`U(v)`, so the Metropolis-Hastings ratio is

.. math::
    \frac{\pi(\theta_*) U(v_*)\; q(\theta | \theta_*, v_*) U(v)}
         {\pi(\theta) U(v)\; q(\theta_* | \theta, v) U(v_*)}
    = \frac{\pi(\theta_*)\, q(\theta | \theta_*, v_*)}{\pi(\theta)\, q(\theta_* | \theta, v)}:

the paper's ratio, since every :math:`U` cancels. A rejected move keeps :math:`v` and its slope, so
one step costs one JVP, at :math:`(\theta_*, v_*)`.

*Fresh tangents* (`persistent_tangent=False`) are the paper's Algorithm 1: :math:`v` is drawn anew
at :math:`\theta` before each proposal, which costs a second JVP. This is the same kernel on
:math:`(\theta, v)` after a refresh of :math:`v` from :math:`U`, exact for the same reason.

*A start without a key* has no tangent yet. Its first step draws :math:`v \sim U` at
:math:`\theta`, with the one JVP a step is allowed, and does not move: the identity on
:math:`\theta` together with a draw from :math:`U` leaves :math:`\pi(\theta) U(v)` exact, whereas
a fixed first tangent would not.

With K = D the frame spans the space, :math:`V^T V = I`, and the step is MALA. For K < D the drift
is the projection of the gradient, K/D of it on average; the paper's unbiased form (eq. 12)
multiplies the drift alone by D, and its authors' code multiplies epsilon by sqrt(D).

What goes wrong: the slope along one of D tangents carries 1/D of the squared gradient, so for large
D a step with few tangents is a random walk at the price of a JVP.

References: A. D. Cobb and S. Jha, Backpropagation-Free Metropolis-Adjusted Langevin Algorithm;
A. G. Baydin et al. 2022, Gradients without backpropagation; G. O. Roberts and R. L. Tweedie 1996.
"""

from collections.abc import Callable

from blackjax.types import ArrayLikeTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import MoveInfo as FMALAInfo
from blackjax_ext.mcmc.tangent_moves import Along, init_tangent, kept_tangent_move
from blackjax_ext.mcmc.tangent_moves import TangentState as FMALAState
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.structures import IDENTITY
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["FMALAInfo", "FMALAState", "build_kernel", "fmala", "init"]


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: InverseMassMatrix = None,
    *,
    num_tangents: int = 1,
    tangents: tangent_space.TangentLaw = "rademacher",
) -> FMALAState:
    """Make the first state: K JVPs with a key, one evaluation of the density without."""
    derivatives = tangent_space.slopes
    return init_tangent(
        *(position, rng_key, logdensity_fn, derivatives, inverse_mass_matrix),
        *(num_tangents, tangents),
    )


def build_kernel() -> Callable[..., tuple[FMALAState, FMALAInfo]]:
    """Build the transition kernel."""

    def kernel(
        rng_key: PRNGKey,
        state: FMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        num_tangents: int = 1,
        persistent_tangent: bool = True,
        tangents: tangent_space.TangentLaw = "rademacher",
    ) -> tuple[FMALAState, FMALAInfo]:
        """One step: K JVPs, 2 K with ``persistent_tangent=False``."""
        if state.tangents.shape[0] != num_tangents:
            raise ValueError(
                f"num_tangents is {num_tangents}, but the state was initialized with "
                f"{state.tangents.shape[0]}: give both the same."
            )
        metric = factorize(inverse_mass_matrix, ravel_pytree(state.position)[0].size)

        def point(value: Array, frame: Array, slopes: Array) -> langevin.Point:
            return langevin.Point(value, slopes @ frame, IDENTITY)

        along = Along(logdensity_fn, tangent_space.slopes, metric, num_tangents, tangents)
        return kept_tangent_move(
            rng_key, state, step_size, along, point, persistent_tangent=persistent_tangent
        )

    return kernel


@top_level(init, build_kernel)
def fmala(num_tangents: int, tangents: tangent_space.TangentLaw) -> None:
    """Forward-mode MALA (Cobb and Jha, Algorithm 1): a Langevin step without a reverse pass.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    """
    tangent_space.check(num_tangents, tangents)
