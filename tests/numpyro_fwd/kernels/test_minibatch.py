"""The minibatch kernels sample NumPyro models with subsample plates."""

import os
import pickle
import subprocess
import sys

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import MCMC, Gibbs, Predictive

from blackjax_ext.rows import newton
from numpyro_fwd import AMAGOLD, L2MC, SGHMC, RandomWalk
from numpyro_fwd.kernels import anchored_rows

pytestmark = pytest.mark.long

NUM_ROWS, BATCH = 60, 12
Y = np.random.default_rng(50).exponential(0.5, NUM_ROWS).astype(np.float32)
POSTERIOR = scipy.stats.gamma(2 + NUM_ROWS, scale=1 / (1 + Y.sum(dtype=float)))


def model(y):
    """A rate with a gamma posterior."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", NUM_ROWS, subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Exponential(rate), obs=None if y is None else y[rows])


def run(kernel, num_samples=400, num_warmup=200, num_chains=10, **keywords):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(51), Y, extra_fields=("accept_prob", "inner.num_rows"), **keywords)
    return mcmc


def pvalue(mcmc, thin=10):
    """Of a Kolmogorov-Smirnov test on draws that are far apart."""
    rates = np.asarray(mcmc.get_samples(group_by_chain=True)["rate"])[:, ::thin]
    return scipy.stats.kstest(rates.ravel(), POSTERIOR.cdf).pvalue


@pytest.fixture(scope="module")
def second_order():
    return run(AMAGOLD(model, num_integration_steps=3))


@pytest.mark.statistical
def test_second_order_samples_the_posterior(second_order):
    assert pvalue(second_order) > 1e-4
    fields = second_order.get_extra_fields()
    assert fields["accept_prob"].mean() > 0.9
    assert (fields["inner.num_rows"] == NUM_ROWS).all()


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kernel",
    [
        AMAGOLD(model, resample_momentum=False, warm_start=False),
        AMAGOLD(model, control_variate=None, num_integration_steps=4),
        L2MC(model, num_integration_steps=4, chunk_size=7, warm_start=False),
    ],
    ids=["persistent", "none", "l2mc"],
)
def test_kernels_sample_the_posterior(kernel):
    mcmc = run(kernel)
    assert pvalue(mcmc) > 1e-4
    assert 0.4 < mcmc.get_extra_fields()["accept_prob"].mean() < 1.0


def test_sghmc_is_close_with_short_steps():
    mcmc = run(SGHMC(model, num_integration_steps=10))
    rates = np.asarray(mcmc.get_samples()["rate"])
    np.testing.assert_allclose(rates.mean(), POSTERIOR.mean(), rtol=0.03)
    np.testing.assert_allclose(rates.std(), POSTERIOR.std(), rtol=0.1)
    assert mcmc.last_state.adapt_state.step_size[0] == np.float32(0.1)


def test_anchor_is_the_mode_and_stays(second_order):
    shared = second_order.last_state.shared
    anchor = shared.anchor
    # of the density of log(rate), Jacobian included: shape / rate
    mode = np.log((2 + NUM_ROWS) / (1 + Y.sum(dtype=float)))
    np.testing.assert_allclose(anchor.position["rate"], mode, atol=1e-3)
    np.testing.assert_allclose(shared.metric.sqrt**2, [[2 + NUM_ROWS]], rtol=1e-3)
    np.testing.assert_allclose(anchor.hessian, [[1.0]], rtol=1e-3)
    np.testing.assert_allclose(anchor.gradient, 0.0, atol=0.1)
    first = second_order.post_warmup_state
    assert first is None or np.array_equal(first.shared.anchor.gradient, anchor.gradient)


@pytest.mark.statistical
def test_resumes_with_the_same_anchor(second_order):
    state = second_order.last_state
    second_order.post_warmup_state = state
    second_order.run(jax.random.key(52), Y)
    for old, new in zip(
        *(jax.tree.leaves(s.shared) for s in (state, second_order.last_state)), strict=True
    ):
        assert np.array_equal(old, new)
    assert pvalue(second_order) > 1e-4


def test_predictive_and_arviz_see_all_rows(second_order):
    kernel = second_order.sampler
    draws = second_order.get_samples()
    predicted = Predictive(kernel.model, draws)(jax.random.key(53), None)["y"]
    assert predicted.shape == (len(draws["rate"]), NUM_ROWS)
    data = arviz_base.from_numpyro(second_order, log_likelihood=True)
    assert data.observed_data["y"].shape == (NUM_ROWS,)
    assert data.log_likelihood["y"].shape[-1] == NUM_ROWS


def test_kernels_are_pickled(second_order):
    kernel = pickle.loads(pickle.dumps(second_order.sampler))
    assert kernel.model.model is model


def test_no_mode_raises(monkeypatch):
    def no_mode(*arguments):
        return newton.newton(*arguments)._replace(distance=9.0)

    monkeypatch.setattr(anchored_rows, "newton", no_mode)
    with pytest.raises(ValueError, match='control_variate="second_order" needs the mode'):
        kernel = AMAGOLD(model, warm_start=False)
        kernel.init(jax.random.key(0), 0, None, (Y,), {})


def test_too_many_dimensions_for_a_mode_raise():
    def wide(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([600]).to_event(1)).sum()
        with numpyro.plate("rows", NUM_ROWS, subsample_size=BATCH) as rows:
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    with pytest.raises(ValueError, match="control_variate must be None beyond 512"):
        AMAGOLD(wide).init(jax.random.key(0), 10, None, (Y,), {})


def test_optimizer_must_be_of_optax():
    with pytest.raises(TypeError, match="optimizer must be a GradientTransformation"):
        AMAGOLD(model, optimizer="adam")


def test_models_without_minibatches():
    def whole(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mean", dist.Normal(0, 1)), 1.0), obs=y)

    with pytest.raises(ValueError, match="no plate with a subsample_size"):
        AMAGOLD(whole).init(jax.random.key(0), 10, None, (Y,), {})
    kernel = L2MC(whole, warm_start=False)
    state = kernel.init(jax.random.key(0), 0, None, (Y,), {})
    assert jnp.isfinite(state.potential_energy)


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (AMAGOLD, {"potential_fn": jnp.sum}, "model must be given to AMAGOLD"),
        (AMAGOLD, {"model": model, "potential_fn": jnp.sum}, "no potential_fn"),
        (AMAGOLD, {"model": model, "control_variate": "third"}, "control_variate must be"),
        (AMAGOLD, {"model": model, "friction": -1.0}, "friction must be"),
        (
            *(AMAGOLD, {"model": model, "friction": 0.0, "resample_momentum": False}),
            "friction must be positive",
        ),
        (L2MC, {"model": model, "num_integration_steps": 0}, "num_integration_steps must be"),
        (AMAGOLD, {"model": model, "chunk_size": 0}, "chunk_size must be"),
        (AMAGOLD, {"model": model, "acceptance": "exact"}, "acceptance must be"),
        (AMAGOLD, {"model": model, "num_epochs": -1}, "num_epochs must be at least 1"),
        (SGHMC, {"model": model, "adapt_step_size": True}, "adapt_step_size must be left out"),
        (SGHMC, {"model": model, "target_accept_prob": 0.6}, "target_accept_prob must be left out"),
    ],
)
def test_wrong_arguments_raise(kernel, arguments, message):
    with pytest.raises(ValueError, match=message):
        kernel(**arguments)


def two_plates(y, w):
    """A mean seen through two data sets of different sizes."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("y", len(y), subsample_size=BATCH) as rows:
        numpyro.sample("y_obs", dist.Normal(mean, 1.0), obs=y[rows])
    with numpyro.plate("w", len(w), subsample_size=5) as rows:
        numpyro.sample("w_obs", dist.Normal(2.0 * mean, 1.0), obs=w[rows])


