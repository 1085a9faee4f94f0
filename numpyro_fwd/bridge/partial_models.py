"""Models of which some sites are optimized (``numpyro.param``) and some are sampled."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute

from blackjax_ext.types import Function
from numpyro_fwd.bridge.log_terms import log_terms, num_values, observed_terms
from numpyro_fwd.bridge.networks import (
    checked_priors,
    holds_streams_alone,
    sampled_layers,
    with_new_streams,
    with_sampled_layers,
    without_sampled_layers,
)
from numpyro_fwd.bridge.numpyro_private import Messenger
from numpyro_fwd.bridge.plates import FullView, Plate, distinct_rows, given_rows
from numpyro_fwd.bridge.priors import check_prior, draw_prior, split_logdensity
from numpyro_fwd.bridge.row_models import RowTerms
from numpyro_fwd.bridge.traces import first_sites, is_latent, without_values
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites, SiteValues


class PartialModel(NamedTuple):
    """A model of which some sites are optimized and some are sampled.

    params
        First unconstrained values of the param sites.
    draw
        ``(params, rng_key, num, model_args, model_kwargs) -> latents``: prior draws, unconstrained.
    potential_fn
        ``(params, position, rng_key, model_args, model_kwargs) -> U``; the key draws the rows of
        the subsample plates.
    split_fn
        ``(params, rng_key, model_args, model_kwargs) -> (logprior_fn, loglikelihood_fn)``, the two
        parts of minus U as functions of the position.
    observed_fn
        ``(params, position, model_args, model_kwargs) -> terms``: log densities of the observed
        values of all rows at each particle, by site, with their scales.
    row_terms_fn
        ``(params, position, rows, model_args, model_kwargs) -> terms``: those of some rows by
        subsample plate.
    plates
        The subsample plates.
    num_values
        How many values are observed in all rows.
    constrain_params
        From unconstrained parameters to the values of the param sites, without the layers of a
        network that have a prior.
    """

    params: SiteValues
    draw: Function
    potential_fn: Function
    split_fn: Function
    observed_fn: Function
    row_terms_fn: Function
    plates: dict[str, Plate]
    num_values: float
    constrain_params: Function


def view_partial(
    rng_key: Array, model: Model, model_args: Args, model_kwargs: Kwargs
) -> PartialModel:
    """Parts of a model with ``numpyro.param`` and ``numpyro.sample`` sites; ValueError by site."""
    model = with_new_streams(model)
    sites = first_sites(rng_key, checked_priors(model), model_args, model_kwargs)
    names = check_partial(sites)
    transforms = {name: transform_of(sites[name]) for name in names}
    layers = {name: sampled_layers(sites[name]["value"]) for name in names}
    first = {
        name: transforms[name].inv(without_sampled_layers(sites[name]["value"])) for name in names
    }
    # of types of their own, those of all later values: a number of Python takes that of others
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), first)

    def constrain_params(params):
        return {name: transforms[name](value) for name, value in params.items()}

    def values_of(params):
        # in new dicts: the modules of numpyro.contrib write into those that they are given
        return {
            name: in_new_containers(with_sampled_layers(value, layers[name]))
            for name, value in constrain_params(params).items()
        }

    def with_params(params, model=model):
        def given(*args, **kwargs):
            return substitute(model, data=values_of(params))(*args, **kwargs)

        return given

    def split_fn(params, rng_key, model_args, model_kwargs):
        seeded = with_fixed_key(distinct_rows(with_params(params)), rng_key)
        return split_logdensity(seeded, model_args, model_kwargs)

    def draw(params, rng_key, num, model_args, model_kwargs):
        return draw_prior(rng_key, with_params(params), model_args, model_kwargs, num)

    def potential_fn(params, position, rng_key, model_args, model_kwargs):
        values = {**values_of(params), **position}
        seeded = seed(distinct_rows(model), rng_key)
        return -log_terms(seeded, model_args, model_kwargs, values).total()

    def observed_fn(params, position, model_args, model_kwargs):
        given = with_fixed_key(with_params(params, on_all_rows(model)), jax.random.key(0))
        return jax.vmap(lambda z: observed_terms(given, z, model_args, model_kwargs))(position)

    def row_terms_fn(params, position, rows, model_args, model_kwargs):
        some = with_params(params, given_rows(FullView(model), rows))
        seeded = with_fixed_key(some, jax.random.key(0))
        return RowTerms.of(log_terms(seeded, model_args, model_kwargs, position))

    return PartialModel(
        *(first, draw, potential_fn, split_fn, observed_fn, row_terms_fn),
        plates={name: Plate(*site["args"]) for name, site in sites.items() if is_subsampled(site)},
        num_values=num_values(sites),
        constrain_params=constrain_params,
    )


def with_trained(model: Model, params: SiteValues, model_args: Args, model_kwargs: Kwargs) -> Model:
    """`model` with its param sites at trained values, those of ``constrain_params``."""
    traced = without_values(first_sites, jax.random.key(0), model, model_args, model_kwargs)
    layers = {name: sampled_layers(traced.sites[name]["value"]) for name in params}

    def given(*args, **kwargs):
        values = {name: with_sampled_layers(params[name], layers[name]) for name in params}
        return substitute(model, data=in_new_containers(values))(*args, **kwargs)

    return given


def with_fixed_key(model: Model, rng_key: Array) -> Model:
    """`model`, which draws the same whenever it is called."""

    def seeded(*args, **kwargs):
        return seed(model, rng_key)(*args, **kwargs)

    return seeded


def in_new_containers(tree: Any) -> Any:
    """Copy of `tree` that shares its leaves."""
    return jax.tree.map(lambda leaf: leaf, tree)


class all_rows(Messenger):
    """Give plates all rows, however few there are beside the size of a minibatch."""

    def process_message(self, msg: Site) -> None:
        """Rewrite the rows of a plate, in place."""
        if msg["type"] == "plate":
            size = msg["args"][0]
            msg["value"], msg["args"] = jnp.arange(size), (size, size)


def on_all_rows(model: Model) -> Model:
    """`model` on all rows of its subsample plates; its numbers are arrays of jax."""

    def full(*args, **kwargs):
        args, kwargs = jax.tree.map(as_jax, (args, kwargs))
        with all_rows():
            return model(*args, **kwargs)

    return full


def as_jax(leaf: Any) -> Any:
    """`leaf`, an array of jax if it is one of numpy with axes and numbers."""
    is_numbers = isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "biufc"
    return jnp.asarray(leaf) if is_numbers else leaf


class NoConstraint(NamedTuple):
    """The transform of a parameter without constraint, which may be a pytree."""

    def __call__(self, value: Any) -> Any:
        """`value`."""
        return value

    def inv(self, value: Any) -> Any:
        """`value`."""
        return in_new_containers(value)


def transform_of(site: Site) -> Any:
    """Transform from the unconstrained space to the constraint of a param site."""
    constraint = site["kwargs"].get("constraint", constraints.real)
    return NoConstraint() if constraint is constraints.real else biject_to(constraint)


def check_partial(sites: Sites) -> list[str]:
    """Names of the param sites; raises ValueError, by site, for a model that cannot be trained."""
    params = [name for name, site in sites.items() if site["type"] == "param"]
    latents = [name for name, site in sites.items() if is_latent(site)]
    if not params:
        raise ValueError("model has no param site to optimize: sample it with LangevinSMC.")
    if not latents:
        raise ValueError("model has no latent site to sample: train it with numpyro.infer.SVI.")
    for name, site in sites.items():
        if site["type"] == "mutable" and not holds_streams_alone(site["args"][0]):
            raise ValueError(
                f"model has the mutable site '{name}', whose value would depend on the order of "
                "the particles: of a network's layers, those with running statistics, such as "
                "batch normalization, have one, and layer normalization has none."
            )
    for name in latents:
        check_prior(name, sites[name]["fn"])
        for frame in sites[name]["cond_indep_stack"]:
            size, subsample_size = sites[frame.name]["args"]
            if is_subsampled(sites[frame.name]):
                raise ValueError(
                    f"site '{name}' is inside the plate '{frame.name}', which subsamples "
                    f"{subsample_size} of {size} rows; take the latent out of that plate."
                )
    check_batches(sites)
    return params


def is_subsampled(site: Site) -> bool:
    """Whether a site is a plate with fewer rows in a minibatch than there are."""
    return site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])


def check_batches(sites: Sites) -> None:
    """Raise ValueError for a site in a subsample plate whose rows are not the plate's."""
    for name, site in sites.items():
        if site["type"] != "sample" or not site["is_observed"]:
            continue
        for frame in site["cond_indep_stack"]:
            shape = np.shape(site["value"])
            shape = shape[: len(shape) - site["fn"].event_dim]
            if shape and len(shape) >= -frame.dim and shape[frame.dim] not in (1, frame.size):
                raise ValueError(
                    f"site '{name}' observes {shape[frame.dim]} rows in the plate '{frame.name}' "
                    f"of {frame.size}; index the data by what the plate yields."
                )
