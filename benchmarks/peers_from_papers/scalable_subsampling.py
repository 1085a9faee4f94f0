r"""Metropolis-Hastings with scalable subsampling (Prado, Nemeth and Sherlock, arXiv 2407.19602).

The test is the rule "weights" of :mod:`blackjax_ext.subsampling.thinning`, with the paper's
proposals.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.expansion import Expansion, surrogate
from blackjax_ext.subsampling.thinning import RuleName, thinning_test

__all__ = ["State", "build_kernel"]


class State(NamedTuple):
    """Position in whitened coordinates, and its surrogate energy."""

    w: Array
    surrogate: Array


def at(expansion: Expansion, root: Array, w: Array) -> Array:
    """The position at w; `root` is the inverse of the whitener."""
    return expansion.position + root @ w


def build_kernel(expansion: Expansion, rule: RuleName = "weights", proposal: str = "random walk"):
    """The kernel: ``kernel(rng_key, state, step_size) -> (state, (is_accepted, num_rows))``.

    `rule` is one of :data:`blackjax_ext.subsampling.thinning.RULES`. `proposal` is the random walk
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
        found = thinning_test(key_test, expansion, old, state.surrogate, new, rho, rule)
        proposed = State(w, energy)
        state = jax.tree.map(lambda n, o: jnp.where(found.is_accepted, n, o), proposed, state)
        return state, (found.is_accepted, found.num_rows)

    def init(w):
        return State(w, surrogate(expansion, at(expansion, root, w)))

    return init, kernel