@pytest.mark.statistical
def test_several_plates():
    rng = np.random.default_rng(54)
    y, w = (rng.normal(size=n).astype(np.float32) + 0.4 for n in (60, 30))
    mcmc = MCMC(
        AMAGOLD(two_plates),
        num_warmup=100,
        num_samples=500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(55), y, w)
    precision = 1 + 60 + 4 * 30
    exact = scipy.stats.norm((y.sum() + 2 * w.sum()) / precision, precision**-0.5)
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["mean"])[:, ::10]
    assert scipy.stats.kstest(draws.ravel(), exact.cdf).pvalue > 1e-4


def test_sequential_chains():
    mcmc = MCMC(
        AMAGOLD(model, num_integration_steps=3),
        num_warmup=50,
        num_samples=200,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(56), Y, extra_fields=("accept_prob",))
    rates = np.asarray(mcmc.get_samples(group_by_chain=True)["rate"])
    assert rates.shape == (2, 200) and not np.array_equal(*rates)
    np.testing.assert_allclose(rates.mean(axis=1), POSTERIOR.mean(), rtol=0.1)
    assert mcmc.get_extra_fields()["accept_prob"].mean() > 0.9
    first, second = mcmc.last_state.shared.anchor.position["rate"]
    np.testing.assert_allclose(first, second, atol=1e-2)


PARALLEL = """
import jax, numpy as np
from numpyro.infer import MCMC
from numpyro_fwd import AMAGOLD
from tests.numpyro_fwd.kernels.test_minibatch import Y, model
assert jax.local_device_count() == 2
def rates(chain_method):
    mcmc = MCMC(AMAGOLD(model, num_integration_steps=3), num_warmup=30, num_samples=20,
        num_chains=2, chain_method=chain_method, progress_bar=False)
    mcmc.run(jax.random.key(58), Y)
    return np.asarray(mcmc.get_samples()["rate"])
np.testing.assert_allclose(rates("parallel"), rates("sequential"), rtol=1e-3)
"""


@pytest.mark.full
def test_parallel_is_sequential():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", PARALLEL], env=env, check=True)


def with_two_latents(y):
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", NUM_ROWS, subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Normal(mean + shift, 1.0), obs=y[rows])


def blocks(control_variate):
    kernel = AMAGOLD(with_two_latents, control_variate=control_variate)
    other = RandomWalk(kernel.model)
    gibbs = Gibbs([(kernel, ["mean"]), (other, ["shift"])])
    mcmc = MCMC(gibbs, num_warmup=100, num_samples=2000, progress_bar=False)
    mcmc.run(jax.random.key(57), Y)
    return mcmc


def test_block_of_gibbs():
    draws = blocks(None).get_samples()
    total = np.asarray(draws["mean"] + draws["shift"])
    # the sum is known well, the difference is that of the prior
    precision = NUM_ROWS + 0.5
    np.testing.assert_allclose(total.mean(), Y.sum() / precision, atol=0.05)
    np.testing.assert_allclose(total.std(), precision**-0.5, rtol=0.2)


def test_block_of_gibbs_has_no_control_variate():
    with pytest.raises(ValueError, match="control_variate must be None inside Gibbs"):
        blocks("second_order")
