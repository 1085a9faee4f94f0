"""The ways in which a minibatch kernel reads the rows of a model's subsample plates.

:class:`PlainRows` estimates gradients from a minibatch; :class:`AnchoredRows` corrects them by an
expansion of the full energy at its mode; :class:`SubsampledRows` also accepts or rejects from a few
rows. A fourth way is one more class with the methods of
:class:`numpyro_fwd.kernels.strategy.Strategy`.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation import approximations, report
from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.meshes import on_host
from blackjax_ext.metrics.structures import Dense, Diagonal
from blackjax_ext.rows.control_variates import Anchor, anchored
from blackjax_ext.rows.potentials import energy_at
from blackjax_ext.subsampling import group_sweeps
from blackjax_ext.subsampling.expanded_potential import expanded_minibatch
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.few_rows import subsampled
from blackjax_ext.subsampling.mode import RUNAWAY, check_resolution, in_dtype
from blackjax_ext.subsampling.newton import newton
from blackjax_ext.subsampling.tails import may_differ, tail_gap
from blackjax_ext.subsampling.thinning import expected_rows
from blackjax_ext.types import LogDensity, select
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.starts import check_finite
from numpyro_fwd.bridge.stochastic_potentials import size_of_epoch, stochastic_potential
from numpyro_fwd.disk import num_rows_on_disk
from numpyro_fwd.kernels.minibatch_options import Subsampled
from numpyro_fwd.kernels.optimizer_start import optimize
from numpyro_fwd.kernels.other_modes import (
    Passes,
    look_elsewhere,
    place_of,
    warn_of_modes,
)
from numpyro_fwd.kernels.row_counts import CountingAlgorithm, warn_if_light, warn_if_many
from numpyro_fwd.kernels.rows_of_runs import rows_of
from numpyro_fwd.kernels.state import split_each
from numpyro_fwd.kernels.strategy import (
    Run,
    Source,
    Start,
    evaluate,
    follow_path,
    ravel_one,
    split_keys,
)
from numpyro_fwd.subsampling.anchors import position_of_anchor
from numpyro_fwd.subsampling.groups import GroupedModel, expanded_groups, grouped_predictor_of
from numpyro_fwd.subsampling.predictors import (
    batch_size_of,
    expanded,
    linear_predictor_of,
    read_by_program,
)
from numpyro_fwd.table_file import TableFile

__all__ = ["AnchoredRows", "PlainRows", "SubsampledRows"]

LARGE_TABLE = 2**24  # rows on disk from which on bounds and alias table are there too
NUM_EPOCHS = 3  # as in section 6.3 of the paper
MOST_EXPANDED = BUDGET.dimensions["reverse"]
OTHERS = (
    "L2MC(model), which is exact and reads all rows; AMAGOLD(model, control_variate=None), which "
    "is also exact but accepts less; or numpyro.infer.NUTS on the model without subsample_size"
)
NO_ANCHOR = (
    'control_variate="second_order" needs the mode of the full data, and Newton\'s path found none '
    "from the start, that of init_params if they are given. Alternatives that need no mode: "
    f"{OTHERS}."
)
OFF_ANCHOR = (
    "anchor must be a place where the rows can be expanded and the posterior is curved like a "
    "normal density, such as the mean of draws: "
)
NO_FORWARD_MODE_OF_ROWS = (
    'acceptance="subsampled" reads a model in forward mode, and this one has gradients alone (a '
    "custom_vjp, as an ODE solver has); AMAGOLD(model), which reads all rows, L2MC(model), and "
    "MALA on the model without subsample_size do not need it."
)
CHAINS_START_APART = (
    "Chains start in more than one of these: trust them if R-hat is near 1, and not otherwise."
)
CHAINS_START_TOGETHER = (
    "All chains start at the best, so R-hat does not tell of the others: draws may lack them."
)


def density_in_chunks(chunk_size: int | None, source: Source) -> LogDensity:
    """Log density of a full view, in one float and with bounded memory."""
    potential = stochastic_potential(rows_of(source), chunk_size)
    return lambda z: -energy_at(potential, z).value()


class PlainRows:
    """Gradients from the rows of a minibatch alone.

    Parameters
    ----------
    chunk_size
        Rows that a pass over all of them reads at once.
    num_epochs
        Passes over the data of an optimizer that looks for a start; None for 3 where there are too
        many dimensions for Newton's path, and none elsewhere.
    optimizer
        Of optax; None for Adam.
    """

    def __init__(
        self,
        chunk_size: int | None,
        num_epochs: int | None,
        optimizer: optax.GradientTransformation | None,
    ):
        self.chunk_size = chunk_size
        self.num_epochs = num_epochs
        self.optimizer = optimizer

    def prepare(self, run: Run, z: Any) -> Any:
        """Chains share nothing."""

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """Where the optimizer leads, or Newton's path."""
        del shared
        density_of = partial(density_in_chunks, self.chunk_size)
        num_epochs = self._epochs(run, ravel_each(z).shape[1])
        if num_epochs:
            rng_key, key_search = split_each(rng_key, 2)
            z = self._optimized(run, key_search, z, num_epochs)
        # an optimized start is not improved, and no metric is looked for that is not wanted
        is_searching = run.is_searching and run.adapts_metric and not num_epochs
        run = run._replace(is_searching=is_searching)
        return follow_path(run, rng_key, z, density_of)

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The algorithm on minibatches."""
        del shared
        potential = stochastic_potential(rows_of(source), self.chunk_size)
        return CountingAlgorithm(algorithm, potential)

    def _epochs(self, run: Run, size: int) -> int:
        """Passes over the data of the optimizer that looks for a start."""
        if not run.is_searching:
            return 0
        if self.num_epochs is None:
            return 0 if size <= MOST_EXPANDED else NUM_EPOCHS
        return self.num_epochs

    def _optimized(self, run: Run, rng_key: Array, z: Any, num_epochs: int) -> Any:
        """Positions `z` after as many epochs of the optimizer, each with its own minibatches."""
        per_epoch, num_rows = size_of_epoch(rows_of(run.source))
        num_steps = per_epoch * num_epochs

        def program(arrays, rng_key, z):
            potential = stochastic_potential(rows_of(run.at(arrays)), self.chunk_size)
            return jax.vmap(
                lambda key, z: optimize(key, potential, z, num_steps, num_rows, self.optimizer)
            )(rng_key, z)

        run.say(f"{num_epochs} epochs of an optimizer that looks for a start")
        return run(program, rng_key, z)


class Mode(NamedTuple):
    """What chains with a control variate share.

    anchor
        The expansion of the energy at its mode, in the coordinates that `metric` whitens.
    metric
        The curvature there.
    places
        Modes around which chains start, in turn, (4, D): the anchor, and others that matter.
    """

    anchor: Anchor
    metric: Dense
    places: Array


class AnchoredRows(PlainRows):
    """Minibatch gradients with a control variate, whose anchor is the mode that all chains share.

    Parameters
    ----------
    chunk_size, num_epochs, optimizer
        As for :class:`PlainRows`.
    """

    def prepare(self, run: Run, z: Any) -> Any:
        """The expansion of the energy at its mode."""
        check_dimension(z)
        if not is_known(z):
            with evaluating(run.source.arguments):
                return self.prepare(run, zeros_like(z))
        if num_epochs := self._epochs(run, ravel_each(z).shape[1]):
            # a fixed key: what it finds is a place, not a draw
            keys = jax.random.split(jax.random.key(0), ravel_each(z).shape[0])
            z = self._optimized(run, keys, z, num_epochs)
        density_of = partial(density_in_chunks, self.chunk_size)
        x = ravel_each(z)
        values = evaluate(run, x, z, density_of)
        best = on_host(x)[np.argmax(on_host(values))]
        passes = passes_of(run, z, self.chunk_size)
        run.say("looking for the mode of all rows")
        found = newton(*passes, best)
        if found.distance < np.inf:
            check_resolution(found.point, found.refined())
        if not found.is_mode:
            raise ValueError(NO_ANCHOR + RUNAWAY)
        places = [found.x]
        if run.is_searching:
            modes = look_elsewhere(run, z, place_of(found.x, found.metric(), found), lambda: passes)
            warn_of_modes(modes, report.sites_of(z), CHAINS_START_APART)
            places = [place.x for place in modes.places]
            found = modes.places[0].stationary or found
        metric = in_dtype(found.metric(), found.x.dtype)
        gradient, hessian = passes.derivatives(found.x, metric.inverse_sqrt)
        position = jax.jit(ravel_one(z))(found.x)
        anchor = Anchor(position, gradient, hessian, metric.sqrt)
        return Mode(
            anchor, metric, jnp.asarray(np.resize(places, (BUDGET.mode_places, found.x.size)))
        )

    def start(self, run: Run, rng_key: Array, z: Any, shared: Mode) -> Start:
        """For each chain one of a few draws around a mode, by importance."""
        density_of = partial(density_in_chunks, self.chunk_size)
        keys, key_draw = split_keys(rng_key)
        if not run.is_searching:
            return Start(ravel_each(z), None, False, keys)
        unravel = ravel_one(z)

        def draw(arrays, key, shared):
            logdensity_fn = density_of(run.at(arrays))
            # not the same of several modes for all chains, and any of them for a chain alone
            first = jax.random.randint(jax.random.fold_in(key[0], 1), (), 0, BUDGET.mode_places)
            places = shared.places[(first + jnp.arange(key.shape[0])) % BUDGET.mode_places]

            def draw_one(key, place):
                key_draws, key_choice = jax.random.split(key)
                noise = jax.random.normal(key_draws, (BUDGET.draws, place.size), place.dtype)
                approximation = approximations.sampled(
                    noise, lambda x: logdensity_fn(unravel(x)), place, shared.metric
                )
                return approximation.draw(jax.random.uniform(key_choice, dtype=place.dtype))

            return jax.vmap(draw_one)(key, places)

        return Start(run(draw, key_draw, shared), shared.metric, True, keys)

    def target(self, source: Source, algorithm: Algorithm, shared: Mode) -> Stepper:
        """The algorithm on minibatches with the control variate."""
        differentiable = source.view.differentiable
        potential = stochastic_potential(rows_of(source), self.chunk_size, differentiable)
        return CountingAlgorithm(algorithm, anchored(potential, shared.anchor, order=2))


class SubsampledRows:
    """Rows that see the latents through linear predictors, expanded at the mode with bounds.

    Parameters
    ----------
    options
        Its anchor, and what trajectories follow.
    """

    def __init__(self, options: Subsampled):
        self.options = options

    def prepare(self, run: Run, z: Any) -> Expansion | GroupedModel:
        """The expansion of the rows at the anchor: all that grows with N."""
        if not is_known(z):
            with evaluating(run.source.arguments):
                return self.prepare(run, zeros_like(z))
        if run.source.view.differentiation != "reverse":
            raise ValueError(NO_FORWARD_MODE_OF_ROWS)
        found = self._found(run, z)
        if isinstance(found, Expansion) and self.options.gradient == "expansion":
            self._look_at_tails(run, found)
        return found

    def _found(self, run: Run, z: Any) -> Expansion | GroupedModel:
        """The expansion at the mode, or at the place that is given."""
        if isinstance(self.options.anchor, str):
            first = jax.tree.map(lambda leaf: on_host(leaf)[0], z)
            found = self._expanded(run, z, first, find_mode=True)
            if run.is_searching and isinstance(found, Expansion):
                return self._best(run, z, found)
            return found
        source = run.source
        first = position_of_anchor(source.model, *source.arguments, self.options.anchor)
        try:
            return self._expanded(run, z, first, find_mode=False)
        except ValueError as error:
            raise ValueError(OFF_ANCHOR + str(error)) from error

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
        return self._expanded(run, z, there, find_mode=True)

    def _expanded(
        self, run: Run, z: Any, first: Any, *, find_mode: bool
    ) -> Expansion | GroupedModel:
        """The expansion near a position, or at it."""
        rows, say = rows_of(run.source), run.say
        if isinstance(first, dict):
            run.say("looking for groups of rows")
            found = expanded_groups(rows, first, say=say, find_mode=find_mode)
            if found is not None:
                return found
        check_dimension(z)
        is_large = num_rows_on_disk(run.source.arguments) >= LARGE_TABLE
        if is_large and find_mode:  # the same for chains in sequence, whose tables must be alike
            first = jax.tree.map(jnp.zeros_like, first)
        return expanded(
            rows,
            first,
            say=say,
            find_mode=find_mode,
            **({"place": TableFile} if is_large else {}),
        )

    def start(self, run: Run, rng_key: Array, z: Any, shared: Expansion | GroupedModel) -> Start:
        """Draws from the normal approximation at the mode."""
        is_grouped = isinstance(shared, GroupedModel)

        def draw(arrays, rng_key, z, shared):
            rng_key, key_draw = split_each(rng_key, 2)
            expansion = expansion_of(rows_of(run.at(arrays)), shared)
            if run.is_searching:
                draw_one = expansion.draw if is_grouped else partial(draw_around, shared)
                z = within(jax.vmap(draw_one)(key_draw), expansion)
            values = jax.vmap(expansion.posterior.logprior)(z)
            num_rows = expected_rows(jax.random.fold_in(key_draw[0], 1), expansion)
            return ravel_each(z), values, split_keys(rng_key)[0], num_rows

        x, values, keys, num_rows = run(draw, rng_key, z, shared)
        check_finite(values)
        if isinstance(shared, GroupedModel):  # in coordinates that need no metric
            warn_if_many(num_rows, shared.expansion.num_rows)
            metric = Diagonal(jax.device_put(np.ones(x.shape[1], x.dtype)))
            return Start(x, metric, run.is_searching, keys, is_structured=True)
        warn_if_many(num_rows, shared.num_rows, partial(read_by_program, rows_of(run.source)))
        return Start(x, shared.metric, run.is_searching, keys)

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

        Of rows in groups, sweeps over these with as many leapfrog steps.
        """
        rows = rows_of(source)
        expansion = expansion_of(rows, shared)
        if isinstance(shared, GroupedModel):
            steps = {"num_integration_steps": algorithm.parameters["num_integration_steps"]}
            return CountingAlgorithm(Algorithm(group_sweeps, steps), expansion)
        batch_size = batch_size_of(rows) if self.options.gradient == "minibatch" else 0
        algorithm = algorithm.having(acceptance=subsampled(expansion))
        return CountingAlgorithm(algorithm, expanded_minibatch(expansion, batch_size))


