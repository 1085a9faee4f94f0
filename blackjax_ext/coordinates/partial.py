r"""Partly centred coordinates of a whole position, of which some leaves are effects.

A map :math:`x = T(u)` for a frozen centredness of each effect. An effect's law is computed from
other leaves, which may be effects; no law depends on its own effect. So T is a bijection,
triangular in the order of the levels, and u has the density :math:`\pi(T(u)) |\det T'(u)|`, the
determinant the product of those of the effects. A kernel that leaves this density invariant in u
leaves :math:`\pi` invariant in x: no property of the model is used but that.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.coordinates import laws
from blackjax_ext.coordinates.laws import Law, LocFactor, LocScale, LocScaleNoise, LongWalk
from blackjax_ext.stacking import stacked
from blackjax_ext.types import LogDensity

__all__ = [
    "HALF",
    "Coordinates",
    "Frame",
    "LawCoordinates",
    "Placed",
    "coarsest",
    "first_centredness",
    "in_coordinates",
]

HALF = 0.5  # centredness of effects, before anything is known
NEARLY = 0.25  # of what rounding may hide: a chain that comes so near would go on


class Frame(NamedTuple):
    """Coordinates of a step: a metric, and the centredness of each effect."""

    metric: Any
    centredness: ArrayTree


class Placed(NamedTuple):
    """The position that coordinates map to, and the log determinant of the map.

    position
        x.
    log_det
        Log determinant of the Jacobian.
    laws
        The law of each effect there, None for other leaves.
    """

    position: ArrayTree
    log_det: Array
    laws: Any


class Coordinates(Protocol):
    """The effects of a position; a centredness is a tree like it, with None for other leaves."""

    def first(self, position: ArrayTree) -> ArrayTree:
        """Centredness of each effect before anything is known, None for every other leaf."""

    def out(self, u: ArrayTree, centredness: ArrayTree) -> Placed:
        """The position at `u`."""

    def into(self, position: ArrayTree, centredness: ArrayTree) -> ArrayTree:
        """The coordinates of a position."""


def first_centredness(coordinates: Coordinates, position: ArrayTree) -> ArrayTree:
    """Centredness of each effect before anything is known: 1/2, 0 for noise as it is written."""
    return jax.tree.map(
        lambda leaf, c: None if c is None else jnp.full_like(leaf, c),
        position,
        coordinates.first(position),
    )


def in_coordinates(
    logdensity_fn: LogDensity, coordinates: Coordinates, centredness: ArrayTree
) -> LogDensity:
    """The log density of u."""

    def function(u: ArrayTree) -> Array:
        placed = coordinates.out(u, centredness)
        return logdensity_fn(placed.position) + placed.log_det

    return stacked(function)


class LawCoordinates:
    """The coordinates of a position whose effects have laws that a function returns.

    Parameters
    ----------
    laws
        From a position to a tree of its structure with a law for each effect (``LocScale``,
        ``LocScaleNoise``, ``LocFactor``, or that of ``walk``), and None for every other leaf. The
        law of an effect must not depend on itself, directly or through other effects.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from blackjax_ext.coordinates.partial import LawCoordinates, LocScale
    >>> def laws(z):
    ...     return {"w": None, "x": LocScale(0.0, jnp.exp(z["w"] / 2))}
    >>> found = LawCoordinates(laws)
    >>> placed = found.out({"w": jnp.array(2.0), "x": jnp.ones(3)}, {"w": None, "x": jnp.zeros(3)})
    >>> bool(jnp.allclose(placed.position["x"], jnp.exp(1.0)))
    True
    """

    def __init__(self, laws: Callable[[ArrayTree], Any]):
        if not callable(laws):
            raise TypeError(f"laws must be callable; got {type(laws).__name__}.")
        self.laws = laws

    def at(self, position: ArrayTree) -> Any:
        """The laws there; ValueError unless there is one, or None, for each leaf."""
        leaves, structure = jax.tree.flatten(position)
        laws = jax.tree.leaves(self.laws(position), is_leaf=is_law)
        if len(laws) != len(leaves) or not all(map(is_law, laws)):
            raise ValueError(
                "laws must return a law or None for each leaf of the position, of which there are "
                f"{len(leaves)}; got {laws}."
            )
        return jax.tree.unflatten(structure, laws)

    def first(self, position: ArrayTree) -> ArrayTree:
        """See :class:`Coordinates`."""

        def of_leaf(leaf: Array, law: Law | None) -> float | None:
            del leaf
            return None if law is None else 0.0 if isinstance(law, LocScaleNoise) else HALF

        return jax.tree.map(of_leaf, position, self.at(position))

    def out(self, u: ArrayTree, centredness: ArrayTree) -> Placed:
        """The effects: each round is right for one more level of the hierarchy."""
        zero = jnp.zeros((), jax.tree.leaves(u)[0].dtype)
        position, log_det, laws = u, zero, self.at(u)
        for _ in jax.tree.leaves(centredness):
            pairs = jax.tree.map(placed_leaf, u, centredness, laws)
            position = jax.tree.map(lambda _, pair: pair[0], u, pairs)
            log_det = sum(jax.tree.leaves(jax.tree.map(lambda _, pair: pair[1], u, pairs)), zero)
            laws = self.at(position)
        return Placed(position, log_det, laws)

    def into(self, position: ArrayTree, centredness: ArrayTree) -> ArrayTree:
        """See :class:`Coordinates`."""
        return jax.tree.map(entered_leaf, position, centredness, self.at(position))


@stacked
def coarsest(placed: Placed, centredness: ArrayTree) -> Array:
    """The coordinate of which rounding hides most where it is nearly too much; -1 if it is not."""

    def of_leaf(x: Array, c: Array | None, law: Law | None) -> Array:
        if law is None or c is None:
            return jnp.zeros_like(x)
        return jnp.broadcast_to(laws.rounding(law, c, x), x.shape)

    ratios, _ = ravel_pytree(jax.tree.map(of_leaf, placed.position, centredness, placed.laws))
    place = jnp.argmax(ratios)
    return jnp.where(ratios[place] > NEARLY, place, -1).astype(jnp.int32)


def is_law(node: Any) -> bool:
    """Whether a node of a tree of laws is one."""
    return node is None or isinstance(node, (LocScale, LocFactor, LongWalk))


def placed_leaf(u: Array, c: Array | None, law: Law | None) -> tuple[Array, Array]:
    """A leaf of the position, and its part of the log determinant."""
    if law is None or c is None:
        return u, jnp.zeros((), u.dtype)
    return laws.out(law, c, u)


def entered_leaf(x: Array, c: Array | None, law: Law | None) -> Array:
    """The coordinates of a leaf of the position."""
    return x if law is None or c is None else laws.into(law, c, x)
