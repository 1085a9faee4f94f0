"""Emulators that are learned where the posterior is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.emulators import rounds
from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import linear
from blackjax_ext.emulators.rounds import acceptance_of

TIMES = jnp.arange(8.0)
DATA = 10.0 * jnp.exp(-0.5 * TIMES) + 0.1 * jnp.cos(3 * TIMES)


def outputs_fn(position):
    return {"y": jnp.exp(position["log_height"] - jnp.exp(position["log_rate"]) * TIMES)}


def logdensity_fn(position, outputs):
    scale = jnp.exp(position["log_scale"])
    residuals = (outputs["y"] - DATA) / scale
    prior = -0.5 * sum(jnp.sum(leaf**2) / 4.0 for leaf in jax.tree.leaves(position))
    return prior - 0.5 * jnp.sum(residuals**2) - TIMES.size * position["log_scale"]


def starts(num=8):
    keys = jax.random.split(jax.random.key(1), 3)
    names = "log_height", "log_rate", "log_scale"
    return {name: jax.random.normal(key, (num,)) for name, key in zip(names, keys, strict=True)}


def reverse_only(position):
    @jax.custom_vjp
    def solve(position):
        return outputs_fn(position)

    solve.defvjp(lambda position: jax.vjp(outputs_fn, position), lambda pull, slope: pull(slope))
    return solve(position)


def called(position):
    shape = {"y": jax.ShapeDtypeStruct(TIMES.shape, jnp.float32)}

    def simulate(log_height, log_rate):
        height, rate = np.exp(float(log_height)), np.exp(float(log_rate))
        return {"y": np.float32(height * np.exp(-rate * np.arange(8.0)))}

    of_call = position["log_height"], position["log_rate"]
    return jax.pure_callback(simulate, shape, *of_call, vmap_method="sequential")


@pytest.mark.parametrize("function", [outputs_fn, reverse_only, called])
def test_an_emulator_is_accepted_nearly_always(function):
    emulator_fn, found = blackjax_ext.emulate(function, logdensity_fn, jax.random.key(0), starts())
    assert found.acceptance > 0.9
    assert found.num_solves < 500
    assert (found.num_jvps == 0) == (function is called)
    # `log_scale` is no coordinate of the outputs
    assert found.emulator.center.shape == (2,)
    exact = [
        logdensity_fn(position, outputs_fn(position)) - emulator_fn(position)
        for draw in found.draws[::40]
        for position in [dict(zip(("log_height", "log_rate", "log_scale"), draw, strict=True))]
    ]
    # a few are beyond the points, where the emulator falls off slowly on purpose
    assert np.mean(np.abs(exact - np.median(exact)) < 0.3) > 0.9


def test_outputs_of_other_types_are_emulated():
    def response(x):
        return {"response": jnp.exp(1j * x * TIMES[:4]), "steps": jnp.array(3)}

    def density(x, outputs):
        residuals = jnp.abs(outputs["response"] - jnp.exp(0.4j * TIMES[:4])) / 0.1
        return -0.5 * jnp.sum(residuals ** outputs["steps"]) - 0.5 * x**2

    emulator_fn, found = blackjax_ext.emulate(
        response, density, jax.random.key(0), jnp.linspace(-0.5, 1.0, 6)
    )
    assert found.acceptance > 0.9
    assert abs(emulator_fn(0.42) - density(0.42, response(0.42))) < 0.1


def test_without_a_start_the_last_guess_is_named():
    with pytest.raises(ValueError, match=r"no start: .* any of 4 first guesses"):
        blackjax_ext.emulate(
            lambda position: {"y": jnp.nan * outputs_fn(position)["y"]},
            logdensity_fn,
            jax.random.key(0),
            starts(4),
        )


def test_the_better_of_two_modes_is_found():
    def two(x):
        return jnp.stack([x**2])

    def density(x, outputs):
        return -0.5 * ((outputs[0] - 4.0) / 0.3) ** 2 + 0.5 * jnp.tanh(x)

    _, found = blackjax_ext.emulate(two, density, jax.random.key(0), jnp.linspace(-3.0, 3.0, 10))
    assert abs(found.mean[0] - 2.0) < 0.1
    height = np.exp(np.tanh(2.0))  # of the one over the other
    assert abs(found.share - height / (1 + height)) < 0.02


def test_rounds_go_on_until_the_emulator_holds_its_own_posterior():
    """A ring, of which the first emulators hold an arc that they are right on."""

    def density(x, outputs):
        return -0.5 * (outputs - 9.0) ** 2 - (x[0] ** 2 + (x[1] - 0.5) ** 2) / 18.0

    starts = 3.0 * jax.random.normal(jax.random.key(9), (8, 2))
    _, found = blackjax_ext.emulate(lambda x: jnp.sum(x**2), density, jax.random.key(0), starts)
    around = np.arctan2(found.draws[:, 1], found.draws[:, 0])
    assert np.min(np.histogram(around, 8, (-np.pi, np.pi))[0]) > 0.03 * len(around)
    assert np.mean(found.emulator.is_beyond(found.draws)) < 0.01
    assert found.lacking < 0.01


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.full) for k in (1, 2))])
def test_an_emulator_goes_on_to_the_ends_of_a_narrow_ridge(seed):
    """Chains of eight steps held a half of it, and agreed."""
    starts = jnp.array([1.5, 5.0]) * jax.random.normal(jax.random.key(9), (16, 2))

    def density(x, outputs):
        return -0.5 * ((x[0] / 1.5) ** 2 + (x[1] / 5.0) ** 2 + ((outputs[0] - 0.5) / 0.1) ** 2)

    ridge_fn = lambda x: x[1:] + x[:1] ** 2  # noqa: E731
    emulator_fn, _ = blackjax_ext.emulate(ridge_fn, density, jax.random.key(seed), starts)
    ends = np.linspace(-2.5, 2.5, 21)  # sds are 1.05 and 1.4: of all draws 98 % are between them
    along = jnp.stack([ends, 0.5 - ends**2], 1).astype(jnp.float32)
    exact = jax.vmap(lambda x: density(x, ridge_fn(x)))(along)
    np.testing.assert_allclose(jax.vmap(emulator_fn)(along), exact, atol=0.5)


def test_chains_start_nearer_to_the_mode_where_a_first_emulator_has_no_density():
    dear = Dear(lambda x: x, lambda x, outputs: -1e3 * jnp.maximum(outputs[0], 0.0) ** 2)
    program = lambda function: jax.jit(lambda *rest: function(dear, *rest))  # noqa: E731
    active = np.arange(2, dtype=np.int32)
    evaluations = Evaluations(program, active, "forward", jnp.float32)
    emulator = linear(np.full(2, -2.0), np.full(2, -2.0), np.eye(2), active)
    law = rounds.Law(np.zeros((1, 2)), np.zeros(2), np.eye(2), 1.0, 8)
    first = rounds.starts_of_chains(evaluations, emulator, np.random.default_rng(0), law)
    drawn = np.random.default_rng(0).multivariate_normal(
        law.mean, law.covariance, rounds.NUM_CHAINS, method="cholesky"
    )
    is_low = drawn[:, 0] > 0.1
    assert 0 < is_low.sum() < len(is_low)
    np.testing.assert_allclose(first[~is_low], drawn[~is_low])
    assert np.all(-1e3 * first[is_low, 0] ** 2 > -2 * rounds.DEEP)


@pytest.mark.parametrize(("step_size", "num_steps"), [(0.01, 128), (0.1, 128), (0.3, 32), (1.0, 8)])
def test_trajectories_are_lengthened_up_to_a_turn(step_size, num_steps, monkeypatch):
    """Of chains that do not agree; those that do are not asked again."""
    apart = np.arange(8.0) + np.random.default_rng(0).standard_normal((64, 8))

    def law_of(evaluations, emulator, rng, first, before):
        return before._replace(draws=apart.reshape(-1, 1), step_size=step_size)

    monkeypatch.setattr(rounds, "law_of", law_of)
    first = rounds.Law(apart, np.zeros(1), np.eye(1), 1.0, rounds.NUM_STEPS)
    assert rounds.mixed_law_of(None, None, None, None, first).num_steps == num_steps
    apart = np.random.default_rng(0).standard_normal((64, 8))
    assert rounds.mixed_law_of(None, None, None, None, first).num_steps == rounds.NUM_STEPS


def test_r_hat_is_that_of_the_worst_coordinate():
    chains = np.random.default_rng(0).standard_normal((64, rounds.NUM_CHAINS, 2))
    chains[..., 1] += 2.0 * np.arange(rounds.NUM_CHAINS)
    assert rounds.r_hat_of(chains[..., :1].reshape(-1, 1)) < 1.05
    # the variance of 2 k, k = 0 to 7, is 24
    assert abs(rounds.r_hat_of(chains.reshape(-1, 2)) - 5.0) < 0.5


def test_the_acceptance_is_that_of_a_chain_in_equilibrium():
    errors = np.array([0.0, np.log(3.0), -np.inf])
    # three quarters of the time at the second, from where a third of the moves there are accepted
    expected = 0.25 * (1 + 1 + 0) / 3 + 0.75 * (1 / 3 + 1 + 0) / 3
    assert abs(acceptance_of(errors) - expected) < 1e-6
    assert acceptance_of(np.full(3, -np.inf)) == 0.0
    assert acceptance_of(100.0 * np.arange(9.0)) < 0.2
