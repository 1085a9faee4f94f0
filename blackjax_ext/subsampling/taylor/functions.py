r"""Taylor coefficients of functions of one variable, as intervals over an interval.

Each function here returns the coefficients :math:`h_m = h^{(m)} / m!`, m = 0..M, over all of an
interval. Each of them is monotone between points that are known, its *turns*, so its values at the
ends and at the turns inside hold all others. What rounding may take from such a value is stated
with it: where a value is a difference of larger terms, in units of their sum. The constants of the
gamma functions are searched by tests against SciPy, in both precisions.

- Of :math:`\sigma(x) = 1/(1+e^{-x})` the derivatives are
  :math:`\sigma(1-\sigma) Q_m(\sigma)` with :math:`Q_1 = 1` and
  :math:`Q_{m+1} = (1-2s) Q_m + s(1-s) Q_m'`; turns of one are zeros of the next, all of which are
  real and in (0, 1).
- Of erf they are :math:`\frac{2}{\sqrt\pi} (-1)^{m-1} H_{m-1}(x) e^{-x^2}` with Hermite's
  polynomials, whose zeros are all real.
- Of :math:`\log\Phi`, the normal distribution function, they are polynomials in x and
  :math:`r = \varphi(x) / \Phi(x)`, from :math:`r' = -r (x + r)`. Their zeros, and how large they
  are anywhere, are constants found in double precision: far from zero each has the sign of its
  limit, of a derivative of :math:`-\log(-x)` on the left and of :math:`\varphi` on the right.
- Of log, of roots and of reciprocals they are powers, monotone on either side of zero.
- Of :math:`\log[\Gamma(a + y) / \Gamma(a)] = \sum_{j<y} \log(a + j)` with whole y, as a function of
  :math:`c = \log a`, they are :math:`\sum_k S(m, k) (-1)^{k-1} p_k` with Stirling's numbers of the
  second kind and :math:`p_k = (k-1)! \sum_{0<j<y} (a / (a+j))^k`, which rise in a, but for the
  term of j = 0, which is c. They also are sums of derivatives of softplus at
  :math:`c - \log j`, :math:`g_j Q_{m-1}(s_j)`, where :math:`|Q_1|, \dots, |Q_5| \le 1` on (0, 1):
  at most :math:`\sum g_j`.
- Of :math:`\log\Gamma` they are :math:`(-1)^m \zeta(m, x) / m` from m = 2 on, monotone for x > 0,
  and :math:`\psi` before, which rises; :math:`\log\Gamma` itself turns once, at 1.4616.

Where an interval leaves the domain of a function everything is unbounded.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import comb, factorial, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import digamma, gammaln, log_ndtr, zeta

from blackjax_ext.subsampling.intervals import Interval, around_all, outward, piecewise, points

Coefficients = list[Interval]
# what values of it and of its derivatives may lack, in eps of their terms: twice what was found
GAMMA_ROUNDING = 20.0
HALF_LOG_2PI = 0.9189385332046727


def where_known(is_known: Array, values: Coefficients) -> Coefficients:
    """The intervals where that is so, all numbers elsewhere."""
    return [
        Interval(jnp.where(is_known, v.low, -jnp.inf), jnp.where(is_known, v.high, jnp.inf))
        for v in values
    ]


def bounds_with_slack(
    value: Callable[[Array], tuple[Array, Array]], x: Interval, turns: Sequence[float] = ()
) -> Interval:
    """Values of a function that is monotone between its turns, with the size of its terms."""
    values, size = value(points(x, turns))
    slack = jnp.finfo(values.dtype).eps * size
    return around_all(values - slack, values + slack)


def times(x: Interval, factor: float) -> Interval:
    """The interval times a number."""
    return x * Interval(*[jnp.asarray(factor, x.low.dtype)] * 2)


def scaled(values: Sequence[Interval]) -> Coefficients:
    """Derivatives by their factorials."""
    return [
        derivative if m < 2 else times(derivative, 1.0 / factorial(m))
        for m, derivative in enumerate(values)
    ]


def integrated(value: Interval, slopes: Coefficients) -> Coefficients:
    """A value, and what follows from the coefficients of the derivative."""
    return [
        value,
        *(times(slope, 1.0 / m) if m > 1 else slope for m, slope in enumerate(slopes, 1)),
    ]


def horner(coefficients: Sequence[float], x: Array) -> tuple[Array, Array]:
    """A polynomial, highest power first, and the size of its terms."""
    value, size = jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients:
        value, size = value * x + c, size * jnp.abs(x) + abs(c)
    return value, size


def whole_power_of(x: Array, power: int) -> Array:
    """``x**power`` by products, each of which rounds once."""
    product = jnp.ones_like(x)
    for _ in range(power):
        product = product * x
    return product


def exp_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the exponential."""
    values = piecewise(jnp.exp, x)
    values = Interval(jnp.maximum(values.low, 0.0), values.high)
    return scaled([values] * (order + 1))


