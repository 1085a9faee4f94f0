r"""Partly centred coordinates of an effect, for each law that an effect may have.

Given its parameters, an effect is an affine map of noise, :math:`x = m + B z` with B triangular.
A path :math:`B_c` leads from :math:`B_0 = B` to :math:`B_1 = I`, its diagonal positive, and

.. math:: x = m + B_c (u - c m), \qquad \log |\partial x / \partial u| = \sum \log \mathrm{diag} B_c

has the effect itself for u at centredness c = 1, and its noise at c = 0. Where a model has the
noise z in the place of the effect, :math:`z = B^{-1} B_c (u - c m)` has the same u.

- :class:`LocScale`: :math:`B_c = s^{1-c}`, each coordinate by itself.
- :class:`LocFactor`: with :math:`L = U \mathrm{diag}(l)`, U of unit diagonal,
  :math:`B_c = (I + (1-c)(U - I)) \mathrm{diag}(l^{1-c})`.
- :class:`LocScaleNoise`: the same where the leaf is z: :math:`z = s^{-c} (u - c m)`.
- :class:`Walk`: :math:`x = s\,\mathrm{tril}(1) z = V a`, for orthonormal waves
  :math:`V_{tk} = 2 (2n+1)^{-1/2} \sin(\pi (2k+1) (t+1) / (2n+1))` and independent
  :math:`a_k \sim N(0, s_k^2)`, :math:`s_k = s / (2 \sin(\pi (k + 1/2) / (2n+1)))`: these are the
  eigenvectors of the covariance, whatever s is. So each wave has a centredness of its own, as data
  say much of long waves and little of short ones: :math:`a_k = s_k^{1-c_k} u_k`. The determinant
  of V is 1 or -1. (A fast Fourier transform would do, but fails in XLA on a CPU, by its layout.)
- :class:`WalkNoise`: the same where the leaf is z, the differences of which are the waves
  :math:`W_{tk} = 2 (2n+1)^{-1/2} \cos(\pi (2k+1) (t + 1/2) / (2n+1))`: :math:`z = W b`,
  :math:`b_k = s_k^{-c_k} u_k`.
- :class:`LongWalk`: LocFactor's for :math:`L = s\,\mathrm{tril}(1)`, by sums instead of products.

*Rounding.* Where a scale is below the last digits of x, the density of the model, which sees x, no
longer depends on u: it would be flat in all directions of the noise, and a chain that gets there
would stay. Such u (but for c = 1) have next to no density here: it is exp(-100) times what it was,
for each coordinate. That is a function of u alone, so that steps are exact for a target which has
lost places that the model cannot compute. So it is where the shape of a law, as of a beta law, is
so large that its log density is a sum of roundings: :func:`coarseness_of`.

The map is linear in u: so a gradient in x is carried to u, and from the u of one c to that of
another, by its transpose.

Reference: M. Gorinova, D. Moore and M. Hoffman 2020, Automatic reparameterisation of probabilistic
programs, for LocScale.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from blackjax_ext.precision import exact_products

__all__ = [
    "Law",
    "LocFactor",
    "LocScale",
    "LocScaleNoise",
    "LongWalk",
    "Walk",
    "WalkNoise",
    "coarseness_of",
    "into",
    "out",
    "pulled",
    "recentred",
    "rounding",
    "unresolved",
    "walk",
]


RESOLUTION = 0.02  # how far the rounding of an effect may move its noise
WALL = 100.0
OF_SHAPES = 16.0  # units in the last place of a shape a, as of a log(a) in each of three terms
MOST_WAVES = 1024  # of a walk: products with more of them would take longer than most models
OF_SUMS = 10.0  # what rounding adds to such a log density at most, in `coarseness`


class Law(Protocol):
    """The parameters of an effect, and ``B_c``.

    is_whole
        Whether the coordinates of the last axis have one centredness.
    """

    @property
    def is_whole(self) -> bool:
        """See above."""

    @property
    def own_scale(self) -> Array:
        """Scale of the noise of each coordinate in the effect, given those before it."""

    @property
    def mean(self) -> Array:
        """m, of a shape that broadcasts to the effect."""

    @property
    def coarseness(self) -> Any:
        """How coarse the log density of each coordinate is; None where it is not."""

    def spread(self, c: Array, v: Array) -> Array:
        """``B_c v``."""

    def unspread(self, c: Array, d: Array) -> Array:
        """``B_c^{-1} d``."""

    def log_slopes(self, c: Array) -> Array:
        """Logarithms of the diagonal of ``B_c``."""


class LocScale(NamedTuple):
    """Location and scale of an effect, of shapes that broadcast to it.

    `coarseness` is that of :func:`coarseness_of`, None for none: beyond 1 the place has next to no
    density.
    """

    loc: Any
    scale: Any
    coarseness: Any = None

    @property
    def is_whole(self) -> bool:
        """See :class:`Law`."""
        return False

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        return jnp.abs(jnp.asarray(self.scale))

    @property
    def mean(self) -> Array:
        """Mean of the effect, given its parameters."""
        return jnp.asarray(self.loc)

    def spread(self, c: Array, v: Array) -> Array:
        """Map noise to the effect."""
        return jnp.exp(self.log_slopes(c)) * v

    def unspread(self, c: Array, d: Array) -> Array:
        """Map the effect to noise."""
        return jnp.exp(-self.log_slopes(c)) * d

    def log_slopes(self, c: Array) -> Array:
        """Logarithm of the slope of each coordinate in its noise."""
        return (1 - c) * jnp.log(self.own_scale)


class LocScaleNoise(LocScale):
    """Location and scale of an effect whose noise is a leaf of the position, broadcast to it.

    ``spread`` and ``unspread`` are maps to and from the noise. A scale that is zero, or no number,
    counts as 1: a model may take no notice of some of its noise.
    """

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        scale = jnp.abs(jnp.asarray(self.scale))
        return jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1.0)

    def log_slopes(self, c: Array) -> Array:
        """Logarithm of the slope of each noise in its coordinate."""
        return -c * jnp.log(self.own_scale)


class LocFactor(NamedTuple):
    """Location of an effect, (..., D), and a lower triangular factor of its covariance."""

    loc: Any
    factor: Array

    @property
    def is_whole(self) -> bool:
        """See :class:`Law`."""
        return True

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        return jnp.abs(self.diagonal)

    @property
    def coarseness(self) -> None:
        """See :class:`Law`."""

    @property
    def mean(self) -> Array:
        """Mean of the effect, given its parameters."""
        return jnp.asarray(self.loc)

    @property
    def diagonal(self) -> Array:
        """Diagonal of the factor."""
        diagonal: Array = jnp.diagonal(self.factor, axis1=-2, axis2=-1)
        return diagonal

    def blend(self, c: Array) -> Array:
        """``I + (1 - c)(U - I)``."""
        unit = self.factor / self.diagonal[..., None, :]
        eye = jnp.eye(unit.shape[-1], dtype=unit.dtype)
        return eye + (1 - c)[..., None, :] * (unit - eye)

    @exact_products
    def spread(self, c: Array, v: Array) -> Array:
        """Map noise to the effect."""
        return (self.blend(c) @ (jnp.exp(self.log_slopes(c)) * v)[..., None])[..., 0]

    def unspread(self, c: Array, d: Array) -> Array:
        """Map the effect to noise."""
        blend = jnp.broadcast_to(self.blend(c), (*d.shape, d.shape[-1]))
        w = solve_triangular(blend, d[..., None], lower=True, unit_diagonal=True)[..., 0]
        return jnp.exp(-self.log_slopes(c)) * w

    def log_slopes(self, c: Array) -> Array:
        """Logarithms of the diagonal of the map."""
        return (1 - c) * jnp.log(self.own_scale)


class LongWalk(NamedTuple):
    """Scale of the steps of a walk from zero along the last axis, of its other axes."""

    scale: Any

    @property
    def is_whole(self) -> bool:
        """See :class:`Law`."""
        return True

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        return jnp.abs(jnp.asarray(self.scale))[..., None]

    @property
    def coarseness(self) -> None:
        """See :class:`Law`."""

    @property
    def mean(self) -> Array:
        """Mean of the effect, given its parameters."""
        return jnp.zeros_like(jnp.asarray(self.scale))[..., None]

    def spread(self, c: Array, v: Array) -> Array:
        """Steps to places: each step, and 1 - c of all before it."""
        w = jnp.exp(self.log_slopes(c)) * v
        return w + (1 - c) * (jnp.cumsum(w, -1) - w)

    def unspread(self, c: Array, d: Array) -> Array:
        """Places to steps: the sum of the steps is S <- c S + d."""

        def joined(first: Any, second: Any) -> tuple[Array, Array]:
            return first[0] * second[0], second[0] * first[1] + second[1]

        c = jnp.broadcast_to(c, d.shape)
        sums = jax.lax.associative_scan(joined, (c, d), axis=-1)[1]
        before = jnp.concatenate([jnp.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
        return jnp.exp(-self.log_slopes(c)) * (d - (1 - c) * before)

    def log_slopes(self, c: Array) -> Array:
        """Logarithm of the slope of each step."""
        return (1 - c) * jnp.log(self.own_scale)


class Waves:
    """Waves of the places of a walk, or of its steps, (..., n), the longest first."""

    wave: Callable[[np.ndarray], np.ndarray]
    offset: float

    def basis(self, like: Array) -> Array:
        """The waves, (n, n), which are orthonormal: one in each column."""
        return jnp.asarray(orthonormal(self.wave, self.offset, like.shape[-1]), like.dtype)

    @exact_products
    def turned(self, waves: Array) -> Array:
        """The leaf of these waves."""
        return waves @ self.basis(waves).T

    @exact_products
    def unturned(self, x: Array) -> Array:
        """The waves of a leaf."""
        return x @ self.basis(x)


class Walk(Waves, LocScale):
    """Waves of a walk: their scales, and no location, as :func:`walk` makes them."""

    wave, offset = np.sin, 1.0


class WalkNoise(Waves, LocScaleNoise):
    """The same where the leaf is the noise of the steps."""

    wave, offset = np.cos, 0.5


@lru_cache(maxsize=8)
def orthonormal(wave: Callable[[np.ndarray], np.ndarray], offset: float, size: int) -> np.ndarray:
    """Waves of so many places, (n, n)."""
    place, number = np.arange(size)[:, None] + offset, 2 * np.arange(size) + 1
    found: np.ndarray = wave(np.pi * number * place / (2 * size + 1))
    return 2 / math.sqrt(2 * size + 1) * found


def walk(scale: Any, num_steps: int, is_noise: bool = False) -> Law:
    """The law of a walk from zero of so many steps along the last axis, of a scale of other axes.

    Of its noise if `is_noise`. Beyond `MOST_WAVES` steps it is a :class:`LongWalk`, or the noise of
    each step by itself.
    """
    if num_steps > MOST_WAVES:
        scale = jnp.asarray(scale)
        return LocScaleNoise(0.0, scale[..., None]) if is_noise else LongWalk(scale)
    angles = np.pi * (np.arange(num_steps) + 0.5) / (2 * num_steps + 1)
    lengths = jnp.asarray(0.5 / np.sin(angles), jnp.result_type(scale, float))
    return (WalkNoise if is_noise else Walk)(0.0, jnp.asarray(scale)[..., None] * lengths)


def coarseness_of(shape: Array) -> Array:
    """How coarse a log density with this shape is, where more than 1 is too much."""
    return OF_SHAPES * jnp.finfo(jnp.result_type(shape, float)).eps * shape


def coarse(law: Law) -> Any:
    """Its coarseness, zero if it has none."""
    return 0.0 if law.coarseness is None else law.coarseness


def same(law: Law, c: Array, new: Array | float) -> Array:
    """Where the map from one centredness to another changes nothing."""
    is_same = c == new
    return is_same.all(axis=-1, keepdims=True) if law.is_whole else is_same


def out(law: Law, c: Array, u: Array) -> tuple[Array, Array]:
    """The leaf at `u` and the log determinant; at c = 1 an effect is u, to the last digit.

    Of a walk that holds for its waves.
    """
    shift = jnp.broadcast_to(law.mean, u.shape)
    x = law.spread(c, u) + (middle(law, shift) - law.spread(c, c * shift))
    x = law.turned(x) if isinstance(law, Waves) else x
    log_det = jnp.sum(jnp.broadcast_to(law.log_slopes(c), u.shape))
    return x, log_det - unresolved(law, c, x)


def middle(law: Law, shift: Array) -> Array:
    """The leaf whose noise is zero."""
    return jnp.zeros_like(shift) if isinstance(law, LocScaleNoise) else shift


def centredness_of_leaf(law: Law) -> float:
    """The centredness at which the coordinates are the leaf itself."""
    return 0.0 if isinstance(law, LocScaleNoise) else 1.0


def unresolved(law: Law, c: Array, x: Array) -> Array:
    """A penalty on the log density where the last digits of a leaf move its noise.

    Zero but far from all that is typical: with single precision, at scales below 1e-5 of the
    effect. Then so much for each coordinate that the place has no mass, and a trajectory may still
    cross it; and more than what a coarse log density may pretend.
    """
    ratio = rounding(law, c, x)
    beyond = 2 * jnp.log(jnp.maximum(ratio, 1.0)) + OF_SUMS * coarse(law)
    return jnp.sum(jnp.where(ratio > 1, WALL + beyond, 0.0))


def rounding(law: Law, c: Array, x: Array) -> Array:
    """How far the last digit of a leaf moves its noise, in RESOLUTION; zero where that is u.

    Or how coarse its log density is, if that is more. A leaf that is the noise is as exact as u,
    in which it is added to c m.
    """
    size = jnp.maximum(jnp.abs(x), jnp.abs(law.mean))
    if isinstance(law, Waves):  # of each wave, which has a part of all places
        size = jnp.max(size, -1, keepdims=True, initial=0.0)
    slope = 1 / law.own_scale
    if isinstance(law, LocScaleNoise):
        size, slope = jnp.abs(c * law.mean), jnp.exp(law.log_slopes(c))
    ratio = jnp.maximum(jnp.finfo(x.dtype).eps * size * slope / RESOLUTION, coarse(law))
    return jnp.where(c == centredness_of_leaf(law), 0.0, ratio)


def into(law: Law, c: Array, x: Array) -> Array:
    """The coordinates of the leaf `x`; the inverse of :func:`out`."""
    x = law.unturned(x) if isinstance(law, Waves) else x
    shift = jnp.broadcast_to(law.mean, x.shape)
    found = c * shift + law.unspread(c, x - middle(law, shift))
    return jnp.where(same(law, c, centredness_of_leaf(law)), x, found)


def recentred(law: Law, c: Array, new: Array, u: Array) -> Array:
    """The coordinates at centredness `new` of the effect that is at `u` at centredness `c`.

    The effect itself is not computed: where its scale is below its last digit, u keeps what the
    effect has lost.
    """
    shift = jnp.broadcast_to(law.mean, u.shape)
    away = law.unspread(new, law.spread(c, u - c * shift))
    return jnp.where(same(law, c, new), u, new * shift + away)


def pulled(law: Law, c: Array, new: Array, gradient: Array) -> Array:
    """The gradient at centredness `new`, all else held, from that at centredness `c`."""
    (in_effect,) = jax.linear_transpose(lambda d: law.unspread(c, d), gradient)(gradient)
    in_noise: Array
    (in_noise,) = jax.linear_transpose(lambda v: law.spread(new, v), gradient)(in_effect)
    return in_noise
