r"""Whether a population has missed mass that lies further up: a look past temperature 1.

Where a narrow spike stands in a broad slab, the slab holds nearly all of the tempered mass until
the spike suddenly does: a phase transition of first order. Particles that stay in the slab give an
evidence that is too low by nats and fits itself: their weights stay even, and all their families
live. But cooled on, to :math:`p\, \ell^\lambda` with :math:`\lambda > 1`, the slab shrinks around
its top and particles fall into the spike.

The normal q with the mean of the cooled particles and :math:`\lambda` times their covariance is
about as wide as the posterior is there. Draws from it weigh, without bias, the evidence of the
place R within some of its standard deviations,

.. math::
    m = \frac{1}{\hat Z} E_q\left[\frac{\gamma(y)}{q(y)} 1_R(y)\right].

Of the population at temperature 1 the share f is in R. If it is right f is m, whatever the form of
the posterior. If not, the evidence is :math:`1 - f + m` times what it gave.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.metrics.factor import Factor
from blackjax_ext.smc.tempered import COVARIANCE, population_metric

COLDEST = 8.0  # the last temperature: a normal is then a third as wide


class Place(NamedTuple):
    """Where cooled particles are, and a normal as wide as the posterior there.

    Attributes
    ----------
    mean
        Shape (D,).
    metric
        Factor of the covariance of the cooled particles.
    temperature
        By which it is multiplied.
    """

    mean: Array
    metric: Factor
    temperature: Array

    def draws(self, rng_key: PRNGKey, num: int) -> Array:
        """Draws of the normal, shape (num, D)."""
        noise = jax.random.normal(rng_key, (num, self.mean.size), self.mean.dtype)
        return self.mean + jnp.sqrt(self.temperature) * self.metric.inverse_sqrt_times(noise)

    def squares(self, x: Array) -> Array:
        """Squared distances of points (N, D) from the mean in standard deviations, shape (N,)."""
        return jnp.sum(self.metric.sqrt_times(x - self.mean) ** 2, axis=1) / self.temperature

    def is_inside(self, x: Array) -> Array:
        """Which of the points (N, D) are in the place, shape (N,)."""
        size = self.mean.size
        # sds of the squared distance from the centre of a normal, which a place ends at
        is_near: Array = self.squares(x) < size + 4.0 * (2.0 * size) ** 0.5
        return is_near

    def logpdf(self, x: Array) -> Array:
        """Log density of the normal at points (N, D), shape (N,)."""
        size = self.mean.size
        constant = self.metric.log_det(size) - size * jnp.log(2.0 * jnp.pi * self.temperature)
        return 0.5 * (constant - self.squares(x))


def place_of(x: Array, temperature: Array) -> Place:
    """The place of particles (N, D) of equal weights at a temperature."""
    zeros = jnp.zeros(x.shape[:1], x.dtype)
    return Place(jnp.mean(x, axis=0), population_metric(COVARIANCE, x, zeros), temperature)


def missed_evidence(share: float, log_weights: np.ndarray) -> float:
    r"""What a place adds to the log evidence at least, :math:`\log(1 - f + m)`.

    Parameters
    ----------
    share
        f, the share of the particles at temperature 1 that are in the place.
    log_weights
        Logarithms of gamma / (q Z), Z being the estimate of the evidence, at draws from q; -inf
        outside of the place.

    Returns
    -------
    The logarithm with m less three standard errors; -inf if that is nothing and all particles are
    in the place.
    """
    values = np.where(np.isnan(log_weights), -np.inf, np.asarray(log_weights, np.float64))
    top = np.max(values, initial=-np.inf)
    if np.isneginf(top):
        return float(np.log1p(-share)) if share < 1 else -np.inf
    weights = np.exp(values - top)
    # three standard errors are taken off the mass of a place
    least = weights.mean() - 3.0 * weights.std() / weights.size**0.5
    with np.errstate(divide="ignore"):
        return float(np.logaddexp(np.log1p(-share), top + np.log(max(least, 0.0))))
