"""What the warm-up of a kernel adapts: step size and metric, as they were given and asked for."""

import math
from typing import NamedTuple

from jax import Array

from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.run import Plan
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.types import Function, LogDensity, Unravel
from numpyro_fwd.kernels.blocks import (
    DenseMass,
    GivenMetric,
    in_structure,
    initial_metric,
    is_covariance_cheap,
)


class Tuning(NamedTuple):
    """Step size and metric of a kernel: where they begin, and how they are adapted.

    step_size, inverse_mass_matrix, adapt_step_size, adapt_mass_matrix, dense_mass
        As they were given.
    target
        Acceptance probability to adapt to, by the number of dimensions.
    longest_step
        No step size is longer.
    is_doubling
        Whether trajectories are doubled until they turn.
    takes_matrices
        Whether the algorithm is known to accept a full covariance.
    correlates_many
        Whether ``dense_mass=None`` means more than variances beyond 64 dimensions.
    """

    step_size: float
    inverse_mass_matrix: GivenMetric
    adapt_step_size: bool
    adapt_mass_matrix: bool
    dense_mass: DenseMass
    target: Function
    longest_step: float = math.inf
    is_doubling: bool = False
    takes_matrices: bool = True
    correlates_many: bool = False

    def plan(self, size: int, num_warmup: int = 0) -> Plan:
        """Plan of the adaptation in `size` dimensions; states know how long the warm-up is."""
        return Plan(
            num_warmup,
            self.target(size),
            self.adapt_step_size and size > 0,
            self.adapt_mass_matrix and size > 0,
            self.longest_step,
            self.is_doubling,
        )

    def metric(
        self,
        found: Factor | None,
        x: Array,
        unravel: Unravel,
        logdensity_fn: LogDensity | None = None,
    ) -> Factor:
        """The metric that a start has `found`, else the given one, in the structure asked for.

        By default that depends on what an evaluation of the density costs.
        """
        z, like, dense_mass = unravel(x[0]), x[0], self.dense_mass
        if dense_mass is None and not (self.adapt_mass_matrix and self.takes_matrices):
            dense_mass = False
        if dense_mass is None and like.size > windows.MANY and self.inverse_mass_matrix is None:
            flat = logdensity_fn and (lambda x: logdensity_fn(unravel(x)))
            is_full = self.correlates_many and is_covariance_cheap(flat, like)
            dense_mass = is_full or (self.correlates_many and "low_rank")
        if found is None:
            return initial_metric(self.inverse_mass_matrix, dense_mass, z, like)
        return in_structure(found, dense_mass, z, like)
