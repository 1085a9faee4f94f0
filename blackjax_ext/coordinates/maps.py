"""Maps between coordinates, the noise of an effect and its leaf, by a law and pseudo-observations.

:mod:`blackjax_ext.coordinates.laws` says what they are.

*Rounding.* Where a scale is below the last digits of v, the density of the model, which sees v, no
longer depends on u: it would be flat in all directions of the noise, and a chain that gets there
would stay. Such u have next to no density here: it is exp(-100) times what it was, for each
coordinate. That is a function of u alone, so that steps are exact for a target which has lost
places that the model cannot compute. So it is where the shape of a law, as of a beta law, is so
large that its log density is a sum of roundings:
:func:`blackjax_ext.coordinates.laws.coarseness_of`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.coordinates.laws import Law, Pseudo
from blackjax_ext.coordinates.sequences import Waves
from blackjax_ext.precision import NOISE_RESOLUTION

WALL = 100.0


def coarse(law: Law) -> Any:
    """Its coarseness, zero if it has none."""
    return 0.0 if law.coarseness is None else law.coarseness


def noise(law: Law, pseudo: Pseudo, u: Array) -> Array:
    """The noise at `u`."""
    root = law.root(pseudo.information)
    return law.spread(root, u + law.offset(root, pseudo))


def coordinate(law: Law, pseudo: Pseudo, z: Array) -> Array:
    """The coordinates of a noise; the inverse of :func:`noise`."""
    root = law.root(pseudo.information)
    return law.unspread(root, z) - law.offset(root, pseudo)


def out(law: Law, pseudo: Pseudo, u: Array) -> tuple[Array, Array]:
    """The leaf at `u` and the log determinant."""
    root = law.root(pseudo.information)
    z = law.spread(root, u + law.offset(root, pseudo))
    x, slopes = z, -law.log_root(root)
    if not law.is_noise:
        x, slopes = law.effect(z), slopes + jnp.log(jnp.abs(law.own_scale))
    log_det = jnp.sum(jnp.broadcast_to(slopes, u.shape)) - unresolved(law, pseudo, x)
    return law.turned(x) if isinstance(law, Waves) else x, log_det


def into(law: Law, pseudo: Pseudo, x: Array) -> Array:
    """The coordinates of the leaf `x`; the inverse of :func:`out`."""
    x = law.unturned(x) if isinstance(law, Waves) else x
    return coordinate(law, pseudo, x if law.is_noise else law.noise(x))


def moved(law: Law, old: Pseudo, new: Pseudo, u: Array) -> Array:
    """The coordinates given `new` of the effect that is at `u` given `old`.

    The effect itself is not computed: where its scale is below its last digit, u keeps what the
    effect has lost.
    """
    return coordinate(law, new, noise(law, old, u))


def seen(law: Law, pseudo: Pseudo, u: Array, gradient: Array) -> tuple[Array, Array]:
    """An effect, and the slope along it of all of the log density but a normal law of its noise."""
    root, z = law.root(pseudo.information), noise(law, pseudo, u)
    (of_noise,) = jax.linear_transpose(lambda z: law.unspread(root, z), z)(gradient)
    return law.effect(z), law.unslope(of_noise + law.precision_times(z))


def widths(law: Law, pseudo: Pseudo) -> Array:
    """How wide coordinates are, in units of the noise."""
    found = jnp.exp(law.log_root(law.root(pseudo.information)))
    return jnp.broadcast_to(found, pseudo.value.shape)


def centred(scale: Array, information: Array) -> Array:
    """How centred coordinates are where an effect has this scale: 1 - 1/r^2."""
    known = scale**2 * information
    return known / (1 + known)


def unresolved(law: Law, pseudo: Pseudo, x: Array) -> Array:
    """A penalty on the log density where the last digits of a leaf move its coordinates.

    Zero but far from all that is typical: with single precision, at scales below 1e-5 of the
    effect. Then so much for each coordinate that the place has no mass, and a trajectory may still
    cross it; and more than what a coarse log density may pretend.
    """
    ratio = rounding(law, pseudo, x)
    # what rounding adds to such a log density at most, in `coarseness`
    beyond = 2 * jnp.log(jnp.maximum(ratio, 1.0)) + 10.0 * coarse(law)
    return jnp.sum(jnp.where(ratio <= 1, 0.0, WALL + beyond))


def rounding(law: Law, pseudo: Pseudo, x: Array) -> Array:
    """How far the last digit of an effect, of a walk of its waves, moves u, in NOISE_RESOLUTION.

    Or how coarse its log density is, if that is more. A leaf that is the noise is as exact as u:
    what observations add to u goes to zero with the scale.
    """
    if law.is_noise:
        return jnp.broadcast_to(jnp.asarray(coarse(law), x.dtype), x.shape)
    size = jnp.maximum(jnp.abs(x), jnp.abs(law.mean))
    if isinstance(law, Waves):  # of each wave, which has a part of all places
        size = jnp.max(size, -1, keepdims=True, initial=0.0)
    slope = jnp.exp(law.log_root(law.root(pseudo.information))) / jnp.abs(law.own_scale)
    return jnp.maximum(jnp.finfo(x.dtype).eps * size * slope / NOISE_RESOLUTION, coarse(law))
