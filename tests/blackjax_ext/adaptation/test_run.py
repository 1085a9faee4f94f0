"""The warm-up without NumPyro: any algorithm with a step size and a metric, many chains."""

from dataclasses import dataclass

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.adaptation import windows
from blackjax_ext.metrics import Dense, Diagonal, Factor, factorize

SD = np.array([0.01, 1.0, 30.0])
MEAN = np.array([2.0, -3.0, 100.0])


def normal(x):
    return -0.5 * jnp.sum(((x["a"] - MEAN) / SD) ** 2)


def loop(x):
    """The same density, by a loop that reverse mode cannot differentiate."""

    mean, sd = jnp.asarray(MEAN), jnp.asarray(SD)

    def step(carry):
        i, total = carry
        return i + 1, total - 0.5 * ((x["a"][i] - mean[i]) / sd[i]) ** 2

    return jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, jnp.zeros(())))[1]


ALGORITHMS = {
    "hmc": (blackjax.hmc, 0.65, {"num_integration_steps": 5}),
    "mala": (blackjax_ext.mala, 0.574, {}),
    "barker": (blackjax.barker, 0.57, {}),
    "fmala": (blackjax_ext.fmala, 0.57, {"num_tangents": 3}),
}


def run(algorithm, parameters, states, num_steps=600, fn=normal):
    """Draws (num_steps, C, 3) of chains that go on from a warm-up."""
    sampler = algorithm(fn, **parameters)

    def step(states, key):
        keys = jax.random.split(key, jax.tree.leaves(states.position)[0].shape[0])
        states, info = jax.vmap(sampler.step)(keys, states)
        return states, (states.position["a"], info.acceptance_rate)

    keys = jax.random.split(jax.random.key(1), num_steps)
    return jax.jit(lambda states: jax.lax.scan(step, states, keys))(states)[1]


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_finds_start_step_size_and_metric(name, dense):
    algorithm, rate, options = ALGORITHMS[name]
    positions = {"a": jnp.ones((4, 3))}
    states, parameters, info = blackjax_ext.warmup(
        *(algorithm, normal, jax.random.key(0), positions, 1000),
        target_acceptance_rate=rate,
        dense=dense,
        **options,
    )
    assert info.acceptance_rate.shape == info.is_divergent.shape == (1000, 4)
    assert info.step_size.shape == (1000,)
    assert parameters["step_size"].shape == ()
    assert parameters["inverse_mass_matrix"].shape == ((3, 3) if dense else (3,))
    draws, rates = run(algorithm, parameters | options, states)
    assert rates.mean() > rate - 0.12
    # HMC's trajectories turn back in a normal: acceptance does not fall with the step alone
    assert name == "hmc" or rates.mean() < rate + 0.12
    draws = np.asarray(draws).reshape(-1, 3)
    np.testing.assert_allclose((draws.mean(axis=0) - MEAN) / SD, 0.0, atol=0.3)
    np.testing.assert_allclose(draws.std(axis=0) / SD, 1.0, atol=0.2)


@pytest.mark.long
def test_forward_mode_never_calls_reverse_mode():
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        jax.grad(loop)({"a": jnp.ones(3)})
    states, parameters, _ = blackjax_ext.warmup(
        *(blackjax.hmc, loop, jax.random.key(0), {"a": jnp.ones((2, 3))}, 200),
        target_acceptance_rate=0.65,
        differentiation="forward",
        num_integration_steps=5,
    )
    forward = blackjax_ext.forward_gradient(loop)
    parameters = parameters | {"num_integration_steps": 5}
    draws, _ = run(blackjax.hmc, parameters, states, 1000, forward)
    draws = np.asarray(draws).reshape(-1, 3)
    np.testing.assert_allclose((draws.mean(axis=0) - MEAN) / SD, 0.0, atol=0.4)


def test_forward_gradient_is_the_gradient():
    x = {"a": jnp.array([0.3, -0.2, 4.0])}
    value, gradient = jax.value_and_grad(blackjax_ext.forward_gradient(loop))(x)
    expected = jax.value_and_grad(normal)(x)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient["a"], expected[1]["a"], rtol=1e-5)


