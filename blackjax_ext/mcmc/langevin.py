r"""The Gaussian Langevin proposal, written once, and what its moves and others have in common.

In a metric :math:`G` with :math:`R R^T = G^{-1}`, the increment :math:`r = \theta_* - \theta` is

.. math::
    r = \frac{\epsilon^2}{2} G^{-1} g + \epsilon R z, \qquad z \sim \mathcal{N}(0, I),

so that :math:`q(\theta_* | \theta) = \mathcal{N}(\theta + \frac{\epsilon^2}{2} G^{-1} g,
\epsilon^2 G^{-1})` (Roberts and Tweedie 1996; Girolami and Calderhead 2011). `g` is the gradient or
whatever stands for it (its projection on random tangents): the density does not ask.

Beside it stand the states that several samplers share, the noise, drawn so that a CPU program stays
fast in many dimensions, and the decision.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from blackjax.mcmc.mala import MALAState
from blackjax.mcmc.proposal import static_binomial_sampling
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from blackjax_ext.checks import check_position, check_scalar
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.precision import exact_products
from blackjax_ext.types import Function, LogDensity, T

MAX_UNBLOCKED = 4096


def standard_normal(rng_key: Array, size: int, dtype: DTypeLike) -> Array:
    """Standard normal noise, shape (size,)."""
    return in_blocks(lambda key, n: jax.random.normal(key, (n,), dtype), rng_key, size)


def in_blocks(draw: Callable[[Array, int], Array], rng_key: Array, size: int) -> Array:
    """Independent draws, shape (size,), from ``draw(rng_key, n)`` of shape (n,).

    A large array is drawn in a loop over two blocks of a round length. On a CPU XLA would otherwise
    fuse the end of a random draw into every operation that reads it and repeat the work there
    (``optimization_barrier`` does not outlive its passes), and would not vectorize a loop over a
    number of elements, such as 40,701, that its threads cannot share evenly. A step of `fmala` in
    that many dimensions is three times as fast for it.
    """
    if size <= MAX_UNBLOCKED:
        return draw(rng_key, size)
    length = 128 * -(-size // (2 * 128))
    blocks: Array = jax.lax.map(lambda key: draw(key, length), jax.random.split(rng_key, 2))
    return blocks.ravel()[:size]


GradientState: TypeAlias = MALAState


class DensityState(NamedTuple):
    """State of a chain that keeps no gradient.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    logdensity_grad
        Always None: there is no gradient to offer to an adaptation.
    """

    position: ArrayTree
    logdensity: Array
    logdensity_grad: None = None


def init_density(
    position: ArrayLikeTree, logdensity_fn: LogDensity, rng_key: PRNGKey | None = None
) -> DensityState:
    """Make the first state: one evaluation. No key is needed; one is accepted and not used."""
    del rng_key
    position = check_position(position)
    return DensityState(position, check_scalar(logdensity_fn(position)))


def init_gradient(
    position: ArrayLikeTree, logdensity_fn: LogDensity, rng_key: PRNGKey | None = None
) -> GradientState:
    """Make the first state: one gradient. No key is needed; one is accepted and not used."""
    del rng_key
    return state_at(lambda x: check_scalar(logdensity_fn(x)), check_position(position))


def state_at(logdensity_fn: LogDensity, position: ArrayTree) -> GradientState:
    """State at `position`: one gradient."""
    return GradientState(position, *jax.value_and_grad(logdensity_fn)(position))


S = TypeVar("S", bound=Any)  # a state of a chain, with a position


class Point(NamedTuple):
    """One end of a move as the proposal needs it.

    logdensity
        Log density of the target.
    gradient
        Gradient that drives the drift, shape (D,).
    metric
        Factor of the metric there.
    """

    logdensity: Array
    gradient: Array
    metric: Factor


class MoveInfo(NamedTuple):
    """Facts about one transition.

    acceptance_rate
        Metropolis-Hastings acceptance probability.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether the proposal was rejected because something there was not finite.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array


@exact_products
def increment(noise: Array, point: Point, step_size: Array | float) -> Array:
    """``theta_* - theta`` for standard normal `noise`, shape (D,)."""
    drift = point.metric.inverse_sqrt_transpose_times(point.gradient)
    return point.metric.inverse_sqrt_times(0.5 * step_size**2 * drift + step_size * noise)


@exact_products
def residual(increment: Array, point: Point, step_size: Array | float) -> Array:
    """The noise ``z`` that makes `increment` from `point`: inverse of :func:`increment`."""
    drift = point.metric.inverse_sqrt_transpose_times(point.gradient)
    return point.metric.sqrt_times(increment) / step_size - 0.5 * step_size * drift


