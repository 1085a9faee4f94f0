"""The Gauss-Newton metric: closed forms against scores, models against what is known of them."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC

from blackjax_ext import metrics
from numpyro_fwd import ALSMMALA, AMSMMALA, MMALA, SMMALA
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
    "VonMises": (lambda a, b: dist.VonMises(a, jnp.exp(b)), (0.7, 0.5)),
    "Beta": (lambda a, b: dist.Beta(jnp.exp(a), jnp.exp(b)), (0.7, -0.5)),
    "BetaProportion": (lambda a, b: dist.BetaProportion(jax.nn.sigmoid(a), jnp.exp(b)), (0.7, 1.5)),
    "NegativeBinomial2": (lambda a, b: dist.NegativeBinomial2(jnp.exp(a), jnp.exp(b)), (1.7, 0.5)),
    "NegativeBinomialProbs": (
        lambda a, b: dist.NegativeBinomial(jnp.exp(a), probs=jax.nn.sigmoid(b)),
        (0.7, -0.5),
    ),
    "NegativeBinomialLogits": (
        lambda a, b: dist.NegativeBinomial(jnp.exp(a), logits=b),
        (0.7, -0.5),
    ),
    "GammaPoisson": (lambda a, b: dist.GammaPoisson(jnp.exp(a), jnp.exp(b)), (0.7, -0.5)),
    "HalfNormal": (lambda a, b: dist.HalfNormal(jnp.exp(a * b)), (0.7, -0.5)),
    "HalfCauchy": (lambda a, b: dist.HalfCauchy(jnp.exp(a * b)), (0.7, -0.5)),
    "InverseGamma": (lambda a, b: dist.InverseGamma(jnp.exp(a), jnp.exp(b)), (0.7, -0.5)),
    "Weibull": (lambda a, b: dist.Weibull(jnp.exp(a), jnp.exp(b)), (0.7, 0.5)),
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
    found = jax.jit(gauss_newton(flat_prior_model(make), (draws[0],), {}))(z)

    def score(y):
        gradient = jax.grad(lambda z: jnp.sum(make(z["a"], z["b"]).log_prob(y)))(z)
        return ravel_pytree(gradient)[0]

    scores = np.asarray(jax.jit(jax.vmap(score))(draws), np.float64)
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

    found = jax.jit(gauss_newton(model, (x, np.zeros(30)), {}))({"beta": jnp.ones(3)})
    np.testing.assert_allclose(found, x.T @ x / 0.25 + np.eye(3) / 4, rtol=1e-6)


def test_the_funnel_has_its_expected_information(x64):
    def model():
        v = numpyro.sample("v", dist.Normal(0, 3))
        numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([4]).to_event(1))

    found = jax.jit(gauss_newton(model, (), {}))({"v": jnp.asarray(1.0), "x": jnp.ones(4)})
    expected = np.diag([1 / 9 + 4 / 2, *4 * [np.exp(-1.0)]])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


# a prior and the variance of the score of its unconstrained value
PRIORS = {
    "HalfNormal": (dist.HalfNormal(2.0), 2.0),
    "Exponential": (dist.Exponential(3.0), 1.0),
    "Uniform": (dist.Uniform(-1.0, 3.0), 1 / 3),
    "HalfCauchy": (dist.HalfCauchy(2.0), 0.5),
    "Gamma": (dist.Gamma(3.0, 2.0), 3.0),
    "InverseGamma": (dist.InverseGamma(3.0, 2.0), 3.0),
    "Weibull": (dist.Weibull(2.0, 1.5), 1.5**2),
    "Beta": (dist.Beta(2.0, 3.0), 1.0),
    "LogNormal": (dist.LogNormal(1.0, 0.5), 4.0),
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("place", [-6.0, 0.3])
def test_priors_have_their_expected_curvature_everywhere(name, place, x64):
    prior, expected = PRIORS[name]
    found = jax.jit(gauss_newton(lambda: numpyro.sample("x", prior), (), {}))(
        {"x": jnp.asarray(place)}
    )
    np.testing.assert_allclose(found, [[expected]], rtol=1e-6)


@pytest.mark.parametrize(
    ("prior", "expected", "error"),
    [
        (dist.Gumbel(1.0, 0.5), 4.0, 0.3),
        (dist.TruncatedNormal(0.0, 1e-3, low=-1.0, high=1.0), 1e6, 0.2),
        (dist.Kumaraswamy(1.0, 1.0), 1 / 3, 0.1),
        (dist.Dirichlet(jnp.array([2.0, 3.0])), 1.0, 0.1),
        (dist.GaussianRandomWalk(0.5, num_steps=3), [[8, -4, 0], [-4, 8, -4], [0, -4, 4]], 1e-5),
    ],
    ids=["Gumbel", "TruncatedNormal", "Kumaraswamy", "Dirichlet", "GaussianRandomWalk"],
)
def test_other_priors_have_it_from_draws(prior, expected, error):
    shape = np.shape(expected)[:1] or (prior.event_shape and (1,))
    found = jax.jit(gauss_newton(lambda: numpyro.sample("x", prior), (), {}))(
        {"x": jnp.full(shape, 0.7)}
    )
    if prior.event_dim == 0 and "Truncated" in type(prior).__name__:
        # the unconstrained value moves the normal by a quarter of the interval
        expected = expected / 4
    np.testing.assert_allclose(found, np.atleast_2d(expected), rtol=error, atol=1e-4)


def test_batches_of_priors_without_a_closed_form():
    def model():
        numpyro.sample("a", dist.Gumbel(0.0, jnp.array([[1.0], [0.5]])).expand([2, 3]).to_event(1))
        numpyro.sample("b", dist.Dirichlet(jnp.array([2.0, 3.0])).expand([4]))
        numpyro.sample("c", dist.LKJCholesky(3).expand([2]))

    z = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((4, 1)), "c": jnp.zeros((2, 3))}
    found = np.array(jax.jit(gauss_newton(model, (), {}))(z))
    sizes = np.diag(found)
    np.testing.assert_allclose(sizes[:10], [1, 1, 1, 4, 4, 4, 1, 1, 1, 1], rtol=0.3)
    np.testing.assert_array_equal(found[10:13, 10:13], found[13:, 13:])
    assert np.linalg.eigvalsh(found).min() > 0.1
    found[10:13, 10:13] = found[13:, 13:] = 0
    np.testing.assert_array_equal(found - np.diag(np.diag(found)), 0)


def test_an_improper_prior_has_the_curvature_of_its_jacobian():
    def model():
        for name, shape in (("a", ()), ("b", (2,))):
            numpyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), shape))
        numpyro.sample("c", dist.Normal(0.0, 1.0))

    found = jax.jit(gauss_newton(model, (), {}))(
        {"a": jnp.ones(()), "b": jnp.ones(2), "c": jnp.ones(())}
    )
    np.testing.assert_array_equal(found, np.diag([0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    "make",
    [dist.HalfNormal, dist.HalfCauchy, dist.Exponential, lambda s: dist.Gamma(3.0, s)],
    ids=["HalfNormal", "HalfCauchy", "Exponential", "Gamma"],
)
def test_scales_of_scales_are_moved_with_them(make, x64):
    """The joint score of a latent scale and the values below it has the information found."""

    def model():
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1e6))
        numpyro.sample("x", make(scale))

    u = jnp.asarray(0.4)
    x = make(jnp.exp(u)).sample(jax.random.key(0), (200_000,))

    def score(v):
        joint = lambda u, v: make(jnp.exp(u)).log_prob(jnp.exp(v)) + v  # noqa: E731
        return jnp.stack(jax.grad(joint, argnums=(0, 1))(u, v))

    found = jax.jit(gauss_newton(model, (), {}))({"scale": u, "x": jnp.asarray(-3.0)})
    np.testing.assert_allclose(found, np.cov(jax.vmap(score)(jnp.log(x)).T), rtol=0.05, atol=0.01)


def weak(size):
    """Half normal priors that the data push to zero."""

    def model():
        x = numpyro.sample("x", dist.HalfNormal(1.0).expand([size]))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=-jnp.ones(size))

    return model


@pytest.mark.filterwarnings("ignore:chains disagree")  # they may: see the R-hat that is asked for
@pytest.mark.parametrize("kernel", [SMMALA, MMALA, ALSMMALA, AMSMMALA])
def test_weak_data_leave_a_step_that_moves(kernel):
    mcmc = MCMC(
        kernel(weak(10), metric="gauss_newton"),
        num_warmup=400,
        num_samples=400,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    x = mcmc.get_samples(group_by_chain=True)["x"]
    assert split_gelman_rubin(np.asarray(x)).max() < 1.4
    assert float(np.mean(mcmc.last_state.adapt_state.step_size)) > 0.3


def test_the_derivative_of_the_metric_is_that_of_what_it_divides_by(x64):
    x, y = logistic_data()
    information = gauss_newton(logistic, (x, y), {})
    z, direction = jnp.array([0.3, -0.2, 0.5]), jnp.array([1.0, 0.5, -0.3])
    slope = jax.jvp(lambda z: information({"beta": z}), (z,), (direction,))[1]
    step = 1e-5 * direction
    expected = (information({"beta": z + step}) - information({"beta": z - step})) / 2e-5
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)


def test_constrained_latents_in_a_scope(x64):
    def inner():
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=jnp.ones(3))

    def model():
        with numpyro.handlers.scope(prefix="outer"):
            numpyro.handlers.scope(inner, prefix="a")()

    found = jax.jit(gauss_newton(model, (), {}))({"outer/a/scale": jnp.asarray(0.3)})
    np.testing.assert_allclose(found, [[2.0 + 3 * 2.0]], rtol=1e-6)


@pytest.mark.parametrize("missing", [0.0, np.nan])
def test_missing_values(missing):
    def model(y, mask):
        mean = numpyro.sample("mean", dist.Normal(0, 2.0))
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([3]), obs=y, obs_mask=mask)

    mask = jnp.array([True, False, True])
    found = gauss_newton(model, (jnp.array([1.0, missing, 2.0]), mask), {})
    found = found({"mean": jnp.zeros(()), "y_unobserved": jnp.zeros(3)})
    # two values and a missing one know the mean, which moves against the missing one only
    expected = np.diag([0.25 + 3, 1, 1, 1])
    expected[0, 2] = expected[2, 0] = -1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_parameters_that_a_mask_hides_may_be_anything():
    def model(y):
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        rate = p / jnp.array([1.0, 0.0])
        with numpyro.handlers.mask(mask=jnp.array([True, False])):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    found = jax.jit(gauss_newton(model, (jnp.array([1, 2]),), {}))({"p": jnp.zeros(())})
    np.testing.assert_allclose(found, [[1.0 + 0.25**2 / 0.5]], rtol=1e-5)


def test_what_is_certain_does_not_count():
    def model():
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        numpyro.sample("y", dist.Categorical(probs=jnp.stack([p, 1 - p, 0 * p])), obs=1)

    found = jax.jit(gauss_newton(model, (), {}))({"p": jnp.zeros(())})
    np.testing.assert_allclose(found, [[1.0 + 0.25]], rtol=1e-5)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_a_multivariate_normal_with_a_scalar_location(batch, x64):
    covariance = jnp.array([[2.0, 0.3], [0.3, 1.0]])

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 2.0))
        numpyro.sample("x", dist.MultivariateNormal(0.0, covariance))
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance), obs=y)

    y = jnp.zeros((*batch, 2))
    found = jax.jit(gauss_newton(model, (y,), {}))({"mean": jnp.ones(()), "x": jnp.ones(2)})
    precision = np.linalg.inv(covariance)
    expected = 0.25 + (batch or (1,))[0] * precision.sum()
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(found[1:, 1:], precision, rtol=1e-6)


@pytest.mark.parametrize("factor", [3.0, -jnp.ones(4)])
def test_a_constant_factor_says_nothing(factor):
    def model(y):
        numpyro.sample("z", dist.Normal(0, 1))
        numpyro.factor("constant", factor)
        numpyro.factor("data", jnp.sum(y))

    found = jax.jit(lambda y: jax.jit(gauss_newton(model, (y,), {}))({"z": jnp.zeros(())}))(
        jnp.ones(3)
    )
    np.testing.assert_allclose(found, [[1.0]])


def test_masks_and_scales_count():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1e6))
        with numpyro.handlers.scale(scale=3.0):
            with numpyro.handlers.mask(mask=jnp.array([True, False])):
                numpyro.sample("y", dist.Normal(mean, 1.0).expand([2]), obs=y)

    found = jax.jit(gauss_newton(model, (jnp.zeros(2),), {}))({"mean": jnp.zeros(())})
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
        kernel(logistic, metric="gauss_newton", dense_mass=False),
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
        numpyro.sample("counts", dist.ZeroInflatedPoisson(0.2, rate), obs=y)

    mcmc = MCMC(
        SMMALA(model, metric="gauss_newton"), num_warmup=10, num_samples=10, progress_bar=False
    )
    with pytest.raises(ValueError, match=r"site 'counts' \(ZeroInflatedPoisson\) has no Fisher"):
        mcmc.run(jax.random.key(0), y=jnp.array([1, 2]))


def test_factor_sites_are_named():
    def model():
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.factor("penalty", -(z**4))

    with pytest.raises(ValueError, match=r"factor 'penalty' depends on the latents"):
        jax.jit(gauss_newton(model, (), {}))({"z": jnp.zeros(())})


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
