r"""The minibatch view and the full-data view of one NumPyro model with subsample plates.

A plate with ``subsample_size`` tells a model which rows to read and by how much to scale their log
densities. :class:`FullView` gives such plates all rows, so that everything that wants the posterior
(start, metric, ``Predictive``, ArviZ) sees it; :func:`stochastic_potential` gives them the rows of
a minibatch or of a chunk. The model is the user's own, unchanged.
"""

import copy
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.infer import init_to_sample

from blackjax_ext.rows.shuffles import distinct
from numpyro_fwd.bridge.arguments import evaluating, is_data
from numpyro_fwd.bridge.numpyro_private import Messenger, not_jax_tracer, validate_model
from numpyro_fwd.bridge.traces import (
    TracedModel,
    first_sites,
    has_observed,
    imputing,
    is_latent,
    without_values,
)
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites

# where the full view leaves the size of the minibatch
SUBSAMPLE_SIZE = "subsample_size"


class FullView:
    """A model with all rows in its subsample plates.

    Picklable, and a model like any other. Its arrays are arrays of jax, which can be indexed inside
    a compiled program.
    """

    def __init__(self, model: Model):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on all rows."""
        args, kwargs = jax.tree.map(as_array, (args, kwargs))
        with imputing(), every_row():
            return self.model(*args, **kwargs)


def as_array(leaf: Any) -> Any:
    """`leaf`, an array of jax if it is one of numpy with numbers for each row.

    Its values stay known in a program: a model may take shapes from them, as with a boolean mask.
    """
    if not isinstance(leaf, np.ndarray) or not is_data(leaf):
        return leaf
    with evaluating():
        return jnp.asarray(leaf)


class every_row(Messenger):
    """Give subsample plates all rows, and leave a note of the size of their minibatches."""

    def process_message(self, msg: Site) -> None:
        """Rewrite the rows of a plate that subsamples, in place."""
        if msg["type"] != "plate":
            return
        size, batch_size = msg["args"]
        if batch_size is None or (not_jax_tracer(batch_size) and batch_size == size):
            return
        batch_size = check_batch_size(msg["name"], size, batch_size)
        msg["kwargs"] = {**msg["kwargs"], SUBSAMPLE_SIZE: batch_size}
        msg["value"], msg["args"] = jnp.arange(size), (size, size)


class known_rows(Messenger):
    """Let the rows of a full view be values where all else is traced: arrays of NumPy take them."""

    def process_message(self, msg: Site) -> None:
        """Exchange the rows of a plate of a full view."""
        if msg["type"] == "plate" and SUBSAMPLE_SIZE in msg["kwargs"]:
            with evaluating():
                msg["value"] = jnp.asarray(np.arange(msg["args"][0]))


class first_rows(Messenger):
    """Give the plates of a full view the first rows alone, as many as a minibatch has.

    The plates' scale follows their number. For data of which not all rows are to be read.
    """

    def process_message(self, msg: Site) -> None:
        """Rewrite the rows of a plate of a full view."""
        if msg["type"] == "plate" and SUBSAMPLE_SIZE in msg["kwargs"]:
            batch_size = msg["kwargs"][SUBSAMPLE_SIZE]
            msg["value"], msg["args"] = jnp.arange(batch_size), (batch_size, batch_size)


class given_rows(Messenger):
    """Give the plates named in `rows` these rows; the plates' scale follows their number."""

    def __init__(self, fn: Model, rows: dict[str, Array]):
        super().__init__(fn)
        self.rows = rows

    def process_message(self, msg: Site) -> None:
        """Rewrite the rows of a named plate."""
        if msg["type"] == "plate" and msg["name"] in self.rows:
            rows = self.rows[msg["name"]]
            # the arguments too: NumPyro compares them with the number of rows
            msg["value"], msg["args"] = rows, (msg["args"][0], rows.shape[0])


class distinct_rows(Messenger):
    """Let plates draw minibatches by a few sorts, where NumPyro takes B rounds of a loop.

    The law is the same: without replacement. A key must be given, as by a seed handler outside.
    """

    def process_message(self, msg: Site) -> None:
        """Exchange the function that draws."""
        if msg["type"] == "plate":
            msg["fn"] = lambda size, num, rng_key: distinct(rng_key, size, num)


class known_shapes(Messenger):
    """Give the param sites of random networks the shapes in `params`.

    A network whose parameters are all sampled needs no more; it would draw them with a key that a
    log density does not have.
    """

    def __init__(self, fn: Model, params: dict[str, Any]):
        super().__init__(fn)
        self.params = params

    def process_message(self, msg: Site) -> None:
        """Answer a param site; with a copy, which NumPyro's modules write on."""
        if msg["type"] == "param" and msg["name"] in self.params:
            msg["value"] = copy.deepcopy(self.params[msg["name"]])


class Plate(NamedTuple):
    """Numbers of rows of a subsample plate: all, and those of a minibatch."""

    size: int
    batch_size: int


class SubsamplePlates(NamedTuple):
    """Subsample plates of a model and what lies in them.

    plates
        Numbers of rows by the name of the plate.
    plates_of
        For each site with a log density, the subsample plates that it lies in.
    """

    plates: dict[str, Plate]
    plates_of: dict[str, tuple[str, ...]]


