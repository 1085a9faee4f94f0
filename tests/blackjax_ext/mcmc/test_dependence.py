"""What is said not to depend does not change: random programs against what they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackjax_ext.mcmc import dependence
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling import predictors
from tests.blackjax_ext.random_programs import (
    NUM,
    SIZE,
    bodies,
    called,
    checkpointed,
    choice,
    composed,
    decided,
    differentiable,
    fori,
    loop,
    mixed,
    of_vector,
    permuted,
    scan,
    steps,
    until,
)

X = jnp.linspace(0.1, 0.8, NUM * SIZE)
POINTS = jnp.stack([X, X[::-1], 2.5 * X])


def flags_of(program):
    """Which values depend on which of the values at the start."""
    closed = jax.make_jaxpr(program)(tuple(jnp.reshape(X, (NUM, SIZE))))
    return np.array([dependence.flags_of(closed, row) for row in np.eye(NUM, dtype=bool)]).T


@pytest.mark.long
@settings(deadline=None, max_examples=25, derandomize=True, database=None)
@given(steps(bodies), st.integers(0, NUM - 1))
@example([decided(permuted((0, 1, 3, 2)), 1)], 1)
@example([until(mixed((1, 2, 0, 3)), 2)], 3)
def test_what_does_not_depend_does_not_change(parts, of):
    program, places = composed(parts), slice(of * SIZE, (of + 1) * SIZE)
    points = jnp.stack([X, X.at[places].add(0.4), X.at[places].add(2.2)])
    values = np.array([of_vector(program)(x) for x in points]).reshape(-1, NUM, SIZE)
    has_changed = np.any(values != values[0], axis=(0, 2))
    flags = flags_of(program)[:, of]
    assert np.all(flags | ~has_changed), (flags, has_changed)


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(steps(differentiable))
@example([scan(permuted((1, 2, 3, 0)), 3)])
@example([checkpointed(decided(mixed((0, 1, 2, 3)), 2), 1)])
def test_what_does_not_depend_has_no_derivative(parts):
    program = composed(parts)
    slopes = jax.jit(lambda points: jax.lax.map(jax.jacfwd(of_vector(program)), points))(POINTS)
    slopes = np.reshape(slopes, (len(POINTS), NUM, SIZE, NUM, SIZE))
    has_slope = np.any(slopes != 0, axis=(0, 2, 4))
    assert np.all(flags_of(program) | ~has_slope)


@pytest.mark.parametrize("around", [called, checkpointed, *(fori, scan, loop, choice)])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_depends_changes(around, turns):
    """Of values that go round, which come back after as many turns as there are of them."""
    flags = flags_of(composed([around(permuted((1, 0, 2, 3)), turns)]))[:, 1]
    assert flags[0] or around is scan
    assert not any(flags[2:])


def swapped(z):
    return jax.lax.fori_loop(0, 2, lambda i, c: (c[1], c[0]), (jnp.zeros(()), z))[1]


def regression(x, y):
    a = numpyro.sample("a", dist.Normal(0, 2))
    s = numpyro.sample("s", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=10) as rows:
        numpyro.sample("y", dist.Normal(a * x[rows], jnp.exp(swapped(s))), obs=y[rows])


@pytest.mark.long
def test_a_scale_that_a_loop_carries_round_is_a_predictor():
    x, y = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    z = {"a": jnp.zeros(()), "s": jnp.zeros(())}
    read = predictors.linear_predictor_of(RowModel.of(FullView(regression), (x, y), {}), z)
    assert read.kinds[0].free == ("loc", "log_scale")


def test_the_law_finds_a_loop_of_one_turn(monkeypatch):
    monkeypatch.setattr(dependence, "until_nothing_more", lambda turn, carry: turn(carry))
    with pytest.raises(AssertionError):
        test_a_scale_that_a_loop_carries_round_is_a_predictor()


def test_the_law_finds_a_forgotten_decision(monkeypatch):
    rules = dependence.LOOPS_AND_CHOICES | {
        "cond": lambda params, inputs: dependence.of_cond(params, [False, *inputs[1:]])
    }
    monkeypatch.setattr(dependence, "LOOPS_AND_CHOICES", rules)
    with pytest.raises(AssertionError):
        test_what_does_not_depend_does_not_change()
