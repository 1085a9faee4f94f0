"""Item response models."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


@port("irt_2pl-irt_2pl")
def irt_2pl(I, J, y):
    """Two-parameter logistic model, simulated: D = 144."""
    sigma_theta = numpyro.sample("sigma_theta", dist.HalfCauchy(2))
    theta = numpyro.sample("theta", dist.Normal(0, sigma_theta).expand([J]))
    sigma_a = numpyro.sample("sigma_a", dist.HalfCauchy(2))
    a = numpyro.sample("a", dist.LogNormal(0, sigma_a).expand([I]))
    mu_b = numpyro.sample("mu_b", dist.Normal(0, 5))
    sigma_b = numpyro.sample("sigma_b", dist.HalfCauchy(2))
    b = numpyro.sample("b", dist.Normal(mu_b, sigma_b).expand([I]))
    numpyro.sample("y", dist.Bernoulli(logits=a[:, None] * (theta - b[:, None])), obs=y)


@port("sat-hier_2pl")
def hier_2pl(I, J, ii, jj, y):
    """Two-parameter logistic model whose items' parameters are normal together: D = 669.

    Stan's pairs (xi1, xi2) are normal together; here xi2 given xi1.
    """
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([J]))
    mu = numpyro.sample("mu", dist.Normal(0, jnp.array([1.0, 5.0])))
    tau = numpyro.sample("tau", dist.Exponential(0.1).expand([2]))
    L = numpyro.sample("L_Omega", dist.LKJCholesky(2, 4))
    xi1 = numpyro.sample("xi1", dist.Normal(mu[0], tau[0]).expand([I]))
    mean = mu[1] + tau[1] * L[1, 0] * (xi1 - mu[0]) / tau[0]
    xi2 = numpyro.sample("xi2", dist.Normal(mean, tau[1] * L[1, 1]))
    alpha, beta = jnp.exp(xi1), xi2
    logits = alpha[ii - 1] * (theta[jj - 1] - beta[ii - 1])
    numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def abilities(J, K, W):
    """Abilities of persons, regressed on their covariates.

    Stan's program means to scale those of two values by their range, and scales all by two standard
    deviations, for an `==` binds less than a `+`.
    """
    centred = (W[:, 1:] - W[:, 1:].mean(axis=0)) / (2 * W[:, 1:].std(axis=0, ddof=1))
    adjusted = np.concatenate([W[:, :1], centred], axis=1)
    slopes = numpyro.sample("lambda_adj", dist.StudentT(3, 0, 1).expand([K]))
    return numpyro.sample("theta", dist.Normal(adjusted @ slopes, 1).expand([J]))


def sum_to_zero(name, size):
    """Normal parameters that sum to zero, all but the last one free."""
    prior = dist.Normal(0, 3)
    free = numpyro.sample(f"{name}_free", prior.expand([size - 1]))
    numpyro.factor(f"{name}_last", prior.log_prob(-free.sum()))
    return numpyro.deterministic(name, jnp.append(free, -free.sum()))


@port("fims_Aus_Jpn_irt-2pl_latent_reg_irt")
def two_pl_latent_reg_irt(I, J, ii, jj, y, K, W):
    """Two-parameter logistic model of a mathematics study, with covariates of persons: D = 531."""
    alpha = numpyro.sample("alpha", dist.LogNormal(1, 1).expand([I]))
    beta = sum_to_zero("beta", I)
    theta = abilities(J, K, W)
    logits = alpha[ii - 1] * theta[jj - 1] - beta[ii - 1]
    numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def steps_up(steps):
    """Law of an ordinal answer, given the logit of each step from one answer to the next."""
    logits = jnp.pad(jnp.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    return dist.Categorical(logits=logits, validate_args=False)  # of -inf, where there is no answer


@port("science_irt-grsm_latent_reg_irt")
def grsm_latent_reg_irt(I, J, ii, jj, y, K, W):
    """Generalised rating scale model of attitudes to science: D = 408."""
    alpha = numpyro.sample("alpha", dist.LogNormal(1, 1).expand([I]))
    beta = sum_to_zero("beta", I)
    kappa = sum_to_zero("kappa", y.max())
    theta = abilities(J, K, W)
    location = theta[jj - 1] * alpha[ii - 1] - beta[ii - 1]
    numpyro.sample("y", steps_up(location[:, None] - kappa), obs=y)


@port("timssAusTwn_irt-gpcm_latent_reg_irt")
def gpcm_latent_reg_irt(I, J, ii, jj, y, K, W):
    """Generalised partial credit model of a mathematics study, with covariates: D = 530."""
    m = np.zeros(I, int)
    np.maximum.at(m, ii - 1, y)
    place = (np.cumsum(m) - m)[:, None] + np.arange(m.max())
    used = np.arange(m.max()) < m[:, None]  # an item may have fewer answers than others
    alpha = numpyro.sample("alpha", dist.LogNormal(1, 1).expand([I]))
    beta = sum_to_zero("beta", m.sum())
    theta = abilities(J, K, W)
    thresholds = jnp.where(used, beta[np.where(used, place, 0)], jnp.inf)
    location = theta[jj - 1] * alpha[ii - 1]
    numpyro.sample("y", steps_up(location[:, None] - thresholds[ii - 1]), obs=y)
