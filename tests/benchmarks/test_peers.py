"""Peers on targets that are known, before they are compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness import peer_run
from benchmarks.harness.runs import least_ess
from benchmarks.peers_from_papers import langevin, mile, zig_zag
from benchmarks.peers_from_papers import scalable_subsampling as scalable
from benchmarks.peers_from_papers.malt import malt
from blackjax_ext import families, potentials

ROWS, SIZE = 150, 8


@pytest.fixture(scope="module")
def truth():
    """Mean and sd of a posterior so far from normal that bounds are loose, by importance."""
    x, y = peer_run.table(ROWS, SIZE)
    draws, weights = peer_run.importance(x, y, 200_000, seed=0)
    return peer_run.moments(draws, weights)


@pytest.fixture(scope="module")
def expansion():
    x, y = map(jnp.asarray, peer_run.table(ROWS, SIZE))
    rows = potentials.linear_predictor(lambda z: -0.5 * z @ z, families.bernoulli(), (x, y))
    return potentials.expand(rows, jnp.zeros(SIZE))


def assert_near(draws, truth, ess):
    mean, sd = truth
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * sd.max() / ess**0.5)
    np.testing.assert_allclose(draws.std(0) / sd, 1.0, atol=5 / ess**0.5)


def position(expansion, w):
    root = np.linalg.inv(np.asarray(expansion.whitener))
    return np.asarray(expansion.position) + np.asarray(w) @ root.T


def test_posterior_is_not_normal(expansion):
    """Tests have something to decide: many rows are read, and rows change much."""
    assert potentials.expected_rows(jax.random.key(0), expansion) > 5


@pytest.mark.parametrize("proposal", ["random walk", "Crank-Nicolson"])
def test_scalable_subsampling_samples_the_posterior(expansion, truth, proposal):
    init, kernel = scalable.build_kernel(expansion, "weights", proposal)

    def step(state, rng_key):
        state, found = kernel(rng_key, state, 0.9)
        return state, (state.w, *found)

    keys = jax.random.split(jax.random.key(0), 40_000)
    _, (w, accepted, rows) = jax.jit(lambda s, k: jax.lax.scan(step, s, k))(
        init(jnp.zeros(SIZE)), keys
    )
    assert 0.1 < accepted.mean() < 0.95
    assert rows.mean() > 2
    assert_near(position(expansion, w), truth, least_ess(np.asarray(w)[None]))


def test_scalable_subsampling_accepts_more_than_factors(expansion):
    rates = {}
    for rule in ("weights", "factors"):
        init, kernel = scalable.build_kernel(expansion, rule, "Crank-Nicolson")

        def step(state, rng_key, kernel=kernel):
            state, (is_accepted, _) = kernel(rng_key, state, 0.9)
            return state, is_accepted

        keys = jax.random.split(jax.random.key(1), 10_000)
        found = jax.jit(lambda s, k, step=step: jax.lax.scan(step, s, k))(
            init(jnp.zeros(SIZE)), keys
        )
        rates[rule] = float(found[1].mean())
    assert rates["weights"] > rates["factors"] + 0.01


def data_of(expansion):
    *data, _ = peer_run.whitened_data(expansion, peer_run.table(ROWS, SIZE)[0])
    return data


def test_zig_zag_samples_the_posterior(expansion, truth):
    kernel = zig_zag.build_kernel(*data_of(expansion))

    def step(state, rng_key):
        state = kernel(rng_key, state)
        return state, state

    first = zig_zag.State(jnp.zeros(SIZE), jnp.ones(SIZE), jnp.zeros(()))
    keys = jax.random.split(jax.random.key(2), 100_000)
    states = jax.jit(lambda s, k: jax.lax.scan(step, s, k)[1])(first, keys)
    w = zig_zag.on_grid(states, 20_000)
    assert_near(position(expansion, w), truth, least_ess(w[None]))


def test_langevin_with_small_steps_samples_the_posterior(expansion, truth):
    kernel = langevin.build_kernel(*data_of(expansion), batch_size=30)

    def step(w, rng_key):
        w = kernel(rng_key, w, 0.05)
        return w, w

    keys = jax.random.split(jax.random.key(3), 100_000)
    w = jax.jit(lambda s, k: jax.lax.scan(step, s, k)[1])(jnp.zeros(SIZE), keys)
    mean, sd = truth
    draws = position(expansion, w)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.15 * sd.max())
    np.testing.assert_allclose(draws.std(0) / sd, 1.0, atol=0.15)  # its steps are a bias


@pytest.mark.parametrize("friction", [0.0, 1.0])
@pytest.mark.parametrize("inverse_mass_matrix", [jnp.ones(2), jnp.array([[1.5, 0.5], [0.5, 1.0]])])
def test_malt_samples_a_bent_target(friction, inverse_mass_matrix):
    """From exact draws, after some steps of a size at which a third is rejected."""
    key_x, key_y, key_steps = jax.random.split(jax.random.key(0), 3)
    num = 20_000
    x = jax.random.normal(key_x, (num,))
    exact = jnp.stack([x, 0.7 * x**2 + jax.random.normal(key_y, (num,))], axis=1)

    def logdensity(z):
        return -0.5 * z[0] ** 2 - 0.5 * (z[1] - 0.7 * z[0] ** 2) ** 2

    algorithm = malt(logdensity, 0.6, inverse_mass_matrix, 5, friction)

    def chain(rng_key, z):
        state, info = algorithm.init(z), None
        for key in jax.random.split(rng_key, 2):
            state, info = algorithm.step(key, state)
        return state.position, info.acceptance_rate

    found, rate = jax.jit(jax.vmap(chain))(jax.random.split(key_steps, num), exact)
    assert 0.3 < rate.mean() < 0.9
    for power in (1, 2):  # of both ends, whose errors partly cancel
        error = (found**power - exact**power).mean(0) / (found**power - exact**power).std(0)
        assert jnp.all(jnp.abs(error) < 4 / num**0.5)


def test_members_of_an_ensemble_find_the_mode_and_then_sample():
    """On a round target: where sds differ its steps leave the least of them too small."""

    def logdensity(z):
        return -0.5 * jnp.sum(((z["x"] - 3.0) / 0.5) ** 2)

    def validation(z):
        return jnp.sum((z["x"] - 3.0) ** 2)

    def member(rng_key):
        best = mile.optimized({"x": jnp.zeros(8)}, logdensity, validation, 5_000)
        lengths = (4_000, 4_000, 5)
        return best, mile.sampled(rng_key, best, logdensity, lambda z: z["x"], *lengths)

    best, draws = jax.jit(member)(jax.random.key(0))
    np.testing.assert_allclose(best["x"], 3.0, atol=0.02)
    np.testing.assert_allclose(draws.mean(0), 3.0, atol=0.1)
    np.testing.assert_allclose(draws.std(0) / 0.5, 1.0, atol=0.15)
