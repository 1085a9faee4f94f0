r"""Laws of effects along a sequence: random walks and the states of a state space model.

- :class:`Walk`: :math:`v = s\,\mathrm{tril}(1) z = V a`, for orthonormal waves
  :math:`V_{tk} = 2 (2n+1)^{-1/2} \sin(\pi (2k+1) (t+1) / (2n+1))` and independent
  :math:`a_k \sim N(0, s_k^2)`, :math:`s_k = s / (2 \sin(\pi (k + 1/2) / (2n+1)))`: these are the
  eigenvectors of the covariance, whatever s is. So waves are what is observed, of each by itself,
  as data say much of long waves and little of short ones. The determinant of V is 1 or -1. (A fast
  Fourier transform would do, but fails in XLA on a CPU, by its layout.)
- :class:`WalkNoise`: the same where the leaf is z, the differences of which are the waves
  :math:`W_{tk} = 2 (2n+1)^{-1/2} \cos(\pi (2k+1) (t + 1/2) / (2n+1))`: :math:`z = W b`.
- :class:`LongWalk`: for :math:`L = s\,\mathrm{tril}(1)`, of any length. Each place is seen after
  those before it: :math:`v_i = v_{i-1} / r_i^2 + (1 - 1 / r_i^2) v^*_i + s u_i / r_i`.
- :class:`StateSpace`: :math:`v_i - m_i = A (v_{i-1} - m_{i-1}) + L z_i`, vectors. The noise here is
  y with :math:`v - m = L y`, whose law is that of :math:`z = T y`, the determinant of T is one, for
  :math:`z_i = y_i - B y_{i-1}` with :math:`B = L^{-1} A L`. What is known of y is
  :math:`T^T T + L^T W L = R R^T`, and :math:`y = R^{-T} (R^{-1} L^T W (v^* - m) + u)`. R has the
  lower triangular blocks :math:`D_i`, and :math:`-B^T D_{i+1}^{-T}` right of them:
  :math:`D_i D_i^T = I + N_i` with :math:`N_i = L^T W_i L + B^T (I + N_{i+1})^{-1} N_{i+1} B`.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.coordinates.laws import (
    Alone,
    Law,
    LocScale,
    LocScaleNoise,
    Pseudo,
    Together,
    cholesky,
    solved,
)
from blackjax_ext.precision import exact_products

MOST_WAVES = 1024  # of a walk: products with more of them would take longer than most models


class OfWalk(NamedTuple):
    """The field of :class:`LongWalk`."""

    scale: Any


class LongWalk(Alone, OfWalk):
    """Scale of the steps of a walk from zero along the last axis, of its other axes."""

    is_noise: ClassVar[bool] = False
    coarseness: ClassVar[None] = None

    @property
    def mean(self) -> Array:
        """See `Law`."""
        return jnp.zeros_like(self.own_scale)

    @property
    def own_scale(self) -> Array:
        """See `Law`."""
        return jnp.asarray(self.scale)[..., None]

    def spread(self, root: Array, e: Array) -> Array:
        """See `Law`: places S <- S / r^2 + s e / r, and steps from them."""

        def joined(first: Any, second: Any) -> tuple[Array, Array]:
            return first[0] * second[0], second[0] * first[1] + second[1]

        e, kept = e / root, jnp.broadcast_to(1 / root**2, e.shape)
        places = jax.lax.associative_scan(joined, (kept, self.own_scale * e), axis=-1)[1]
        return e - (1 - kept) * (shifted(places) / self.own_scale)

    def unspread(self, root: Array, z: Array) -> Array:
        """See `Law`."""
        return root * (z + (1 - 1 / root**2) * (jnp.cumsum(z, -1) - z))

    def effect(self, z: Array) -> Array:
        """See `Law`."""
        return jnp.cumsum(self.own_scale * z, -1)

    def noise(self, v: Array) -> Array:
        """See `Law`."""
        return (v - shifted(v)) / self.own_scale

    def unslope(self, h: Array) -> Array:
        """See `Law`."""
        return (h - shifted(h[..., ::-1])[..., ::-1]) / self.own_scale


def shifted(x: Array) -> Array:
    """Each entry in the place after it, the first zero."""
    return jnp.concatenate([jnp.zeros_like(x[..., :1]), x[..., :-1]], -1)


class OfStates(NamedTuple):
    """The fields of :class:`StateSpace`."""

    loc: Any
    factor: Array
    transition: Array


class StateSpace(Together, OfStates):
    """States of D components along the axis before the last, each the one before it and noise.

    Their means, (..., n, D), the factor of the noise, (..., 1, D, D), and the transition, (D, D).

    In single precision correlated noise whose scales are a thousandfold apart loses its digits.
    """

    def past(self) -> Array:
        """B, what is left of a state in the next, both in units of the noise."""
        return columns_solved(self.factor, exact_matmul(self.transition, self.factor))

    @exact_products
    def root(self, information: Array) -> Array:
        """See `Law`: D."""
        past = self.past()[..., 0, :, :]
        seen = jnp.sqrt(information)[..., None] * self.factor
        of_place = jnp.moveaxis(seen.mT @ seen, -3, 0)

        @exact_products
        def known(later: Array, seen: Array) -> tuple[Array, Array]:
            own = seen + past.mT @ later @ past
            root = cholesky(own + jnp.eye(own.shape[-1], dtype=own.dtype))
            # symmetric, as `own` and the root's square commute
            return columns_solved(root, columns_solved(root, own), trans=1), root

        _, roots = jax.lax.scan(known, jnp.zeros_like(of_place[0]), of_place, reverse=True)
        return jnp.moveaxis(roots, 0, -3)

    def offset(self, root: Array, pseudo: Pseudo) -> Array:
        """See `Law`."""
        seen = times(self.factor.mT, pseudo.information * pseudo.beyond(self.mean))
        # R^-1 from the last place on, of which no other is right
        later = jnp.concatenate([root[..., 1:, :, :], root[..., -1:, :, :]], -3)
        step = columns_solved(root, columns_solved(later, self.past()).mT)
        backwards = followed(step[..., ::-1, :, :], solved(root, seen)[..., ::-1, :])
        return backwards[..., ::-1, :]

    def spread(self, root: Array, e: Array) -> Array:
        """See `Law`."""
        kept = columns_solved(root, columns_solved(root, self.past()), trans=1)
        return followed(kept, solved(root, e, trans=1))

    def unspread(self, root: Array, z: Array) -> Array:
        """See `Law`."""
        return times(root.mT, z) - solved(root, times(self.past(), before(z)))

    def precision_times(self, z: Array) -> Array:
        """See `Law`: ``T^T T z``."""
        past = self.past()
        steps = z - times(past, before(z))
        return steps - before(times(past.mT, steps)[..., ::-1, :])[..., ::-1, :]


def columns_solved(factor: Array, matrix: Array, trans: int = 0) -> Array:
    """``factor^-1 matrix``, or that of its transpose."""
    found: Array = solved(factor[..., None, :, :], matrix.mT, trans).mT
    return found


@exact_products
def exact_matmul(a: Array, b: Array) -> Array:
    """Products of matrices."""
    return jnp.asarray(a) @ b


def times(matrix: Array, x: Array) -> Array:
    """Products of matrices with vectors."""
    return exact_matmul(matrix, x[..., None])[..., 0]


def before(x: Array) -> Array:
    """Each vector in the place after it, along the axis before the last; the first zero."""
    return shifted(x.mT).mT


def followed(past: Array, e: Array) -> Array:
    """``y_i = past_i y_{i-1} + e_i`` along the axis before the last, from zero."""
    past = jnp.broadcast_to(past, (*e.shape, e.shape[-1]))

    def step(y: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        y = times(now[0], y) + now[1]
        return y, y

    # of 140 places and two components a gradient takes 1.3 ms, 1.7 by an associative scan
    each = jnp.moveaxis(past, -3, 0), jnp.moveaxis(e, -2, 0)
    _, found = jax.lax.scan(step, jnp.zeros_like(each[1][0]), each)
    return jnp.moveaxis(found, 0, -2)


class Waves:
    """Waves of the places of a walk, or of its steps, (..., n), the longest first."""

    wave: Callable[[np.ndarray], np.ndarray]
    phase: float

    def basis(self, like: Array) -> Array:
        """The waves, (n, n), which are orthonormal: one in each column."""
        return jnp.asarray(orthonormal(self.wave, self.phase, like.shape[-1]), like.dtype)

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

    wave, phase = np.sin, 1.0


class WalkNoise(Waves, LocScaleNoise):
    """The same where the leaf is the noise of the steps."""

    wave, phase = np.cos, 0.5


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
