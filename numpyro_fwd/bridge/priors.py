"""The parts of a NumPyro model that sequential Monte Carlo takes apart.

Prior draws, prior and likelihood on the unconstrained space, parameters of ``numpyro.param`` sites.
With :mod:`numpyro_fwd.bridge.views` the only user of NumPyro's internals.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_feasible
from numpyro.infer.util import (
    _unconstrain_params,
    compute_log_probs,
    constrain_fn,
)

from numpyro_fwd.bridge.views import check_sites

__all__ = [
    "check_latents",
    "constrain",
    "draw_prior",
    "sites_of",
    "split_logdensity",
]

Position = Any


def sites_of(rng_key: Array, model: Callable, model_args: tuple, model_kwargs: dict) -> dict:
    """Sites of the model, with feasible values: an improper prior has no draw to trace with."""
    feasible = substitute(seed(model, rng_key), substitute_fn=init_to_feasible)
    return trace(feasible).get_trace(*model_args, **model_kwargs)


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
        sites = trace(seed(model, rng_key)).get_trace(*model_args, **model_kwargs)
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if is_latent(site)
        }

    return jax.vmap(draw)(jax.random.split(rng_key, num))


def is_latent(site: dict) -> bool:
    """Whether the site is a latent that is sampled."""
    return site["type"] == "sample" and not site["is_observed"]


def split_logdensity(
    model: Callable, model_args: tuple, model_kwargs: dict
) -> tuple[Callable, Callable]:
    """Log prior and log likelihood as functions of the unconstrained latents.

    The Jacobians of the constraints belong to the prior, ``numpyro.factor`` to the likelihood.
    """

    def parts(z):
        log_probs, sites = compute_log_probs(
            _unconstrain_params(model, z), model_args, model_kwargs, {}
        )
        jacobians = {f"_{name}_log_det" for name in z}
        zero = jnp.zeros(())
        prior = {name for name in log_probs if name in jacobians or is_latent(sites[name])}
        logprior = sum((log_probs[name] for name in prior), zero)
        return logprior, sum((log_probs[name] for name in set(log_probs) - prior), zero)

    return lambda z: parts(z)[0], lambda z: parts(z)[1]


def constrain(model: Callable, model_args: tuple, model_kwargs: dict | None) -> Callable:
    """Map from unconstrained latents to values in the supports, with deterministic sites."""
    return partial(constrain_fn, model, model_args, model_kwargs or {}, return_deterministic=True)
