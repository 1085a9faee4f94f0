"""The share of a posterior that its emulator lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.emulators import tails
from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import Form, fitted
from blackjax_ext.emulators.tails import better_end


def bounded(x):
    """Outputs that say nothing of a tail."""
    return jnp.stack([jnp.tanh(x[0]), 0.5 * x[1]])


def density_with(log_prior):
    def density(x, outputs):
        return log_prior(x) - 0.5 * jnp.sum((outputs - jnp.array([0.8, 0.3])) ** 2) / 0.25

    return density


PRIORS = {
    "normal": lambda x: -0.5 * jnp.sum(x**2) / 4.0,
    "logistic": lambda x: -2.0 * jnp.sum(jax.nn.softplus(jnp.abs(x)) - 0.5 * jnp.abs(x)),
    "cauchy": lambda x: -jnp.sum(jnp.log1p((x / 3.0) ** 2)),
}


def lacking(prior, seed):
    """The share of the posterior that an emulator says it lacks."""
    starts = jax.random.normal(jax.random.key(9), (8, 2))
    density = density_with(PRIORS[prior])
    _, found = blackjax_ext.emulate(bounded, density, jax.random.key(seed), starts)
    assert np.isfinite(found.lacking)
    return found.lacking


@pytest.mark.parametrize("prior", ["normal", "logistic"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.full) for k in (1, 2))])
def test_light_tails_are_not_told_of(prior, seed):
    assert lacking(prior, seed) < 0.05


def test_heavy_tails_are_told_of():
    """On average: by a grid a tenth to a third is lacking, and one of the three says .03."""
    assert 0.05 < np.mean([lacking("cauchy", seed) for seed in range(3)]) < 0.5


def test_far_draws_are_chosen_without_bias():
    """A sum over all of them by those that are chosen, whatever they were expected to weigh."""
    rng = np.random.default_rng(0)
    values, guesses = np.exp(2.0 * rng.standard_normal((2, 500)))  # some are chosen often
    far = rng.permutation(900)[:500]
    at = dict(zip(far, values, strict=True))
    for weights in (np.log(guesses), np.full(500, -np.inf), np.where(far % 2, np.nan, 1.0)):
        sums = []
        for _ in range(300):
            some, factors = tails.chosen(rng, far, (weights, np.log(values)))
            assert len(some) <= tails.NUM_FAR
            sums.append(sum(at[i] * factor for i, factor in zip(some, factors, strict=True)))
        error = np.std(sums) / np.sqrt(len(sums))
        assert abs(np.mean(sums) - values.sum()) < 4 * error < 0.05 * values.sum()


def ridge(shape):
    """A function of two coordinates along a thin ridge, with its evaluations."""
    dear = Dear(
        lambda x: x[1:] + shape(x[:1]),
        lambda x, outputs: -0.5 * x[0] ** 2 - 50.0 * jnp.sum(outputs**2),
    )
    return Evaluations(
        lambda function: jax.jit(lambda *rest: function(dear, *rest)),
        np.arange(2, dtype=np.int32),
        "forward",
        jnp.float32,
    )


def parabola_on(evaluations):
    """A polynomial that is fitted around zero, and cut off at a distance of two."""
    rng = np.random.default_rng(0)
    points = evaluations.with_jacobians(rng.uniform(-1.0, 1.0, (16, 2)))
    of_fit = {"active": evaluations.active, "form": Form(2, 2, is_log=False)}
    return fitted(points, np.zeros(2), np.eye(2), **of_fit)._replace(radius=np.array(2.0))


def along(shape, temperature):
    """Draws of the ridge, flatter."""
    rng = np.random.default_rng(1)
    a = np.sqrt(temperature) * rng.standard_normal(4000)
    return np.stack([a, np.sqrt(temperature) * 0.1 * rng.standard_normal(4000) - shape(a)], 1)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_polynomials_go_on_where_they_are_right_beyond_their_points(temperature):
    """A banana, whose polynomial is right everywhere."""
    evaluations = ridge(jnp.square)
    emulator = parabola_on(evaluations)
    wider = emulator._replace(radius=np.array(1e3))
    draws = along(np.square, temperature)
    assert better_end(evaluations, emulator, wider, draws, temperature) == (wider, 0.0)
    assert better_end(evaluations, wider, wider, draws, temperature) == (wider, 0.0)


def test_an_end_is_judged_by_distinct_places_that_the_polynomials_reach():
    """A chain that stood still where they are wrong, and draws that pressed against their end."""
    evaluations = ridge(lambda a: a**2 + 3.0 * (a > 1.6))
    emulator = parabola_on(evaluations)
    wider = emulator._replace(radius=np.array(4.0))
    draws = along(np.square, 3.0)
    draws = draws[draws[:, 0] < 1.5]  # of which a fifth are beyond the end of the wider one
    assert np.mean(wider.is_beyond(draws)) > 0.1
    still = np.tile([1.7, -(1.7**2)], (len(draws), 1))
    found, _ = better_end(evaluations, emulator, wider, np.concatenate([still, draws]), 3.0)
    assert found is wider


def bent(a):
    """A parabola that bends back from one on, where a polynomial around zero does not."""
    return jnp.where(jnp.abs(a) < 1.0, a**2, 1.0 - 3.0 * (jnp.abs(a) - 1.0))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_ridge_that_no_polynomial_follows_is_told_of(temperature):
    """Of draws of the posterior itself, the share of the mass beyond."""
    evaluations = ridge(bent)
    emulator = parabola_on(evaluations)
    draws = along(bent, temperature)
    wider = emulator._replace(radius=np.array(3.0))
    _, lacking = better_end(evaluations, emulator, wider, draws, temperature)
    assert lacking > 0.05
