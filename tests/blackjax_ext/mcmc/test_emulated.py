"""The exact test of trajectories on an emulator."""

import jax
import jax.numpy as jnp
import numpy as np

import blackjax_ext


def skewed(x):
    return jnp.sum(x - jnp.exp(x))


def info_of(num_steps=200, **options):
    sampler = blackjax_ext.emulated(skewed, 0.3, emulator_fn=options.pop("emulator_fn"), **options)
    state = sampler.init(jnp.zeros(2))

    def step(state, key):
        state, info = sampler.step(key, state)
        return state, (state, info)

    return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), num_steps))[1]


def test_the_density_as_its_emulator_is_always_accepted():
    _, info = info_of(emulator_fn=skewed, walk_probability=0.0)
    np.testing.assert_allclose(info.acceptance_rate, 1.0, atol=1e-5)
    assert 0.8 < np.mean(info.emulator_acceptance_rate) < 1.0


def test_walks_are_as_many_as_they_should_and_ask_no_emulator():
    _, info = info_of(emulator_fn=lambda x: 1e3 * x[0], walk_probability=1.0)
    assert np.all(info.is_walk)
    assert 0.2 < np.mean(info.is_accepted) < 0.6
    _, info = info_of(1000, emulator_fn=skewed, walk_probability=0.3)
    assert abs(np.mean(info.is_walk) - 0.3) < 0.06


def test_an_emulator_without_a_density_leaves_the_walk():
    _, info = info_of(emulator_fn=lambda x: jnp.full((), jnp.nan), walk_probability=0.5)
    assert np.any(np.asarray(info.is_accepted)[np.asarray(info.is_walk)])
    np.testing.assert_array_equal(info.is_divergent[~info.is_walk], True)
