r"""Backward kernels: what makes unadjusted moves exact in their weights.

A proposal draws a momentum :math:`p` with density :math:`\mathcal{N}(p)` and maps :math:`(x, p)`
one to one and with Jacobian 1 to the end :math:`x'` and a momentum :math:`m` there
(:mod:`blackjax_ext.smc.proposals`). Choose any normalized density :math:`\ell(m | x')`. If the
particles represent :math:`\gamma` before the move, then

.. math::
    E\left[\hat Z \sum_j W_j w_j f(x'_j)\right] = \int \gamma(x) \mathcal{N}(p)
    w(x, p)\, f(x')\, dx\, dp = \int \gamma'(x')\, \ell(m | x')\, f(x')\, dx'\, dm
    = \int \gamma'(x')\, f(x')\, dx'

for the weight

.. math::
    w = \frac{\gamma'(x')}{\gamma(x)} \cdot \frac{\ell(m | x')}{\mathcal{N}(p)},

so that they represent :math:`\gamma'` after it: the weight (6) of the paper on partial networks
with :math:`L(x | x') / q(x' | x)` written in momenta, where the powers of :math:`\epsilon` and the
determinant of the metric cancel. Each function here returns the logarithm of the second fraction,
shape (N,).

The first equality needs :math:`\gamma > 0` wherever :math:`\ell` leads back to. All three kernels
lead everywhere: where a likelihood is zero on a region within reach (a hard constraint), the
evidence is low by the share of :math:`\ell` that falls there. Take a Metropolis move then.

Which density is otherwise a matter of variance alone. Best is the law of :math:`m` given
:math:`x'` under the proposal itself.

References: C. Rosato et al. 2024, Enhanced SMC^2; P. Green, L. Devlin, R. Moore et al. 2022,
Increasing the efficiency of sequential Monte Carlo samplers through the use of approximately
optimal L-kernels; L. Devlin et al. 2024, The No-U-Turn sampler as a proposal distribution in a
sequential Monte Carlo sampler without accept/reject.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.smc.proposals import Move

LKernel: TypeAlias = Callable[[Move, Array], Array]


def reversed(move: Move, log_weights: Array) -> Array:
    r"""The proposal itself, run backward from the end: :math:`m = p'`, :math:`\ell = \mathcal{N}`.

    The leapfrog is reversible: from :math:`(x', -p')` it leads to :math:`(x, -p)`. With
    :math:`\gamma' = \gamma` the weight is :math:`e^{-\Delta H}`, the one that Metropolis would
    accept with, and for one step :math:`\ell(p')` is the density of the Langevin proposal from
    :math:`x'` to x. No further evaluation: the gradient at the end serves the next move.
    """
    del log_weights
    return log_momentum_ratio(move.start, move.end)


def random_walk_kernel(move: Move, log_weights: Array) -> Array:
    r"""The literal reading of the paper's eq. 10: :math:`m = p_{1/2}`, :math:`\ell = \mathcal{N}`.

    The momentum lacks the half-kick of the end. For one step
    :math:`p_{1/2} = (x' - x) / \epsilon`, so the backward kernel is the random walk
    :math:`\mathcal{N}(x'; \epsilon^2 I)`: valid, needs no gradient at the end, and loose, since it
    does not know that the particle came from where the drift is from.
    """
    del log_weights
    return log_momentum_ratio(move.start, move.half)


def gaussian(move: Move, log_weights: Array) -> Array:
    r"""Normal regression of :math:`p'` on :math:`x'`, fitted to the population by its weights.

    :math:`\ell(p' | x') = \mathcal{N}(p'; \mu + B (x' - \bar x), S)`, which is best where the
    target is normal. With n the effective sample size it is shrunk, as if by D + 1 more particles,
    to the kernel :func:`reversed`, which it is for a population of one. Every second particle is
    weighed by the fit to the others, which removes most of the bias: with one fit to all, log
    evidence would be high by about the numbers fitted, D (3 D + 5) / 2, times steps over particles.

    Some is left, because the halves share ancestors: take many times more particles than numbers
    fitted (100 particles in ten dimensions: log evidence 87 too high). Cost: O(N D^2 + D^3).
    """
    is_usable = jnp.isfinite(move.position + move.end).all(axis=1)
    x, p = (jnp.where(is_usable[:, None], a, 0.0) for a in (move.position, move.end))
    is_even = jnp.arange(log_weights.size) % 2 == 0

    def weigh(is_fitted: Array) -> Array:
        chosen = jnp.where(is_fitted & is_usable, log_weights, -jnp.inf)
        is_empty = ~jnp.isfinite(chosen).any()
        weights = jnp.where(is_empty, 0.0, jax.nn.softmax(jnp.where(is_empty, 0.0, chosen)))
        fit = regression(x, p, weights)
        z = jax.scipy.linalg.solve_triangular(fit.root, fit.centre(x, p).T, lower=True).T
        return log_momentum_ratio(move.start, z) - jnp.sum(jnp.log(jnp.diagonal(fit.root)))

    # both fits as one batch: two batched factorizations at once can block each other on a CPU
    by_odd, by_even = jax.vmap(weigh)(jnp.stack([~is_even, is_even]))
    return jnp.where(is_even, by_odd, by_even)


class Regression(NamedTuple):
    """Mean of x, and the law of p given x: mean, slope, Cholesky factor of the covariance."""

    mean_x: Array
    mean_p: Array
    slope: Array
    root: Array

    def centre(self, x: Array, p: Array) -> Array:
        """Residuals of `p`: what the regression on `x` does not explain."""
        return p - self.mean_p - (x - self.mean_x) @ self.slope


def regression(x: Array, p: Array, weights: Array) -> Regression:
    """Weighted regression of p on x, shrunk to a standard normal p: that alone without weights."""
    size = x.shape[1]
    count = 1.0 / jnp.maximum(jnp.sum(weights**2), jnp.finfo(x.dtype).tiny)
    prior, freedom = size + 1.0, jnp.maximum(count - 1.0, 0.0) * (jnp.sum(weights) > 0)
    mean_x, mean_p = weights @ x, weights @ p
    dx, dp = x - mean_x, p - mean_p
    covariance = (weights[:, None] * dx).T @ dx
    ridge = prior / count * jnp.diagonal(covariance) + jnp.finfo(x.dtype).tiny ** 0.5
    scale = (jnp.diagonal(covariance) + ridge) ** 0.5
    correlation = (covariance + jnp.diag(ridge)) / (scale * scale[:, None])
    cross = (weights[:, None] * dx).T @ dp
    slope = jnp.linalg.solve(correlation, cross / scale[:, None]) / scale[:, None]
    residual = dp - dx @ slope
    spread = (weights[:, None] * residual).T @ residual
    share = freedom / (freedom + prior)
    spread = share * spread + (1.0 - share) * jnp.eye(size, dtype=x.dtype)
    return Regression(mean_x, share * mean_p, slope, jnp.linalg.cholesky(spread))


def log_momentum_ratio(start: Array, end: Array) -> Array:
    r""":math:`\frac12 |start|^2 - \frac12 |end|^2` for rows, as a product that keeps its digits."""
    return 0.5 * jnp.sum((start - end) * (start + end), axis=-1)


L_KERNELS: dict[str, LKernel] = {
    "reversed": reversed,
    "random_walk": random_walk_kernel,
    "gaussian": gaussian,
}


def as_l_kernel(l_kernel: str | LKernel) -> LKernel:
    """The backward kernel of that name; a function of (move, log_weights) is returned as it is."""
    if callable(l_kernel):
        return l_kernel
    if l_kernel not in L_KERNELS:
        raise ValueError(
            f"l_kernel must be one of {sorted(L_KERNELS)}, or a function of (move, log_weights); "
            f"got {l_kernel!r}."
        )
    return L_KERNELS[l_kernel]
