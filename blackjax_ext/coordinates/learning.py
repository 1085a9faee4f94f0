r"""How centred each effect should be, from draws and gradients that a warm-up has anyway.

In the coordinates of centredness c, effect j has draws :math:`u_j(c)`, and the log density of u has
the slope :math:`g_j(c)` along it, all other coordinates held. Of all normal laws with free means
and variances, the closest to the target in Fisher divergence has one of
:math:`\sum_j (\mathrm{var}\, u_j \, \mathrm{var}\, g_j)^{1/2}` but for constants (which is how the
variances of a metric are found, too), and at its best each product is 1. So

.. math:: c_j = \arg\min_c \; \log \mathrm{var}\, u_j(c) + \log \mathrm{var}\, g_j(c).

*What it costs.* With the law of effect j at the same draw, u and g at any c follow from those at
the current one (:mod:`blackjax_ext.coordinates.laws`): for a location and a scale,
:math:`u(c') = c' m + s^{c' - c} (u - c m)` and :math:`g(c') = s^{c - c'} g`. No density is
evaluated, nothing is differentiated, and no draws are kept: the means and the squares of both, at
each c of a grid, are summed as the chains run. The scales of other levels come in by the gradients
at their current coordinates, so levels settle one after another, from window to window.

*Where it says nothing* (few draws, a coordinate that stands still, a slope that is constant or no
number) the centredness stays, which is 1/2 at first, and 0 for noise that a model scales.

References: A. Seyboldt, E. Carlson and B. Carpenter 2024, Preconditioning Hamiltonian Monte Carlo
by minimizing Fisher divergence; M. Gorinova, D. Moore and M. Hoffman 2020.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.coordinates import laws
from blackjax_ext.coordinates.laws import Law, LocScaleNoise
from blackjax_ext.stacking import stacked

__all__ = ["CENTREDNESS_GRID", "Learned", "Sums", "count", "first_learned", "learn", "trials"]

CENTREDNESS_GRID = np.linspace(0.0, 1.0, 17)
MIN_DRAWS = 20  # below, a window says nothing
MOST_HIDDEN = 0.1  # of what rounding may hide, at the end of a window: scales of others are smaller


class Sums(NamedTuple):
    """Sums of u and g of an effect over the draws of a window, at each centredness of the grid.

    mean, square
        Means, and sums of squares about them, with leading axes (2, G): first of u, then of g.
    """

    mean: Array
    square: Array


class Learned(NamedTuple):
    """Centredness of the coordinates as a warm-up has learned it so far.

    centredness
        Of each effect; None for other leaves.
    sums
        :class:`Sums` of each effect; None for other leaves.
    num_draws
        Draws of the window.
    """

    centredness: ArrayTree
    sums: Any
    num_draws: Array


def first_learned(centredness: ArrayTree) -> Learned:
    """State of the learning before any draw."""

    def empty(c: Array) -> Sums:
        zeros = jnp.zeros((2, CENTREDNESS_GRID.size, *c.shape), c.dtype)
        return Sums(zeros, zeros)

    return Learned(centredness, jax.tree.map(empty, centredness), jnp.zeros((), jnp.float32))


@stacked
def trials(
    u: ArrayTree, gradient: ArrayTree, centredness: ArrayTree, effect_laws: Any
) -> ArrayTree:
    """A draw and its gradient at each centredness of the grid, which lead with (2, G)."""

    def at_all(u: Array, g: Array, c: Array | None, law: Law | None) -> Array | None:
        if law is None or c is None:
            return None

        def at(new: Array) -> Array:
            new = jnp.full_like(c, new)
            return jnp.stack([laws.recentred(law, c, new, u), laws.pulled(law, c, new, g)])

        return jnp.moveaxis(jax.vmap(at)(jnp.asarray(CENTREDNESS_GRID, u.dtype)), 1, 0)

    return jax.tree.map(at_all, u, gradient, centredness, effect_laws)


@stacked
def count(learned: Learned, of_chains: ArrayTree) -> Learned:
    """Add the :func:`trials` of C chains, which lead with C."""
    number = jax.tree.leaves(of_chains)[0].shape[0]
    total = learned.num_draws + number

    def add(c: Array, sums: Sums, new: Array) -> Sums:
        del c
        mean = new.mean(axis=0)
        away = mean - sums.mean
        square = jnp.sum((new - mean) ** 2, axis=0)
        between = away**2 * (learned.num_draws * number / total).astype(new.dtype)
        step = away * (number / total).astype(new.dtype)
        return Sums(sums.mean + step, sums.square + square + between)

    sums = jax.tree.map(add, learned.centredness, learned.sums, of_chains)
    return learned._replace(sums=sums, num_draws=total)


@stacked
def learn(learned: Learned, effect_laws: Any) -> tuple[Learned, ArrayTree]:
    """The best centredness of each effect, and by how much it changes the sd of its coordinates.

    `effect_laws` are those of the last draws, of C chains, which lead: they say what has one
    centredness, and where rounding would hide the noise of an effect.
    """
    is_enough = learned.num_draws >= MIN_DRAWS

    def best(c: Array, sums: Sums, law: Law) -> tuple[Array, Array]:
        logs = jnp.log(sums.square)
        score = logs.sum(axis=0)
        if law.is_whole:
            score = jnp.broadcast_to(score.sum(axis=-1, keepdims=True), score.shape)
        if isinstance(law, LocScaleNoise):  # of others it does not depend on the centredness
            grid = jnp.asarray(CENTREDNESS_GRID, c.dtype)[(slice(None), *[None] * c.ndim)]
            hides = jax.vmap(jax.vmap(laws.rounding, (None, 0, None)), (0, None, None))
            ratio = hides(law, jnp.broadcast_to(grid, score.shape), jnp.zeros_like(c))
            score = jnp.where(ratio.max(axis=0) > MOST_HIDDEN, jnp.inf, score)
        score = jnp.where(jnp.isfinite(score), score, jnp.inf)
        now = jnp.round(c * (CENTREDNESS_GRID.size - 1)).astype(int)[None]
        least = jnp.argmin(score, axis=0)[None]
        least = jnp.where(is_enough & jnp.isfinite(score.min(axis=0)), least, now)
        change = jnp.take_along_axis(logs[0], least, 0) - jnp.take_along_axis(logs[0], now, 0)
        ratio = jnp.where(jnp.isfinite(change), jnp.exp(0.5 * change), 1.0)
        return jnp.asarray(CENTREDNESS_GRID, c.dtype)[least[0]], ratio[0]

    pairs = jax.tree.map(best, learned.centredness, learned.sums, effect_laws)
    centredness, ratios = (
        jax.tree.map(lambda _, pair, i=i: pair[i], learned.centredness, pairs) for i in (0, 1)
    )
    return first_learned(centredness), ratios
