r"""Families of rows that see the position only through a linear predictor, with bounds.

For a row with response :math:`y` and predictor :math:`\eta \in \mathbb{R}^K` write
:math:`\phi(\eta) = -\log p(y | \eta)`. A family bounds the derivatives of :math:`\phi` over all
:math:`\eta`, as symmetric multilinear forms in the Euclidean norm:

.. math::
    |D^m \phi(\eta)[v_1, \dots, v_m]| \le M_m |v_1| \cdots |v_m|, \qquad m = 2, 3.

It is enough to bound :math:`D^m \phi[v, \dots, v]`: in a Euclidean norm the greatest value of a
symmetric form is taken on the diagonal (Banach 1938). With K predictors and a density that is a
product over them, :math:`|\sum_k \phi_k^{(m)} v_k^m| \le \max_k M_{m,k} \sum_k |v_k|^m \le
\max_k M_{m,k} |v|^m` for :math:`m \ge 2`, so the bound is the greatest of those of the factors.

A family also says how far from a point a Gauss-Legendre rule integrates its derivatives to the
digits of a float: a fraction of the distance to the nearest complex singularity.

Without a bound there is no family here. Under a log link (Poisson, gamma, exponential,
negative binomial by its mean) all derivatives grow as :math:`e^\eta`; the Laplace density has a
kink; a scale that is sampled makes the curvature :math:`1/s^2` unbounded.

Reference: S. Banach 1938, Über homogene Polynome in (L²).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.checks import check_not_negative, check_positive

__all__ = [
    "Family",
    "Kind",
    "bernoulli",
    "binomial",
    "categorical",
    "logistic",
    "negative_binomial",
    "normal",
    "smoothed_laplace",
    "student_t",
]

Number: TypeAlias = Array | float
# greatest value of s (1 - s) (1 - 2 s), at s = 1/2 - 1/(2 sqrt 3)
SKEWNESS = 1.0 / (6.0 * np.sqrt(3.0))


@dataclass(frozen=True)
class Kind:
    """The functions of a family, for one row. Hashable, so a static part of a program.

    Attributes
    ----------
    name
        What errors call it.
    loss
        ``loss(eta, y, **parameters)``, minus the log density up to a constant, for the predictors
        of one row, shape (K,).
    bounds
        ``bounds(y, **parameters) -> (M_2, M_3)``, for predictors in units of `unit`.
    reach
        ``reach(**parameters)``, the change of a predictor within which quadrature is accurate.
    unit
        ``unit(**parameters)``, in which `bounds` measure a change of a predictor: a scale, so that
        its third power, which no float may hold, is never taken.
    is_shift_invariant
        Whether the loss depends on differences of the predictors of a response alone.
    """

    name: str
    loss: Callable[..., Array]
    bounds: Callable[..., tuple[Number, Number]]
    reach: Callable[..., Number]
    unit: Callable[..., Number] = lambda **parameters: 1.0
    is_shift_invariant: bool = False

    def call(self, eta: Array, y: Array, parameters: Mapping[str, Array]) -> Array:
        """Loss of one response, with its parameters by name."""
        return self.loss(eta, y, **parameters)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Family:
    """A kind of response, with its known parameters.

    Attributes
    ----------
    kind
        Its functions.
    parameters
        Known parameters by name, each a number or an array with a value per row, shape (N,).
    """

    kind: Kind = field(metadata={"static": True})
    parameters: Mapping[str, Any]


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` with derivatives in the sigmoid: one exponential for all of them."""
    return jax.nn.softplus(x)


softplus.defjvps(lambda tangent, _, x: tangent * jax.nn.sigmoid(x))


def logistic_loss(eta: Array, count: Number, successes: Number) -> Array:
    r""":math:`n \log(1 + e^\eta) - y \eta`."""
    return count * softplus(eta[0]) - successes * eta[0]


def logistic_bounds(count: Number) -> tuple[Number, Number]:
    """Of :func:`logistic_loss`."""
    return 0.25 * count, SKEWNESS * count


