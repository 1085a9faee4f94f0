"""Models that raise where they are evaluated: another first draw, or an error that says where."""

from typing import Any

import jax
import numpy as np
from jax import Array

from blackjax_ext.raising import Raised, forgiving
from blackjax_ext.types import Function
from numpyro_fwd.bridge.traces import first_sites, is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Sites

__all__ = ["REMEDY", "check_evaluated", "first_evaluated"]

TRIES = 10
REMEDY = (
    "Let the call return NaN instead of raising, as diffrax.diffeqsolve(..., throw=False) returns "
    "numbers that are not finite: the log density is not finite either, and the point is rejected."
)


def first_evaluated(
    rng_key: Array, model: Model, args: Args, kwargs: Kwargs, init_strategy: Function
) -> Sites:
    """``first_sites``, at another draw where a call into Python raises; RuntimeError if at all."""

    def sites_of(key: Array) -> Sites:
        return first_sites(key, model, args, kwargs, init_strategy)

    try:
        return sites_of(rng_key)
    except (RuntimeError, ValueError) as error:  # jaxlib has either for what a callback raises
        if not any(word in str(error).lower() for word in ("callback", "equinox")):
            raise
    # not the numbers that are always the same: those of a key
    drawn, init_strategy = init_strategy, lambda site: drawn(site)
    for key in jax.random.split(rng_key, TRIES):
        if not (raised := raised_by(sites_of, key)):
            return sites_of(key)
    raise refusal(raised)


def check_evaluated(
    model: Model, args: Args, kwargs: Kwargs | None, z: Any, is_finite: np.ndarray
) -> None:
    """RuntimeError if `model` raises in a chain at `z`, (C, ...), without a density."""
    for i in np.flatnonzero(~is_finite):
        at = jax.tree.map(lambda leaf: leaf[i], z)  # noqa: B023
        if raised := raised_by(lambda z: sites_at(model, args, kwargs, z, jax.random.key(0)), at):
            raise refusal(raised)


def refusal(raised: str) -> RuntimeError:
    """An error that says what a model raises, and what to do."""
    return RuntimeError(
        f"model raises where chains would start: {raised}. {REMEDY} Or give init_params at which "
        "the model can be evaluated."
    )


def raised_by(sites_of: Function, argument: Any) -> str:
    """What sites of an argument raise, and the values of latents; "" for nothing."""

    def evaluation(argument: Any) -> tuple[dict[str, Any], list[Any]]:
        sites = {k: site for k, site in sites_of(argument).items() if site["type"] == "sample"}
        latents = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        return latents, [site["fn"].log_prob(site["value"]) for site in sites.values()]

    program = jax.jit(forgiving(evaluation, raised := Raised()))
    latents, _ = jax.block_until_ready(program(argument))
    point = ", ".join(f"{name} = {np.asarray(value)}" for name, value in latents.items())
    return raised.first and f"{raised.first}, at {point}"
