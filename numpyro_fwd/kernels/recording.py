"""Algorithms whose states keep what NumPyro's users read of a step."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation.algorithm import StepInfo, Stepper
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.types import Function


class Recorded(NamedTuple):
    """State of an algorithm, with facts of the step that led there; both by their names.

    chain
        State of the algorithm.
    facts
        By name; as an extra field, "inner.num_rows".
    """

    chain: Any
    facts: dict[str, Array]

    def __getattr__(self, name: str) -> Any:
        """A fact, or what the state of the algorithm has under this name."""
        return self.facts[name] if name in self.facts else getattr(self.chain, name)


def of_rows(chain: Any, info: StepInfo | None) -> dict[str, Array]:
    """Rows that the acceptance test of a step read."""
    del chain
    return {"num_rows": jnp.array(0) if info is None else info.num_rows}


def of_trajectory(chain: Any, info: StepInfo | None) -> dict[str, Array]:
    """Energy of the trajectory of a step, and how often it was doubled."""
    if info is None:
        return {"energy": -chain.logdensity, "tree_depth": jnp.array(0)}
    assert info.energy is not None and info.num_doublings is not None
    return {"energy": info.energy, "tree_depth": jnp.asarray(info.num_doublings)}


class Recording(NamedTuple):
    """An algorithm whose states keep ``facts_of(chain, info)``; None for `info` at first."""

    bound: Stepper
    facts_of: Function

    def init(self, position: Any, rng_key: Array, metric: Factor) -> Recorded:
        """First state at `position`."""
        chain = self.bound.init(position, rng_key, metric)
        return Recorded(chain, self.facts_of(chain, None))

    def renew(self, rng_key: Array, state: Recorded, metric: Factor) -> Recorded:
        """The state where `state` is, for steps in another metric."""
        return state._replace(chain=self.bound.renew(rng_key, state.chain, metric))

    def step(
        self, rng_key: Array, state: Recorded, step_size: Array, metric: Factor, **supplied: Any
    ) -> tuple[Recorded, StepInfo]:
        """One transition."""
        chain, info = self.bound.step(rng_key, state.chain, step_size, metric, **supplied)
        return Recorded(chain, self.facts_of(chain, info)), info
