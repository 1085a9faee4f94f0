"""Errors for arguments of sequential Monte Carlo, raised before anything is compiled."""

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree

from blackjax_ext.mcmc.checks import check_position

__all__ = ["check_count", "check_division", "check_particles", "check_share"]


def check_count(name: str, value: int) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer of at least 1; got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}.")


def check_division(num_particles: int, num_places: int) -> int:
    """Particles to resample if each keeps `num_places` places; ValueError for a remainder."""
    if num_particles % num_places:
        raise ValueError(
            "is_waste_free needs a number of particles that num_moves + 1 divides; got "
            f"{num_particles} particles and num_moves = {num_places - 1}."
        )
    return num_particles // num_places


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


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless `value` is between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1; got {value}.")
