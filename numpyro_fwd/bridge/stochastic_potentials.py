"""The energy of a model with subsample plates: all rows in chunks, or the rows of a minibatch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, over_rows
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.row_terms import Rows
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.types import Function
from numpyro_fwd.bridge.log_terms import LogTerms, log_terms
from numpyro_fwd.bridge.numpyro_private import identity
from numpyro_fwd.bridge.plates import (
    full_view_sites,
    given_rows,
    known_shapes,
    subsample_plates,
)
from numpyro_fwd.types import Args, Kwargs, Model, Sites

__all__ = ["density_of_some", "share_of_some", "size_of_epoch", "stochastic_potential"]


def stochastic_potential(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    chunk_size: int | None = None,
    differentiable: Callable[[Function], Function] = identity,
) -> StochasticPotential:
    """Exact energy, rows of a minibatch, and gradient of a full view on the unconstrained space.

    Rows are drawn with replacement, independently for each plate. The energy reads them in chunks;
    a site inside two subsample plates is read as a whole. `differentiable` gives the energy of a
    minibatch derivatives that a model may lack. Cost: N rows and B rows.
    """
    sites = full_view_sites(model, model_args, model_kwargs)
    plates, plates_of = subsample_plates(sites)
    model = with_params(model, sites)
    first_row = {name: jnp.zeros(1, int) for name in plates}
    crossed = [name for name, around in plates_of.items() if len(around) > 1]
    plates_with_rows = [name for name in plates if (name,) in plates_of.values()]

    def terms_at(z, rows):
        return log_terms(given_rows(model, rows), model_args, model_kwargs, z)

    def outside_plates(z):
        terms = terms_at(z, first_row)
        return terms.total(terms.outside_plates)

    def in_two_plates(z):
        return terms_at(z, {}).total(crossed) if crossed else jnp.zeros(())

    def row_values(name, z, rows):
        scale = rows.shape[0] / plates[name].size
        return scale * per_row(terms_at(z, first_row | {name: rows}), name, rows.shape[0])

    def potential(z) -> Pair:
        energy = as_pair(-(outside_plates(z) + in_two_plates(z)))
        for name in plates_with_rows:

            def values_at(rows, name=name):
                return -row_values(name, z, rows)

            dtype = energy.high.dtype
            energy = add(energy, over_rows(values_at, plates[name].size, chunk_size, dtype))
        return energy

    def draw(rng_key):
        keys = jax.random.split(rng_key, len(plates))
        return {
            name: with_replacement(key, plate.size, plate.batch_size)
            for key, (name, plate) in zip(keys, plates.items(), strict=True)
        }

    def stochastic_grad(z, rows):
        return jax.grad(differentiable(lambda z: -terms_at(z, rows).total()))(z)

    def row_terms(z, indices):
        """Rows are counted through, one plate after the other."""
        values, first = jnp.zeros(indices.shape), 0
        for name in plates_with_rows:
            last = first + plates[name].size

            # one by one: numpyro.subsample takes as many rows as there are for all of them in order
            def one(row, name=name):
                return differentiable(lambda z: row_values(name, z, row[None])[0])(z)

            found = jax.vmap(one)(jnp.clip(indices - first, 0, plates[name].size - 1))
            values = jnp.where((first <= indices) & (indices < last), found, values)
            first = last
        return values

    # a site inside two plates has no row of its own
    num_rows = sum(plates[name].size for name in plates_with_rows)
    if not num_rows or crossed:
        return StochasticPotential(potential, draw, stochastic_grad)
    rows = Rows(differentiable(outside_plates), row_terms, num_rows)
    return StochasticPotential(potential, draw, stochastic_grad, rows)


def density_of_some(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    num_rows: int,
) -> Function:
    """Log density of a full view with `num_rows` of each longer plate, weighted as all of them.

    The rows are the same in each program, drawn with replacement.
    """
    sites = full_view_sites(model, model_args, model_kwargs)
    rng = np.random.default_rng(0)
    rows = {
        name: jnp.asarray(np.sort(rng.integers(plate.size, size=num_rows)))
        for name, plate in subsample_plates(sites).plates.items()
        if plate.size > num_rows
    }
    view = given_rows(with_params(model, sites), rows)
    return lambda z: log_terms(view, model_args, model_kwargs, z).total()


def share_of_some(
    model: Model, model_args: Args, model_kwargs: Kwargs | None, num_rows: int
) -> float:
    """Share of the rows of the longest plate that :func:`density_of_some` reads."""
    return min(1.0, num_rows / size_of_epoch(model, model_args, model_kwargs)[1])


def with_params(model: Model, sites: Sites) -> Model:
    """The model with shapes of its param sites."""
    params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
    return known_shapes(model, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params))


def size_of_epoch(model: Model, model_args: Args, model_kwargs: Kwargs | None) -> tuple[int, int]:
    """Numbers of minibatches that go through the largest plate, and of its rows."""
    plates = subsample_plates(full_view_sites(model, model_args, model_kwargs)).plates.values()
    num_steps = max((-(-plate.size // plate.batch_size) for plate in plates), default=1)
    return num_steps, max((plate.size for plate in plates), default=1)


def per_row(terms: LogTerms, plate: str, length: int) -> Array:
    """Log densities of the sites that lie in `plate` alone, summed for each of its rows."""
    values = jnp.zeros(length)
    for name, term in terms.values.items():
        if terms.plates[name] == (plate,):
            frames = terms.sites[name]["cond_indep_stack"]
            axis = term.ndim + next(frame.dim for frame in frames if frame.name == plate)
            values = values + jnp.sum(jnp.moveaxis(term, axis, 0).reshape(length, -1), axis=1)
    return values