def expansion_of(rows: RowModel, shared: Expansion | GroupedModel) -> Expansion:
    """The expansion that chains share, with the posterior of these rows."""
    if isinstance(shared, GroupedModel):
        expansion = shared.expansion
        return expansion.of(grouped_predictor_of(rows, expansion.position, shared.layout))
    return shared.of(linear_predictor_of(rows, shared.position))


def within(z: Any, expansion: Expansion) -> Any:
    """Draws of chains, and the anchor in place of those that are outside of the support."""
    is_inside = jax.vmap(lambda z: jnp.isfinite(expansion.posterior.logprior(z)))(z)
    return jax.vmap(lambda is_in, z: select(is_in, z, expansion.position))(is_inside, z)


def passes_of(run: Run, z: Any, chunk_size: int | None) -> Passes:
    """Energy and derivatives of all rows at flat positions, compiled when they are called."""
    unravel = ravel_one(z)

    def energy(arrays, x):
        potential = stochastic_potential(rows_of(run.at(arrays)), chunk_size)
        return energy_at(potential, unravel(x))

    def both(arrays, x, root):
        def along(u):
            return energy(arrays, x + root @ u).value()

        differentiation = run.source.view.differentiation
        return approximations.derivatives(along, jnp.zeros_like(x), differentiation, BUDGET.rows)

    return Passes(run.compiled(energy), run.compiled(both))


def check_dimension(z: Any) -> None:
    """Raise ValueError for more dimensions than a Hessian is taken in."""
    size = ravel_each(z).shape[1]
    if size > MOST_EXPANDED:
        raise ValueError(
            f"control_variate must be None beyond {MOST_EXPANDED} dimensions, "
            f"where no Hessian is taken to find the mode; the model has {size}. Alternatives: "
            f"{OTHERS}."
        )


def is_known(z: Any) -> bool:
    """Whether starts have values: those of parallel chains are traced."""
    return all(not_jax_tracer(leaf) for leaf in jax.tree.leaves(z))


def zeros_like(z: Any) -> Any:
    """What stands for starts that are not known."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), z)


def draw_around(expansion: Expansion, rng_key: Array) -> Any:
    """A draw from the normal approximation at the anchor."""
    a, unravel = ravel_pytree(expansion.position)
    noise = jax.random.normal(rng_key, a.shape, a.dtype)
    return unravel(a + cast(Dense, expansion.metric).inverse_sqrt_times(noise))
