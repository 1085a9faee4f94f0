r"""Families of counts: Poisson, negative binomial, zero-inflated, beta-binomial."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.checks import check_not_negative
from blackjax_ext.subsampling.families.densities import box_of, sizes_of
from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, Number, family, symmetric
from blackjax_ext.subsampling.families.locations import log_of
from blackjax_ext.subsampling.families.log_gamma import stirling_excess
from blackjax_ext.subsampling.families.logits import (
    SKEWNESS,
    STEEPEST,
    bend,
    skew,
    slope,
    softplus,
)
from blackjax_ext.subsampling.families.positive import excess
from blackjax_ext.subsampling.intervals import Interval, exp, magnitude, piecewise
from blackjax_ext.subsampling.taylor.functions import rising_, softplus_
from blackjax_ext.subsampling.taylor.jets import Box, Jet


def poisson() -> Family:
    r"""Counts with mean :math:`\lambda = e^\eta`: :math:`\phi = \lambda - y \eta`.

    *Bounds.* All derivatives from the second on are :math:`\lambda`.
    """
    return Family(POISSON, {})


def poisson_loss(theta: Array, y: Array) -> Array:
    """Up to a function of y: y (e^x - 1 - x) with x = log(mean / y), which keeps its digits."""
    is_none = y == 0
    some = jnp.where(is_none, 1.0, y)
    return jnp.where(is_none, jnp.exp(theta[0]), some * excess(theta[0] - jnp.log(some)))


POISSON = Kind(
    "poisson",
    ("log_rate",),
    poisson_loss,
    lambda order, balls, y: jnp.reshape(exp(balls[0].interval).high, (1,) * order),
    rounding=lambda theta: (1.0,),
    free=("log_rate",),
    highest=4,
)


def negative_binomial_2(concentration: Any = None) -> Family:
    r"""Counts with mean :math:`\mu = e^\eta` and variance :math:`\mu + \mu^2/\kappa`.

    Also a Poisson law whose rate is gamma with shape :math:`\kappa = e^c`.

    Parameters
    ----------
    concentration
        :math:`\kappa`, a number or one for each row; None where c is the second predictor.

    Notes
    -----
    *Bounds.* With :math:`u = \eta - c`, :math:`s = 1/(1+e^{-u})`, :math:`g = s(1-s)`,

    .. math:: \phi = \kappa\, \mathrm{sp}(u) + y\, [\mathrm{sp}(u) - \eta] -
        \log[\Gamma(\kappa+y) / \Gamma(\kappa)] + y c

    has the derivatives

    .. math::
        \phi_{\eta\eta\eta} &= (y+\kappa) g (1-2s), \quad
        \phi_{\eta\eta c} = g [2 \kappa s - y (1-2s)], \\
        \phi_{\eta cc} &= g (1-2s) (y - \mu),

    in which :math:`\mu - y` stands for differences of terms of the size of :math:`\kappa`. For the
    rest, :math:`\log[\Gamma(\kappa+y) / \Gamma(\kappa)] = \sum_{j<y} \log(\kappa + j)` for whole y,
    whose terms are softplus of :math:`c - \log j`:

    .. math::
        \phi_{ccc} = \kappa\, [\mathrm{sp}(u) - s - 2 s^3] - y g (1-2s)
        - \textstyle\sum_{0<j<y} g_j (1 - 2 s_j), \qquad s_j = \kappa / (\kappa + j).

    The bracket is monotone in s but where :math:`1 - 6s + 6s^2 = 0`. And
    :math:`g_j = \kappa j / (\kappa+j)^2` rises in j up to :math:`\kappa` and falls from there, so
    its sum is at most its integral, :math:`\kappa [\log(1 + y/\kappa) - y/(\kappa+y)]`, and its
    greatest term, 1/4; :math:`g_j |1-2s_j|` is at most that, and has two hills of height
    :math:`1/(6\sqrt3)`.
    """
    return family(
        NEGATIVE_BINOMIAL_2, "log_mean", log_concentration=log_of("concentration", concentration)
    )


def negative_binomial_loss(theta: Array, y: Array) -> Array:
    r"""Up to a function of y, with its digits where y is millions.

    With :math:`u = \eta - c` and :math:`v = \log y - c`,
    :math:`(\kappa + y) [\mathrm{sp}(u) - \mathrm{sp}(v) - \sigma(v) (u - v)] + G(c)
    - G(\log(\kappa + y))`, G of :mod:`blackjax_ext.subsampling.families.log_gamma`. The bracket is
    the same with all signs changed: with those that make v negative, nothing near one is left.
    """
    log_mean, c = theta
    is_none, concentration = y == 0, jnp.exp(c)
    log_y = jnp.log(jnp.where(is_none, 1.0, y))
    v = log_y - c
    sign = jnp.where(v > 0, -1.0, 1.0)
    between = sign * (log_mean - log_y)
    bracket = softplus(sign * (log_mean - c)) - softplus(sign * v)
    bracket = bracket - jax.nn.sigmoid(sign * v) * between
    rest = stirling_excess(c) - stirling_excess(jnp.logaddexp(c, log_y))
    of_none = concentration * softplus(log_mean - c)
    return jnp.where(is_none, of_none, (concentration + y) * bracket + rest)


def of_odds(u: Array) -> Array:
    """``softplus(u) - s - 2 s^3`` with its digits for small s."""
    s, e = jnp.where(u > -5.0, 1 / (1 + jnp.exp(-u)), 0.0), jnp.exp(jnp.minimum(u, -5.0))
    far = softplus(u) - s - 2.0 * s**3
    return jnp.where(u > -5.0, far, e * e * (0.5 - e * (8 / 3 - 6.75 * e)))


def sum_of_bends(c: Interval, y: Array) -> Array:
    """At least the sum of g_j over 0 < j < y."""
    x = y * exp(-c).high  # y / kappa, of which the integral over kappa rises less than x^2 / 2
    integral = jnp.where(x > 1e-2, jnp.log1p(x) - x / (1 + x), 0.5 * x * x)
    # 1.0, since a count of no sign has nothing below zero
    return jnp.minimum(exp(c).high * integral + 0.25, 0.25 * jnp.maximum(y - 1.0, 0.0))


def negative_binomial_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`negative_binomial_loss`."""
    log_mean, c = (ball.interval for ball in balls)
    # a difference of balls: the two need not move together
    u, concentration, mean = log_mean - c, exp(c), exp(log_mean)
    bent, tilted, s = magnitude(bend(u)), magnitude(skew(u)), slope(u)
    tilt, sum = 1.0 - 2.0 * s, sum_of_bends(c, y)
    rest = magnitude(piecewise(of_odds, u, [-STEEPEST, STEEPEST]))
    entries = {
        "000": (y + concentration.high) * tilted,
        "001": bent * magnitude(2.0 * concentration * s - y * tilt),
        "011": bent * magnitude(tilt) * magnitude(mean - y),
        "111": concentration.high * rest
        + y * tilted
        + jnp.minimum(sum, SKEWNESS * jnp.maximum(y - 1.0, 0.0)),
    }
    return symmetric(2, entries)


