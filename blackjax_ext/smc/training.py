"""A target that depends on parameters, and the descent of the parameters by weighted particles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.checks import check_scalar

__all__ = ["Local", "check_optimizer", "descend", "target"]


class Local(NamedTuple):
    """Log density of a target at the particles, (N,), its gradient, (N, D), and that in psi."""

    logdensity: Array
    gradient: Array
    slope: Any = None


def target(potential_fn: Callable, params: ArrayTree, batch: Any, unravel: Callable):
    """Evaluate the new target at particles: alone, and with its gradients in the parameters."""

    def potential(x, params):
        return check_scalar(potential_fn(params, unravel(x), batch))

    def evaluate(x):
        value, gradient = jax.vmap(jax.value_and_grad(potential), (0, None))(x, params)
        return Local(-value, -gradient)

    def evaluate_both(x):
        both = jax.value_and_grad(potential, argnums=(0, 1))
        value, (gradient, slope) = jax.vmap(both, (0, None))(x, params)
        return Local(-value, -gradient, slope)

    return evaluate, evaluate_both


def descend(
    optimizer: optax.GradientTransformation,
    weights: Array,
    slopes: ArrayTree,
    params: ArrayTree,
    opt_state: Any,
) -> tuple[ArrayTree, Any]:
    """Update the parameters with the weighted gradient; a particle without weight adds nothing."""

    def mean(leaf):
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        is_heavy = (weights > 0).reshape(shape)
        return jnp.tensordot(weights, jnp.where(is_heavy, leaf, 0.0), axes=1)

    gradient = jax.tree.map(mean, slopes)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raise TypeError for what is no optax transformation."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"{name} must be an optax transformation, such as optax.adam(0.01); got {optimizer!r}."
        )
