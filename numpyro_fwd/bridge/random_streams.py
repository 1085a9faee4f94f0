"""Random streams that a network keeps, such as those of dropout: new for every batch.

A module of ``flax.nnx`` holds its streams, a key and a count each, where NumPyro has a mutable
site. Nothing is learnt in them: they get new keys whenever the model runs, from the key of the
batch, so that all particles see the same masks. ``flax.linen`` is handed its keys by the model.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro

from numpyro_fwd.bridge.numpyro_private import Messenger
from numpyro_fwd.types import Site


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
