"""Numbers from random words."""

import jax
import jax.numpy as jnp
import numpy as np

from blackjax_ext.rows.shuffles import uniform_numbers, words_per_number


def test_uniform_numbers_are_those_of_jax():
    """Of the same bits, in both precisions, and below one."""
    key, most = jax.random.key(0), np.full((2, 1), 2**32 - 1, np.uint32)
    words = jax.random.bits(key, (1, 1000), jnp.uint32)
    found = uniform_numbers(words, jnp.float32)
    np.testing.assert_array_equal(found, jax.random.uniform(key, (1, 1000))[0])
    assert words_per_number(jnp.float32) == 1 and uniform_numbers(most[:1], jnp.float32) < 1.0
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(key, (1000,), jnp.uint64))
        words = jnp.stack([(bits >> 32).astype(np.uint32), bits.astype(np.uint32)])
        found = uniform_numbers(words, jnp.float64)
        np.testing.assert_array_equal(found, jax.random.uniform(key, (1000,), jnp.float64))
        assert words_per_number(jnp.float64) == 2 and uniform_numbers(most, jnp.float64) < 1.0
