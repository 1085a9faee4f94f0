"""Time series."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


def flat(support, *shape: int) -> dist.Distribution:
    """No prior on a support."""
    return dist.ImproperUniform(support, (), event_shape=shape)


@port("arK-arK")
def arK(K, y):
    """Autoregression of order 5: D = 7."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 10))
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([K]))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    lags = np.stack([y[K - k : len(y) - k] for k in range(1, K + 1)], axis=1)
    numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[K:])


@port("arma-arma11")
def arma11(y):
    """Autoregression and moving average of order 1, from no error at the mean: D = 4."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    phi = numpyro.sample("phi", dist.Normal(0, 2))
    theta = numpyro.sample("theta", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

    def step(carry, value):
        before, error = carry
        nu = mu + phi * before + theta * error
        return (value, value - nu), nu

    _, nu = jax.lax.scan(step, (mu, jnp.zeros_like(mu)), jnp.asarray(y, mu.dtype))
    law = dist.Normal(nu, sigma, validate_args=False)  # far from invertible, nu overflows
    numpyro.sample("y", law, obs=y)


@port("garch-garch11")
def garch11(y, sigma1):
    """Conditional variances of order 1, flat where the process is stationary: D = 4."""
    mu = numpyro.sample("mu", flat(dist.constraints.real))
    alpha0 = numpyro.sample("alpha0", flat(dist.constraints.positive))
    alpha1 = numpyro.sample("alpha1", dist.Uniform(0, 1))
    # not improper, in whose place NumPyro takes the bounds of the start when it returns draws
    beta1 = numpyro.sample("beta1", dist.Uniform(0, 1 - alpha1))
    numpyro.factor("flat", jnp.log1p(-alpha1))

    def step(variance, value):
        variance = alpha0 + alpha1 * (value - mu) ** 2 + beta1 * variance
        return variance, variance

    first = jnp.asarray(sigma1, mu.dtype) ** 2
    _, later = jax.lax.scan(step, first, jnp.asarray(y[:-1], mu.dtype))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(jnp.append(first, later))), obs=y)


@port("uk_drivers-state_space_stochastic_level_stochastic_seasonal")
def state_space_stochastic_level_stochastic_seasonal(n, x, y, w):
    """Drivers killed by months, a level and seasons that wander, three ordered scales: D = 389."""
    bounds = y.mean() + 3 * y.std(ddof=1) * np.array([-1, 1])
    mu = numpyro.sample("mu", flat(dist.constraints.interval(*bounds), n))
    seasonal = numpyro.sample("seasonal", flat(dist.constraints.real, n))
    beta = numpyro.sample("beta", flat(dist.constraints.real))
    lam = numpyro.sample("lambda", flat(dist.constraints.real))
    sigma = numpyro.sample("sigma", flat(dist.constraints.positive_ordered_vector, 3))
    numpyro.factor("sigma_prior", dist.StudentT(4, 0, 1).log_prob(sigma).sum())
    years = jnp.convolve(seasonal, jnp.ones(12), mode="valid")
    numpyro.factor("seasonal_prior", dist.Normal(0, sigma[0]).log_prob(years).sum())
    numpyro.factor("mu_prior", dist.Normal(mu[:-1], sigma[1]).log_prob(mu[1:]).sum())
    yhat = numpyro.deterministic("yhat", mu + beta * x + lam * w)
    numpyro.sample("y", dist.Normal(yhat + seasonal, sigma[2]), obs=y)


@port("rstan_downloads-prophet")
def prophet(t, y, t_change, X, sigmas, tau, s_a, s_m):
    """Downloads by days: a line that bends at 25 times, and seasons: D = 62.

    Of the growth curves of the program only the line, that of these data, is here.
    """
    k = numpyro.sample("k", dist.Normal(0, 5))
    m = numpyro.sample("m", dist.Normal(0, 5))
    delta = numpyro.sample("delta", dist.Laplace(0, tau).expand([len(t_change)]))
    sigma_obs = numpyro.sample("sigma_obs", dist.HalfNormal(0.5))
    beta = numpyro.sample("beta", dist.Normal(0, sigmas))
    after = (t[:, None] >= t_change).astype(float)
    trend = (k + after @ delta) * t + m - after @ (t_change * delta)
    y_hat = trend * (1 + X @ (beta * s_m)) + X @ (beta * s_a)
    numpyro.sample("y", dist.Normal(y_hat, sigma_obs), obs=y)
