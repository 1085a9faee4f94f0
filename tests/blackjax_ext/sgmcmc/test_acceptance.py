"""What an acceptance test says of itself, and steps without friction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import potentials
from tests.laws.subsampled import CASES

NUM_ROWS = 2000
Y = np.random.default_rng(70).exponential(size=NUM_ROWS).astype(np.float32)
POTENTIAL = potentials.minibatch(lambda x: -0.5 * x**2, lambda x, y: x - y * jnp.exp(x), Y, 10)
OLD = jnp.array(0.0)


def test_a_step_says_how_many_rows_its_test_has_read():
    sampler = CASES["expansion_alone"].build()
    state = sampler.init(jnp.zeros(3), jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 50)
    num_rows = jax.vmap(lambda key: sampler.step(key, state)[1].num_rows)(keys)
    assert num_rows.min() >= 0 and num_rows.max() > 0


def test_log_density_is_nan_where_no_test_evaluates_it():
    assert np.isnan(CASES["expansion_alone"].build().init(jnp.zeros(3)).logdensity)


def test_full_pass_counts_its_rows():
    sampler = blackjax_ext.amagold(POTENTIAL, 1e-3)
    _, info = sampler.step(jax.random.key(0), sampler.init(OLD))
    assert info.num_rows == NUM_ROWS
    potential = potentials.full_batch(lambda x: -0.5 * x**2)
    sampler = blackjax_ext.amagold(potential, 0.1)
    assert sampler.step(jax.random.key(0), sampler.init(OLD))[1].num_rows == 0


def test_something_else_is_no_acceptance_test():
    with pytest.raises(TypeError, match="acceptance must be an Acceptance"):
        blackjax_ext.amagold(POTENTIAL, 0.1, acceptance="full")


@pytest.mark.parametrize("name", ["amagold", "l2mc", "sghmc"])
def test_no_friction_needs_no_noise(name):
    """The draws are those of a friction of zero that nobody knows, which multiplies the noise."""
    kernel = getattr(blackjax_ext, name).build_kernel()
    state = getattr(blackjax_ext, name).init(OLD, POTENTIAL)
    options = {"step_size": 0.01, "num_integration_steps": 3}

    @jax.jit
    def run(friction):
        return kernel(jax.random.key(9), state, POTENTIAL, friction=friction, **options)[0]

    known = kernel(jax.random.key(9), state, POTENTIAL, friction=0.0, **options)[0]
    np.testing.assert_allclose(run(jnp.float32(0.0)).position, known.position, rtol=1e-5)
