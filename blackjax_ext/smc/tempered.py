r"""Prior times likelihood to the power of a temperature, and the next temperature.

The targets are :math:`\gamma_\lambda(x) = p(x) \ell(x)^\lambda`. Prior and likelihood are evaluated
and differentiated apart, so that nothing is evaluated again when the temperature changes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array

from blackjax_ext.checks import check_scalar
from blackjax_ext.factoring import density_in_parts
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.structures import Dense, Diagonal
from blackjax_ext.precision import exact_products
from blackjax_ext.smc import sampler
from blackjax_ext.smc.proposals import GradientMode, ValueAndGradient, value_and_gradient
from blackjax_ext.types import LogDensity, Unravel

PARTICLES, COVARIANCE = "particles", "covariance"
UNWEIGHTED_SHARE = 1e-3


class PriorAndLikelihood(NamedTuple):
    """Log prior and log likelihood at the particles, with their gradients.

    Attributes
    ----------
    logprior
        Log density of the prior, shape (N,).
    loglikelihood
        Log likelihood, shape (N,).
    logprior_grad
        Gradient of the former, flat, shape (N, D); zero if the move needs none.
    loglikelihood_grad
        Gradient of the latter, likewise.
    """

    logprior: Array
    loglikelihood: Array
    logprior_grad: Array
    loglikelihood_grad: Array


class Tempered(NamedTuple):
    """Prior times likelihood to the power of a temperature.

    Attributes
    ----------
    evaluate
        ``(N, D) -> PriorAndLikelihood``; the temperature does not enter.
    temperature
        lambda, between 0 and 1.
    logdensity_fn
        The log density of one position, a pytree; a very low number where the density is zero.
    unravel
        From a flat position (D,) to a pytree.
    """

    evaluate: Callable[[Array], PriorAndLikelihood]
    temperature: Array
    logdensity_fn: LogDensity
    unravel: Unravel

    def logdensity(self, local: PriorAndLikelihood) -> Array:
        """Log density, shape (N,)."""
        return heat(self.temperature, local.logprior, local.loglikelihood)

    def log_ratio(self, start: PriorAndLikelihood, end: PriorAndLikelihood) -> Array:
        """Log density at the end less that at the start, (N,): great parts of both cancel first."""
        is_warm = self.temperature > 0
        likelihood = self.temperature * (end.loglikelihood - start.loglikelihood)
        return end.logprior - start.logprior + jnp.where(is_warm, likelihood, 0.0)

    def gradient(self, local: PriorAndLikelihood) -> Array:
        """Its gradient, shape (N, D)."""
        return heat(self.temperature, local.logprior_grad, local.loglikelihood_grad)


def heat(temperature: Array, prior: Array, likelihood: Array) -> Array:
    """``prior + temperature * likelihood``; `prior` at temperature 0, whatever the likelihood."""
    is_warm = temperature > 0
    return jnp.where(is_warm, prior + temperature * likelihood, prior)


def tempered(
    logprior_fn: LogDensity,
    loglikelihood_fn: LogDensity,
    temperature: Array,
    unravel: Unravel,
    differentiation: GradientMode,
) -> Tempered:
    """The tempered target; prior and likelihood are differentiated apart.

    The log density of one position is a number even where the density is zero: a Metropolis kernel
    rejects what leads there, and has no reason to call it divergent.
    """

    def logdensity_fn(position: ArrayTree) -> Array:
        value = heat(temperature, logprior_fn(position), loglikelihood_fn(position))
        # of the greatest number: differences of two such log densities are finite
        return jnp.where(jnp.isneginf(value), -0.1 * jnp.finfo(value.dtype).max, value)

    def flat(function: LogDensity) -> ValueAndGradient:
        function = density_in_parts(function, differentiation)
        return value_and_gradient(lambda x: check_scalar(function(unravel(x))), differentiation)

    def evaluate(x: Array) -> PriorAndLikelihood:
        logprior, logprior_grad = jax.vmap(flat(logprior_fn))(x)
        loglikelihood, loglikelihood_grad = jax.vmap(flat(loglikelihood_fn))(x)
        return PriorAndLikelihood(logprior, loglikelihood, logprior_grad, loglikelihood_grad)

    return Tempered(evaluate, temperature, logdensity_fn, unravel)


def tempered_loglikelihood(increment: Array, loglikelihood: Array) -> Array:
    """`increment` times `loglikelihood`; 0 times infinity is 0, and NaN stays NaN."""
    is_zero = (increment == 0) & ~jnp.isnan(loglikelihood)
    return jnp.where(is_zero, 0.0, increment * loglikelihood)


def next_temperature(
    temperature: Array,
    log_weights: Array,
    loglikelihood: Array,
    tempering_ess: Array | float,
    least_temperature: Array | float = 0.0,
    last_temperature: Array | float = 1.0,
) -> Array:
    """The largest temperature whose conditional effective sample size is `tempering_ess` times N.

    Found by bisection of its logarithm, since the first temperature is about one over the spread of
    the log likelihood, which is 1e10 for a wide prior and many rows. The upper end is taken: where
    the likelihood is zero for many particles no temperature above 0 will do, and the smallest one
    tried then removes them.
    """
    goal = tempering_ess * log_weights.shape[0]
    left = last_temperature - temperature
    differences, _ = sampler.shifted_log_factors(log_weights, loglikelihood)

    def is_far_enough(increment: Array) -> Array:
        return (
            sampler.conditional_ess(log_weights, tempered_loglikelihood(increment, differences))
            <= goal
        )

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        is_enough = is_far_enough(left * jnp.exp2(middle))
        return jnp.where(is_enough, low, middle), jnp.where(is_enough, middle, high)

    # powers of two; far enough from the smallest number for products with a likelihood
    lowest = jnp.full_like(left, 0.75 * jnp.finfo(left.dtype).minexp)
    _, power = jax.lax.fori_loop(0, 45, halve, (lowest, jnp.zeros_like(left)))
    increment = jnp.where(is_far_enough(left), left * jnp.exp2(power), left)
    raised = jnp.maximum(temperature + increment, least_temperature)
    is_end = (increment >= left) | (raised > last_temperature)
    return jnp.where(is_end, last_temperature, raised).astype(left.dtype)


def weighted(x: Array, log_weights: Array) -> tuple[Array, Array]:
    """Particles (N, D) that are finite, and their weights (N,), zero for those that were not."""
    is_usable = jnp.isfinite(x).all(axis=1)
    log_weights = jnp.where(is_usable, sampler.guard(log_weights), -jnp.inf)
    weights = jax.nn.softmax(jnp.where(jnp.isneginf(log_weights).all(), 0.0, log_weights))
    return jnp.where(is_usable[:, None], x, 0.0), weights


@exact_products  # of vectors: a TPU's are coarse, and a mean may be many sds from zero
def variances(x: Array, log_weights: Array) -> Array:
    """Variances (D,) of flat particles (N, D) by their weights, which need no normalization.

    One heavy particle has no variance: a little of the unweighted one is always mixed in.
    """
    x, weights = weighted(x, log_weights)
    distance = jnp.where((weights > 0)[:, None], x - weights @ x, 0.0)
    of_weights = weights @ jnp.square(distance)
    unweighted = jnp.var(x, axis=0)
    unweighted = jnp.where(jnp.isfinite(unweighted), unweighted, 1.0)
    variance = of_weights + UNWEIGHTED_SHARE * unweighted
    # a floor in the units of the coordinate: none that is absolute suits a narrow posterior
    return jnp.where(variance > 0, variance, jnp.square(1e-6 * jnp.max(jnp.abs(x), axis=0)) + 1e-30)


@exact_products
def covariance(x: Array, log_weights: Array) -> Dense:
    """Factor of the covariance of flat particles (N, D) by their weights. Cost: N D^2 + D^3.

    The correlations are those of the particles in units of their standard deviations, and their
    root is the symmetric one: that of eigenvectors alone has their signs, which rounding decides.
    """
    scale = jnp.sqrt(variances(x, log_weights))
    x, weights = weighted(x, log_weights)
    z = jnp.where((weights > 0)[:, None], (x - weights @ x) / scale, 0.0)
    about_mean = (x - jnp.mean(x, axis=0)) / scale
    products = (z.T * weights) @ z + UNWEIGHTED_SHARE * about_mean.T @ about_mean / x.shape[0]
    unit = jnp.sqrt(jnp.maximum(jnp.diagonal(products), jnp.finfo(x.dtype).tiny))
    correlation = products / jnp.outer(unit, unit)
    eye = jnp.eye(x.shape[1], dtype=x.dtype)
    is_known = jnp.isfinite(correlation).all()
    values, vectors = jnp.linalg.eigh(jnp.where(is_known, correlation, eye))
    # least eigenvalue of a correlation, in units of the rounding of a float in D dimensions
    least = 8.0 * x.shape[1] * jnp.finfo(x.dtype).eps
    values = jnp.maximum(values, least)
    root = scale[:, None] * ((vectors * jnp.sqrt(values)) @ vectors.T)
    inverse = (vectors / jnp.sqrt(values)) @ vectors.T / scale
    return Dense(root, inverse, -jnp.sum(jnp.log(values)) - 2.0 * jnp.sum(jnp.log(scale)))


def metric_option(inverse_mass_matrix: InverseMassMatrix | str) -> Factor | str:
    """The factor, or one of the two names; ValueError for anything else."""
    if not isinstance(inverse_mass_matrix, str):
        return factorize(inverse_mass_matrix)
    if inverse_mass_matrix not in (PARTICLES, COVARIANCE):
        raise ValueError(
            f"inverse_mass_matrix must be {PARTICLES!r}, {COVARIANCE!r}, None, an array of shape "
            f"(D,) or (D, D), or a factor; got {inverse_mass_matrix!r}."
        )
    return inverse_mass_matrix


def population_metric(
    inverse_mass_matrix: InverseMassMatrix | str, x: Array, log_weights: Array
) -> Factor:
    """Factor of the metric that shapes the moves of the particles x, (N, D)."""
    is_covariance = isinstance(inverse_mass_matrix, str) and inverse_mass_matrix == COVARIANCE
    num, size = x.shape
    # particles for each number in their covariance: with 2 the log evidence was off by 2
    if is_covariance and num >= 10 * size * (size + 1) // 2:
        return covariance(x, log_weights)
    if isinstance(inverse_mass_matrix, str):
        return Diagonal(jnp.sqrt(variances(x, log_weights)))
    return factorize(inverse_mass_matrix, x.shape[1])
