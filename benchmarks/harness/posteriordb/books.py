"""Examples of BUGS, and of Lee and Wagenmakers (2013)."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit, logit, logsumexp
from numpyro.distributions import constraints

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


@port("Rate_1_data-Rate_1_model")
def Rate_1_model(n, k):
    """A rate: D = 1."""
    theta = numpyro.sample("theta", dist.Beta(1, 1))
    numpyro.sample("k", dist.Binomial(n, theta), obs=k)


@port("Rate_2_data-Rate_2_model")
def Rate_2_model(n1, n2, k1, k2):
    """Difference of two rates: D = 2."""
    theta1 = numpyro.sample("theta1", dist.Beta(1, 1))
    theta2 = numpyro.sample("theta2", dist.Beta(1, 1))
    numpyro.deterministic("delta", theta1 - theta2)
    numpyro.sample("k1", dist.Binomial(n1, theta1), obs=k1)
    numpyro.sample("k2", dist.Binomial(n2, theta2), obs=k2)


@port("Rate_3_data-Rate_3_model")
def Rate_3_model(n1, n2, k1, k2):
    """A common rate: D = 1."""
    theta = numpyro.sample("theta", dist.Beta(1, 1))
    numpyro.sample("k1", dist.Binomial(n1, theta), obs=k1)
    numpyro.sample("k2", dist.Binomial(n2, theta), obs=k2)


@port("Rate_4_data-Rate_4_model")
def Rate_4_model(n, k):
    """A rate, beside one from the prior: D = 2."""
    theta = numpyro.sample("theta", dist.Beta(1, 1))
    numpyro.sample("thetaprior", dist.Beta(1, 1))
    numpyro.sample("k", dist.Binomial(n, theta), obs=k)


@port("Rate_5_data-Rate_5_model")
def Rate_5_model(n1, n2, k1, k2):
    """A common rate, to predict from: D = 1."""
    theta = numpyro.sample("theta", dist.Beta(1, 1))
    numpyro.sample("k1", dist.Binomial(n1, theta), obs=k1)
    numpyro.sample("k2", dist.Binomial(n2, theta), obs=k2)


@port("Survey_data-Survey_model")
def Survey_model(nmax, k):
    """Rate of return of surveys whose number is unknown and summed out: D = 1."""
    theta = numpyro.sample("theta", dist.Uniform(0, 1))
    n = np.arange(k.max(), nmax + 1)[:, None]
    lp_parts = dist.Binomial(n, theta).log_prob(k).sum(axis=1) - jnp.log(nmax)
    numpyro.factor("k", logsumexp(lp_parts))


@port("bones_data-bones_model")
def bones_model(nChild, gamma, delta, ncat, grade):
    """Skeletal age of children from grades of bones, some of them missing (BUGS): D = 13."""
    theta = numpyro.sample("theta", dist.Normal(0, 36).expand([nChild]))
    thresholds = np.where(np.arange(1, 5) < ncat[:, None], gamma, np.inf)
    above = expit(delta[:, None] * (theta[:, None, None] - thresholds))
    p = -jnp.diff(above, prepend=1, append=0)
    seen = grade != -1
    found = jnp.take_along_axis(p, np.where(seen, grade - 1, 0)[..., None], axis=2)[..., 0]
    numpyro.factor("grade", jnp.log(jnp.where(seen, found, 1)).sum())


def before(y):
    """Numbers of avoidances and of shocks of each dog before each trial."""
    shocks = np.cumsum(y, axis=1) - y
    return np.arange(y.shape[1]) - shocks, shocks


@port("dogs-dogs")
def dogs(y):
    """Dogs learn to avoid a shock, a logistic regression: D = 3."""
    avoided, shocked = before(y)
    beta = numpyro.sample("beta", dist.Normal(0, 100).expand([3]))
    p = beta[0] + beta[1] * avoided + beta[2] * shocked
    numpyro.sample("y", dist.Bernoulli(logits=p), obs=y)


@port("dogs-dogs_log")
def dogs_log(y):
    """Dogs learn to avoid a shock, logistic without an intercept: D = 2."""
    avoided, shocked = before(y)
    beta = numpyro.sample("beta", dist.Uniform(jnp.array([-100.0, 0.0]), jnp.array([0.0, 100.0])))
    numpyro.sample("y", dist.Bernoulli(logits=beta[0] * avoided + beta[1] * shocked), obs=y)


@port("dogs-dogs_hierarchical")
def dogs_hierarchical(y):
    """Dogs learn to avoid a shock, each trial with a factor to its probability: D = 2."""
    avoided, shocked = before(y)
    a = numpyro.sample("a", dist.Uniform(0, 1))
    b = numpyro.sample("b", dist.Uniform(0, 1))
    numpyro.sample("y", dist.Bernoulli(a**shocked * b**avoided), obs=y)


@port("dogs-dogs_nonhierarchical")
def dogs_nonhierarchical(n_dogs, y):
    """Dogs learn to avoid a shock, each by factors of its own: D = 65."""
    avoided, shocked = before(y)
    mu = numpyro.sample("mu_logit_ab", dist.Logistic(0, 1).expand([2]))
    sigma = numpyro.sample("sigma_logit_ab", dist.HalfNormal(1).expand([2]))
    L = numpyro.sample("L_logit_ab", dist.LKJCholesky(2, 2))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([n_dogs, 2]))
    logit_ab = mu + z @ (sigma[:, None] * L)  # not L's transpose, as in Stan's program
    a, b = expit(logit_ab[:, :1]), expit(logit_ab[:, 1:])
    numpyro.sample("y", dist.Bernoulli(a**shocked * b**avoided), obs=y)


@port("dugongs_data-dugongs_model")
def dugongs_model(x, Y):
    """Growth of sea cows (BUGS): D = 4."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 1000))
    beta = numpyro.sample("beta", dist.Normal(0, 1000))
    base = numpyro.sample("lambda", dist.Uniform(0.5, 1))
    tau = numpyro.sample("tau", dist.Gamma(0.0001, 0.0001))
    sigma = numpyro.deterministic("sigma", 1 / jnp.sqrt(tau))
    numpyro.deterministic("U3", logit(base))
    numpyro.sample("Y", dist.Normal(alpha - beta * base**x, sigma), obs=Y)


