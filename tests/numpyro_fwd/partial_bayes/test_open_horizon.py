"""Partially Bayesian models: parameters that are trained, latents that are sampled."""

import warnings
from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.contrib.module import numpyro_mutable, random_flax_module, random_nnx_module
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from scipy.stats import multivariate_normal

from numpyro_fwd import GOHSMC, OHSMC, SGSMC

pytestmark = pytest.mark.long


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


NUM_STEPS = 500


def scale_of(params, particles, log_weights):
    """A validation loss."""
    return params["scale"]


@cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.sin(1.5 * x[:, 0]) + 0.1 * rng.normal(size=200)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


@cache
def trainer(cls=GOHSMC):
    """Kept, and with it its compiled programs."""
    return cls(network, optax.adam(0.03), num_particles=20, step_size=0.005)


@cache
def trained(cls=GOHSMC):
    smc = trainer(cls)
    with warnings.catch_warnings():
        # the weights of a random walk are as published, and collapse
        warnings.filterwarnings("ignore" if cls is OHSMC else "error", "the effective sample size")
        return smc, smc.run(jax.random.key(3), NUM_STEPS, *data(), progress_bar=False)


@pytest.mark.parametrize("cls", [GOHSMC, OHSMC])
def test_network_learns(cls):
    smc, result = trained(cls)
    assert result.losses.shape == result.ess.shape == (NUM_STEPS,)
    assert result.validation_losses.shape == (0,)
    assert result.losses[-50:].mean() < result.losses[:10].mean() - 100
    x, y = data()
    prediction = smc.predictive(jax.random.key(4), result, x, num_samples=30)["y"]
    assert prediction.shape == (30, 200)
    assert float(jnp.sqrt(jnp.mean((prediction.mean(0) - y) ** 2))) < 0.4
    assert 0.05 < float(result.params["scale"]) < 0.5
    assert result.particles["net/Dense_0.kernel"].shape == (20, 2, 8)
    np.testing.assert_allclose(jax.nn.logsumexp(result.log_weights), 0.0, atol=1e-5)


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
    """Two runs of ten steps, and one of twenty in two pieces: the same, bit by bit."""
    smc = trainer()
    shared = {"progress_bar": False, "validate_every": 10}
    whole = smc.run(jax.random.key(3), 20, *data(), validation=scale_of, **shared)
    half = smc.run(jax.random.key(3), 10, *data(), **shared)
    rest = smc.run(jax.random.key(9), 10, *data(), init_state=half.state, **shared)
    np.testing.assert_array_equal(whole.losses, jnp.concatenate([half.losses, rest.losses]))
    np.testing.assert_array_equal(
        whole.state.inner.params["scale"], rest.state.inner.params["scale"]
    )


def test_update_is_a_step_of_run():
    smc = trainer()
    result = smc.run(jax.random.key(3), 10, *data(), progress_bar=False)
    state = smc.init(jax.random.key(3), *data())
    update = jax.jit(smc.update)
    for loss in result.losses[:3]:
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
        (discrete, r"site 'b' \(Poisson\) is a discrete latent"),
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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1; got 0"),
        ({"validate_every": 0}, ValueError, "validate_every must be at least 1; got 0"),
        ({"validation": [1.0]}, TypeError, "validation must be a tuple of the model's arguments"),
    ],
)
def test_wrong_arguments_of_run(arguments, error, message):
    arguments = {"num_steps": 2, "progress_bar": False} | arguments
    num_steps = arguments.pop("num_steps")
    with pytest.raises(error, match=message):
        trainer().run(jax.random.key(0), num_steps, *data(), **arguments)


def test_temperatures_are_counted():
    with pytest.raises(ValueError, match="num_temperatures must be at least 1; got 0"):
        SGSMC(network, optax.sgd(0.1), num_temperatures=0)


# --- a conjugate model ----------------------------------------------------------------------------

Y = np.array([1.2, 0.7, 1.9, 1.1], np.float32)
SCALE = 0.7


def conjugate(y, batch=None):
    """y ~ N(shift + x, SCALE^2), x ~ N(0, 1)."""
    shift = numpyro.param("shift", 0.0)
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0], subsample_size=batch):
        numpyro.sample("y", dist.Normal(shift + x, SCALE), obs=numpyro.subsample(y, 0))


