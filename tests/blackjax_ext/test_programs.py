"""Programs that are compiled soon."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import programs
from blackjax_ext.programs import compiled_soon


@pytest.fixture
def options(monkeypatch):
    """As without the flags that tests are run with: the options that programs are compiled with."""
    monkeypatch.setenv("XLA_FLAGS", "")
    found = []

    def options_for(*arguments, original=programs.options_for):
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(programs, "options_for", options_for)
    return found


def test_options_are_known_or_left_out(options):
    """JAX 0.12 has the newer emitters of loops alone."""
    assert compiled_soon(lambda: 1)() == 1
    assert programs.LEVEL in options[-1]
    assert jax.jit(lambda: 1, compiler_options=options[-1])() == 1


def test_an_option_that_has_gone_is_left_out(options, monkeypatch):
    monkeypatch.setattr(programs, "OPTIONS", {"xla_gone": 1})
    assert compiled_soon(jnp.square)(3.0) == 9.0
    assert options == [{"xla_gone": 1}, {}]


def test_other_errors_are_raised(options):
    with pytest.raises(TypeError):
        compiled_soon(jnp.square)("three")


def test_what_the_environment_sets_stays(options, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert compiled_soon(jnp.square)(3.0) == 9.0
    assert programs.LEVEL not in options[-1]


@pytest.mark.parametrize(
    "within, x",
    [
        (lambda f: f, 3.0),
        (jax.jit, 3.0),
        (jax.grad, 3.0),
        (jax.vmap, np.arange(3.0)),
        (lambda f: jax.jit(jax.vmap(f)), np.arange(3.0)),
        (lambda f: jax.jit(lambda x: f(3.0) * x), 2.0),  # of known arguments, in another's trace
    ],
)
def test_it_is_part_of_other_programs(within, x, options):
    assert jnp.array_equal(within(compiled_soon(jnp.square))(x), within(jnp.square)(x))


def test_static_arguments_and_keywords(options):
    power = compiled_soon(lambda x, n, *, factor: factor * x**n, static_argnums=1)
    assert power(jnp.array(2.0), 3, factor=2.0) == 16.0
    assert power.__wrapped__(2.0, 3, factor=1.0) == 8.0


def test_a_function_is_traced_once(options):
    seen = []
    program = compiled_soon(lambda x: seen.append(x) or x + 1)
    assert [program(1.0), program(2.0)] == [2.0, 3.0]
    assert len(seen) == len(options) == 1


NUMBER = 1.0


def read(x):
    """Reads what is not among its arguments."""
    return NUMBER * x


def test_what_a_function_reads_is_read_by_each_program(monkeypatch):
    for number in (1.0, 2.0):
        monkeypatch.setitem(globals(), "NUMBER", number)
        assert compiled_soon(read)(3.0) == read(3.0)


def test_nothing_that_a_program_was_made_for_is_kept():

    def run():
        constant, argument = jnp.arange(30.0), jnp.ones(3)

        def model(x):
            return x.sum() + constant.sum()

        assert compiled_soon(model)(argument) == 438.0
        return [weakref.ref(each) for each in (model, constant, argument)]

    gone = run()
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def test_programs_of_few_operations_are_not_optimized(options, monkeypatch):
    """In all of their runs."""
    monkeypatch.setattr(programs, "LIGHT", 500.0)
    levels = []
    for runs_once, size in ((False, 3), (True, 99), (True, 999), (False, 99)):
        program = compiled_soon(lambda x, unread: x + 1, runs_once=runs_once)
        program(np.ones(size), np.ones(9999))
        levels.append(options[-1][programs.LEVEL])
    assert levels == [0, 0, 1, 1]  # the last has sixty runs


def test_without_jit_it_runs_op_by_op(options):
    seen = []
    with jax.disable_jit():
        compiled_soon(lambda x: seen.append(float(x)))(2.0)
    assert seen == [2.0]
