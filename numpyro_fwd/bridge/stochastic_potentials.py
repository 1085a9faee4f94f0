"""The energy of a model with subsample plates: all rows in chunks, or the rows of a minibatch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.infer.util import _unconstrain_params, compute_log_probs

from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, over_rows
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.row_terms import Rows
from numpyro_fwd.bridge.plates import given_rows, known_shapes, rows_of, trace_of

__all__ = ["log_terms", "size_of_epoch", "stochastic_potential", "total"]


def log_terms(
    model: Callable, model_args: tuple, model_kwargs: dict | None, z: dict, rows: dict[str, Array]
) -> tuple[dict[str, Array], dict]:
    """Log densities of the sites at the unconstrained `z`, scaled and not summed; the sites."""
    substituted = _unconstrain_params(given_rows(model, rows), z)
    return compute_log_probs(substituted, model_args, model_kwargs or {}, {}, sum_log_prob=False)


def total(terms: Any) -> Array:
    """Sum of everything."""
    return sum((jnp.sum(term) for term in terms), jnp.zeros(()))


def stochastic_potential(
    model: Callable, model_args: tuple, model_kwargs: dict | None, chunk_size: int | None = None
) -> StochasticPotential:
    """Exact energy, rows of a minibatch, and gradient of a full view on the unconstrained space.

    Rows are drawn with replacement, independently for each plate. The energy reads them in chunks;
    a site inside two subsample plates is read as a whole. Cost: N rows and B rows.
    """
    sites = trace_of(model, model_args, model_kwargs)
    plates, owners = rows_of(sites)
    params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
    model = known_shapes(model, params)
    one = {name: jnp.zeros(1, int) for name in plates}
    is_crossed = any(len(owner) > 1 for owner in owners.values())

    def terms(z, rows):
        return log_terms(model, model_args, model_kwargs, z, rows)

    def outside(z):
        found = terms(z, one)[0]
        return total(term for name, term in found.items() if not owners.get(name))

    def crossed(z):
        found = terms(z, {})[0] if is_crossed else {}
        return total(term for name, term in found.items() if len(owners.get(name, ())) > 1)

    def values_of(name, z, rows):
        values, sites = terms(z, one | {name: rows})
        scale = rows.shape[0] / plates[name].size
        return scale * per_row(values, sites, owners, name, rows.shape[0])

    own = [name for name in plates if (name,) in owners.values()]

    def potential(z) -> Pair:
        energy = as_pair(-(outside(z) + crossed(z)))
        for name in own:

            def values_at(rows, name=name):
                return -values_of(name, z, rows)

            dtype = energy.high.dtype
            energy = add(energy, over_rows(values_at, plates[name].size, chunk_size, dtype))
        return energy

    def draw(rng_key):
        keys = jax.random.split(rng_key, len(plates))
        return {
            name: jax.random.randint(key, (plate.batch_size,), 0, plate.size)
            for key, (name, plate) in zip(keys, plates.items(), strict=True)
        }

    def stochastic_grad(z, rows):
        return jax.grad(lambda z: -total(terms(z, rows)[0].values()))(z)

    def row_terms(z, indices):
        """Rows are counted through, one plate after the other."""
        values, first = jnp.zeros(indices.shape), 0
        for name in own:
            last = first + plates[name].size
            # one by one: numpyro.subsample takes as many rows as there are for all of them in order
            one_by_one = jax.vmap(lambda row, name=name: values_of(name, z, row[None])[0])
            found = one_by_one(jnp.clip(indices - first, 0, plates[name].size - 1))
            values = jnp.where((first <= indices) & (indices < last), found, values)
            first = last
        return values

    # a site inside two plates has no row of its own
    num_rows = sum(plates[name].size for name in own)
    rows = Rows(outside, row_terms, num_rows) if num_rows and not is_crossed else None
    return StochasticPotential(potential, draw, stochastic_grad, rows)


def size_of_epoch(model: Callable, model_args: tuple, model_kwargs: dict | None) -> tuple[int, int]:
    """Numbers of minibatches that go through the largest plate, and of its rows."""
    plates = rows_of(trace_of(model, model_args, model_kwargs)).plates.values()
    num_steps = max((-(-plate.size // plate.batch_size) for plate in plates), default=1)
    return num_steps, max((plate.size for plate in plates), default=1)


def per_row(
    terms: dict, sites: dict, owners: dict[str, tuple[str, ...]], plate: str, length: int
) -> Array:
    """Log densities of the sites that lie in `plate` alone, summed for each of its rows."""
    values = jnp.zeros(length)
    for name, term in terms.items():
        if owners.get(name) == (plate,):
            frames = sites[name]["cond_indep_stack"]
            axis = term.ndim + next(frame.dim for frame in frames if frame.name == plate)
            values = values + jnp.sum(jnp.moveaxis(term, axis, 0).reshape(length, -1), axis=1)
    return values
