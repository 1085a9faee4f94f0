"""The energy of a model with subsample plates: all rows in chunks, or the rows of a minibatch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, over_rows
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.types import Function
from numpyro_fwd.bridge.numpyro_private import identity
from numpyro_fwd.bridge.row_models import RowModel, RowTerms


def stochastic_potential(
    model: RowModel,
    chunk_size: int | None = None,
    differentiable: Callable[[Function], Function] = identity,
) -> StochasticPotential:
    """Exact energy, rows of a minibatch, and gradient of a full view on the unconstrained space.

    Rows are drawn with replacement, independently for each plate. The energy reads them in chunks;
    a site inside two subsample plates is read as a whole. `differentiable` gives the energy of a
    minibatch derivatives that a model may lack. Cost: N rows and B rows.
    """
    plates, plates_of = model.plates, model.plates_of
    first_row = {name: jnp.zeros(1, int) for name in plates}
    crossed = [name for name, around in plates_of.items() if len(around) > 1]
    plates_with_rows = [name for name in plates if (name,) in plates_of.values()]

    # as many as a minibatch has: with them the model is traced in any case
    some_rows = {name: jnp.zeros(plate.batch_size, int) for name, plate in plates.items()}

    def outside_plates(z):
        return model.terms(z, some_rows).outside_plates()

    def in_two_plates(z):
        return model.terms(z).total(crossed) if crossed else jnp.zeros(())

    def row_values(name, z, rows):
        scale = rows.shape[0] / plates[name].size
        return scale * per_row(model.terms(z, first_row | {name: rows}), name, rows.shape[0])

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
        return jax.grad(differentiable(lambda z: -model.terms(z, rows).total()))(z)

    # a site inside two plates has no row of its own
    num_rows = 0 if crossed else sum(plates[name].size for name in plates_with_rows)
    return StochasticPotential(potential, draw, stochastic_grad, num_rows)


def density_of_some(model: RowModel, num_rows: int) -> Function:
    """Log density of a full view with `num_rows` of each longer plate, weighted as all of them.

    The rows are the same in each program, drawn with replacement.
    """
    rng = np.random.default_rng(0)
    rows = {
        name: jnp.asarray(np.sort(rng.integers(plate.size, size=num_rows)))
        for name, plate in model.plates.items()
        if plate.size > num_rows
    }
    return lambda z: model.terms(z, rows).total()


def share_of_some(model: RowModel, num_rows: int) -> float:
    """Share of the rows of the longest plate that :func:`density_of_some` reads."""
    return min(1.0, num_rows / size_of_epoch(model)[1])


def size_of_epoch(model: RowModel) -> tuple[int, int]:
    """Numbers of minibatches that go through the largest plate, and of its rows."""
    plates = model.plates.values()
    num_steps = max((-(-plate.size // plate.batch_size) for plate in plates), default=1)
    return num_steps, max((plate.size for plate in plates), default=1)


def per_row(terms: RowTerms, plate: str, length: int) -> Array:
    """Log densities of the sites that lie in `plate` alone, summed for each of its rows."""
    alone = [name for name, plates in terms.plates.items() if plates == (plate,)]
    return sum((terms.by_row(name, plate) for name in alone), jnp.zeros(length))