def bernoulli() -> Family:
    r"""Zero or one, with :math:`P(y = 1) = s = 1 / (1 + e^{-\eta})`.

    *Bounds.* :math:`\phi'' = s(1-s) \le 1/4` and :math:`\phi''' = s(1-s)(1-2s)`, whose derivative
    in :math:`s`, :math:`1 - 6s + 6s^2`, is zero at :math:`s = \frac12 \pm \frac{1}{2\sqrt3}`: there
    :math:`s(1-s) = 1/6` and :math:`|1-2s| = 1/\sqrt3`, so :math:`|\phi'''| \le 1/(6\sqrt3)`.
    """
    return Family(BERNOULLI, {})


BERNOULLI = Kind(
    "bernoulli",
    lambda eta, y: logistic_loss(eta, 1.0, y),
    lambda y: logistic_bounds(1.0),
    lambda: 1.0,
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
    lambda eta, y, total_count: logistic_loss(eta, total_count, y),
    lambda y, total_count: logistic_bounds(total_count),
    lambda total_count: 1.0,
)


def negative_binomial(total_count: Any) -> Family:
    r"""Counts with :math:`p(y) \propto s^y (1-s)^n`, by their log odds (not by their mean).

    *Bounds.* :math:`\phi = (n + y) \log(1 + e^\eta) - y \eta`: n + y times those of
    :func:`bernoulli`.
    """
    check_positive("total_count", total_count)
    return Family(NEGATIVE_BINOMIAL, {"total_count": total_count})


NEGATIVE_BINOMIAL = Kind(
    "negative_binomial",
    lambda eta, y, total_count: logistic_loss(eta, total_count + y, y),
    lambda y, total_count: logistic_bounds(total_count + y),
    lambda total_count: 1.0,
)


def categorical() -> Family:
    r"""One of K classes with logits :math:`\eta`; the response is its number.

    *Bounds.* Derivatives of :math:`\log \sum_k e^{\eta_k}` along :math:`v` are the cumulants of
    :math:`v_C` with :math:`C` drawn from :math:`\mathrm{softmax}(\eta)`. With the range
    :math:`R = \max v - \min v \le \sqrt2 |v|`, the variance is at most :math:`R^2/4 \le |v|^2/2`.
    The third central moment is, for a given mean, linear in the law of :math:`v_C`, hence greatest
    at an extreme law, which has two values :math:`a < b`: :math:`(b-a)^3 p(1-p)(1-2p)`. So it is at
    most :math:`R^3 / (6\sqrt3) \le 2^{3/2} |v|^3 / (6\sqrt3)`.

    *Shifts.* :math:`\phi(\eta + c 1) = \phi(\eta)`, so derivatives along v are those along
    :math:`C v = v - \bar{v} 1`, and :math:`|v|` in the bounds may be :math:`|C v|`. Without a class
    of reference the sum of the logits is known from the prior alone: it is as wide as that, and
    changes nothing. Bounds by :math:`|v|` would count it.
    """
    return Family(CATEGORICAL, {})


CATEGORICAL = Kind(
    "categorical",
    lambda eta, y: jax.nn.logsumexp(eta) - eta[y],
    lambda y: (0.5, 2.0**1.5 * SKEWNESS),
    lambda: 0.5,
    is_shift_invariant=True,
)


def normal(scale: Any) -> Family:
    r"""Normal with mean :math:`\eta` and a known scale s.

    *Bounds.* :math:`\phi'' = 1/s^2` and :math:`\phi''' = 0`.
    """
    check_positive("scale", scale)
    return Family(NORMAL, {"scale": scale})


NORMAL = Kind(
    "normal",
    lambda eta, y, scale: 0.5 * jnp.square((y - eta[0]) / scale),
    lambda y, scale: (1.0, 0.0),
    lambda scale: jnp.inf,
    lambda scale: scale,
)


