r"""Meshes of devices as a sampler sees them: how many hold the rows, and how hosts read.

Programs are JAX's: arrays that are sharded over the axes of a mesh are arguments as all others, and
XLA sends what one device needs of another. Two things do not come by themselves.

*Passes over rows.* A pass reads rows in chunks. Chunks of consecutive rows lie on one device after
the other, so that XLA would give every device all rows. A chunk of :func:`num_blocks` pieces, one
from each device, is read where it lies.

*Values on the host.* A process sees the parts of an array that its own devices hold.
:func:`on_host` gives all of it, by a collective: every process must ask.

The mesh is that of ``jax.set_mesh``, with axes of the type Auto; rows are along its axis "rows" and
chains along "chains". On other meshes, or on none, programs give the same.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, CHAINS = "rows", "chains"


def num_shards(axis: str) -> int:
    """Length of an axis of the mesh of ``jax.set_mesh``; 1 if it has none of this name.

    Examples
    --------
    >>> num_shards("rows")
    1
    """
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[axis] if types.get(axis) is AxisType.Auto else 1


def num_blocks(num_rows: int) -> int:
    """Into how many blocks of equal length a pass divides its rows: one for each shard.

    One if they cannot be: then no array of theirs can be sharded either.
    """
    num = num_shards(ROWS)
    return num if num_rows % num == 0 else 1


def shard_first_axis(x: Array, axis: str) -> Array:
    """`x` with its first axis over an axis of the mesh; as it is where there is no such axis."""
    if num_shards(axis) == 1:
        return x
    others = [P.UNCONSTRAINED] * (x.ndim - 1)
    placed: Array = jax.lax.with_sharding_constraint(x, P(axis, *others))
    return placed


def everywhere(tree: Any) -> Any:
    """Arrays of a program with all values on each device, so that each process can read them."""
    if jax.sharding.get_abstract_mesh().empty or num_shards(CHAINS) == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P()), tree)


def blocks_over_rows(x: Any) -> Array:
    """An array of the host, the same in every process, with a block on each device of the rows.

    On no such mesh, or where they cannot be divided, as JAX places it.
    """
    if num_blocks(x.shape[0]) == 1:
        return jnp.asarray(x)
    sharding = NamedSharding(jax.sharding.get_mesh(), P(ROWS))
    return jax.make_array_from_callback(x.shape, sharding, lambda block: x[block])


def on_host(tree: Any) -> Any:
    """Arrays of NumPy with all values, also those that devices of other processes hold.

    A collective where there are such: every process must call it, in the same order.
    """
    return jax.tree.map(whole, tree)


def whole(x: Any) -> np.ndarray:
    """One array on the host."""
    if isinstance(x, Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        everything: np.ndarray = multihost_utils.process_allgather(x, tiled=True)
        return everything
    return np.asarray(x)


def is_first_process() -> bool:
    """Whether this process speaks for all of them: warnings and progress are its own."""
    return jax.process_index() == 0
