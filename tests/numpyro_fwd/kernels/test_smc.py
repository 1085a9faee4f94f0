"""Sequential Monte Carlo inside NumPyro: the chains are the particles."""

import pickle
from functools import cache

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.module import numpyro_mutable
from numpyro.distributions import constraints
from numpyro.infer import MCMC
from scipy.stats import multivariate_normal, norm

import blackjax_ext
from blackjax_ext.smc.annealing import Schedule
from numpyro_fwd import MALA, LangevinSMC, smc_summary
from numpyro_fwd.kernels.smc import share_to_keep
from numpyro_fwd.kernels.smc_state import MOST_REMEMBERED, remembered
from numpyro_fwd.kernels.smc_summary import family_ess

pytestmark = pytest.mark.long

FIELDS = (
    *("temperature", "log_evidence", "log_evidence_error", "ess", "least_ess", "genealogical_ess"),
    *("num_temperatures", "is_forced", "accept_prob", "step_size", "schedule", "mixed_ancestors"),
)
Y = np.array([1.2, 0.7, 1.9, 1.1])


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.5, 2.0))
    numpyro.deterministic("double", 2 * mean)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.7), obs=y)


COVARIANCE = 4.0 * np.ones((4, 4)) + 0.49 * np.eye(4)
EVIDENCE = multivariate_normal.logpdf(Y, 0.5 * np.ones(4), COVARIANCE)
VARIANCE = 1 / (1 / 4.0 + 4 / 0.49)
MEAN = VARIANCE * (0.5 / 4.0 + Y.sum() / 0.49)


def run(kernel, *args, num_warmup=12, num_samples=2, num_chains=500, **kwargs):
    kwargs = {"chain_method": "vectorized"} | kwargs
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        progress_bar=False,
        **kwargs,
    )
    mcmc.run(jax.random.key(0), *args, extra_fields=FIELDS)
    return mcmc


KERNELS: dict[str, dict] = {
    "mala": {},
    "reversed": {"l_kernel": "reversed", "num_integration_steps": 2, "num_moves": 2},
    "gaussian": {"l_kernel": "gaussian", "num_moves": 2},
    "hp_mala": {"algorithm": blackjax_ext.hp_mala, "floor": 0.2, "num_moves": 2},
    "auto_mala": {"algorithm": blackjax_ext.auto_mala, "num_moves": 2},
}


@cache
def finished(name):
    """A run, and its draws: a later run replaces those of the MCMC object."""
    mcmc = run(LangevinSMC(model, **KERNELS[name]), jnp.asarray(Y), num_chains=2000)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    return mcmc, mcmc.get_samples(group_by_chain=True), fields


@pytest.mark.parametrize("name", KERNELS)
def test_posterior_and_evidence(name):
    _, draws, fields = finished(name)
    # neighbours share ancestors: allow for a few hundred independent draws
    assert abs(float(draws["mean"].mean()) - MEAN) < 5 * np.sqrt(VARIANCE / 300)
    assert abs(float(draws["mean"].var()) / VARIANCE - 1) < 0.3
    np.testing.assert_allclose(draws["double"], 2 * draws["mean"], rtol=1e-6)
    assert fields["log_evidence"].shape == (2000, 2)
    assert abs(float(fields["log_evidence"][0, 0]) - EVIDENCE) < 0.15
    assert 0.0 < float(fields["log_evidence_error"][0, 0]) < 0.1
    assert np.all(fields["genealogical_ess"] > 200) and not np.any(fields["is_forced"])
    if "l_kernel" not in KERNELS[name]:
        mixed = fields["genealogical_ess"] / fields["mixed_ancestors"]
        assert np.all(mixed > 0.7) and np.all(mixed < 1.3)
    np.testing.assert_array_equal(fields["temperature"], 1.0)
    assert np.all(fields["ess"] > 1000) and np.all(fields["accept_prob"] > 0.3)


def five():
    x = numpyro.sample("x", dist.Normal(0, 5).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 0.3).to_event(1), obs=jnp.arange(5.0))


