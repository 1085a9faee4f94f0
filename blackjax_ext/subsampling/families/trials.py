r"""The family of successes among trials whose probability varies: beta-binomial."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.checks import check_not_negative
from blackjax_ext.subsampling.families.counts import sum_of_bends
from blackjax_ext.subsampling.families.densities import box_of, sizes_of
from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, family
from blackjax_ext.subsampling.families.locations import log_of
from blackjax_ext.subsampling.families.log_gamma import stirling_excess
from blackjax_ext.subsampling.families.logits import softplus
from blackjax_ext.subsampling.intervals import Interval
from blackjax_ext.subsampling.taylor.functions import rising_, softplus_
from blackjax_ext.subsampling.taylor.jets import Box, Jet


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
