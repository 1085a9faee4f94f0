"""Metrics of low rank and metrics from draws and gradients, against matrices of numpy."""

from dataclasses import replace

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import LowRankInverseMassMatrix

from blackjax_ext.adaptation import algorithm, windows
from blackjax_ext.metrics import Blocks, Diagonal, LowRank, factorize, structures

SIZE, RANK = 7, 2


@pytest.fixture(params=[jnp.float32, jnp.float64], ids=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == jnp.float64):
        yield request.param


def a_metric(dtype=jnp.float32):
    """One with a long and a short direction, and its covariance in double precision."""
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(SIZE, RANK)))[0]
    scale, values = np.geomspace(0.1, 10.0, SIZE), np.array([30.0, 0.02])
    covariance = np.eye(SIZE) + (vectors * (values - 1.0)) @ vectors.T
    metric = LowRank(*(jnp.asarray(leaf, dtype) for leaf in (scale, vectors, values)))
    return metric, scale[:, None] * covariance * scale


def is_what_it_says(metric, covariance):
    """The law: all that a factor answers is about one matrix."""
    dtype = metric.scale.dtype
    close = 2e-4 if dtype == jnp.float32 else 1e-10

    def check(found, truth):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, truth, rtol=close, atol=close * np.abs(truth).max())

    precision = np.linalg.inv(covariance)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(3, SIZE)), dtype)
    exact = np.asarray(batch, np.float64)
    root = np.asarray(metric.root(), np.float64)
    check(metric.inverse(), covariance)
    check(metric.precision(SIZE), precision)
    check(metric.root() @ metric.root().T, covariance)
    check(metric.inverse_sqrt_times(batch), exact @ root.T)
    check(metric.inverse_sqrt_transpose_times(batch), exact @ root)
    check(metric.sqrt_times(metric.inverse_sqrt_times(batch)), exact)
    check(metric.inverse_times(batch), exact @ covariance)
    check(metric.times(batch), exact @ precision)
    check(metric.log_det(SIZE), np.linalg.slogdet(precision)[1])
    check(metric.diagonal().inverse(), np.diag(covariance))
    dense = metric.dense(batch[0])
    check(dense.inverse(), covariance)
    check(dense.precision(SIZE), precision)
    check(dense.log_det(SIZE), np.linalg.slogdet(precision)[1])
    ratio = jnp.linspace(0.5, 2.0, SIZE, dtype=dtype)
    check(metric.scaled(ratio).inverse(), covariance * np.outer(ratio, ratio))
    check(metric.compose(factorize(metric.inverse())).inverse(), root @ covariance @ root.T)


@pytest.mark.long
def test_a_metric_of_low_rank_is_what_it_says(dtype):
    is_what_it_says(*a_metric(dtype))


@pytest.mark.parametrize("name", ["sqrt_times", "log_det", "times", "root"])
def test_planted_metrics_without_the_directions(name, monkeypatch):
    def without(self, *arguments):
        return getattr(Diagonal(self.scale), name)(*arguments)

    monkeypatch.setattr(LowRank, name, without)
    with pytest.raises(AssertionError):
        is_what_it_says(*a_metric())


def test_planted_metric_whose_vectors_are_not_orthonormal():
    metric, covariance = a_metric()
    with pytest.raises(AssertionError):
        is_what_it_says(replace(metric, vectors=1.05 * metric.vectors), covariance)


def agrees_with_blackjax(metric, covariance):
    """The law: trajectories see the same mass matrix in either form."""
    size = len(covariance)
    theirs = blackjax.mcmc.metrics.default_metric(jnp.asarray(covariance, jnp.float32))
    ours = algorithm.Algorithm(blackjax.nuts, {}).preconditioner(metric)
    assert not isinstance(ours, jax.Array)
    ours = blackjax.mcmc.metrics.default_metric(ours)
    x = jnp.zeros(size)
    z = jax.random.normal(jax.random.key(0), (200, 3, size))
    for name in ("kinetic_energy", "check_turning"):
        arguments = [z[:, i] for i in range(1 if name == "kinetic_energy" else 3)]
        found, truth = (jax.vmap(getattr(each, name))(*arguments) for each in (ours, theirs))
        np.testing.assert_allclose(found, truth, rtol=1e-3)
    keys = jax.random.split(jax.random.key(1), 20000)
    momenta = np.asarray(jax.vmap(lambda key: ours.sample_momentum(key, x))(keys))
    whitened = momenta @ np.linalg.cholesky(covariance)
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(size), atol=0.06)


def many(size=70):
    """A dense metric in so many dimensions that it is not handed on as a matrix."""
    covariance = ar(size, 0.5) * np.outer(np.geomspace(0.5, 2, size), np.geomspace(0.5, 2, size))
    return factorize(jnp.asarray(covariance, jnp.float32)), covariance


@pytest.mark.long
@pytest.mark.parametrize("make", [a_metric, many])
def test_blackjax_gets_the_same_metric(make):
    agrees_with_blackjax(*make())


def test_planted_momenta_of_the_transposed_root():
    metric, covariance = many()
    with pytest.raises(AssertionError):
        agrees_with_blackjax(replace(metric, sqrt=metric.sqrt.T), covariance)


# --- from draws and gradients -----------------------------------------------------------------


def window(metric, covariance, num_steps=200, num_chains=4, length=1.0, seed=0):
    """The window of chains that draw from a part of a normal, `length` times as wide."""
    rng = np.random.default_rng(seed)
    size = len(covariance)
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    draws = length * rng.normal(size=(num_steps, num_chains, size)) @ root.T
    dtype = jnp.result_type(float)
    x, g = (jnp.asarray(each, dtype) for each in (draws, -draws @ precision))
    state = windows.init(jnp.ones(()), metric, x[0], num_steps=1000, with_gradients=True)

    def count(state, both):
        return windows.update_moments(windows.update_slopes(state, *both), both[0]), None

    state = jax.lax.scan(count, state, (x, g))[0]
    return windows.update_metric(state, x[-1])