def inverse_power(x: Array, power: int) -> Array:
    """``x**-power``."""
    return 1.0 / whole_power_of(x, power)


def inverse_powers(x: Interval, order: int) -> Coefficients:
    """``x**-m``, m = 1..order."""
    return [piecewise(partial(inverse_power, power=m), x) for m in range(1, order + 1)]


def log_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the logarithm."""
    powers = enumerate(inverse_powers(x, order), 1)
    rest = [times(power, (-1.0) ** (m - 1) / m) for m, power in powers]
    return where_known(x.low > 0, [piecewise(jnp.log, x), *rest])


def reciprocal_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of one over x."""
    powers = enumerate(inverse_powers(x, order + 1))
    return where_known((x.low > 0) | (x.high < 0), [times(p, (-1.0) ** m) for m, p in powers])


def power_(x: Interval, order: int, power: int) -> Coefficients:
    """Taylor coefficients of a whole power that is not negative."""
    zeros = Interval(jnp.zeros_like(x.low), jnp.zeros_like(x.low))
    rest = [
        piecewise(partial(whole_power_of, power=power - m), x, [0.0])
        for m in range(min(order, power) + 1)
    ]
    coefficients = [times(value, float(comb(power, m))) for m, value in enumerate(rest)]
    return coefficients + [zeros] * max(order - power, 0)


def divided(function: Callable[[Array], Array], x: Array, power: int) -> Array:
    """``function(x) / x**power``, by quotients: a power that overflows would make nothing of it."""
    value = function(x)
    for _ in range(power):
        value = value / x
    return value


def root_(x: Interval, order: int, first: Callable[[Array], Array], power: float) -> Coefficients:
    """Taylor coefficients of a root, whose derivatives are the root over powers of x."""
    coefficients, factor = [], 1.0
    for m in range(order + 1):
        value = piecewise(partial(divided, first, power=m), x)
        coefficients.append(times(value, factor))
        factor *= (power - m) / (m + 1)
    return where_known(x.low > 0, coefficients)


def sqrt_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the square root."""
    return root_(x, order, jnp.sqrt, 0.5)


def rsqrt_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of one over the square root."""
    return root_(x, order, lambda at: 1.0 / jnp.sqrt(at), -0.5)


@cache
def logistic_polynomials(order: int) -> tuple[tuple[float, ...], ...]:
    """Q_1 to Q_order, highest power first."""
    polynomials = [np.poly1d([1.0])]
    s = np.poly1d([1.0, 0.0])
    while len(polynomials) < order:
        last = polynomials[-1]
        polynomials.append(np.poly1d([-2.0, 1.0]) * last + s * (1 - s) * last.deriv())
    return tuple(tuple(float(c) for c in polynomial.coeffs) for polynomial in polynomials)


