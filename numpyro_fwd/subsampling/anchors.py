"""An anchor that the user gives for the expansion of the rows, as values of the model's sites."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.handlers import seed, substitute

from blackjax_ext.meshes import on_host
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import unconstrain_fn
from numpyro_fwd.bridge.plates import first_rows
from numpyro_fwd.bridge.traces import first_sites, is_latent, prior_sites
from numpyro_fwd.types import Args, Kwargs, Model

MODE: Literal["mode"] = "mode"


def check_anchor(anchor: Any) -> None:
    """Raise unless an anchor is "mode" or a dict of values of sites."""
    if isinstance(anchor, str) and anchor == MODE:
        return
    if not isinstance(anchor, Mapping) or not all(isinstance(name, str) for name in anchor):
        raise TypeError(f'anchor must be "mode", or a dict of values by site; got {anchor!r}.')
    for name, value in anchor.items():
        try:
            with evaluating():  # a kernel may be made inside a program
                is_finite = np.isfinite(on_host(jnp.asarray(value, float))).all()
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"anchor['{name}'] must be numbers, not traced; got {value!r}."
            ) from error
        if not is_finite:
            raise ValueError(f"anchor['{name}'] must be finite; got {value}.")


def position_of_anchor(
    model: Model, model_args: Args, model_kwargs: Kwargs | None, anchor: Mapping[str, Any]
) -> dict[str, Any]:
    """The unconstrained position of values in the sites' supports, of a full view.

    Values of deterministic sites, which the mean of draws has besides, are not looked at.

    Raises
    ------
    ValueError
        For a latent site that is missing, a name that is no site, a shape or a support, by name.
    """
    view, key = first_rows(model), jax.random.key(0)
    values = {name: jnp.asarray(value) for name, value in anchor.items()}
    with evaluating(model_args, model_kwargs):
        sites = first_sites(key, view, model_args, model_kwargs)
        latents = sorted(name for name, site in sites.items() if is_latent(site))
        missing = sorted(set(latents) - set(values))
        unknown = sorted(
            name
            for name in set(values) - set(latents)
            if name not in sites or sites[name]["type"] != "deterministic"
        )
        if missing or unknown:
            raise ValueError(
                f"anchor must have a value for each of the latent sites {latents}; "
                f"missing {missing}, unknown {unknown}."
            )
        for name in latents:
            if values[name].shape != (shape := jnp.shape(sites[name]["value"])):
                raise ValueError(
                    f"anchor['{name}'] must have the shape {shape} of its site; "
                    f"got {values[name].shape}."
                )
        given = {name: values[name].astype(sites[name]["value"].dtype) for name in latents}
        with numpyro.validation_enabled(False):  # what it says names no argument of a kernel
            there = prior_sites(key, substitute(view, data=given), model_args, model_kwargs)
        for name in latents:
            support = there[name]["fn"].support
            if not np.all(on_host(support(given[name]))):
                raise ValueError(
                    f"anchor['{name}'] must lie in the support of its site, {support}; "
                    f"got {given[name]}."
                )
        z = unconstrain_fn(seed(view, key), model_args, model_kwargs or {}, given)
    for name in latents:
        if not np.isfinite(on_host(z[name])).all():
            raise ValueError(
                f"anchor['{name}'] must lie inside of the support of its site, not at its end; "
                f"got {given[name]}."
            )
    return {name: z[name] for name in latents}
