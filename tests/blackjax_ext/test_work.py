"""What is counted in programs."""

import jax
import jax.numpy as jnp
import numpy as np

from blackjax_ext import work


def test_operations_of_a_program():
    def program(x, matrix):
        root = jnp.linalg.cholesky(matrix)
        return jax.lax.scan(lambda c, _: (c + root @ x, None), x, None, length=10)[0]

    traced = jax.make_jaxpr(program)(jnp.ones(50), jnp.eye(50))
    assert 2 * 50**3 + 10 * 2 * 50**2 < work.operations(traced) < 3 * 50**3 + 10 * 3 * 50**2
    assert work.largest(traced) == 4 * 50**2
    loop = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x + 1, x))(0.0)
    assert work.operations(loop) == 2 * work.UNKNOWN_TURNS
    outside = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, x, x))(jnp.ones(3))
    assert work.operations(outside) == work.CALLBACK_OPERATIONS

    def checked(x):
        """As equinox raises its errors."""
        return jax.lax.cond(x > 9, lambda x: jax.pure_callback(np.sin, x, x), lambda x: x, x)

    assert work.operations(jax.make_jaxpr(checked)(0.0)) < 10


def test_a_function_is_its_program():
    """Of any trees, with what it closes over, and traced once."""
    shift, turns = jnp.arange(3), []

    def function(x, scale):
        turns.append(x)
        return {"sum": jnp.sum(scale * x["a"] + shift), "parts": (x["a"][0],)}

    arguments = {"a": jnp.ones(3)}, 2.0
    traced, program = work.traced(function, *arguments)
    found = jax.tree.map(float, traced({"a": jnp.full(3, 2.0)}, 3.0))
    assert found == {"sum": 21.0, "parts": (2.0,)}
    assert len(turns) == 1
    assert not work.is_factoring(program.jaxpr)
    slope = jax.grad(lambda a: traced({"a": a}, 3.0)["sum"])(jnp.ones(3))
    np.testing.assert_array_equal(slope, 3.0)
