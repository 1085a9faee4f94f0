"""Every run of a model whose sites the library looks at: one function for each purpose.

Nothing else in the library traces a model. NumPyro itself does, where it looks for a start and
where it maps positions to the sites' supports.
"""

from collections.abc import Callable
from typing import Any

from jax import Array
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_feasible

from numpyro_fwd.bridge.numpyro_private import unconstrain_params

__all__ = ["first_sites", "has_observed", "is_latent", "prior_sites", "sites_at"]

Sites = dict[str, dict]


def first_sites(
    rng_key: Array,
    model: Callable,
    model_args: tuple,
    model_kwargs: dict | None,
    init_strategy: Callable = init_to_feasible,
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
    started = substitute(seed(model, rng_key), substitute_fn=init_strategy)
    return trace(started).get_trace(*model_args, **(model_kwargs or {}))


def prior_sites(
    rng_key: Array, model: Callable, model_args: tuple, model_kwargs: dict | None
) -> Sites:
    """Sites of `model` with its latents drawn from their priors."""
    return trace(seed(model, rng_key)).get_trace(*model_args, **(model_kwargs or {}))


def sites_at(
    model: Callable,
    model_args: tuple,
    model_kwargs: dict | None,
    z: dict,
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


def has_observed(sites: dict[str, Any]) -> bool:
    """Whether a model has data or a factor."""
    return any(site["type"] == "sample" and site["is_observed"] for site in sites.values())


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site is sampled and not observed."""
    return site["type"] == "sample" and not site["is_observed"]
