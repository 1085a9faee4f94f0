"""Peers on targets that are known, before they are compared."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC

from benchmarks.harness import hierarchies, peer_run
from benchmarks.harness.diagnostics import least_ess
from benchmarks.peers_from_papers import interleaved, langevin, mile, zig_zag
from benchmarks.peers_from_papers import scalable_subsampling as scalable
from benchmarks.peers_from_papers.auto_step import auto_step, paths
from benchmarks.peers_from_papers.kinetic_langevin import State, kinetic_langevin
from benchmarks.peers_from_papers.malt import malt
from benchmarks.peers_from_papers.walnuts import walnuts
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


@pytest.mark.parametrize(
    ("friction", "inverse_mass_matrix"),
    [(0.0, jnp.ones(2)), (1.0, jnp.array([[1.5, 0.5], [0.5, 1.0]]))],
)
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


# --- on a funnel ----------------------------------------------------------------------------------

NUM = 4_000


def funnel_logdensity(x):
    """w ~ N(0, 3^2) and three coordinates ~ N(0, exp(w))."""
    return -0.5 * ((x[0] / 3) ** 2 + jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) + 3 * x[0])


def draws_of_funnel(rng_key, num=NUM):
    key_w, key_x = jax.random.split(rng_key)
    w = 3 * jax.random.normal(key_w, (num, 1))
    return jnp.concatenate([w, jnp.exp(w / 2) * jax.random.normal(key_x, (num, 3))], axis=1)


def assert_on_funnel(found, start):
    """The law of the funnel, and no drift from the exact draws that they began with."""
    assert np.mean(found[:, 0] != start[:, 0]) > 0.3
    whitened = np.asarray(found) / np.concatenate(
        [np.full((len(found), 1), 3.0), np.exp(found[:, :1] / 2) * np.ones((1, 3))], axis=1
    )
    for z in whitened.T:
        assert scipy.stats.kstest(z, "norm").pvalue > 1e-4
    low = np.mean(found[:, 0] < -3)
    assert abs(low - 0.1587) < 4 * (0.1587 * 0.8413 / len(found)) ** 0.5
    for power in (1, 2):
        change = np.asarray(found) ** power - np.asarray(start) ** power
        assert np.all(np.abs(change.mean(0) / change.std(0)) < 4.5 / len(found) ** 0.5)


ON_FUNNEL = {
    "WALNUTS": lambda: walnuts(funnel_logdensity, 0.7, jnp.array([4.0, 1.5, 1.5, 1.5]), 0.5),
    "WALNUTS, finer": lambda: walnuts(funnel_logdensity, 1.5, jnp.ones(4), 0.8, 1 / 3),
    "AutoStep": lambda: auto_step(funnel_logdensity, jnp.ones(4), 3, 0.5),
}


@pytest.mark.parametrize("name", ON_FUNNEL)
def test_adaptive_steps_keep_a_funnel(name):
    algorithm = ON_FUNNEL[name]()
    key_start, key_steps = jax.random.split(jax.random.key(5))
    start = draws_of_funnel(key_start)

    def chain(arguments):
        rng_key, x = arguments
        keys = jax.random.split(rng_key, 3)

        def step(state, rng_key):
            state, info = algorithm.step(rng_key, state)
            return state, info.num_integration_steps

        state, num = jax.lax.scan(step, algorithm.init(x), keys)
        return state.position, num

    keys = jax.random.split(key_steps, NUM)
    found, num = jax.jit(lambda *chains: jax.lax.map(chain, chains))(keys, start)
    assert_on_funnel(np.asarray(found), np.asarray(start))
    assert 6 < num.mean() < 200


def test_paths_of_a_search_for_a_step_size():
    """At once, two halvings, and two doublings of which the third was too much."""
    found = [int(paths(j, is_doubling)) for j, is_doubling in ((0, False), (-2, False), (2, True))]
    assert found == [1, 3, 4]


def test_kinetic_langevin_keeps_a_funnel():
    """Rejected steps reverse the momentum, so start with one of its law."""
    key_start, key_momentum, key_steps = jax.random.split(jax.random.key(6), 3)
    start = draws_of_funnel(key_start)
    momentum = jax.random.normal(key_momentum, start.shape)
    algorithm = kinetic_langevin(funnel_logdensity, 0.5, jnp.ones(4), 0.5, 20)

    def chain(rng_key, x, p):
        state = State(*algorithm.init(x)._replace(momentum=p))
        state, info = algorithm.step(rng_key, state)
        return state.position, state.momentum, info.acceptance_rate

    keys = jax.random.split(key_steps, NUM)
    found, momentum, rate = jax.jit(jax.vmap(chain))(keys, start, momentum)
    assert 0.3 < rate.mean() < 0.97
    assert_on_funnel(np.asarray(found), np.asarray(start))
    for z in momentum.T:
        assert scipy.stats.kstest(np.asarray(z), "norm").pvalue > 1e-4


def funnel_of(is_centred):
    def model():
        w = numpyro.sample("w", dist.Normal(0, 3))
        hierarchies.effect("x", 0.5 * w, jnp.exp(w / 2), 3, is_centred)

    return model


def test_forms_map_to_each_other():
    centred, noise = (
        {k: jnp.array(x) for k, x in z.items()}
        for z in (
            {"w": -2.0, "x": [-1.0, -0.5, 0.0]},
            {"w": -2.0, "x_z": [0.0, 0.5 * np.e, np.e]},
        )
    )
    kernel = interleaved.Interleaved(funnel_of(True), funnel_of(False))
    kernel.init(jax.random.key(0), 0, None, (), {})
    deterministic = kernel.not_centred.postprocess_fn((), {})
    assert_close = partial(jax.tree.map, partial(np.testing.assert_allclose, atol=1e-6))
    assert_close(interleaved.to_noise(deterministic, ("x",), centred), noise)
    assert_close(interleaved.to_centred(deterministic, noise), centred)


def test_interleaved_transitions_sample_a_funnel():
    kernel = interleaved.Interleaved(funnel_of(True), funnel_of(False))
    mcmc = MCMC(
        kernel,
        num_warmup=200,
        num_samples=500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), extra_fields=("num_steps",))
    draws = {k: np.asarray(x, float) for k, x in mcmc.get_samples(True).items()}
    w, x = draws["w"], draws["x"]
    z = (x - 0.5 * w[..., None]) / np.exp(w[..., None] / 2)
    ess = float(effective_sample_size(w))
    assert ess > 300
    for each in (w / 3, z[..., 0], z[..., 2]):
        thinned = each[:, ::5].ravel()  # nearly independent
        assert scipy.stats.kstest(thinned, "norm").pvalue > 1e-4
    assert abs(np.mean(w < -3) - 0.1587) < 5 * (0.1587 * 0.8413 / ess) ** 0.5
    assert mcmc.get_extra_fields()["num_steps"].min() >= 4  # a gradient where each form starts
