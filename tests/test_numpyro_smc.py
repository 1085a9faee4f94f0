"""Sequential Monte Carlo inside NumPyro: particles as chains, and partially Bayesian models."""

import pickle
from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.contrib.module import numpyro_mutable, random_flax_module
from numpyro.distributions import constraints
from numpyro.infer import MCMC
from scipy.stats import multivariate_normal

import blackjax_ext
from numpyro_fwd import GOHSMC, OHSMC, SGSMC, LangevinSMC

FIELDS = ("temperature", "log_evidence", "ess", "accept_prob", "step_size")
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


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"l_kernel": "reversed"},
        {"l_kernel": "gaussian", "num_moves": 2},
        {"algorithm": blackjax_ext.hp_mala, "floor": 0.2, "num_moves": 2},
    ],
    ids=["mala", "reversed", "gaussian", "hp_mala"],
)
def test_posterior_and_evidence(arguments):
    mcmc = run(LangevinSMC(model, **arguments), jnp.asarray(Y), num_chains=2000)
    draws = mcmc.get_samples()
    # neighbours share ancestors: allow for a few hundred independent draws
    assert abs(float(draws["mean"].mean()) - MEAN) < 5 * np.sqrt(VARIANCE / 300)
    assert abs(float(draws["mean"].var()) / VARIANCE - 1) < 0.3
    np.testing.assert_allclose(draws["double"], 2 * draws["mean"], rtol=1e-6)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["log_evidence"].shape == (2000, 2)
    assert abs(float(fields["log_evidence"][0, 0]) - EVIDENCE) < 0.15
    np.testing.assert_array_equal(fields["temperature"], 1.0)
    assert np.all(fields["ess"] > 1000) and np.all(fields["accept_prob"] > 0.3)


def test_constrained_latents_and_factors():
    """A likelihood given as a factor, and a positive latent with its Jacobian in the prior."""

    def gamma(count):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 3.0))
        numpyro.factor("poisson", dist.Poisson(rate).log_prob(count))

    mcmc = run(LangevinSMC(gamma), jnp.array(4.0), num_chains=2000)
    # conjugate: Gamma(6, 4); the evidence is negative binomial
    assert abs(float(mcmc.get_samples()["rate"].mean()) - 1.5) < 0.15
    truth = dist.GammaPoisson(2.0, 3.0).log_prob(4.0)
    assert abs(float(mcmc.get_extra_fields()["log_evidence"][0] - truth)) < 0.15


def test_goes_on_from_a_state():
    mcmc = run(LangevinSMC(model), jnp.asarray(Y))
    first = mcmc.get_samples(group_by_chain=True)["mean"]
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), jnp.asarray(Y), extra_fields=FIELDS)
    assert mcmc.get_samples(group_by_chain=True)["mean"].shape == first.shape == (500, 2)
    assert not np.any(mcmc.get_samples(group_by_chain=True)["mean"] == first)


def test_few_temperatures_still_end_at_one():
    mcmc = run(LangevinSMC(model, tempering_ess=0.99), jnp.asarray(Y), num_warmup=3)
    np.testing.assert_array_equal(mcmc.get_extra_fields()["temperature"], 1.0)


def test_pickles():
    kernel = pickle.loads(pickle.dumps(LangevinSMC(model, num_moves=2)))
    assert run(kernel, jnp.asarray(Y)).get_samples()["mean"].shape == (1000,)


def improper():
    numpyro.sample("flat", dist.ImproperUniform(constraints.real, (), ()))


def with_param():
    numpyro.param("scale", 1.0)
    numpyro.sample("x", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: run(LangevinSMC(model), Y, num_chains=1), "num_chains=<particles>"),
        (lambda: run(LangevinSMC(model), Y, num_warmup=0), "num_warmup .* at least 1; got 0"),
        (lambda: run(LangevinSMC(improper)), "site 'flat' has the improper prior"),
        (lambda: run(LangevinSMC(with_param)), "param site 'scale'"),
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


# --- partially Bayesian models --------------------------------------------------------------------


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Dense(8)(x))
        return nn.Dense(1)(x)[..., 0]


