r"""Metropolis-Hastings with scalable subsampling (Prado, Nemeth and Sherlock, arXiv 2407.19602).

With remainders :math:`r_i` and bounds :math:`|r_i(x_*) - r_i(x)| \le c_i` of
:mod:`blackjax_ext.subsampling.thinning`, each row has an auxiliary
:math:`S_i \sim \mathrm{Poisson}(\phi_i)`,

.. math::
    \Delta_i = r_i(x_*) - r_i(x), \qquad \phi_i = c_i + \min(0, \Delta_i), \qquad
    \phi_i' = \phi_i - \Delta_i,

where :math:`\phi_i'` is the same for the way back (their gamma of 0; gamma of 1 is the product of
factors of Cornish et al.). Since :math:`\sum (\phi_i - \phi_i') = \sum \Delta_i`, a proposal is
accepted in two stages, by the expansion and then with :math:`\min(1, \prod (\phi_i' /
\phi_i)^{S_i})`. The S are drawn by thinning: events of rate :math:`\sum c_i` pick a row in
proportion to :math:`c_i` and count with probability :math:`\phi_i / c_i`. Rows are read only where
the first stage accepts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion, surrogate, whitened
from blackjax_ext.subsampling.thinning import (
    Move,
    change_of_all,
    decide,
    is_near,
    loss_remainders,
    reach,
)

__all__ = ["State", "build_kernel", "scalable"]

LANES = 64


class State(NamedTuple):
    """Position in whitened coordinates, and its surrogate energy."""

    w: Array
    surrogate: Array


def at(expansion: Expansion, root: Array, w: Array) -> Array:
    """The position at w; `root` is the inverse of the whitener."""
    return expansion.position + root @ w


def scalable(rng_key: Array, expansion: Expansion, old: Array, new: Array, log_ratio: Array) -> Any:
    """Both stages for the positions `old` and `new`: whether accepted, rows read.

    `log_ratio` is that of the first stage, proposal densities included.
    """
    key_first, key_number, key_rows, key_second = jax.random.split(rng_key, 4)
    (old_d, old_w), (new_d, new_w) = (whitened(expansion, x) for x in (old, new))
    move = Move(jnp.stack([old_d, new_d]), reach(old_w, new_w, expansion.order))
    is_far = ~is_near(expansion, old_w, new_w, move.reach)
    log_ratio = log_ratio - change_of_all(expansion, move, is_far)
    is_first = jnp.log(jax.random.uniform(key_first)) < log_ratio
    is_on = is_first & ~is_far
    number = jax.random.poisson(key_number, jnp.where(is_on, expansion.total * move.reach, 0.0))

    def body(carry):
        done, total = carry
        key_row, key_keep = jax.random.split(jax.random.fold_in(key_rows, done))
        rows = alias_table.draw(key_row, expansion.table, (LANES,))
        before, after = loss_remainders(expansion, move.steps, rows)
        change = jnp.clip((after - before) / (expansion.bound[rows] * move.reach), -1.0, 1.0)
        is_kept = jax.random.uniform(key_keep, (LANES,)) < 1.0 + jnp.minimum(change, 0.0)
        is_kept &= done + jnp.arange(LANES) < number
        # phi'/phi is 1 - change where the energy rises, and 1 / (1 + change) where it falls
        logs = jnp.sign(change) * jnp.log1p(-jnp.abs(change))
        return done + LANES, total + jnp.sum(jnp.where(is_kept, logs, 0.0))

    zero = jnp.zeros((), number.dtype), jnp.zeros((), log_ratio.dtype)
    total = jax.lax.while_loop(lambda carry: carry[0] < number, body, zero)[1]
    is_second = jnp.log(jax.random.uniform(key_second)) < total
    return is_first & is_second, number + jnp.where(is_far, expansion.num_rows, 0)


def build_kernel(expansion: Expansion, rule: str = "scalable", proposal: str = "random walk"):
    """The kernel: ``kernel(rng_key, state, step_size) -> (state, (is_accepted, num_rows))``.

    `rule` is "scalable", or "factors" for the test of blackjax_ext. `proposal` is the random walk
    of the paper, of covariance ``step_size^2`` in whitened coordinates, or "Crank-Nicolson",
    reversible for the normal approximation; with a step size of 1 it proposes from that.
    """
    root = jnp.linalg.inv(expansion.whitener)

    def kernel(rng_key, state, step_size):
        key_noise, key_test = jax.random.split(rng_key)
        noise = jax.random.normal(key_noise, state.w.shape, state.w.dtype)
        is_walk = proposal == "random walk"
        shrunk = state.w if is_walk else jnp.sqrt(1.0 - step_size**2) * state.w
        w = shrunk + step_size * noise
        old, new = at(expansion, root, state.w), at(expansion, root, w)
        rho = 0.0 if is_walk else 0.5 * (w @ w - state.w @ state.w)
        energy = surrogate(expansion, new)
        if rule == "factors":
            found = decide(key_test, expansion, old, state.surrogate, new, jnp.asarray(rho))
            is_accepted, num_rows = found.is_accepted, found.num_rows
        else:
            log_ratio = state.surrogate - energy + rho
            is_accepted, num_rows = scalable(key_test, expansion, old, new, log_ratio)
        proposed = State(w, energy)
        state = jax.tree.map(lambda n, o: jnp.where(is_accepted, n, o), proposed, state)
        return state, (is_accepted, num_rows)

    def init(w):
        return State(w, surrogate(expansion, at(expansion, root, w)))

    return init, kernel