def test_restarting_from_the_prior_reaches_the_posterior_of_the_batch():
    """One update of SGSMC: posterior, evidence, and the gradient (12) are those of the batch."""
    smc = SGSMC(conjugate, optax.sgd(1.0), num_particles=4000, num_temperatures=8, step_size=0.2)
    state, info = jax.jit(smc.update)(smc.init(jax.random.key(0), Y), Y)
    inner = state.inner
    weights = jnp.exp(inner.log_weights)
    variance = 1 / (1 + 4 / SCALE**2)
    mean = variance * Y.sum() / SCALE**2
    assert abs(float(weights @ inner.position["x"]) - mean) < 0.05 * variance**0.5
    second = weights @ (inner.position["x"] - mean) ** 2
    assert abs(float(second) / variance - 1) < 0.1
    covariance = np.ones((4, 4)) + SCALE**2 * np.eye(4)
    evidence = multivariate_normal.logpdf(Y, np.zeros(4), covariance)
    assert abs(float(inner.log_evidence) - evidence) < 0.05
    slope = np.sum(Y - mean) / SCALE**2
    np.testing.assert_allclose(inner.params["shift"], slope, atol=0.1)
    assert info.ess > 400 and int(info.num_divergent) == 0


def test_restarting_forgets_the_particles():
    """Particles of the state do not enter the next one, parameters and batches do."""
    smc = SGSMC(conjugate, optax.sgd(0.1), num_particles=10, num_temperatures=2)
    state = smc.init(jax.random.key(1), Y)
    other = state.inner._replace(position={"x": state.inner.position["x"] + 100.0})
    update = jax.jit(lambda state: smc.update(state, Y)[0].inner)
    found = [update(s) for s in (state, state._replace(inner=other))]
    np.testing.assert_array_equal(found[0].position["x"], found[1].position["x"])


def drifting(rate: float) -> optax.GradientTransformation:
    """Parameters that grow by `rate` whatever the gradient says."""

    def update(gradients, state, params=None):
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, rate), gradients), state

    return optax.GradientTransformation(lambda params: (), update)


def test_the_best_parameters_so_far_are_kept():
    smc = GOHSMC(conjugate, drifting(0.1), num_particles=5)
    shared = {
        "validation": lambda params, particles, log_weights: (params["shift"] - 1.2) ** 2,
        "validate_every": 4,
        "progress_bar": False,
    }
    result = smc.run(jax.random.key(0), 20, Y, **shared)
    np.testing.assert_allclose(result.params["shift"], 1.2, rtol=1e-5)
    np.testing.assert_allclose(result.state.inner.params["shift"], 2.0, rtol=1e-5)
    expected = (0.4 * np.arange(1, 6) - 1.2) ** 2
    np.testing.assert_allclose(result.validation_losses, expected, atol=1e-5)
    assert not np.array_equal(result.particles["x"], result.state.inner.position["x"])
    # a later run, which only gets worse, does not lose them
    later = smc.run(jax.random.key(1), 4, Y, init_state=result.state, **shared)
    np.testing.assert_array_equal(later.params["shift"], result.params["shift"])
    np.testing.assert_array_equal(later.particles["x"], result.particles["x"])


def test_a_loss_that_is_not_a_number_is_never_the_best():
    def validation(params, particles, log_weights):
        return jnp.where(params["shift"] < 0.15, params["shift"], jnp.nan)

    smc = GOHSMC(conjugate, drifting(0.1), num_particles=5)
    shared = {"validation": validation, "validate_every": 1, "progress_bar": False}
    with pytest.warns(UserWarning, match="2 of 3 validation losses are not finite"):
        result = smc.run(jax.random.key(0), 3, Y, **shared)
    np.testing.assert_allclose(result.params["shift"], 0.1, rtol=1e-5)


