"""Metrics as they are asked for: in blocks of sites, which covariances they keep, in what order."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC

from blackjax_ext.adaptation import windows
from blackjax_ext.metrics import Blocks, Dense, Diagonal, LowRank, triangular
from numpyro_fwd import MALA, AutoNUTS, BlackJAXKernel
from numpyro_fwd.kernels.tuning import initial_metric

Z = {"a": jnp.zeros(()), "b": jnp.zeros(2), "c": jnp.zeros((2, 2))}
LIKE = jnp.zeros(7)
LABELS = np.array([0, 1, 1, 3, 4, 5, 6])


def covariance(size, seed=0):
    half = np.random.default_rng(seed).normal(size=(size, 2 * size))
    return jnp.asarray(half @ half.T / size, LIKE.dtype)


@pytest.mark.first
@pytest.mark.parametrize(
    "given, dense_mass, structure",
    [
        (None, [("b", "c")], Blocks),
        (None, [], Diagonal),
        (None, True, Dense),
        ({("b",): jnp.ones(2)}, False, Diagonal),
        ({("b",): jnp.eye(2)}, False, Blocks),
        ({("b",): jnp.eye(2)}, True, Dense),
    ],
)
def test_structures(given, dense_mass, structure):
    metric = initial_metric(given, dense_mass, Z, LIKE)
    assert type(metric) is structure
    inverse = metric.inverse()
    np.testing.assert_allclose(inverse if inverse.ndim == 1 else jnp.diagonal(inverse), 1.0)


def test_a_block_is_given_in_the_order_of_its_sites():
    block = covariance(5)
    metric = initial_metric({("c", "a"): block}, [("a", "c")], Z, LIKE)
    places = [3, 4, 5, 6, 0]  # of c, then a, among a, b, c
    found = np.asarray(metric.inverse())
    np.testing.assert_allclose(found[np.ix_(places, places)], block, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1:3, 1:3], np.eye(2), atol=1e-6)
    assert not found[1:3, places].any()


def test_a_window_ends_in_the_covariances_of_the_blocks():
    """Each block is what a dense metric of its own would be."""
    draws = jax.random.normal(jax.random.key(0), (400, 1, 7)) @ jnp.linalg.cholesky(covariance(7)).T
    metric = Blocks.of(triangular(jnp.linalg.cholesky(covariance(7, 1))), jnp.asarray(LABELS))

    def end_of_window(metric, draws):
        state = windows.init(jnp.ones(1), metric, draws[0], num_steps=len(draws))

        def add(state, x):
            state = windows.update_motion(state, jnp.ones(1), jnp.ones(1, bool))
            return windows.update_moments(state, x), None

        state, _ = jax.lax.scan(add, state, draws[1:])
        return windows.update_metric(state, draws[-1]).metric

    found = jax.jit(end_of_window)(metric, draws)
    assert type(found) is Blocks
    inverse = np.asarray(found.inverse())
    is_apart = LABELS[:, None] != LABELS
    assert not inverse[is_apart].any()
    alone = Dense(*(leaf[1:3, 1:3] for leaf in (metric.inverse_sqrt, metric.sqrt)), jnp.zeros(()))
    expected = jax.jit(end_of_window)(alone, draws[:, :, 1:3]).inverse()
    np.testing.assert_allclose(inverse[1:3, 1:3], expected, rtol=1e-3)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"dense_mass": [("d",)]}, r"names \['d'\]; the latent sites are \['a', 'b', 'c'\]"),
        ({"dense_mass": [("a",), ("b", "a")]}, "name each site once"),
        ({"inverse_mass_matrix": {("b",): np.eye(3)}}, r"shape \(2,\) or \(2, 2\); got \(3, 3\)"),
    ],
)
def test_blocks_that_are_none(options, words):
    def run(**options):
        kernel = MALA(potential_fn=lambda z: sum(jnp.sum(z[name] ** 2) for name in z), **options)
        mcmc = MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
        mcmc.run(jax.random.key(0), init_params=Z)

    with pytest.raises(ValueError, match=words):
        run(**options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "options", "size", "dense_mass"),
    [
        (blackjax.barker, {}, 80, True),
        (blackjax.hmc, {"num_integration_steps": 2}, 80, "low_rank"),
        (blackjax.nuts, {}, 10, "low_rank"),
        (blackjax.nuts, {}, 80, True),
    ],
    ids=["barker", "hmc", "nuts_small", "nuts"],
)
def test_algorithms_of_blackjax_have_the_metric(algorithm, options, size, dense_mass):
    """Also beyond 64 dimensions, where they have a dense one as functions."""
    sds = np.geomspace(0.05, 20.0, size)

    def energy(x):
        return 0.5 * jnp.sum((x / sds) ** 2)

    kernel = BlackJAXKernel(
        potential_fn=energy, algorithm=algorithm, dense_mass=dense_mass, **options
    )
    mcmc = MCMC(
        kernel,
        num_warmup=400,
        num_samples=600,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), init_params=jnp.zeros((4, size)))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    assert split_gelman_rubin(draws).max() < 1.3
    np.testing.assert_allclose(draws.std((0, 1)) / sds, 1.0, atol=0.35)


def cheap(x):
    return 0.5 * jnp.sum(x**2)


def dear(x):
    """As of twice as many rows as there are dimensions."""
    return jnp.sum((jnp.ones((2 * x.size, x.size)) @ x) ** 2)


@pytest.mark.parametrize(
    ("energy", "size", "structure", "rank"),
    [
        (cheap, 512, Dense, None),
        (cheap, 513, LowRank, 128),
        (dear, 513, Dense, None),
        (dear, 2_000, Dense, None),
        (dear, 2_001, LowRank, 65),
        (cheap, 5_000, LowRank, 32),
    ],
)
def test_a_covariance_is_learned_where_its_products_are_cheap(energy, size, structure, rank):
    """At once, or beside an evaluation of the density."""
    kernel = AutoNUTS(potential_fn=energy)

    def init(key):
        return kernel.init(key, 300, jnp.zeros(size), (), {})

    metric = jax.eval_shape(init, jax.random.key(0)).adapt_state.metric
    assert type(metric) is structure
    assert rank is None or metric.values.shape == (rank,)