def network(x, y=None, *, layer="Dense_0.kernel", batch=40):
    net = random_flax_module("net", Net(), prior={layer: dist.Normal(0, 1)}, input_shape=(1, 2))
    scale = numpyro.param("scale", 0.5, constraint=constraints.positive)
    with numpyro.plate("data", x.shape[0], subsample_size=None if y is None else batch):
        rows = numpyro.subsample(x, 1)
        obs = None if y is None else numpyro.subsample(y, 0)
        numpyro.sample("y", dist.Normal(net(rows), scale), obs=obs)


@cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.sin(1.5 * x[:, 0]) + 0.1 * rng.normal(size=200)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def trained_of(cls, num_steps=1000, **arguments):
    smc = cls(network, optax.adam(0.02), num_particles=20, step_size=0.005, **arguments)
    return smc, smc.run(jax.random.key(3), num_steps, *data(), progress_bar=False)


@cache
def trained(name="GOHSMC"):
    return trained_of({"GOHSMC": GOHSMC, "OHSMC": OHSMC, "SGSMC": SGSMC}[name])


@pytest.mark.parametrize("name", ["GOHSMC", "OHSMC"])
def test_network_learns(name):
    smc, result = trained(name)
    assert result.losses.shape == result.ess.shape == (1000,)
    assert result.losses[-50:].mean() < result.losses[:10].mean() - 100
    x, y = data()
    prediction = smc.predictive(jax.random.key(4), result, x, num_samples=30)["y"]
    assert prediction.shape == (30, 200)
    assert float(jnp.sqrt(jnp.mean((prediction.mean(0) - y) ** 2))) < 0.35
    assert 0.05 < float(result.params["scale"]) < 0.45
    assert result.particles["net/Dense_0.kernel"].shape == (20, 2, 8)
    np.testing.assert_allclose(jax.nn.logsumexp(result.log_weights), 0.0, atol=1e-5)


def test_restarting_from_the_prior_learns_less():
    _, result = trained("SGSMC")
    assert np.isfinite(result.losses).all()
    # its particles know one batch, through one short move
    assert result.losses[-50:].mean() > trained("GOHSMC")[1].losses[-50:].mean() + 50
    kernel = result.particles["net/Dense_0.kernel"]
    assert 0.8 < float(jnp.std(kernel)) < 1.2


def test_potential_is_the_scaled_joint_density():
    """For a batch of all rows, against the densities written out."""
    smc = GOHSMC(network, optax.sgd(0.1), num_particles=3)
    x, y = data()
    state = smc.init(jax.random.key(5), x, y, batch=None)
    z = jax.tree.map(lambda leaf: leaf[0], state.inner.position)
    params = state.inner.params
    found = smc._partial.potential_fn(params, z, jax.random.key(6), (x, y), {"batch": None})
    weights = jax.tree.map(lambda leaf: leaf, params["net$params"])
    weights["Dense_0"] = {**weights["Dense_0"], "kernel": z["net/Dense_0.kernel"]}
    mean = Net().apply({"params": weights}, x)
    expected = dist.Normal(mean, 0.5).log_prob(y).sum()
    expected += dist.Normal(0, 1).log_prob(z["net/Dense_0.kernel"]).sum()
    np.testing.assert_allclose(-found, expected, rtol=1e-5)
    # batches are scaled to all rows, so that their mean over many keys is the same
    keys = jax.random.split(jax.random.key(7), 400)
    batches = jax.vmap(
        lambda key: smc._partial.potential_fn(params, z, key, (x, y), {"batch": 40})
    )(keys)
    error = float(jnp.std(batches)) / np.sqrt(400)
    assert abs(float(batches.mean() - found)) < 5 * error and error > 0.1


def test_particles_share_the_rows():
    """Equal particles have equal potentials on a batch."""
    smc = GOHSMC(network, optax.sgd(0.1), num_particles=4)
    state = smc.init(jax.random.key(5), *data())
    z = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), state.inner.position)
    values = jax.vmap(
        lambda z: smc._partial.potential_fn(state.inner.params, z, jax.random.key(8), data(), {})
    )(z)
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def test_run_resumes_where_it_stopped():
    _, whole = trained_of(GOHSMC, 20)
    smc, half = trained_of(GOHSMC, 10)
    rest = smc.run(jax.random.key(9), 10, *data(), progress_bar=False, init_state=half.state)
    np.testing.assert_array_equal(whole.losses, jnp.concatenate([half.losses, rest.losses]))
    np.testing.assert_array_equal(whole.params["scale"], rest.params["scale"])


