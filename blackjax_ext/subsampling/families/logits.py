r"""Families of log odds: Bernoulli, binomial, negative binomial, categorical, ordered.

The derivatives of :math:`\mathrm{sp}(u) = \log(1 + e^u)` are :math:`s`, :math:`s(1-s)` and
:math:`s(1-s)(1-2s)` with :math:`s = 1/(1 + e^{-u})`. The second is greatest at zero, 1/4. The
derivative of the third in s, :math:`1 - 6s + 6s^2`, is zero at
:math:`s = \frac12 \pm \frac1{2\sqrt3}`, where it is :math:`\pm\frac1{6\sqrt3}`: between these
points each is monotone, so its greatest value over an interval is at an end or at one of them.
The fourth, :math:`g (1 - 6g)` with :math:`g = s(1-s)`, turns at zero and where :math:`g = 1/12`.
"""

from functools import cache
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.checks import check_not_negative, check_positive
from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, Number
from blackjax_ext.subsampling.intervals import (
    Interval,
    exp,
    magnitude,
    piecewise,
    square,
)

# greatest value of s (1 - s) (1 - 2 s), and where it is
SKEWNESS = 1.0 / (6.0 * np.sqrt(3.0))
STEEPEST = float(np.log(2.0 + np.sqrt(3.0)))
# where s (1 - s) = 1/12
TURN = float(np.log(5.0 + np.sqrt(24.0)))


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` with derivatives in the sigmoid: one exponential for all of them."""
    return jax.nn.softplus(x)


softplus.defjvps(lambda tangent, _, x: tangent * jax.nn.sigmoid(x))


def slope(u: Interval) -> Interval:
    """First derivative of softplus."""
    return piecewise(jax.nn.sigmoid, u)


def bend(u: Interval) -> Interval:
    """Second derivative of softplus."""
    return piecewise(lambda x: jax.nn.sigmoid(x) * jax.nn.sigmoid(-x), u, [0.0])


def skew(u: Interval) -> Interval:
    """Third derivative of softplus."""

    def third(x: Array) -> Array:
        return -jax.nn.sigmoid(x) * jax.nn.sigmoid(-x) * jnp.tanh(0.5 * x)

    return piecewise(third, u, [-STEEPEST, STEEPEST])


def bend_of_bend(u: Interval) -> Interval:
    """Fourth derivative of softplus."""

    def fourth(x: Array) -> Array:
        g = jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
        return g * (1.0 - 6.0 * g)

    return piecewise(fourth, u, [-TURN, 0.0, TURN])


def logistic_loss(eta: Array, failures: Number, successes: Number) -> Array:
    r""":math:`n \log(1 + e^\eta) - y \eta` of n - y failures and y successes.

    Where there are more successes, of failures with the other sign: of nine millions less three the
    slope would have no digits, and of a log odds of fifteen the curvature.
    """
    rarer = jnp.minimum(failures, successes)
    eta = jnp.where(successes > failures, -1.0, 1.0) * eta[0]
    return (failures + successes) * softplus(eta) - rarer * eta


def logistic_sizes(order: int, eta: Ball, count: Number) -> Array:
    """Bounds of the derivatives of :func:`logistic_loss`."""
    derivative = {3: skew, 4: bend_of_bend}[order]
    most = magnitude(derivative(eta.interval)) * count
    return jnp.reshape(most, (1,) * order)


def bernoulli() -> Family:
    r"""Zero or one, with :math:`P(y = 1) = s = 1 / (1 + e^{-\eta})`.

    *Bounds.* Those of softplus, in :mod:`blackjax_ext.subsampling.families.logits`.
    """
    return Family(BERNOULLI, {})


BERNOULLI = Kind(
    "bernoulli",
    ("logits",),
    lambda theta, y: logistic_loss(theta, 1.0 - y, y),
    lambda order, balls, y: logistic_sizes(order, balls[0], 1.0),
    free=("logits",),
    highest=4,
)


def binomial(total_count: Any) -> Family:
    r"""Successes of n trials with log odds :math:`\eta`.

    A row without trials has no loss and no bound.

    *Bounds.* n times those of :func:`bernoulli`.
    """
    check_not_negative("total_count", total_count)
    return Family(BINOMIAL, {"total_count": total_count})


BINOMIAL = Kind(
    "binomial",
    ("logits",),
    lambda theta, y, total_count: logistic_loss(theta, total_count - y, y),
    lambda order, balls, y, total_count: logistic_sizes(order, balls[0], total_count),
    free=("logits",),
    highest=4,
)


def negative_binomial(total_count: Any) -> Family:
    r"""Counts with :math:`p(y) \propto s^y (1-s)^n`, by their log odds.

    :func:`blackjax_ext.families.negative_binomial_2` is the one by its mean.

    *Bounds.* :math:`\phi = (n + y) \log(1 + e^\eta) - y \eta`: n + y times those of
    :func:`bernoulli`.
    """
    check_positive("total_count", total_count)
    return Family(NEGATIVE_BINOMIAL, {"total_count": total_count})


NEGATIVE_BINOMIAL = Kind(
    "negative_binomial",
    ("logits",),
    lambda theta, y, total_count: logistic_loss(theta, total_count, y),
    lambda order, balls, y, total_count: logistic_sizes(order, balls[0], total_count + y),
    free=("logits",),
    highest=4,
)


def categorical() -> Family:
    r"""One of K classes with logits :math:`\eta`; the response is its number.

    *Bounds.* Derivatives of :math:`\log \sum_k e^{\eta_k}` along :math:`v` are the cumulants of
    :math:`v_C` with :math:`C` drawn from :math:`\mathrm{softmax}(\eta)`. The third central moment
    is, for a given mean, linear in the law of :math:`v_C`, hence greatest at an extreme law, which
    has two values :math:`a < b`: :math:`(b-a)^3 p(1-p)(1-2p)`. With the range
    :math:`R = \max v - \min v \le \sqrt2 |v|` it is at most
    :math:`R^3 / (6\sqrt3) \le 2^{3/2} |v|^3 / (6\sqrt3)`. As a form on different directions its
    greatest value is on the diagonal (Banach 1938, Über homogene Polynome in (L²)).

    *Shifts.* :math:`\phi(\eta + c 1) = \phi(\eta)`, so derivatives along v are those along
    :math:`v - \bar{v} 1`. Without a class of reference the sum of the logits is known from the
    prior alone: it is as wide as that, and changes nothing. Bounds by :math:`|v|` would count it.
    """
    return Family(CATEGORICAL, {})


CATEGORICAL = Kind(
    "categorical",
    (),
    lambda eta, y: jax.nn.logsumexp(eta) - eta[y],
    None,
    lambda theta, y: (0.5,),
    norm=float(2.0**1.5 * SKEWNESS),
)


def ordered_logistic(num_classes: int, cutpoints: Any = None) -> Family:
    r"""One of J + 1 ordered classes: :math:`P(y \ge j) = 1 / (1 + e^{c_j - \eta})`, j = 1..J.

    The predictors are :math:`\delta = \eta - c_1` and the logarithms of the gaps
    :math:`g_j = \log(c_j - c_{j-1})`, j = 2..J: what an increasing vector is in coordinates without
    ends, and free of the shift that moves all cutpoints with the predictor.

    Notes
    -----
    *Bounds.* With :math:`E_j = e^{g_j}` and :math:`\delta_j = \delta - \sum_{i \le j} E_i`, class y
    has the loss :math:`\mathrm{sp}(-\delta_y) + \mathrm{sp}(\delta_{y+1}) - \log(1 -
    e^{-E_{y+1}})`, without the first term for the lowest class and the others for the highest. A
    softplus of :math:`\delta_j`, whose derivatives by :math:`g_i` are all :math:`-E_i`, is bounded
    by the chain rule. Of the last term, with :math:`b = E / (e^E - 1)`, the derivatives by g are
    :math:`-b`, :math:`-b(1 - E - b)` and :math:`-b[(1 - E - b)^2 - E - b(1 - E - b)]`.

    Parameters
    ----------
    num_classes
        J + 1, at least 2.
    cutpoints
        Known cutpoints, shape (J,), increasing: then the predictor is :math:`\eta - c_1` alone.
        None where the gaps are free.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2; got {num_classes!r}.")
    kind = ordered_kind(num_classes - 1)
    if cutpoints is None:
        return Family(kind.having(*kind.predictors), {})
    gaps = np.diff(np.asarray(cutpoints, np.float64))
    if len(gaps) != num_classes - 2 or not (gaps > 0).all():
        raise ValueError(
            f"cutpoints must be {num_classes - 1} increasing numbers; got {cutpoints!r}."
        )
    known = {name: np.log(gap) for name, gap in zip(kind.predictors[1:], gaps, strict=True)}
    return Family(kind.having(kind.predictors[0]), known)


@cache
def ordered_kind(num_cutpoints: int) -> Kind:
    """The kind for J cutpoints."""
    gaps = tuple(f"log_gap_{j}" for j in range(2, num_cutpoints + 1))
    return Kind(
        "ordered_logistic",
        ("logits", *gaps),
        ordered_loss,
        ordered_sizes,
        lambda theta, y: (1.0, *(1.0 / (1.0 + jnp.exp(gap)) for gap in theta[1:])),
        rounding=ordered_rounding,
    )


def ordered_rounding(theta: Array) -> tuple[Number, ...]:
    """Gaps are differences of cutpoints, and are read from them."""
    reach = 1.0 + jnp.abs(theta[0]) + jnp.sum(jnp.exp(theta[1:]))
    return reach, *(1.0 + reach * jnp.exp(-gap) for gap in theta[1:])


def log_gap(g: Array) -> Array:
    """``-log(1 - exp(-exp(g)))``."""
    return -jnp.log(-jnp.expm1(-jnp.exp(g)))


def ordered_loss(theta: Array, y: Array) -> Array:
    """Minus the log probability of class y; not a number, nor its derivatives, if there is none."""
    num_cutpoints, y = theta.shape[0], y.astype(int)
    theta = theta * jnp.where((0 <= y) & (y <= num_cutpoints), 1.0, jnp.nan)
    below = theta[0] - jnp.append(0.0, jnp.cumsum(jnp.exp(theta[1:])))  # delta_1 to delta_J
    is_lowest, is_highest = y == 0, y == num_cutpoints
    lower = jnp.where(is_lowest, 0.0, softplus(-below[jnp.maximum(y - 1, 0)]))
    upper = jnp.where(is_highest, 0.0, softplus(below[jnp.minimum(y, num_cutpoints - 1)]))
    if num_cutpoints == 1:
        return lower + upper
    gap = theta[1:][jnp.clip(y - 1, 0, num_cutpoints - 2)]
    return lower + upper + jnp.where(is_lowest | is_highest, 0.0, log_gap(gap))


def ordered_sizes(order: int, balls: tuple[Ball, ...], y: Array) -> Array:
    """Bounds of the derivatives of :func:`ordered_loss`."""
    num_cutpoints, y = len(balls), y.astype(int)
    gaps = [exp(ball.interval) for ball in balls[1:]]
    below = list(accumulate(gaps, lambda total, gap: total - gap, initial=balls[0].interval))
    ones = [jnp.ones_like(balls[0].centre), *(gap.high for gap in gaps)]
    total = jnp.zeros((num_cutpoints,) * order, ones[0].dtype)
    for j in range(num_cutpoints):  # the class above cutpoint j + 1, and the one below
        inner = jnp.stack([*ones[: j + 1], *(jnp.zeros_like(one) for one in ones[j + 1 :])])
        of_cut = chained(below[j], inner)
        total = total + jnp.where((y == j) | (y == j + 1), of_cut, 0.0)
        if j:
            of_gap = jnp.zeros_like(total).at[(j,) * order].set(gap_size(gaps[j - 1]))
            total = total + jnp.where(y == j, of_gap, 0.0)
    return total


def chained(u: Interval, inner: Array) -> Array:
    """Bounds of third derivatives of softplus of u or of -u.

    Here u is a predictor less exponentials of others, and `inner` has the sizes of the derivatives
    of u, the first of the predictor itself, whose second is zero.
    """
    first = jnp.maximum(magnitude(slope(u)), magnitude(slope(-u)))
    second, third = magnitude(bend(u)), magnitude(skew(u))
    own = inner.at[0].set(0.0)  # second and third derivatives of u are on the diagonal
    diagonal = jnp.diag(own)
    cube = jnp.einsum("i,j,k->ijk", inner, inner, inner)
    mixed = jnp.einsum("ij,k->ijk", diagonal, inner)
    mixed = mixed + jnp.moveaxis(mixed, 2, 0) + jnp.moveaxis(mixed, 2, 1)
    size = jnp.arange(inner.shape[0])
    return (
        third * cube + second * mixed + jnp.zeros_like(cube).at[size, size, size].set(first * own)
    )


def gap_size(gap: Interval) -> Array:
    """Bound of the third derivative of :func:`log_gap`, by the logarithm of the gap E."""

    def ratio(x: Array) -> Array:  # E / (exp(E) - 1), decreasing
        return jnp.where(x > 1e-4, x / jnp.expm1(jnp.maximum(x, 1e-4)), 1.0 - 0.5 * x)

    b = piecewise(ratio, gap)
    rest = 1.0 - gap - b
    return magnitude(b) * magnitude(square(rest) - gap - b * rest)
