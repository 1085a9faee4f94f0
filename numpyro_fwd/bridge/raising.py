"""Models that raise where they are evaluated: where they do not, or what is raised, and where."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from blackjax_ext.raising import Raised, forgiving
from blackjax_ext.types import Function
from numpyro_fwd.bridge.traces import first_sites, in_floats, is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Sites

__all__ = ["REMEDY", "RaisesError", "check_evaluated", "first_evaluated"]

TRIES = 100  # as many as NumPyro's search for a start
REMEDY = (
    "Let the call return NaN instead of raising, as diffrax.diffeqsolve(..., throw=False) returns "
    "numbers that are not finite: the log density is not finite either, and the point is rejected."
)


class RaisesError(ValueError):
    """A model raises at each point where a chain could start."""

    def __init__(self, raised: str):
        super().__init__(
            f"model raises where chains would start: {raised}. {REMEDY} Or give init_params at "
            "which the model can be evaluated."
        )


def first_evaluated(
    rng_key: Array, model: Model, args: Args, kwargs: Kwargs, init_strategy: Function
) -> Sites:
    """``first_sites``, at another draw of `init_strategy` where the model raises at the first.

    Raises
    ------
    RaisesError
        If it raises at all draws.
    """
    try:
        return first_sites(rng_key, model, args, kwargs, init_strategy)
    except (RuntimeError, ValueError) as error:
        # of a call into Python, by whatever class jaxlib has for it
        if not isinstance(error, RuntimeError) and "Callback" not in str(error):
            raise
        drawn = partial(in_floats, init_strategy)

        def sites_of(key: Array) -> Sites:
            return first_sites(key, model, args, kwargs, drawn)

        raised_at, raised = raised_by(sites_of), ""
        for key in jax.random.split(rng_key, TRIES):
            raised = raised_at(key)
            if not raised:
                return sites_of(key)
        raise RaisesError(raised) from error


def check_evaluated(
    model: Model, args: Args, kwargs: Kwargs | None, z: Any, is_finite: np.ndarray
) -> None:
    """Raise RaisesError if `model` raises in a chain without a density, of those at `z`, (C, ...)."""
    raised_at = raised_by(lambda z: sites_at(model, args, kwargs, z, jax.random.key(0)))
    for i in np.flatnonzero(~is_finite):
        if raised := raised_at(jax.tree.map(lambda leaf: leaf[i], z)):  # noqa: B023
            raise RaisesError(raised)


def raised_by(sites_of: Function) -> Callable[[Any], str]:
    """What sites raise that are computed from an argument, and their latents; "" for nothing."""
    raised = Raised()

    def values(argument: Any) -> tuple[dict[str, Any], list[Any]]:
        sites = {k: site for k, site in sites_of(argument).items() if site["type"] == "sample"}
        latents = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        return latents, [site["fn"].log_prob(site["value"]) for site in sites.values()]

    program = jax.jit(forgiving(values, raised))

    def raised_at(argument: Any) -> str:
        raised.first = ""
        latents, _ = jax.block_until_ready(program(argument))
        point = ", ".join(f"{name} = {np.asarray(value)}" for name, value in latents.items())
        return raised.first and f"{raised.first}, at {point}"

    return raised_at