def test_moves_that_do_not_mix_warn(recwarn):
    """Particles that stay where they are descend from far fewer draws than those that move."""
    still = {"step_size": 0.4, "adapt_step_size": False, "num_clusters": 0, "num_moves": 1}
    with pytest.warns(UserWarning, match="would from .* if their moves had mixed.*num_moves=12"):
        run(LangevinSMC(five, algorithm=blackjax_ext.mala, **still), num_warmup=0, num_chains=1000)
    recwarn.clear()
    mcmc = run(LangevinSMC(five), num_warmup=0)
    assert not recwarn.list
    fields = mcmc.get_extra_fields()
    assert np.all(fields["genealogical_ess"] > 0.7 * fields["mixed_ancestors"])


TIMES = np.linspace(0, 1, 20)


def latent_process(y):
    """A Gaussian process whose values are sampled by their noise: its scales are hard to move."""
    length = numpyro.sample("length", dist.LogUniform(0.02, 2.0))
    height = numpyro.sample("height", dist.LogUniform(0.05, 20.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([20]).to_event(1))
    distance = np.sqrt(3.0) * np.abs(TIMES[:, None] - TIMES) / length
    matern = (1.0 + distance) * jnp.exp(-distance) + 1e-4 * jnp.eye(20)
    numpyro.sample("y", dist.Normal(height * jnp.linalg.cholesky(matern) @ z, 0.5), obs=y)


def test_moves_that_remember_warn():
    """The evidence is two to four of its errors low here, and ancestors do not show it."""
    y = np.random.default_rng(1).normal(np.sin(6.0 * TIMES), 0.5)
    kernel = LangevinSMC(latent_process)
    with pytest.warns(UserWarning, match="do not forget where the resampling put the particles"):
        state = kernel.init(jax.random.split(jax.random.key(0), 300), 0, None, (y,), {})
    num = int(state.num_temperatures[0])
    found = np.asarray(state.schedule.remembered[0])
    # at each temperature, also where particles were resampled before they moved
    assert np.all(found[num // 2 : num] > 0.2) and np.isnan(found[num])


@pytest.mark.parametrize(("share", "rho"), [(0.9, 0.2), (1 / 1.02, 0.42)])
def test_what_moves_remember_is_a_variance(share, rho):
    """Fewer particles take more temperatures, after each of which more may be remembered."""
    unknown = jnp.full(6, jnp.nan)
    values = jnp.array([rho, rho, rho, 0.9, jnp.nan, jnp.nan])
    schedule = Schedule(*[unknown] * 6, values, jnp.array(4))
    schedule = jax.tree.map(lambda leaf: leaf[None], schedule)
    assert remembered(schedule, share) == pytest.approx((1 / share - 1) * (rho / (1 - rho)) ** 2)
    assert remembered(schedule, share) < MOST_REMEMBERED
    nothing = schedule._replace(num_temperatures=jnp.array([1]))
    assert remembered(nothing, share) == 0.0


def test_fewer_particles_take_more_temperatures():
    """The variance that a temperature adds, (1 / share - 1) / N, is that of many particles."""

    def variance(num):
        return (1 / share_to_keep(num) - 1) / num

    assert share_to_keep(1_000) == pytest.approx(0.9) == share_to_keep(50_000)
    assert variance(200) == pytest.approx(variance(500)) == pytest.approx(variance(1_000))
    assert share_to_keep(2) == share_to_keep(200) < 0.98

    def temperatures(num, **options):
        keys = jax.random.split(jax.random.key(0), num)
        return LangevinSMC(five, **options).init(keys, 0, None, (), {}).num_temperatures[0]

    assert temperatures(200) > 2 * temperatures(200, tempering_ess=0.9)
    assert temperatures(1_000) == temperatures(1_000, tempering_ess=0.9)


def test_steps_of_the_place_keep_a_narrow_mode():
    """A third of ten dimensions' mass with sd 0.5 beside sd 1, which one step for all loses."""

    def modes():
        x = numpyro.sample("x", dist.Normal(0, 3).expand([10]).to_event(1))
        parts = ((-2.0, 0.5, 0.36), (2.0, 1.0, 0.64))
        terms = [
            np.log(share)
            - dist.Normal(0, np.hypot(3.0, scale)).log_prob(jnp.full(10, place)).sum()
            + dist.Normal(place, scale).log_prob(x).sum()
            for place, scale, share in parts
        ]
        numpyro.factor("modes", jnp.logaddexp(*terms))

    kernel = LangevinSMC(modes, algorithm=blackjax_ext.auto_mala)
    state = kernel.init(jax.random.split(jax.random.key(1), 1000), 0, None, (), {})
    is_narrow = state.inner.position["x"].mean(axis=1) < 0
    share = float(jnp.sum(jnp.exp(state.inner.log_weights) * is_narrow))
    assert abs(share - 0.36) < 0.1 and abs(float(state.inner.log_evidence)) < 0.25


def test_constrained_latents_and_factors():
    """A likelihood given as a factor, and a positive latent with its Jacobian in the prior."""

    def gamma(count):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 3.0))
        numpyro.factor("poisson", dist.Poisson(rate).log_prob(count))

    mcmc = run(LangevinSMC(gamma, num_moves=3), jnp.array(4.0), num_chains=2000)
    # conjugate: Gamma(6, 4); the evidence is negative binomial
    assert abs(float(mcmc.get_samples()["rate"].mean()) - 1.5) < 0.15
    truth = dist.GammaPoisson(2.0, 3.0).log_prob(4.0)
    assert abs(float(mcmc.get_extra_fields()["log_evidence"][0] - truth)) < 0.15


ROWS, NOISE, PRIOR_SCALE, SLOPES = 20_000, 0.02, 10.0, np.array([1.0, -2.0, 0.5, 3.0, -7.0])
PRECISION = ROWS / NOISE**2


def many_rows():
    """A regression on 20,000 rows with orthogonal covariates, by its sufficient statistics."""
    slopes = numpyro.sample("slopes", dist.Normal(0, PRIOR_SCALE).expand([5]).to_event(1))
    constant = -ROWS * (np.log(NOISE) + 0.5 * np.log(2 * np.pi) + 0.5)
    numpyro.factor("rows", constant - 0.5 * PRECISION * jnp.sum((slopes - SLOPES) ** 2))


def evidence_of_many_rows():
    variance = PRIOR_SCALE**2 + 1 / PRECISION
    constant = -ROWS * (np.log(NOISE) + 0.5 * np.log(2 * np.pi) + 0.5)
    normals = -0.5 * np.sum(np.log(2 * np.pi * variance) + SLOPES**2 / variance)
    return constant + normals + 2.5 * np.log(2 * np.pi / PRECISION)


DESIGN = np.random.default_rng(0).normal(size=(30, 9))
REGRESSION_EVIDENCE = multivariate_normal.logpdf(
    DESIGN[:, 8], np.zeros(30), 25.0 * DESIGN[:, :8] @ DESIGN[:, :8].T + np.eye(30)
)


def regression(table):
    """Eight slopes with wide priors."""
    w = numpyro.sample("w", dist.Normal(0, 5).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(table[:, :8] @ w, 1.0), obs=table[:, 8])


def test_many_rows_in_single_precision():
    """A log likelihood that spreads over 1e10 among the prior draws."""
    mcmc = run(LangevinSMC(many_rows, num_moves=4), num_warmup=5, num_chains=1000)
    draws = np.asarray(mcmc.get_samples()["slopes"], np.float64)
    fields = mcmc.get_extra_fields()
    assert abs(fields["log_evidence"][0] - evidence_of_many_rows()) < 1.0
    assert not fields["diverging"].any() and len(np.unique(draws[:, 0])) > 500
    np.testing.assert_allclose(draws.mean(0), SLOPES, atol=0.3 / PRECISION**0.5)
    np.testing.assert_allclose(draws.std(0) * PRECISION**0.5, 1.0, atol=0.2)
    assert np.all(fields["least_ess"] > 300)


def test_too_few_temperatures_lose_the_population_and_say_so():
    kernel = LangevinSMC(many_rows, max_temperatures=3)
    with pytest.warns(UserWarning, match="max_temperatures = 3 .* sample size fell .* is lost"):
        fields = run(kernel, num_warmup=1, num_chains=100).get_extra_fields()
    np.testing.assert_array_equal(fields["temperature"], 1.0)
    np.testing.assert_array_equal(fields["num_temperatures"], 3)
    assert np.all(fields["is_forced"])
    for name in ("log_evidence", "log_evidence_error"):
        assert np.all(np.isnan(fields[name]))
    assert np.all(fields["diverging"]) and np.all(fields["least_ess"] < 5)


def test_one_step_of_warm_up_is_enough():
    """As many temperatures as it takes: the schedule has every one, and the summary the rest."""
    kernel = LangevinSMC(regression)
    mcmc = run(kernel, jnp.asarray(DESIGN), num_warmup=1, num_samples=1, num_chains=1000)
    fields = mcmc.get_extra_fields()
    schedule, num = fields["schedule"], int(fields["num_temperatures"][0])
    assert 10 < num < 40 and schedule.temperature.shape == (1, 1000)
    assert schedule.temperature[0, num - 1] == 1.0 and np.isnan(schedule.temperature[0, num])
    assert np.all(schedule.acceptance_rate[0, :num] > 0.2)
    found = smc_summary(mcmc)
    assert found.num_temperatures == num and abs(found.least_ess - fields["least_ess"][0]) < 1e-3
    assert abs(found.log_evidence - REGRESSION_EVIDENCE) < 4 * found.log_evidence_error < 1.5
    draws = np.asarray(mcmc.get_samples()["w"], np.float64)
    columns = found.sites["w"]
    np.testing.assert_allclose(columns["mean"], draws.mean(0), rtol=1e-5)
    np.testing.assert_allclose(columns["95.0%"], np.quantile(draws, 0.95, axis=0), rtol=1e-5)
    assert columns["ess"].shape == (8,) and np.all((columns["ess"] > 100) & (columns["ess"] < 4000))
    text = str(found)
    assert "w[7]" in text and "r_hat" not in text and f"{num} temperatures" in text
    assert found.mixed_ancestors == fields["mixed_ancestors"][0]
    assert f"and {found.mixed_ancestors:.0f} if moves mix" in text
    # the next population, with other data of the same shape, needs no other program
    size = len(kernel._programs)
    program = next(iter(kernel._programs.values()))
    kernel.init(
        jax.random.split(jax.random.key(5), 1000), 1, None, (jnp.asarray(2.0 * DESIGN),), {}
    )
    assert len(kernel._programs) == size == program._cache_size() == 1


def test_a_summary_is_of_a_population_that_has_run():
    idle = MCMC(LangevinSMC(model), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match="mcmc must have run"):
        smc_summary(idle)
    with pytest.raises(TypeError, match="must have a LangevinSMC; got MALA"):
        smc_summary(MCMC(MALA(model), num_warmup=1, num_samples=1))


def test_families_tell_the_effective_sample_size():
    """Copies of independent draws count once; what has forgotten its family counts by itself."""
    rng = np.random.default_rng(4)
    ancestors = np.repeat(np.arange(400), 5)
    copies, free = np.repeat(rng.normal(size=400), 5), rng.normal(size=2000)
    found = family_ess(np.stack([copies, free], axis=1), ancestors)
    np.testing.assert_allclose(found, [400, 2000], rtol=0.2)
    assert np.isnan(family_ess(free, np.zeros(2000)))


def test_a_log_likelihood_without_digits_is_not_taken_for_one():
    def offset(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.factor("y", -1e9 - 0.5 * (mean - y) ** 2)

    with pytest.warns(UserWarning, match="the population is lost"):
        fields = run(LangevinSMC(offset), 1.0, num_warmup=1, num_chains=100).get_extra_fields()
    assert np.all(np.isnan(fields["log_evidence"])) and np.all(fields["diverging"])
    with jax.enable_x64(True):
        fields = run(LangevinSMC(offset), 1.0, num_warmup=5, num_chains=1000).get_extra_fields()
    # of N(1; 0, 2), without its constant
    truth = -1e9 - 0.5 * np.log(2.0) - 0.25
    found = np.asarray(fields["log_evidence"])[0]
    assert abs(found - truth) < 0.15 and not np.asarray(fields["diverging"]).any()


def scaled_latent(y, scale):
    with numpyro.handlers.scale(scale=scale):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 2.0), obs=y)


