r"""Coordinates of an effect given pseudo-observations of it, for each law that an effect may have.

Given its parameters, an effect is an affine map of noise, :math:`v = m + M z`. Give each of its
components a pseudo-observation :math:`v^*` of information :math:`w \ge 0`, both fixed: a normal
likelihood :math:`N(v^* \mid v, 1 / w)`, which takes the place of what the data say. Coordinates u
are those of z given the parameters and the pseudo-observations: standard normal, if z is normal and
data say what the pseudo-observations do. For M a diagonal s, with :math:`r^2 = 1 + s^2 w`,

.. math:: z = \frac{s w (v^* - m)}{r^2} + \frac{u}{r}, \qquad
    v = \frac{m / s^2 + w v^*}{1 / s^2 + w} + \frac{u}{\sqrt{1 / s^2 + w}},
    \qquad \log \Big| \frac{\partial z}{\partial u} \Big| = - \log r.

At w = 0 these are the noise, for w to infinity the effect, shifted and scaled by fixed numbers, and
in between the weight **follows the scale**: as s goes to zero, coordinates become the noise by
themselves. The map is affine in u for given parameters, and so a bijection for any w and any
:math:`v^*`, whatever the law of z is.

- :class:`LocScale`: the leaf is v, each component by itself.
- :class:`LocFactor`: M is a lower triangular factor L. With :math:`C C^T = I + L^T W L`, C lower
  triangular, :math:`z = C^{-T} (C^{-1} L^T W (v^* - m) + u)`, the determinant one over that of C.
- :class:`LocScaleNoise`: where the leaf is z; u is the same.

Walks and states are in :mod:`blackjax_ext.coordinates.sequences`, maps by these laws in
:mod:`blackjax_ext.coordinates.maps`.

Reference: M. Gorinova, D. Moore and M. Hoffman 2020, Automatic reparameterisation of probabilistic
programs, for maps between an effect and its noise.
"""

from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from blackjax_ext.precision import OF_SHAPES, exact_products

# rows of a factor; a gradient with 60 of two rows takes 0.20 ms, 0.32 by LAPACK, 0.13 without
MOST_UNROLLED = 6
AT_THE_MEAN = np.nan  # a value that is the mean of the effect, wherever that is


class Pseudo(NamedTuple):
    """Pseudo-observations of the components of an effect, both of the effect's shape.

    value
        v*, in units of the effect; of a walk, of its waves. AT_THE_MEAN for one that goes with m.
    information
        w, one over their variance, never negative.
    """

    value: Array
    information: Array

    def beyond(self, mean: Array) -> Array:
        """``v* - m``."""
        return jnp.where(jnp.isnan(self.value), 0.0, self.value - mean)


class Law(Protocol):
    """The parameters of an effect, ``v = m + M z``, M a diagonal or lower triangular.

    is_noise
        Whether the leaf of the position is z.
    coarseness
        How coarse the log density of each component is; None where it is not.
    """

    is_noise: ClassVar[bool]

    @property
    def coarseness(self) -> Any:
        """See above."""

    @property
    def mean(self) -> Array:
        """Location of the effect, of a shape that broadcasts to it."""

    @property
    def own_scale(self) -> Array:
        """Scale of each component, given those before it, the diagonal of M."""

    def root(self, information: Array) -> Array:
        """A root C of what is known of z, 1 by its law and the rest by observation; or r."""

    def log_root(self, root: Array) -> Array:
        """Logarithms of the diagonal of C."""

    def offset(self, root: Array, pseudo: Pseudo) -> Array:
        """What the pseudo-observations add to u."""

    def spread(self, root: Array, e: Array) -> Array:
        """The noise ``C^-T e``."""

    def unspread(self, root: Array, z: Array) -> Array:
        """The other way round."""

    def effect(self, z: Array) -> Array:
        """``m + M z``."""

    def noise(self, v: Array) -> Array:
        """``M^-1 (v - m)``."""

    def unslope(self, h: Array) -> Array:
        """``M^-T h``: of a slope along z, that along v."""

    def precision_times(self, z: Array) -> Array:
        """The precision of a normal z by its own law, times z: the identity but of states."""


