r"""Zig-Zag with subsampling and control variates (Bierkens, Fearnhead and Roberts 2019).

In whitened coordinates with the mode at w = 0, coordinate k of the velocity :math:`v \in
\{-1, 1\}^D` flips at the rate :math:`(v_k \partial_k U)_+`. A row i drawn with probability
:math:`p_{ki} \propto |a_{ik}| |a_i|` gives the unbiased

.. math::
    \hat g_k(w) = [P w]_k + \frac{1}{p_{ki}} a_{ik} [\sigma(\eta_i + a_i \cdot w) -
    \sigma(\eta_i)], \qquad |\hat g_k| \le C_k |w|, \quad
    C_k = |P_k| + \tfrac14 \sum_i |a_{ik}| |a_i|,

P the curvature of the prior; so the rate along a straight line is at most :math:`C_k (|w| + t
\sqrt D)`. The first event under these bounds reads one row and flips with the ratio of the rates.
(The paper draws rows uniformly, with the largest row in the place of their sum.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["State", "build_kernel", "on_grid"]


class State(NamedTuple):
    """Position, velocity, time."""

    w: Array
    v: Array
    time: Array


def build_kernel(rows: Array, predictors: Array, prior: Array):
    """``kernel(rng_key, state) -> state``, one event; arguments as for Langevin dynamics."""
    size = rows.shape[1]
    reach = jnp.linalg.norm(rows, axis=1)
    weights = np.abs(np.asarray(rows, np.float64)) * np.asarray(reach, np.float64)[:, None]
    sums = jnp.asarray(np.cumsum(weights, axis=0).T / weights.sum(0)[:, None], rows.dtype)
    of_rows = jnp.asarray(0.25 * weights.sum(0), rows.dtype)
    bounds = jnp.linalg.norm(prior, axis=1) + of_rows
    total = jnp.sum(bounds)

    def kernel(rng_key, state):
        key_time, key_which, key_row, key_flip = jax.random.split(rng_key, 4)
        # the sum of the rates is total (|w| + t sqrt(D)): invert its integral
        distance, speed = jnp.linalg.norm(state.w), jnp.sqrt(1.0 * size)
        needed = jax.random.exponential(key_time) / total
        wait = 2 * needed / (distance + jnp.sqrt(distance**2 + 2 * speed * needed))
        w = state.w + wait * state.v
        k = jax.random.choice(key_which, size, p=bounds / total)
        i = jnp.searchsorted(sums[k], jax.random.uniform(key_row))
        i = jnp.minimum(i, len(rows) - 1)
        a, eta = rows[i], predictors[i]
        change = jax.nn.sigmoid(eta + a @ w) - jax.nn.sigmoid(eta)
        # a_ik / p_ki, where p_ki is |a_ik| |a_i| over the sum of these
        scaled = jnp.sign(a[k]) * 4.0 * of_rows[k] / reach[i]
        slope = state.v[k] * (prior[k] @ w + scaled * change)
        bound = bounds[k] * (distance + speed * wait)
        flips = jax.random.uniform(key_flip) < slope / bound
        v = state.v.at[k].multiply(jnp.where(flips, -1.0, 1.0))
        return State(w, v, state.time + wait)

    return kernel


def on_grid(states: State, num: int) -> np.ndarray:
    """Positions at equal times along the path between events, (num, D)."""
    times = np.asarray(states.time, np.float64)
    grid = np.linspace(times[0], times[-1], num)
    return np.stack([np.interp(grid, times, path) for path in np.asarray(states.w).T], axis=1)