@exact_products
def log_ratio(increment: Array, start: Point, end: Point, step_size: Array | float) -> Array:
    r"""Logarithm of the Metropolis-Hastings ratio of the move from `start` to `end`.

    .. math::
        f(\theta_*) - f(\theta) + \log q(\theta | \theta_*) - \log q(\theta_* | \theta)

    The two squares are subtracted as :math:`\frac12 (z - z_*) \cdot (z + z_*)`: in equilibrium
    :math:`z_* \approx -z`, and the difference of two sums of D squares would lose in float32 what
    the ratio needs when D is in the thousands.
    """
    forward = residual(increment, start, step_size)
    backward = residual(-increment, end, step_size)
    squares = 0.5 * (forward - backward) @ (forward + backward)
    size = forward.shape[0]
    log_dets = 0.5 * (end.metric.log_det(size) - start.metric.log_det(size))
    return end.logdensity - start.logdensity + squares + log_dets


def move(
    rng_key: Array,
    state: S,
    step_size: Array | float,
    preconditioner: Factor,
    point: Callable[[S], Point],
    state_at: Callable[[ArrayTree], S],
) -> tuple[S, MoveInfo]:
    """One Metropolis-Hastings step with this proposal in whitened coordinates.

    Parameters
    ----------
    state
        State of the chain, with a position.
    preconditioner
        Factor of the metric that whitens.
    point
        From a state to what the proposal needs of it, whitened.
    state_at
        From a position to the state there.

    Returns
    -------
    The new state, and its facts.
    """
    key_noise, key_accept = jax.random.split(rng_key)
    x, unravel = ravel_pytree(state.position)
    start = point(state)
    noise = standard_normal(key_noise, x.size, x.dtype)
    r = increment(noise, start, step_size)
    proposal = state_at(unravel(x + preconditioner.inverse_sqrt_times(r)))
    end = point(proposal)
    ratio = log_ratio(r, start, end, step_size)
    new_state, *facts = accept(key_accept, ratio, end.logdensity, proposal, state)
    return new_state, MoveInfo(*facts)


def whitened_gradient(state: Any, preconditioner: Factor) -> Array:
    """Gradient of a state, shape (D,), in the coordinates that `preconditioner` whitens."""
    return preconditioner.inverse_sqrt_transpose_times(ravel_pytree(state.logdensity_grad)[0])


def both_ends(
    evaluate: Function, propose: Function, move: Function, position: ArrayTree, directions: Array
) -> tuple[Any, ...]:
    """Evaluate at `position`, propose from what is found there, and evaluate at the proposal.

    The two are turns of one loop. Written one after the other, XLA's CPU backend gives each memory
    of its own, and what forward mode saves over a reverse pass is spent.

    Parameters
    ----------
    evaluate
        Position and `directions` to a pytree of arrays.
    propose
        What `evaluate` found, to the increment, an array.
    move
        Increment to the proposal, from `position`.

    Returns
    -------
    What was found at the start, what was found at the end, the increment, and the proposal.
    """

    def turn(x: ArrayTree, is_start: Array) -> tuple[ArrayTree, tuple[Any, Array]]:
        # else XLA moves what is done to the directions alone out of the loop, once for each order
        # of derivative, and does not see any more that the two are the same
        evaluation = evaluate(*jax.lax.optimization_barrier((x, directions)))
        increment = propose(evaluation)
        moved = jax.tree.map(lambda new, old: jnp.where(is_start, new, old), move(increment), x)
        return moved, (evaluation, increment)

    proposal, (evaluations, increments) = jax.lax.scan(turn, position, jnp.array([True, False]))
    start, end = (jax.tree.map(lambda leaf, i=i: leaf[i], evaluations) for i in (0, 1))
    return start, end, increments[0], proposal


def accept(
    rng_key: Array, log_ratio: Array, end_logdensity: Array, end: T, start: T
) -> tuple[T, Array, Array, Array]:
    """Metropolis-Hastings decision between the states `end` and `start`.

    Returns the chosen state, the acceptance probability, whether the state is `end`, and whether
    the proposal was divergent: one whose log density or ratio is not a number is rejected.
    """
    is_divergent = jnp.isnan(log_ratio) | ~jnp.isfinite(end_logdensity)
    log_probability = jnp.where(is_divergent, -jnp.inf, log_ratio)
    is_accepted, (_, probability, _) = static_binomial_sampling(
        rng_key, log_probability, False, True
    )
    # a select, not a branch: XLA copies all that a branch hands on
    state = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), end, start)
    return state, probability, is_accepted, is_divergent
