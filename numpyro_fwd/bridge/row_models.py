"""A full view with its arguments, read once for all that ask about its rows, and its energy.

One trace says which plates and sites a model has. Log densities of rows are traced once for each
number of rows, whichever programs of a run they become a part of: a model is Python, which takes
longer to run than what is made of it. The energy reads all rows in chunks, or the rows of a
minibatch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, over_rows
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import SplitArguments, shape_of, split_arguments, traced_once
from numpyro_fwd.bridge.log_terms import LogTerms, log_terms
from numpyro_fwd.bridge.numpyro_private import identity
from numpyro_fwd.bridge.plates import Plate, given_rows, known_shapes, subsample_plates, traced_view
from numpyro_fwd.bridge.traces import TracedModel
from numpyro_fwd.types import Args, Kwargs, Model, Sites, SiteValues

T = TypeVar("T")


@partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["axes"])
@dataclass(frozen=True)
class RowTerms:
    """Log densities of the sites of a full view on some of its rows.

    Attributes
    ----------
    values
        Log densities by site, scaled as the plates say, not summed.
    axes
        For each of them the subsample plates that it lies in, with the axis of each plate's rows.
    """

    values: dict[str, Array]
    axes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]

    @classmethod
    def of(cls, terms: LogTerms) -> "RowTerms":
        """Of the log densities of all sites, which know more."""

        def axes_of(name: str) -> tuple[tuple[str, int], ...]:
            frames = terms.sites[name]["cond_indep_stack"]
            return tuple((f.name, f.dim) for f in frames if f.name in terms.plates[name])

        return cls(terms.values, tuple((name, axes_of(name)) for name in terms.values))

    @property
    def plates(self) -> dict[str, tuple[str, ...]]:
        """Subsample plates that each site lies in."""
        return {name: tuple(plate for plate, _ in axes) for name, axes in self.axes}

    def outside_plates(self) -> Array:
        """Sum of the terms outside all subsample plates, which every minibatch evaluates."""
        return self.total(name for name, plates in self.plates.items() if not plates)

    def total(self, names: Any = None) -> Array:
        """Sum of the terms with these names, a scalar; None for all of them."""
        names = self.values if names is None else names
        return sum((jnp.sum(self.values[name]) for name in names), jnp.zeros(()))

    def by_row(self, name: str, plate: str) -> Array:
        """The log density of a site, of each of the rows of a plate."""
        of_rows = jnp.moveaxis(self.values[name], dict(dict(self.axes)[name])[plate], 0)
        return jnp.sum(of_rows.reshape(of_rows.shape[0], -1), axis=1)


@dataclass(frozen=True, eq=False)
class RowModel:
    """A full view and its arguments, of which one trace is handed on.

    It serves one run: what a model reads besides its arguments may be other in the next.

    Attributes
    ----------
    model
        The full view.
    arguments
        Its arguments, arrays and the rest apart.
    traced
        What its trace says of it.
    made
        What has been made of it: :meth:`once`.
    """

    model: Model
    arguments: SplitArguments
    traced: TracedModel
    made: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Model,
        model_args: Args,
        model_kwargs: Kwargs | None,
        traced: TracedModel | None = None,
    ) -> "RowModel":
        """Of a full view, which is traced unless that is given."""
        traced = traced or traced_view(model, model_args, model_kwargs)
        sites = traced.sites
        # plates have their rows as they are, which would stay in JAX's caches with the trace
        rows = {name: shape_of(s["value"]) for name, s in sites.items() if s["type"] == "plate"}
        sites = sites | {name: sites[name] | {"value": shape} for name, shape in rows.items()}
        arguments = split_arguments(model_args, model_kwargs)
        return cls(model, arguments, traced._replace(sites=sites))

    def having(self, model_args: Args, model_kwargs: Kwargs | None) -> "RowModel":
        """The same with other arguments, traced anew if they differ by more than their values.

        Values must not decide on its sites: within a run they are the same.
        """
        arguments = split_arguments(model_args, model_kwargs)
        if arguments.is_like(self.arguments):
            return replace(self, arguments=arguments)
        return RowModel.of(self.model, model_args, model_kwargs)

    def without_data(self) -> "RowModel":
        """What :meth:`having` needs: shapes in place of the arrays."""
        return replace(self, arguments=self.arguments.without_data())

    @property
    def model_args(self) -> tuple[Args, Kwargs | None]:
        """Positional and keyword arguments of the model."""
        return self.arguments.join(self.arguments.arrays)

    @property
    def sites(self) -> Sites:
        """Its sites as they are traced: shapes in place of values."""
        return self.traced.sites

    @property
    def plates(self) -> dict[str, Plate]:
        """Subsample plates by their names."""
        return subsample_plates(self.sites).plates

    @property
    def plates_of(self) -> dict[str, tuple[str, ...]]:
        """For each site with a log density, the subsample plates that it lies in."""
        return subsample_plates(self.sites).plates_of

    def once(self, make: Callable[..., T], *like: Any) -> T:
        """``make(self, *like)``, made once: it may hold no data, and nothing of one program.

        Of what it is made `like` the shapes alone matter, which are those of the model.
        """
        if make not in self.made:
            self.made[make] = make(self, *like)
        found: T = self.made[make]
        return found

    def terms(self, z: SiteValues, rows: Mapping[str, Array] = MappingProxyType({})) -> RowTerms:
        """Log densities at unconstrained values on `rows` by plate, of the other plates on all."""
        every = {name: jnp.arange(each.size) for name, each in self.plates.items()}
        found: RowTerms = self.once(terms_of)(self.arguments.arrays, z, every | dict(rows))
        return found

    def on_rows(self, rows: Mapping[str, Array]) -> Model:
        """The model on `rows` by plate.

        Its networks need no key for their parameters, whose shapes are known.
        """
        params = {n: site["value"] for n, site in self.sites.items() if site["type"] == "param"}
        shapes = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
        return given_rows(known_shapes(self.model, shapes), dict(rows))


def terms_of(model: RowModel) -> Callable[..., RowTerms]:
    """``(arrays, z, rows)``: the log densities of a model with these arrays."""
    join, on_rows = model.arguments.join, model.without_data().on_rows

    def terms(arrays, z, rows):
        model_args, model_kwargs = join(arrays)
        return RowTerms.of(log_terms(on_rows(rows), model_args, model_kwargs, z))

    return traced_once(terms)


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
