r"""Families of positive responses by mean or scale, gamma and Weibull, and of shares, beta."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, family, symmetric
from blackjax_ext.subsampling.families.locations import log_of
from blackjax_ext.subsampling.families.log_gamma import stirling_derivatives, stirling_excess
from blackjax_ext.subsampling.families.logits import bend, skew, slope, softplus
from blackjax_ext.subsampling.intervals import (
    Interval,
    Operand,
    exp,
    magnitude,
    piecewise,
)


def gamma(concentration: Any = None) -> Family:
    r"""Gamma with mean :math:`e^\eta` and shape :math:`\alpha = e^c`.

    Parameters
    ----------
    concentration
        :math:`\alpha`, a number or one for each row; None where c is the second predictor.

    Notes
    -----
    *Bounds.* With :math:`x = \log y - \eta`, :math:`\phi = G(c) + \alpha (e^x - 1 - x)`, G of
    :mod:`blackjax_ext.subsampling.families.log_gamma`, so

    .. math::
        \phi_{\eta\eta c} = -\phi_{\eta\eta\eta} = \alpha e^x, \quad
        \phi_{\eta cc} = -\alpha (e^x - 1), \quad \phi_{ccc} = G''' + \alpha (e^x - 1 - x).
    """
    return family(GAMMA, "log_mean", log_concentration=log_of("concentration", concentration))


def exponential() -> Family:
    r"""Exponential with mean :math:`e^\eta`: :func:`gamma` of shape 1."""
    return gamma(1.0)


@jax.custom_jvp
def excess(x: Array) -> Array:
    """``exp(x) - 1 - x``, with its digits near zero, and so its derivatives."""
    near = x * x * (1 / 2 + x * (1 / 6 + x / 24))
    return jnp.where(jnp.abs(x) < 0.03, near, jnp.expm1(x) - x)


excess.defjvps(lambda tangent, _, x: tangent * jnp.expm1(x))


def gamma_loss(theta: Array, y: Array) -> Array:
    """Up to a function of y."""
    x = jnp.log(y) - theta[0]
    return stirling_excess(theta[1]) + jnp.exp(theta[1]) * excess(x)


def gamma_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`gamma_loss`."""
    x, shape = jnp.log(y) - balls[0].interval, exp(balls[1].interval)
    third = stirling_derivatives(balls[1].interval)[2]
    grown = shape.high * exp(x).high
    off = shape.high * magnitude(piecewise(jnp.expm1, x))
    rest = shape * piecewise(excess, x, [0.0])
    return symmetric(2, {"000": grown, "001": grown, "011": off, "111": rest + third})


GAMMA = Kind(
    "gamma",
    ("log_mean", "log_concentration"),
    gamma_loss,
    gamma_sizes,
    rounding=lambda theta: (1.0, 1.0),
)


def weibull(concentration: Any = None) -> Family:
    r"""Weibull with scale :math:`e^l` and shape :math:`k = e^c`.

    Parameters
    ----------
    concentration
        k, a number or one for each row; None where c is the second predictor.

    Notes
    -----
    *Bounds.* With :math:`x = k (\log y - l)`, :math:`\phi = -c - x + e^x`, where :math:`x_l = -k`
    and :math:`x_c = x`:

    .. math::
        \phi_{lll} &= -k^3 e^x, \quad \phi_{llc} = k^2 e^x (x + 2), \quad
        \phi_{lcc} = -k (e^x (x^2 + 3x + 1) - 1), \\
        \phi_{ccc} &= x (e^x (x^2 + 3x + 1) - 1).
    """
    return family(WEIBULL, "log_scale", log_concentration=log_of("concentration", concentration))


def weibull_loss(theta: Array, y: Array) -> Array:
    """Up to a function of y."""
    x = jnp.exp(theta[1]) * (jnp.log(y) - theta[0])
    return jnp.exp(x) - x - theta[1]


def weibull_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`weibull_loss`."""
    k = exp(balls[1].change).high  # l is measured in units of 1 / k at the centre
    x = exp(balls[1].interval) * (jnp.log(y) - balls[0].interval)
    grown = exp(x)
    off = grown * polynomial(x) - 1.0
    entries: dict[str, Operand] = {
        "000": k**3 * grown.high,
        "001": k**2 * magnitude(grown * (x + 2.0)),
        "011": k * off,
        "111": x * off,
    }
    return symmetric(2, entries)


def polynomial(x: Interval) -> Interval:
    """``x^2 + 3 x + 1``."""
    return piecewise(lambda x: x * x + 3 * x + 1, x, [-1.5])


WEIBULL = Kind(
    "weibull",
    ("log_scale", "log_concentration"),
    weibull_loss,
    weibull_sizes,
    lambda theta, y: (
        jnp.exp(-theta[1]),
        0.5 / (1 + jnp.exp(theta[1]) * jnp.abs(jnp.log(y) - theta[0])),
    ),
    lambda theta: (jnp.exp(-theta[1]), 1.0),
    rounding=lambda theta: (1.0, 1.0),
)


def beta(concentration: Any = None) -> Family:
    r"""Beta with mean :math:`m = 1/(1+e^{-\eta})` and precision :math:`a + b = e^c`.

    Parameters
    ----------
    concentration
        The precision, a number or one for each row; None where c is the second predictor.

    Notes
    -----
    *Bounds.* With :math:`l_a = c + \log m`, :math:`l_b = c + \log(1-m)`, G of
    :mod:`blackjax_ext.subsampling.families.log_gamma`, and :math:`\lambda = \log\frac{y}{1-y}`,

    .. math:: \phi = G(l_a) + G(l_b) - G(c) + e^c K, \qquad
        K = m \log\frac{m}{y} + (1-m) \log\frac{1-m}{1-y},

    where :math:`K' = g (\eta - \lambda)`, :math:`K'' = g + g' (\eta - \lambda)`,
    :math:`K''' = 2 g' + g'' (\eta - \lambda)` with :math:`g = m(1-m)`, :math:`g' = g(1-2m)`,
    :math:`g'' = g(1-6g)`, and the terms of G have, with :math:`\partial_\eta l_a = 1-m`,
    :math:`\partial_\eta l_b = -m` and further derivatives :math:`-g, -g'` of both, those of the
    chain rule.
    """
    return family(BETA, "logits", log_concentration=log_of("concentration", concentration))


def beta_loss(theta: Array, y: Array) -> Array:
    """Up to a function of y."""
    eta, c = theta
    above, below = -softplus(-eta), -softplus(eta)
    parts = stirling_excess(c + above) + stirling_excess(c + below) - stirling_excess(c)
    return parts + jnp.exp(c) * divergence_of(eta, y)


def divergence_of(eta: Array, y: Array) -> Array:
    """K, which is zero where the mean is y."""
    above, below = -softplus(-eta), -softplus(eta)
    from_above = jax.nn.sigmoid(eta) * (above - jnp.log(y))
    return from_above + jax.nn.sigmoid(-eta) * (below - jnp.log1p(-y))


def beta_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`beta_loss`."""
    eta, c = (ball.interval for ball in balls)
    odds = jnp.log(y) - jnp.log1p(-y)
    # K falls to zero at eta = lambda and rises from there
    divergence = piecewise(lambda e: divergence_of(e, y), eta)
    is_within = (eta.low < odds) & (odds < eta.high)
    divergence = type(eta)(jnp.where(is_within, 0.0, divergence.low), divergence.high)
    off, precision = eta - odds, exp(c)
    m, rest, g, tilt = slope(eta), slope(-eta), bend(eta), skew(eta)
    of_a = stirling_derivatives(c + piecewise(lambda e: -jax.nn.softplus(-e), eta))
    of_b = stirling_derivatives(c + piecewise(lambda e: -jax.nn.softplus(e), eta))
    of_c = stirling_derivatives(c)
    curve = g * (1.0 - 6.0 * g)
    entries = {
        "000": precision * (2.0 * tilt + curve * off)
        + (of_a[2] * rest * rest * rest - 3.0 * (of_a[1] * rest * g) - of_a[0] * tilt)
        + (3.0 * (of_b[1] * m * g) - of_b[2] * m * m * m - of_b[0] * tilt),
        "001": precision * (g + tilt * off)
        + (of_a[2] * rest * rest - of_a[1] * g)
        + (of_b[2] * m * m - of_b[1] * g),
        "011": precision * (g * off) + of_a[2] * rest - of_b[2] * m,
        "111": precision * divergence + of_a[2] + of_b[2] - of_c[2],
    }
    return symmetric(2, entries)


BETA = Kind(
    "beta",
    ("logits", "log_concentration"),
    beta_loss,
    beta_sizes,
    # a mean near one is known to eps / (1 - m)
    rounding=lambda theta: (2.0 + 2.0 * jnp.cosh(theta[0]), 1.0),
)
