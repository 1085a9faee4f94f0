r"""AutoFMALA: AutoMALA by forward-mode differentiation, with K tangents.

Write :math:`f = \log \pi`, :math:`L L^T` for `inverse_mass_matrix`, :math:`\theta = L^{-1} x`. For
each step an orthonormal frame :math:`V` of K tangents is drawn, shape (K, D), from a law that does
not depend on the state, and the leapfrog step is driven by
:math:`F(\theta) = V^T V \nabla f(\theta)`, the slopes along the frame, at *both* ends:

.. math::
    p' = p + \frac{\epsilon}{2} F(\theta), \quad \theta_* = \theta + \epsilon p', \quad
    p_* = -\big(p' + \frac{\epsilon}{2} F(\theta_*)\big).

*Exactness.* Given V each of the three is a shear, which preserves volume whatever F is, and the
flip makes the map its own inverse. So :math:`\min(1, \mu(\theta_*, p_*) / \mu(\theta, p))` with
:math:`\mu = \pi(\theta) \mathcal{N}(p; 0, I)` is the acceptance probability, and the step size is
selected, and selected back, with the same V (:mod:`blackjax_ext.mcmc.auto_step`). In a step that
moves only some leaves of the position the tangents are drawn within these. The rest - a momentum
that persists, a metric mixed with an isotropic one - is that of
:mod:`blackjax_ext.mcmc.auto_mala`, whose step this is for K = D.

Cost: K JVPs that share one evaluation for each trial, forward or reverse, and K at the start for
the new frame, which K = D does not need. There are 1.1 trials on average on a normal, about 2 on
funnels, and at most 41.

What goes wrong: for K < D the energy error of a step is of the order of the step size, not of its
cube, so steps are short and the persistent momentum does not help. Per JVP, K = 1 is the most
efficient, which is nearly a random walk with adaptive steps; K = D if D JVPs that share one
evaluation cost much less than D single ones.

References: those of :mod:`blackjax_ext.mcmc.auto_mala`; A. D. Cobb and S. Jha,
Backpropagation-Free Metropolis-Adjusted Langevin Algorithm.
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
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.auto_step import AutoStepInfo as AutoFMALAInfo
from blackjax_ext.mcmc.interweaving import Hierarchy
from blackjax_ext.top_level import public
from blackjax_ext.types import LogDensity

__all__ = ["AutoFMALAInfo", "AutoFMALAState", "auto_fmala", "build_kernel", "init"]


class AutoFMALAState(NamedTuple):
    """State of the chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    slopes
        The gradient if K = D, shape (D,); else None, for the next frame is another.
    momentum
        Shape (D,), in whitened coordinates; NaN before the first step of a start without a key.
    exponent
        j, selected by the last step: no step needs it.
    logdensity_grad
        Always None: a forward-mode kernel has no gradient to offer to an adaptation.
    """

    position: ArrayTree
    logdensity: Array
    slopes: Array | None
    momentum: Array
    exponent: Array
    logdensity_grad: None = None


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    *,
    num_tangents: int = 1,
    tangents: tangent_space.TangentLaw = "rademacher",
) -> AutoFMALAState:
    """Make the first state: one evaluation of the density, D JVPs if K = D."""
    position = check_position(position)
    x, unravel = ravel_pytree(position)
    tangent_space.check(num_tangents, tangents, x.size)
    momentum = auto_step.draw_momentum(rng_key, x)

    def flat_fn(y: Array) -> Array:
        return check_scalar(logdensity_fn(unravel(y)))

    if num_tangents == x.size:
        logdensity, slopes = tangent_space.slopes(flat_fn, x, jnp.eye(x.size, dtype=x.dtype))
    else:
        logdensity, slopes = flat_fn(x), None
    return AutoFMALAState(position, logdensity, slopes, momentum, jnp.zeros((), jnp.int32))


def build_kernel() -> Callable[..., tuple[AutoFMALAState, AutoFMALAInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix=None, *,
        num_tangents=1, tangents="rademacher", persistence=0.9, isotropic_share=0.1,
        block_share=None, hierarchy=None) -> (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: AutoFMALAState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: metrics.InverseMassMatrix = None,
        *,
        num_tangents: int = 1,
        tangents: tangent_space.TangentLaw = "rademacher",
        persistence: float = 0.9,
        isotropic_share: float = 0.1,
        block_share: float | None = None,
        hierarchy: Hierarchy | None = None,
    ) -> tuple[AutoFMALAState, AutoFMALAInfo]:
        """One step: K JVPs for each trial, and for the new frame."""
        key_metric, key_frame, key_step = jax.random.split(rng_key, 3)
        x, unravel = ravel_pytree(state.position)
        metric = metrics.factorize(inverse_mass_matrix, x.size)
        shares = auto_step.Shares(isotropic_share, block_share)
        mover = auto_step.draw_mover(key_metric, metric, state.position, shares, hierarchy)
        chart = mover.chart

        def slopes_at(y: Array, directions: Array) -> tuple[Array, Array]:
            return tangent_space.slopes(lambda y: logdensity_fn(unravel(y)), y, directions)

        kept = interweaving.Kept(x, state.logdensity, state.slopes)
        is_new = state.slopes is None  # the frame; all tangents are those of the axes
        if is_new:
            frame = tangent_space.draw(key_frame, num_tangents, x, tangents, mover.moves)
            directions, force = jax.vmap(mover.push)(frame), mover.within(frame.T)
            evaluate = interweaving.slopes_in(chart, slopes_at, directions)
            u = interweaving.within(chart, x)
            logdensity, slopes, kept_there = evaluate(u)
            if chart is not None:
                kept = kept._replace(hidden=kept_there.hidden)
            start = auto_step.PhasePoint(u, state.momentum, logdensity, slopes, chart and kept)
        else:
            axes, force = jnp.eye(x.size, dtype=x.dtype), mover.pull
            pull = interweaving.pull_forward
            evaluate = interweaving.evaluation(chart, lambda y: slopes_at(y, axes), pull)
            start = auto_step.PhasePoint(*interweaving.start(chart, kept, state.momentum, pull))
        step_size = interweaving.longer(mover.chart, step_size)
        leap = auto_step.leapfrog_once(evaluate, mover.push, force, step_size)
        end, info = auto_step.transition(key_step, start, leap, persistence, mover.moves)
        kept = interweaving.keeps(chart, end)
        info = info._replace(
            first_rate=interweaving.rated(chart, info.first_rate),
            num_evaluations=info.num_evaluations + is_new,
        )
        slopes = None if is_new else kept.gradient
        new = AutoFMALAState(unravel(kept.x), kept.logdensity, slopes, end.momentum, info.exponent)
        return new, info

    return kernel


@public(init, build_kernel)
def auto_fmala(
    logdensity_fn: LogDensity,
    step_size: float,
    inverse_mass_matrix: metrics.InverseMassMatrix = None,
    *,
    num_tangents: int = 1,
    tangents: tangent_space.TangentLaw = "rademacher",
    persistence: float = 0.9,
    isotropic_share: float = 0.1,
    block_share: float | None = None,
    hierarchy: Hierarchy | None = None,
) -> SamplingAlgorithm:
    """AutoMALA without a reverse pass: steps that adapt to the place, driven by K slopes.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is differentiated in
        forward mode only.
    step_size
        epsilon_0 > 0: the step of the first trial, in units of the posterior's scale as given by
        `inverse_mass_matrix`.
    inverse_mass_matrix
        Estimate of the posterior covariance: None, shape (D,), shape (D, D), or a factor.
    num_tangents
        K in 1..D tangents, vmapped over one primal; K = D is :func:`auto_mala`.
    tangents
        "rademacher" or "sphere": see :func:`blackjax_ext.mcmc.tangents.draw`.
    persistence, isotropic_share, block_share, hierarchy
        Those of :func:`auto_mala`.

    Returns
    -------
    A ``SamplingAlgorithm`` with ``init(position, rng_key=None)`` and ``step(rng_key, state)``.

    Raises
    ------
    ValueError, TypeError
        As :func:`auto_mala`, and for `num_tangents` outside 1..D or an unknown law of tangents.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> auto_fmala = blackjax_ext.auto_fmala(lambda x: -0.5 * jnp.sum(x**2), 0.8, num_tangents=3)
    >>> state = auto_fmala.init(jnp.zeros(3), jax.random.key(0))
    >>> state, info = jax.jit(auto_fmala.step)(jax.random.key(1), state)
    >>> state.position.shape
    (3,)
    """
    check_positive("step_size", step_size)
    tangent_space.check(num_tangents, tangents)
    auto_step.check_persistence(persistence, auto_step.Shares(isotropic_share, block_share))
    kernel = partial(
        build_kernel(),
        num_tangents=num_tangents,
        tangents=tangents,
        persistence=persistence,
        isotropic_share=isotropic_share,
        block_share=block_share,
        hierarchy=hierarchy,
    )
    return build_sampling_algorithm(
        kernel,
        partial(init, num_tangents=num_tangents, tangents=tangents),
        logdensity_fn,
        kernel_args=(step_size, metrics.factorize(inverse_mass_matrix)),
        pass_rng_key_to_init=True,
    )
