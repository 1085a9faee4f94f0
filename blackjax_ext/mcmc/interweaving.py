r"""Moves of a hierarchy's parameters together with the effects that they govern.

An effect is a leaf of the position with a location and a scale computed from other leaves,

.. math:: x = m + s z, \qquad m, s \text{ functions of the parents.}

In the neck of a funnel s can hardly move while x is fixed, however its step is chosen, because the
spread of x determines s. If instead the noise z is held fixed, x moves with s, and s takes the
steps that the data allow. If there is much data on each effect, it is the other way round. So moves
of both kinds are mixed, as in the ancillarity-sufficiency interweaving of Yu and Meng.

*Exactness.* Draw, independently of the state, which effects are held by their noise. Their map
:math:`x = T(u)`, from noise (and all other leaves as they are) to the position, is a bijection, and
so :math:`u = T^{-1}(x)` has the density :math:`\pi(T(u)) |\det T'(u)|`. A move that leaves this
density invariant in u leaves :math:`\pi` invariant in x, for each set that may be drawn. No
property of the model is used: a map that does not improve mixing is exact too.

*Cost.* Each position is evaluated once, at x. Its gradient in u is
:math:`T'(u)^T \nabla \log \pi(x) + \nabla \log |\det T'(u)|`, which does not need the model's
likelihood.

*Rounding.* What is kept is x, rounded, and the noise is computed from it again. If a scale is small
compared with the last digit of the effect, x - m has no digits left, and many u have the same x.
Let :math:`\delta` bound how far rounding moves the noise of a position, coordinate by coordinate,
as it follows from the program of :math:`T^{-1}` (``blackjax_ext.mcmc.rounding``): for a location
and a scale it is the spacing of floats times :math:`(|x| + |m|) / s`, and more if m or s lose
digits themselves. Where it is above `NOISE_RESOLUTION` for some noise that is held, the position is
unresolved, and moves that hold it neither begin nor end there. That depends on the position alone.
So these moves are Metropolis moves on the density restricted to resolved positions, which leave
:math:`\pi` invariant, but for the rounding of x at their ends, where :math:`\delta` is small.

*What rounding is left.* A move takes u to the cell of floats around T(u), is weighed by the density
in the middle of the cell, and the way back begins there. Let r be the distance between the two in
noise: at most :math:`\delta / 4` in each coordinate, because rounding moves x by at most half of
the spacing, and m has a share in :math:`\delta` of its own. For a noise of density
:math:`\varphi` the flow from a place of fine cells to one of coarse cells and the flow back then
differ by at most

.. math::
    \frac12 \int |\varphi(u + r) - \varphi(u)| \, du \le
    \frac12 \int |r \cdot \nabla \varphi(u)| \, du = 0.4 |r| \le
    0.1 \, \delta \sqrt n

for normal noise of n coordinates. So for n effects at the edge of what is resolved the probability
of a scale relative to others may be wrong by about :math:`0.002 \sqrt n` of itself, and further
inside by less, in proportion to the spacing of floats over the scale. Whatever else is rounded is
not about the moves: sums of a normal density over floats of spacing h are its integrals to
:math:`e^{-2 (\pi s / h)^2}`, and the density that the chain has is the one that is computed.

References: O. Papaspiliopoulos, G. O. Roberts and M. Skoeld 2007, A general framework for the
parametrization of hierarchical models; Y. Yu and X.-L. Meng 2011, To center or not to center.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import rounding
from blackjax_ext.mcmc.dependence import flags_of
from blackjax_ext.precision import NOISE_RESOLUTION
from blackjax_ext.types import Function, Unravel

__all__ = [
    "Chart",
    "Hierarchy",
    "Kept",
    "LocScale",
    "LocScaleHierarchy",
    "chart_of",
    "draw_noise",
    "evaluation",
    "hidden",
    "keeps",
    "longer",
    "rated",
    "reached",
    "start",
    "within",
]

SHARE = 0.5  # of the steps of some leaves, those that take effects along
PARTIAL = 0.25  # of these, those that take some coordinates of them
# Their first trial: parameters that take their effects along have the scales of the metric, while
# the step of all coordinates is as short as the narrowest asks
FIRST, LONGEST = 1.2, 128.0
NO_COORDINATE = -1  # no coordinate


class Hierarchy(Protocol):
    """Which leaves of a position are effects, and the maps between them and their noise."""

    def effects(self, position: ArrayTree) -> tuple[bool, ...]:
        """Whether each leaf, in the order of ``jax.tree.leaves``, is an effect."""

    def noise(self, position: ArrayTree, is_noise: ArrayTree) -> ArrayTree:
        """The position with the noise of some effects in their places.

        `is_noise` has the structure and the shapes of the position, and is false but for effects.
        """

    def outcomes(self, noise: ArrayTree, is_noise: ArrayTree) -> tuple[ArrayTree, Array]:
        """The position, and the log determinant of the Jacobian."""


class LocScale(NamedTuple):
    """Location and scale of an effect, of shapes that broadcast to it."""

    loc: Any
    scale: Any


def is_loc_scale(node: Any) -> bool:
    """Whether a node of a tree of laws is one."""
    return node is None or isinstance(node, LocScale)


class LocScaleHierarchy:
    """The hierarchy of a position whose effects have locations and scales.

    Parameters
    ----------
    laws
        From a position to a tree of its structure with a :class:`LocScale` for each effect, and
        None for every other leaf. The law of an effect must not depend on itself, directly or
        through other effects.

    Examples
    --------
    >>> import jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext.mcmc.interweaving import LocScale, LocScaleHierarchy
    >>> def funnel(z):
    ...     return -z["w"] ** 2 / 18 - 0.5 * jnp.sum(z["x"] ** 2) * jnp.exp(-z["w"]) - z["w"]
    >>> def laws(z):
    ...     return {"w": None, "x": LocScale(0.0, jnp.exp(z["w"] / 2))}
    >>> found = LocScaleHierarchy(laws)
    >>> sampler = blackjax_ext.auto_mala(funnel, 0.5, hierarchy=found)
    """

    def __init__(self, laws: Callable[[ArrayTree], Any]):
        if not callable(laws):
            raise TypeError(f"laws must be callable; got {type(laws).__name__}.")
        self.laws = laws

    def listed(self, position: ArrayTree) -> list[LocScale | None]:
        """The law of each leaf."""
        laws = jax.tree.leaves(self.laws(position), is_leaf=is_loc_scale)
        number = len(jax.tree.leaves(position))
        if len(laws) != number or not all(map(is_loc_scale, laws)):
            raise ValueError(
                "laws must return a LocScale or None for each leaf of the position, of which there "
                f"are {number}; got {laws}."
            )
        return laws

    def effects(self, position: ArrayTree) -> tuple[bool, ...]:
        """Whether each leaf is an effect."""
        return tuple(law is not None for law in self.listed(position))

    def depth(self, position: ArrayTree) -> int:
        """Levels of the hierarchy: effects in the longest chain of one in the law of the next."""
        closed = jax.make_jaxpr(lambda z: [law for law in self.listed(z) if law is not None])
        program = closed(position)
        effects = [i for i, flag in enumerate(self.effects(position)) if flag]
        reached = {
            i: flags_of(program, [i == k for k in range(len(program.in_avals))]) for i in effects
        }
        levels = dict.fromkeys(effects, 1)
        for _ in effects[1:]:
            for i in effects:
                # a location and a scale of each
                for j, *flags in zip(effects, reached[i][::2], reached[i][1::2], strict=True):
                    levels[j] = max(levels[j], levels[i] + 1 if any(flags) else 1)
        return min(max(levels.values(), default=0), len(effects))

    def noise(self, position: ArrayTree, is_noise: ArrayTree) -> ArrayTree:
        """The noise of effects."""
        leaves, structure = jax.tree.flatten(position)
        rows = zip(leaves, jax.tree.leaves(is_noise), self.listed(position), strict=True)
        noise = [
            leaf if law is None else jnp.where(flag, (leaf - law.loc) / law.scale, leaf)
            for leaf, flag, law in rows
        ]
        return jax.tree.unflatten(structure, noise)

    def outcomes(self, noise: ArrayTree, is_noise: ArrayTree) -> tuple[ArrayTree, Array]:
        """The effects: each round is right for one more level of the hierarchy."""
        leaves, structure = jax.tree.flatten(noise)
        flags = jax.tree.leaves(is_noise)
        position, log_det = noise, jnp.zeros((), leaves[0].dtype)
        for _ in range(self.depth(noise)):
            effects, log_det = list(leaves), jnp.zeros((), leaves[0].dtype)
            for i, law in enumerate(self.listed(position)):
                if law is not None:
                    effects[i] = jnp.where(flags[i], law.loc + law.scale * leaves[i], leaves[i])
                    log_det += jnp.sum(jnp.where(flags[i], jnp.log(jnp.abs(law.scale)), 0.0))
            position = jax.tree.unflatten(structure, effects)
        return position, log_det


class Chart(NamedTuple):
    """Coordinates u of a position x.

    out
        u to x and the log determinant of the Jacobian.
    into
        x to u.
    is_used
        Whether they are: else u is x.
    """

    out: Callable[[Array], tuple[Array, Array]]
    into: Callable[[Array], Array]
    is_used: Array


class Kept(NamedTuple):
    """Evaluations kept of a place: the position, its log density and its gradient.

    `hidden` is the coordinate whose noise rounding hides there, -1 if none.
    """

    x: Array
    logdensity: Array
    gradient: Array
    hidden: Array | int = NO_COORDINATE


def draw_noise(rng_key: Array, is_effect: tuple[bool, ...], sizes: list[int]) -> Array:
    """Coordinates (D,) that are held by their noise: those of some effects.

    Any number of effects but none, then any so many. In a quarter of the draws only some of their
    coordinates, a share of them that is uniform: where the data say much of some and little of
    others, the latter go along.
    """
    key_number, key_which, key_some, key_share, key_each = jax.random.split(rng_key, 5)
    places = np.flatnonzero(is_effect)
    number = jax.random.randint(key_number, (), 1, places.size + 1)
    is_drawn = jax.random.permutation(key_which, places.size) < number
    of_leaf = jnp.zeros(len(is_effect), bool).at[places].set(is_drawn)
    is_some, share = jax.random.bernoulli(key_some, PARTIAL), jax.random.uniform(key_share)
    is_kept = jax.random.uniform(key_each, (sum(sizes),)) < share
    return of_leaf[np.repeat(np.arange(len(sizes)), sizes)] & (is_kept | ~is_some)


def chart_of(hierarchy: Hierarchy, unravel: Unravel, is_noise: Array, dtype: Any) -> Chart:
    """Coordinates in which those in `is_noise`, (D,), are held by their noise."""
    flags = jax.tree.map(lambda leaf: leaf != 0, unravel(is_noise.astype(dtype)))

    def out(u: Array) -> tuple[Array, Array]:
        position, log_det = hierarchy.outcomes(unravel(u), flags)
        return ravel_pytree(position)[0], log_det

    def into(x: Array) -> Array:
        return ravel_pytree(hierarchy.noise(unravel(x), flags))[0]

    return Chart(out, into, jnp.any(is_noise))


def hidden(chart: Chart, x: Array) -> Array:
    """The coordinate of `x` whose noise rounding hides most, -1 if all are resolved.

    Depends on the position alone. Costs a few evaluations of the map, and none of the density.
    """
    u, lost = rounding.loss(chart.into, x)
    excess = lost - 8 * rounding.last_digit(u) - NOISE_RESOLUTION  # coordinates that stay lose less
    excess = jnp.where(jnp.isnan(excess), jnp.inf, excess)
    is_hidden = chart.is_used & jnp.any(excess > 0)
    return jnp.where(is_hidden, jnp.argmax(excess), NO_COORDINATE).astype(jnp.int32)


def reached(point: Any) -> Array | int:
    """The coordinate that rounding hides at a point of a step, -1 if none."""
    return NO_COORDINATE if point.kept is None else point.kept.hidden


def density_in(chart: Chart, u: Array, kept: Kept) -> tuple[Array, Array, Kept]:
    """Log density and gradient in u of a place of which `kept` is known.

    The log density is NaN where rounding hides the noise, as `kept` then says. What is not used is
    left out by a choice at the end, and may be no number.
    """
    (_, log_det), back = jax.vjp(chart.out, u)
    gradient = back((kept.gradient, jnp.ones_like(log_det)))[0]
    kept = kept._replace(hidden=hidden(chart, kept.x))
    logdensity = kept.logdensity + jnp.where(chart.is_used, log_det, 0.0)
    logdensity = jnp.where(kept.hidden == NO_COORDINATE, logdensity, jnp.nan)
    return logdensity, jnp.where(chart.is_used, gradient, kept.gradient), kept


def within(chart: Chart | None, x: Array) -> Array:
    """The coordinates of x."""
    return x if chart is None else jnp.where(chart.is_used, chart.into(x), x)


def start(chart: Chart | None, kept: Kept, momentum: Array) -> tuple[Any, ...]:
    """Fields of the point at which a step begins, without an evaluation."""
    if chart is None:
        return kept.x, momentum, kept.logdensity, kept.gradient, None
    u = within(chart, kept.x)
    logdensity, gradient, kept = density_in(chart, u, kept)
    return u, momentum, logdensity, gradient, kept


def evaluation(chart: Chart | None, evaluate: Function) -> Function:
    """`evaluate`, from x to the log density and its gradient, in the coordinates of a chart.

    Returns ``u -> (log density, gradient, kept)``.
    """
    if chart is None:
        return lambda x: (*evaluate(x), None)

    def in_chart(u: Array) -> tuple[Array, Array, Kept]:
        x = jnp.where(chart.is_used, chart.out(u)[0], u)
        return density_in(chart, u, Kept(x, *evaluate(x)))

    return in_chart


def longer(chart: Chart | None, step_size: Any) -> Any:
    """The step of the first trial, longer where effects go along."""
    if chart is None:
        return step_size
    factor = jnp.clip(FIRST / jnp.asarray(step_size), 1.0, LONGEST)
    return jnp.where(chart.is_used, factor, 1.0) * step_size


def rated(chart: Chart | None, rate: Array) -> Array:
    """The rate that the warm-up adapts the step to: none where effects go along."""
    return rate if chart is None else jnp.where(chart.is_used, jnp.nan, rate)


def keeps(chart: Chart | None, point: Any) -> Kept:
    """Evaluations to keep of a point of a step."""
    return Kept(point.x, point.logdensity, point.gradient) if chart is None else point.kept
