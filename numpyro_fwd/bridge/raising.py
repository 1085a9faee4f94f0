"""Models that raise where chains would start: an error that says where, and what to do."""

from typing import Any

import jax
import numpy as np

from blackjax_ext.meshes import on_host
from blackjax_ext.raising import Raised, forgiving
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import run_with, split_arguments
from numpyro_fwd.bridge.traces import is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Sites

REMEDY = (
    "Let the call return NaN instead of raising, as diffrax.diffeqsolve(..., throw=False) returns "
    "numbers that are not finite: the log density is not finite either, and the point is rejected."
)


def first_evaluated(look: Function, args: Args, kwargs: Kwargs | None) -> Sites:
    """Sites ``look(args, kwargs)``; RuntimeError with line and point if a call into Python raises.

    NumPyro's own errors, and those of the model's own Python, are as they are.
    """
    try:
        sites: Sites = look(args, kwargs)
    except (RuntimeError, ValueError) as error:  # jaxlib has either for what a callback raises
        is_of_a_call = any(word in str(error).lower() for word in ("callback", "equinox"))
        if is_of_a_call and (raised := raised_by(look, args, kwargs)):
            raise refusal(raised) from error
        raise
    return sites


def check_evaluated(
    model: Model, args: Args, kwargs: Kwargs | None, z: Any, is_finite: np.ndarray
) -> None:
    """RuntimeError if `model` raises in a chain at `z`, (C, ...), without a density."""

    def look(args: Args, kwargs: Kwargs | None, at: Any) -> Sites:
        return sites_at(model, args, kwargs, at, jax.random.key(0))

    for i in np.flatnonzero(~is_finite):
        at = jax.tree.map(lambda leaf: leaf[i], z)  # noqa: B023
        if raised := raised_by(look, args, kwargs, at):
            raise refusal(raised)


def refusal(raised: str) -> RuntimeError:
    """An error that says what a model raises, and what to do."""
    return RuntimeError(
        f"model raises where chains would start: {raised}. {REMEDY} Or give "
        "init_strategy=numpyro.infer.init_to_value(values=...), where the model can be evaluated."
    )


def raised_by(look: Function, args: Args, kwargs: Kwargs | None, *rest: Any) -> str:
    """What the sites ``look(args, kwargs, *rest)`` raise, and the latents; "" for nothing."""
    split = split_arguments(args, kwargs)

    def evaluation(arrays: list[Any], *rest: Any) -> tuple[dict[str, Any], list[Any]]:
        found = look(*split.join(arrays), *rest)
        sites = {name: site for name, site in found.items() if site["type"] == "sample"}
        latents = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        return latents, [site["fn"].log_prob(site["value"]) for site in sites.values()]

    program = jax.jit(forgiving(evaluation, raised := Raised()))
    # of a mesh no process holds all of the arrays, which it must be given
    latents, _ = jax.block_until_ready(run_with(split, program, *rest))
    point = ", ".join(f"{name} = {on_host(value)}" for name, value in latents.items())
    return raised.first and f"{raised.first}, at {point}"
