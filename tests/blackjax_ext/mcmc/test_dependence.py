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
from blackjax_ext.mcmc.dependence import dependent
from numpyro_fwd.bridge import predictors
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel

NUM = 4  # values that a program has at each of its steps


@jax.custom_jvp
def with_rule(values):
    return values[::-1]


with_rule.defjvp(lambda primals, tangents: (primals[0][::-1], tangents[0][::-1]))


@jax.custom_vjp
def with_reverse_rule(values):
    return values[1:] + values[:1]


with_reverse_rule.defvjp(
    lambda values: (with_reverse_rule(values), None), lambda _, given: (given[-1:] + given[:-1],)
)


def permuted(order):
    return lambda values: tuple(values[i] for i in order)


def mixed(order):
    """The first is computed from two of the others."""
    i, j = order[:2]
    return lambda values: (jnp.sin(values[i]) + 0.5 * values[j], *values[1:])


def fori(body, turns):
    return lambda values: jax.lax.fori_loop(0, turns, lambda i, values: body(values), values)


def scan(body, turns):
    def of(values):
        carry, stacked = jax.lax.scan(
            lambda carry, x: (body(carry), carry[0] + x), values, jnp.arange(1.0 + turns)
        )
        return (stacked[-1], *carry[1:])

    return of


def loop(body, turns):
    """As long as a number that is carried, too, allows."""

    def of(values):
        return jax.lax.while_loop(
            lambda state: state[0] < turns,
            lambda state: (state[0] + 1, body(state[1])),
            (0, values),
        )[1]

    return of


def until(body, turns):
    """A loop of which one of the values decides how long it runs."""

    def of(values):
        return jax.lax.while_loop(
            lambda state: (state[0] < turns) & (state[1][-1] < 2.0),
            lambda state: (state[0] + 1, body(state[1])),
            (0, values),
        )[1]

    return of


def choice(body, turns):
    return lambda values: jax.lax.cond(turns > 1, body, permuted((1, 0, 2, 3)), values)


def decided(body, turns):
    return lambda values: jax.lax.switch(
        jnp.int32(values[turns % NUM] > 0.5), [lambda values: values, body], values
    )


def called(body, turns):
    del turns
    return jax.jit(body)


def checkpointed(body, turns):
    del turns
    return jax.checkpoint(body)


AROUND = (fori, scan, loop, until, choice, decided, called, checkpointed)
orders = st.permutations(range(NUM))
bodies = st.one_of(
    st.builds(permuted, orders),
    st.builds(mixed, orders),
    st.sampled_from([with_rule, with_reverse_rule]),
)
programs = st.recursive(
    bodies,
    lambda inner: st.builds(
        lambda around, body, turns: around(body, turns),
        st.sampled_from(AROUND),
        inner,
        st.integers(1, 4),
    ),
    max_leaves=3,
)
steps = st.lists(programs, min_size=1, max_size=3)


def composed(parts, of):
    """A program of some steps, of which one value is the input and the others are known."""

    def program(z):
        values = tuple(z if i == of else jnp.asarray(0.1 + 0.2 * i) for i in range(NUM))
        for part in parts:
            values = part(values)
        return values

    return program


@settings(deadline=None, max_examples=40)
@given(steps, st.integers(0, NUM - 1))
@example([decided(permuted((0, 1, 3, 2)), 1)], 1)
def test_what_does_not_depend_does_not_change(parts, of):
    program = composed(parts, of)
    flags = dependent(program, jnp.asarray(0.3))
    found = np.array([program(jnp.asarray(z)) for z in (0.3, 0.7, 2.5)])
    has_changed = np.any(found != found[0], axis=0)
    assert np.all(np.array(flags) | ~has_changed), (flags, has_changed)


@pytest.mark.parametrize("around", [called, checkpointed, *(fori, scan, loop, choice)])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_depends_changes(around, turns):
    """Of values that go round, which come back after as many turns as there are of them."""
    program = composed([around(permuted((1, 0, 2, 3)), turns)], 1)
    flags = dependent(program, jnp.asarray(0.3))
    assert flags[0] or around is scan
    assert not any(flags[2:])


def swapped(z):
    return jax.lax.fori_loop(0, 2, lambda i, c: (c[1], c[0]), (jnp.zeros(()), z))[1]


def regression(x, y):
    a = numpyro.sample("a", dist.Normal(0, 2))
    s = numpyro.sample("s", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=10) as rows:
        numpyro.sample("y", dist.Normal(a * x[rows], jnp.exp(swapped(s))), obs=y[rows])


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
