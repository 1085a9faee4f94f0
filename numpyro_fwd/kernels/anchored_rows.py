"""Minibatch gradients that an expansion of the energy at its mode corrects."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import newton_path, report
from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.mcmc.derivatives import derivatives
from blackjax_ext.meshes import on_host
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.rows.minibatches import Anchor, anchored
from blackjax_ext.rows.newton import RUNAWAY, check_resolution, in_dtype, newton
from blackjax_ext.rows.potentials import energy_at
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.row_models import stochastic_potential
from numpyro_fwd.kernels.other_modes import Passes, look_elsewhere, place_of, warn_of_modes
from numpyro_fwd.kernels.row_strategies import PlainRows, counting, density_in_chunks, rows_of
from numpyro_fwd.kernels.strategy import Run, Source, Start, evaluate, ravel_one, split_keys

MOST_EXPANDED = BUDGET.dimensions["reverse"]
OTHERS = (
    "L2MC(model), which is exact and reads all rows; AMAGOLD(model, control_variate=None), which "
    "is also exact but accepts less; or numpyro.infer.NUTS on the model without subsample_size"
)
NO_ANCHOR = (
    'control_variate="second_order" needs the mode of the full data, and Newton\'s method found '
    "none from the start (that of init_params, if given). Alternatives that need no mode: "
    f"{OTHERS}."
)
CHAINS_START_APART = (
    "Chains start in more than one of these: trust them if R-hat is near 1, and not otherwise."
)


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
                approximation = newton_path.sampled(
                    noise, lambda x: logdensity_fn(unravel(x)), place, shared.metric
                )
                return approximation.draw(jax.random.uniform(key_choice, dtype=place.dtype))

            return jax.vmap(draw_one)(key, places)

        return Start(run(draw, key_draw, shared), shared.metric, True, keys)

    def target(self, source: Source, algorithm: Algorithm, shared: Mode) -> Stepper:
        """The algorithm on minibatches with the control variate."""
        rows = rows_of(source)
        potential = stochastic_potential(rows, self.chunk_size, source.view.differentiable)
        return counting(algorithm, anchored(potential, shared.anchor))


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
        return derivatives(along, jnp.zeros_like(x), differentiation, BUDGET.rows)

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
