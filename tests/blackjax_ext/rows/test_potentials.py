"""Potentials with minibatch gradients: sums, control variates, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import potentials
from blackjax_ext.rows import compensated_sums
from tests.laws.minibatch import ANCHOR, DATA, POSTERIOR, loglikelihood, logprior, plain


@pytest.mark.parametrize("size", [1, 5, 128, 129, 1000])
def test_sums_keep_their_rounding(size):
    values = np.random.default_rng(60).normal(size=size).astype(np.float32) * 1e4
    found = jax.jit(compensated_sums.collapse)(compensated_sums.as_pair(jnp.asarray(values)))
    exact = values.astype(np.float64).sum()
    assert abs(np.float64(found.high) + np.float64(found.low) - exact) <= 1e-12 * size * 1e4
    assert found.value().dtype == jnp.float32


def test_sums_of_infinities_are_infinite():
    pair = compensated_sums.add(compensated_sums.as_pair(jnp.array(1.0)), jnp.array(jnp.inf))
    assert pair.high == jnp.inf and pair.low == 0.0


@pytest.mark.long
@pytest.mark.parametrize("chunk_size", [1, 5, 12, 100, None])
def test_energy_does_not_depend_on_the_chunks(chunk_size, x64):
    x = jnp.asarray(ANCHOR, float)
    potential = plain(chunk_size=chunk_size).potential
    np.testing.assert_allclose(potential(x).value(), -POSTERIOR.logdensity(x), rtol=1e-6)
    gradient = jax.grad(lambda x: potential(x).value())(x)
    np.testing.assert_allclose(gradient, -jax.grad(POSTERIOR.logdensity)(x), rtol=1e-6)


@pytest.mark.long
def test_data_are_arguments_of_a_program():
    potential = potentials.control_variate(plain(), jnp.asarray(ANCHOR), order=2)
    amagold = blackjax_ext.amagold.build_kernel()

    def step(key, state, potential):
        return amagold(key, state, potential, 0.3)

    state = blackjax_ext.amagold.init(jnp.asarray(ANCHOR), potential)
    program = jax.make_jaxpr(step)(jax.random.key(0), state, potential)
    shapes = {jnp.shape(const) for const in program.consts}
    assert DATA.shape not in shapes
    shapes = [variable.aval.shape for variable in program.jaxpr.invars]
    assert DATA.shape in shapes


@pytest.mark.long
def test_control_variates_reduce_the_noise_near_the_anchor(x64):
    anchor = jnp.asarray(ANCHOR, float)
    keys = jax.random.split(jax.random.key(62), 500)

    def noise(potential, distance):
        gradient = jax.jit(
            lambda k: potential.stochastic_grad(anchor + distance, potential.draw(k))
        )
        return np.std(jax.vmap(gradient)(keys), axis=0).max()

    first, second = (potentials.control_variate(plain(), anchor, order=k) for k in (1, 2))
    assert noise(first, 0.0) < 1e-12 and noise(second, 0.0) < 1e-12
    # errors of the first and of the second order in the distance
    assert 9 < noise(first, 1e-1) / noise(first, 1e-2) < 12
    assert 90 < noise(second, 1e-1) / noise(second, 1e-2) < 120


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: potentials.minibatch(logprior, loglikelihood, {}, 1), "data must be arrays"),
        (lambda: potentials.minibatch(logprior, loglikelihood, np.ones(()), 1), "data must be"),
        (
            lambda: potentials.minibatch(logprior, loglikelihood, (np.ones(3), np.ones(4)), 1),
            r"the same N > 0 rows; got \[\(3,\), \(4,\)\]",
        ),
        (lambda: plain(batch_size=0), "batch_size must be from 1 to the 12 rows"),
        (lambda: plain(batch_size=13), "batch_size must be from 1 to the 12 rows"),
        (lambda: plain(chunk_size=0), "chunk_size must be at least 1"),
        (lambda: potentials.gaussian_noise(logprior, -1.0), "scale must be positive"),
        (lambda: potentials.control_variate(plain(), ANCHOR, order=3), "order must be 1 or 2"),
        (
            lambda: potentials.control_variate(plain(), np.zeros(1001), order=2),
            "order must be 1 beyond 1000 dimensions; got 2 for 1001",
        ),
        (
            lambda: potentials.control_variate(plain(), np.array([0.0, np.nan, 0.0])),
            "anchor must be finite",
        ),
        (lambda: blackjax_ext.amagold(plain(), -0.1), "step_size must be positive"),
        (lambda: blackjax_ext.sghmc(plain(), 0.1, friction=np.inf), "friction must be"),
        (
            lambda: blackjax_ext.l2mc(plain(), 0.1, friction=0.0, resample_momentum=False),
            "friction must be positive with resample_momentum=False",
        ),
    ],
)
def test_wrong_values_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain(batch_size=2.5), "batch_size must be a whole number"),
        (lambda: jax.jit(lambda b: plain(b).draw(jax.random.key(0)))(3), "not traced"),
        (lambda: potentials.control_variate(plain(), np.arange(3)), "of a floating dtype"),
        (lambda: blackjax_ext.amagold(logprior, 0.1), "potential must be a StochasticPotential"),
        (lambda: blackjax_ext.l2mc(logprior, 0.1), "potential must be a StochasticPotential"),
        (
            lambda: blackjax_ext.amagold.init(np.ones(3), potentials.full_batch(lambda x: -x)),
            r"potential must return a scalar; got an array of shape \(3,\)",
        ),
    ],
)
def test_wrong_types_raise(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.long
def test_anchor_must_fit_the_position():
    potential = potentials.control_variate(plain(), jnp.asarray(ANCHOR))
    with pytest.raises(ValueError, match="anchor must fit the position"):
        potential.stochastic_grad(jnp.zeros(2), potential.draw(jax.random.key(0)))
