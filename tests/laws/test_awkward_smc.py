"""Awkward but legal models under sequential Monte Carlo, each against what is known of it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_normal, norm, t

from numpyro_fwd import GOHSMC, LangevinSMC

Y = np.array([1.2, 0.7, 1.9, 1.1])
ROWS = np.array([2.0, -1.0, 30.0])


class Truth(NamedTuple):
    """A model and its arguments, log evidence, and mean and sd of the site "x"."""

    model: Callable
    args: tuple
    log_evidence: float
    mean: np.ndarray | float
    sd: np.ndarray | float


def by_quadrature(model: Callable, args: tuple, log_density: Callable, reach: float) -> Truth:
    """What a grid of one latent says, between -`reach` and `reach`."""
    axis = np.linspace(-reach, reach, 400_001)
    with np.errstate(divide="ignore"):
        values = log_density(axis)
    total = logsumexp(values)
    weights = np.exp(values - total)
    mean = np.sum(weights * axis)
    sd = np.sqrt(np.sum(weights * (axis - mean) ** 2))
    return Truth(model, args, total + np.log(axis[1] - axis[0]), mean, sd)


def normal(prior: dist.Distribution, y) -> None:
    """Four normals around one latent."""
    numpyro.param("unused", 0.0)
    x = numpyro.sample("x", prior)
    numpyro.sample("y", dist.Normal(x, 0.7).expand(np.shape(y)).to_event(1), obs=y)


def loglikelihood(axis: np.ndarray, y: np.ndarray = Y) -> np.ndarray:
    """Of :func:`normal`."""
    return norm.logpdf(y[:, None], axis, 0.7).sum(0)


def half_of_the_prior() -> Truth:
    """A likelihood of zero on half of the prior."""

    def model():
        numpyro.param("unused", 0.0)
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("y", jnp.where(x > 0, dist.Normal(x, 0.3).log_prob(0.2), -jnp.inf))

    def log_density(axis):
        return norm.logpdf(axis) + norm.logpdf(0.2, axis, 0.3) + np.log(axis > 0)

    return by_quadrature(model, (), log_density, 10.0)


def vague_prior() -> Truth:
    """A million times as wide as the posterior."""
    variance = 0.49 / 4
    evidence = loglikelihood(np.array([Y.mean()]))[0] + 0.5 * np.log(2 * np.pi * variance)
    evidence += norm.logpdf(Y.mean(), 0, 1e6)
    model = lambda y: normal(dist.Normal(0, 1e6), y)  # noqa: E731
    return Truth(model, (jnp.asarray(Y),), evidence, Y.mean(), np.sqrt(variance))


def heavy_tails() -> Truth:
    """A posterior in the tail of a Cauchy prior."""

    def log_density(axis):
        return -np.log(np.pi * (1 + axis**2)) + loglikelihood(axis, Y + 40)

    model = lambda y: normal(dist.Cauchy(0, 1), y)  # noqa: E731
    return by_quadrature(model, (jnp.asarray(Y + 40),), log_density, 60.0)


def tails_and_scales() -> Truth:
    """Three latents of a wide Student prior without a variance, known to a hundred-thousandth."""

    def model(y):
        numpyro.param("unused", 0.0)
        x = numpyro.sample("x", dist.StudentT(1.5, 0, 1e3).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x, 0.01).to_event(1), obs=y)

    return Truth(model, (jnp.asarray(ROWS),), t.logpdf(ROWS, 1.5, 0, 1e3).sum(), ROWS, 0.01)


def two_modes() -> Truth:
    """Cauchy rows that disagree."""
    y = np.array([-20.0, -20.5, 15.0, 15.4])

    def model(y):
        numpyro.param("unused", 0.0)
        x = numpyro.sample("x", dist.Cauchy(0, 10))
        numpyro.sample("y", dist.Cauchy(x, 0.3).expand([4]).to_event(1), obs=y)

    def log_density(axis):
        prior = -np.log(np.pi * 10 * (1 + (axis / 10) ** 2))
        rows = np.log(np.pi * 0.3 * (1 + ((y[:, None] - axis) / 0.3) ** 2))
        return prior - rows.sum(0)

    return by_quadrature(model, (jnp.asarray(y),), log_density, 200.0)


def masked_rows() -> Truth:
    """The last row is not observed, and its value is no number."""

    def model(y, mask):
        numpyro.param("unused", 0.0)
        x = numpyro.sample("x", dist.Normal(0, 1))
        with numpyro.plate("rows", 4), numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.Normal(x, 0.7), obs=y)

    covariance = np.ones((3, 3)) + 0.49 * np.eye(3)
    evidence = multivariate_normal.logpdf(Y[:3], np.zeros(3), covariance)
    variance = 1 / (1 + 3 / 0.49)
    mean = variance * Y[:3].sum() / 0.49
    args = jnp.asarray(Y).at[3].set(jnp.nan), jnp.array([True, True, True, False])
    return Truth(model, args, evidence, mean, np.sqrt(variance))


def no_likelihood() -> Truth:
    """The posterior is the prior, and nothing has been observed."""

    def model():
        numpyro.param("unused", 0.0)
        numpyro.sample("x", dist.Normal(1, 2))

    return Truth(model, (), 0.0, 1.0, 2.0)


def separated() -> Truth:
    """A logistic regression that the data separate: the posterior is half of a vague prior."""
    x = np.linspace(-2, 2, 20)
    signs = np.where(x > 0, 1.0, -1.0)

    def model(x, y):
        numpyro.param("unused", 0.0)
        slope = numpyro.sample("x", dist.Normal(0, 100))
        numpyro.sample("y", dist.Bernoulli(logits=slope * x).to_event(1), obs=y)

    def log_density(axis):
        rows = sum(
            -np.logaddexp(0, -sign * each * axis) for sign, each in zip(signs, x, strict=True)
        )
        return norm.logpdf(axis, 0, 100) + rows

    return by_quadrature(model, (jnp.asarray(x), jnp.asarray(signs > 0, int)), log_density, 800.0)


def corner_of_a_simplex() -> Truth:
    """Shares of which one has no counts and a prior that favours zero; a site for nothing."""
    counts, prior = np.array([0, 5, 25]), np.full(3, 0.3)

    def model(counts):
        numpyro.param("unused", 0.0)
        shares = numpyro.sample("x", dist.Dirichlet(jnp.asarray(prior)))
        numpyro.deterministic("last", shares[2])
        numpyro.sample("idle", dist.LKJCholesky(3, 2.0))
        numpyro.sample("counts", dist.Multinomial(30, probs=shares), obs=counts)

    after = prior + counts
    evidence = gammaln(31) - gammaln(counts + 1).sum()
    evidence += (
        gammaln(prior.sum()) - gammaln(after.sum()) + np.sum(gammaln(after) - gammaln(prior))
    )
    mean = after / after.sum()
    sd = np.sqrt(mean * (1 - mean) / (after.sum() + 1))
    return Truth(model, (jnp.asarray(counts),), evidence, mean, sd)


TRUTHS = {
    each.__name__: each
    for each in (
        *(half_of_the_prior, vague_prior, heavy_tails, tails_and_scales, two_modes, masked_rows),
        *(no_likelihood, separated, corner_of_a_simplex),
    )
}


def sampled(truth: Truth, *, num_particles: int = 1000, **options) -> MCMC:
    """A run from defaults; the parameter that GOHSMC needs is no site of it."""
    model = numpyro.handlers.substitute(
        numpyro.handlers.block(truth.model, hide=["unused"]), data={"unused": jnp.array(0.0)}
    )
    options = {"num_warmup": 5, "num_samples": 1, "chain_method": "vectorized"} | options
    mcmc = MCMC(LangevinSMC(model), num_chains=num_particles, progress_bar=False, **options)
    mcmc.run(jax.random.key(0), *truth.args, extra_fields=FIELDS)
    return mcmc


FIELDS = ("log_evidence", "log_evidence_error", "genealogical_ess")


def check_population(truth: Truth, mcmc: MCMC) -> None:
    """Evidence within four of the errors that the run claims, moments within those of its draws."""
    fields = mcmc.get_extra_fields()
    error = float(fields["log_evidence_error"][0])
    assert error < 0.3
    assert abs(float(fields["log_evidence"][0]) - truth.log_evidence) < 4 * error + 1e-3
    draws = np.asarray(mcmc.get_samples()["x"], np.float64)
    assert np.all(np.abs(draws.mean(0) - truth.mean) < 0.25 * np.asarray(truth.sd))
    assert np.all(np.abs(draws.std(0) / truth.sd - 1) < 0.2)


# the others compile for ten seconds each, too
FEW = ("half_of_the_prior", "tails_and_scales", "corner_of_a_simplex")
CASES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in TRUTHS]


@pytest.mark.parametrize("name", CASES)
def test_langevin_smc(name):
    truth = TRUTHS[name]()
    check_population(truth, sampled(truth))


@pytest.mark.full
def test_langevin_smc_in_double_precision(x64):
    truth = tails_and_scales()
    check_population(truth, sampled(truth))


def test_no_warm_up_thinning_and_several_runs():
    """Every draw is a whole population; a second run begins at other draws of the prior."""
    truth = masked_rows()
    mcmc = sampled(truth, num_warmup=0, num_samples=6, thinning=3)
    first = mcmc.get_samples()["x"]
    assert first.shape == (2 * 1000,)
    check_population(truth, mcmc)
    mcmc.run(jax.random.key(1), *truth.args, extra_fields=FIELDS)
    check_population(truth, mcmc)
    assert not np.any(np.isin(mcmc.get_samples()["x"], first))


def test_two_particles_say_that_they_know_nothing():
    """Descendants of one draw of the prior cannot tell how wrong they are."""
    with pytest.warns(UserWarning, match="descend from one draw of the prior"):
        mcmc = sampled(vague_prior(), num_particles=2)
    assert np.all(mcmc.get_extra_fields()["genealogical_ess"] == 1)


# a hard constraint biases unadjusted moves (the docs say so), and positions are unconstrained
TRAINED = ("vague_prior", "heavy_tails", "tails_and_scales", "masked_rows", "no_likelihood")


@pytest.mark.parametrize("name", TRAINED)
def test_particles_of_a_training_without_batches(name):
    """With nothing to optimize, GOHSMC's particles are of the posterior."""
    truth = TRUTHS[name]()
    step_size = 0.6 * float(np.min(truth.sd))
    smc = GOHSMC(truth.model, optax.adam(0.01), num_particles=500, step_size=step_size)
    result = smc.run(jax.random.key(0), STEPS, *truth.args, progress_bar=False)
    weights = np.exp(np.asarray(result.log_weights, np.float64))
    weights /= weights.sum()
    particles = np.asarray(result.particles["x"], np.float64)
    mean = np.tensordot(weights, particles, 1)
    sd = np.sqrt(np.tensordot(weights, (particles - mean) ** 2, 1))
    assert 1 / np.sum(weights**2) > 100
    assert np.all(np.abs(mean - truth.mean) < 0.3 * np.asarray(truth.sd))
    assert np.all(np.abs(sd / truth.sd - 1) < 0.25)
    assert float(result.params["unused"]) == 0.0


STEPS = 500
