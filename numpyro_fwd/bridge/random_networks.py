"""The priors that a model puts on the layers of a network of ``numpyro.contrib.module``."""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
from numpyro.contrib import module as network_modules

from numpyro_fwd.bridge.numpyro_private import Messenger

__all__ = ["checked_priors"]

CODE_OF_RANDOM_MODULES = {
    inspect.unwrap(getattr(network_modules, name)).__code__
    for name in network_modules.__all__
    if name.startswith("random_")
}


class checked_priors(Messenger):
    """A model in which a prior on a layer that its network does not have raises ValueError.

    NumPyro ignores such a prior, and no site tells of it: it is read where the model gives it, in
    the argument `prior` of the call of ``random_flax_module`` or its relatives that is running
    while the network declares its parameters.
    """

    def postprocess_message(self, msg: dict) -> None:
        """Compare the parameters of a network with the priors on them."""
        if msg["type"] != "param" or msg["value"] is None:
            return
        prior = running_prior()
        if isinstance(prior, dict):
            check_layers(prior, msg["value"])


def running_prior() -> Any:
    """The argument `prior` of the innermost random network being made; None outside of one."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in CODE_OF_RANDOM_MODULES:
            return frame.f_locals["prior"]
        frame = frame.f_back
    return None


def check_layers(prior: dict, params: Any) -> None:
    """Raise ValueError for keys of `prior` that are no parameter; NumPyro would ignore them."""
    known = set(parameter_names(params))
    unknown = sorted(set(prior) - known)
    if unknown:
        raise ValueError(
            f"prior names {unknown}, which the module does not have; it has {sorted(known)}."
        )


def parameter_names(params: Any, prefix: str = "") -> Iterator[str]:
    """Names of the parameters of a network, as a prior calls them: the dotted path of a leaf."""
    if not isinstance(params, dict):  # a module of equinox
        leaves = jax.tree_util.tree_leaves_with_path(params)
        yield from (jax.tree_util.keystr(path)[1:] for path, _ in leaves)
        return
    for name, item in params.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(item, dict):
            yield from parameter_names(item, path)
        else:
            yield path