def student_t(df: Any, scale: Any) -> Family:
    r"""Student's t with location :math:`\eta`, known degrees of freedom and scale s.

    *Bounds.* With :math:`x = (y - \eta) / (s \sqrt\nu) = \tan\theta`,
    :math:`\phi = \frac{\nu+1}{2} \log(1 + x^2)`. Then :math:`s^2 \phi'' = \frac{\nu+1}{\nu}
    (1-x^2)/(1+x^2)^2`, from 1 at :math:`x = 0` down to -1/8 at :math:`x^2 = 3` times
    :math:`\frac{\nu+1}{\nu}`. And :math:`s^3 |\phi'''| = (\nu+1) \nu^{-3/2}
    |2x(3-x^2)/(1+x^2)^3| = (\nu+1) \nu^{-3/2} |2 \sin 3\theta \cos^3\theta|`, because
    :math:`\sin 3\theta = \cos^3\theta (3\tan\theta - \tan^3\theta)`. The derivative of the last
    factor is :math:`6 \cos^2\theta \cos 4\theta`, zero at :math:`\theta = \pi/8`, where it is
    :math:`2\cos^4(\pi/8) = \frac12 (1 + 1/\sqrt2)^2`, and at :math:`3\pi/8`, where it is less.
    """
    check_positive("df", df)
    check_positive("scale", scale)
    return Family(STUDENT_T, {"df": df, "scale": scale})


STUDENT_T = Kind(
    "student_t",
    lambda eta, y, df, scale: 0.5 * (df + 1) * jnp.log1p(jnp.square((y - eta[0]) / scale) / df),
    lambda y, df, scale: (
        (df + 1) / df,
        0.5 * (1 + 2**-0.5) ** 2 * (df + 1) * df**-1.5,
    ),
    lambda df, scale: 0.5 * df**0.5 * scale,
    lambda df, scale: scale,
)


def logistic(scale: Any) -> Family:
    r"""Logistic density with location :math:`\eta` and known scale s: tails as Laplace's, smooth.

    *Bounds.* With :math:`u = (y - \eta)/s`, :math:`\phi = u + 2 \log(1 + e^{-u})`: twice the bounds
    of :func:`bernoulli` over :math:`s^2` and :math:`s^3`.
    """
    check_positive("scale", scale)
    return Family(LOGISTIC, {"scale": scale})


LOGISTIC = Kind(
    "logistic",
    lambda eta, y, scale: logistic_loss((eta - y) / scale, 2.0, 1.0),
    lambda y, scale: (0.5, 2.0 * SKEWNESS),
    lambda scale: 1.0 * scale,
    lambda scale: scale,
)


def smoothed_laplace(scale: Any, width: Any) -> Family:
    r"""Laplace's density with its kink rounded off: :math:`\phi = \sqrt{\delta^2 + e^2} / s`.

    Here :math:`e = y - \eta`, and `width` is :math:`\delta`.

    *Bounds.* :math:`s \phi'' = \delta^2 (\delta^2 + e^2)^{-3/2} \le 1/\delta`. With
    :math:`x = e/\delta`, :math:`s \delta^2 |\phi'''| = 3 |x| (1+x^2)^{-5/2}`, whose derivative has
    the sign of :math:`1 - 4x^2`: greatest at :math:`x = \frac12`, with the value
    :math:`\frac32 (4/5)^{5/2} = 48 / (25\sqrt5)`.
    """
    check_positive("scale", scale)
    check_positive("width", width)
    return Family(SMOOTHED_LAPLACE, {"scale": scale, "width": width})


SMOOTHED_LAPLACE = Kind(
    "smoothed_laplace",
    # the change from the value at e = 0, without its rounding
    lambda eta, y, scale, width: (
        jnp.square(y - eta[0]) / (scale * (width + jnp.sqrt(width**2 + jnp.square(y - eta[0]))))
    ),
    lambda y, scale, width: (width / scale, 48 / (25 * 5**0.5) * (width / scale)),
    lambda scale, width: 0.5 * width,
    lambda scale, width: width,
)