def spread(metric, covariance):
    """Condition number in the coordinates that a metric whitens."""
    root = np.asarray(metric.root(), np.float64)
    root = np.diag(root) if root.ndim == 1 else root
    values = np.linalg.eigvals(np.linalg.solve(root @ root.T, covariance)).real
    return values.max() / values.min()


@pytest.mark.long
@pytest.mark.parametrize("length", [1.0, 1e-2])
def test_scales_are_learned_from_a_part_of_a_normal(length, dtype):
    """Of draws alone, a hundredth of the width would be learned."""
    sds = np.geomspace(0.01, 100.0, 50)
    state = window(Diagonal(jnp.ones(50)), np.diag(sds**2), length=length)
    np.testing.assert_allclose(state.metric.inverse_sqrt / sds, 1.0, rtol=0.1)
    assert float(jnp.abs(state.slopes.second).max()) == 0.0


def test_planted_scales_of_draws_alone(monkeypatch):
    monkeypatch.setattr(structures, "balance", lambda v, c, n: jnp.sqrt(v))
    with pytest.raises(AssertionError):
        test_scales_are_learned_from_a_part_of_a_normal(1e-2, jnp.float32)


def ar(size, rho):
    return rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))


@pytest.mark.long
def test_covariances_are_learned_from_few_draws():
    """From 400 draws in 100 dimensions."""
    covariance = ar(100, 0.9)
    dense = Diagonal(jnp.ones(100)).dense(jnp.ones(100))
    state = window(dense, covariance, num_steps=100)
    assert spread(state.metric, covariance) < 2.5
    assert spread(dense, covariance) > 300
    # a draw whitened and back, and the determinant, belong to the same matrix
    eye = state.metric.sqrt @ state.metric.inverse_sqrt
    np.testing.assert_allclose(eye, np.eye(100), atol=1e-2)
    log_det = -np.linalg.slogdet(np.asarray(state.metric.inverse(), np.float64))[1]
    np.testing.assert_allclose(state.metric.log_det(100), log_det, rtol=1e-2)


@pytest.mark.long
def test_blocks_stay_blocks():
    labels = jnp.asarray([0, 0, 1, 1])
    blocks = Blocks.of(Diagonal(jnp.ones(4)).dense(jnp.ones(4)), labels)
    state = window(blocks, ar(4, 0.9))
    is_together = np.equal.outer(labels, labels)
    truth = np.where(is_together, ar(4, 0.9), 0.0)
    found = np.asarray(state.metric.inverse())
    np.testing.assert_array_equal(found[~is_together], 0.0)
    # the conditional scales within a block are those given the other block
    assert spread(state.metric, truth) < 4


@pytest.mark.long
@pytest.mark.parametrize("num_steps", [6, 100, 400])
def test_a_direction_is_learned_by_low_rank(num_steps):
    """Of a window shorter, and of one longer than the rows that are kept."""
    covariance = 0.95 * np.ones((80, 80)) + 0.05 * np.eye(80)
    scale = np.geomspace(0.1, 10.0, 80)
    covariance = scale[:, None] * covariance * scale
    state = window(LowRank.of(jnp.ones(80), 8), covariance, num_steps=num_steps)
    assert spread(state.metric, covariance) < (60 if num_steps == 6 else 10)
    assert spread(Diagonal(jnp.asarray(scale)), covariance) > 1000
    np.testing.assert_allclose(state.metric.vectors.T @ state.metric.vectors, np.eye(8), atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("metric", [Diagonal(jnp.ones(3)), LowRank.of(jnp.ones(3), 2)])
def test_chains_that_stand_still_leave_the_metric(metric):
    x = jnp.ones((4, 3))
    state = windows.init(jnp.ones(()), metric, x, num_steps=100, with_gradients=True)
    for _ in range(5):
        state = windows.update_moments(windows.update_slopes(state, x, -x), x)
    found = windows.update_metric(state, x).metric
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(metric), strict=True):
        np.testing.assert_allclose(new, old)


def test_what_blackjax_adapts_is_the_metric_it_is_there():
    metric, covariance = a_metric()
    given = LowRankInverseMassMatrix(metric.scale, metric.vectors, metric.values)
    np.testing.assert_allclose(factorize(given, SIZE).inverse(), covariance, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match=f"fit a position of 5 dimensions; got shape .{SIZE},"):
        factorize(given, 5)


@pytest.mark.parametrize("size", [1, 4])
def test_one_variance_serves_all_dimensions(size):
    """As in BlackJAX, also where the size is not known at first."""
    one, many = factorize(jnp.array([4.0])), factorize(jnp.full(size, 4.0), size)
    z = jnp.arange(1.0, size + 1.0)
    for found in (factorize(one, size), factorize(jnp.array([4.0]), size)):
        np.testing.assert_array_equal(found.inverse_sqrt_times(z), many.inverse_sqrt_times(z))
        np.testing.assert_allclose(found.log_det(size), many.log_det(size), rtol=1e-6)
        np.testing.assert_array_equal(found.at(z).inverse(), many.inverse())


def test_metrics_made_of_functions_are_refused_by_name():
    metric = blackjax.mcmc.metrics.default_metric(jnp.ones(2))
    with pytest.raises(TypeError, match="low-rank adaptation finds; got Metric"):
        factorize(metric, 2)
