"""What a metric that follows the chain costs in bias, and that the default has none."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import blackjax_ext
import numpyro_fwd
from blackjax_ext import metrics, schedules
from blackjax_ext.equations import programs_in
from tests.laws.targets import FUNNEL, FUNNEL_SCALE

pytestmark = pytest.mark.long

NUM_CHAINS, NUM_STEPS = 20_000, 30


def variance_of_the_neck(follow):
    """Variance of the funnel's neck, over its true value, after steps from exact starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = blackjax_ext.alsmmala(
            FUNNEL.logdensity,
            0.8,
            schedule=schedules.geometric(0.5),
            metric_fn=metrics.softabs_hessian(2.0),
            follow=follow,
            run_length=1,
        )
    starts = jnp.asarray(FUNNEL.draw(np.random.default_rng(0), NUM_CHAINS), jnp.float32)

    def chain(start, key):
        origin = sampler.init(jnp.zeros_like(start))
        state = sampler.init(start)._replace(cached=origin.cached)
        keys = jax.random.split(key, NUM_STEPS)
        return jax.lax.scan(lambda s, k: (sampler.step(k, s)[0], None), state, keys)[0].position

    ends = jax.jit(jax.vmap(chain))(starts, jax.random.split(jax.random.key(1), NUM_CHAINS))
    return float(np.var(np.asarray(ends[:, 0], np.float64)) / FUNNEL_SCALE**2)


def test_a_metric_that_follows_the_chain_is_biased_and_a_frozen_one_is_not():
    error = np.sqrt(2 / NUM_CHAINS)
    assert abs(variance_of_the_neck(follow=False) - 1) < 5 * error
    # 1.24 times the truth was measured
    assert variance_of_the_neck(follow=True) > 1 + 10 * error


@pytest.mark.parametrize("algorithm", ["alsmmala", "amsmmala"])
def test_following_warns(algorithm):
    with pytest.warns(UserWarning, match="does not leave the target invariant"):
        getattr(blackjax_ext, algorithm)(lambda x: -(x**2), 1.0, follow=True)


@pytest.mark.parametrize("kernel", ["ALSMMALA", "AMSMMALA"])
def test_following_warns_under_numpyro(kernel):
    with pytest.warns(UserWarning, match="does not leave the target invariant"):
        getattr(numpyro_fwd, kernel)(lambda: None, follow=True)


@pytest.mark.parametrize("follow", [False, True])
def test_covariance_is_that_of_the_draws(follow, x64):
    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = blackjax_ext.amsmmala(logdensity, 0.9, jnp.array([4.0, 0.25]), follow=follow)
    first = sampler.init(jnp.array([1.0, -0.5]))

    def step(state, key):
        state = sampler.step(key, state)[0]
        return state, state.position

    keys = jax.random.split(jax.random.key(2), 200)
    last, draws = jax.jit(lambda state: jax.lax.scan(step, state, keys))(first)
    if not follow:
        np.testing.assert_array_equal(last.covariance.inverse_sqrt, first.covariance.inverse_sqrt)
        return
    # the start counts for D + 5 draws at the first position with the first covariance
    whitened = np.asarray(draws) / [2.0, 0.5]
    origin = np.array([0.5, -1.0])
    weights = np.concatenate([[7.0], np.ones(200)])
    points = np.concatenate([origin[None], whitened])
    mean = np.average(points, axis=0, weights=weights)
    spread = (points - mean).T * weights @ (points - mean)
    expected = (spread + 7.0 * first.covariance.inverse()) / 207
    np.testing.assert_allclose(last.covariance.inverse(), expected, rtol=1e-8)
    np.testing.assert_allclose(last.mean, mean * [2.0, 0.5], rtol=1e-8)
    root, inverse_root = last.covariance.inverse_sqrt, last.covariance.sqrt
    np.testing.assert_allclose(root @ inverse_root, np.eye(2), atol=1e-9)
    log_determinant = -np.linalg.slogdet(last.covariance.inverse())[1]
    np.testing.assert_allclose(last.covariance.log_determinant, log_determinant, rtol=1e-8)


def normal(mean):
    numpyro.sample("x", dist.StudentT(5.0, mean, 1.0).expand([2]).to_event(1))


