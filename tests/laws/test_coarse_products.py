"""The laws on a device whose default products lose digits, as emulated on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import acceptance, families, metrics, potentials
from blackjax_ext.subsampling import expansion as expansions
from tests.laws import groups, laws, minibatch, smc, subsampled
from tests.laws.coarse_products import BFLOAT16, TF32, coarse_products

NUM_ROWS, SIZE = 2_000, 4
MOST = 3e-3  # of a curvature that is one, and of the energies of draws, in nats


@pytest.fixture(autouse=True)
def on_a_cpu():
    """An accelerator has products of its own."""
    if jax.default_backend() != "cpu":
        pytest.skip("coarse products are emulated on a CPU")


def relative_error(precision=None, num_columns=5):
    """Of a product of matrices in single precision, or with a vector."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((50, 60), (60, num_columns)))
    found = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))(a, b)
    exact = a.astype(float) @ b
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
def test_products_are_as_coarse_as_they_say(bits):
    with coarse_products(bits):
        assert 0.2 < relative_error() * 2**bits < 1.0
        assert relative_error("highest") < 1e-6
        assert relative_error(num_columns=1) < 1e-6
        with jax.default_matmul_precision("highest"):
            assert relative_error() < 1e-6
    with coarse_products(bits, of_vectors=True):
        assert 0.2 < relative_error(num_columns=1) * 2**bits < 1.0
    assert relative_error() < 1e-6


