"""The networks of a model: priors on their layers, random streams, and what is left to train.

Where a layer of a network of ``numpyro.contrib.module`` has a prior, NumPyro keeps a ``ParamShape``
among the parameters of the network, which is no array and cannot be saved as one. What is trained
here is without them; they are put back where NumPyro reads the parameters.

A module of ``flax.nnx`` holds its random streams, such as those of dropout, a key and a count each,
where NumPyro has a mutable site. Nothing is learnt in them: they get new keys whenever the model
runs, from the key of the batch, so that all particles see the same masks. ``flax.linen`` is handed
its keys by the model.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.contrib import module as network_modules

from numpyro_fwd.bridge.numpyro_private import Messenger, ParamShape
from numpyro_fwd.types import Site

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

    def postprocess_message(self, msg: Site) -> None:
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


def check_layers(prior: dict[str, Any], params: Any) -> None:
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


def sampled_layers(tree: Any) -> Any:
    """What :func:`without_sampled_layers` leaves out of the parameters of a network, nested."""
    if not isinstance(tree, dict):
        return {}
    found = {
        name: item if is_sampled(item) else sampled_layers(item) for name, item in tree.items()
    }
    return {name: item for name, item in found.items() if is_sampled(item) or item}


def without_sampled_layers(tree: Any) -> Any:
    """Parameters without the places of layers that have a prior; what is no dict stays as it is."""
    if not isinstance(tree, dict):
        return tree
    return {
        name: without_sampled_layers(item) for name, item in tree.items() if not is_sampled(item)
    }


def with_sampled_layers(tree: Any, layers: dict[str, Any]) -> Any:
    """Inverse of :func:`without_sampled_layers`, in new dicts."""
    if not isinstance(tree, dict):
        return tree
    names = [*tree, *(name for name in layers if name not in tree)]
    return {
        name: layers[name]
        if is_sampled(layers.get(name))
        else with_sampled_layers(tree.get(name, {}), layers.get(name, {}))
        for name in names
    }


def is_sampled(item: Any) -> bool:
    """Whether a layer has a prior, so that NumPyro keeps its shape alone."""
    return isinstance(item, ParamShape)


def is_stream(item: Any) -> bool:
    """Whether an entry of a module's state is a stream of random numbers."""
    if not isinstance(item, dict) or set(item) != {"key", "count"}:
        return False
    return jnp.issubdtype(jnp.asarray(item["key"]).dtype, jax.dtypes.prng_key)


def holds_streams_alone(state: Any) -> bool:
    """Whether nothing but streams is in the state of a module, nested dicts."""
    if not isinstance(state, dict) or not state:
        return False
    return all(is_stream(item) or holds_streams_alone(item) for item in state.values())


def renewed(rng_key: jax.Array, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a module with new keys in its streams."""
    keys = jax.random.split(rng_key, len(state))
    return {
        name: {**item, "key": new_like(key, item["key"])} if is_stream(item) else renewed(key, item)
        for key, (name, item) in zip(keys, sorted(state.items()), strict=True)
    }


def new_like(rng_key: jax.Array, stream: jax.Array) -> jax.Array:
    """A key of the shape and kind of a stream's."""
    bits = jax.random.bits(rng_key, jax.random.key_data(stream).shape, jnp.uint32)
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(stream))


class with_new_streams(Messenger):
    """A model whose networks get new random streams whenever it runs with a key."""

    def process_message(self, msg: Site) -> None:
        """Renew the streams of a module, in place."""
        if msg["type"] != "mutable" or not holds_streams_alone(msg["args"][0]):
            return
        rng_key = numpyro.prng_key()
        if rng_key is not None:
            msg["value"] = renewed(rng_key, msg["args"][0])
