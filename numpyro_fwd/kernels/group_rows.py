"""Rows in groups as a minibatch kernel reads them: where chains start, and how they move."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.metrics.structures import Diagonal
from blackjax_ext.subsampling import group_sweeps
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.thinning import expected_rows
from blackjax_ext.types import Function, select
from numpyro_fwd.bridge.starts import check_finite
from numpyro_fwd.kernels.row_counts import CountingAlgorithm, warn_if_many
from numpyro_fwd.kernels.rows_of_runs import rows_of
from numpyro_fwd.kernels.state import split_each
from numpyro_fwd.kernels.strategy import Run, Source, Start, split_keys
from numpyro_fwd.subsampling.groups import GroupedModel, grouped_predictor_of
from numpyro_fwd.types import Args, Kwargs

__all__ = ["start_of_groups", "sweeping", "within"]


def sweeping(
    source: Source,
    algorithm: Algorithm,
    model_args: Args,
    model_kwargs: Kwargs | None,
    shared: GroupedModel,
) -> Stepper:
    """Sweeps over the groups with as many leapfrog steps as the algorithm has."""
    parameters = {"num_integration_steps": algorithm.parameters["num_integration_steps"]}
    expansion = expansion_of(source, shared, model_args, model_kwargs)
    return CountingAlgorithm(Algorithm(group_sweeps, parameters), expansion)


def within(logdensity: Function, z: Any, expansion: Expansion) -> Any:
    """Draws of chains, and the anchor in place of those that are outside of the support."""
    is_inside = jax.vmap(lambda z: jnp.isfinite(logdensity(z)))(z)
    return jax.vmap(lambda is_in, z: select(is_in, z, expansion.position))(is_inside, z)


def expansion_of(
    source: Source, shared: GroupedModel, model_args: Args, model_kwargs: Kwargs | None
) -> Expansion:
    """The expansion by groups with its posterior."""
    rows = rows_of(source, model_args, model_kwargs)
    return shared.expansion.of(grouped_predictor_of(rows, shared.expansion.position, shared.layout))


def start_of_groups(run: Run, rng_key: Array, z: Any, shared: GroupedModel) -> Start:
    """Draws from the normal approximation at the anchor, in coordinates that need no metric."""

    def draw(arrays, rng_key, z, shared):
        rng_key, key_draw = split_each(rng_key, 2)
        expansion = expansion_of(run.source, shared, *run.arguments.join(arrays))
        if run.is_searching:
            z = within(expansion.posterior.logprior, jax.vmap(expansion.draw)(key_draw), expansion)
        values = jax.vmap(lambda z: expansion.posterior.logprior(z))(z)
        num_rows = expected_rows(jax.random.fold_in(key_draw[0], 1), expansion)
        return ravel_each(z), values, split_keys(rng_key)[0], num_rows

    x, values, keys, num_rows = run(draw, rng_key, z, shared)
    check_finite(values)
    warn_if_many(num_rows, shared.expansion.num_rows)
    metric = Diagonal(jax.device_put(np.ones(x.shape[1], x.dtype)))
    return Start(x, metric, run.is_searching, keys, is_structured=True)
