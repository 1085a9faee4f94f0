"""Densities taken apart at their marked calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.emulators.evaluations import slopes_of
from blackjax_ext.emulators.marking import active_coordinates, expensive, split
from tests import reverse_only

X = jnp.array([0.3, -0.2, 0.8])
decay = expensive(lambda rate, times: jnp.exp(-rate * times))
both = expensive(lambda a, b: {"sum": a + b, "is_fine": a > -10.0, "steps": jnp.array(3)})
TIMES = jnp.arange(3.0)


def once(x):
    return -jnp.sum((decay(jnp.exp(x[0]), TIMES) - x[1]) ** 2) - x[2] ** 2


def twice(x):
    """The second call takes what the first one returns."""
    first = decay(jnp.exp(x[0]), TIMES)
    return jnp.sum(first) - jnp.sum(decay(first[1] + x[1], TIMES)) ** 2 - x[2]


def mapped(x):
    return jnp.sum(jax.vmap(lambda rate: decay(rate, TIMES))(jnp.exp(x)) ** 2)


def in_a_program(x):
    return jax.jit(lambda x: jax.checkpoint(once)(x))(2.0 * x)


def with_flags(x):
    found = both(x[0], b=x[1:])
    return jnp.where(found["is_fine"], jnp.sum(found["sum"]) ** found["steps"], -jnp.inf)


def with_a_closure(x):
    return jnp.sum(expensive(lambda times: jnp.sin(x[0] * times))(TIMES * x[1]))


def with_phases(x):
    found = expensive(lambda x: jnp.exp((x[1] + 1j * x[0]) * TIMES))(x)
    return -jnp.sum(jnp.abs(found - (0.5 - 0.2j)) ** 2) - x[2] ** 2


@jax.custom_jvp
def in_a_rule(x):
    """As the log density of a model whose derivatives are in reverse mode alone."""
    return once(x)


in_a_rule.defjvp(lambda x, slope: jax.jvp(once, x, slope))
in_programs = in_a_program, in_a_rule
DENSITIES = once, twice, mapped, with_flags, with_a_closure, with_phases, *in_programs


@pytest.mark.parametrize("density", DENSITIES, ids=lambda density: density.__name__)
def test_the_parts_make_the_whole(density):
    dear = split(density, X)
    outputs = jax.jit(dear.outputs_fn)(X)
    assert outputs.ndim == 1
    np.testing.assert_allclose(dear.logdensity_fn(X, outputs), density(X), rtol=1e-6)
    # the outputs count, and nothing else is taken from where they are evaluated
    assert dear.logdensity_fn(X, outputs + 0.6) != density(X)
    slopes = jax.grad(lambda x: dear.logdensity_fn(x, dear.outputs_fn(x)))(X)
    np.testing.assert_allclose(slopes, jax.grad(density)(X), rtol=1e-5, atol=1e-6)


def test_a_part_evaluates_no_marked_function():
    calls = []

    def counted(rate):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.sin(rate)

    density = lambda x: jnp.sum(expensive(counted)(x)) - x[0]  # noqa: E731
    dear = split(density, X)
    jax.block_until_ready(jax.jit(dear.logdensity_fn)(X, X))
    jax.effects_barrier()
    assert not calls


def test_outside_of_programs_the_function_is_as_it_is():
    assert decay(0.0, 1.0) == 1.0
    assert expensive(lambda text: text + "!")("as it is") == "as it is!"
    with pytest.raises(TypeError, match="must be callable"):
        expensive(3.0)


def test_calls_in_loops_are_named():
    def looped(x):
        return jax.lax.fori_loop(0, 3, lambda i, total: total + jnp.sum(decay(x[0], TIMES)), 0.0)

    with pytest.raises(ValueError, match=r"within a (scan|while)"):
        split(looped, X)
    with pytest.raises(ValueError, match="calls no function that is marked"):
        split(lambda x: jnp.sum(x), X)


def test_coordinates_on_which_outputs_depend():
    z = {"a": jnp.zeros(2), "b": jnp.zeros(()), "c": jnp.zeros(3)}
    found = active_coordinates(lambda z: z["c"] * jnp.sum(z["a"]), z)
    np.testing.assert_array_equal(found, [0, 1, 3, 4, 5])

    def density(z):
        outputs = decay(z["a"][0], TIMES) + jax.jit(lambda c: decay(c, TIMES))(2.0 * z["c"][1])
        return jnp.sum(outputs * z["b"])

    np.testing.assert_array_equal(active_coordinates(density, z), [0, 1, 3, 4, 5])


@pytest.mark.parametrize(
    ("function", "slopes"),
    [(jnp.sin, "forward"), (reverse_only.once, "reverse"), (reverse_only.simulated, "differences")],
)
def test_derivatives_are_those_that_there_are(function, slopes):
    dear = split(lambda x: jnp.sum(expensive(function)(x)) - x[0], X)
    assert slopes_of(dear, X) == slopes
