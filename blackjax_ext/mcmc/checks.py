"""Errors for arguments no sampler can work with, raised before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array

__all__ = ["check_position", "check_positive", "check_scalar"]


def check_positive(name: str, value: Array | float) -> None:
    """Raise ValueError unless `value` is positive and finite; a traced value is let through."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        values = np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a positive finite number; got {value!r}.") from error
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive and finite; got {value}.")


def check_position(position: ArrayLikeTree) -> ArrayTree:
    """Return `position` with array leaves; raise TypeError for none or for one not floating."""
    leaves = jax.tree_util.tree_leaves_with_path(position)
    if not leaves:
        raise ValueError("position must have at least one array; got an empty pytree.")
    for path, leaf in leaves:
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            name = "position" + jax.tree_util.keystr(path)
            raise TypeError(f"{name} must be of a floating dtype; got {dtype}.")
    return jax.tree.map(jnp.asarray, position)


def check_scalar(logdensity: Array) -> Array:
    """Return `logdensity`; raise TypeError unless it is a scalar."""
    if jnp.shape(logdensity) != ():
        raise TypeError(
            f"logdensity_fn must return a scalar; got an array of shape {jnp.shape(logdensity)}."
        )
    return logdensity
