"""Operations that are alike, done together: the same numbers and derivatives, in fewer lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from jax.scipy.special import xlogy
from jax.scipy.stats import norm

from blackjax_ext import equations, stacking
from blackjax_ext.stacking import stacked

pytestmark = pytest.mark.usefixtures("x64")
NUM_SITES = 36
MANY = 80  # where programs are counted, not compiled


@pytest.fixture(autouse=True)
def short_programs(monkeypatch):
    """The smallest programs in which anything is taken together, as these are to compile fast."""
    monkeypatch.setattr(stacking, "LEAST_VALUES", 100)


def lines(function, *arguments):
    return jax.jit(function).lower(*arguments).as_text().count("\n")


def effects(z):
    """Effects that share a scale, each with a count of its own."""
    total = norm.logpdf(z["mean"]) - 0.5 * z["scale"] ** 2
    for j in range(len(z) - 2):
        total += norm.logpdf(z[f"effect_{j}"], z["mean"], jnp.exp(z["scale"]))
        total += xlogy(j % 4.0, jnp.exp(z[f"effect_{j}"])) - jnp.exp(z[f"effect_{j}"])
    return total


def laws(z):
    """Sites of three laws in turn, on which one prediction depends, in another order."""
    prediction, num_sites = 0.0, len(z) - 2
    for j in range(num_sites):
        value = z[f"effect_{(7 * j) % num_sites}"]
        prediction = prediction + (1 + j % 5) * value
    total = -0.5 * (prediction - z["mean"]) ** 2 - 0.5 * z["scale"] ** 2
    for j in range(num_sites):
        value = z[f"effect_{j}"]
        total += (
            -0.5 * value**2 / (1 + j),
            jax.nn.log_sigmoid(value) - value**2,
            -jnp.log1p(value**2),
        )[j % 3]
    return total


def vectors(z):
    """Entries of vectors, in vectors again."""
    x, _ = ravel_pytree(z)
    data = np.linspace(0.0, 1.0, x.size)
    rows = [jnp.stack([x[j], x[(j + 3) % x.size] * data[j]]) for j in range(x.size)]
    total = sum(-jnp.sum((row - j) ** 2) for j, row in enumerate(rows))
    return total + jnp.prod(jnp.tanh(jnp.concatenate(rows[::2])))


def walk(z):
    """A random walk, in which each step waits for the last."""
    total, last = 0.0, z["mean"]
    for j in range(len(z) - 2):
        total += -0.5 * (z[f"effect_{j}"] - 0.9 * last) ** 2 * jnp.exp(-z["scale"])
        last = z[f"effect_{j}"]
    return total


def position(num_sites=NUM_SITES):
    values = np.random.default_rng(0).normal(size=num_sites)
    z = {f"effect_{j}": jnp.asarray(value) for j, value in enumerate(values)}
    return z | {"mean": jnp.asarray(0.3), "scale": jnp.asarray(-0.2)}


DENSITIES = {each.__name__: each for each in (effects, laws, vectors, walk)}


def flat(logdensity_fn, num_sites=NUM_SITES):
    x, unravel = ravel_pytree(position(num_sites))
    return (lambda x: logdensity_fn(unravel(x))), x


@pytest.mark.first
@pytest.mark.parametrize("name", DENSITIES)
def test_values_and_derivatives_are_the_same_in_fewer_lines(name):
    plain, x = flat(DENSITIES[name], MANY)
    z = position(MANY)
    assert lines(stacked(plain), x) < lines(plain, x) / 3
    assert lines(jax.grad(stacked(DENSITIES[name])), z) < lines(jax.grad(DENSITIES[name]), z) / 2
    plain, x = flat(DENSITIES[name])
    function = stacked(plain)
    for derivative in (lambda f: f, jax.grad, jax.jacfwd, jax.hessian):
        expected, found = (jax.jit(derivative(f))(x) for f in (plain, function))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    points = x + jnp.linspace(-1, 1, 5)[:, None]
    np.testing.assert_allclose(jax.vmap(function)(points), jax.vmap(plain)(points), rtol=1e-10)


@pytest.mark.parametrize("name", DENSITIES)
def test_one_in_another_takes_nothing_apart(name, monkeypatch):
    """Positions that are raveled around a density of sites: as long as one of the vector."""
    monkeypatch.setattr(stacking, "LEAST_VALUES", 1)
    _, x = flat(DENSITIES[name])
    _, unravel = ravel_pytree(position())
    once = stacked(lambda x: DENSITIES[name](unravel(x)))
    inner = stacked(DENSITIES[name])
    twice = stacked(lambda x: inner(unravel(x)))
    assert lines(twice, x) < 1.3 * lines(once, x)
    np.testing.assert_allclose(twice(x), once(x), rtol=1e-12)


def test_single_precision_stays():
    plain, x = flat(effects)
    x = x.astype(jnp.float32)
    found = jax.jit(stacked(plain))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, plain(x), rtol=1e-5)


def test_number_plus_vectors_plus_scalars():
    """A predictor that is added up from the number zero, in a loop over coefficients."""
    data = np.random.default_rng(1).normal(size=(48, 20))

    def function(x):
        predictor = 0.0
        for j in range(48):
            predictor = predictor + data[j] * x[j] + x[-1]
        return -jnp.sum(predictor**2) + sum(jnp.exp(-(x[j] ** 2)) for j in range(48))

    x = jnp.linspace(-1, 1, 49)
    assert lines(stacked(function), x) < lines(function, x) / 2
    for derivative in (lambda f: f, jax.grad, jax.jacfwd):
        expected, found = (jax.jit(derivative(f))(x) for f in (function, stacked(function)))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_shapes_and_types_that_differ_are_not_taken_together():
    """The same operations at the same time, of numbers, of pairs, and in both precisions."""

    def function(x):
        single = x.astype(jnp.float32)
        numbers = sum(jnp.tanh(x[j]) * jnp.tanh(single[j]) for j in range(NUM_SITES))
        pairs = [jnp.tanh(x[j : j + 2]) * jnp.tanh(single[j : j + 2]) for j in range(NUM_SITES)]
        return numbers + sum(jnp.sum(pair * j) for j, pair in enumerate(pairs))

    x = jnp.linspace(-1, 1, NUM_SITES + 2)
    assert lines(stacked(function), x) < lines(function, x) / 2
    for derivative in (lambda f: f, jax.grad):
        expected, found = (jax.jit(derivative(f))(x) for f in (function, stacked(function)))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


OPERATIONS = {
    "add": jnp.add,
    "multiply": lambda a, b: 0.3 * a * b,
    "exp": lambda a, b: jnp.exp(-(a**2)) + 0 * b,
    "choice": lambda a, b: jnp.where(a > 0.1, a, b),
    "half": lambda a, b: (a.astype(jnp.float32) + 1).astype(a.dtype) + b,
    "softplus": lambda a, b: jax.nn.softplus(a) - b,
    "pair": lambda a, b: jnp.sum(jnp.stack([a, b, a])),
    "common": lambda a, b: a - jnp.log(3.0) + 2 * b,
}
steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(1, 6), st.integers(0, 97)),
    min_size=1,
    max_size=12,
)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(steps=steps, num_terms=st.integers(1, 9))
def test_random_programs(steps, num_terms):
    """Loops over operations on whatever has been computed before, in any order."""

    def function(x):
        values = [*x, *(x[j : j + 2].sum() for j in range(3))]
        for name, count, first in steps:
            n = len(values)
            rows = range(count)
            values += [
                OPERATIONS[name](values[(first + 3 * j) % n], values[(first * j) % n]) for j in rows
            ]
        return jnp.stack(values[-4:]), sum(values[-num_terms:]), values[0]

    x = jnp.array([0.1, -0.7, 0.3, 0.9, -0.2])
    closed = program(function, x)

    def together(x):
        flat = stacking.Flattening().of(closed)
        return stacking.Evaluation(flat, [x]).of(stacking.batches_of(flat.operations))

    for derivative in (lambda f: f, jax.jacrev, jax.jacfwd):
        expected, found = derivative(function)(x), derivative(together)(x)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)  # as "half" rounds


def long_sum(term):
    """A density of many terms."""
    return lambda x: sum(term(j, x[0]) for j in range(NUM_SITES))


def program(function, x):
    return jax.make_jaxpr(function)(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -0.5 * jnp.sum(x**2),
        # stacks would be copies of all rows
        lambda x: sum(jnp.sum(jnp.exp(x[0] + jnp.arange(1000.0) * j)) for j in range(40)),
        # what a user is to see
        long_sum(lambda j, x: jax.debug.print("{x}", x=x) or jnp.exp(x * j)),
    ],
    ids=["short", "large", "effects"],
)
def test_what_has_no_gain_is_left_as_it_is(function):
    x = jnp.arange(1.0, 4.0)
    assert str(program(stacked(function), x)) == str(program(function, x))


def test_no_batch_of_factorizations(monkeypatch):
    """It could lock a CPU up."""
    monkeypatch.setattr(stacking, "LEAST_VALUES", 1)
    function = long_sum(lambda j, x: jnp.linalg.cholesky(jnp.eye(2) * (j + x**2))[0, 0])
    x = jnp.ones(2)
    assert equations.batch_of_factorizations(program(stacked(function), x)) == 0
    np.testing.assert_allclose(stacked(function)(x), function(x), rtol=1e-12)


def test_callbacks_stay_one_by_one(monkeypatch):
    monkeypatch.setattr(stacking, "LEAST_VALUES", 1)

    def host(x):
        assert np.ndim(x) == 0
        return np.exp(x)

    function = long_sum(lambda j, x: jax.pure_callback(host, x, x + j / 240))
    x = jnp.ones(2)
    np.testing.assert_allclose(stacked(function)(x), function(x), rtol=1e-12)


def scaled(factor):
    """The square with a derivative of its own, which none of its program shows."""

    @jax.custom_jvp
    def square(x):
        return x**2

    square.defjvp(lambda x, t: (x[0] ** 2, factor * x[0] * t[0]))
    return square


def of_table(factor):
    """A function that reads a table, in a program that does not show it."""
    table = factor + jnp.arange(3.0)
    look = jax.jit(lambda x: jnp.sum(jnp.exp(-(x**2)) * table))
    read = jax.custom_jvp(look)
    read.defjvp(lambda x, t: (look(x[0]), look(x[0]) * t[0]))
    return read


def of_rules(factor):
    """The cube, in whose rule there is another function with a rule."""
    square, cube = scaled(factor), jax.custom_jvp(lambda x: x**3)
    cube.defjvp(lambda x, t: (x[0] ** 3, 3 * square(x[0]) * t[0]))
    return cube


def by_zeros(factor):
    """A product whose rule asks which of its arguments move."""
    product = jax.custom_jvp(lambda a, b: a * b)

    def rule(x, t):
        is_still = isinstance(t[1], jax.custom_derivatives.SymbolicZero)
        return x[0] * x[1], factor * t[0] * x[1] if is_still else t[0] * x[1] + x[0] * t[1]

    product.defjvp(rule, symbolic_zeros=True)
    return lambda x: product(x, 2.0)


def by_parts(factor):
    """The square with a derivative that is given for its argument."""
    square = jax.custom_jvp(lambda x: x**2)
    square.defjvps(lambda t, value, x: factor * x * t)
    return square


@pytest.mark.parametrize("made", [scaled, of_table, of_rules, by_zeros, by_parts])
def test_rules_of_users_are_not_taken_together(made, monkeypatch):
    monkeypatch.setattr(stacking, "LEAST_VALUES", 1)
    functions = [made(float(j)) for j in range(12)]

    def function(x):
        return sum(jnp.exp(-(f(x[j % 3]) ** 2)) for j, f in enumerate(functions))

    x = jnp.array([0.1, 0.2, 0.3])
    for derivative in (lambda f: f, jax.grad, jax.hessian):
        expected, found = (jax.jit(derivative(f))(x) for f in (function, stacked(function)))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_rules_of_jax_are_one():
    def function(x):
        return sum(xlogy(1.0 + j, x[j]) - x[j] for j in range(NUM_SITES * 3))

    x = jnp.linspace(1, 2, NUM_SITES * 3)
    counts = [str(program(each, x)).count("_xlogy_jvp") for each in (stacked(function), function)]
    assert counts == [1, x.size]
    np.testing.assert_allclose(jax.grad(stacked(function))(x), jax.grad(function)(x), rtol=1e-12)


@pytest.mark.parametrize(
    "term",
    [
        # a batch of it has other numbers
        lambda j, x: x * jax.lax.rng_bit_generator(jnp.full(4, j, jnp.uint32), (), jnp.uint32)[1],
        # sums in another order overflow
        lambda j, x: (60_000.0 * (-1) ** j * jnp.exp(0 * x)).astype(jnp.float16),
        lambda j, x: jnp.sum(jnp.concatenate([jnp.zeros((3, 0)) + x * i for i in range(3)])) + x,
        lambda j, x: jax.lax.slice(jnp.exp(x * j / 80), (), (), ()),
    ],
    ids=["random", "narrow", "empty", "scalar"],
)
def test_what_is_another_number_in_a_stack_is_left_as_it_is(term, monkeypatch):
    monkeypatch.setattr(stacking, "LEAST_VALUES", 1)
    function, x = long_sum(term), jnp.ones(2)
    np.testing.assert_allclose(stacked(function)(x), function(x), rtol=1e-6)


def test_rules_of_reverse_mode_stay():
    @jax.custom_vjp
    def clipped(x):
        return x**2

    clipped.defvjp(lambda x: (x**2, x), lambda x, slope: (jnp.clip(2 * x * slope, -0.1, 0.1),))

    def function(x):
        return sum(jnp.exp(-clipped(x[j])) * (1 + j) for j in range(NUM_SITES * 3))

    x = jnp.linspace(0, 1, NUM_SITES * 3)
    np.testing.assert_allclose(jax.grad(stacked(function))(x), jax.grad(function)(x), rtol=1e-12)


def test_operation_without_batches_is_left_as_it_is():
    primitive = jax.extend.core.Primitive("alone")
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)

    def function(x):
        return sum(primitive.bind(jnp.exp(x[j])) for j in range(x.size))

    x = jnp.linspace(0, 1, 4 * NUM_SITES)
    np.testing.assert_allclose(stacked(function)(x), function(x), rtol=1e-12)