@pytest.mark.parametrize("scale", [3.0, 0.4])
def test_a_scaled_latent_is_weighed(scale):
    """The density is that of the prior to the power of the scale, times the likelihood."""
    axis = np.linspace(-12.0, 12.0, 20_001)
    log_density = scale * norm.logpdf(axis) + norm.logpdf(Y[:, None], axis, 2.0).sum(0)
    density = np.exp(log_density)
    evidence = np.trapezoid(density, axis)
    mean = np.trapezoid(axis * density, axis) / evidence
    mcmc = run(LangevinSMC(scaled_latent), jnp.asarray(Y), scale, num_chains=2000)
    found = mcmc.get_extra_fields()["log_evidence"][0]
    assert abs(float(found) - np.log(evidence)) < 0.15
    assert abs(float(mcmc.get_samples()["mean"].mean()) - mean) < 0.15


def test_a_scale_on_observed_sites_alone_is_a_power_of_the_likelihood():
    def scaled(y):
        mean = numpyro.sample("mean", dist.Normal(0.5, 2.0))
        with numpyro.handlers.scale(scale=2.0), numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 0.7), obs=y)

    axis = np.linspace(-12.0, 12.0, 20_001)
    log_density = norm.logpdf(axis, 0.5, 2.0) + 2.0 * norm.logpdf(Y[:, None], axis, 0.7).sum(0)
    mcmc = run(LangevinSMC(scaled), jnp.asarray(Y), num_chains=2000)
    truth = np.log(np.trapezoid(np.exp(log_density), axis))
    assert abs(float(mcmc.get_extra_fields()["log_evidence"][0]) - truth) < 0.15


