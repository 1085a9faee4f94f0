"""Emulators that are learned where the posterior is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.emulators import rounds
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


def test_chains_move_where_a_first_emulator_has_no_density_but_at_the_mode():
    """A hierarchy of exponentials: an emulator of them was lower by 1e34 between its points."""
    times, rates = jnp.array([0.0, 1.0, 2.0, 4.0]), jnp.linspace(0.3, 0.7, 6)
    data = 10.0 * jnp.exp(-rates[:, None] * times) + jnp.cos(jnp.arange(24.0)).reshape(6, 4)

    def outputs_fn(x):
        log_rates = x[1] + jnp.exp(x[0]) * x[2:]
        return 10.0 * jnp.exp(-jnp.exp(log_rates)[:, None] * times)

    def density(x, outputs):
        prior = x[0] - 0.5 * jnp.exp(2.0 * x[0]) - 0.5 * jnp.sum(x[1:] ** 2)
        return prior - 0.5 * jnp.sum((outputs - data) ** 2)

    starts = jax.random.normal(jax.random.key(9), (8, 8))
    _, found = blackjax_ext.emulate(outputs_fn, density, jax.random.key(0), starts)
    chains = found.draws.reshape(-1, rounds.NUM_CHAINS, 8)
    assert np.all(chains.std(0) > 0.05)
    apart = chains.mean(0).var(0, ddof=1) / chains.var(0, ddof=1).mean(0)
    assert abs(found.r_hat - np.sqrt(1.0 + apart.max())) < 1e-6
    assert np.isfinite(found.lacking)


def test_the_acceptance_is_that_of_a_chain_in_equilibrium():
    errors = np.array([0.0, np.log(3.0), -np.inf])
    # three quarters of the time at the second, from where a third of the moves there are accepted
    expected = 0.25 * (1 + 1 + 0) / 3 + 0.75 * (1 / 3 + 1 + 0) / 3
    assert abs(acceptance_of(errors) - expected) < 1e-6
    assert acceptance_of(np.full(3, -np.inf)) == 0.0
    assert acceptance_of(100.0 * np.arange(9.0)) < 0.2