class Independent:
    """What laws share whose noise is independent."""

    def precision_times(self, z: Array) -> Array:
        """See :class:`Law`."""
        return z


class Alone(Independent):
    """What laws share whose components are observed each by itself."""

    def root(self: Law, information: Array) -> Array:
        """See :class:`Law`."""
        return jnp.sqrt(1 + self.own_scale**2 * information)

    def log_root(self: Law, root: Array) -> Array:
        """See :class:`Law`."""
        return jnp.log(root)

    def offset(self: Law, root: Array, pseudo: Pseudo) -> Array:
        """See :class:`Law`."""
        size = jnp.sqrt(pseudo.information)  # of factors that stay finite
        return self.own_scale * size / root * (size * pseudo.beyond(self.mean))


class OfScale(NamedTuple):
    """The fields of :class:`LocScale`."""

    loc: Any
    scale: Any
    coarseness: Any = None


class LocScale(Alone, OfScale):
    """Location and scale of an effect, of shapes that broadcast to it.

    `coarseness` is that of :func:`coarseness_of`, None for none: beyond 1 the place has next to no
    density.
    """

    is_noise: ClassVar[bool] = False

    @property
    def mean(self) -> Array:
        """See :class:`Law`."""
        return jnp.asarray(self.loc)

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        return jnp.asarray(self.scale)

    def spread(self, root: Array, e: Array) -> Array:
        """See :class:`Law`."""
        return e / root

    def unspread(self, root: Array, z: Array) -> Array:
        """See :class:`Law`."""
        return z * root

    def effect(self, z: Array) -> Array:
        """See :class:`Law`."""
        return self.mean + self.own_scale * z

    def noise(self, v: Array) -> Array:
        """See :class:`Law`."""
        return (v - self.mean) / self.own_scale

    def unslope(self, h: Array) -> Array:
        """See :class:`Law`."""
        return h / self.own_scale


class LocScaleNoise(LocScale):
    """Location and scale of an effect whose noise is a leaf of the position, broadcast to it.

    A scale that is no number counts as 0: a model may take no notice of some of its noise.
    """

    is_noise: ClassVar[bool] = True

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        scale = jnp.asarray(self.scale)
        return jnp.where(jnp.isfinite(scale), scale, 0.0)


class Together(Independent):
    """What laws share whose components have a factor, (..., D, D), and are observed together."""

    is_noise: ClassVar[bool] = False
    coarseness: ClassVar[None] = None
    loc: Any
    factor: Array

    @property
    def mean(self) -> Array:
        """See :class:`Law`."""
        return jnp.asarray(self.loc)

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        diagonal: Array = jnp.diagonal(self.factor, axis1=-2, axis2=-1)
        return diagonal

    @exact_products
    def root(self, information: Array) -> Array:
        """See :class:`Law`."""
        seen = jnp.sqrt(information)[..., None] * self.factor
        known = jnp.swapaxes(seen, -1, -2) @ seen
        return cholesky(known + jnp.eye(known.shape[-1], dtype=known.dtype))

    def log_root(self, root: Array) -> Array:
        """See :class:`Law`."""
        return jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1))

    @exact_products
    def offset(self, root: Array, pseudo: Pseudo) -> Array:
        """See :class:`Law`."""
        seen = pseudo.information * pseudo.beyond(self.mean)
        return solved(root, (jnp.swapaxes(self.factor, -1, -2) @ seen[..., None])[..., 0])

    def spread(self, root: Array, e: Array) -> Array:
        """See :class:`Law`."""
        return solved(root, e, trans=1)

    @exact_products
    def unspread(self, root: Array, z: Array) -> Array:
        """See :class:`Law`."""
        return (jnp.swapaxes(root, -1, -2) @ z[..., None])[..., 0]

    @exact_products
    def effect(self, z: Array) -> Array:
        """See :class:`Law`."""
        return self.mean + (self.factor @ z[..., None])[..., 0]

    def noise(self, v: Array) -> Array:
        """See :class:`Law`."""
        return solved(self.factor, v - self.mean)

    def unslope(self, h: Array) -> Array:
        """See :class:`Law`."""
        return solved(self.factor, h, trans=1)


