"""Langevin moves of forward-mode kernels: along tangents drawn anew, or that the state keeps.

Each kernel says which derivatives it takes along tangents, and what the proposal sees of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc import tangents as tangent_space
from blackjax_ext.mcmc.langevin import DensityState, MoveInfo
from blackjax_ext.mcmc.noise import standard_normal
from blackjax_ext.mcmc.tangents import TangentLaw
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.types import Function, LogDensity

__all__ = ["Along", "kept_tangent_move", "line_move"]

S = TypeVar("S", bound=Any)  # a NamedTuple


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
    state: S,
    step_size: Array | float,
    along: Along,
    point: Callable[..., langevin.Point],
    *,
    persistent_tangent: bool,
) -> tuple[S, MoveInfo]:
    """Move by what the state keeps of its tangents, and draw others at the proposal.

    `point` makes of a log density, the tangents and the derivatives along them an end of the move,
    in whitened coordinates. Tangents and derivatives are fields of the state, after the log density
    and in that order. Unless `persistent_tangent`, they are drawn and taken anew at the start.
    """
    key_noise, key_tangent, key_fresh, key_accept = jax.random.split(rng_key, 4)
    x, unravel = ravel_pytree(state.position)

    def evaluate(key: PRNGKey, y: ArrayTree) -> tuple[Array, ...]:
        frame = along.draw(key, x)
        value, *derivatives = along.evaluate(y, along.metric.inverse_sqrt_times(frame))
        return value, frame, *derivatives

    _, _, *memory, _ = state
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
    proposal = type(state)(y, logdensity, *memory)
    new_state, *facts = langevin.accept(key_accept, log_ratio, checked, proposal, state)
    return new_state, MoveInfo(*facts)
