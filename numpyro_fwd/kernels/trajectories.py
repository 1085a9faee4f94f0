"""Algorithms on trajectories, whose states keep what NumPyro's users read of them."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation.algorithm import StepInfo, Stepper
from blackjax_ext.metrics.factor import Factor

__all__ = ["Recording", "Trajectory"]


class Trajectory(NamedTuple):
    """State of an algorithm, and of the trajectory that led there.

    chain
        State of the algorithm.
    energy
        Energy of the trajectory; the extra field "energy".
    tree_depth
        How often it was doubled; the extra field "tree_depth".
    """

    chain: Any
    energy: Array
    tree_depth: Array

    @property
    def position(self) -> Any:
        """Unconstrained position."""
        return self.chain.position

    @property
    def logdensity(self) -> Array:
        """Log density at the position."""
        return self.chain.logdensity

    @property
    def logdensity_grad(self) -> Any:
        """Its gradient."""
        return self.chain.logdensity_grad


class Recording(NamedTuple):
    """An algorithm whose states keep what a step says of its trajectory."""

    bound: Stepper

    def init(self, position: Any, rng_key: Array, metric: Factor) -> Trajectory:
        """First state at `position`."""
        chain = self.bound.init(position, rng_key, metric)
        return Trajectory(chain, -chain.logdensity, jnp.array(0))

    def renew(self, rng_key: Array, state: Trajectory, metric: Factor) -> Trajectory:
        """The state where `state` is, for steps in another metric."""
        return state._replace(chain=self.bound.renew(rng_key, state.chain, metric))

    def step(
        self, rng_key: Array, state: Trajectory, step_size: Array, metric: Factor, **supplied: Any
    ) -> tuple[Trajectory, StepInfo]:
        """One transition."""
        chain, info = self.bound.step(rng_key, state.chain, step_size, metric, **supplied)
        assert info.energy is not None and info.num_doublings is not None
        return Trajectory(chain, info.energy, jnp.asarray(info.num_doublings)), info
