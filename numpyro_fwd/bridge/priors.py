"""The parts of a NumPyro model that sequential Monte Carlo takes apart.

Prior draws, prior and likelihood on the unconstrained space, and the way back from there.
"""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import MaskedDistribution, biject_to

from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.log_terms import (
    LogTerms,
    impossible_sites,
    log_prob_of,
    log_terms,
    observed_terms,
)
from numpyro_fwd.bridge.numpyro_private import constrain_fn, mask_of, not_jax_tracer
from numpyro_fwd.bridge.traces import has_observed, is_latent, prior_sites
from numpyro_fwd.bridge.views import check_sites
from numpyro_fwd.types import Args, Kwargs, Model, Sites, SiteValues

UNWRAPPED = "_unwrapped"  # the end of the names that numpyro's CircularReparam gives


def check_latents(sites: Sites) -> list[str]:
    """Names of the latent sites; ValueError for one that cannot be drawn from its prior."""
    for name, site in sites.items():  # other kernels enumerate discrete latents, and say so
        if is_latent(site):
            check_prior(name, site["fn"])
    latents = check_sites(sites)
    if not latents:
        raise ValueError("model has no latent site: every sample site is observed.")
    return latents


def warn_without_likelihood(sites: Sites) -> None:
    """Warn of a model whose evidence is one whatever its priors are."""
    if not has_observed(sites) and is_first_process():
        warnings.warn(
            "model has no observed site and no factor: particles are draws of the prior, and the "
            "log evidence is 0. Were the data passed?",
            UserWarning,
            stacklevel=2,
        )


def check_prior(name: str, distribution: Any) -> None:
    """Raise ValueError for a prior that is discrete, improper, or partly masked."""
    if distribution.support.is_discrete:
        raise ValueError(
            f"site '{name}' ({type(distribution).__name__}) is a discrete latent, which sequential "
            "Monte Carlo does not enumerate: sum it out in the model, by "
            "numpyro.distributions.MixtureSameFamily or by numpyro.factor. If it stands for "
            "responses that are missing (obs_mask), leave their rows out."
        )
    if is_masked(distribution):
        raise ValueError(
            f"site '{name}' is a latent with a mask, of a handler, of .mask() or of NeuTraReparam, "
            "under which its prior is flat and has no draws to start from: leave the mask, the "
            "masked values or the reparametrization out."
        )
    try:
        jax.eval_shape(distribution.sample, jax.random.key(0))
    except NotImplementedError as error:
        circular = name.removesuffix(UNWRAPPED)
        if circular != name:
            raise ValueError(
                f"site '{circular}' is reparametrized by CircularReparam, whose '{name}' has no "
                "proper prior to start from: leave the reparametrization out, since moves of "
                "sequential Monte Carlo jump between the ends of the circle."
            ) from error
        raise ValueError(
            f"site '{name}' has the improper prior {type(distribution).__name__}, which cannot be "
            "drawn from; sequential Monte Carlo starts from prior draws: give it a proper prior."
        ) from error


def is_masked(distribution: Any) -> bool:
    """Whether a mask leaves out some values of a distribution, or is not known."""
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            mask = mask_of(distribution)
            if not (not_jax_tracer(mask) and np.all(mask)):
                return True
        distribution = getattr(distribution, "base_dist", None)
    return False


def check_likelihoods(
    loglikelihood: Array, model: Model, model_args: Args, model_kwargs: Kwargs, z: SiteValues
) -> None:
    """Raise ValueError, by site, if the log likelihood is finite at none of the prior draws `z`.

    Traced values are let through.
    """
    if not not_jax_tracer(loglikelihood) or bool(jnp.isfinite(loglikelihood).any()):
        return
    found = jax.vmap(lambda z: observed_terms(model, z, model_args, model_kwargs))(z)
    raise ValueError(
        f"none of the {loglikelihood.size} prior draws has a finite likelihood: there is none at "
        f"the sites {impossible_sites(found) or sorted(found)}. Check the data against the "
        "supports, and the priors against the data, or take more particles."
    )


def draw_prior(rng_key: Array, model: Model, model_args: Args, model_kwargs: Kwargs, num: int):
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


def warn_of_ties(z: SiteValues) -> None:
    """Warn, by site, of prior draws that are equal: they lie where numbers end.

    A beta of shapes 0.03 has a third of its mass nearer to 1 than single precision can tell. Draws
    are rounded to the last number before it, beyond which the density that NumPyro evaluates has
    not their mass: moves lead away from there, and do not come back. Traced values are let through.
    """
    if not all(not_jax_tracer(leaf) for leaf in jax.tree.leaves(z)):
        return
    ties = {name: float(share) for name, share in on_host(shares_of_ties(z)).items()}
    # of the prior draws, at one place: by as much its density and its draws disagree
    bad = [f"{share:.0%} at site '{name}'" for name, share in ties.items() if not share <= 0.02]
    if bad and is_first_process():
        warnings.warn(
            f"prior draws are equal: {', '.join(bad)}. Numbers of this precision cannot tell them "
            "apart, near the end of a support or far from zero, and the log evidence is off by "
            "about that share or more. Near an end sample the logarithm or the log odds instead, "
            "or take a prior with less mass there; far from zero, the difference from a constant.",
            UserWarning,
            stacklevel=3,
        )


@jax.jit
def shares_of_ties(z: SiteValues) -> dict[str, Any]:
    """Of each site the share of equal or infinite draws, in the coordinate with the most."""

    def share(leaf):
        leaf = leaf[:10_000]  # of more than 2^17, single precision has many equal ones
        ordered = jnp.sort(leaf.reshape(leaf.shape[0], -1), axis=0)
        is_tied = (ordered[1:] == ordered[:-1]) | ~jnp.isfinite(ordered[1:])
        return jnp.max(jnp.mean(is_tied, axis=0), initial=0.0)

    return {name: share(leaf) for name, leaf in z.items()}


def split_logdensity(
    model: Model, model_args: Args, model_kwargs: Kwargs
) -> tuple[LogDensity, LogDensity]:
    """Log prior and log likelihood as functions of the unconstrained latents.

    The prior is the density of what :func:`draw_prior` draws. The Jacobians of the constraints
    belong to it; ``numpyro.factor`` belongs to the likelihood, and so does what a
    ``numpyro.handlers.scale`` adds to the density of a latent. The sum of both is the log density
    that NumPyro gives the model.
    """

    def logprior(z):
        terms = log_terms(model, model_args, model_kwargs, z)
        drawn = [log_prob_of({**terms.sites[name], "scale": None}) for name in terms.prior]
        return sum(map(jnp.sum, drawn), jnp.zeros(()))

    def loglikelihood(z):
        terms = log_terms(model, model_args, model_kwargs, z)
        return terms.total(terms.observed) + scaled_part(terms)

    return logprior, loglikelihood


def scaled_part(terms: LogTerms) -> Array:
    """Log density of the latents less that without the scales on them."""
    scaled = [name for name in terms.prior if terms.sites[name]["scale"] is not None]
    parts = [
        (terms.sites[name]["scale"] - 1.0) * log_prob_of({**terms.sites[name], "scale": None})
        for name in scaled
    ]
    return sum(map(jnp.sum, parts), jnp.zeros(()))


def constrain(model: Model, model_args: Args, model_kwargs: Kwargs | None) -> Function:
    """Map from unconstrained latents to values in the supports, with deterministic sites."""
    return partial(constrain_fn, model, model_args, model_kwargs or {}, return_deterministic=True)
