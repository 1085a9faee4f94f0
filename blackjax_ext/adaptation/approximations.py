"""Normal approximations of a target, with a few draws weighted by importance.

The best of several has the largest importance-weighted bound of the log evidence (Burda et al.
2016), which counts the mass that a normal covers. The plain evidence lower bound does not serve: a
single draw where the log density is -1e20 decides it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.metrics import Dense, Factor
from blackjax_ext.types import LogDensity, select

__all__ = [
    "Approximation",
    "best_of",
    "finite",
    "negligible",
    "no_approximation",
    "sampled",
    "weigh",
]


class Approximation(NamedTuple):
    """A normal approximation of the target; several have leading axes.

    mean
        Its mean, shape (D,).
    metric
        Factor of its precision.
    draws
        A few draws from it, shape (S, D); its mean where the target is not finite.
    log_weights
        Log importance of each, shape (S,).
    """

    mean: Array
    metric: Any
    draws: Array
    log_weights: Array

    @property
    def evidence(self) -> Array:
        """Importance-weighted bound of the log evidence, -inf where there is no approximation."""
        total = jax.nn.logsumexp(self.log_weights, axis=-1)
        return finite(total - jnp.log(self.log_weights.shape[-1]))

    def draw(self, level: Array) -> Array:
        """One of the draws by importance, shape (D,): that at `level`, uniform on (0, 1)."""
        shares = jnp.cumsum(jax.nn.softmax(self.log_weights))
        return self.draws[jnp.minimum(jnp.sum(shares < level), self.log_weights.size - 1)]


def no_approximation(x: Array, metric: Factor) -> Approximation:
    """Before there is any; `metric` has the structure of those that will come."""
    num_draws = BUDGET.draws
    draws = jnp.tile(x, (num_draws, 1))
    return Approximation(x, metric, draws, jnp.full(num_draws, -jnp.inf, x.dtype))


def best_of(several: Approximation, before: Approximation) -> Approximation:
    """The best of several approximations and of one before them."""
    evidence = several.evidence
    top = jnp.argmax(evidence)
    best = jax.tree.map(lambda leaf: leaf[top], several)
    return select(evidence[top] > before.evidence, best, before)


def sampled(rng_key: Array, logdensity_fn: LogDensity, x: Array, metric: Dense) -> Approximation:
    """The normal N(x, G^-1) with draws from it, weighed by a log density at one after the other."""
    noise = jax.random.normal(rng_key, (BUDGET.draws, x.size), x.dtype)
    values = finite(jax.lax.map(logdensity_fn, x + metric.inverse_sqrt_times(noise)))
    return weigh(x, metric, noise, values)


def weigh(x: Array, metric: Any, noise: Array, values: Array) -> Approximation:
    """The normal N(x, G^-1) and its draws from `noise`, (S, D), with their log densities (S,)."""
    draws = x + metric.inverse_sqrt_times(noise)
    log_q = -0.5 * jnp.sum(noise**2, axis=1) + 0.5 * metric.log_det(x.size)
    log_weights = finite(values - log_q)
    is_usable = jnp.isfinite(log_weights)[:, None]
    return Approximation(x, metric, jnp.where(is_usable, draws, x), log_weights)


def negligible(x: Array | np.ndarray) -> float:
    """Difference of log evidence at which the lesser approximation does not matter."""
    return x.size + 10.0


def finite(values: Array) -> Array:
    """`values` with -inf for what is not finite."""
    return jnp.where(jnp.isfinite(values), values, -jnp.inf)
