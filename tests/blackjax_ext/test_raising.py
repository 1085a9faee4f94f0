"""Programs whose calls into Python raise return NaN, and say where."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from blackjax_ext.raising import Raised, forgiving, warning_after


def look(x):
    if np.any(x > 1):
        raise KeyError("no such place")
    return x


def by_callback(x):
    return jax.pure_callback(look, x, x, vmap_method="sequential")


def by_effect(x):
    return io_callback(look, x, x)


def in_a_loop(x):
    return jax.lax.scan(lambda sum_, y: (sum_ + by_callback(y), None), x, 0.5 * jnp.stack([x, x]))[
        0
    ]


def by_error_if(x):
    return pytest.importorskip("equinox").error_if(x, x > 1, "no such place")


def in_a_primitive(x):
    """A solver that checks where no reader of equations sees it, differentiated."""
    lineax = pytest.importorskip("lineax")

    def solved(x):
        matrix = lineax.MatrixLinearOperator(jnp.where(x > 1, jnp.nan, x) * jnp.eye(2))
        return lineax.linear_solve(matrix, jnp.ones(2)).value[0]

    return jax.jvp(solved, (x,), (1.0,))[1]


RAISE = [by_callback, by_effect, in_a_loop, by_error_if, in_a_primitive]


@pytest.mark.parametrize("function", RAISE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_one_of_two_points_raises(function, is_compiled):
    one_by_one = forgiving(lambda x: jax.lax.map(function, x), raised := Raised())
    values = (jax.jit(one_by_one) if is_compiled else one_by_one)(jnp.array([0.25, 4.0]))
    np.testing.assert_array_equal(np.isnan(values), [False, True])
    said = "non-finite" if function is in_a_primitive else "no such place"
    assert raised.is_possible and said in raised.first
    assert "(test_raising.py, line " in raised.first


def test_integers_and_truth_values_have_no_nan():
    def raises(x):
        raise KeyError

    shapes = [jax.ShapeDtypeStruct((2,), dtype) for dtype in (np.float32, np.int32, bool)]
    found = forgiving(lambda x: jax.pure_callback(raises, shapes, x), Raised())(1.0)
    assert np.isnan(found[0]).all() and (found[1] > 1e9).all() and found[2].all()


def test_failures_of_the_machine_are_not_forgiven():
    def fails(x):
        raise OSError("disk is gone")

    raised = Raised()
    with pytest.raises((OSError, jax.errors.JaxRuntimeError), match="disk is gone"):
        forgiving(lambda x: jax.pure_callback(fails, x, x), raised)(jnp.ones(()))
    assert not raised.first


def test_a_warning_is_told_once_after_the_condition(recwarn):
    step = jax.jit(lambda i, x: warning_after(i < 2, by_callback, "Return NaN.")(x))
    assert np.isnan(step(1, 4.0)) and step(2, 0.5) == 0.5
    assert not recwarn.list
    assert np.isnan(step(2, 4.0)) and np.isnan(step(3, 5.0))
    jax.effects_barrier()
    (warning,) = recwarn.list
    assert re.search(r"KeyError: 'no such place' \(.*line.*Return NaN.", str(warning.message))


def test_program_without_calls_is_the_same():
    plain = forgiving(jnp.sin, raised := Raised())
    assert plain(1.0) == jnp.sin(1.0) and not raised.is_possible
