"""What an acceptance test says of itself."""

import jax
import jax.numpy as jnp

from tests.laws.subsampled import CASES


def test_a_step_says_how_many_rows_its_test_has_read():
    sampler = CASES["expansion_alone"].build()
    state = sampler.init(jnp.zeros(3), jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 50)
    num_rows = jax.vmap(lambda key: sampler.step(key, state)[1].num_rows)(keys)
    assert num_rows.min() >= 0 and num_rows.max() > 0