def collected(kernel, **fields):
    """One run of two vectorized chains with extra fields, each (chains, draws, ...)."""
    mcmc = MCMC(
        kernel,
        num_warmup=60,
        num_samples=200,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), jnp.zeros(()), extra_fields=tuple(fields.values()))
    found = mcmc.get_extra_fields(group_by_chain=True)
    return {name: np.asarray(found[field]) for name, field in fields.items()}


def test_kernel_freezes_the_metric_and_chains_share_the_schedule():
    schedule = schedules.exponential(5.0, 0.4, 60)
    kernel = numpyro_fwd.ALSMMALA(normal, schedule=schedule)
    found = collected(kernel, cached="inner.cached", refreshed="inner.is_current")
    np.testing.assert_array_equal(found["cached"], np.repeat(found["cached"][:, :1], 200, axis=1))
    np.testing.assert_array_equal(*found["refreshed"])
    assert 0.1 < found["refreshed"].mean() < 0.7


def test_kernel_freezes_the_covariance():
    roots = collected(numpyro_fwd.AMSMMALA(normal), root="inner.covariance.inverse_sqrt")["root"]
    np.testing.assert_array_equal(roots, np.repeat(roots[:, :1], 200, axis=1))


@pytest.mark.parametrize("name", ["ALSMMALA", "AMSMMALA"])
def test_refresh_under_gibbs_keeps_what_is_frozen(name):
    """Other data change the metric at the position, but not what the warm-up has frozen."""
    kernel = getattr(numpyro_fwd, name)(normal)
    state = kernel.init(jax.random.key(0), 0, None, (jnp.zeros(()),), {})
    other = kernel.refresh(state, (jnp.asarray(3.0),), {})
    assert other.inner.logdensity != state.inner.logdensity
    frozen = ("cached",) if name == "ALSMMALA" else ("covariance", "mean", "num_draws")
    for field in frozen:
        before, after = getattr(state.inner, field), getattr(other.inner, field)
        jax.tree.map(np.testing.assert_array_equal, before, after)


def equations(program, *, within_loops):
    """Of a program and of those within it."""
    for equation in program.eqns:
        yield equation
        if within_loops or equation.primitive.name != "while":
            for inner in programs_in(equation):
                yield from equations(inner, within_loops=within_loops)


def products(program, size):
    """Products with a matrix of `size` rows and columns."""
    found = equations(program, within_loops=True)
    operands = [equation.invars for equation in found if equation.primitive.name == "dot_general"]
    return sum(any(each.aval.shape == (size, size) for each in pair) for pair in operands)


def loops_of(program):
    """Its loops, but for those within them."""
    found = equations(program, within_loops=False)
    return [equation for equation in found if equation.primitive.name == "while"]


def test_a_step_between_refreshes_has_the_products_of_mala():
    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    size = 7
    options = {"inverse_mass_matrix": jnp.eye(size)}
    plain, scheduled = blackjax_ext.mala, blackjax_ext.alsmmala
    plain, scheduled = (each(logdensity, 0.5, **options) for each in (plain, scheduled))
    state = scheduled.init(jnp.ones(size))
    expected = jax.make_jaxpr(plain.step)(jax.random.key(0), plain.init(jnp.ones(size)))
    program = jax.make_jaxpr(scheduled.step)(jax.random.key(0), state)
    _, without_refresh = loops_of(program)
    body = without_refresh.params["body_jaxpr"]
    assert products(body, size) == products(expected, size) == 3


def test_no_step_of_vectorized_chains_copies_what_it_leaves():
    """XLA copies all that a branch hands on, and not what goes around a loop."""

    def model():
        numpyro.sample("x", dist.Normal(0, 1).expand([5]).to_event(1))

    num_chains = 3
    kernel = numpyro_fwd.ALSMMALA(model)
    state = kernel.init(jax.random.split(jax.random.key(0), num_chains), 50, None, (), {})
    program = jax.make_jaxpr(lambda state: kernel.sample(state, (), {}))(state)
    found = equations(program, within_loops=False)
    branches = [equation for equation in found if equation.primitive.name == "cond"]
    handed = [each.aval.shape for equation in branches for each in equation.outvars]
    assert (num_chains, 5, 5) not in handed
    assert len(loops_of(program)) == 3  # a refresh, a step without one, and the adaptation
