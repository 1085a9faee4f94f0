"""Every run of a model whose sites the library looks at: one function for each purpose.

Nothing else in the library traces a model. NumPyro itself does, where it looks for a start and
where it maps positions to the sites' supports.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_feasible, init_to_uniform

from blackjax_ext.types import Function
from numpyro_fwd.bridge.numpyro_private import (
    helpful_support_errors,
    unconstrain_params,
)
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites, SiteValues


def first_sites(
    rng_key: Array,
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    init_strategy: Function = init_to_feasible,
) -> Sites:
    """Sites of `model` before any sampling, to check what it consists of.

    Parameters
    ----------
    rng_key
        Key of what the model and `init_strategy` draw.
    model, model_args, model_kwargs
        The model and its arguments.
    init_strategy
        Where the latents get their values. The default needs no draw, which an improper prior does
        not have.
    """
    drawn = drawn_on_host(init_strategy)
    if drawn is None:
        started = substitute(seed(model, rng_key), substitute_fn=init_strategy)
    else:  # the key is for what has no value yet, and is not split where all have one
        started = seed(substitute(model, substitute_fn=drawn), rng_key)
    return trace(started).get_trace(*model_args, **(model_kwargs or {}))


def drawn_on_host(init_strategy: Function) -> Function | None:
    """``init_to_uniform`` by NumPy, which compiles nothing; None for any other strategy.

    Numbers are always the same: they show what a model consists of, and no chain starts there. They
    are small, for a rate or a scale to be finite where a row is far from the others.
    """
    if getattr(init_strategy, "func", init_strategy) is not init_to_uniform:
        return None
    return partial(drawn_uniformly, np.random.default_rng(0))


def drawn_uniformly(rng: np.random.Generator, site: Site) -> Any:
    """A value of a continuous latent site, of which no coordinate is beyond 0.1."""
    if not is_latent(site) or site["value"] is not None or site["fn"].support.is_discrete:
        return None
    fn = site["fn"]
    with helpful_support_errors(site):
        transform = biject_to(fn.support)
    shape = site["kwargs"].get("sample_shape", ()) + transform.inverse_shape(fn.shape())
    dtype = jnp.result_type(float)
    return transform(jnp.asarray(rng.uniform(-0.1, 0.1, shape).astype(dtype)))


def in_floats(init_strategy: Function, site: Site) -> Any:
    """What `init_strategy` gives a site, in floating numbers if it is a continuous latent.

    Values that a user gives may be whole numbers, or lists.
    """
    value = init_strategy(site)
    if value is None or not is_latent(site) or site["fn"].support.is_discrete:
        return value
    array = jnp.asarray(value)
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array if is_floating else array.astype(jnp.result_type(float))


def prior_sites(
    rng_key: Array, model: Model, model_args: Args, model_kwargs: Kwargs | None
) -> Sites:
    """Sites of `model` with its latents drawn from their priors."""
    return trace(seed(model, rng_key)).get_trace(*model_args, **(model_kwargs or {}))


def sites_at(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    z: SiteValues,
    rng_key: Array | None = None,
) -> Sites:
    """Sites of `model` at unconstrained values of its latents.

    For each latent with a constraint there is one more site, the log determinant of its Jacobian;
    :func:`numpyro_fwd.bridge.log_terms.kinds_of` tells it from the others.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments.
    z
        Unconstrained values by site; those of param sites are taken as they are.
    rng_key
        Key of what `z` leaves to be drawn; None for a model that has a key or draws nothing.
    """
    placed = unconstrain_params(model, z)
    if rng_key is not None:
        placed = seed(placed, rng_key)
    return trace(placed).get_trace(*model_args, **(model_kwargs or {}))


class TracedModel(NamedTuple):
    """What a run of a model says of it.

    sites
        Its sites as they are traced: shapes in place of values.
    latents
        Shapes and types of the unconstrained values of its latents, but for discrete ones.
    """

    sites: Sites
    latents: dict[str, jax.ShapeDtypeStruct]

    @property
    def zeros(self) -> dict[str, Array]:
        """A position; made by NumPy, since each shape would be another program."""
        return {
            name: jnp.asarray(np.zeros(leaf.shape, leaf.dtype))
            for name, leaf in self.latents.items()
        }


def without_values(run: Callable[..., Sites], *arguments: Any) -> TracedModel:
    """What ``run(*arguments)``, a function above, says of a model: nothing is computed."""
    sites: Sites = {}

    def look() -> SiteValues:
        sites.update(run(*arguments))
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if is_latent(site) and not site["fn"].support.is_discrete
        }

    latents = jax.eval_shape(look)  # here and not later: a support may be of traced numbers
    return TracedModel(sites, latents)


def names_of_plates(
    model: Model, model_args: Args, model_kwargs: Kwargs | None
) -> dict[str, list[str]]:
    """Names of the leading axes of each site: its plates, then what it calls its event's axes."""
    found = {}
    traced = without_values(first_sites, jax.random.key(0), model, model_args, model_kwargs)
    for name, site in traced.sites.items():
        if site["type"] in ("sample", "deterministic"):
            plates = sorted(site.get("cond_indep_stack", ()), key=lambda plate: plate.dim)
            events = site.get("infer", {}).get("event_dims", [])
            found[name] = [*(plate.name for plate in plates), *events]
    return found


def has_observed(sites: dict[str, Any]) -> bool:
    """Whether a model has data or a factor."""
    return any(site["type"] == "sample" and site["is_observed"] for site in sites.values())


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site is sampled and not observed."""
    return site["type"] == "sample" and not site["is_observed"]


def unwrapped(fn: dist.Distribution) -> dist.Distribution:
    """The distribution under independent dimensions and expansions."""
    while isinstance(fn, (dist.Independent, dist.ExpandedDistribution)):
        fn = fn.base_dist
    return fn
