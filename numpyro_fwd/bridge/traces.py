"""Every run of a model whose sites the library looks at: one function for each purpose.

Nothing else in the library traces a model. NumPyro itself does, where it looks for a start and
where it maps positions to the sites' supports. All run it with responses that it draws where they
are missing (:class:`imputing`).
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
    Messenger,
    helpful_support_errors,
    scan_wrapper,
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


OBSERVED, UNOBSERVED = "_observed", "_unobserved"
UNNORMALIZED = (
    dist.ImproperUniform,
    dist.IntervalCensoredDistribution,
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.Unit,
)


class imputing(Messenger):
    """Give latents that stand for missing responses, by ``obs_mask``, their law at all places.

    NumPyro makes two sites of ``sample("y", law, obs=y, obs_mask=is_known)``: "y_observed", and a
    latent "y_unobserved" of y's shape, with one law. Where y is known, nothing depends on the
    latent, and its density is flat: chains run away there, and a warm-up learns nothing of use.
    Here it has its law at those places, too: given all else the law integrates to one, so the
    posterior of all else is the same, and that of the missing responses. What need not integrate to
    one keeps its mask: a density that the model scales, a law of censored values, an improper law,
    or one that is not NumPyro's.
    """

    def __enter__(self) -> Any:
        """Begin a run of the model."""
        self.observed: dict[str, Any] = {}
        return super().__enter__()

    def process_message(self, msg: Site) -> None:
        """Take the mask from the latent of two sites that ``obs_mask`` has made."""
        if msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # the sites of a step are seen from outside when their laws are other objects
            step, *rest = msg["args"]
            msg["args"] = (imputing_in(step), *rest)
        if msg["type"] != "sample" or (law := unmasked(msg["fn"])) is None:
            return
        name = msg["name"]
        if msg["is_observed"] and name.endswith(OBSERVED):
            self.observed[name.removesuffix(OBSERVED)] = unwrapped(law)
        elif (
            is_latent(msg)
            and name.endswith(UNOBSERVED)
            and self.observed.get(name.removesuffix(UNOBSERVED)) is unwrapped(law)
            and msg["scale"] is None
            and is_normalized(law)
        ):
            msg["fn"] = law


def imputing_in(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a scan, with laws where responses are missing."""

    def imputed(*arguments: Any) -> Any:
        with imputing():
            return step(*arguments)

    return imputed


def unmasked(law: dist.Distribution) -> dist.Distribution | None:
    """A law without its mask, which plates may have expanded; None for one without a mask."""
    if type(law) is dist.ExpandedDistribution:
        inner = unmasked(law.base_dist)
        return None if inner is None else inner.expand(law.batch_shape)
    return law.base_dist if type(law) is dist.MaskedDistribution else None


def is_normalized(law: Any) -> bool:
    """Whether a law is known to integrate to one, as is all that it is made of.

    A mask within it is the user's.
    """
    if isinstance(law, (list, tuple)):
        return all(map(is_normalized, law))
    if not isinstance(law, (dist.Distribution, dist.transforms.Transform)):
        return True
    is_known = type(law).__module__.startswith(dist.__name__)
    if not is_known or isinstance(law, (*UNNORMALIZED, dist.MaskedDistribution)):
        return False
    return all(map(is_normalized, vars(law).values()))
