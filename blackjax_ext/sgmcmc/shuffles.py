r"""Random permutations whose elements are computed one at a time.

To read rows in random order without replacement, ``jax.random.permutation`` sorts as many random
numbers as there are rows, which costs more than the pass over the data that it is to save. Here
:math:`\pi(i)` costs a few integer operations: rounds of

.. math::
    i \leftarrow c_r (i + a_r) \bmod 2^k, \qquad i \leftarrow i \oplus (i \gg \lceil k/2 \rceil),

with random :math:`a_r` and odd :math:`c_r`, each of which is a permutation of the numbers of k
bits. An image that is not below N goes through them again until it is (cycle walking; Black and
Rogaway 2002), less than twice on average. A random rotation at the end makes each image uniform.
"""

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array

__all__ = ["shuffled"]

NUM_ROUNDS = 8


def shuffled(rng_key: PRNGKey, indices: Array, size: int) -> Array:
    """Images of `indices`, each from 0 to ``size - 1``, under a random permutation of all of them.

    The same key gives the same permutation. `size` is at most 2^31.
    """
    num_bits = max((size - 1).bit_length(), 1)
    mask = jnp.uint32(2**num_bits - 1)
    key_rounds, key_rotation = jax.random.split(rng_key)
    added, odd = jax.random.bits(key_rounds, (2, NUM_ROUNDS))
    odd = odd | 1

    def walk(i):
        def one_round(i, constants):
            a, c = constants
            i = ((i + a) * c) & mask
            return i ^ (i >> ((num_bits + 1) // 2)), None

        return jax.lax.scan(one_round, i, (added, odd))[0]

    def step(i):
        return jnp.where(i < size, i, walk(i))

    first = walk(indices.astype(jnp.uint32))
    images = jax.lax.while_loop(lambda i: jnp.any(i >= size), step, first).astype(indices.dtype)
    images = images - jax.random.randint(key_rotation, (), 0, size)
    return jnp.where(images < 0, images + size, images)
