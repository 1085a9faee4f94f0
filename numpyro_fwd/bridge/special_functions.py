"""Fisher informations that need special functions, without the differences that lose digits."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import i0e, i1e, polygamma

__all__ = [
    "beta_information_root",
    "negative_binomial_information",
    "trigamma_excess",
    "von_mises_information",
]

# beyond them asymptotic series are more precise than differences in float32
LARGE_SHAPE = 10.0
LARGE_CONCENTRATION = 20.0
# nodes of the trapezoidal rule in the logarithm of the variable: the integrand falls off doubly
# exponentially to the right, and exponentially to the left
NODES = np.linspace(-14.0, 4.0, 41)


def trigamma_excess(a: Array) -> Array:
    """``psi'(a) - 1 / a``, which is about ``1 / (2 a^2)``."""
    a = jnp.asarray(a, float)
    is_large = a > LARGE_SHAPE
    large, small = jnp.where(is_large, a, LARGE_SHAPE), jnp.where(is_large, 1.0, a)
    series = 1 / (2 * large**2) + 1 / (6 * large**3) - 1 / (30 * large**5) + 1 / (42 * large**7)
    return jnp.where(is_large, series, polygamma(1, small) - 1 / small)


def beta_information_root(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Entries (1, 1), (1, 2) and (2, 2) of the upper root of a beta's information in (a, b).

    The information is ``diag(psi'(a), psi'(b)) - psi'(a + b)``, whose determinant cancels to the
    first order: with ``psi'(x) = 1 / x + excess(x)`` that order is left out.
    """
    total = a + b
    of_a, of_b, of_total = trigamma_excess(a), trigamma_excess(b), trigamma_excess(total)
    first = b / (a * total) + of_a - of_total
    cross = -(1 / total + of_total)
    determinant = (
        of_a * a / (b * total)
        + of_b * b / (a * total)
        + of_a * of_b
        - of_total * (total / (a * b) + of_a + of_b)
    )
    root = jnp.sqrt(first)
    return root, cross / root, jnp.sqrt(determinant / first)


def von_mises_information(concentration: Array) -> tuple[Array, Array]:
    """Information of a von Mises distribution about its location and its concentration."""
    k = jnp.asarray(concentration, float)
    is_large = k > LARGE_CONCENTRATION
    large = jnp.where(is_large, k, LARGE_CONCENTRATION)
    small = jnp.where(is_large | (k <= 0), 1.0, k)
    ratio = i1e(small) / i0e(small)  # the mean resultant length
    inverse = 1 / large
    series = inverse**2 * (1 / 2 + inverse * (1 / 4 + inverse * (3 / 8 + inverse * 25 / 32)))
    mean_length = 1 - inverse * (1 / 2 + inverse * (1 / 8 + inverse * (1 / 8 + inverse * 25 / 128)))
    of_location = jnp.where(is_large, large * mean_length, jnp.where(k > 0, small * ratio, 0.0))
    spread = jnp.where(k > 0, 1 - ratio / small - ratio**2, 0.5)
    return of_location, jnp.where(is_large, series, spread)


def negative_binomial_information(mean: Array, concentration: Array) -> Array:
    r"""Information about the concentration r of a negative binomial with a known mean m.

    From :math:`\psi'(x) = \int_0^\infty t e^{-xt} / (1 - e^{-t})\, dt` and the generating function
    of the counts it is :math:`\frac1r \int_0^\infty e^{-s} g(s)\, ds`, with :math:`x = s / r` and
    :math:`g = \frac{x}{1 - e^{-x}} (1 - (1 + \tfrac mr (1 - e^{-x}))^{-r}) - (1 - e^{-mx})`.
    """
    m, r = jnp.asarray(mean, float)[..., None], jnp.asarray(concentration, float)[..., None]
    s = jnp.exp(NODES)
    x = s / r
    fall = -jnp.expm1(-x)
    counted = -jnp.expm1(-r * jnp.log1p(m / r * fall))
    g = x / fall * counted + jnp.expm1(-m * x)
    integral = jnp.sum(s * jnp.exp(-s) * g, axis=-1) * (NODES[1] - NODES[0])
    return jnp.maximum(integral, 0.0) / r[..., 0]
