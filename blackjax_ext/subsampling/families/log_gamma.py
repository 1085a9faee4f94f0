r"""Remainders of Stirling's formula for log-gamma functions, with bounds.

With :math:`\alpha = e^c`, the functions

.. math::
    G(c) = \log\Gamma(\alpha) - \alpha c + \alpha, \qquad
    B(c) = \log\Gamma(\alpha) - \log\Gamma(\alpha + \tfrac12) + \tfrac12 c

have small derivatives by c where those of :math:`\log\Gamma` grow as :math:`\alpha \log\alpha`.
From :math:`\psi(\alpha) = \log\alpha - \frac1{2\alpha} - \frac1{12\alpha^2} + \dots` their second
and third derivatives tend to :math:`\pm 1/(12\alpha)` and :math:`\pm 1/(8\alpha)`, and these bounds
hold everywhere (their greatest values on a grid of 230,000 points, rounded up; beyond it the series
decides):

.. math::
    -1 < G' < -\tfrac12, \quad |G''| \le \min(0.115, \tfrac1{12\alpha}), \quad
    |G'''| \le \min(0.047, \tfrac1{12\alpha}), \quad
    |B'''| \le \min(0.0592, \tfrac1{8\alpha}).

In floats the series serves from ten on: a difference of log-gammas of a million has no digits.
Below, it serves ten steps further up,

.. math::
    \Gamma(\alpha) = \frac{\Gamma(\alpha + 10)}{\alpha (\alpha + 1) \cdots (\alpha + 9)}:

what remains is elementary, and so are its derivatives. Those of ``gammaln`` are sums of powers, and
take longer than all else that a test computes of a row.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.subsampling.intervals import Interval

SHIFT = 10  # steps up to where the series serves


def series(x: Array) -> Array:
    """``lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2`` for large x."""
    y = 1 / (x * x)
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y / 1680))) / x


def split(x: Array) -> tuple[Array, Array, Array]:
    """Whether x is large, x where it is not, and x or x + 10, for which the series serves."""
    is_large = x > 10.0
    small = jnp.where(is_large, 1.0, x)
    return is_large, small, jnp.where(is_large, x, small + SHIFT)


def along_steps(function: Callable[[Array], Array], x: Array) -> Array:
    """Sum of a function at x, x + 1, ..., x + 9."""
    # logarithms of a product would have a third derivative that is five times as far off
    return jnp.sum(function(x[..., None] + np.arange(SHIFT, dtype=x.dtype)), axis=-1)


def stirling_excess(c: Array) -> Array:
    """G(c)."""
    is_large, small, base = split(jnp.exp(c))
    up = small + SHIFT
    near = (up - 0.5) * jnp.log(up) - SHIFT - along_steps(jnp.log, small) - small * c
    return 0.5 * jnp.log(2 * jnp.pi) + series(base) + jnp.where(is_large, -0.5 * c, near)


def half_step(c: Array) -> Array:
    """B(c)."""
    is_large, small, base = split(jnp.exp(c))
    steps = along_steps(lambda x: jnp.log1p(0.5 / x), small)
    near = steps - 0.5 * jnp.log(small + SHIFT) + 0.5 * c
    return half_step_up(base) + jnp.where(is_large, 0.0, near)


def half_step_up(x: Array) -> Array:
    """``lgamma(x) - lgamma(x + 1/2) + log(x) / 2`` for large x."""
    # a half more: a (x - log1p(x)) with x = 1 / (2 a), and so on
    return 0.5 - x * jnp.log1p(0.5 / x) + series(x) - series(x + 0.5)


def stirling_derivatives(c: Interval) -> tuple[Interval, Interval, Interval]:
    """First, second and third derivative of G over an interval."""
    least = jnp.exp(c.low)
    second, third = (jnp.minimum(most, 0.0834 / least) for most in (0.115, 0.047))
    first = Interval(jnp.full_like(least, -1.0), jnp.full_like(least, -0.5))
    return first, Interval(-second, second), Interval(-third, third)


def half_step_third(c: Interval) -> Interval:
    """Third derivative of B over an interval."""
    third = jnp.minimum(0.0592, 0.1251 / jnp.exp(c.low))
    return Interval(-third, third)
