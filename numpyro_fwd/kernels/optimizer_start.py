"""A start for models with too many dimensions for a Hessian: an optimizer on minibatches."""

import jax
import optax
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.rows.potentials import StochasticPotential

__all__ = ["RATE", "check_start_optimizer", "optimize"]

RATE = 1e-3  # of Adam, the default of most of its users


def optimize(
    rng_key: Array,
    potential: StochasticPotential,
    position: ArrayTree,
    num_steps: int,
    num_rows: int,
    optimizer: optax.GradientTransformation | None,
) -> ArrayTree:
    """Position after `num_steps` steps from `position`; the loss is the energy over `num_rows`.

    Cost: a minibatch gradient per step.
    """
    optimizer = optimizer or optax.adam(RATE)

    def step(carry, key):
        position, state = carry
        gradient = potential.stochastic_grad(position, potential.draw(key))
        gradient = jax.tree.map(lambda g: g / num_rows, gradient)
        updates, state = optimizer.update(gradient, state, position)
        return (optax.apply_updates(position, updates), state), None

    first = (position, optimizer.init(position))
    return jax.lax.scan(step, first, jax.random.split(rng_key, num_steps))[0][0]


def check_start_optimizer(optimizer: optax.GradientTransformation | None) -> None:
    """Raise TypeError unless `optimizer` is one of optax, or None."""
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            "optimizer must be a GradientTransformation of optax, such as optax.sgd(1e-2, 0.9); "
            f"got {type(optimizer).__name__}."
        )