NEGATIVE_BINOMIAL_2 = Kind(
    "negative_binomial_2",
    ("log_mean", "log_concentration"),
    negative_binomial_loss,
    negative_binomial_sizes,
    rounding=lambda theta: (1.0, 1.0),
)


def zero_inflated_poisson(gate: Any = None) -> Family:
    r"""Zero with probability :math:`1/(1+e^{-\gamma})`, else a count of mean :math:`e^\eta`.

    Parameters
    ----------
    gate
        The probability, a number or one for each row; None where its log odds :math:`\gamma` are
        the second predictor.

    Notes
    -----
    *Bounds.* For y > 0, :math:`\phi = \mathrm{sp}(\gamma) + \lambda - y \eta`. For y = 0,
    :math:`\phi = \mathrm{sp}(-\gamma) - \mathrm{sp}(-h)` with :math:`h = \gamma + \lambda`,
    :math:`h_\gamma = 1` and all derivatives of h by :math:`\eta` equal to :math:`\lambda`: by the
    chain rule, with :math:`s_1, s_2, s_3` the derivatives of sp at h,

    .. math::
        \phi_{\eta\eta\eta} &= \lambda (1 - s_1) - 3 \lambda^2 s_2 - \lambda^3 s_3, \quad
        \phi_{\eta\eta\gamma} = -\lambda^2 s_3 - \lambda s_2, \\
        \phi_{\eta\gamma\gamma} &= -\lambda s_3, \quad
        \phi_{\gamma\gamma\gamma} = \mathrm{sp}'''(\gamma) - s_3.
    """
    if gate is not None:
        gate = jnp.log(jnp.asarray(gate, float)) - jnp.log1p(-jnp.asarray(gate, float))
    return family(ZERO_INFLATED_POISSON, "log_rate", gate_logits=gate)