@cache
def logistic_turns(order: int) -> tuple[float, ...]:
    """Turning points of the derivative of an order: zeros of the next."""
    zeros = np.sort(np.roots(logistic_polynomials(order + 1)[order]).real)
    return tuple(float(np.log(z) - np.log1p(-z)) for z in zeros)


def logistic_derivative(x: Array, order: int) -> tuple[Array, Array]:
    """Derivative of one order from one on, and the size of its terms."""
    s, rest = jax.nn.sigmoid(x), jax.nn.sigmoid(-x)
    value, size = horner(logistic_polynomials(order)[-1], s)
    return s * rest * value, 16.0 * s * rest * size


def logistic_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of ``1 / (1 + exp(-x))``."""
    rest = [
        bounds_with_slack(partial(logistic_derivative, order=m), x, logistic_turns(m))
        for m in range(1, order + 1)
    ]
    return scaled([piecewise(jax.nn.sigmoid, x), *rest])


def softplus_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of ``log(1 + exp(x))``, whose derivative is the logistic function."""
    return integrated(piecewise(jax.nn.softplus, x), logistic_(x, order - 1) if order else [])


def tanh_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the hyperbolic tangent, ``2 logistic(2 x) - 1``."""
    logistic = logistic_(times(x, 2.0), order)
    rest = [times(coefficient, 2.0 ** (m + 1)) for m, coefficient in enumerate(logistic)][1:]
    return [piecewise(jnp.tanh, x), *rest]


@cache
def hermite(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of Hermite's polynomial, highest first, and its zeros."""
    polynomial = np.polynomial.hermite.Hermite.basis(order).convert(kind=np.polynomial.Polynomial)
    zeros = np.polynomial.hermite.hermroots([0.0] * order + [1.0]) if order else np.zeros(0)
    return tuple(map(float, polynomial.coef[::-1])), tuple(float(z.real) for z in zeros)


def erf_derivative(x: Array, order: int) -> tuple[Array, Array]:
    """Derivative of one order from one on, and the size of its terms."""
    value, size = horner(hermite(order - 1)[0], x)
    weight, info = 2.0 / sqrt(np.pi) * jnp.exp(-x * x), jnp.finfo(x.dtype)
    # of a weight below the least float, what times a polynomial is above it
    most = weight * (1.0 + x * x) + info.tiny / info.eps
    return (-1.0) ** (order - 1) * weight * value, 16.0 * most * size


