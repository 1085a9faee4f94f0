"""The Gaussian Langevin proposal, against quadrature and algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from blackjax_ext import metrics
from blackjax_ext.mcmc import langevin, tangents
from blackjax_ext.mcmc.langevin import standard_normal
from tests.laws import proposal

KINDS = ("identity", "scalar", "diagonal", "dense", "clipped")
SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**31 - 1)
STEPS = st.floats(0.05, 3.0)


@settings(max_examples=40, deadline=None)
@given(SEEDS, SIZES, STEPS, st.sampled_from(KINDS))
def test_residual_inverts_increment(seed, size, step_size, kind):
    with jax.enable_x64(True):
        proposal.residual_inverts_increment(seed, size, step_size, kind)


@settings(max_examples=40, deadline=None)
@given(SEEDS, SIZES, STEPS, st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_log_ratio_is_antisymmetric(seed, size, step_size, start_kind, end_kind):
    with jax.enable_x64(True):
        proposal.antisymmetry(seed, size, step_size, start_kind, end_kind)


@settings(max_examples=40, deadline=None)
@given(SEEDS, SIZES, STEPS, st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_log_ratio_is_made_of_densities(seed, size, step_size, start_kind, end_kind):
    with jax.enable_x64(True):
        proposal.log_ratio_is_made_of_densities(seed, size, step_size, start_kind, end_kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("step_size", [0.3, 1.7])
def test_density_integrates_to_one(kind, size, step_size, x64):
    proposal.density_integrates_to_one(kind, size, step_size)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", KINDS)
def test_density_has_the_moments_of_the_increments(kind, x64):
    proposal.density_has_the_moments_of_the_increments(kind, 0.8)


def test_log_ratio_keeps_its_digits_in_float32():
    # 100,000 dimensions: two separate sums of squares would be off by about 0.01
    size, step_size = 100_000, 0.1
    rng = np.random.default_rng(5)
    noise, start, end = rng.normal(size=(3, size))

    def ratio(dtype):
        points = [
            langevin.Point(jnp.zeros((), dtype), jnp.asarray(g, dtype), metrics.IDENTITY)
            for g in (start, end)
        ]
        r = langevin.increment(jnp.asarray(noise, dtype), points[0], step_size)
        return float(langevin.log_ratio(r, *points, step_size))

    single = ratio(jnp.float32)
    with jax.enable_x64(True):
        double = ratio(jnp.float64)
    assert abs(single - double) < 2e-6 * abs(double) + 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("size", [langevin.MAX_UNBLOCKED, langevin.MAX_UNBLOCKED + 1, 40_701])
def test_large_draws_are_independent_standard_normals_and_signs(size):
    """Above a size, arrays are drawn in blocks: same law, no block a copy of another."""
    drawn = np.asarray(standard_normal(jax.random.key(0), size, jnp.float32), np.float64)
    assert drawn.shape == (size,)
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    halves = drawn[: size // 2], drawn[-(size // 2) :]
    assert abs(np.corrcoef(*halves)[0, 1]) < 5 / np.sqrt(size // 2)
    signs = np.asarray(tangents.signs(jax.random.key(1), size, jnp.float32)) * size**0.5
    np.testing.assert_allclose(np.abs(signs), 1.0, rtol=1e-5)
    assert abs(signs.sum()) < 5 * size**0.5
