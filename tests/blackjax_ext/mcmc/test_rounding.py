"""What a function loses in rounding: never less than the sizes of its slopes say, nor far more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from blackjax_ext.mcmc.rounding import loss
from tests.blackjax_ext.random_programs import (
    NUM,
    SIZE,
    composed,
    differentiable,
    mixed,
    of_vector,
    scan,
    steps,
)

X = np.array([1000.0, 999.9, 2.0, -3.0])
MATRIX = np.random.default_rng(0).normal(size=(3, 4))


def factor(x):
    """A lower triangular matrix that depends on a position."""
    return jnp.array([[x[2], 0.0], [x[3], 1e-3]])


def spread(x):
    """A covariance that depends on a position."""
    y = x[1:] / jnp.array([1000, 2, 3], x.dtype)
    return x[2] * jnp.eye(3, dtype=x.dtype) + jnp.outer(y, y)


@jax.custom_vjp
def known_backwards(x):
    """A function without a JVP."""
    return x - x[::-1]


known_backwards.defvjp(lambda x: (known_backwards(x), None), lambda _, g: (g - g[::-1],))

# functions of a position, and how far above its slopes a bound may be
PROGRAMS = {
    "difference": (lambda x: x[:1] - x[1:2], 2.0),
    "differences": (jnp.diff, 2.1),
    "location and scale": (lambda x: (x[:1] - x[1:2]) / jnp.exp(x[3]), 1.1),
    "scale that cancels": (lambda x: x[3:] / (x[:1] - x[1:2]), 2.0),
    "choice": (lambda x: jnp.where(x > 0, x - 1.0, x), 2.1),
    "sums": (jnp.cumsum, 4.0),
    "indices": (lambda x: x[jnp.array([1, 0, 0])] - x[:3], 2.1),
    "predictor": (lambda x: jnp.asarray(MATRIX, x.dtype) @ x, 3.0),
    "other factor": (lambda x: jnp.outer(x, x) @ x, 2.0),
    "lower factor": (
        lambda x: jax.scipy.linalg.solve_triangular(factor(x), x[:2], lower=True),
        3.0,
    ),
    "its transpose": (
        lambda x: jax.scipy.linalg.solve_triangular(factor(x), x[:2], lower=True, trans=1),
        3.0,
    ),
    "upper factor": (
        lambda x: jax.scipy.linalg.solve_triangular(factor(x).T, x[:2], lower=False),
        3.0,
    ),
    "Cholesky factor": (
        lambda x: jnp.linalg.cholesky(spread(x))[jnp.tril_indices(3)],
        20.0,
    ),
    "equations": (lambda x: jnp.linalg.solve(spread(x), x[:3]), 100.0),
    "scan": (lambda x: jax.lax.scan(lambda c, r: (0.9 * c + r, c - r), x[0], x[1:])[1], 6.0),
    "loop": (lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y - 0.5 * y[::-1], x), 6.0),
    "cond": (lambda x: jax.lax.cond(x[0] > 0, lambda y: y - y[::-1], lambda y: y, x), 2.1),
    "product": (lambda x: jnp.prod(x - 900.0)[None], 3.0),
    "rule of its own": (lambda x: jax.nn.softplus(x), 4.0),
    "no JVP": (known_backwards, 2.1),
    "jit": (jax.jit(lambda x: x - x[::-1]), 2.1),
}


def slopes(function, x):
    """The sum of the sizes of slopes times the last digits."""
    jacobian = jax.jacrev if function is known_backwards else jax.jacfwd
    return np.abs(jacobian(function)(x)) @ np.abs(x) * np.finfo(x.dtype).eps


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bound(name, x64):
    function, most = PROGRAMS[name]
    with jax.enable_x64(x64):
        x = jnp.asarray(X, "float64" if x64 else "float32")
        value, found = loss(function, x)
        expected = slopes(function, x)
        np.testing.assert_allclose(value, function(x), rtol=1e-5)
        assert found.dtype == x.dtype and found.shape == expected.shape
        assert np.all(found > 0.999 * expected)
        assert np.all(found <= most * (expected + np.finfo(x.dtype).eps * np.abs(value)))


def test_it_is_traced():
    found = jax.jit(jax.vmap(lambda x: loss(jnp.diff, x)[1]))(jnp.stack([X, 2 * X]))
    np.testing.assert_allclose(found[1], 2 * found[0])
    assert np.all(found > 0)


def test_what_is_exact_loses_nothing():
    value, found = loss(lambda x: jnp.where(jnp.arange(3) < 2, jnp.arange(3.0), x[:3]), X)
    assert np.all(found[:2] == 0) and found[2] > 0 and value.tolist() == [0, 1, 2]


def test_what_is_not_asked_for_is_not_read():
    def function(x):
        jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((), "float32"), x[0])
        return x

    loss(function, jnp.asarray(X))


def test_few_operations():
    """A model's map costs little: the bound costs no more than a few of it."""
    design = jnp.ones((50, 100))

    def into(x):
        return (x[:50] - design @ x[50:150]) / jnp.exp(x[150])

    def cost(function):
        compiled = jax.jit(function).lower(jnp.ones(151)).compile()
        return compiled.cost_analysis()["flops"]

    assert cost(lambda x: loss(into, x)) < 5 * cost(into)


@settings(deadline=None, max_examples=15, derandomize=True, database=None)
@given(steps(differentiable))
@example([scan(mixed((0, 1, 2, 3)), 3)])
def test_random_programs_lose_no_more_than_the_bound(parts):
    """Against double precision; a sine is off by more than its last digit."""
    function = of_vector(composed(parts))
    x = jnp.asarray(np.random.default_rng(2).normal(size=NUM * SIZE), "float32")
    value, bound = jax.jit(lambda x: loss(function, x))(x)
    with jax.enable_x64(True):
        exact = np.asarray(function(jnp.asarray(np.asarray(x), "float64")))
    error = np.abs(np.asarray(value, float) - exact)
    assert np.all(error <= 2.0 * np.asarray(bound, float) + 1e-30)
