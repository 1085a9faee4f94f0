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

Which density is a matter of variance alone. Best is the law of :math:`m` given :math:`x'` under the
proposal itself.

References: C. Rosato et al. 2024, Enhanced SMC^2; P. Green, L. Devlin, R. Moore et al. 2022,
Increasing the efficiency of sequential Monte Carlo samplers through the use of approximately
optimal L-kernels; L. Devlin et al. 2024, The No-U-Turn sampler as a proposal distribution in a
sequential Monte Carlo sampler without accept/reject.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.smc.proposals import Move
from blackjax_ext.smc.sampler import effective_sample_size

__all__ = ["L_KERNELS", "LKernel", "as_l_kernel", "gaussian", "random_walk", "reversed"]

LKernel: TypeAlias = Callable[[Move, Array], Array]


def reversed(move: Move, log_weights: Array) -> Array:
    r"""The proposal itself, run backward from the end: :math:`m = p'`, :math:`\ell = \mathcal{N}`.

    The leapfrog is reversible: from :math:`(x', -p')` it leads to :math:`(x, -p)`. With
    :math:`\gamma' = \gamma` the weight is :math:`e^{-\Delta H}`, the one that Metropolis would
    accept with, and for one step :math:`\ell(p')` is the density of the Langevin proposal from
    :math:`x'` to x. No further evaluation: the gradient at the end serves the next move.
    """
    del log_weights
    return log_ratio(move.start, move.end)


def random_walk(move: Move, log_weights: Array) -> Array:
    r"""The literal reading of the paper's eq. 10: :math:`m = p_{1/2}`, :math:`\ell = \mathcal{N}`.

    The momentum lacks the half-kick of the end. For one step
    :math:`p_{1/2} = (x' - x) / \epsilon`, so the backward kernel is the random walk
    :math:`\mathcal{N}(x'; \epsilon^2 I)`: valid, needs no gradient at the end, and loose, since it
    does not know that the particle came from where the drift is from.
    """
    del log_weights
    return log_ratio(move.start, move.half)


def gaussian(move: Move, log_weights: Array) -> Array:
    r"""Normal regression of :math:`p'` on :math:`x'`, fitted to the population by its weights.

    :math:`\ell(p' | x') = \mathcal{N}(p'; \mu + B (x' - \bar x), S)`, which is best where the
    target is normal. With n the effective sample size it is shrunk, as if by D + 1 more particles,
    to the kernel :func:`reversed`, which it is for a population of one.

    It is biased: :math:`\ell` depends on the particles it weighs, and no longer integrates to one
    given the others. Log evidence is high by about parameters times steps over particles, so use
    many more particles than dimensions. Cost: O(N D^2 + D^3).
    """
    is_usable = jnp.isfinite(move.position + move.end).all(axis=1)
    weights = jax.nn.softmax(jnp.where(is_usable, log_weights, -jnp.inf))
    weights = jnp.where(is_usable.any(), weights, 1.0 / weights.size)
    x, p = (jnp.where(is_usable[:, None], a, 0.0) for a in (move.position, move.end))
    mean, slope, root = regression(x, p, weights, effective_sample_size(jnp.log(weights)))
    centred = p - mean - (x - weights @ x) @ slope
    z = jax.scipy.linalg.solve_triangular(root, centred.T, lower=True).T
    return log_ratio(move.start, z) - jnp.sum(jnp.log(jnp.diagonal(root)))


def regression(x: Array, p: Array, weights: Array, count: Array) -> tuple[Array, Array, Array]:
    """Mean of p, slope in x - mean(x), and Cholesky factor of the residual covariance, shrunk."""
    prior, freedom = x.shape[1] + 1.0, jnp.maximum(count - 1.0, 0.0)
    dx, dp = x - weights @ x, p - weights @ p
    covariance = (weights[:, None] * dx).T @ dx
    ridge = prior / count * jnp.diagonal(covariance) + jnp.finfo(x.dtype).tiny ** 0.5
    scale = (jnp.diagonal(covariance) + ridge) ** 0.5
    correlation = (covariance + jnp.diag(ridge)) / (scale * scale[:, None])
    cross = (weights[:, None] * dx).T @ dp
    slope = jnp.linalg.solve(correlation, cross / scale[:, None]) / scale[:, None]
    residual = dp - dx @ slope
    spread = (weights[:, None] * residual).T @ residual
    spread = (freedom * spread + prior * jnp.eye(x.shape[1], dtype=x.dtype)) / (freedom + prior)
    return weights @ p * freedom / (freedom + prior), slope, jnp.linalg.cholesky(spread)


def log_ratio(start: Array, end: Array) -> Array:
    r""":math:`\frac12 |start|^2 - \frac12 |end|^2` for rows, as a product that keeps its digits."""
    return 0.5 * jnp.sum((start - end) * (start + end), axis=-1)


L_KERNELS: dict[str, LKernel] = {
    "reversed": reversed,
    "random_walk": random_walk,
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
