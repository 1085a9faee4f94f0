"""Algorithms whose states count the rows that they read, and a warning where these are many."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm, StepInfo
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.tails import MAX_GAP
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer

__all__ = ["CountedState", "CountingAlgorithm", "warn_if_light", "warn_if_many"]

MANY_ROWS = 1000  # rows of a test that are few, whatever the share of all rows


class CountedState(NamedTuple):
    """State of an algorithm, and the rows that its last acceptance test read.

    chain
        State of the algorithm.
    num_rows
        Rows of the last test; as an extra field, "inner.num_rows".
    """

    chain: Any
    num_rows: Array

    @property
    def position(self) -> Any:
        """Unconstrained position."""
        return self.chain.position

    @property
    def logdensity(self) -> Array:
        """Log density at the position."""
        return self.chain.logdensity


class CountingAlgorithm(NamedTuple):
    """An algorithm on a potential, or an expansion by groups, whose states count rows."""

    algorithm: Algorithm
    potential: StochasticPotential | Expansion

    def init(self, position: Any, rng_key: Array, metric: Factor) -> CountedState:
        """First state at `position`."""
        bound = BoundAlgorithm(self.algorithm, self.potential)
        return CountedState(bound.init(position, rng_key, metric), jnp.array(0))

    def renew(self, rng_key: Array, state: CountedState, metric: Factor) -> CountedState:
        """The state where `state` is, for steps in another metric."""
        bound = BoundAlgorithm(self.algorithm, self.potential)
        return CountedState(bound.renew(rng_key, state.chain, metric), state.num_rows)

    def step(
        self, rng_key: Array, state: CountedState, step_size: Array, metric: Factor, **supplied: Any
    ) -> tuple[CountedState, StepInfo]:
        """One transition."""
        bound = BoundAlgorithm(self.algorithm, self.potential)
        chain, info = bound.step(rng_key, state.chain, step_size, metric, **supplied)
        return CountedState(chain, info.num_rows), info


def warn_if_many(expected: Array, num_rows: int, loose: Callable[[], list[str]] = list) -> None:
    """Warn where a test that reads a few rows is expected to read many of all of them.

    ``loose()`` are the sites with bounds that are read from their programs.
    """
    if not not_jax_tracer(expected):
        return
    num_expected = float(on_host(expected))  # a collective: in every process
    if num_expected <= max(num_rows / 2, MANY_ROWS) or not is_first_process():
        return
    why = "the posterior is not close to normal for its number of rows"
    if sites := loose():
        why += f", or where the bounds of {', '.join(sites)}, read from their programs, are loose"
    warnings.warn(
        f'acceptance="subsampled" is expected to read {num_expected:,.0f} of {num_rows:,} rows '
        f"in a test of a long move, as where {why}: steps will be short or rarely accepted. "
        'acceptance="full", or numpyro.infer.NUTS on the model without subsample_size, have no '
        "such test.",
        stacklevel=2,
    )


def warn_if_light(gap: Array) -> None:
    """Warn where an expansion has lighter tails than the posterior, by its `gap`."""
    nats = float(on_host(gap))
    if nats <= MAX_GAP or not is_first_process():
        return
    warnings.warn(
        'Trajectories of acceptance="subsampled" follow an expansion of the rows, and this '
        "posterior has heavier tails: four standard deviations from the mode its log density is "
        f"{nats:.1f} above that of the expansion. Draws may miss a tail without a "
        'sign of it in R-hat. Give acceptance=Subsampled(gradient="minibatch") or "full", or take '
        "numpyro.infer.NUTS on the model without subsample_size.",
        stacklevel=2,
    )
