"""Random programs for laws of what reads them: values that go round loops, choices and calls.

Their constants are exact in any precision.
"""

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

NUM, SIZE = 4, 2  # values that a program has at each of its steps, and entries of each


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


def multiplied(order):
    """Products and quotients of two, in the place of two."""
    i, j, k, at = order

    def of(values):
        rest = list(values)
        rest[at] = values[i] * values[j] - 0.25
        rest[k] = values[i] / (1.0 + values[j] ** 2)
        return tuple(rest)

    return of


def moved(order):
    """Entries of some go to other places, are summed, and multiplied with a matrix."""
    i, j, k, _ = order

    def of(values):
        matrix = jnp.array([[0.5, -0.25], [0.125, 1.0]], values[i].dtype)
        joined = jnp.concatenate([values[i][1:], values[j][:1]])
        return (joined, jnp.full_like(joined, jnp.sum(values[k])), *values[2:3], matrix @ values[j])

    return of


def forgotten(order):
    """One becomes a constant, one a number, and what two others are compared with chooses."""
    i, j, k, at = order

    def of(values):
        rest = list(values)
        rest[at] = jnp.where(values[i] > 0.4375, 2.0, values[j])
        rest[i] = 0.125 + jnp.arange(SIZE, dtype=values[i].dtype)
        rest[k] = jnp.full_like(values[k], 0.75)
        return tuple(rest)

    return of


def fori(body, turns):
    return lambda values: jax.lax.fori_loop(0, turns, lambda i, values: body(values), values)


def scan(body, turns):
    def of(values):
        rows = jnp.arange(1.0 + turns, dtype=values[0].dtype)
        carry, stacked = jax.lax.scan(
            lambda carry, x: (body(carry), carry[0] + x), values, 0.125 * rows
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
            lambda state: (state[0] < turns) & (state[1][-1][0] < 2.0),
            lambda state: (state[0] + 1, body(state[1])),
            (0, values),
        )[1]

    return of


def choice(body, turns):
    return lambda values: jax.lax.cond(turns > 1, body, permuted((1, 0, 2, 3)), values)


def decided(body, turns):
    return lambda values: jax.lax.switch(
        jnp.int32(values[turns % NUM][0] > 0.5), [lambda values: values, body], values
    )


def called(body, turns):
    del turns
    return jax.jit(body)


def checkpointed(body, turns):
    del turns
    return jax.checkpoint(body)


def composed(parts):
    """A program of some steps, of all values."""

    def program(values):
        for part in parts:
            values = part(values)
        return values

    return program


def of_vector(program):
    """The same of a vector that has all values, and into one."""
    return lambda x: jnp.concatenate(program(tuple(jnp.reshape(x, (NUM, SIZE)))))


AROUND = (fori, scan, loop, until, choice, decided, called, checkpointed)
orders = st.permutations(range(NUM))
# those of which the derivative forwards is known
differentiable = st.one_of(
    st.builds(permuted, orders),
    st.builds(mixed, orders),
    st.builds(multiplied, orders),
    st.builds(moved, orders),
    st.builds(forgotten, orders),
    st.just(with_rule),
)
bodies = st.one_of(differentiable, st.just(with_reverse_rule))


def steps(bodies):
    """Lists of a few programs that have such bodies, in loops, choices and calls."""
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
    return st.lists(programs, min_size=1, max_size=3)