def test_an_algorithm_takes_leapfrog_steps_of_its_own():
    kernel = LangevinSMC(model, algorithm=blackjax.hmc, num_integration_steps=3, step_size=0.3)
    mcmc = run(kernel, jnp.asarray(Y), num_chains=1000)
    assert abs(float(mcmc.get_extra_fields()["log_evidence"][0]) - EVIDENCE) < 0.2


def test_goes_on_from_a_state():
    mcmc, draws, fields = finished("reversed")
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), jnp.asarray(Y), extra_fields=FIELDS)
    later = mcmc.get_samples(group_by_chain=True)["mean"]
    assert later.shape == draws["mean"].shape == (2000, 2)
    assert not np.any(later == draws["mean"])
    # the evidence is that of the annealing
    found = mcmc.get_extra_fields(group_by_chain=True)["log_evidence"]
    np.testing.assert_array_equal(found, fields["log_evidence"])


def test_pickles():
    kernel = LangevinSMC(model, l_kernel="reversed", num_moves=1)
    kernel = pickle.loads(pickle.dumps(kernel))
    mcmc = run(kernel, jnp.asarray(Y), num_warmup=0, num_chains=50)
    assert mcmc.get_samples()["mean"].shape == (100,)


def improper():
    numpyro.sample("flat", dist.ImproperUniform(constraints.real, (), ()))


