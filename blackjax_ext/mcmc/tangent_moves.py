"""Langevin moves of forward-mode kernels: along tangents drawn anew, or that the state keeps.

Each kernel says which derivatives it takes along tangents, and what the proposal sees of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position, check_scalar
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import DensityState, MoveInfo, standard_normal
from blackjax_ext.mcmc.tangents import TangentLaw
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.types import Function, LogDensity

CURVATURE_FLOOR = 0.1


class TangentState(NamedTuple):
    """State of a chain that keeps tangents.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    tangents
        Persistent frame, shape (K, D), in whitened coordinates.
    slopes
        Derivatives along the tangents, shape (K,); NaN while no tangent has been drawn.
    curvatures
        Minus the second derivatives in their span, shape (K, K); None for algorithms without.
    logdensity_grad
        Always None: a forward-mode kernel has no gradient to offer to an adaptation.
    """

    position: ArrayTree
    logdensity: Array
    tangents: Array
    slopes: Array
    curvatures: Array | None = None
    logdensity_grad: None = None


class Along(NamedTuple):
    """A density along random tangents.

    logdensity_fn
        Log density: pytree to scalar.
    derivatives
        :func:`blackjax_ext.mcmc.tangents.slopes` or ``curvatures``.
    metric
        Factor that whitens: tangents are drawn in its coordinates.
    num_tangents, tangents
        K, and the law of the tangents.
    """

    logdensity_fn: LogDensity
    derivatives: Function
    metric: Factor
    num_tangents: int
    tangents: TangentLaw

    def draw(self, rng_key: PRNGKey, like: Array) -> Array:
        """Whitened tangents, shape (K, D), for flat positions `like`."""
        return tangent_space.draw(rng_key, self.num_tangents, like, self.tangents)

    def evaluate(self, y: ArrayTree, directions: Array) -> tuple[Array, ...]:
        """Log density and derivatives at `y` along unwhitened directions, shape (K, D)."""
        unravel = ravel_pytree(y)[1]
        found: tuple[Array, ...]
        found = self.derivatives(self.logdensity_fn, y, jax.vmap(unravel)(directions))
        return found


def init_tangent(
    position: ArrayLikeTree,
    rng_key: PRNGKey | None,
    logdensity_fn: LogDensity,
    derivatives: Function,
    inverse_mass_matrix: InverseMassMatrix,
    num_tangents: int,
    tangents: TangentLaw,
) -> TangentState:
    """First state of a chain that keeps tangents: without a key they are drawn by its first step.

    Cost: one evaluation of `derivatives` with a key, one of the density without.
    """
    position = check_position(position)
    x, unravel = ravel_pytree(position)
    tangent_space.check(num_tangents, tangents, x.size)
    if rng_key is None:
        value = check_scalar(logdensity_fn(position))
        slopes = jnp.full(num_tangents, jnp.nan, x.dtype)
        has_curvatures = derivatives is tangent_space.curvatures
        curvatures = jnp.full((num_tangents,) * 2, jnp.nan, x.dtype) if has_curvatures else None
        frame = jnp.zeros((num_tangents, x.size), x.dtype)
        return TangentState(position, value, frame, slopes, curvatures)
    frame = tangent_space.draw(rng_key, num_tangents, x, tangents)
    directions = factorize(inverse_mass_matrix, x.size).inverse_sqrt_times(frame)
    value, *found = derivatives(lambda y: check_scalar(logdensity_fn(unravel(y))), x, directions)
    return TangentState(position, value, frame, *found)


def line_move(
    rng_key: PRNGKey,
    state: DensityState,
    step_size: Array | float,
    along: Along,
    point: Callable[..., langevin.Point],
) -> tuple[DensityState, MoveInfo]:
    """Move along tangents drawn for this step: both ends are evaluated.

    `point` makes of a log density and its derivatives along the tangents an end of the move, in
    their K coordinates.
    """
    key_tangent, key_noise, key_accept = jax.random.split(rng_key, 3)
    x, unravel = ravel_pytree(state.position)
    directions = along.metric.inverse_sqrt_times(along.draw(key_tangent, x))
    noise = jax.random.normal(key_noise, (along.num_tangents,), x.dtype)

    def propose(evaluation: tuple[Array, ...]) -> Array:
        return langevin.increment(noise, point(*evaluation), step_size)

    def move(r: Array) -> ArrayTree:
        return jax.tree.map(jnp.add, state.position, unravel(r @ directions))

    *ends, r, y = langevin.both_ends(along.evaluate, propose, move, state.position, directions)
    start, end = (point(*evaluation) for evaluation in ends)
    log_ratio = langevin.log_ratio(r, start, end, step_size)
    proposal = DensityState(y, end.logdensity)
    new_state, *facts = langevin.accept(key_accept, log_ratio, end.logdensity, proposal, state)
    return new_state, MoveInfo(*facts)


def kept_tangent_move(
    rng_key: PRNGKey,
    state: TangentState,
    step_size: Array | float,
    along: Along,
    point: Callable[..., langevin.Point],
    *,
    persistent_tangent: bool,
) -> tuple[TangentState, MoveInfo]:
    """Move by what the state keeps of its tangents, and draw others at the proposal.

    `point` makes of a log density, the tangents and the derivatives along them an end of the move,
    in whitened coordinates. Unless `persistent_tangent`, tangents are drawn and derivatives taken
    anew at the start.
    """
    key_noise, key_tangent, key_fresh, key_accept = jax.random.split(rng_key, 4)
    x, unravel = ravel_pytree(state.position)

    def evaluate(key: PRNGKey, y: ArrayTree) -> tuple[Any, ...]:
        frame = along.draw(key, x)
        value, *derivatives = along.evaluate(y, along.metric.inverse_sqrt_times(frame))
        return value, frame, *derivatives

    memory: list[Any] = [each for each in state[2:5] if each is not None]
    if not persistent_tangent:
        _, *memory = evaluate(key_fresh, state.position)
    start = point(state.logdensity, *memory)
    noise = standard_normal(key_noise, x.size, x.dtype)
    # without a tangent, this step only draws one: it proposes to stay. A branch, not a select:
    # what it returns is computed once, and not again in every operation that reads it
    has_tangent = ~jnp.isnan(memory[1][0])
    r = jax.lax.cond(
        has_tangent,
        lambda: langevin.increment(noise, start, step_size),
        lambda: jnp.zeros_like(noise),
    )

    y = jax.tree.map(jnp.add, state.position, unravel(along.metric.inverse_sqrt_times(r)))
    logdensity, *memory = evaluate(key_tangent, y)
    log_ratio = langevin.log_ratio(r, start, point(logdensity, *memory), step_size)
    log_ratio = jnp.where(has_tangent, log_ratio, 0.0 * memory[1][0])
    # and draws it outside the support too, where it could never leave otherwise
    checked = jnp.where(has_tangent, logdensity, jnp.maximum(logdensity, 0.0))
    proposal = TangentState(y, logdensity, *memory)
    new_state, *facts = langevin.accept(key_accept, log_ratio, checked, proposal, state)
    return new_state, MoveInfo(*facts)
