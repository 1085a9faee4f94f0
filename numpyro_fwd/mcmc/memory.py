"""Draws in memory."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.types import SiteValues


class Memory:
    """Draws by field in blocks, as they were taken out of the room.

    Parameters
    ----------
    position
        The field whose sites are read.
    """

    seconds = math.inf  # between two times that the room is emptied

    def __init__(self, position: str):
        self.position = position
        self.blocks: list[dict[str, Any]] = []
        self.state: Any = None

    def take(self, found: dict[str, Any], state: Any, done: Any) -> None:
        """Keep draws (C, n, ...) by field."""
        del state, done
        if found:
            self.blocks.append(found)

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a site, (C, n, ...), evenly spaced."""
        stride, first, parts = max(-(-num_draws // most), 1), 0, []
        for block in self.blocks:
            draws = np.asarray(by_name(block[self.position])[name])
            parts.append(draws[:, -first % stride :: stride])
            first += draws.shape[1]
        return np.concatenate(parts, axis=1)

    def samples(self, group_by_chain: bool) -> Any:
        """All draws so far of the position; {} before the first."""
        if not self.blocks:
            return {}
        (sites,) = self.all([self.position]).values()
        if group_by_chain:
            return sites
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sites)

    def all(self, names: list[str]) -> dict[str, Any]:
        """All draws so far of some fields, as arrays of JAX."""
        blocks = [{name: block[name] for name in names} for block in list(self.blocks)]
        if len(blocks) == 1:
            return jax.tree.map(jnp.asarray, blocks[0])
        return jax.tree.map(joined, *blocks)


def joined(*parts: Any) -> Any:
    """Draws one after the other."""
    is_on_host = all(isinstance(p, np.ndarray) or not is_special(p) for p in parts)
    if is_on_host:
        return jnp.asarray(np.concatenate([np.asarray(part) for part in parts], axis=1))
    return jnp.concatenate(parts, axis=1)


def is_special(leaf: Any) -> bool:
    """Whether NumPy cannot hold an array: it has typed keys, or is elsewhere."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return is_key or not leaf.is_fully_addressable


def by_name(sites: Any) -> SiteValues:
    """Sites by their names; those of a `potential_fn` as ArviZ names them."""
    if hasattr(sites, "_asdict"):
        sites = sites._asdict()
    if isinstance(sites, dict):
        flat: SiteValues = {}
        for name, value in sites.items():
            is_array = hasattr(value, "shape")
            inner = {} if is_array else {f"{name}.{k}": v for k, v in by_name(value).items()}
            flat |= inner or {name: value}
        return flat
    return {f"Param:{i}": value for i, value in enumerate(jax.tree.leaves(sites))}


def latents(position: Any, sites: SiteValues) -> list[str]:
    """Names of the sites that are sampled; of all, where that cannot be told."""
    names = by_name(position) if isinstance(position, dict) else sites
    return [name for name in sites if name in names] or list(sites)