def rows(mean):
    """Covariates some standard deviations from zero with an intercept, and labels."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(NUM_ROWS, SIZE - 1))
    y = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.3]))
    x = np.concatenate([np.ones((NUM_ROWS, 1)), x + mean], axis=1)
    return x.astype(np.float32), y.astype(np.float32)


def logprior(z):
    """Wide for the intercept."""
    return -0.5 * jnp.sum((z / jnp.asarray([1e3, *[10.0] * (SIZE - 1)], z.dtype)) ** 2)


def posterior(mean):
    """Logistic regression on these rows."""
    return potentials.linear_predictor(logprior, families.bernoulli(), rows(mean))


def errors_of_expansion(mean):
    """Of the curvature, and of the energies of draws at once: both against double precision."""
    found = potentials.expand(posterior(mean), jnp.zeros(SIZE))
    x, y = (each.astype(float) for each in rows(mean))
    anchor, whitener = (np.asarray(a, float) for a in (found.position, found.whitener))
    root = np.linalg.inv(whitener)
    share = 1 / (1 + np.exp(-x @ anchor))
    curvature = root.T @ ((x.T * (share * (1 - share))) @ x) @ root
    slope = root.T @ (x.T @ (share - y))
    draws = np.random.default_rng(2).normal(size=(32, SIZE))
    at = (anchor + draws @ root.T).astype(np.float32)
    w = (at.astype(float) - anchor) @ whitener.T
    exact = w @ slope + 0.5 * np.einsum("ni,ij,nj->n", w, curvature, w)
    exact += 0.5 * np.sum((at / np.array([1e3, *[10.0] * (SIZE - 1)])) ** 2, axis=1)
    energy = jax.jit(jax.vmap(expansions.surrogate, (None, 0)))(found, at)
    off = np.asarray(energy, float) - exact
    return np.abs(found.arrow.of_shared - curvature).max(), np.std(off)


def test_an_expansion_keeps_its_digits():
    """As far as its condition is not refused, by name."""
    with coarse_products(TF32):
        for mean in (0.0, 100.0):
            of_curvature, of_energy = errors_of_expansion(mean)
            assert of_curvature < MOST
            assert of_energy < MOST
        with pytest.raises(ValueError, match="condition number"):
            errors_of_expansion(30_000.0)


@pytest.mark.full
@pytest.mark.parametrize("mean", [10.0, 300.0])
@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
def test_an_expansion_keeps_its_digits_at_other_places(bits, mean):
    with coarse_products(bits):
        assert max(errors_of_expansion(mean)) < MOST


@pytest.mark.parametrize("place", ["row_bounds", "surrogate"])
def test_the_law_finds_a_product_that_has_lost_its_precision(place, monkeypatch):
    monkeypatch.setattr(expansions, place, getattr(expansions, place).__wrapped__)
    if place == "surrogate":
        coordinates = expansions.Expansion.coordinates.__wrapped__
        monkeypatch.setattr(expansions.Expansion, "coordinates", coordinates)
    with coarse_products(TF32):
        assert max(errors_of_expansion(100.0)) > MOST


@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
def test_a_whitened_information_stays_definite(bits):
    """In the coordinates of a metric that knows it, where it is nearly singular otherwise."""
    x = rows(100.0)[0].astype(float)
    information = 0.25 * x.T @ x + np.eye(SIZE)
    factor = metrics.factorize(jnp.asarray(np.linalg.inv(information), jnp.float32))
    metric = metrics.as_metric(lambda *_: jnp.asarray(information, jnp.float32))
    with coarse_products(bits):
        local = metric.evaluate(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(SIZE), factor)
    squares = np.asarray(local.metric.inverse(), float)
    np.testing.assert_allclose(squares, np.eye(SIZE), atol=0.1)


OF_DENSITIES = (
    "mala_dense",
    "auto_mala_dense",
    "fmala_dense",
    "line_dense",
    "pc_fmala_dense",
    "pc_line_dense",
    "smmala_dense",
    "hp_mala",
    "mmala",
    "alsmmala",
    "amsmmala",
    "random_walk_dense",
)
CASES = {
    **{name: (laws.simulate, (name, "log_gamma")) for name in OF_DENSITIES},
    "mala_dense, normal": (laws.simulate, ("mala_dense", "normal")),
    "amagold": (minibatch.simulate, (minibatch.CASES["second_order"],)),
    "l2mc": (minibatch.simulate, (minibatch.CASES["l2mc"],)),
    "subsampled": (minibatch.simulate, (subsampled.CASES["minibatches"],)),
    "subsampled, local": (minibatch.simulate, (subsampled.CASES["counted"],)),
    "groups": (groups.simulate, (groups.CASES["mixed"],)),
}


@pytest.mark.full
@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
@pytest.mark.parametrize("name", CASES)
def test_chains_stay_in_equilibrium(name, bits):
    """With products of vectors as coarse, which is more than a device does."""
    simulate, arguments = CASES[name]
    with coarse_products(bits, of_vectors=True):
        outcome = simulate(*arguments, laws.SMALL)
    smallest = min(*laws.uniformity(outcome.end), *laws.changes(outcome.start, outcome.end))
    assert smallest > laws.LEVEL


@pytest.mark.full
@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
def test_particles_keep_their_evidence(bits):
    smc.simulate.cache_clear()
    with coarse_products(bits, of_vectors=True):
        smc.evidence_is_unbiased("langevin_dense")
    smc.simulate.cache_clear()


def moments(mean, num_chains=64, num_steps=1200):
    """Means and sds of chains of AMAGOLD with the subsampled test, by sds of the posterior."""
    found = potentials.expand(posterior(mean), jnp.zeros(SIZE))
    sampler = blackjax_ext.amagold(
        potentials.expanded_minibatch(found, 0),
        0.7,
        found.metric,
        num_integration_steps=4,
        friction=0.2,
        acceptance=acceptance.subsampled(found),
    )

    def chain(rng_key):
        key_init, key_steps = jax.random.split(rng_key)
        first = sampler.init(found.position, key_init)

        def step(state, key):
            state, _ = sampler.step(key, state)
            return state, found.coordinates(state.position)[0]

        return jax.lax.scan(step, first, jax.random.split(key_steps, num_steps))[1]

    w = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), num_chains))
    w = np.asarray(w[:, 50:], float).reshape(-1, SIZE)
    return w.mean(0), w.std(0)


@pytest.mark.full
@pytest.mark.parametrize("bits", [TF32, BFLOAT16])
def test_the_subsampled_test_samples_the_posterior_far_from_zero(bits):
    """By the same keys as in single precision, where means are 0 and sds 1 up to skewness."""
    true_mean, true_sd = moments(300.0)
    with coarse_products(bits):
        mean, sd = moments(300.0)
    np.testing.assert_allclose(mean, true_mean, atol=0.06)
    np.testing.assert_allclose(sd, true_sd, atol=0.05)
