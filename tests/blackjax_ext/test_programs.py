"""Programs that are compiled soon."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import programs
from blackjax_ext.programs import compiled_soon


@pytest.fixture
def options(monkeypatch):
    """As without the flags that tests are run with."""
    monkeypatch.setenv("XLA_FLAGS", "")


def test_this_jaxlib_knows_the_options():
    assert jax.jit(lambda: 1, compiler_options=programs.OPTIONS)() == 1


def test_an_option_that_has_gone_is_left_out(options, monkeypatch):
    monkeypatch.setattr(programs, "OPTIONS", {"xla_gone": 1})
    assert compiled_soon(jnp.square)(3.0) == 9.0


def test_other_errors_are_raised(options):
    with pytest.raises(TypeError):
        compiled_soon(jnp.square)("three")


def test_what_the_environment_sets_stays(options, monkeypatch):
    assert not programs.is_chosen()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert programs.is_chosen()


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
