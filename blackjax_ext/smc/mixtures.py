r"""Normal mixtures fitted to weighted particles, to propose jumps between the clusters they form.

Components have diagonal covariances: in the coordinates of the particles, less their mean and
divided by the standard deviations of all, they are fitted by expectation and maximization from
centres that lie apart (k-means++). Variances are shrunk to those within all components, as if by
`STRENGTH` particles, and every component keeps a share of the proposals, so that a cluster of few
particles is one.

Cost: O(N D K) per iteration, without an evaluation of the density.

References: D. Arthur and S. Vassilvitskii 2007, k-means++; G. McLachlan and D. Peel 2000, Finite
Mixture Models.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.precision import exact_products
from blackjax_ext.smc import sampler

STRENGTH = 10.0  # particles' worth of the variances within all components


class Mixture(NamedTuple):
    """A mixture of K normals with diagonal covariances.

    Attributes
    ----------
    log_shares
        Logarithms of the shares of the components, shape (K,).
    means
        Shape (K, D).
    variances
        Shape (K, D).
    """

    log_shares: Array
    means: Array
    variances: Array

    def logpdf(self, x: Array) -> Array:
        """Log density up to a constant that is the same everywhere, (N, D) to (N,)."""

        def term(log_share: Array, mean: Array, variance: Array) -> Array:
            squares = jnp.sum(jnp.square(x - mean) / variance, axis=1)
            return log_share - 0.5 * (squares + jnp.sum(jnp.log(variance)))

        return jax.nn.logsumexp(jax.vmap(term)(*self), axis=0)

    def sample(self, rng_key: PRNGKey, num: int) -> Array:
        """Draws, shape (num, D)."""
        key_component, key_noise = jax.random.split(rng_key)
        which = jax.random.categorical(key_component, self.log_shares, shape=(num,))
        noise = jax.random.normal(key_noise, (num, self.means.shape[1]), self.means.dtype)
        return self.means[which] + jnp.sqrt(self.variances[which]) * noise


def fit(
    rng_key: PRNGKey, x: Array, log_weights: Array, scale: Array, num_components: int
) -> Mixture:
    """Mixture of `num_components` for particles (N, D), in units of `scale`, (D,)."""
    is_usable = jnp.isfinite(x).all(axis=1)
    log_weights = jnp.where(is_usable, sampler.guard(log_weights), -jnp.inf)
    log_weights = jnp.where(jnp.isneginf(log_weights).all(), 0.0, log_weights)
    weights, size = jax.nn.softmax(log_weights), sampler.effective_sample_size(log_weights)
    # squares of z lose no digits to a mean that is many standard deviations from zero
    centre = jnp.sum(weights[:, None] * jnp.where(is_usable[:, None], x, 0.0), axis=0)
    z = jnp.where(is_usable[:, None], (x - centre) / scale, 0.0)
    means = kmeans_plus_plus(rng_key, z, jnp.log(weights), num_components)
    first = Mixture(
        jnp.full(num_components, -jnp.log(num_components), x.dtype), means, jnp.ones_like(means)
    )

    def improve(_: Array, mixture: Mixture) -> Mixture:
        return improved(mixture, z, weights, size)

    mixture = jax.lax.fori_loop(0, 10, improve, first)
    means = centre + mixture.means * scale
    return Mixture(mixture.log_shares, means, mixture.variances * scale**2)


def kmeans_plus_plus(rng_key: PRNGKey, z: Array, log_weights: Array, num: int) -> Array:
    """`num` of the particles, each drawn in proportion to its distance from those before."""

    def choose(squares: Array, rng_key: PRNGKey) -> tuple[Array, Array]:
        # all at one place: any of them
        least = jnp.finfo(z.dtype).tiny
        i = jax.random.categorical(rng_key, log_weights + jnp.log(squares + least))
        return jnp.minimum(squares, jnp.sum(jnp.square(z - z[i]), axis=1)), z[i]

    far = jnp.full(z.shape[0], 1e12, z.dtype)
    chosen: Array = jax.lax.scan(choose, far, jax.random.split(rng_key, num))[1]
    return chosen


@exact_products
def improved(mixture: Mixture, z: Array, weights: Array, size: Array) -> Mixture:
    """One step of expectation and maximization; `size` is the effective number of particles.

    Squares are taken apart into products of matrices: fast, and with z around zero and products in
    full precision exact enough. Coarse ones lose the variances of a component: jumps that are
    proposed from far too wide a component are never accepted.
    """
    log_shares, means, variances = mixture
    squares = jnp.square(z)
    constants = jnp.sum(jnp.square(means) / variances + jnp.log(variances), axis=1)
    products = squares @ (1.0 / variances).T - 2.0 * z @ (means / variances).T
    shares = jax.nn.softmax(log_shares - 0.5 * (products + constants), axis=1) * weights[:, None]
    total = jnp.sum(shares, axis=0)
    per = shares / jnp.maximum(total, jnp.finfo(z.dtype).tiny)
    means = per.T @ z
    seconds = jnp.maximum(per.T @ squares - jnp.square(means), 0.0)
    within = total @ seconds
    count = (total * size)[:, None]
    variances = (count * seconds + STRENGTH * within) / (count + STRENGTH)
    log_shares = jnp.log(0.9 * total + 0.1 / total.size)  # a tenth for all components alike
    return Mixture(log_shares, means, jnp.maximum(variances, 1e-5))  # of that of all particles