def with_mutable():
    numpyro.sample("x", dist.Normal(0, 1))
    numpyro_mutable("count", 0)


def with_minibatches(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", y.shape[0], subsample_size=2):
        numpyro.sample("y", dist.Normal(mean, 1), obs=numpyro.subsample(y, 0))


def with_param():
    numpyro.param("scale", 1.0)
    numpyro.sample("x", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: run(LangevinSMC(model), Y, num_chains=1), "num_chains=<particles>"),
        (lambda: LangevinSMC(model, max_temperatures=0), "max_temperatures must be at least 1"),
        (lambda: run(LangevinSMC(improper)), "site 'flat' has the improper prior"),
        (lambda: run(LangevinSMC(with_param)), "param site 'scale'"),
        (lambda: run(LangevinSMC(with_mutable)), "mutable site 'count'"),
        (lambda: run(LangevinSMC(with_minibatches), Y), "plate 'rows' subsamples 2 of 4 rows"),
        (lambda: LangevinSMC(model, l_kernel="reversed", num_integration_steps=0), "at least 1"),
        (lambda: LangevinSMC(model, step_size=0.0), "step_size must be positive"),
        (lambda: LangevinSMC(model, num_moves=0), "num_moves must be at least 1"),
        (lambda: LangevinSMC(model, l_kernel="best"), "l_kernel must be one of"),
        (
            lambda: LangevinSMC(model, l_kernel="reversed", algorithm=blackjax_ext.mala),
            "exclude each other",
        ),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_sequential_chains_are_refused():
    with pytest.raises(ValueError, match="chain_method='vectorized'"):
        run(LangevinSMC(model), Y, num_chains=2, chain_method="sequential")


def test_a_model_without_data_is_warned_of():
    """Its evidence is one, whatever the priors are."""

    def prior_alone():
        numpyro.sample("mean", dist.Normal(0.5, 2.0))

    with pytest.warns(UserWarning, match="no observed site and no factor"):
        mcmc = run(LangevinSMC(prior_alone), num_warmup=1, num_samples=1, num_chains=50)
    assert np.allclose(mcmc.last_state.log_evidence, 0.0)
