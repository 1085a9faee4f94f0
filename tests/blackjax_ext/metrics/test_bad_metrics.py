"""Metrics that cannot be used raise at the start, and are rejected and counted later."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import blackjax_ext
from blackjax_ext import metrics
from numpyro_fwd import HPMALA, SMMALA

WITH_METRIC = ("smmala", "mmala", "alsmmala", "amsmmala")
each_algorithm = pytest.mark.parametrize("algorithm", WITH_METRIC)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def start(algorithm, metric_fn, fn=logdensity):
    sampler = getattr(blackjax_ext, algorithm)(fn, 1.0, metric_fn=metric_fn)
    return sampler, sampler.init(jnp.ones(3))


@pytest.mark.parametrize("make", ["clipped_hessian", "absolute_hessian", "diagonal_hessian"])
@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan"), float("inf")])
def test_floors(make, floor):
    with pytest.raises(ValueError, match=f"floor must be positive and finite; got {floor}"):
        getattr(metrics, make)(floor)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha(alpha):
    with pytest.raises(ValueError, match=f"alpha must be positive and finite; got {alpha}"):
        metrics.softabs_hessian(alpha)


@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan")])
def test_floor_of_hp_mala(floor):
    with pytest.raises(ValueError, match=f"floor must be positive and finite; got {floor}"):
        blackjax_ext.hp_mala(logdensity, 1.0, floor=floor)
    with pytest.raises(ValueError, match=f"floor must be positive and finite; got {floor}"):
        HPMALA(lambda: None, floor=floor)


@each_algorithm
def test_metric_fn_is_a_function(algorithm):
    with pytest.raises(TypeError, match=r"metric_fn must be a function of .*got 'hessian'"):
        start(algorithm, "hessian")
    with pytest.raises(TypeError, match=r"fn must be a function of the position; got 1.0"):
        metrics.fisher(1.0)


@each_algorithm
@pytest.mark.parametrize("shape", [(2,), (2, 2), (3, 2), (1, 3, 3), ()])
def test_shape_of_a_metric(algorithm, shape):
    with pytest.raises(ValueError, match=r"metric_fn must return a metric of shape \(3, 3\) or"):
        start(algorithm, lambda fn, x: jnp.ones(shape))


@each_algorithm
@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(3) + np.diag([0.3, 0.0], 1),
        np.diag([1.0, -1.0, 1.0]),
        np.full((3, 3), np.nan),
        np.array([1.0, 0.0, 1.0]),
    ],
    ids=["asymmetric", "indefinite", "NaN", "singular"],
)
def test_a_metric_is_symmetric_and_positive_definite_at_the_start(algorithm, matrix):
    with pytest.raises(ValueError, match=r"metric must be finite, symmetric and positive definite"):
        start(algorithm, lambda fn, x: jnp.asarray(matrix))


@pytest.mark.long
@each_algorithm
def test_a_hessian_that_is_not_finite_at_the_start(algorithm):
    def kinked(x):
        return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.abs(x - 1.0) ** 1.5)

    with pytest.raises(ValueError, match=r"(?s)metric must be finite.*Start where the Hessian"):
        start(algorithm, metrics.softabs_hessian(), kinked)


@pytest.mark.first
@each_algorithm
def test_a_metric_that_turns_bad_is_rejected_and_counted(algorithm):
    """Positive definite in the ball of radius two alone."""
    metric_fn = metrics.fisher(lambda x: jnp.full(3, jnp.where(jnp.sum(x**2) < 4.0, 1.0, -1.0)))
    _, state = start(algorithm, metric_fn)
    kernel = getattr(blackjax_ext, algorithm).build_kernel()
    options = {"refresh": True} if algorithm in ("alsmmala", "amsmmala") else {}

    def one(state, key):
        state, info = kernel(key, state, logdensity, 1.0, metric_fn=metric_fn, **options)
        return state, (state.position, info.is_divergent)

    keys = jax.random.split(jax.random.key(1), 300)
    _, (positions, is_divergent) = jax.jit(lambda s: jax.lax.scan(one, s, keys))(state)
    assert 0 < is_divergent.sum() < 300
    assert np.isfinite(positions).all() and (np.sum(positions**2, axis=1) < 4.0).all()
    assert len(np.unique(positions[:, 0])) > 50


def run(kernel, *args):
    mcmc = MCMC(
        kernel,
        num_warmup=100,
        num_samples=200,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args)
    return mcmc


@pytest.mark.long
def test_kernel_names_a_bad_metric_at_the_start():
    def model():
        numpyro.sample("x", dist.Normal(0, 1).expand([3]).to_event(1))

    with pytest.raises(ValueError, match=r"metric must be finite, symmetric and positive"):
        run(SMMALA(model, metric_fn=lambda fn, z: -jnp.ones(3)))


@pytest.mark.long
def test_a_network_of_relus_is_sampled_on_the_floor():
    """Its Hessian in the first layer is zero almost everywhere."""
    x = jnp.linspace(-2.0, 2.0, 20)
    y = jnp.abs(x)

    def model():
        w = numpyro.sample("w", dist.Uniform(-2, 2).expand([4]).to_event(1))
        numpyro.sample("y", dist.Laplace(jnp.sum(jax.nn.relu(jnp.outer(x, w)), 1), 1.0), obs=y)

    mcmc = run(HPMALA(model, floor=0.5))
    draws = mcmc.get_samples()["w"]
    assert np.isfinite(draws).all() and len(np.unique(draws[:, 0])) > 100
    assert not mcmc.get_extra_fields()["diverging"].any()
