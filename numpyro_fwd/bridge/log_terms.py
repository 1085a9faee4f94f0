"""The log density of a model, site by site: what is prior, what is observed, what is in a plate.

This is the one place where a log density is taken apart. What needs only the prior, only the
observed sites or only the rows of a plate picks its terms by the names found here. So does what
weighted particles say of the observed values.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import MaskedDistribution

from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import to_blame
from numpyro_fwd.bridge.numpyro_private import is_jacobian_of, mask_of
from numpyro_fwd.bridge.plates import subsample_plates
from numpyro_fwd.bridge.traces import is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites, SiteValues

SiteKind = Literal["latent", "jacobian", "observed"]


class LogTerms(NamedTuple):
    """Log densities of the sites of a model at one place.

    values
        Log densities by site, scaled as the plates say, not summed.
    kinds
        What each of these sites is; see :func:`kinds_of`.
    plates
        Subsample plates of a full view that each of these sites lies in.
    sites
        All sites of the model there.
    """

    values: dict[str, Array]
    kinds: dict[str, SiteKind]
    plates: dict[str, tuple[str, ...]]
    sites: Sites

    @property
    def prior(self) -> list[str]:
        """Names of the terms of the prior: latents and the Jacobians of their constraints."""
        return [name for name, kind in self.kinds.items() if kind != "observed"]

    @property
    def observed(self) -> list[str]:
        """Names of the terms of the likelihood: observed values and ``numpyro.factor``."""
        return [name for name, kind in self.kinds.items() if kind == "observed"]

    @property
    def outside_plates(self) -> list[str]:
        """Names of the terms outside all subsample plates, which every minibatch evaluates."""
        return [name for name, plates in self.plates.items() if not plates]

    def total(self, names: Iterable[str] | None = None) -> Array:
        """Sum of the terms with these names, a scalar; None for all of them."""
        names = self.values if names is None else names
        return sum((jnp.sum(self.values[name]) for name in names), jnp.zeros(()))


def log_terms(
    model: Model, model_args: Args, model_kwargs: Kwargs | None, z: SiteValues
) -> LogTerms:
    """Log densities of the sites of `model` at unconstrained values, and what each belongs to.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments; it has a key if it draws anything but its latents.
    z
        Unconstrained values by site; those of param sites are taken as they are.
    """
    sites = sites_at(model, model_args, model_kwargs, z)
    kinds = kinds_of(sites, z)
    values = {name: log_prob_of(sites[name]) for name in kinds}
    return LogTerms(values, kinds, subsample_plates(sites).plates_of, sites)


def kinds_of(sites: Sites, z: SiteValues) -> dict[str, SiteKind]:
    """What each site with a log density is, of the `sites` at the unconstrained values `z`.

    A latent, the Jacobian of a latent's constraint, or observed, which ``numpyro.factor`` is too.
    """

    def kind_of(name: str) -> SiteKind:
        if any(is_jacobian_of(name, latent) for latent in z):
            return "jacobian"
        return "latent" if is_latent(sites[name]) else "observed"

    return {name: kind_of(name) for name, site in sites.items() if site["type"] == "sample"}


def log_prob_of(site: dict[str, Any]) -> Array:
    """Log density of the value of a site, scaled and not summed."""
    # values inside a transformed distribution, where NumPyro has kept them
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    log_prob = site["fn"].log_prob(site["value"], *intermediates)
    return log_prob if site["scale"] is None else site["scale"] * log_prob


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
