"""One transition taken apart, for laws about what a sampler proposes."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin


def proposals(sampler, state, num_proposals, seed=0):
    """Proposals from `state`, shape (n, D), and their log ratios, shape (n,)."""

    def accept(rng_key, log_ratio, end_logdensity, end, start):
        return end, log_ratio, jnp.array(True), jnp.array(False)

    def one(key):
        new_state, info = sampler.step(key, state)
        return ravel_pytree(new_state.position)[0], info.acceptance_rate

    # every proposal is taken, and its log ratio comes out where the acceptance rate does
    with mock.patch.object(langevin, "accept", accept):
        keys = jax.random.split(jax.random.key(seed), num_proposals)
        ends, log_ratios = jax.jit(jax.vmap(one))(keys)
    return np.asarray(ends), np.asarray(log_ratios)


def run(sampler, state, num_steps, seed=1):
    """States of one chain, stacked."""

    def one(state, key):
        state, info = sampler.step(key, state)
        return state, (state, info)

    keys = jax.random.split(jax.random.key(seed), num_steps)
    return jax.jit(lambda state: jax.lax.scan(one, state, keys))(state)[1]


def gaussian_langevin(logdensity_fn, step_size, covariance_fn):
    """The log ratio of ``N(x + e^2/2 C(x) grad f(x), e^2 C(x))`` and its standardized noise."""
    gradient = jax.jit(jax.grad(logdensity_fn))

    def moments(x):
        covariance = np.asarray(covariance_fn(x))
        mean = x + 0.5 * step_size**2 * covariance @ np.asarray(gradient(x))
        return mean, step_size**2 * covariance

    def log_ratio(x, y):
        forward = scipy.stats.multivariate_normal.logpdf(y, *moments(x))
        backward = scipy.stats.multivariate_normal.logpdf(x, *moments(y))
        return float(logdensity_fn(y) - logdensity_fn(x)) + backward - forward

    def noise(x, y):
        mean, covariance = moments(x)
        return np.linalg.solve(np.linalg.cholesky(covariance), y - mean)

    return log_ratio, noise
