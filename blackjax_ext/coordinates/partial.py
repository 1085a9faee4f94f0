r"""Coordinates of a whole position, of which some leaves are effects, given pseudo-observations.

A map :math:`x = T(u)` for frozen pseudo-observations of each effect. An effect's law is computed
from other leaves, which may be effects; no law depends on its own effect. So T is a bijection,
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

from blackjax_ext.coordinates import maps
from blackjax_ext.coordinates.laws import AT_THE_MEAN, Alone, Law, Pseudo, Together
from blackjax_ext.coordinates.learning import of_effects, zeros_by_shape
from blackjax_ext.stacking import stacked
from blackjax_ext.types import LogDensity


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
    """The effects of a position.

    Pseudo-observations are a tree like it, with a :class:`~blackjax_ext.coordinates.laws.Pseudo`
    for each effect and None for every other leaf.
    """

    def effects(self, position: ArrayTree) -> ArrayTree:
        """A tree like the position with what is not None for effects alone."""

    def out(self, u: ArrayTree, pseudo: ArrayTree) -> Placed:
        """The position at `u`."""

    def into(self, position: ArrayTree, pseudo: ArrayTree) -> ArrayTree:
        """The coordinates of a position."""


def first_pseudo(coordinates: Coordinates, position: ArrayTree) -> ArrayTree:
    """Observations before anything is known: of effects at their mean, of noise none.

    With information 1, so that effects go with their mean, which may be far from zero, and not with
    a scale that is large.
    """
    zeros_of, ones, means = (zeros_by_shape(fill) for fill in (0.0, 1.0, AT_THE_MEAN))

    def none(leaf: Array, effect: Any) -> Pseudo | None:
        if effect is None:
            return None
        return Pseudo(means(leaf), ones(leaf)) if effect else Pseudo(zeros_of(leaf), zeros_of(leaf))

    return jax.tree.map(none, position, coordinates.effects(position))


def in_coordinates(
    logdensity_fn: LogDensity, coordinates: Coordinates, pseudo: ArrayTree
) -> LogDensity:
    """The log density of u."""

    def function(u: ArrayTree) -> Array:
        placed = coordinates.out(u, pseudo)
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
    >>> from blackjax_ext.coordinates.laws import LocScale, Pseudo
    >>> from blackjax_ext.coordinates.partial import LawCoordinates
    >>> def laws(z):
    ...     return {"w": None, "x": LocScale(0.0, jnp.exp(z["w"] / 2))}
    >>> found = LawCoordinates(laws)
    >>> nothing = {"w": None, "x": Pseudo(jnp.zeros(3), jnp.zeros(3))}
    >>> placed = found.out({"w": jnp.array(2.0), "x": jnp.ones(3)}, nothing)
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

    def effects(self, position: ArrayTree) -> ArrayTree:
        """See :class:`Coordinates`."""
        found = self.at(position)
        return jax.tree.map(lambda leaf, law: None if law is None else True, position, found)

    def out(self, u: ArrayTree, pseudo: ArrayTree) -> Placed:
        """The effects: each round is right for one more level of the hierarchy."""
        zero = jnp.zeros((), jax.tree.leaves(u)[0].dtype)
        position, log_det, laws = u, zero, self.at(u)
        for _ in jax.tree.leaves(of_effects(lambda _: 0, pseudo)):
            pairs = jax.tree.map(placed_leaf, u, pseudo, laws)
            position = jax.tree.map(lambda _, pair: pair[0], u, pairs)
            log_det = sum(jax.tree.leaves(jax.tree.map(lambda _, pair: pair[1], u, pairs)), zero)
            laws = self.at(position)
        return Placed(position, log_det, laws)

    def into(self, position: ArrayTree, pseudo: ArrayTree) -> ArrayTree:
        """See :class:`Coordinates`."""
        return jax.tree.map(entered_leaf, position, pseudo, self.at(position))


@stacked
def coarsest(placed: Placed, pseudo: ArrayTree) -> Array:
    """The coordinate of which rounding hides most if it is nearly too much, or NaN; else -1."""

    def of_leaf(x: Array, pseudo: Pseudo | None, law: Law | None) -> Array:
        if law is None or pseudo is None:
            return jnp.zeros_like(x)
        return jnp.broadcast_to(maps.rounding(law, pseudo, x), x.shape)

    ratios, _ = ravel_pytree(jax.tree.map(of_leaf, placed.position, pseudo, placed.laws))
    place = jnp.argmax(ratios)
    # of what rounding may hide: a chain that comes so near would go on
    return jnp.where(ratios[place] <= 0.25, -1, place).astype(jnp.int32)


def is_law(node: Any) -> bool:
    """Whether a node of a tree of laws is one."""
    return node is None or isinstance(node, (Alone, Together))


def placed_leaf(u: Array, pseudo: Pseudo | None, law: Law | None) -> tuple[Array, Array]:
    """A leaf of the position, and its part of the log determinant."""
    if law is None or pseudo is None:
        return u, jnp.zeros((), u.dtype)
    return maps.out(law, pseudo, u)


def entered_leaf(x: Array, pseudo: Pseudo | None, law: Law | None) -> Array:
    """The coordinates of a leaf of the position."""
    return x if law is None or pseudo is None else maps.into(law, pseudo, x)
