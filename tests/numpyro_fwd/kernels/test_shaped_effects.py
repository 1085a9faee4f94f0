"""Effects whose laws have a shape: rates, proportions and shares of groups, against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC
from scipy.special import betaln, expit, gammaln

from numpyro_fwd import AutoMALA, AutoNUTS

HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
COUNTS = np.array([0, 1, 1, 3, 0, 2, 7, 0, 1, 4, 2, 0, 5, 1, 0, 0])
ROWS = np.random.default_rng(0).multinomial(9, [0.1, 0.6, 0.3], size=12)
SHARES = np.array([0.2, 0.5, 0.3])
GRID = np.linspace(-8.0, 14.0, 1101)


def players():
    """Beta laws with a heavy tail of the concentration, as Efron and Morris' batters."""
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    law = dist.Beta(m * kappa, (1 - m) * kappa)
    phi = numpyro.sample("phi", law.expand([len(HITS)]).to_event(1))
    numpyro.sample("hits", dist.Binomial(45, phi), obs=HITS)
    numpyro.deterministic("size", jnp.log(kappa))


def of_players(log_size, logit):
    kappa, m = np.exp(log_size), expit(logit)
    a, b = m * kappa, (1 - m) * kappa
    hits = HITS[:, None, None]
    rows = betaln(a + hits, b + 45 - hits) - betaln(a, b)
    return rows.sum(0) + np.log(m * (1 - m)) + np.where(log_size > 0, -1.5 * log_size, -np.inf)


def breakdowns():
    """Gamma laws of unknown shape and mean."""
    size = numpyro.sample("size", dist.Normal(0, 1.5))
    mean = jnp.exp(numpyro.sample("mean", dist.Normal(0, 1)))
    shape = jnp.exp(size)
    with numpyro.plate("machines", len(COUNTS)):
        rate = numpyro.sample("rate", dist.Gamma(shape, shape / mean))
        numpyro.sample("counts", dist.Poisson(rate), obs=COUNTS)


def of_breakdowns(log_shape, log_mean):
    shape, mean, y = np.exp(log_shape), np.exp(log_mean), COUNTS[:, None, None]
    rows = gammaln(y + shape) - gammaln(shape) + shape * np.log(shape / mean)
    rows = rows - (y + shape) * np.log1p(shape / mean)
    return rows.sum(0) - 0.5 * (log_shape / 1.5) ** 2 - 0.5 * log_mean**2


def places():
    """Dirichlet laws of unknown concentration."""
    size = numpyro.sample("size", dist.Normal(1, 2))
    law = dist.Dirichlet(jnp.exp(size) * SHARES)
    theta = numpyro.sample("theta", law.expand([len(ROWS)]).to_event(1))
    numpyro.sample("y", dist.Multinomial(ROWS.sum(1), theta), obs=ROWS)


def of_places(log_size, _):
    a, y = np.exp(log_size)[..., None] * SHARES, ROWS[:, None, None]
    rows = gammaln(a.sum(-1)) - gammaln(a.sum(-1) + y.sum(-1))
    rows = rows + (gammaln(a + y) - gammaln(a)).sum(-1)
    return rows.sum(0) - 0.5 * ((log_size - 1) / 2) ** 2


MODELS = {"beta": (players, of_players), "gamma": (breakdowns, of_breakdowns)}
MODELS["dirichlet"] = places, of_places


def exact(logdensity):
    """Mean and standard deviation of the logarithm of the size."""
    other = np.linspace(-4.0, 3.0, 281)
    log_p = logdensity(GRID[:, None], other[None])
    p = np.exp(log_p - log_p.max()).sum(1)
    p /= p.sum()
    mean = p @ GRID
    return mean, np.sqrt(p @ (GRID - mean) ** 2)


@pytest.mark.long
@pytest.mark.parametrize(
    "name, kernel",
    [*((name, AutoNUTS) for name in MODELS), ("beta", AutoMALA)],
    ids=[*MODELS, "beta-AutoMALA"],
)
def test_the_size_of_a_shape_is_that_of_quadrature(name, kernel):
    model, logdensity = MODELS[name]
    is_fast = kernel is AutoNUTS
    mcmc = MCMC(
        kernel(model),
        num_warmup=1000,
        num_samples=1000 if is_fast else 8000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(3))
    size = np.asarray(mcmc.get_samples(group_by_chain=True)["size"], np.float64)
    mean, sd = exact(logdensity)
    assert split_gelman_rubin(size) < (1.02 if is_fast else 1.1)
    np.testing.assert_allclose(size.mean(), mean, atol=(0.1 if is_fast else 0.25) * sd)
    np.testing.assert_allclose(size.std(), sd, rtol=0.1 if is_fast else 0.25)


@pytest.mark.long
def test_no_start_is_where_rounding_makes_the_density():
    """Log densities of beta laws of a concentration beyond a million are sums of roundings."""
    kernel = AutoNUTS(players)
    for seed in range(4):
        keys = jax.random.split(jax.random.key(seed), 16)
        state = kernel.init(keys, 100, None, (), {})
        assert np.all(np.asarray(state.z["kappa"]) < 13.0)  # its logarithm
