"""A target that depends on parameters, and their update with weighted particles."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.checks import check_scalar
from blackjax_ext.types import Function, Unravel


class Evaluation(NamedTuple):
    """Evaluations of a target at the particles.

    Attributes
    ----------
    logdensity
        Log density, shape (N,).
    gradient
        Its gradient in the position, flat, shape (N, D).
    slope
        Gradient of the potential energy in the parameters, a pytree like them whose leaves lead
        with N; None where it was not evaluated.
    """

    logdensity: Array
    gradient: Array
    slope: Any = None


Evaluate: TypeAlias = Callable[[Array], Evaluation]


def build_evaluators(
    potential_fn: Function, params: ArrayTree, batch: Any, unravel: Unravel
) -> tuple[Evaluate, Evaluate]:
    """Two functions that evaluate the new target at flat particles, (N, D).

    The first leaves out the gradient in the parameters, the second has it.
    """

    def potential(x: Array, params: ArrayTree) -> Array:
        return check_scalar(potential_fn(params, unravel(x), batch))

    def evaluate(x: Array) -> Evaluation:
        value, gradient = jax.vmap(jax.value_and_grad(potential), (0, None))(x, params)
        return Evaluation(-value, -gradient)

    def evaluate_both(x: Array) -> Evaluation:
        both = jax.value_and_grad(potential, argnums=(0, 1))
        value, (gradient, slope) = jax.vmap(both, (0, None))(x, params)
        return Evaluation(-value, -gradient, slope)

    return evaluate, evaluate_both


def mean_energy(
    potential_fn: Function, position: ArrayTree, batch: Any, weights: Array
) -> Callable[[ArrayTree], Array]:
    """Weighted mean of the potential energy of N particles on a batch, as a function of the params.

    A particle without weight adds nothing, even where its energy is not a number.
    """

    def energy(params: ArrayTree) -> Array:
        energies = jax.vmap(lambda z: potential_fn(params, z, batch))(position)
        return jnp.sum(jnp.where(weights > 0, weights * energies, 0.0))

    return energy


def mean_loss(weights: Array, logdensity: Array) -> Array:
    """Weighted mean of minus the log density, (N,), of particles with a weight; NaN for none."""
    mean = -jnp.sum(jnp.where(weights > 0, weights * logdensity, 0.0))
    return jnp.where(jnp.any(weights > 0), mean, jnp.nan)


def update_parameters(
    optimizer: optax.GradientTransformation,
    weights: Array,
    slopes: ArrayTree,
    params: ArrayTree,
    opt_state: Any,
    value: Array,
    value_fn: Callable[[ArrayTree], Array],
) -> tuple[ArrayTree, Any]:
    """Parameters and state of the optimizer after a step with the weighted gradient.

    A particle without weight adds nothing, even where its gradient is not a number. Optimizers that
    look at the loss (``optax.contrib.reduce_on_plateau``), or search along a line, get its `value`,
    and `value_fn` with the particles, the weights and the batch of this step.
    """

    def mean(leaf: Array) -> Array:
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        is_heavy = (weights > 0).reshape(shape)
        return jnp.tensordot(weights, jnp.where(is_heavy, leaf, 0.0), axes=1)

    gradient = jax.tree.map(mean, slopes)
    updates, opt_state = optax.with_extra_args_support(optimizer).update(
        gradient, opt_state, params, value=value, grad=gradient, value_fn=value_fn
    )
    return optax.apply_updates(params, updates), opt_state


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raise TypeError for what is no optax transformation."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"{name} must be an optax transformation, such as optax.adam(0.01); got {optimizer!r}."
        )
