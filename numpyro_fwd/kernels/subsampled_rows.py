"""Acceptance from a few rows, drawn by bounds of what an expansion at an anchor leaves of them."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.metrics.structures import Diagonal
from blackjax_ext.subsampling import group_sweeps
from blackjax_ext.subsampling.expansion import Expansion, surrogate
from blackjax_ext.subsampling.remainders import MAX_GAP, expected_rows, may_differ, tail_gap
from blackjax_ext.subsampling.row_tests import expanded_minibatch, subsampled
from blackjax_ext.types import Function, select
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.starts import check_finite
from numpyro_fwd.disk import num_rows_on_disk
from numpyro_fwd.kernels.anchored_rows import check_dimension, is_known, passes_of, zeros_like
from numpyro_fwd.kernels.other_modes import look_elsewhere, place_of, warn_of_modes
from numpyro_fwd.kernels.row_strategies import counting, rows_of
from numpyro_fwd.kernels.strategy import Run, Source, Start, ravel_one, split_each, split_keys
from numpyro_fwd.subsampling.groups import GroupedModel, expanded_groups, grouped_predictor_of
from numpyro_fwd.subsampling.predictors import expanded, linear_predictor_of, read_by_program
from numpyro_fwd.table_file import TableFile

LARGE_TABLE = 2**24  # rows on disk from which on bounds and alias table are there too
NO_FORWARD_MODE_OF_ROWS = (
    'acceptance="subsampled" reads a model in forward mode, and this one has gradients alone (a '
    "custom_vjp, as an ODE solver has); AMAGOLD(model), which reads all rows, L2MC(model), and "
    "MALA on the model without subsample_size do not need it."
)
CHAINS_START_TOGETHER = (
    "All chains start at the best, so R-hat does not tell of the others: draws may lack them."
)


class SubsampledRows:
    """Rows that see the latents through linear predictors, expanded at the mode with bounds."""

    def prepare(self, run: Run, z: Any) -> Expansion | GroupedModel:
        """The expansion of the rows at the mode: all that grows with N."""
        if not is_known(z):
            with evaluating(run.source.arguments):
                return self.prepare(run, zeros_like(z))
        if run.source.view.differentiation != "reverse":
            raise ValueError(NO_FORWARD_MODE_OF_ROWS)
        found = self._expanded(run, z, jax.tree.map(lambda leaf: on_host(leaf)[0], z))
        if run.is_searching and isinstance(found, Expansion):
            found = self._best(run, z, found)
        if isinstance(found, Expansion):
            self._look_at_tails(run, found)
        return found

    def _best(self, run: Run, z: Any, found: Expansion) -> Expansion | GroupedModel:
        """The expansion at the best mode that is found, with a warning if others matter."""
        leaves = [on_host(leaf).ravel() for leaf in jax.tree.leaves(found.position)]
        first = place_of(np.concatenate(leaves), found.metric)
        modes = look_elsewhere(run, z, first, lambda: passes_of(run, z, None))
        warn_of_modes(modes, report.sites_of(z), CHAINS_START_TOGETHER)
        best = modes.places[0]
        if best.stationary is None:
            return found
        there = jax.tree.map(np.asarray, ravel_one(z)(jnp.asarray(best.x)))
        return self._expanded(run, z, there)

    def _expanded(self, run: Run, z: Any, first: Any) -> Expansion | GroupedModel:
        """The expansion at the mode near a position."""
        rows, say = rows_of(run.source), run.say
        if isinstance(first, dict):
            run.say("looking for groups of rows")
            found = expanded_groups(rows, first, say=say)
            if found is not None:
                return found
        check_dimension(z)
        is_large = num_rows_on_disk(run.source.arguments) >= LARGE_TABLE
        if is_large:  # the same for chains in sequence, whose tables must be alike
            first = jax.tree.map(jnp.zeros_like, first)
        options = {"place": TableFile} if is_large else {}
        return expanded(rows, first, say=say, **options)

    def start(self, run: Run, rng_key: Array, z: Any, shared: Expansion | GroupedModel) -> Start:
        """Draws from the normal approximation at the mode.

        Where rows have groups, in coordinates that need no metric.
        """
        is_grouped = isinstance(shared, GroupedModel)

        def draw(arrays, rng_key, z, shared):
            rng_key, key_draw = split_each(rng_key, 2)
            expansion = expansion_of(rows_of(run.at(arrays)), shared)
            logprior = expansion.posterior.logprior
            if run.is_searching:
                around = jax.vmap(expansion.draw) if is_grouped else partial(draw_around, shared)
                z = within(logprior, around(key_draw), expansion)
            values = jax.vmap(lambda z: logprior(z) if is_grouped else -surrogate(expansion, z))(z)
            num_rows = expected_rows(jax.random.fold_in(key_draw[0], 1), expansion)
            return ravel_each(z), values, split_keys(rng_key)[0], num_rows

        x, values, keys, num_rows = run(draw, rng_key, z, shared)
        check_finite(values)
        if isinstance(shared, GroupedModel):
            warn_if_many(num_rows, shared.expansion.num_rows)
            metric: Any = Diagonal(jax.device_put(np.ones(x.shape[1], x.dtype)))
        else:
            warn_if_many(num_rows, shared.num_rows, partial(read_by_program, rows_of(run.source)))
            metric = shared.metric
        return Start(x, metric, run.is_searching, keys, is_structured=is_grouped)

    def _look_at_tails(self, run: Run, shared: Expansion) -> None:
        """Warn where trajectories that follow the expansion miss a tail of the posterior."""
        if not not_jax_tracer(shared.totals) or not may_differ(shared):
            return

        def tails(arrays, key, shared):
            return tail_gap(key, expansion_of(rows_of(run.at(arrays)), shared))

        run.say("comparing the tails of the posterior with those of its expansion")
        warn_if_light(run(tails, jax.random.key(0), shared))

    def target(
        self, source: Source, algorithm: Algorithm, shared: Expansion | GroupedModel
    ) -> Stepper:
        """The algorithm on the expansion, with the test that reads a few rows.

        Of rows in groups, sweeps with as many leapfrog steps as it has.
        """
        rows = rows_of(source)
        expansion = expansion_of(rows, shared)
        if isinstance(shared, GroupedModel):
            parameters = {"num_integration_steps": algorithm.parameters["num_integration_steps"]}
            return counting(Algorithm(group_sweeps, parameters), expansion)
        algorithm = algorithm.having(acceptance=subsampled(expansion))
        return counting(algorithm, expanded_minibatch(expansion, batch_size=0))


def expansion_of(rows: RowModel, shared: Expansion | GroupedModel) -> Expansion:
    """The expansion with its posterior."""
    if isinstance(shared, GroupedModel):
        position, layout = shared.expansion.position, shared.layout
        return shared.expansion.of(grouped_predictor_of(rows, position, layout))
    return shared.of(linear_predictor_of(rows, shared.position))


def within(logdensity: Function, z: Any, expansion: Expansion) -> Any:
    """Draws of chains, and the anchor in place of those that are outside of the support."""
    is_inside = jax.vmap(lambda z: jnp.isfinite(logdensity(z)))(z)
    return jax.vmap(lambda is_in, z: select(is_in, z, expansion.position))(is_inside, z)


def draw_around(expansion: Expansion, rng_key: Array) -> Any:
    """A draw from the normal approximation at the anchor for each key."""
    a, unravel = ravel_pytree(expansion.position)
    metric = expansion.metric
    assert metric is not None

    def draw(key):
        noise = jax.random.normal(key, a.shape, a.dtype)
        return unravel(a + metric.inverse_sqrt_times(noise))

    return jax.vmap(draw)(rng_key)


def warn_if_many(expected: Array, num_rows: int, loose: Callable[[], list[str]] = list) -> None:
    """Warn where a test that reads a few rows is expected to read many of all of them.

    ``loose()`` are the sites with bounds that are read from their programs.
    """
    if not not_jax_tracer(expected):
        return
    num_expected = float(on_host(expected))  # a collective: in every process
    # rows of a test that are few, whatever the share of all rows
    if num_expected <= max(num_rows / 2, 1000) or not is_first_process():
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
        'sign of it in R-hat. Give acceptance="full", or take numpyro.infer.NUTS on the model '
        "without subsample_size.",
        stacklevel=2,
    )
