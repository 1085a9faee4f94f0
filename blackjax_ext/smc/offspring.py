"""Evaluate a population that has just been resampled: offspring of one particle are equal.

With a small effective sample size a few particles are the ancestors of all, and what is evaluated
at one of them holds for all its offspring. Array programs have fixed shapes, so there is a program
for each of a few numbers of distinct particles, and the least that is large enough runs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array


def evaluate_distinct(
    evaluate: Callable[[Array], ArrayTree], x: Array, ancestors: Array
) -> ArrayTree:
    """``evaluate(x)`` for particles (N, D) of which those with the same ancestor, (N,), are equal.

    Cost: an evaluation of N/8, N/3 or N particles, of which there are as many programs. Under
    ``jax.vmap`` all of them run.
    """
    size = x.shape[0]
    first = jnp.full(size, size).at[ancestors].min(jnp.arange(size))[ancestors]
    is_first = first == jnp.arange(size)
    place = (jnp.cumsum(is_first) - 1)[first]
    # an eighth, a third or all of the population is evaluated
    numbers = sorted({-(-size // part) for part in (8, 3)} - {size})

    def evaluate_some(num: int) -> Callable[[Array], ArrayTree]:
        def run(x: Array) -> ArrayTree:
            chosen = jnp.nonzero(is_first, size=num, fill_value=0)[0]
            return jax.tree.map(lambda leaf: leaf[place], evaluate(x[chosen]))

        return run

    branches = [*map(evaluate_some, numbers), evaluate]
    which = jnp.sum(jnp.sum(is_first) > jnp.array(numbers, int))
    return jax.lax.switch(which, branches, x)
