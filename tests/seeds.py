"""Other seeds for the same tests: a statistical one that fails is asked once more, with new seeds.

A test that draws has a level at which a right sampler fails it, once in so many sets of seeds. One
that is marked ``statistical`` and fails is run again with new seeds, and fails if it fails again: a
right sampler does so with the square of the level, a wrong one as before.
``pytest --seeds 3`` gives all tests other seeds from the start, to count how often they fail.
"""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import jax
import numpy as np

__all__ = ["others"]

KEY, OLD_KEY, GENERATOR = jax.random.key, jax.random.PRNGKey, np.random.default_rng
STRIDE = 7_919  # no test has two seeds that are so far apart


@contextlib.contextmanager
def others(number: int) -> Iterator[None]:
    """Let whole numbers stand for other seeds than they do, of JAX and of NumPy; 0 for the same."""

    if not number:
        yield
        return

    def other(seed):
        return seed + number * STRIDE if isinstance(seed, int) else seed

    with (
        patch.object(jax.random, "key", lambda seed, **rest: KEY(other(seed), **rest)),
        patch.object(jax.random, "PRNGKey", lambda seed, **rest: OLD_KEY(other(seed), **rest)),
        patch.object(np.random, "default_rng", lambda seed=None: GENERATOR(other(seed))),
    ):
        yield
