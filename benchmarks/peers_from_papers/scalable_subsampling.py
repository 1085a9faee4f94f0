r"""Metropolis-Hastings with scalable subsampling (Prado, Nemeth and Sherlock, arXiv 2407.19602).

The test is that of :mod:`blackjax_ext.subsampling.row_tests` by weights, with the paper's
proposals. Or by factors, that of Cornish et al. 2019.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.expansion import Expansion, surrogate
from blackjax_ext.subsampling.remainders import MoveEnds, steps_to
from blackjax_ext.subsampling.row_tests import run_test, thinning_test

__all__ = ["State", "build_kernel"]


class State(NamedTuple):
    """Position in whitened coordinates, and its surrogate energy."""

    w: Array
    surrogate: Array


def at(expansion: Expansion, root: Array, w: Array) -> Array:
    """The position at w; `root` is the inverse of the whitener."""
    return expansion.position + root @ w


def decide_by_factors(rng_key, expansion: Expansion, old, old_energy, new, rho):
    """Whether a move is accepted in factors, and the rows read."""
    key_accept, key_rows = jax.random.split(rng_key)
    ends = MoveEnds.of(expansion, *map(expansion.coordinates, (old, new)))
    steps, is_on = steps_to(expansion, old, new), jnp.array(True)
    found = run_test(key_rows, expansion, steps, ends, is_on, is_joint=True)
    log_ratio = old_energy - surrogate(expansion, new) + rho - found.change[0]
    is_first = -jax.random.exponential(key_accept, dtype=log_ratio.dtype) < log_ratio
    return is_first & ~found.is_vetoed[0], found.num_rows


def decide_by_weights(rng_key, expansion: Expansion, old, old_energy, new, rho):
    """Whether a move is accepted by weights, and the rows read."""
    found = thinning_test(rng_key, expansion, old, old_energy, new, rho)
    return found.is_accepted, found.num_rows


TESTS = {"factors": decide_by_factors, "weights": decide_by_weights}


def build_kernel(expansion: Expansion, rule: str = "weights", proposal: str = "random walk"):
    """The kernel: ``kernel(rng_key, state, step_size) -> (state, (is_accepted, num_rows))``.

    `rule` is "weights" or "factors". `proposal` is the random walk
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
        rho = jnp.asarray(rho, w.dtype)
        is_accepted, num_rows = TESTS[rule](key_test, expansion, old, state.surrogate, new, rho)
        proposed = State(w, energy)
        state = jax.tree.map(lambda n, o: jnp.where(is_accepted, n, o), proposed, state)
        return state, (is_accepted, num_rows)

    def init(w):
        return State(w, surrogate(expansion, at(expansion, root, w)))

    return init, kernel