@port("rats_data-rats_model")
def rats_model(N, rat, x, y, xbar):
    """Growth of thirty rats, a line each (BUGS): D = 65."""
    positive = dist.ImproperUniform(constraints.positive, (), ())
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0, 100))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0, 100))
    sigma_y = numpyro.sample("sigma_y", positive)
    sigma_alpha = numpyro.sample("sigma_alpha", positive)
    sigma_beta = numpyro.sample("sigma_beta", positive)
    alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, sigma_alpha).expand([N]))
    beta = numpyro.sample("beta", dist.Normal(mu_beta, sigma_beta).expand([N]))
    mean = alpha[rat - 1] + beta[rat - 1] * (x - xbar)
    numpyro.sample("y", dist.Normal(mean, sigma_y), obs=y)


def germinated(n, N, x1, x2, b, scale):
    """Germination of seeds by seed type and root extract, given effects b of plates."""
    alpha0 = numpyro.sample("alpha0", dist.Normal(0, scale))
    alpha1 = numpyro.sample("alpha1", dist.Normal(0, scale))
    alpha2 = numpyro.sample("alpha2", dist.Normal(0, scale))
    alpha12 = numpyro.sample("alpha12", dist.Normal(0, scale))
    logits = alpha0 + alpha1 * x1 + alpha2 * x2 + alpha12 * x1 * x2 + b
    numpyro.sample("n", dist.Binomial(N, logits=logits), obs=n)


@port("seeds_data-seeds_model")
def seeds_model(I, n, N, x1, x2):
    """Germination of seeds, a precision with a vague prior (BUGS): D = 26."""
    tau = numpyro.sample("tau", dist.Gamma(0.001, 0.001))
    sigma = numpyro.deterministic("sigma", 1 / jnp.sqrt(tau))
    b = numpyro.sample("b", dist.Normal(0, sigma).expand([I]))
    germinated(n, N, x1, x2, b, scale=1000)


@port("seeds_data-seeds_centered_model")
def seeds_centered_model(I, n, N, x1, x2):
    """Germination of seeds, effects of plates about their mean: D = 26."""
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))
    c = numpyro.sample("c", dist.Normal(0, sigma).expand([I]))
    b = numpyro.deterministic("b", c - c.mean())
    germinated(n, N, x1, x2, b, scale=1)


@port("seeds_data-seeds_stanified_model")
def seeds_stanified_model(I, n, N, x1, x2):
    """Germination of seeds, a scale with a half-Cauchy prior: D = 26."""
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))
    b = numpyro.sample("b", dist.Normal(0, sigma).expand([I]))
    germinated(n, N, x1, x2, b, scale=1)


@port("surgical_data-surgical_model")
def surgical_model(N, r, n):
    """Deaths after surgery in twelve hospitals (BUGS): D = 14."""
    mu = numpyro.sample("mu", dist.Normal(0, 1000))
    sigmasq = numpyro.sample("sigmasq", dist.InverseGamma(0.001, 0.001))
    sigma = numpyro.deterministic("sigma", jnp.sqrt(sigmasq))
    b = numpyro.sample("b", dist.Normal(mu, sigma).expand([N]))
    numpyro.deterministic("p", expit(b))
    numpyro.sample("r", dist.Binomial(n, logits=b), obs=r)


@port("lsat_data-lsat_model")
def lsat_model(N, T, culm, response):
    """Law school admission test, a Rasch model (BUGS): D = 1006."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 100).expand([T]))
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([N]))
    beta = numpyro.sample("beta", dist.HalfNormal(100))
    r = np.repeat(response, np.diff(culm, prepend=0), axis=0)
    numpyro.sample("r", dist.Bernoulli(logits=beta * theta[:, None] - alpha), obs=r)
