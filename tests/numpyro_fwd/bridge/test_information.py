"""The Gauss-Newton metric: closed forms against scores, models against what is known of them."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC

from blackjax_ext import metrics
from numpyro_fwd import MMALA, SMMALA
from numpyro_fwd.bridge.information import gauss_newton

# a distribution with free parameters, and where they are
LIKELIHOODS = {
    "Normal": (lambda a, b: dist.Normal(a, jnp.exp(b)), (0.3, -0.2)),
    "LogNormal": (lambda a, b: dist.LogNormal(a, jnp.exp(b)), (0.3, -0.2)),
    "Laplace": (lambda a, b: dist.Laplace(a, jnp.exp(b)), (0.3, -0.2)),
    "Logistic": (lambda a, b: dist.Logistic(a, jnp.exp(b)), (0.3, -0.2)),
    "Cauchy": (lambda a, b: dist.Cauchy(a, jnp.exp(b)), (0.3, -0.2)),
    "StudentT": (lambda a, b: dist.StudentT(5.0, a, jnp.exp(b)), (0.3, -0.2)),
    "MultivariateNormal": (
        lambda a, b: dist.MultivariateNormal(
            jnp.stack([a, 2 * a]), jnp.stack([jnp.stack([jnp.exp(b), b]), jnp.stack([b, 1 + b**2])])
        ),
        (0.3, 0.4),
    ),
    "Bernoulli": (lambda a, b: dist.Bernoulli(logits=a * b), (0.7, -0.5)),
    "BernoulliProbs": (lambda a, b: dist.Bernoulli(probs=jax.nn.sigmoid(a + b)), (0.7, -0.5)),
    "Binomial": (lambda a, b: dist.Binomial(7, logits=a * b), (0.7, -0.5)),
    "BinomialProbs": (lambda a, b: dist.Binomial(7, probs=jax.nn.sigmoid(a + b)), (0.7, -0.5)),
    "Poisson": (lambda a, b: dist.Poisson(jnp.exp(a + b**2)), (0.7, -0.5)),
    "Exponential": (lambda a, b: dist.Exponential(jnp.exp(a * b)), (0.7, -0.5)),
    "Gamma": (lambda a, b: dist.Gamma(jnp.exp(a), jnp.exp(b)), (0.7, -0.5)),
    "Categorical": (lambda a, b: dist.Categorical(logits=jnp.stack([a, b, a * b])), (0.7, -0.5)),
    "CategoricalProbs": (
        lambda a, b: dist.Categorical(probs=jax.nn.softmax(jnp.stack([a, b, a * b]))),
        (0.7, -0.5),
    ),
    "Multinomial": (
        lambda a, b: dist.Multinomial(4, logits=jnp.stack([a, b, a * b])),
        (0.7, -0.5),
    ),
    "MultinomialProbs": (
        lambda a, b: dist.Multinomial(4, probs=jax.nn.softmax(jnp.stack([a, b, a * b]))),
        (0.7, -0.5),
    ),
}


def flat_prior_model(make):
    """The parameters of one likelihood as latents without information of their own."""

    def model(y=None):
        a = numpyro.sample("a", dist.Normal(0, 1e6))
        b = numpyro.sample("b", dist.Normal(0, 1e6))
        return numpyro.sample("y", make(a, b), obs=y)

    return model


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_information_is_the_covariance_of_the_score(name):
    make, (a, b) = LIKELIHOODS[name]
    z = {"a": jnp.asarray(a), "b": jnp.asarray(b)}
    draws = make(z["a"], z["b"]).sample(jax.random.key(0), (200_000,))
    found = gauss_newton(flat_prior_model(make), (draws[0],), {})(z)

    def score(y):
        gradient = jax.grad(lambda z: jnp.sum(make(z["a"], z["b"]).log_prob(y)))(z)
        return ravel_pytree(gradient)[0]

    scores = np.asarray(jax.vmap(score)(draws), np.float64)
    products = scores[:, :, None] * scores[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(products))
    np.testing.assert_array_less(
        np.abs(products.mean(axis=0) - found), 5 * error + 1e-4 * np.abs(found).max()
    )


def test_a_normal_regression_has_its_precision(x64):
    x = np.random.default_rng(0).normal(size=(30, 3))

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2.0).expand([3]).to_event(1))
        with numpyro.plate("rows", 30):
            numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    found = gauss_newton(model, (x, np.zeros(30)), {})({"beta": jnp.ones(3)})
    np.testing.assert_allclose(found, x.T @ x / 0.25 + np.eye(3) / 4, rtol=1e-6)


def test_the_funnel_has_its_expected_information(x64):
    def model():
        v = numpyro.sample("v", dist.Normal(0, 3))
        numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([4]).to_event(1))

    found = gauss_newton(model, (), {})({"v": jnp.asarray(1.0), "x": jnp.ones(4)})
    expected = np.diag([1 / 9 + 4 / 2, *4 * [np.exp(-1.0)]])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_priors_on_a_half_line_have_the_curvature_of_their_logarithm(x64):
    def model():
        numpyro.sample("scale", dist.HalfNormal(2.0))
        numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))

    z = {"scale": jnp.asarray(0.3), "simplex": jnp.array([0.1, -0.4])}
    found = gauss_newton(model, (), {})(z)
    np.testing.assert_allclose(found[0, 0], 2 * np.exp(0.6) / 4, rtol=1e-6)
    assert np.linalg.eigvalsh(found).min() > 0


def test_masks_and_scales_count():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1e6))
        with numpyro.handlers.scale(scale=3.0):
            with numpyro.handlers.mask(mask=jnp.array([True, False])):
                numpyro.sample("y", dist.Normal(mean, 1.0).expand([2]), obs=y)

    found = gauss_newton(model, (jnp.zeros(2),), {})({"mean": jnp.zeros(())})
    np.testing.assert_allclose(found, [[3.0]], rtol=1e-5)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 3).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def logistic_data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3)) * [1.0, 3.0, 0.3]
    return jnp.asarray(x), jnp.asarray(rng.uniform(size=60) < 0.5, float)


@pytest.mark.parametrize("kernel", [SMMALA, MMALA])
def test_kernels_take_it_from_the_model(kernel):
    x, y = logistic_data()
    mcmc = MCMC(
        kernel(logistic, metric="gauss_newton"),
        num_warmup=300,
        num_samples=1000,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), x, y, extra_fields=("accept_prob",))
    assert 0.5 < mcmc.get_extra_fields()["accept_prob"].mean() < 0.9
    assert len(np.unique(mcmc.get_samples()["beta"][:, 0])) > 500
    # the state carries the metric of its position, whitened by the adapted scales
    state = mcmc.last_state
    information = gauss_newton(logistic, (x, y), {})
    for chain in range(2):
        root = state.inner.metric.inverse_sqrt[chain]
        expected = information({"beta": state.z["beta"][chain]})
        scales = state.adapt_state.metric.inverse_sqrt
        found = np.linalg.inv(np.asarray(root @ root.T, np.float64)) / np.outer(scales, scales)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_unsupported_site_is_named():
    def model(y=None):
        rate = numpyro.sample("rate", dist.HalfNormal(1.0))
        numpyro.sample("counts", dist.NegativeBinomial2(rate, 2.0), obs=y)

    mcmc = MCMC(
        SMMALA(model, metric="gauss_newton"), num_warmup=10, num_samples=10, progress_bar=False
    )
    with pytest.raises(ValueError, match=r"site 'counts' \(NegativeBinomial2\) has no Fisher"):
        mcmc.run(jax.random.key(0), y=jnp.array([1, 2]))


def test_factor_sites_are_named():
    def model():
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.factor("penalty", -(z**4))

    with pytest.raises(ValueError, match=r"site 'penalty' \(Unit\) has no Fisher"):
        gauss_newton(model, (), {})({"z": jnp.zeros(())})


def test_metric_arguments():
    with pytest.raises(ValueError, match=r'metric must be None or "gauss_newton"; got \'hessian\''):
        SMMALA(logistic, metric="hessian")
    with pytest.raises(ValueError, match=r"only one of metric and metric_fn may be given"):
        SMMALA(logistic, metric="gauss_newton", metric_fn=metrics.softabs_hessian())
    with pytest.raises(ValueError, match=r"needs a model; got potential_fn"):
        SMMALA(potential_fn=lambda z: z**2, metric="gauss_newton")


def test_rmhmc_samples_the_funnel_with_a_metric_of_ours():
    scale = 1.5

    def logdensity(x):
        return -0.5 * (x[0] / scale) ** 2 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]

    mass_matrix = metrics.mass_matrix(metrics.softabs_hessian(1.0), logdensity)
    rmhmc = blackjax.rmhmc(logdensity, 0.3, mass_matrix, num_integration_steps=4)
    rng = np.random.default_rng(4)
    neck = scale * rng.normal(size=1000)
    starts = np.stack([neck, np.exp(neck / 2) * rng.normal(size=1000)], axis=1)

    def chain(start, key):
        def one(state, key):
            state, info = rmhmc.step(key, state)
            return state, info.acceptance_rate

        state, rate = jax.lax.scan(one, rmhmc.init(start), jax.random.split(key, 10))
        return state.position, rate.mean()

    ends, rate = jax.jit(jax.vmap(chain))(
        jnp.asarray(starts), jax.random.split(jax.random.key(5), 1000)
    )
    assert 0.5 < rate.mean() < 1.0 and (ends != starts).any(axis=1).mean() > 0.9
    # equilibrium is kept: the neck is N(0, 1.5^2), and the rest scaled by it N(0, 1)
    scores = np.stack([ends[:, 0] / scale, ends[:, 1] * np.exp(-ends[:, 0] / 2)])
    for score in scores:
        assert abs(score.mean()) < 5 / np.sqrt(1000)
        assert abs(score.var() - 1) < 5 * np.sqrt(2 / 1000)
