"""The parts of a NumPyro model that sequential Monte Carlo takes apart.

Prior draws, prior and likelihood on the unconstrained space, and the way back from there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from numpyro.distributions import biject_to

from numpyro_fwd.bridge.log_terms import log_terms
from numpyro_fwd.bridge.numpyro_private import constrain_fn
from numpyro_fwd.bridge.traces import is_latent, prior_sites
from numpyro_fwd.bridge.views import check_sites

__all__ = [
    "check_latents",
    "check_proper",
    "constrain",
    "draw_prior",
    "split_logdensity",
]


def check_latents(sites: dict) -> list[str]:
    """Names of the latent sites; ValueError for one that cannot be drawn from its prior."""
    latents = check_sites(sites)
    for name in latents:
        check_proper(name, sites[name]["fn"])
    return latents


def check_proper(name: str, distribution: Any) -> None:
    """Raise ValueError for an improper prior."""
    try:
        jax.eval_shape(distribution.sample, jax.random.key(0))
    except NotImplementedError as error:
        raise ValueError(
            f"site '{name}' has the improper prior {type(distribution).__name__}, which cannot be "
            "drawn from; sequential Monte Carlo starts from prior draws: give it a proper prior."
        ) from error


def draw_prior(rng_key: Array, model: Callable, model_args: tuple, model_kwargs: dict, num: int):
    """Independent prior draws of the latent sites, unconstrained, with a leading axis `num`.

    Nothing is redrawn where the likelihood is zero: the evidence would be too high.
    """

    def draw(rng_key):
        sites = prior_sites(rng_key, model, model_args, model_kwargs)
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if is_latent(site)
        }

    return jax.vmap(draw)(jax.random.split(rng_key, num))


def split_logdensity(
    model: Callable, model_args: tuple, model_kwargs: dict
) -> tuple[Callable, Callable]:
    """Log prior and log likelihood as functions of the unconstrained latents.

    The Jacobians of the constraints belong to the prior, ``numpyro.factor`` to the likelihood.
    """

    def logprior(z):
        terms = log_terms(model, model_args, model_kwargs, z)
        return terms.total(terms.prior)

    def loglikelihood(z):
        terms = log_terms(model, model_args, model_kwargs, z)
        return terms.total(terms.observed)

    return logprior, loglikelihood


def constrain(model: Callable, model_args: tuple, model_kwargs: dict | None) -> Callable:
    """Map from unconstrained latents to values in the supports, with deterministic sites."""
    return partial(constrain_fn, model, model_args, model_kwargs or {}, return_deterministic=True)