@pytest.mark.long
def test_without_the_start_it_begins_where_it_is_told():
    positions = {"a": jnp.asarray(MEAN + SD * np.ones((3, 3)), jnp.float32)}
    _, parameters, info = blackjax_ext.warmup(
        *(blackjax_ext.random_walk, normal, jax.random.key(0), positions, 10),
        target_acceptance_rate=0.234,
        inverse_mass_matrix=jnp.asarray(SD**2),
        newton_start=False,
    )
    # ten steps end no window: the metric is the one given
    np.testing.assert_allclose(parameters["inverse_mass_matrix"], SD**2, rtol=1e-5)
    assert np.unique(info.step_size).size > 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1; got 0"),
        ({"target_acceptance_rate": 1.0}, ValueError, "target_acceptance_rate must be between"),
        ({"step_size": -1.0}, ValueError, "step_size must be positive"),
        ({"differentiation": "both"}, ValueError, "differentiation must be"),
        ({"algorithm": object()}, TypeError, "algorithm must have init and build_kernel"),
        ({"tangents": "sphere"}, TypeError, "unknown parameters"),
        ({"positions": {"a": jnp.ones(())}}, ValueError, "position must hold particles"),
        ({"logdensity_fn": lambda x: jnp.nan * x["a"][0]}, ValueError, "finite log density"),
        ({"inverse_mass_matrix": jnp.ones(2)}, ValueError, "must fit a position of 3 dimensions"),
    ],
)
def test_bad_input_raises_by_name(changes, error, message):
    arguments = {
        "algorithm": blackjax_ext.mala,
        "logdensity_fn": normal,
        "rng_key": jax.random.key(0),
        "positions": {"a": jnp.ones((2, 3))},
        "num_steps": 20,
        "target_acceptance_rate": 0.5,
    }
    with pytest.raises(error, match=message):
        blackjax_ext.warmup(**(arguments | changes))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scaled(Factor):
    """A structure from outside: one factor times fixed standard deviations."""

    factor: jax.Array
    sds: jax.Array

    def inverse_sqrt_times(self, z):
        return self.factor * self.sds * z

    def inverse_sqrt_transpose_times(self, g):
        return self.factor * self.sds * g

    def sqrt_times(self, r):
        return r / (self.factor * self.sds)

    def log_det(self, size):
        return -2.0 * (size * jnp.log(self.factor) + jnp.sum(jnp.log(self.sds)))

    def inverse(self):
        return jnp.square(self.factor * self.sds)

    def fits(self, size):
        return self.sds.shape == (size,)

    def at(self, like):
        return self

    def products(self, z):
        return jnp.sum(z**2, axis=0)

    def covariance(self, products, mean):
        return products - mean**2

    def variances(self, covariance):
        return covariance

    def num_prior_draws(self, size):
        return 5.0

    def shrink(self, covariance, weights):
        blend = jnp.mean(weights * covariance + 1 - weights)
        return Scaled(self.factor * jnp.sqrt(blend), self.sds)


@pytest.mark.long
def test_a_new_structure_of_the_metric_is_one_class():
    metric = Scaled(jnp.array(20.0), jnp.asarray(SD, jnp.float32))
    positions = {"a": jnp.asarray(MEAN + np.zeros((4, 3)), jnp.float32)}
    _, parameters, info = blackjax_ext.warmup(
        *(blackjax_ext.mala, normal, jax.random.key(0), positions, 600),
        target_acceptance_rate=0.574,
        inverse_mass_matrix=metric,
        newton_start=False,
    )
    np.testing.assert_allclose(np.sqrt(parameters["inverse_mass_matrix"]) / SD, 1.0, atol=0.25)
    assert abs(info.acceptance_rate[-60:].mean() - 0.574) < 0.15


@pytest.mark.parametrize("outer", [Diagonal(jnp.array([2.0, 0.5])), factorize(jnp.eye(2) + 0.3)])
@pytest.mark.parametrize("inner", [Diagonal(jnp.array([3.0, 1.5])), factorize(jnp.eye(2) - 0.2)])
def test_composition_is_the_product_of_roots(outer, inner):
    found, like = outer.compose(inner), jnp.ones(2)
    full_outer, full_inner = outer.dense(like), inner.dense(like)
    root = full_outer.inverse_sqrt @ full_inner.inverse_sqrt
    np.testing.assert_allclose(found.dense(like).inverse_sqrt, root, rtol=1e-5, atol=1e-6)
    expected = full_outer.log_determinant + full_inner.log_determinant
    np.testing.assert_allclose(found.log_det(2), expected, rtol=1e-5)
    np.testing.assert_allclose(
        found.inverse_times(like), root @ root.T @ like, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(found.times(found.inverse_times(like)), like, rtol=1e-4)
    assert isinstance(found, Dense) or isinstance(outer, Diagonal)


def test_a_cap_holds_for_the_step_size_and_its_average():
    state = windows.init(jnp.array([3.0]), Diagonal(jnp.ones(2)), jnp.ones((1, 2)), num_steps=9)
    capped = windows.limit_step_size(state, 0.5)
    assert capped.step_size == 0.5 and capped.averaging.log_x_avg <= np.log(0.5) + 1e-6
