"""Models that raise where they are evaluated: where they do not, or what is raised, and where."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import checkify

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
    except RuntimeError as error:  # of a callback, with the traceback of all that called it
        drawn, raised = partial(in_floats, init_strategy), ""
        for key in jax.random.split(rng_key, TRIES):

            def sites(key: Array) -> Sites:
                return first_sites(key, model, args, kwargs, drawn)

            raised = raised_by(sites, key)
            if not raised:
                return sites(key)
        if not raised:
            raise
        raise RaisesError(raised) from error


def check_evaluated(
    model: Model, args: Args, kwargs: Kwargs | None, z: Any, is_finite: np.ndarray
) -> None:
    """Raise RaisesError if `model` raises in a chain without a density, of those at `z`, (C, ...)."""
    for i in np.flatnonzero(~is_finite):
        at = jax.tree.map(lambda leaf: leaf[i], z)  # noqa: B023
        raised = raised_by(lambda z: sites_at(model, args, kwargs, z, jax.random.key(0)), at)
        if raised:
            raise RaisesError(raised)


def raised_by(sites_of: Function, argument: Any) -> str:
    """What sites raise that are computed from an argument, and values of the latents among them."""
    raised = Raised()

    def values(argument: Any) -> dict[str, Any]:
        sites = sites_of(argument)
        return {name: site["value"] for name, site in sites.items() if is_latent(site)}

    try:
        found = forgiving(values, raised)(argument)
    except checkify.JaxRuntimeError as error:
        return str(error).splitlines()[0]
    point = ", ".join(f"{name} = {np.asarray(value)}" for name, value in found.items())
    return raised.first and f"{raised.first}, at {point}"