def erf_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the error function."""
    values = bounds_with_slack(lambda at: (jax.lax.erf(at), 16.0 * jnp.ones_like(at)), x)
    rest = [
        bounds_with_slack(partial(erf_derivative, order=m), x, hermite(m)[1])
        for m in range(1, order + 1)
    ]
    return scaled([values, *rest])


# of the derivatives of the logarithm of the normal distribution function, from the second one on:
# where each turns, and its least and greatest values, rounded outwards
LOG_NDTR_TURNS: tuple[tuple[float, ...], ...] = (
    (),
    (1.0023693422683695,),
    (-0.029833620926048632, 2.0712889388088733),
    (-0.8711321749894265, 1.2313322903511867, 2.7456390097167853),
    (-1.6336825100414343, 0.5990660045995972, 1.948972201638469, 3.274696365700306),
)
LOG_NDTR_RANGES = ((-1.0, 0.0), (0.0, 0.296), (-0.19, 0.115), (-0.251, 0.156), (-0.267, 0.446))


@cache
def log_ndtr_polynomial(order: int) -> tuple[tuple[int, int, int], ...]:
    """The derivative of an order as a sum of ``factor * x**i * r**j``: factor, i and j of each."""
    factors = {(0, 1): 1}
    for _ in range(order - 1):
        new: dict[tuple[int, int], int] = {}
        for (i, j), factor in factors.items():
            parts = [((i + 1, j), -j * factor), ((i, j + 1), -j * factor)]
            for place, more in [*parts, *([((i - 1, j), i * factor)] if i else [])]:
                new[place] = new.get(place, 0) + more
        factors = new
    return tuple((factor, i, j) for (i, j), factor in factors.items())


def log_ndtr_value(x: Array) -> tuple[Array, Array]:
    """The logarithm, and the size of its rounding and of what its series on the left leaves."""
    value = log_ndtr(x)
    left = jnp.where(x < -9.0, 210.0 / whole_power_of(jnp.minimum(x, -1.0), 8), 0.0)
    return value, 8.0 * (1.0 + jnp.abs(value)) + left / jnp.finfo(x.dtype).eps


def log_ndtr_derivative(x: Array, order: int) -> tuple[Array, Array]:
    """Derivative of one order from one on, and the size of its terms and their errors."""
    log_share, rounding = log_ndtr_value(x)
    ratio = jnp.exp(-0.5 * x * x - HALF_LOG_2PI - log_share)
    value, size = jnp.zeros_like(x), jnp.zeros_like(x)
    for factor, i, j in log_ndtr_polynomial(order):
        term = factor * whole_power_of(x, i) * whole_power_of(ratio, j)
        value, size = value + term, size + j * jnp.abs(term)
    info = jnp.finfo(x.dtype)
    return value, (rounding + 4.0 * (1.0 + x * x)) * size + info.tiny / info.eps * (1.0 + x * x)


def log_ndtr_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the log of the normal distribution function, up to the sixth order."""
    assert order <= 6
    derivatives = [bounds_with_slack(log_ndtr_value, x)]
    for m in range(1, order + 1):
        turns = LOG_NDTR_TURNS[m - 2] if m > 1 else ()
        derivative = bounds_with_slack(partial(log_ndtr_derivative, order=m), x, turns)
        least, most = LOG_NDTR_RANGES[m - 2] if m > 1 else (0.0, jnp.inf)
        derivatives.append(
            Interval(jnp.clip(derivative.low, least, most), jnp.clip(derivative.high, least, most))
        )
    return scaled(derivatives)


def digamma_value(x: Array) -> tuple[Array, Array]:
    """The function with the size of its terms, of which it is the difference near its zero."""
    value = digamma(x)
    return value, GAMMA_ROUNDING * (jnp.abs(value) + 1.0)


def lgamma_value(x: Array) -> tuple[Array, Array]:
    """The function with the size of its terms, of which it is the difference near its zeros."""
    value = gammaln(x)
    return value, GAMMA_ROUNDING * (jnp.abs(value) + x + 1.0)


def zeta_values(x: Array, powers: Sequence[int]) -> tuple[Array, Array]:
    r"""Hurwitz's zeta functions of whole powers from 2 on, and the size of their rounding.

    Along a first axis. Beyond ten thousand by the formula of Euler and Maclaurin, where JAX's
    underflows: what that leaves, of the order of :math:`x^{-4}` of the value, is below the
    rounding.
    """
    from_here = 1e4
    inverse, near = 1.0 / jnp.maximum(x, from_here), jnp.minimum(x, from_here)
    exponents = jnp.asarray(powers, x.dtype).reshape(-1, *[1] * x.ndim)
    values = zeta(*jnp.broadcast_arrays(exponents, near))
    rest = 1.0 / (exponents - 1.0) + inverse * (0.5 + exponents / 12.0 * inverse)
    far = jnp.stack([whole_power_of(inverse, power - 1) for power in powers]) * rest
    values = jnp.where(x > from_here, far, values)
    return values, 12.0 * values  # in eps: twice the error that was found


def polygamma_coefficients(x: Interval, order: int) -> Coefficients:
    """``polygamma(m, x) / m!``, which is plus or minus ``zeta(m + 1, x)``, m = 1..order."""
    if not order:
        return []
    values, size = zeta_values(points(x), range(2, order + 2))
    slack = jnp.finfo(values.dtype).eps * size
    every = [around_all(v - s, v + s) for v, s in zip(values, slack, strict=True)]
    return [times(interval, (-1.0) ** (m + 1)) for m, interval in enumerate(every, 1)]


