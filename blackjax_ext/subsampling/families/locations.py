r"""Families of a location and a scale: normal, lognormal, Student's t, logistic.

With :math:`z = (y - \mu) e^{-\tau}` and :math:`\phi = \tau + f(z)`, a derivative by
:math:`\mu` is :math:`-e^{-\tau} \partial_z` and one by :math:`\tau` turns :math:`h(z)` into
:math:`-z h'(z)`, and :math:`e^{-\tau} h` into :math:`-e^{-\tau} (z h)'`. So in units of
:math:`e^{\tau_a}` for :math:`\mu`, with :math:`k = e^{\tau_a - \tau}`,

.. math::
    \phi_{\mu\mu\mu} &= -k^3 f''', & \phi_{\mu\mu\tau} &= -k^2 (2 f'' + z f'''), \\
    \phi_{\mu\tau\tau} &= -k (f' + 3 z f'' + z^2 f'''), &
    \phi_{\tau\tau\tau} &= -z (f' + 3 z f'' + z^2 f'''), \\
    \phi_{\mu\mu\mu\mu} &= k^4 f'''', & \phi_{\mu\mu\mu\tau} &= k^3 (3 f''' + z f''''), \\
    \phi_{\mu\mu\tau\tau} &= k^2 h, & \phi_{\mu\tau\tau\tau} &= k (f' + 7 z f'' + 6 z^2 f'''
    + z^3 f''''), \\
    \phi_{\tau\tau\tau\tau} &= z (f' + 7 z f'' + 6 z^2 f''' + z^3 f''''), &
    h &= 4 f'' + 5 z f''' + z^2 f''''.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from blackjax_ext.checks import check_positive
from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, family, symmetric
from blackjax_ext.subsampling.families.log_gamma import half_step, half_step_third
from blackjax_ext.subsampling.families.logits import bend, bend_of_bend, skew, softplus
from blackjax_ext.subsampling.intervals import Interval, exp, magnitude, piecewise, square
from blackjax_ext.types import Function


def log_of(name: str, value: Any) -> Any:
    """Logarithm of a known parameter, which is positive; None stays None."""
    if value is None:
        return None
    check_positive(name, value)
    return jnp.log(jnp.asarray(value, float))


def z_score(loc: Ball, log_scale: Ball, y: Array) -> Interval:
    """The standardized response z over a box."""
    return (y - loc.interval) * exp(-log_scale.interval)


def largest_inverse_scale(log_scale: Ball) -> Array:
    """The largest k over a box."""
    return exp(log_scale.change).high


def of_location_and_scale(order: int, balls: tuple[Ball, ...], y: Array, derivatives: Any) -> Array:
    """Bounds from ``derivatives(z)``, the first four of f over an interval."""
    loc, log_scale = balls
    z, k = z_score(loc, log_scale, y), largest_inverse_scale(log_scale)
    first, second, third, fourth = derivatives(z)
    if order == 3:
        along = first + z * (3.0 * second + z * third)
        entries = {
            "000": k**3 * magnitude(third),
            "001": k**2 * magnitude(2.0 * second + z * third),
            "011": k * magnitude(along),
            "111": magnitude(z) * magnitude(along),
        }
        return symmetric(2, entries)
    along = first + z * (7.0 * second + z * (6.0 * third + z * fourth))
    entries = {
        "0000": k**4 * magnitude(fourth),
        "0001": k**3 * magnitude(3.0 * third + z * fourth),
        "0011": k**2 * magnitude(4.0 * second + z * (5.0 * third + z * fourth)),
        "0111": k * magnitude(along),
        "1111": magnitude(z) * magnitude(along),
    }
    return symmetric(2, entries)


def z_of(theta: Array, y: Array) -> Array:
    """The standardized response."""
    return (y - theta[0]) * jnp.exp(-theta[1])


def normal(scale: Any = None) -> Family:
    r"""Normal with mean :math:`\mu` and scale :math:`e^\tau`; of logarithms it is the lognormal.

    Parameters
    ----------
    scale
        Known, a number or one for each row; None where :math:`\tau` is the second predictor.

    Notes
    -----
    *Bounds.* :math:`f = z^2/2`: with a known scale the third derivative is zero, and no row is ever
    read.
    """
    return family(NORMAL, "loc", log_scale=log_of("scale", scale))


def of_location(name: str, loss: Function, derivatives: Function, reach: Any = None) -> Kind:
    """The kind of a density of a location and a scale.

    By ``loss(log_scale, z)`` and the first four derivatives of f, of an interval of z. Its reach is
    that of a singularity at a distance of the order of one, unless it is given.
    """
    reach = reach or (lambda theta, y: (jnp.exp(theta[1]), 0.5 / (1.0 + jnp.abs(z_of(theta, y)))))
    return Kind(
        name,
        ("loc", "log_scale"),
        lambda theta, y: loss(theta[1], z_of(theta, y)),
        lambda order, balls, y: of_location_and_scale(order, balls, y, derivatives),
        reach,
        lambda theta: (jnp.exp(theta[1]), 1.0),
        rounding=lambda theta: (0.0, 1.0),
        highest=4,
    )


def normal_derivatives(z: Interval) -> tuple[Interval, ...]:
    """Derivatives of f."""
    one, zero = (Interval(jnp.full_like(z.low, i), jnp.full_like(z.low, i)) for i in (1.0, 0.0))
    return z, one, zero, zero


NORMAL = of_location(
    "normal",
    lambda tau, z: tau + 0.5 * jnp.square(z),
    normal_derivatives,
    lambda theta, y: (jnp.inf, 0.5),
)


def logistic(scale: Any = None) -> Family:
    r"""Logistic density of location :math:`\mu` and scale :math:`e^\tau`: smooth, Laplace's tails.

    The scale is as for :func:`normal`.

    Notes
    -----
    *Bounds.* :math:`f = z + 2 \log(1 + e^{-z})`, so :math:`f' = \tanh(z/2)`, and the others are
    twice those of softplus.
    """
    return family(LOGISTIC, "loc", log_scale=log_of("scale", scale))


def logistic_derivatives(z: Interval) -> tuple[Interval, ...]:
    """Derivatives of f."""
    first = piecewise(lambda x: jnp.tanh(0.5 * x), z)
    return first, 2.0 * bend(z), 2.0 * skew(z), 2.0 * bend_of_bend(z)


LOGISTIC = of_location(
    "logistic", lambda tau, z: tau + z + 2.0 * softplus(-z), logistic_derivatives
)


def gumbel(scale: Any = None) -> Family:
    r"""Gumbel's density of extremes, with location :math:`\mu` and scale :math:`e^\tau`.

    The scale is as for :func:`normal`.

    Notes
    -----
    *Bounds.* :math:`f = z + e^{-z}`, whose second derivative and minus its third are
    :math:`e^{-z}`.
    """
    return family(GUMBEL, "loc", log_scale=log_of("scale", scale))


def gumbel_derivatives(z: Interval) -> tuple[Interval, ...]:
    """Derivatives of f."""
    grown = exp(-z)
    return 1.0 - grown, grown, -grown, grown


GUMBEL = of_location("gumbel", lambda tau, z: tau + z + jnp.exp(-z), gumbel_derivatives)


def student_t(df: Any = None, scale: Any = None) -> Family:
    r"""Student's t with location :math:`\mu`, scale :math:`e^\tau` and :math:`\nu = e^d`.

    Parameters
    ----------
    df, scale
        Known, a number or one for each row; None where :math:`\tau` is the next predictor, and
        :math:`d` the one after.

    Notes
    -----
    *Bounds.* With :math:`q = z^2/\nu`, :math:`w = 1/(1+q)`, :math:`p = 1 - w`,
    :math:`\phi = \tau + B(d) + \frac{\nu+1}{2} \log(1 + q)` up to a constant, B of
    :mod:`blackjax_ext.subsampling.families.log_gamma` at :math:`\nu/2`. With
    :math:`r = (\nu+1) z / (\nu + z^2)`, the derivatives by :math:`\mu` and :math:`\tau` are those
    of f with :math:`f' = r`:

    .. math::
        \phi_{\mu\mu\mu} &= 2 k^3 \tfrac{\nu+1}{\nu^2} z w^2 (3w-p), \quad
        \phi_{\mu\mu\tau} = -2k^2 \tfrac{\nu+1}{\nu} w^2 (1-4p), \\
        \phi_{\mu\tau\tau} &= -4k \tfrac{\nu+1}{\nu} z w^2 (1-2p), \quad
        \phi_{\tau\tau\tau} = -4 (\nu+1) p w (w-p),

    and those by d, in which what is large for large :math:`\nu` has cancelled,

    .. math::
        \phi_{\mu\mu d} &= k^2 w [\nu p (3 - 4p) - w (1 - 4p)] / \nu, \quad
        \phi_{\mu\tau d} = -k z w [2 w (1 - 2p) - 4 \nu p w] / \nu, \\
        \phi_{\tau\tau d} &= 2 p w [2 \nu p - (w-p)], \quad
        \phi_{\mu dd} = k z w (w - \nu p) (p-w) / \nu, \\
        \phi_{\tau dd} &= -p (w-p) (w - \nu p), \quad
        \phi_{ddd} = B''' + \tfrac{\nu}{2} (\ell - p - 2p^3) - \tfrac12 p w (w-p),

    where :math:`\ell = \log(1+q)` and :math:`w - \nu p = (1-z^2) w`. What :math:`\nu/2` multiplies
    in the last is monotone in pieces: its derivative by p is :math:`p (1 - 6p + 6p^2) / w`.
    """
    return family(STUDENT_T, "loc", log_scale=log_of("scale", scale), log_df=log_of("df", df))


def student_loss(theta: Array, y: Array) -> Array:
    """Minus the log density of Student's t, up to a constant."""
    df = jnp.exp(theta[2])
    tail = 0.5 * (df + 1) * log_one_and_square(theta, y)
    return theta[1] + half_step(theta[2] - jnp.log(2.0)) + tail


def log_one_and_square(theta: Array, y: Array) -> Array:
    """``log(1 + q)`` with q = z^2 / df.

    Far out, where third powers of q are more than a float holds, by the logarithm of q.
    """
    error = y - theta[0]
    q = jnp.square(z_of(theta, y)) / jnp.exp(theta[2])
    is_far = q > 1.0
    log_q = 2.0 * (jnp.log(jnp.abs(jnp.where(is_far, error, 1.0))) - theta[1]) - theta[2]
    near = jnp.square(jnp.where(is_far, 0.0, error) * jnp.exp(-theta[1])) / jnp.exp(theta[2])
    return jnp.where(is_far, softplus(log_q), jnp.log1p(near))


def third_excess(q: Array) -> Array:
    """``log(1 + q) - p - 2 p^3``, with its digits near zero."""
    p = q / (1 + q)
    near = p * p * (1 / 2 + p * (1 / 3 - 2 + p * (1 / 4 + p / 5)))
    return jnp.where(p < 0.03, near, jnp.log1p(q) - p - 2 * p**3)


def student_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`student_loss`, which are in :func:`student_t`."""
    loc, log_scale, log_df = balls
    z, k, df = z_score(loc, log_scale, y), largest_inverse_scale(log_scale), exp(log_df.interval)
    least, half = df.low, 0.5 * df.high
    square_z = square(z)
    q = Interval(square_z.low / df.high, square_z.high / least)
    # nothing here is a large number times a small one, of which floats hold neither
    w, p = piecewise(lambda q: 1 / (1 + q), q), piecewise(lambda q: 1 / (1 + 1 / q), q)
    size_pw = magnitude(piecewise(lambda q: 1 / (1 + q) / (1 + 1 / q), q, [1.0]))
    size_zw = magnitude(z) * magnitude(w)
    tilt, grown = w - p, df * p
    rest = magnitude(w - grown)  # (1 - z^2) w
    more = 1 + 1 / least  # (nu + 1) / nu
    bent = half_step_third(log_df.interval - jnp.log(2.0))
    third = piecewise(third_excess, q, [2.0 - 3**0.5, 2.0 + 3**0.5])
    entries = {
        "000": 2 * k**3 * (more / least) * size_zw * magnitude(w * (3.0 * w - p)),
        "001": 2 * k**2 * more * magnitude(w) ** 2 * magnitude(1.0 - 4.0 * p),
        "011": 4 * k * more * size_zw * magnitude(w) * magnitude(1.0 - 2.0 * p),
        "111": 4 * (df.high + 1) * size_pw * magnitude(tilt),
        "002": k**2
        * magnitude(w)
        * magnitude(grown * (3.0 - 4.0 * p) - w * (1.0 - 4.0 * p))
        / least,
        "012": k * size_zw * magnitude(2.0 * w * (1.0 - 2.0 * p) - 4.0 * grown * w) / least,
        "112": 2 * size_pw * magnitude(2.0 * grown - tilt),
        "022": k * size_zw * rest * magnitude(tilt) / least,
        "122": magnitude(p) * rest * magnitude(tilt),
        "222": magnitude(bent) + half * magnitude(third) + 0.5 * size_pw * magnitude(tilt),
    }
    return symmetric(3, entries)


STUDENT_T = Kind(
    "student_t",
    ("loc", "log_scale", "log_df"),
    student_loss,
    student_sizes,
    lambda theta, y: (0.5 * jnp.exp(0.5 * theta[2] + theta[1]), 0.5, 0.5),
    lambda theta: (jnp.exp(theta[1]), 1.0, 1.0),
    rounding=lambda theta: (0.0, 1.0, 1.0),
)
