"""The log density of a model, site by site: what is prior, what is observed, what is in a plate.

This is the one place where a log density is taken apart. What needs only the prior, only the
observed sites or only the rows of a plate picks its terms by the names found here.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from numpyro_fwd.bridge.numpyro_private import is_jacobian_of
from numpyro_fwd.bridge.plates import subsample_plates
from numpyro_fwd.bridge.traces import is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Sites, SiteValues

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
