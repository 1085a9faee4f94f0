"""One reader of programs: with numbers for values it computes what the programs do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from jax.custom_batching import custom_vmap
from jax.extend.core import Literal

from blackjax_ext import equations
from blackjax_ext.equations import (
    Reader,
    equations_in,
    needed_equations,
    outputs_of,
    primitives_in,
    read_program,
)
from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.primitives import INLINED, RULED
from tests.blackjax_ext.random_programs import (
    NUM,
    SIZE,
    bodies,
    called,
    composed,
    decided,
    mixed,
    of_vector,
    steps,
)

X = jnp.linspace(0.1, 0.8, NUM * SIZE)
SHIFT = np.arange(3.0, dtype=np.float32)


def numbers(equation, values):
    """The rule of evaluation."""
    return outputs_of(equation, *values)


@settings(deadline=None, max_examples=20, derandomize=True, database=None)
@given(steps(bodies))
@example([mixed((0, 1, 2, 3)), decided(mixed((0, 1, 2, 3)), 2)])
@example([called(mixed((0, 1, 2, 3)), 1)] * 2)
def test_with_numbers_for_values_it_evaluates(parts):
    program = of_vector(composed(parts))
    (value,) = read_program(jax.make_jaxpr(program)(X), [X], numbers, calls=INLINED | RULED)
    np.testing.assert_allclose(value, program(X), rtol=1e-6)


def model(x):
    """A constant, numbers that stand in the program, a call in a call, and what nobody needs."""
    jnp.exp(x)
    inner = jax.jit(lambda y: jax.jit(jnp.sin)(y * SHIFT) + 2.0)
    return inner(x), 3.0


def names_read(**options):
    """Primitives that the rule is asked about."""
    names = []

    def rule(equation, values):
        names.append(equation.primitive.name)
        return outputs_of(equation, *values)

    x = jnp.ones(3)
    values = read_program(jax.make_jaxpr(model)(x), [x], rule, **options)
    np.testing.assert_allclose(values[0], jnp.sin(x * SHIFT) + 2.0, rtol=1e-6)
    assert values[1] == 3.0
    return names


def test_calls_are_read_in_their_places_and_what_is_not_needed_is_not():
    assert names_read() == ["mul", "sin", "add"]
    assert names_read(reads_all=True) == ["exp", "mul", "sin", "add"]
    assert names_read(is_opened=lambda values: False) == names_read(calls=()) == ["jit"]
    opened = []
    names_read(is_opened=lambda values: bool(opened.append(len(values)) or True))
    assert opened == [len(jax.make_jaxpr(model)(jnp.ones(3)).eqns[1].invars), 1]


def test_constants_and_numbers_have_values_of_their_own():
    """Of the program and of those that it calls."""

    def known(variable, number):
        return ("number" if isinstance(variable, Literal) else "constant", np.shape(number))

    def rule(equation, values):
        seen.update(value for value in values if isinstance(value, tuple))
        return ["result"] * len(equation.outvars)

    seen = set()
    outputs = read_program(jax.make_jaxpr(model)(jnp.ones(3)), ["x"], rule, known)
    assert seen == {("constant", (3,)), ("number", ())}
    assert outputs == ["result", ("number", ())]


class Names(Reader):
    """What each operation is of, by number."""

    def __init__(self):
        super().__init__()
        self.inputs = []

    def done(self, equation, inputs):
        self.inputs.append([value.number for value in inputs])
        return [self.new(variable) for variable in equation.outvars]


def test_values_are_numbered_in_order_and_equal_numbers_are_one():
    reader = Names()
    program = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * 2.0 + 3.0)(x) * 2.0)(1.0)
    (output,) = reader.follow(program, [reader.new(program.jaxpr.invars[0])])
    assert reader.inputs == [[1, 2], [3, 4], [5, 2]] and output.number == 6
    assert {number: float(value) for number, value in reader.known.items()} == {2: 2.0, 4: 3.0}


@custom_vmap
def exchanged(values):
    return values[::-1]


exchanged.def_vmap(lambda size, are_batched, values: (exchanged(values), are_batched[::-1]))


def test_what_is_called_is_known_and_what_is_not_known_depends_on_all():
    z, one = jnp.ones(()), jnp.ones(())
    assert dependent(lambda z: exchanged((z, one)), z) == (False, True)
    shape = jax.ShapeDtypeStruct((), z.dtype)

    def outside(z):
        return jax.pure_callback(lambda a, b: (b, a), (shape, shape), z, one)

    assert tuple(dependent(outside, z)) == (True, True)


def test_what_a_choice_takes_is_needed():
    def program(x):
        shifted, _ = x + 1.0, x - 1.0
        return jax.lax.cond(x > 0, lambda y: 2.0 * y, lambda y: y, shifted)

    names = [e.primitive.name for e in needed_equations(jax.make_jaxpr(program)(1.0).jaxpr)]
    assert "add" in names and "sub" not in names and names[-1] == "cond"


@pytest.mark.parametrize("is_closed", [True, False])
def test_programs_inside_of_programs_are_found(is_closed):
    loop = jax.make_jaxpr(
        lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: jax.jit(jnp.sin)(x), x)
    )(0.0)
    program = loop if is_closed else loop.jaxpr
    assert primitives_in(program) == {"while", "lt", "jit", "sin"}
    assert len(list(equations_in(program))) == 4


def test_operations_of_a_program():
    def program(x, matrix):
        root = jnp.linalg.cholesky(matrix)
        return jax.lax.scan(lambda c, _: (c + root @ x, None), x, None, length=10)[0]

    traced = jax.make_jaxpr(program)(jnp.ones(50), jnp.eye(50))
    assert 2 * 50**3 + 10 * 2 * 50**2 < equations.operations(traced) < 3 * 50**3 + 10 * 3 * 50**2
    assert equations.largest(traced) == 4 * 50**2
    loop = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x + 1, x))(0.0)
    assert equations.operations(loop) == 2 * equations.UNKNOWN_TURNS
    outside = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, x, x))(jnp.ones(3))
    assert equations.operations(outside) == equations.CALLBACK_OPERATIONS

    def checked(x):
        """As equinox raises its errors."""
        return jax.lax.cond(x > 9, lambda x: jax.pure_callback(np.sin, x, x), lambda x: x, x)

    assert equations.operations(jax.make_jaxpr(checked)(0.0)) < 10


def test_a_function_is_its_program():
    """Of any trees, with what it closes over, and traced once."""
    shift, turns = jnp.arange(3), []

    def function(x, scale):
        turns.append(x)
        return {"sum": jnp.sum(scale * x["a"] + shift), "parts": (x["a"][0],)}

    arguments = {"a": jnp.ones(3)}, 2.0
    traced, program = equations.traced(function, *arguments)
    found = jax.tree.map(float, traced({"a": jnp.full(3, 2.0)}, 3.0))
    assert found == {"sum": 21.0, "parts": (2.0,)}
    assert len(turns) == 1
    assert not equations.is_factoring(program.jaxpr)
    slope = jax.grad(lambda a: traced({"a": a}, 3.0)["sum"])(jnp.ones(3))
    np.testing.assert_array_equal(slope, 3.0)
