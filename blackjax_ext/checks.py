"""Errors for arguments that no sampler can work with, raised before anything is compiled."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array


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


def check_not_negative(name: str, value: Array | float) -> None:
    """Raise ValueError unless `value` is at least zero and finite; see :func:`check_positive`."""
    if isinstance(value, jax.core.Tracer):
        return
    values = np.asarray(value)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a finite number of at least 0; got {value!r}.")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"{name} must be at least 0 and finite; got {value}.")


def check_count(
    name: str, value: int, *, least: int = 1, most: int | None = None, of: str = ""
) -> int:
    """Return `value` as an int; raise unless it is a whole number from `least` to `most`.

    Counts shape a program, so a traced value is refused. `of` says what there are `most` of.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(
            f"{name} must be a whole number of at least {least}, not traced; got {value!r}."
        ) from error
    if count < least or (most is not None and count > most):
        limit = f"at least {least}" if most is None else f"from {least} to the {most} {of}"
        raise ValueError(f"{name} must be {limit}; got {count}.")
    return count


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless `value` is between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1; got {value}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}; got {value!r}.")


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


def check_particles(position: ArrayLikeTree) -> ArrayTree:
    """Return `position` with array leaves, floating, that lead with the same N of at least 1."""
    position = check_position(position)
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(position)}
    if len(sizes) != 1 or sizes <= {(), (0,)}:
        raise ValueError(
            "position must hold particles: arrays with a leading axis of the same size of at "
            f"least 1; got {jax.tree.map(jnp.shape, position)}."
        )
    return position


def check_scalar(logdensity: Array) -> Array:
    """Return `logdensity`; raise TypeError unless it is a scalar."""
    if jnp.shape(logdensity) != ():
        raise TypeError(
            f"logdensity_fn must return a scalar; got an array of shape {jnp.shape(logdensity)}."
        )
    return logdensity


def count_rows(data: ArrayTree) -> int:
    """Number of rows; ValueError for none or for arrays with different numbers of them."""
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(shapes) != 1 or shapes <= {(), (0,)}:
        leaf_shapes = sorted(jnp.shape(leaf) for leaf in jax.tree.leaves(data))
        raise ValueError(
            f"data must be arrays that lead with the same N > 0 rows; got {leaf_shapes}."
        )
    return shapes.pop()[0]


def item_of(state: Any, key: Any) -> Any:
    """``state[key]`` of a named tuple, with a KeyError that lists its fields for a name.

    NumPyro asks a state for the item of the name of an extra field that it has not as an attribute.
    """
    if not isinstance(key, str):
        return tuple.__getitem__(state, key)
    names = [name for name in dir(state) if not (name.startswith("_") or hasattr(tuple, name))]
    there = [name for name in names if getattr(state, name, None) is not None]
    raise KeyError(
        f"this kernel has no field {key!r} in its {type(state).__name__}, which has "
        f"{', '.join(there)}. Name a field of one of these as 'adapt_state.step_size'."
    )