class OfFactor(NamedTuple):
    """The fields of :class:`LocFactor`."""

    loc: Any
    factor: Array


class LocFactor(Together, OfFactor):
    """Location of an effect, (..., D), and a lower triangular factor of its covariance."""


def cholesky(matrix: Array) -> Array:
    """A Cholesky factor, of small matrices entry by entry: LAPACK takes them one by one."""
    size = matrix.shape[-1]
    if size > MOST_UNROLLED:
        found: Array = jnp.linalg.cholesky(matrix)
        return found
    rows: list[list[Any]] = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i + 1):
            other = row if j == i else rows[j]
            rest = matrix[..., i, j] - sum(a * b for a, b in zip(row, other, strict=False))
            row.append(jnp.sqrt(rest) if j == i else rest / other[j])
        rows.append(row)
    zero = jnp.zeros_like(matrix[..., 0, 0])
    full = [jnp.stack([*row, *[zero] * (size - len(row))], -1) for row in rows]
    return jnp.stack(full, -2)


def solved(factor: Array, x: Array, trans: int = 0) -> Array:
    """``factor^-1 x``, or that of its transpose; of small factors entry by entry as well."""
    size = x.shape[-1]
    if size > MOST_UNROLLED:
        factor = jnp.broadcast_to(factor, (*x.shape, size))
        found: Array = solve_triangular(factor, x[..., None], lower=True, trans=trans)[..., 0]
        return found
    parts: dict[int, Array] = {}
    for i in reversed(range(size)) if trans else range(size):
        known = (
            part * (factor[..., k, i] if trans else factor[..., i, k]) for k, part in parts.items()
        )
        parts[i] = (x[..., i] - sum(known)) / factor[..., i, i]
    return jnp.stack([parts[i] for i in range(size)], -1)


class LocFactorNoise(LocFactor):
    """The same where the leaf is the noise."""

    is_noise: ClassVar[bool] = True


class ColumnsNoise(LocFactorNoise):
    """The same where components are the first of two axes; location and factor lead with others."""

    def root(self, information: Array) -> Array:
        """See :class:`Law`."""
        return super().root(information.T)

    def log_root(self, root: Array) -> Array:
        """See :class:`Law`."""
        return super().log_root(root).T

    def offset(self, root: Array, pseudo: Pseudo) -> Array:
        """See :class:`Law`."""
        return super().offset(root, Pseudo(pseudo.value.T, pseudo.information.T)).T

    def spread(self, root: Array, e: Array) -> Array:
        """See :class:`Law`."""
        return super().spread(root, e.T).T

    def unspread(self, root: Array, z: Array) -> Array:
        """See :class:`Law`."""
        return super().unspread(root, z.T).T

    def effect(self, z: Array) -> Array:
        """See :class:`Law`."""
        return super().effect(z.T).T

    def noise(self, v: Array) -> Array:
        """See :class:`Law`."""
        return super().noise(v.T).T

    def unslope(self, h: Array) -> Array:
        """See :class:`Law`."""
        return super().unslope(h.T).T

    @property
    def own_scale(self) -> Array:
        """See :class:`Law`."""
        return super().own_scale.T


def coarseness_of(shape: Array) -> Array:
    """How coarse a log density with this shape is, where more than 1 is too much."""
    return OF_SHAPES * jnp.finfo(jnp.result_type(shape, float)).eps * shape
