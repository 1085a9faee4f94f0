r"""Pseudo-observations of effects, from draws and gradients that a warm-up has anyway.

Of all of the log density but the law of an effect, the slope along component j of it is about
:math:`g_j = w_j (v^*_j - v_j)`, if data say of it what a normal observation would. So a regression
of these slopes on the draws of a window has both:

.. math:: w_j = - \frac{\mathrm{cov}(v_j, g_j)}{\mathrm{var}\, v_j}, \qquad
    v^*_j = \bar v_j + \bar g_j / w_j,

and none where it is negative. It is the observation of least Fisher divergence: in coordinates u
the slope of the log density differs from that of a standard normal by
:math:`s r^{-1} (g_j - w_j (v^*_j - v_j))` for a scale s.

*What it costs.* Draws and slopes follow from u and its gradient in the current coordinates, by
:func:`blackjax_ext.coordinates.maps.seen`. What a normal law of the noise says is taken off, not
what the noise's own law does: a law with tails is not narrower than a normal one of the same scale,
so that its slopes ask for no observation. No density is evaluated, nothing is differentiated, and
no draws are kept but their means and products.

*Where it says nothing* (few draws, a component that stands still, a slope that is no number) the
observation stays, which at first is none of noise, and zero with information 1 of an effect
(:func:`blackjax_ext.coordinates.partial.first_pseudo`).

References: A. Seyboldt, E. Carlson and B. Carpenter 2024, Preconditioning Hamiltonian Monte Carlo
by minimizing Fisher divergence; M. Gorinova, D. Moore and M. Hoffman 2020.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.coordinates import maps
from blackjax_ext.coordinates.laws import Law, Pseudo
from blackjax_ext.precision import NOISE_RESOLUTION
from blackjax_ext.stacking import stacked


class Seen(NamedTuple):
    """A draw of an effect.

    effect
        v.
    slope
        Slope along it of all but its law.
    log_scale
        Logarithm of its scale, given the components before it.
    """

    effect: Array
    slope: Array
    log_scale: Array


class Sums(NamedTuple):
    """Sums over the draws of a window, of each component.

    number
        Draws that are numbers.
    mean
        Of a :class:`Seen`.
    square, product
        Sums of squares of effects, and of products with slopes, about the means.
    """

    number: Array
    mean: Seen
    square: Array
    product: Array


class Frame(NamedTuple):
    """Coordinates of a step: a metric, and the pseudo-observations of each effect."""

    metric: Any
    pseudo: ArrayTree


class Learned(NamedTuple):
    """Pseudo-observations as a warm-up has learned them so far.

    pseudo
        Of each effect; None for other leaves.
    sums
        :class:`Sums` of each effect; None for other leaves.
    scales
        Typical scale of each effect in the last window, 0 before there is one; None for others.
    """

    pseudo: ArrayTree
    sums: Any
    scales: ArrayTree

    def frame(self, metric: Any) -> Frame:
        """Coordinates of a step in this metric."""
        return Frame(metric, self.pseudo)


def of_effects(function: Any, pseudo: ArrayTree, *others: Any) -> Any:
    """`function` of each effect's observation and what other trees have in its place."""

    def of_leaf(pseudo: Pseudo | None, *rest: Any) -> Any:
        return None if pseudo is None else function(pseudo, *rest)

    def is_leaf(node: Any) -> bool:
        return node is None or isinstance(node, Pseudo)

    return jax.tree.map(of_leaf, pseudo, *others, is_leaf=is_leaf)


def first_learned(pseudo: ArrayTree) -> Learned:
    """State of the learning before any draw."""
    zeros_of = zeros_by_shape()

    def empty(pseudo: Pseudo) -> Sums:
        zeros = zeros_of(pseudo.value)
        return Sums(zeros, Seen(zeros, zeros, zeros), zeros, zeros)

    scales = of_effects(lambda each: zeros_of(each.value), pseudo)
    return Learned(pseudo, of_effects(empty, pseudo), scales)


