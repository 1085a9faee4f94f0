"""States that several samplers share, and how a chain starts in them."""

from typing import NamedTuple

import jax
from blackjax.mcmc.mala import MALAState as GradientState
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import check_position, check_scalar
from blackjax_ext.types import LogDensity

__all__ = ["DensityState", "GradientState", "init_density", "init_gradient", "state_at"]


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