def test_a_collapse_warns():
    """The published weights leave copies of a few particles; softened ones do not."""
    y = np.random.default_rng(6).normal(size=200).astype(np.float32)
    shared = {"num_particles": 50, "step_size": 0.001}
    with pytest.warns(UserWarning, match=r"sample size fell to .* of 50 particles.*weight_ess"):
        hard = GOHSMC(conjugate, drifting(0.0), weight_ess=0.0, **shared)
        hard = hard.run(jax.random.key(0), 100, y, batch=2, progress_bar=False)
    soft = GOHSMC(conjugate, drifting(0.0), **shared)
    soft = soft.run(jax.random.key(0), 100, y, batch=2, progress_bar=False)
    assert soft.ess[-50:].mean() > 20
    assert np.std(soft.particles["x"]) > 10 * np.std(hard.particles["x"])
    with pytest.raises(TypeError, match="weight_ess is for GOHSMC and OHSMC"):
        SGSMC(conjugate, optax.sgd(0.1), weight_ess=0.5)


def test_validation_on_data_is_that_of_the_mixture_over_all_rows():
    held_out = np.array([0.3, 2.2, -0.5, 1.4, 0.9], np.float32)
    smc = GOHSMC(conjugate, drifting(0.1), num_particles=5)
    result = smc.run(jax.random.key(2), 4, Y, batch=2, validation=(held_out,), validate_every=4)
    mean = result.params["shift"] + result.particles["x"]
    density = jnp.exp(dist.Normal(mean[:, None], SCALE).log_prob(held_out))
    expected = -jnp.log(jnp.exp(result.log_weights) @ density).mean()
    np.testing.assert_allclose(result.validation_losses, expected[None], rtol=1e-5)


def with_a_positive_latent(y):
    """y ~ N(shift, s^2), s ~ HalfNormal(1)."""
    shift = numpyro.param("shift", 0.0)
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(shift, scale), obs=y)


def test_validation_leaves_out_the_jacobians_of_constraints():
    held_out = np.array([0.3, 2.2, -0.5, 1.4, 0.9], np.float32)
    smc = GOHSMC(with_a_positive_latent, drifting(0.1), num_particles=5)
    result = smc.run(jax.random.key(2), 4, Y, validation=(held_out,), validate_every=4)
    scale = jnp.exp(result.particles["scale"])
    density = jnp.exp(dist.Normal(result.params["shift"], scale[:, None]).log_prob(held_out))
    expected = -jnp.log(jnp.exp(result.log_weights) @ density).mean()
    np.testing.assert_allclose(result.validation_losses, expected[None], rtol=1e-5)


def test_the_variational_baseline_runs_on_the_same_model():
    guide = AutoNormal(conjugate)
    svi = SVI(conjugate, guide, optax.adam(0.05), Trace_ELBO())
    result = svi.run(jax.random.key(0), 200, Y, progress_bar=False)
    smc = GOHSMC(conjugate, optax.adam(0.05), num_particles=100, step_size=0.1)
    mine = smc.run(jax.random.key(0), 200, Y, progress_bar=False)
    assert abs(float(result.params["shift"]) - Y.mean()) < 0.2
    assert abs(float(mine.params["shift"]) - Y.mean()) < 0.2


# --- flax.nnx ------------------------------------------------------------------------------------


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 8, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))[..., 0]


def nnx_network(x, y=None, *, layer="hidden.kernel"):
    module = NNXNet(nnx.Rngs(0))
    net = random_nnx_module("net", module, prior={layer: dist.Normal(0, 1)})
    with numpyro.plate("data", x.shape[0], subsample_size=None if y is None else 40):
        obs = None if y is None else numpyro.subsample(y, 0)
        numpyro.sample("y", dist.Normal(net(numpyro.subsample(x, 1)), 0.3), obs=obs)


def test_nnx_network_learns():
    smc = GOHSMC(nnx_network, optax.adam(0.03), num_particles=10, step_size=0.01)
    result = smc.run(jax.random.key(3), 200, *data(), progress_bar=False)
    assert result.losses[-20:].mean() < result.losses[:5].mean() - 100
    assert result.particles["net/hidden.kernel"].shape == (10, 2, 8)
    x, y = data()
    prediction = smc.predictive(jax.random.key(4), result, x, num_samples=30)["y"]
    assert float(jnp.mean((prediction.mean(0) - y) ** 2)) < 0.5 * float(jnp.var(y))


def test_misspelt_nnx_layer_is_refused():
    with pytest.raises(ValueError, match=r"prior names \['hiden.kernel'\].*hidden.kernel"):
        GOHSMC(nnx_network, optax.sgd(0.1)).init(jax.random.key(0), *data(), layer="hiden.kernel")
