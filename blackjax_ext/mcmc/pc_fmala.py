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
from typing import NamedTuple

import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position, check_positive, check_scalar
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import MoveInfo as PCFMALAInfo
from blackjax_ext.mcmc.tangent_moves import Along, kept_tangent_move
from blackjax_ext.metrics.factors import InverseMassMatrix, absolute, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

__all__ = ["PCFMALAInfo", "PCFMALAState", "build_kernel", "init", "pc_fmala"]

CURVATURE_FLOOR = 0.1


class PCFMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    tangents
        Persistent tangent, shape (1, D), in whitened coordinates.
    slopes
        Derivative along the tangent, shape (1,); NaN while none has been drawn.
    curvatures
        Minus the second derivative along the tangent, shape (1, 1).
    logdensity_grad
        Always None: a forward-mode kernel has no gradient to offer to an adaptation.
    """

    position: ArrayTree
    logdensity: Array
    tangents: Array
    slopes: Array
    curvatures: Array
    logdensity_grad: None = None


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    inverse_mass_matrix: InverseMassMatrix = None,
    *,
    tangents: tangent_space.TangentLaw = "rademacher",
) -> PCFMALAState:
    """Make the first state: one second-order JVP with a key, one evaluation without."""
    position = check_position(position)
    x, unravel = ravel_pytree(position)
    tangent_space.check(1, tangents, x.size)
    if rng_key is None:
        logdensity = check_scalar(logdensity_fn(position))
        undrawn = jnp.full(1, jnp.nan, x.dtype)
        return PCFMALAState(
            position, logdensity, jnp.zeros((1, x.size), x.dtype), undrawn, undrawn[None]
        )
    metric = factorize(inverse_mass_matrix, x.size)
    frame = tangent_space.draw(rng_key, 1, x, tangents)
    facts = tangent_space.curvatures(
        lambda y: check_scalar(logdensity_fn(unravel(y))), x, metric.inverse_sqrt_times(frame)
    )
    logdensity, slopes, curvatures = facts
    return PCFMALAState(position, logdensity, frame, slopes, curvatures)


def build_kernel() -> Callable[..., tuple[PCFMALAState, PCFMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        curvature_floor=0.1, persistent_tangent=True, tangents="rademacher") -> (state, info)``.
    """

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
def pc_fmala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: InverseMassMatrix = None,
    *,
    curvature_floor: float = CURVATURE_FLOOR,
    persistent_tangent: bool = True,
    tangents: tangent_space.TangentLaw = "rademacher",
) -> None:
    """PC-FMALA (Cobb and Jha, Algorithm 3): a forward-mode step scaled by the curvature seen.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    step_size
        epsilon > 0, in units of the local scale ``1 / sqrt(G)``.
    persistent_tangent
        Keep the tangent in the state: one second-order JVP per step. False is the paper's
        Algorithm 3: two.

    Raises
    ------
    ValueError, TypeError
        For a step size or floor that is not positive and finite, an unknown law of tangents, a
        position that is empty or not floating, a density that is not scalar.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> pc_fmala = blackjax_ext.pc_fmala(lambda x: -0.5 * jnp.sum(x**2), step_size=0.8)
    >>> state = pc_fmala.init(jnp.zeros(3), jax.random.key(0))
    >>> state, info = jax.jit(pc_fmala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (3,)
    """
    check_positive("curvature_floor", curvature_floor)
    tangent_space.check(1, tangents)
