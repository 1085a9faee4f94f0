"""The kernels inside ``numpyro.infer.MCMC``: what a user of NumPyro relies on."""

import copy
import os
import pickle
import subprocess
import sys
from functools import cache

import arviz_base
import arviz_stats
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, DiscreteGibbs, Gibbs, Predictive
from numpyro.infer.gibbs import discrete_latent_sites

import numpyro_fwd
from numpyro_fwd import FMALA, MALA, BlackJAXKernel, LineFMALA, PCLineFMALA, RandomWalk

FORWARD = ("RandomWalk", "FMALA", "LineFMALA", "PCFMALA", "PCLineFMALA")
NAMES = ("MALA", *FORWARD, "SMMALA", "ALSMMALA", "AMSMMALA")
FIELDS = (
    "potential_energy",
    "accept_prob",
    "num_steps",
    "adapt_state.step_size",
    "adapt_state.inverse_mass_matrix",
    "inner.logdensity",
)
each_kernel = pytest.mark.parametrize("name", NAMES)
# one of each kind: a state with tangents, parameters that all chains share
OF_EACH_KIND = ("FMALA", "ALSMMALA")
one_of_each_kind = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in OF_EACH_KIND else pytest.mark.full) for name in NAMES],
)


def regression(x, y=None, *, scale=1.0):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    mean = numpyro.deterministic("mean", x @ beta)
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def data(seed=0, beta=(1.0, 0.5)):
    """Twenty rows with covariates of different scale and correlated coefficients."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2)) * [1, 10] + [0, 3]
    y = x @ beta + rng.normal(size=20)
    return jnp.asarray(x, float), jnp.asarray(y, float)


def truth(x, y, scale=1.0):
    """Posterior mean and standard deviations of the coefficients."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    precision = x.T @ x / scale**2 + np.eye(2) / 100
    mean = np.linalg.solve(precision, x.T @ y / scale**2)
    return mean, np.sqrt(np.diag(np.linalg.inv(precision)))


def mcmc_of(kernel, num_warmup=300, num_samples=300, num_chains=1, chain_method="vectorized", **kw):
    kw = {"progress_bar": False, **kw}
    return MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=chain_method,
        **kw,
    )


def assert_moments(draws, mean, sd):
    """Compare moments with the truth, at six standard errors; `draws` are (chain, draw, ...)."""
    draws = np.asarray(draws, np.float64)
    data = arviz_base.convert_to_dataset(draws)
    ess = arviz_stats.ess(data)["x"].values
    assert (ess > 100).all(), ess
    error = (draws.mean((0, 1)) - mean) / sd
    np.testing.assert_array_less(np.abs(error), 6 / np.sqrt(ess))
    squares = (draws - draws.mean((0, 1))) ** 2
    ess = arviz_stats.ess(arviz_base.convert_to_dataset(squares))["x"].values
    error = squares.mean((0, 1)) / np.square(sd) - 1
    np.testing.assert_array_less(np.abs(error), 6 * np.sqrt(2 / ess))


@cache
def sampled(name):
    """One run of a kernel from defaults, looked at by many tests."""
    mcmc = mcmc_of(getattr(numpyro_fwd, name)(regression), 400, 1500, num_chains=2)
    mcmc.run(jax.random.key(0), *data(), extra_fields=FIELDS)
    return mcmc


# --- every named kernel ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", [*NAMES, "HPMALA", "MMALA"])
def test_posterior(name):
    assert_moments(sampled(name).get_samples(group_by_chain=True)["beta"], *truth(*data()))


@pytest.mark.long
@each_kernel
def test_extra_fields(name):
    mcmc = sampled(name)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert set(fields) == {"diverging", *FIELDS}
    assert all(value.shape[:2] == (2, 1500) for value in fields.values())
    assert not fields["diverging"].any() and (fields["num_steps"] == 1).all()
    np.testing.assert_array_equal(fields["potential_energy"], -fields["inner.logdensity"])
    accept_prob = fields["accept_prob"]
    assert (accept_prob >= 0).all() and (accept_prob <= 1).all() and np.ptp(accept_prob) > 0.5
    for name in ("adapt_state.step_size", "adapt_state.inverse_mass_matrix"):
        assert np.isfinite(fields[name]).all()
        assert (fields[name] == fields[name][:, :1]).all()
    assert (fields["adapt_state.step_size"] > 0).all()
    variances = np.diagonal(fields["adapt_state.inverse_mass_matrix"][0, 0])
    np.testing.assert_allclose(variances**0.5, truth(*data())[1], rtol=0.4)


