r"""Densities with their tails, for outcomes of which only a bound is known, or that were cut off.

Of a value that is censored on the right a model knows :math:`\log S(y)`, the logarithm of the
probability beyond y; on the left :math:`\log F(y)`; of one between two ends :math:`\log(S(a) -
S(b))`. A truncated density is divided by the probability of what is left of it. All of these are
written here so that they keep their digits where one minus a distribution function has none, and in
the parameters without ends, so that bounds of their derivatives are narrow.

NumPyro clips a distribution function before it takes the logarithm: in single precision its log
survival ends at -16. What is here goes on, as NumPyro's does in double precision down to -36.

For other distributions the tails are the logarithms of what their method `cdf` computes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import log_ndtr

from blackjax_ext.subsampling.taylor.functions import HALF_LOG_2PI
from blackjax_ext.types import Function


class Tails(NamedTuple):
    """Logarithms of a density and of the probabilities on either side of a value.

    Each is a function of the value and of the parameters without ends by name.
    """

    density: Callable[..., Array]
    below: Callable[..., Array]
    above: Callable[..., Array]


def log_of_rest(log_share: Array) -> Array:
    """The logarithm of one minus a share."""
    return jnp.log(-jnp.expm1(log_share))


def between(tails: Tails, low: Array, high: Array, **values: Array) -> Array:
    """Log probability between two ends."""
    above = tails.above(low, **values)
    return above + log_of_rest(tails.above(high, **values) - above)


def from_standard(standard: Tails, place: Function, log_slope: Function) -> Tails:
    """The tails of an outcome whose `place` has a standard law."""

    def density(y, **values):
        return standard.density(place(y, **values)) + log_slope(y, **values)

    return Tails(
        density,
        lambda y, **values: standard.below(place(y, **values)),
        lambda y, **values: standard.above(place(y, **values)),
    )


def of_location(standard: Tails) -> Tails:
    """Of a law with a location and a scale."""
    return from_standard(
        standard,
        lambda y, loc, log_scale: (y - loc) * jnp.exp(-log_scale),
        lambda y, loc, log_scale: -log_scale,
    )


NORMAL_TAILS = Tails(
    lambda z: -0.5 * jnp.square(z) - HALF_LOG_2PI, log_ndtr, lambda z: log_ndtr(-z)
)
LOGISTIC_TAILS = Tails(
    lambda z: -jax.nn.softplus(z) - jax.nn.softplus(-z),
    lambda z: -jax.nn.softplus(-z),
    lambda z: -jax.nn.softplus(z),
)
GUMBEL_TAILS = Tails(
    lambda z: -z - jnp.exp(-z),
    lambda z: -jnp.exp(-z),
    lambda z: log_of_rest(-jnp.exp(-z)),
)
# of the logarithm of a cumulated hazard, which rises by one in the time scale of a Weibull law
HAZARD = Tails(
    lambda u: u - jnp.exp(u),
    lambda u: log_of_rest(-jnp.exp(u)),
    lambda u: -jnp.exp(u),
)
TAILS: dict[type, Tails] = {
    dist.Exponential: from_standard(
        HAZARD,
        lambda y, log_rate: jnp.log(y) + log_rate,
        lambda y, log_rate: -jnp.log(y),
    ),
    dist.Gompertz: from_standard(
        HAZARD,
        lambda y, log_concentration, log_rate: (
            log_concentration + jnp.log(jnp.expm1(y * jnp.exp(log_rate)))
        ),
        # the slope of the logarithm of a hazard, log(b exp(by) / expm1(by))
        lambda y, log_concentration, log_rate: (
            log_rate - jnp.log(-jnp.expm1(-y * jnp.exp(log_rate)))
        ),
    ),
    dist.Gumbel: of_location(GUMBEL_TAILS),
    dist.LogNormal: from_standard(
        NORMAL_TAILS,
        lambda y, loc, log_scale: (jnp.log(y) - loc) * jnp.exp(-log_scale),
        lambda y, loc, log_scale: -log_scale - jnp.log(y),
    ),
    dist.Logistic: of_location(LOGISTIC_TAILS),
    dist.Normal: of_location(NORMAL_TAILS),
    dist.Weibull: from_standard(
        HAZARD,
        lambda y, log_scale, log_concentration: (
            (jnp.log(y) - log_scale) * jnp.exp(log_concentration)
        ),
        lambda y, log_scale, log_concentration: log_concentration - jnp.log(y),
    ),
}


def tails_of_cdf(density: Callable[..., Array], law: Callable[..., Any]) -> Tails:
    """Those that the distribution function of ``law(**values)`` gives."""
    return Tails(
        density,
        lambda y, **values: jnp.log(law(**values).cdf(y)),
        lambda y, **values: jnp.log1p(-law(**values).cdf(y)),
    )
