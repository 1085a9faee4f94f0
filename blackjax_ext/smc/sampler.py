r"""Weighted populations: weigh, resample where the weights are uneven, keep the log evidence.

A population is N particles :math:`x_j` with weights :math:`W_j` that sum to one, and an estimate
:math:`\hat Z`. It represents an unnormalized density :math:`\gamma` if for every function f

.. math::
    E\left[\hat Z \sum_j W_j f(x_j)\right] = \int f(x) \gamma(x)\, dx,

which for :math:`f = 1` says that :math:`\hat Z` is an unbiased estimate of the evidence
:math:`Z = \int \gamma`. Two operations keep it true:

*Weighing.* With factors :math:`w_j` let :math:`s = \sum_j W_j w_j`, then
:math:`\hat Z \leftarrow \hat Z s` and :math:`W_j \leftarrow W_j w_j / s`, so that
:math:`\hat Z W_j` is multiplied by :math:`w_j`. Weights accumulate: nothing is forgotten between
two resamplings.

*Resampling.* Indices with :math:`E[\#\{i : a_i = j\}] = N W_j` and weights 1/N after it leave every
such expectation as it is, also if it depends on the weights whether to resample: the decision is
fixed before the indices are drawn.

Particles whose weight is NaN get weight zero. If all have, :math:`\hat Z = 0` from then on and
the weights start over at 1/N.

*Genealogy.* Every particle descends from one of the N draws of the prior. With :math:`G_k` the sum
of the weights of the descendants of draw k, :math:`1 / \sum_k G_k^2` is the genealogical effective
sample size, and

.. math::
    V = \sum_{\text{weighings}} \Big( \sum_k G_k^2 \text{ after} - \sum_k G_k^2 \text{ before} \Big)

estimates the variance of :math:`\hat Z / Z` from one run. For independent draws that are weighed
once it is :math:`\sum_k (W_k - 1/N)^2`. With multinomial resampling it is the estimate of Lee and
Whiteley up to O(1/N) of itself: there resampling raises the mean of :math:`\sum_k G_k^2` by
:math:`(1 - \sum_k G_k^2) / N`, which their factor :math:`(N / (N - 1))^n` takes away. To leave out
what resampling did, as here, serves every scheme. It fails where few draws are the ancestors of
all, since :math:`\sum_k G_k^2` cannot exceed 1.

Only differences from the greatest factor enter the weights, so that factors of any magnitude keep
the digits in which they differ: the logarithm of a weight, some units, is never added to the
logarithm of a factor of :math:`10^9`, which in single precision would lose it.

References: P. Del Moral, A. Doucet and A. Jasra 2006, Sequential Monte Carlo samplers; Y. Zhou,
A. Johansen and J. Aston 2016, Toward automatic model comparison (conditional ESS); A. Lee and
N. Whiteley 2018, Variance estimation in the particle filter.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.smc.resampling import systematic
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree


class Population(NamedTuple):
    """Weighted particles.

    Attributes
    ----------
    particles
        Pytree whose leaves lead with N: positions, and what is known at them.
    log_weights
        Logarithms of the normalized weights, shape (N,).
    log_evidence
        Logarithm of the estimate of the evidence.
    """

    particles: ArrayTree
    log_weights: Array
    log_evidence: Array


def guard(log_weights: Array) -> Array:
    """`log_weights` with -inf in place of NaN and +inf, which are no logarithms of weights."""
    return jnp.where(jnp.isnan(log_weights) | jnp.isposinf(log_weights), -jnp.inf, log_weights)


def shifted_log_factors(log_weights: Array, log_factors: Array) -> tuple[Array, Array]:
    """Log factors less the greatest of them at a particle with a weight, and that one.

    That one is 0 if no particle with a weight has a factor. See :func:`guard`.
    """
    log_factors = guard(log_factors)
    peak = jnp.max(jnp.where(jnp.isneginf(guard(log_weights)), -jnp.inf, log_factors))
    peak = jnp.where(jnp.isneginf(peak), 0.0, peak)
    # a particle above the peak has no weight; twice its difference could overflow
    return jnp.minimum(log_factors - peak, 0.0), peak


def update_weights(population: Population, log_factors: Array) -> Population:
    """`population` with weights multiplied by factors, and the evidence by their weighted mean."""
    differences, peak = shifted_log_factors(population.log_weights, log_factors)
    log_weights = guard(population.log_weights + differences)
    total = jax.nn.logsumexp(log_weights)
    uniform = jnp.full_like(log_weights, -jnp.log(log_weights.shape[0]))
    return Population(
        population.particles,
        jnp.where(jnp.isneginf(total), uniform, log_weights - total),
        population.log_evidence + (peak + total),
    )


def effective_sample_size(log_weights: Array) -> Array:
    """``1 / sum_j W_j^2``, between 1 and N (eq. 4 of the paper on partial networks)."""
    log_weights = jax.nn.log_softmax(guard(log_weights))
    return jnp.exp(-jax.nn.logsumexp(2.0 * log_weights))


def conditional_ess(log_weights: Array, log_factors: Array) -> Array:
    r""":math:`N (\sum_j W_j w_j)^2 / \sum_j W_j w_j^2`: what weighing costs, whatever the weights.

    It is N where the factors are equal, and the effective sample size where the weights are.
    """
    differences, _ = shifted_log_factors(log_weights, log_factors)
    first = jax.nn.logsumexp(log_weights + differences)
    second = jax.nn.logsumexp(log_weights + 2.0 * differences)
    size = log_weights.shape[0]
    return jnp.where(jnp.isneginf(first), 0.0, size * jnp.exp(2.0 * first - second))


def softened(log_weights: Array, log_factors: Array, share: float) -> tuple[Array, Array]:
    """Log factors to the largest power at which `share` of the conditional ESS is left, and it.

    The power is 1 if the factors leave as much by themselves, and for a share of 0.
    """
    differences, peak = shifted_log_factors(log_weights, log_factors)
    goal = share * log_weights.shape[0]

    def power_of(log_power: Array) -> tuple[Array, Array]:
        power = jnp.exp2(log_power)
        return power, conditional_ess(log_weights, soft(power, differences)) >= goal

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        is_even = power_of(middle)[1]
        return jnp.where(is_even, middle, low), jnp.where(is_even, high, middle)

    zero = jnp.zeros((), differences.dtype)
    # powers of two: below 2^-40 factors change nothing
    low, _ = jax.lax.fori_loop(0, 30, halve, (zero - 40.0, zero))
    power = jnp.where(power_of(zero)[1], 1.0, jnp.exp2(low))
    return soft(power, differences) + power * peak, power


def soft(power: Array, differences: Array) -> Array:
    """`differences` times a power; those of weightless particles stay -inf."""
    return jnp.where(jnp.isneginf(differences), -jnp.inf, power * differences)


def concentration(log_weights: Array, ancestors: Array, num_ancestors: int) -> Array:
    """Sum over the draws of the prior of the squared weight of their descendants: 1/N to 1.

    `ancestors` has the index of the draw that each particle descends from, below `num_ancestors`.
    """
    weights = jnp.exp(log_weights)
    return jnp.sum(jnp.zeros(num_ancestors, weights.dtype).at[ancestors].add(weights) ** 2)


def correlation(log_weights: Array, first: Array, second: Array) -> Array:
    """Correlation by the weights of two numbers of each particle, shape (N,).

    Among the particles at which both are finite; 0 where one of them does not vary.
    """
    is_known = jnp.isfinite(first) & jnp.isfinite(second)
    weights = jnp.where(is_known, jnp.exp(guard(log_weights)), 0.0)
    weights = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)

    def standardized(values: Array) -> Array:
        values = jnp.where(weights > 0, values, 0.0)
        distance = jnp.where(weights > 0, values - jnp.sum(weights * values), 0.0)
        # squares of numbers that a log likelihood may have would be infinite
        distance = distance / jnp.maximum(jnp.max(jnp.abs(distance)), 1e-30)
        return distance / jnp.sqrt(jnp.maximum(jnp.sum(weights * distance**2), 1e-30))

    return jnp.sum(weights * standardized(first) * standardized(second))


def resample(rng_key: PRNGKey, population: Population, num: int | None = None) -> Population:
    """Draw `num` particles (N of them if None) in proportion to the weights, which become equal.

    The cumulative sum of the weights can end below 1, or begin with zeros, and the systematic
    scheme then returns a particle that has no weight: it is replaced by the heaviest.
    """
    weights = jnp.exp(population.log_weights)
    num = weights.shape[0] if num is None else num
    indices = systematic(rng_key, weights, num)
    indices = jnp.where(weights[indices] > 0, indices, jnp.argmax(weights))
    return Population(
        jax.tree.map(lambda leaf: leaf[indices], population.particles),
        jnp.full((num,), -jnp.log(num), population.log_weights.dtype),
        population.log_evidence,
    )


def resample_below(
    rng_key: PRNGKey, population: Population, ess_threshold: float
) -> tuple[Population, Array]:
    """`population`, resampled if its effective sample size is below `ess_threshold` times N.

    The second value says whether it was.
    """
    size = population.log_weights.shape[0]
    is_low = effective_sample_size(population.log_weights) < ess_threshold * size
    population = jax.lax.cond(
        is_low,
        lambda population: resample(rng_key, population),
        lambda population: population,
        population,
    )
    return population, is_low


def ravel(particles: ArrayTree) -> tuple[Array, Callable[[Array], ArrayTree]]:
    """Flat positions (N, D), and the map from one of them, (D,), back to a pytree."""
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))[1]
    return jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(particles), unravel