@pytest.mark.long
@each_kernel
def test_potential_energy_belongs_to_the_draws(name):
    mcmc = sampled(name)
    x, y = data()
    beta = mcmc.get_samples()["beta"][:50]
    likelihood = dist.Normal(beta @ x.T, 1).log_prob(y).sum(1)
    potential = -likelihood - dist.Normal(0, 10).log_prob(beta).sum(1)
    np.testing.assert_allclose(mcmc.get_extra_fields()["potential_energy"][:50], potential, 1e-4)


@pytest.mark.long
@each_kernel
def test_summary_counts_divergences(name, capsys):
    sampled(name).print_summary()
    printed = capsys.readouterr().out
    assert "beta[0]" in printed and "Number of divergences: 0" in printed


@pytest.mark.first
@each_kernel
def test_arviz(name):
    mcmc = sampled(name)
    inference = arviz_base.from_numpyro(mcmc, log_likelihood=True)
    assert inference.posterior["beta"].shape == (2, 1500, 2)
    assert inference.log_likelihood["y"].shape == (2, 1500, 20)
    names = {"diverging", "lp", "acceptance_rate", "n_steps", "step_size"}
    assert names <= set(inference.sample_stats)
    assert (inference.log_likelihood["y"] < 0).all()


@pytest.mark.long
def test_names_of_arviz():
    """Those of ArviZ's conventions, and no depth of a tree."""
    mcmc = mcmc_of(MALA(regression), 20, 5, 2)
    fields = ("potential_energy", "accept_prob", "n_steps", "adapt_state.step_size")
    mcmc.run(jax.random.key(0), *data(), extra_fields=fields)
    found = arviz_base.from_numpyro(mcmc).sample_stats
    assert set(found.data_vars) == {"diverging", "lp", "acceptance_rate", "n_steps", "step_size"}
    assert all(values.shape == (2, 5) for values in found.data_vars.values())


@pytest.mark.first
@each_kernel
def test_predictive(name):
    mcmc = sampled(name)
    x, y = data()
    predictive = Predictive(mcmc.sampler.model, mcmc.get_samples())
    drawn = predictive(jax.random.key(1), x)["y"]
    assert drawn.shape == (3000, 20)
    np.testing.assert_allclose(drawn.mean(0), x @ truth(x, y)[0], atol=0.3)


@each_kernel
def test_deterministic_sites(name):
    samples = sampled(name).get_samples()
    np.testing.assert_allclose(samples["mean"], samples["beta"] @ data()[0].T, rtol=1e-4, atol=1e-4)


def few(name, chain_method, num_chains=2):
    """A short run, whose draws depend on the seed alone."""
    # whitened by its covariance, this posterior has a curvature of equal eigenvalues: the vectors
    # are up to rounding
    options = {"dense_mass": False} if "MMALA" in name else {}
    kernel = getattr(numpyro_fwd, name)(regression, **options)
    mcmc = mcmc_of(kernel, 40, 10, num_chains, chain_method)
    mcmc.run(jax.random.key(2), *data())
    mcmc.get_extra_fields()
    return np.asarray(mcmc.get_samples(group_by_chain=True)["beta"])


# the program of jax.vmap cannot reuse the buffer of `diverging`, nor can that of NUTS
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@one_of_each_kind
def test_sequential_is_vmap(name, x64):
    np.testing.assert_allclose(few(name, "sequential"), few(name, jax.vmap), rtol=1e-6)


PARALLEL = """
import numpy as np, jax
from tests.numpyro_fwd.kernels.test_base import few
assert jax.local_device_count() == 2
jax.config.update("jax_enable_x64", True)
for name in ("ALSMMALA",):
    np.testing.assert_allclose(few(name, "parallel"), few(name, "sequential"), rtol=1e-6)
"""


@pytest.mark.long
def test_parallel_is_sequential():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", PARALLEL], env=env, check=True)