def zeros_by_shape(value: float = 0.0) -> Callable[[Array], Array]:
    """Zeros like an array, the same for all of its shape: programs of many sites are shorter."""
    made: dict[Any, Array] = {}

    def zeros_of(leaf: Array) -> Array:
        kind = jnp.shape(leaf), jnp.result_type(leaf)
        if kind not in made:
            made[kind] = jnp.full(kind[0], value, kind[1])
        return made[kind]

    return zeros_of


@stacked
def look(u: ArrayTree, gradient: ArrayTree, pseudo: ArrayTree, effect_laws: Any) -> Any:
    """What a draw at `u` shows of each effect: a :class:`Seen`."""

    def at(pseudo: Pseudo, u: Array, g: Array, law: Law) -> Seen:
        effect, slope = maps.seen(law, pseudo, u, g)
        log_scale = jnp.broadcast_to(jnp.log(jnp.abs(law.own_scale)), u.shape)
        return Seen(effect, slope, log_scale)

    return of_effects(at, pseudo, u, gradient, effect_laws)


@stacked
def count(learned: Learned, of_chains: Any) -> Learned:
    """Add what C chains :func:`look` at, which lead with C."""

    def add(pseudo: Pseudo, sums: Sums, new: Seen) -> Sums:
        del pseudo
        is_number = jnp.isfinite(new.effect) & jnp.isfinite(new.slope) & jnp.isfinite(new.log_scale)
        number = is_number.sum(axis=0).astype(new.effect.dtype)
        total = sums.number + number

        def mean_of(x: Array) -> Array:
            return jnp.where(is_number, x, 0.0).sum(axis=0) / jnp.maximum(number, 1)

        mean = jax.tree.map(mean_of, new)
        off = jax.tree.map(lambda x, m: jnp.where(is_number, x - m, 0.0), new, mean)
        jump = jax.tree.map(jnp.subtract, mean, sums.mean)
        between = sums.number * number / jnp.maximum(total, 1)
        share = number / jnp.maximum(total, 1)
        return Sums(
            total,
            jax.tree.map(lambda m, j: m + share * j, sums.mean, jump),
            sums.square + (off.effect**2).sum(axis=0) + between * jump.effect**2,
            sums.product
            + (off.effect * off.slope).sum(axis=0)
            + between * jump.effect * jump.slope,
        )

    return learned._replace(sums=of_effects(add, learned.pseudo, learned.sums, of_chains))


@stacked
def learn(learned: Learned, effect_laws: Any) -> tuple[Learned, ArrayTree]:
    """The observations of a window, and by how much they change the sd of coordinates.

    `effect_laws` are those of the last draws, of C chains, which lead.
    """

    def best(old: Pseudo, sums: Sums, law: Law) -> tuple[Pseudo, Array, Array]:
        mean = sums.mean
        found = jnp.maximum(-sums.product / sums.square, 0.0)
        # no more than the digits of an effect can show
        size = jnp.maximum(jnp.abs(mean.effect), jnp.sqrt(sums.square / sums.number))
        # of what rounding may hide, of an observation
        finest = 0.1 * NOISE_RESOLUTION / jnp.finfo(size.dtype).eps / size
        found = jnp.minimum(found, finest**2)
        value = jnp.where(found > 0, mean.effect + mean.slope / found, 0.0)
        # below, a window says nothing
        is_known = (sums.number >= 20) & jnp.isfinite(found) & jnp.isfinite(value)
        new = Pseudo(
            jnp.where(is_known, value, old.value), jnp.where(is_known, found, old.information)
        )

        def wider(law: Law) -> Array:
            return jnp.log(maps.widths(law, new)) - jnp.log(maps.widths(law, old))

        change = jax.vmap(wider)(law).mean(axis=0)
        change = jnp.where(jnp.isfinite(change), change, 0.0)  # of a scale that overflows
        return new, jnp.exp(change), jnp.exp(mean.log_scale)

    found = of_effects(best, learned.pseudo, learned.sums, effect_laws)
    pseudo, ratios, scales = (
        of_effects(lambda _, triple, i=i: triple[i], learned.pseudo, found) for i in range(3)
    )
    return first_learned(pseudo)._replace(scales=scales), ratios