def check_batch_size(name: str, size: int, batch_size: int) -> int:
    """Return the size of a minibatch; raise unless it is a whole number from 1 to `size`."""
    try:
        batch_size = operator.index(batch_size)
    except TypeError as error:
        raise TypeError(
            f"plate '{name}' must have a subsample_size that is a whole number, not traced: make "
            f"it a constant of the model instead of an argument; got {batch_size!r}."
        ) from error
    if not 1 <= batch_size <= size:
        raise ValueError(
            f"plate '{name}' must have a subsample_size from 1 to its {size} rows; "
            f"got {batch_size}."
        )
    return batch_size


def traced_view(model: Model, model_args: Args, model_kwargs: Kwargs | None) -> TracedModel:
    """What a full view says of itself, without values: nothing is computed.

    Raises
    ------
    TypeError
        If the numbers of rows are traced.
    """
    view = known_rows(model), model_args, model_kwargs
    try:
        return without_values(first_sites, jax.random.key(0), *view, init_to_sample)
    except jax.errors.ConcretizationTypeError as error:
        raise TypeError(
            "model must not branch on values, and have subsample plates whose size and "
            "subsample_size are whole numbers, not traced: take them from the shapes of the data, "
            "or make them constants of the model. "
            f"jax said: {str(error).splitlines()[0]}"
        ) from error


def subsample_plates(sites: Sites) -> SubsamplePlates:
    """Subsample plates among the `sites` of a full view, and which sites lie in which."""
    plates = {
        name: Plate(site["args"][0], site["kwargs"][SUBSAMPLE_SIZE])
        for name, site in sites.items()
        if site["type"] == "plate" and SUBSAMPLE_SIZE in site["kwargs"]
    }
    plates_of = {
        name: tuple(f.name for f in site["cond_indep_stack"] if f.name in plates)
        for name, site in sites.items()
        if site["type"] == "sample"
    }
    return SubsamplePlates(plates, plates_of)


def check_model(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    *,
    needs_minibatches: bool = True,
) -> TracedModel:
    """A full view as it is traced; ValueError, by site, where minibatches cannot sample it."""
    try:
        traced = traced_view(model, model_args, model_kwargs)
    except (ValueError, TypeError, IndexError) as error:
        as_written = getattr(model, "model", model)
        if "subsample_size" in str(error) or not runs(as_written, model_args, model_kwargs):
            raise
        raise ValueError(
            "model does not run with all rows in its subsample plates: pass the data of all rows "
            "and index every array with the plate's rows, as in `with numpyro.plate(...) as rows: "
            f"... x[rows]`. NumPyro said: {str(error).splitlines()[0]}"
        ) from error
    sites = traced.sites
    plates, plates_of = subsample_plates(sites)
    if not plates and not needs_minibatches:
        return traced
    if not has_observed(sites):
        raise ValueError(
            "model has no observed site, so no rows to subsample: were the data passed?"
        )
    check_discrete(sites, plates_of)
    if not plates:
        raise ValueError(
            "model has no plate with a subsample_size below its size, so there are no minibatches; "
            "add one around the observed sites, or use NUTS or a kernel for all rows."
        )
    if not any(plates_of.values()):
        raise ValueError(f"no observed site lies inside a subsample plate, of {sorted(plates)}.")
    for name, around in plates_of.items():
        if around:
            check_site(name, sites[name], around[0])
    return traced


def runs(model: Model, model_args: Args, model_kwargs: Kwargs | None) -> bool:
    """Whether a model runs, without a computation."""
    try:
        traced_view(model, model_args, model_kwargs)
    except (ValueError, TypeError, IndexError):
        return False
    return True


def check_discrete(sites: Sites, plates_of: dict[str, tuple[str, ...]]) -> None:
    """Raise ValueError for a latent that nothing else that is wrong would make right."""
    for name, around in plates_of.items():
        if not around and is_latent(sites[name]) and sites[name]["fn"].support.is_discrete:
            raise ValueError(
                f"site '{name}' is a discrete latent, which minibatch kernels cannot enumerate: "
                "marginalize it in the model."
            )


def check_site(name: str, site: Site, plate: str) -> None:
    """Raise ValueError for a site that has no log density of its own for each row of `plate`."""
    if not site["is_observed"]:
        raise ValueError(
            f"latent site '{name}' lies inside the subsample plate '{plate}': a minibatch would "
            "leave most of its values unchanged. Move it out of the plate or marginalize it; if it "
            "comes from an obs_mask, leave out the masked rows."
        )
    base: Any = getattr(site["fn"], "base_dist", site["fn"])
    shape = base.batch_shape
    for frame in site["cond_indep_stack"] if site["infer"].get("is_auxiliary") else ():
        if len(shape) < -frame.dim or (frame.size > 1 and shape[frame.dim] == 1):
            raise ValueError(
                f"factor site '{name}' has one value for all rows of plate '{frame.name}', which "
                "would count it once per row: give it a value per row, or move it out."
            )
    try:
        validate_model({name: site}, plate_warning="error")
    except ValueError as error:
        raise ValueError(
            f"site '{name}' has values of shape {jnp.shape(site['value'])} against a distribution "
            f"of batch shape {site['fn'].batch_shape} where plate '{plate}' has all its rows: pass "
            "the data of all rows, index them with the rows of the plate, and give each row one "
            "value."
        ) from error