@pytest.mark.long
@one_of_each_kind
def test_resume_and_pickle(name):
    """A run in two halves, the second after a trip through pickle, is the whole run, bit by bit."""
    kernel = getattr(numpyro_fwd, name)(regression)
    whole, half = mcmc_of(kernel, 30, 40), mcmc_of(pickle.loads(pickle.dumps(kernel)), 30, 20)
    whole.run(jax.random.key(3), *data())
    half.run(jax.random.key(3), *data())
    halves = [half.get_samples()["beta"]]
    half = pickle.loads(pickle.dumps(half))
    half.post_warmup_state = half.last_state
    half.run(half.post_warmup_state.rng_key, *data())
    halves.append(half.get_samples()["beta"])
    np.testing.assert_array_equal(whole.get_samples()["beta"], np.concatenate(halves))
    jax.tree.map(np.testing.assert_array_equal, *map(values, (whole, half)))


def values(mcmc):
    state = mcmc.last_state
    return state._replace(rng_key=jax.random.key_data(state.rng_key), i=0, mean_accept_prob=0)


# --- one kernel stands for all of them ------------------------------------------------------------


@pytest.mark.long
def test_default_fields():
    mcmc = mcmc_of(FMALA(regression), 10, 10)
    mcmc.run(jax.random.key(0), *data())
    assert set(mcmc.get_extra_fields()) == {"diverging"}
    assert mcmc.get_extra_fields()["diverging"].dtype == bool


def test_acceptance_is_averaged_over_the_draws():
    mcmc = mcmc_of(FMALA(regression), 10, 10, 2)
    mcmc.run(jax.random.key(0), *data(), extra_fields=("accept_prob",))
    found = mcmc.get_extra_fields(group_by_chain=True)["accept_prob"].mean(axis=1)
    np.testing.assert_allclose(mcmc.last_state.mean_accept_prob, found, rtol=1e-5)


@pytest.mark.long
def test_same_seed_same_draws():
    first, second = few("FMALA", "vectorized"), few("FMALA", "vectorized")
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).any()


@pytest.mark.long
def test_one_chain_agrees_across_chain_methods():
    np.testing.assert_array_equal(few("FMALA", "vectorized", 1), few("FMALA", "sequential", 1))


@pytest.mark.long
def test_second_data_set_without_recompilation():
    class Counted(FMALA):
        num_traces = 0

        def sample(self, state, model_args, model_kwargs):
            Counted.num_traces += 1
            return super().sample(state, model_args, model_kwargs)

    mcmc = mcmc_of(Counted(regression), 300, 3000, jit_model_args=True)
    for seed, beta in enumerate([(1.0, 0.5), (-3.0, 2.0)]):
        mcmc.run(jax.random.key(0), *data(seed, beta))
        num_traces, Counted.num_traces = Counted.num_traces, 0
        assert (num_traces > 0) == (seed == 0)
        draws = mcmc.get_samples(group_by_chain=True)["beta"]
        assert_moments(draws, *truth(*data(seed, beta)))


@pytest.mark.long
def test_model_keywords():
    x, y = data()
    mcmc = mcmc_of(MALA(regression), 200, 800)
    mcmc.run(jax.random.key(0), x, y=y, scale=3.0)
    draws = mcmc.get_samples(group_by_chain=True)["beta"]
    assert_moments(draws, *truth(x, y, 3.0))


@pytest.mark.long
def test_python_arguments_are_not_traced():
    def model(num, kind):
        loc = {"far": 50.0, "near": 0.0}[kind]
        with numpyro.plate("num", num):
            numpyro.sample("x", dist.Normal(loc, 1))

    mcmc = mcmc_of(MALA(model), 100, 100)
    for num, kind, loc in [(2, "far", 50), (3, "near", 0)]:
        mcmc.run(jax.random.key(0), num, kind=kind)
        draws = mcmc.get_samples()["x"]
        assert draws.shape == (100, num) and abs(draws.mean() - loc) < 1


def mixture(y):
    """Two coins that move the mean, with a scale that NUTS takes."""
    loc = numpyro.sample("loc", dist.Normal(0, 2))
    log_sigma = numpyro.sample("log_sigma", dist.Normal(0, 0.5))
    sign = numpyro.sample("sign", dist.Bernoulli(0.5).expand([2]))
    numpyro.sample("y", dist.Normal(loc + sign.sum(), jnp.exp(log_sigma)), obs=y)