def digamma_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the derivative of the log-gamma function, for positive x."""
    rest = polygamma_coefficients(x, order)
    return where_known(x.low > 0, [bounds_with_slack(digamma_value, x), *rest])


def lgamma_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of the log-gamma function, for positive x."""
    # where the log-gamma function turns
    values = bounds_with_slack(lgamma_value, x, [1.4616321449683622])
    return where_known(x.low > 0, integrated(values, digamma_(x, order - 1) if order else []))


def expm1_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of ``exp(x) - 1``."""
    return [piecewise(jnp.expm1, x), *exp_(x, order)[1:]]


def log1p_(x: Interval, order: int) -> Coefficients:
    """Taylor coefficients of ``log(1 + x)``."""
    values = piecewise(jnp.log1p, x)
    if x.low.dtype == jnp.float64:  # XLA's lose two digits near -0.4
        slack = 200.0 * jnp.finfo(jnp.float64).eps  # in double precision
        off_low, off_high = slack * jnp.abs(values.low), slack * jnp.abs(values.high)
        values = Interval(values.low - off_low, values.high + off_high)
    one = outward(1.0 + x.low, 1.0 + x.high)
    return where_known(x.low > -1, [values, *log_(one, order)[1:]])


@cache
def stirling_numbers(order: int) -> tuple[tuple[int, ...], ...]:
    """Stirling numbers of the second kind, S(m, k) for k = 0..m, m = 0..order."""
    rows: list[tuple[int, ...]] = [(1,)]
    for _ in range(order):
        last = (*rows[-1], 0)
        rows.append((0, *(k * last[k] + last[k - 1] for k in range(1, len(last)))))
    return tuple(rows)


def shares_to_powers(a: Interval, y: Array, order: int) -> Coefficients:
    """``(k - 1)!`` times the sums over 0 < j < y of ``(a / (a + j))^k``, k = 1..order."""
    at = points(a)
    places = jnp.stack([at + 1.0, at + jnp.maximum(y, 1.0)])
    every = [digamma_value(places)]
    if order > 1:
        every += zip(*zeta_values(places, range(2, order + 1)), strict=True)
    eps, powers = jnp.finfo(at.dtype).eps, []
    for k, (value, size) in enumerate(every, 1):
        scale = whole_power_of(at, k) * factorial(k - 1)
        sums = scale * (value[1] - value[0] if k == 1 else value[0] - value[1])
        slack = eps * scale * (size[0] + size[1])
        whole_range = around_all(sums - slack, sums + slack)
        powers.append(Interval(jnp.maximum(whole_range.low, 0.0), whole_range.high))
    return powers


def rising_(c: Interval, order: int, y: Array, most: Array) -> Coefficients:
    """Taylor coefficients of ``lgamma(exp(c) + y) - lgamma(exp(c))``, whole y, without its value.

    `most` is at least the sum of the bends, over each interval. Up to the sixth order.
    """
    assert order <= 6
    a, derivatives = exp_(c, 0)[0], [Interval(jnp.zeros_like(c.low), jnp.zeros_like(c.low))]
    powers = shares_to_powers(a, y, order)
    for m in range(1, order + 1):
        total = alternating(powers[:m], stirling_numbers(m)[m][1:])
        total = total + 1.0 if m == 1 else clipped(total, most)
        derivatives.append(jax.tree.map(lambda end: jnp.where(y > 0, end, 0.0), total))
    return scaled(derivatives)


def alternating(values: Sequence[Interval], factors: Sequence[int]) -> Interval:
    """The first value times its factor, less the second, and so on."""
    terms = [
        times(v, (-1.0) ** k * f) for k, (v, f) in enumerate(zip(values, factors, strict=True))
    ]
    return sum(terms[1:], terms[0])


def clipped(x: Interval, most: Array) -> Interval:
    """The numbers whose size is at most that."""
    return Interval(jnp.maximum(x.low, -most), jnp.minimum(x.high, most))
