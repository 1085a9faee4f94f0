"""The state of a run as one file, which is there whole or not at all.

It is written under another name, synchronized and renamed. orbax keeps a folder of files for each
checkpoint, which suits the parameters of a network more than the few numbers of a chain.
"""

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.storage.folder import replacing


def leaves_of(state: Any) -> list[np.ndarray]:
    """Copies of the arrays of a state; keys as their numbers.

    Copies, because an array of JAX on the CPU shares its memory with NumPy, and the next piece of
    the run takes that memory.
    """
    return [np.array(key_data_of(leaf)) for leaf in jax.tree.leaves(state)]


def key_data_of(leaf: Any) -> Any:
    """The numbers of a typed key; anything else is what it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed keys."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def put_back(like: Any, leaves: list[np.ndarray]) -> Any:
    """A state as `like`, with the arrays `leaves`."""
    old, treedef = jax.tree.flatten(like)
    if len(old) != len(leaves):
        raise ValueError(f"the state has {len(old)} arrays; the checkpoint has {len(leaves)}.")
    new = [as_leaf(*pair) for pair in zip(old, leaves, strict=True)]
    return jax.tree.unflatten(treedef, new)


def as_leaf(old: Any, saved: np.ndarray) -> jax.Array:
    """`saved` as an array of the kind of `old`, where `old` is."""
    if is_key(old):
        new = jax.random.wrap_key_data(jnp.array(saved), impl=jax.random.key_impl(old))
    else:
        # dtypes that are not NumPy's own come back without their name
        new = jnp.array(saved.view(old.dtype) if saved.dtype.kind == "V" else saved)
    if new.shape != old.shape or new.dtype != old.dtype:
        raise ValueError(
            f"the state has {old.dtype}{old.shape} where the checkpoint has {new.dtype}{new.shape}."
        )
    return jax.device_put(new, old.sharding)


def save(path: Path, leaves: list[np.ndarray], **facts: Any) -> None:
    """Write arrays and what JSON can hold to `path`, in the place of what was there.

    A fact may be bytes, for one that is the JSON of it already.
    """
    kinds = [(leaf.dtype.str, leaf.shape) for leaf in leaves]
    arrays: dict[str, Any] = {
        "leaves": np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves), np.uint8),
        **{name: as_bytes(fact) for name, fact in {"kinds": kinds, **facts}.items()},
    }
    with replacing(path) as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())


def as_bytes(fact: Any) -> np.ndarray:
    """JSON as an array."""
    text = fact if isinstance(fact, bytes) else json.dumps(fact).encode()
    return np.frombuffer(text, np.uint8)


def load(path: Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Load the arrays and facts of a checkpoint.

    Raises
    ------
    ValueError
        For a file that is not whole, by name.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            facts = {name: file[name].tobytes() for name in file.files}
        rest = facts.pop("leaves")
        facts = {name: json.loads(text) for name, text in facts.items()}
        leaves = []
        for kind, shape in facts.pop("kinds"):
            num_bytes = np.dtype(kind).itemsize * math.prod(shape)
            leaves.append(np.frombuffer(rest[:num_bytes], kind).reshape(shape))
            rest = rest[num_bytes:]
        return leaves, facts
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a checkpoint ({error}): the run cannot continue. The "
            "draws beside it are readable with xarray; put the file back from a copy, or "
            "call sample_to on another path."
        ) from error