@pytest.mark.long
@pytest.mark.parametrize("name", ["MALA", "FMALA"])
def test_block_of_gibbs(name):
    y = jnp.array([0.9, 1.4, 1.1, 2.0])
    kernel = Gibbs(
        [
            (getattr(numpyro_fwd, name)(mixture), ["loc"]),
            (NUTS(mixture), ["log_sigma"]),
            (DiscreteGibbs(mixture), discrete_latent_sites),
        ]
    )
    mcmc = mcmc_of(kernel, 300, 12_000)  # a thousand effective draws: 0.12 is five errors
    mcmc.run(jax.random.key(0), y)
    samples = mcmc.get_samples()
    for site, moments in grid_moments(y).items():
        np.testing.assert_allclose([samples[site].mean(), samples[site].std()], moments, atol=0.12)


def grid_moments(y):
    """Means and standard deviations of `mixture` by quadrature."""
    loc, log_sigma, sign = np.meshgrid(
        np.linspace(-6, 6, 241), np.linspace(-2.5, 2.5, 101), [0, 1, 2], indexing="ij"
    )
    log_p = -(loc**2) / 8 - log_sigma**2 / 0.5 + np.log([1, 2, 1])
    for each in np.asarray(y):
        log_p += -0.5 * ((each - loc - sign) / np.exp(log_sigma)) ** 2 - log_sigma
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    sites = {"loc": loc, "log_sigma": log_sigma}
    means = {name: (weight * value).sum() for name, value in sites.items()}
    return {
        name: (means[name], (weight * (value - means[name]) ** 2).sum() ** 0.5)
        for name, value in sites.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2])
def test_potential_fn_of_a_pytree(num_chains):
    def potential_fn(z):
        a, (b,) = z
        return 0.5 * jnp.sum((a - 3) ** 2) + 0.5 * (b / 5) ** 2

    start = (jnp.zeros((num_chains, 2)), [jnp.zeros(num_chains)])
    start = start if num_chains > 1 else jax.tree.map(lambda x: x[0], start)
    mcmc = mcmc_of(LineFMALA(potential_fn=potential_fn), 300, 3000, num_chains)
    mcmc.run(jax.random.key(0), init_params=start)
    a, [b] = mcmc.get_samples(group_by_chain=True)
    assert_moments(a, 3, 1)
    assert_moments(b[..., None], 0, 5)


@pytest.mark.long
def test_progress_bar(monkeypatch, capfd):
    for name in ("CI", "PYTEST_XDIST_WORKER"):  # which turn it off
        monkeypatch.delenv(name, raising=False)
    mcmc = mcmc_of(FMALA(regression), 20, 20, progress_bar=True)
    mcmc.run(jax.random.key(0), *data())
    shown = capfd.readouterr().err
    assert "sample: 100%" in shown and "step size" in shown and "acc. prob=" in shown


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2])
def test_no_warmup_starts_at_init_params(num_chains):
    start = jnp.array([[0.5, 1.5], [2.5, -0.5]])
    start = start if num_chains > 1 else start[0]
    # a step this small moves no float32 position
    mcmc = mcmc_of(FMALA(regression, step_size=1e-12), 0, 3, num_chains)
    fields = ("adapt_state.step_size", "adapt_state.inverse_mass_matrix")
    mcmc.run(jax.random.key(0), *data(), init_params={"beta": start}, extra_fields=fields)
    draws = mcmc.get_samples(group_by_chain=num_chains > 1)["beta"]
    np.testing.assert_array_equal(draws, jnp.broadcast_to(start[..., None, :], draws.shape))
    fields = mcmc.get_extra_fields()
    assert (fields["adapt_state.step_size"] == jnp.float32(1e-12)).all()
    assert (fields["adapt_state.inverse_mass_matrix"] == jnp.eye(2)).all()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16"])
def test_init_params_may_be_of_another_precision(dtype, x64):
    mcmc = mcmc_of(FMALA(regression), 20, 3)
    mcmc.run(jax.random.key(0), *data(), init_params={"beta": jnp.zeros(2, dtype)})
    assert mcmc.get_samples()["beta"].dtype == "float64"


