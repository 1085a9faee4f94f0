"""Which coordinates the next step moves, and by which metric: drawn whatever the state is.

Given the draw each step leaves the target invariant, so all of them together do. In the neck of a
funnel a step of all coordinates is limited by the narrowest one, whereas the log sd alone can take
steps a hundred times as long.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import interweaving
from blackjax_ext.mcmc.interweaving import Hierarchy
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.types import Function

__all__ = ["Mover", "draw_mover"]

# Steps of some leaves are what frees a chain from a neck, and are lost on other posteriors
BLOCKS, FEWER_BLOCKS = 0.5, 0.2


class Mover(NamedTuple):
    """Coordinates that a step moves, and its metric ``R R^T``.

    push, pull
        The maps ``R z``, from momentum to velocity, and ``R^T g``, from gradient to force.
    moves
        Which coordinates move, shape (D,).
    chart
        Coordinates in which they move; None for those of the position.
    """

    push: Function
    pull: Function
    moves: Array
    chart: interweaving.Chart | None


def draw_mover(
    rng_key: Array,
    metric: Factor,
    position: ArrayTree,
    isotropic_share: float,
    block_share: float | None,
    hierarchy: Hierarchy | None = None,
) -> Mover:
    """Draw the coordinates that the next step moves.

    All coordinates by `metric`, or by the share `isotropic_share` of such steps by its smallest
    scale; by the share `block_share` of all steps some leaves of `position` only, each coordinate
    by its own scale, if there are several. Scales are those of a coordinate given the others. With
    a `hierarchy` half of the steps of some leaves hold effects by their noise.
    """
    is_effect = () if hierarchy is None else hierarchy.effects(position)
    if block_share is None:
        block_share = BLOCKS if any(is_effect) else FEWER_BLOCKS
    sizes = list(map(np.size, jax.tree.leaves(position)))
    # marginal ones would be too long by far where coordinates are correlated
    scales = metric.conditional_scales()
    is_alike = jax.random.bernoulli(rng_key, isotropic_share)
    moves, chart, is_block = jnp.ones(sum(sizes), bool), None, jnp.array(False)
    is_never = isinstance(block_share, int | float) and block_share == 0
    if np.count_nonzero(sizes) > 1 and not is_never:
        key_block, key_leaves = jax.random.split(jax.random.fold_in(rng_key, 1))
        is_block = jax.random.bernoulli(key_block, block_share)
        is_noise = None
        if hierarchy is not None and any(is_effect):
            key_along, key_noise = jax.random.split(jax.random.fold_in(rng_key, 2))
            is_along = is_block & jax.random.bernoulli(key_along, interweaving.SHARE)
            is_noise = is_along & interweaving.draw_noise(key_noise, is_effect, sizes)
            x, unravel = ravel_pytree(position)
            chart = interweaving.chart_of(hierarchy, unravel, is_noise, x.dtype)
        moves = ~is_block | draw_leaves(key_leaves, sizes, is_noise)

    def scaled(z: Array, all_of_it: Array) -> Array:
        alike = jnp.where(is_alike & ~is_block, jnp.min(scales) * z, all_of_it)
        return jnp.where(is_block, moves * scales * z, alike).astype(z.dtype)

    return Mover(
        lambda z: scaled(z, metric.inverse_sqrt_times(z)),
        lambda g: scaled(g, metric.inverse_sqrt_transpose_times(g)),
        moves,
        chart,
    )


def draw_leaves(rng_key: Array, sizes: list[int], is_noise: Array | None = None) -> Array:
    """Coordinates (D,) of some leaves, at least one and not all: any number, then any of so many.

    So each leaf is often without any other, however many there are. Coordinates in `is_noise` stand
    still, and with them all of their leaf.
    """
    key_number, key_which = jax.random.split(rng_key)
    places = np.flatnonzero(sizes)
    leaf_of = np.repeat(np.arange(places.size), np.asarray(sizes)[places])
    rank, most = jax.random.permutation(key_which, places.size), jnp.asarray(places.size)
    if is_noise is not None:
        is_held = jnp.zeros(places.size, bool).at[leaf_of].max(is_noise)
        rank = jnp.argsort(jnp.argsort(rank + places.size * is_held))
        held = jnp.sum(is_held)
        most = jnp.where(held, places.size - held + 1, places.size)
    is_drawn = rank < jax.random.randint(key_number, (), 1, most)
    return is_drawn[leaf_of]
