"""A full view with its arguments, read once for all that ask about its rows.

One trace says which plates and sites a model has. Log densities of rows are traced once for each
number of rows, whichever programs of a run they become a part of: a model is Python, which takes
longer to run than what is made of it.
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

from numpyro_fwd.bridge.arguments import (
    SplitArguments,
    shape_of,
    split_arguments,
    traced_once,
)
from numpyro_fwd.bridge.log_terms import LogTerms, log_terms
from numpyro_fwd.bridge.plates import (
    Plate,
    given_rows,
    known_shapes,
    subsample_plates,
    traced_view,
)
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