@pytest.mark.long
@pytest.mark.parametrize(
    ("adapt", "given", "dense_mass"),
    [(True, None, True), (True, "dense", False), (False, "diagonal", True), (False, None, False)],
)
def test_what_is_adapted(adapt, given, dense_mass):
    matrix = {None: None, "diagonal": jnp.array([0.1, 0.01]), "dense": jnp.diag(jnp.ones(2)) + 0.5}
    kernel = FMALA(
        regression,
        step_size=0.3,
        adapt_step_size=adapt,
        adapt_mass_matrix=adapt,
        dense_mass=dense_mass,
        inverse_mass_matrix=matrix[given],
    )
    mcmc = mcmc_of(kernel, 50, 5, num_chains=2)
    fields = ("adapt_state.step_size", "adapt_state.inverse_mass_matrix")
    mcmc.run(jax.random.key(0), *data(), extra_fields=fields)
    step_size, inverse = (mcmc.get_extra_fields()[name][-1] for name in fields)
    assert (step_size == jnp.float32(0.3)) == (not adapt)
    assert inverse.shape == ((2, 2) if dense_mass or given == "dense" else (2,))
    first = jnp.ones(2) if given is None else matrix[given]
    first = jnp.diag(first) if first.ndim < inverse.ndim else first
    assert bool(jnp.allclose(inverse, first, rtol=1e-5)) == (not adapt)


@pytest.mark.long
def test_step_size_adapts_alone():
    kernel = FMALA(regression, adapt_mass_matrix=False, inverse_mass_matrix=jnp.array([0.07, 8e-4]))
    mcmc = mcmc_of(kernel, 1000, 3000)
    fields = ("adapt_state.inverse_mass_matrix", "accept_prob")
    mcmc.run(jax.random.key(0), *data(), extra_fields=fields)
    assert_moments(mcmc.get_samples(group_by_chain=True)["beta"], *truth(*data()))
    inverse, accept_prob = (mcmc.get_extra_fields()[name] for name in fields)
    np.testing.assert_allclose(inverse[-1], [0.07, 8e-4], rtol=1e-5)
    assert abs(accept_prob.mean() - kernel._goal(2)) < 0.1


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "dense_mass"), [(MALA, True), (FMALA, False), (PCLineFMALA, True)]
)
def test_dtypes(kernel, dense_mass, dtype):
    """Positions, log density and everything adapted keep the dtype of the start."""
    x, y = (jnp.asarray(value, dtype) for value in data())

    def potential_fn(beta):
        return 0.5 * jnp.sum((y - x @ beta) ** 2)

    mcmc = mcmc_of(kernel(potential_fn=potential_fn, dense_mass=dense_mass), 30, 5)
    fields = ("potential_energy", "adapt_state.step_size", "adapt_state.inverse_mass_matrix")
    mcmc.run(jax.random.key(0), init_params=jnp.zeros(2, dtype), extra_fields=fields)
    fields = mcmc.get_extra_fields()
    assert mcmc.get_samples().dtype == fields["potential_energy"].dtype == dtype
    assert fields["adapt_state.step_size"].dtype == dtype
    assert fields["adapt_state.inverse_mass_matrix"].dtype == dtype


@pytest.mark.long
def test_dynamic_support():
    """A site whose support depends on another: b given a is uniform on (0, a), a is uniform."""

    def model():
        a = numpyro.sample("a", dist.Uniform(0, 1))
        numpyro.sample("b", dist.Uniform(0, a))

    mcmc = mcmc_of(FMALA(model), 500, 4000, num_chains=2)
    mcmc.run(jax.random.key(0))
    samples = mcmc.get_samples(group_by_chain=True)
    assert (samples["b"] > 0).all() and (samples["b"] < samples["a"]).all()
    assert (samples["a"] < 1).all()
    np.testing.assert_allclose(samples["a"].mean(), 0.5, atol=0.05)
    np.testing.assert_allclose(samples["b"].mean(), 0.25, atol=0.04)


# --- models that reverse mode cannot differentiate ------------------------------------------------


def iterated(y):
    """The square root of exp(2 a), by Newton's iteration until it stands still."""
    a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
    target = jnp.exp(2 * a)

    def is_going(state):
        return (jnp.abs(state[0] - state[1]) > 1e-5 * state[1]).any()

    def improve(state):
        return 0.5 * (state[0] + target / state[0]), state[0]

    start = jax.lax.stop_gradient(target) + 1
    root = jax.lax.while_loop(is_going, improve, (start, 2 * start))[0]
    numpyro.sample("y", dist.Normal(jnp.log(root), 0.5), obs=y)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "dense_mass"), [*zip(FORWARD, [True, False, True, False, True], strict=True)]
)
def test_while_loop(name, dense_mass):
    mcmc = mcmc_of(getattr(numpyro_fwd, name)(iterated, dense_mass=dense_mass), 400, 3000, 2)
    mcmc.run(jax.random.key(0), jnp.array([[0.5, -0.5], [1.0, 0.0], [1.5, 0.5]]))
    # prior precision 1, three observations of precision 4
    draws = mcmc.get_samples(group_by_chain=True)["a"]
    assert_moments(draws, np.array([12, 0]) / 13, 13**-0.5)