def zero_inflated_loss(theta: Array, y: Array) -> Array:
    """Up to a function of y."""
    rate = jnp.exp(theta[0])
    of_zero = softplus(-theta[1]) - softplus(-theta[1] - rate)
    return jnp.where(y > 0, softplus(theta[1]) + poisson_loss(theta, y), of_zero)


def zero_inflated_reach(theta: Array, y: Array) -> tuple[Number, Number]:
    r"""A third of the distances to singularities.

    Of a zero they are where :math:`\gamma + \lambda e^s = i \pi m` with m odd. As
    :math:`|e^s - 1| \le e^{|s|} - 1`, none is nearer than
    :math:`\log(1 + \sqrt{h^2 + \pi^2} / \lambda)`.
    """
    rate = jnp.exp(theta[0])
    distance = jnp.log1p(jnp.hypot(rate + theta[1], jnp.pi) / rate)
    return jnp.where(y > 0, 1.0, jnp.minimum(distance / 3.0, 1.0)), 1.0


def zero_inflated_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`zero_inflated_loss`."""
    rate, gate = exp(balls[0].interval), balls[1].interval
    h = rate + gate
    first, second, third = slope(-h), bend(h), skew(h)
    of_zero = {
        "000": rate * (first - rate * (3.0 * second + rate * third)),
        "001": rate * (second + rate * third),
        "011": rate * third,
        "111": skew(gate) - third,
    }
    of_more = {"000": rate, "111": skew(gate)}
    return jnp.where(y > 0, symmetric(2, of_more), symmetric(2, of_zero))


ZERO_INFLATED_POISSON = Kind(
    "zero_inflated_poisson",
    ("log_rate", "gate_logits"),
    zero_inflated_loss,
    zero_inflated_sizes,
    zero_inflated_reach,
    rounding=lambda theta: (1.0, 2.0 + 2.0 * jnp.cosh(theta[1])),
)


def beta_binomial(total_count: Any, concentration: Any = None) -> Family:
    r"""Successes among n trials, the probability of each response of a beta distribution.

    Its mean is :math:`m = 1/(1+e^{-\eta})` and its precision :math:`s = a + b = e^c`, with
    :math:`a = s m` and :math:`b = s (1 - m)`.

    Parameters
    ----------
    total_count
        n, a number or one for each row.
    concentration
        The precision, a number or one for each row; None where c is the second predictor.

    Notes
    -----
    *Bounds.* With :math:`D(l, k) = \log[\Gamma(e^l + k) / \Gamma(e^l)]`,

    .. math:: \phi = D(c, n) - D(c + \log m, y) - D(c + \log(1-m), n - y),

    on jets of :math:`\eta` and c (:mod:`blackjax_ext.subsampling.taylor.jets`): the derivatives of
    D by l are sums of those of softplus, which are bounded together
    (:mod:`blackjax_ext.subsampling.taylor.functions`).

    Examples
    --------
    >>> from blackjax_ext import families
    >>> families.beta_binomial(20.0).kind.free
    ('logits', 'log_concentration')
    """
    check_not_negative("total_count", total_count)
    base = family(BETA_BINOMIAL, "logits", log_concentration=log_of("concentration", concentration))
    return Family(base.kind, {**base.parameters, "total_count": jnp.asarray(total_count, float)})


@jax.custom_jvp
def shortfall(x: Array) -> Array:
    """``x - log(1 + x)``, with its digits near zero, and so its derivatives."""
    near = x * x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5)))
    return jnp.where(jnp.abs(x) < 0.01, near, x - jnp.log1p(x))


shortfall.defjvps(lambda tangent, _, x: tangent * x / (1.0 + x))


def beta_binomial_loss(theta: Array, y: Array, total_count: Array) -> Array:
    r"""Up to a function of y, with its digits where counts or the precision are millions.

    With :math:`p = (y + a) / (n + s)`, the mean of y / n and m by their weights, G of
    :mod:`blackjax_ext.subsampling.families.log_gamma` and K the divergence of two coins,
    :math:`n K(y/n, p) + s K(m, p)` and differences of G. A divergence is
    :math:`q h((p - q) / q) + (1-q) h((q - p) / (1-q))` with :math:`h(x) = x - \log(1 + x)`.
    """
    eta, c = theta[0], theta[1]
    n, s = total_count, jnp.exp(c)
    other = n - y
    m, rest = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)
    log_a, log_b = c - softplus(-eta), c - softplus(eta)
    off = (y * rest - other * m) / (n + s)  # p - m, and below n (y / n - p)
    of_mean = s * (m * shortfall(off / m) + rest * shortfall(-off / rest))
    left = s * (y * rest - other * m) / (n + s)
    of_rows = counted(y, -left) + counted(other, left)
    gained = stirling_excess(c) - stirling_excess(log_of_sum(c, n))
    lost = stirling_excess(log_a) - stirling_excess(log_of_sum(log_a, y))
    lost = lost + stirling_excess(log_b) - stirling_excess(log_of_sum(log_b, other))
    return of_mean + of_rows + lost - gained


def log_of_sum(c: Array, y: Array) -> Array:
    """``log(exp(c) + y)``."""
    is_none = y == 0
    log_y = jnp.log(jnp.where(is_none, 1.0, y))
    return jnp.where(is_none, c, log_y + softplus(c - log_y))


def counted(y: Array, change: Array) -> Array:
    """``y h(change / y)``, its limit for no counts."""
    is_none = y == 0
    some = jnp.where(is_none, 1.0, y)
    return jnp.where(is_none, change, some * shortfall(change / some))


def risings(box: Box, jets: Sequence[Jet], counts: Sequence[Array]) -> list[Jet]:
    """D of several jets and counts, whose coefficients are found at once."""
    values = jax.tree.map(lambda *ends: jnp.stack(ends), *(jet.values for jet in jets))
    y = jnp.stack(counts)[:, None]
    coefficients = rising_(values, box.order, y, sum_of_bends(values, y))
    return [
        box.composed(
            [jax.tree.map(lambda end, i=i: end[i], coefficient) for coefficient in coefficients],
            jet,
        )
        for i, jet in enumerate(jets)
    ]


def beta_binomial_sizes(order: int, balls: tuple[Ball, ...], y: Array, total_count: Array) -> Array:
    """Bounds of the derivatives of :func:`beta_binomial_loss`."""
    box, free = box_of(balls)
    eta, c = (
        box.variable(free.index(j))
        if j in free
        else box.constant(Interval(ball.centre, ball.centre))
        for j, ball in enumerate(balls)
    )
    y, n = (jnp.asarray(term, box.dtype) for term in (y, total_count))
    above, below = (box.composed(softplus_(term.values, box.order), term) for term in (-eta, eta))
    logs = [c, box.add(c, -above), box.add(c, -below)]
    gained, *lost = risings(box, logs, [n, y, n - y])
    return sizes_of(order, box.add(gained, -box.add(*lost)), free, balls)


BETA_BINOMIAL = Kind(
    "beta_binomial",
    ("logits", "log_concentration"),
    beta_binomial_loss,
    beta_binomial_sizes,
    # a mean near one is known to eps / (1 - m)
    rounding=lambda theta: (2.0 + 2.0 * jnp.cosh(theta[0]), 1.0),
)