def test_update_is_a_step_of_run():
    smc, result = trained_of(GOHSMC, 3)
    state = smc.init(jax.random.key(3), *data())
    update = jax.jit(smc.update)
    for loss in result.losses:
        state, info = update(state, *data())
        np.testing.assert_allclose(info.loss, loss, rtol=1e-4)


def test_predictions_follow_the_weights():
    """All weight on one particle: every prediction is that particle's."""
    smc, result = trained()
    alone = result._replace(log_weights=jnp.full(20, -jnp.inf).at[7].set(0.0))
    x, _ = data()
    weights = jax.tree.map(lambda leaf: leaf, result.params["net$params"])
    kernel = result.particles["net/Dense_0.kernel"][7]
    weights["Dense_0"] = {**weights["Dense_0"], "kernel": kernel}
    mean = Net().apply({"params": weights}, x)
    found = smc.predictive(jax.random.key(10), alone, x, num_samples=2000)["y"].mean(0)
    error = result.params["scale"] / np.sqrt(2000)
    assert float(jnp.max(jnp.abs(found - mean))) < 6 * error


def no_param(x, y):
    numpyro.sample("a", dist.Normal(0, 1))


def no_latent(x, y):
    numpyro.param("a", 1.0)
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def mutable(x, y):
    numpyro.param("a", 1.0)
    numpyro.sample("b", dist.Normal(0, 1))
    numpyro_mutable("count", 0)


def improper_latent(x, y):
    numpyro.param("a", 1.0)
    numpyro.sample("b", dist.ImproperUniform(constraints.real, (), ()))


def latent_in_the_plate(x, y):
    numpyro.param("a", 1.0)
    with numpyro.plate("data", 200, subsample_size=10):
        numpyro.sample("b", dist.Normal(0, 1))


def not_subsampled(x, y):
    a = numpyro.param("a", 1.0)
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", 200, subsample_size=10):
        numpyro.sample("y", dist.Normal(a, jnp.exp(b)), obs=y)


def discrete(x, y):
    numpyro.param("a", 1.0)
    numpyro.sample("b", dist.Poisson(1.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (no_param, "no param site to optimize: sample it with LangevinSMC"),
        (no_latent, "no latent site to sample: train it with numpyro.infer.SVI"),
        (mutable, "mutable site 'count'"),
        (improper_latent, "site 'b' has the improper prior"),
        (latent_in_the_plate, "site 'b' is inside the plate 'data', which subsamples 10 of 200"),
        (discrete, "site 'b' is a discrete latent"),
    ],
)
def test_wrong_models(wrong, message):
    with pytest.raises(ValueError, match=message):
        GOHSMC(wrong, optax.sgd(0.1)).init(jax.random.key(0), *data())


def test_rows_that_are_not_the_plates_are_refused():
    with pytest.raises(ValueError, match=r"200.*10|data"):
        GOHSMC(not_subsampled, optax.sgd(0.1)).init(jax.random.key(0), *data())


def test_misspelt_layer_is_refused():
    smc = GOHSMC(network, optax.sgd(0.1), num_particles=2)
    with pytest.raises(ValueError, match=r"prior names \['Dense_1.kernl'\].*Dense_0.kernel"):
        smc.init(jax.random.key(0), *data(), layer="Dense_1.kernl")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optim": 0.01}, TypeError, "optim must be an optax transformation"),
        ({"num_particles": 0}, ValueError, "num_particles must be at least 1; got 0"),
        ({"step_size": -1.0}, ValueError, "step_size must be positive"),
        ({"l_kernel": "none"}, ValueError, "l_kernel must be one of"),
        ({"model": None}, TypeError, "model must be callable"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        GOHSMC(**{"model": network, "optim": optax.sgd(0.1)} | arguments)


def test_update_before_init_is_refused():
    _, result = trained()
    with pytest.raises(RuntimeError, match="call init or run"):
        GOHSMC(network, optax.sgd(0.1)).update(result.state, *data())