# --- algorithms of BlackJAX -----------------------------------------------------------------------

BLACKJAX = {
    "mala": {},
    "hmc": {"num_integration_steps": 5},
    "rmhmc": {"num_integration_steps": 5},
    "barker": {},
    "nuts": {},
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["mala", "rmhmc"])  # the others: test_blackjax_samplers.py
def test_blackjax_algorithm(name):
    kernel = BlackJAXKernel(regression, getattr(blackjax, name), **BLACKJAX[name])
    mcmc = mcmc_of(kernel, 500, 2000, num_chains=2)
    # mala has no preconditioner: covariates of one scale
    x, y = data()
    x = x / jnp.array([1.0, 10.0])
    mcmc.run(jax.random.key(0), x, y, extra_fields=("num_steps",))
    assert_moments(mcmc.get_samples(group_by_chain=True)["beta"], *truth(x, y))
    num_steps = mcmc.get_extra_fields()["num_steps"]
    assert (num_steps >= BLACKJAX[name].get("num_integration_steps", 1)).all()


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "dense_mass"),
    [("hmc", True), ("rmhmc", False), ("barker", True), ("barker", False), ("nuts", False)],
)
def test_blackjax_inverse_mass_matrix(name, dense_mass):
    """Scales four orders of magnitude apart, known to the kernel beforehand."""
    sd = jnp.array([100.0, 1.0, 0.01])
    inverse = jnp.diag(sd**2) if dense_mass else sd**2
    kernel = BlackJAXKernel(
        potential_fn=lambda z: 0.5 * jnp.sum((z / sd) ** 2),
        algorithm=getattr(blackjax, name),
        inverse_mass_matrix=inverse,
        adapt_mass_matrix=False,
        **BLACKJAX[name],
    )
    mcmc = mcmc_of(kernel, 200, 3000, num_chains=2)
    mcmc.run(jax.random.key(0), init_params=jnp.zeros((2, 3)))
    assert_moments(mcmc.get_samples(group_by_chain=True), 0, np.asarray(sd))


@pytest.mark.long
def test_blackjax_barker_takes_the_mass_matrix():
    """A fault of BlackJAX 1.7 that the kernel works around; when this fails, drop the work-around.

    Given the variances as inverse_mass_matrix it should move each coordinate by its own scale.
    """
    sd = jnp.array([10.0, 0.1])

    def jumps(inverse_mass_matrix):
        barker = blackjax.barker(lambda x: -0.5 * jnp.sum((x / sd) ** 2), 0.5, inverse_mass_matrix)
        keys = jax.random.split(jax.random.key(0), 500)
        state = barker.init(jnp.zeros(2))
        positions = jax.vmap(lambda key: barker.step(key, state)[0].position)(keys)
        return positions.std(0) / sd

    assert jumps(sd**2)[0] < 0.01
    np.testing.assert_allclose(jumps(sd**-2), 0.46, rtol=0.1)


@pytest.mark.long
def test_warm_start_can_be_off():
    """A random walk then evaluates the density and nothing else."""

    @jax.custom_jvp
    def potential_fn(z):
        return 0.5 * jnp.sum(z**2)

    @potential_fn.defjvp
    def raises(primals, tangents):
        raise AssertionError("differentiated")

    mcmc = mcmc_of(RandomWalk(potential_fn=potential_fn, warm_start=False), 200, 3000)
    mcmc.run(jax.random.key(0), init_params=jnp.ones(2))
    assert_moments(mcmc.get_samples(group_by_chain=True), 0, 1)


def test_what_is_not_kept_of_the_warmup_is_refused_by_name():
    mcmc = mcmc_of(MALA(regression), 5, 1, 1)
    mcmc.run(jax.random.key(0), *data())
    with pytest.raises(AttributeError, match=r"'mass_matrix_sqrt' is not kept.*mass_matrix"):
        mcmc.last_state.adapt_state.mass_matrix_sqrt  # noqa: B018
    assert not hasattr(copy.copy(mcmc.last_state.adapt_state), "mass_matrix_sqrt")
