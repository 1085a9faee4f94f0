"""What weighted particles say of the observed values of a model: log densities, site by site."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import MaskedDistribution

from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import to_blame
from numpyro_fwd.bridge.log_terms import log_prob_of, log_terms
from numpyro_fwd.bridge.numpyro_private import mask_of
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites, SiteValues


class Observed(NamedTuple):
    """Log densities of the values of an observed site.

    values
        At each particle, shape (J, ...), without the scale.
    scale
        What ``numpyro.handlers.scale`` gives each value, 1 without one; of the shape of a value.
    is_given
        Whether a value is one: False where a mask hides it. Of the shape of a value.
    """

    values: Array
    scale: Array
    is_given: Array


def observed_terms(
    model: Model, z: SiteValues, model_args: Args, model_kwargs: Kwargs
) -> dict[str, Observed]:
    """Log densities of the observed values at the unconstrained latents z, by site."""
    sites = log_terms(model, model_args, model_kwargs, z)
    return {name: observed(sites.sites[name]) for name in sites.observed}


def observed(site: Site) -> Observed:
    """What is said of a site: its log probabilities and its scale."""
    values = log_prob_of({**site, "scale": None})
    scale = jnp.ones(()) if site["scale"] is None else site["scale"]
    scale = jnp.broadcast_to(scale, jnp.shape(values))
    return Observed(values, scale, jnp.broadcast_to(is_given(site["fn"]), jnp.shape(values)))


def is_given(distribution: Any) -> Array:
    """Which values of a distribution no mask hides; an event is hidden if all of it is."""
    found, event_dim = jnp.ones((), bool), distribution.event_dim
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            mask = jnp.broadcast_to(mask_of(distribution), distribution.batch_shape)
            inside = event_dim - distribution.event_dim
            found &= jnp.any(mask, axis=tuple(range(-inside, 0)))
        distribution = getattr(distribution, "base_dist", None)
    return found


def mixture_log_density(term: Observed, log_weights: Array) -> Array:
    """Log of the weighted mean density of each value; a particle without one counts as zero."""
    weights = log_weights.reshape((-1,) + (1,) * (term.values.ndim - 1))
    values = jnp.where(jnp.isnan(term.values), -jnp.inf, term.values)
    return jax.nn.logsumexp(values + weights, axis=0)


def mixture_loss(terms: dict[str, Observed], log_weights: Array) -> Array:
    """Minus the mean over all values, by their scales, of the log of the weighted mean density.

    Values that a mask hides are left out.
    """
    mixed = {name: mixture_log_density(term, log_weights) for name, term in terms.items()}
    weights = {name: term.scale[0] * term.is_given[0] for name, term in terms.items()}
    totals = [jnp.sum(jnp.where(w > 0, w * mixed[name], 0.0)) for name, w in weights.items()]
    scales = [jnp.sum(each) for each in weights.values()]
    return -jnp.sum(jnp.stack(totals)) / jnp.sum(jnp.stack(scales))


def impossible_sites(terms: dict[str, Observed]) -> list[str]:
    """Names of the observed sites whose log density, of all rows, is finite at no particle."""
    return [
        name
        for name, term in terms.items()
        if not jnp.isfinite(jnp.sum(term.values, axis=tuple(range(1, term.values.ndim)))).any()
    ]


def num_values(sites: Sites) -> float:
    """How many values are observed, in all rows of the plates that subsample."""

    def count(site):
        plates = [sites[frame.name]["args"] for frame in site["cond_indep_stack"]]
        # a plate of fewer rows than a batch has all of them
        shares = [size / min(num or size, size) for size, num in plates]
        return np.size(site["value"]) * np.prod(shares)

    return float(
        sum(
            count(site)
            for site in sites.values()
            if site["type"] == "sample" and site["is_observed"]
        )
    )


def check_rows(terms_of: Function, model_args: Args, model_kwargs: Kwargs) -> None:
    """Raise ValueError, by site and row, where arguments that are not finite leave no log density.

    Parameters
    ----------
    terms_of
        ``terms_of(args, kwargs)``, log densities of the observed values at a few particles.
    model_args, model_kwargs
        Arguments of the model.
    """

    def bad_rows(terms: dict[str, Observed]) -> dict[str, Array]:
        return {name: ~jnp.isfinite(term.values).any(axis=0) for name, term in terms.items()}

    def is_fine(*given: Any) -> bool:
        return not any(is_bad.any() for is_bad in bad_rows(terms_of(*given)).values())

    bad = to_blame(model_args, model_kwargs, is_fine)
    for name, is_bad in bad_rows(terms_of(model_args, model_kwargs)).items() if bad else ():
        if not is_bad.ndim or not is_bad.any():
            continue
        rows = np.argwhere(is_bad).squeeze(-1) if is_bad.ndim == 1 else np.argwhere(is_bad)
        raise ValueError(
            f"the data have values that are not finite: {', '.join(bad)}. Site '{name}' has no log "
            f"density at row {rows[0]}, and {len(rows) - 1} more of {is_bad.size}: leave such rows "
            "out, fill them, or mask them with numpyro.handlers.mask."
        )
