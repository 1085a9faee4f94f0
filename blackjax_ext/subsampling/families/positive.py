r"""Families of positive responses by the logarithm of their mean or scale: gamma, Weibull."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, family, symmetric
from blackjax_ext.subsampling.families.locations import log_of
from blackjax_ext.subsampling.families.log_gamma import stirling_derivatives, stirling_excess
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
