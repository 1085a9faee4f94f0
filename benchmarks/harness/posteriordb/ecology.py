"""Population ecology after Kéry and Schaub (2012), their discrete variables summed out."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logit
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


def augmented(omega, log_seen, captures):
    """Adds the log probability of capture histories, of animals that exist or, never seen, do not.

    ``omega`` is the probability that one of the augmented animals exists, ``log_seen`` that of each
    history if it does.
    """
    present = jnp.log(omega) + log_seen
    unseen = jnp.logaddexp(present, jnp.log1p(-omega))
    numpyro.factor("y", jnp.where(captures > 0, present, unseen).sum())


@port("M0_data-M0_model")
def M0_model(T, y):
    """Capture and recapture, one probability of detection: D = 2."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    captures = y.sum(axis=1)
    augmented(omega, dist.Binomial(T, p).log_prob(captures), captures)


@port("Mb_data-Mb_model")
def Mb_model(y):
    """Capture and recapture, animals answering to a capture just before: D = 3."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1))
    c = numpyro.sample("c", dist.Uniform(0, 1))
    before = jnp.pad(y[:, :-1], ((0, 0), (1, 0)))
    histories = dist.Bernoulli(jnp.where(before == 1, c, p)).log_prob(y).sum(axis=1)
    augmented(omega, histories, y.sum(axis=1))


@port("Mt_data-Mt_model")
def Mt_model(T, y):
    """Capture and recapture, a probability of detection for each occasion: D = 4."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    p = numpyro.sample("p", dist.Uniform(0, 1).expand([T]))
    augmented(omega, dist.Bernoulli(p).log_prob(y).sum(axis=1), y.sum(axis=1))


@port("Mh_data-Mh_model")
def Mh_model(M, T, y):
    """Capture and recapture, each animal with a detection of its own: D = 388."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    mean_p = numpyro.sample("mean_p", dist.Uniform(0, 1))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 5))
    eps_raw = numpyro.sample("eps_raw", dist.Normal(0, 1).expand([M]))
    eps = logit(mean_p) + sigma * eps_raw
    augmented(omega, dist.Binomial(T, logits=eps).log_prob(y), y)


@port("Mth_data-Mth_model")
def Mth_model(M, T, y):
    """Capture and recapture, detection by animal and occasion: D = 394."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    mean_p = numpyro.sample("mean_p", dist.Uniform(0, 1).expand([T]))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 5))
    eps_raw = numpyro.sample("eps_raw", dist.Normal(0, 1).expand([M]))
    logit_p = logit(mean_p) + sigma * eps_raw[:, None]
    augmented(omega, dist.Bernoulli(logits=logit_p).log_prob(y).sum(axis=1), y.sum(axis=1))


@port("Mtbh_data-Mtbh_model")
def Mtbh_model(M, T, y):
    """Capture and recapture, detection by animal, occasion and capture just before: D = 154."""
    omega = numpyro.sample("omega", dist.Uniform(0, 1))
    mean_p = numpyro.sample("mean_p", dist.Uniform(0, 1).expand([T]))
    gamma = numpyro.sample("gamma", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 3))
    eps_raw = numpyro.sample("eps_raw", dist.Normal(0, 1).expand([M]))
    before = jnp.pad(y[:, :-1], ((0, 0), (1, 0)))
    logit_p = logit(mean_p) + sigma * eps_raw[:, None] + gamma * before
    augmented(omega, dist.Bernoulli(logits=logit_p).log_prob(y).sum(axis=1), y.sum(axis=1))


@port("GLM_Poisson_Data-GLM_Poisson_model")
def GLM_Poisson_model(C, year):
    """Counts of peregrines, a cubic trend: D = 4."""
    alpha = numpyro.sample("alpha", dist.Uniform(-20, 20))
    beta1 = numpyro.sample("beta1", dist.Uniform(-10, 10))
    beta2 = numpyro.sample("beta2", dist.Uniform(-10, 10))
    beta3 = numpyro.sample("beta3", dist.Uniform(-10, 10))
    log_lambda = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3
    numpyro.sample("C", dist.Poisson(jnp.exp(log_lambda)), obs=C)


@port("GLM_Binomial_data-GLM_Binomial_model")
def GLM_Binomial_model(C, N, year):
    """Breeding success of eagles, a quadratic trend: D = 3."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 100))
    beta1 = numpyro.sample("beta1", dist.Normal(0, 100))
    beta2 = numpyro.sample("beta2", dist.Normal(0, 100))
    logit_p = alpha + beta1 * year + beta2 * year**2
    numpyro.sample("C", dist.Binomial(N, logits=logit_p), obs=C)


@port("GLMM_Poisson_data-GLMM_Poisson_model")
def GLMM_Poisson_model(n, C, year):
    """Counts of peregrines, a cubic trend and effects of years: D = 45.

    Stan declares beta2 up to 20, but its prior ends at 10, as here.
    """
    alpha = numpyro.sample("alpha", dist.Uniform(-20, 20))
    beta1 = numpyro.sample("beta1", dist.Uniform(-10, 10))
    beta2 = numpyro.sample("beta2", dist.Uniform(-10, 10))
    beta3 = numpyro.sample("beta3", dist.Uniform(-10, 10))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 5))
    eps = numpyro.sample("eps", dist.Normal(0, sigma).expand([n]))
    log_lambda = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3 + eps
    numpyro.sample("C", dist.Poisson(jnp.exp(log_lambda)), obs=C)


@port("GLMM_data-GLMM1_model")
def GLMM1_model(nsite, obs, obssite):
    """Counts of tits with effects of sites: D = 237."""
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0, 10))
    sd_alpha = numpyro.sample("sd_alpha", dist.Uniform(0, 5))
    alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, sd_alpha).expand([nsite]))
    numpyro.sample("obs", dist.Poisson(jnp.exp(alpha[obssite - 1])), obs=obs)


@port("butterfly-multi_occupancy")
def multi_occupancy(J, K, n, X, S):
    """Occupancy and detection of butterfly species, seen and unseen (Dorazio et al. 2006): D = 106.

    Stan's pairs (uv1, uv2) are normal together; here uv2 given uv1.
    """
    alpha = numpyro.sample("alpha", dist.Cauchy(0, 2.5))
    beta = numpyro.sample("beta", dist.Cauchy(0, 2.5))
    omega = numpyro.sample("Omega", dist.Beta(2, 2))
    wide = AffineTransform(-1.0, 2.0, domain=constraints.unit_interval)
    rho = numpyro.sample("rho_uv", dist.TransformedDistribution(dist.Beta(2, 2), wide))
    sigma = numpyro.sample("sigma_uv", dist.HalfCauchy(2.5).expand([2]))
    uv1 = numpyro.sample("uv1", dist.Normal(0, sigma[0]).expand([S]))
    slope, rest = rho * sigma[1] / sigma[0], sigma[1] * jnp.sqrt(1 - rho**2)
    uv2 = numpyro.sample("uv2", dist.Normal(slope * uv1, rest))
    psi, detected = (alpha + uv1)[:, None], dist.Binomial(K, logits=(beta + uv2)[:, None])

    visits = jnp.pad(X, ((0, S - n), (0, 0)))
    occupied = jax.nn.log_sigmoid(psi) + detected.log_prob(visits)
    empty = jnp.logaddexp(occupied, jax.nn.log_sigmoid(-psi))
    available = jnp.log(omega) + jnp.where(visits > 0, occupied, empty).sum(axis=1)
    absent = jnp.logaddexp(available, jnp.log1p(-omega))
    numpyro.factor("X", jnp.where(jnp.arange(S) < n, available, absent).sum())
