"""Programs that are compiled soon, and once in a process."""

import gc
import re
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import programs
from blackjax_ext.programs import Executables, compiled_soon


@pytest.fixture
def options(monkeypatch):
    """As without the flags that tests are run with."""
    monkeypatch.setenv("XLA_FLAGS", "")


def test_options_are_known_or_left_out(options):
    """JAX 0.12 has the newer emitters of loops alone."""
    assert programs.compiled_soon(lambda: 1)() == 1
    known = {name: value for name, value in programs.OPTIONS.items() if name not in programs.GONE}
    assert programs.LEVEL in known
    assert jax.jit(lambda: 1, compiler_options=known)() == 1


def test_an_option_that_has_gone_is_left_out(options, monkeypatch):
    monkeypatch.setattr(programs, "OPTIONS", {"xla_gone": 1})
    assert compiled_soon(jnp.square)(3.0) == 9.0


def test_other_errors_are_raised(options):
    with pytest.raises(TypeError):
        compiled_soon(jnp.square)("three")


def test_what_the_environment_sets_stays(options, monkeypatch):
    known = programs.options_here()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    rest = {k: v for k, v in known.items() if k != programs.LEVEL}
    assert programs.options_here() == rest

    asked = []

    class Lowered:
        def compile(self, compiler_options):
            asked.append(compiler_options)

    traced = jax.jit(jnp.square).trace(jnp.ones(3))
    monkeypatch.setattr(programs, "cache_key", lambda *_: None)
    monkeypatch.setattr(programs, "arguments_read", lambda _: None)
    monkeypatch.setattr(type(traced), "lower", lambda _: Lowered())
    programs.executable_of(traced, rest, 1)
    programs.executable_of(traced, known, 1)
    assert asked == [rest, {**known, programs.LEVEL: 0}]


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


@pytest.fixture
def kept(monkeypatch):
    """What is kept, of this test alone."""
    executables = Executables(most=3)
    monkeypatch.setattr(programs, "EXECUTABLES", executables)
    return executables.kept


def test_a_program_is_compiled_once(kept):
    """Whatever function it is of, and however often it is made."""
    for _ in range(2):
        assert compiled_soon(lambda x: x + 1)(2.0) == 3.0
    assert compiled_soon(lambda y: y + 1)(3.0) == 4.0
    with jax.enable_x64(True):
        assert compiled_soon(lambda x: x + 1)(np.float64(2.0)).dtype == np.float64
    assert len(kept) == 2


TABLE = np.arange(40.0)
NUMBER = 1.0


def read(x):
    """Reads what is not among its arguments."""
    return NUMBER * x + jnp.asarray(TABLE)[:20].sum()


def changes_are_seen(monkeypatch):
    """The law: a program reads what a function would."""
    for table, number in ((TABLE, 1.0), (TABLE + 1.0, 1.0), (TABLE + 1.0, 2.0)):
        monkeypatch.setitem(globals(), "TABLE", table)
        monkeypatch.setitem(globals(), "NUMBER", number)
        assert compiled_soon(read)(3.0) == read(3.0)


def test_a_changed_constant_is_seen(kept, monkeypatch):
    changes_are_seen(monkeypatch)
    assert len(kept) == 3


def test_the_law_finds_a_key_without_constants(kept, monkeypatch):
    text_of = programs.text_of
    monkeypatch.setattr(programs, "text_of", lambda x: re.sub("dense<.*?>", "", text_of(x)))
    with pytest.raises(AssertionError):
        changes_are_seen(monkeypatch)


def test_arguments_that_nothing_reads_are_told_apart(kept):
    first, second = (compiled_soon(lambda *args, i=i: args[i]) for i in range(2))
    assert (first(1.0, 2.0), second(1.0, 2.0)) == (1.0, 2.0)


def test_the_law_finds_arguments_that_are_not_told_apart(kept, monkeypatch):
    monkeypatch.setattr(programs, "arguments_read", lambda lowered: ())
    with pytest.raises(AssertionError):
        test_arguments_that_nothing_reads_are_told_apart(kept)


def test_keys_and_weak_types_are_told_apart(kept):
    key = jax.random.key(0)
    same = partial(compiled_soon, lambda x: x)
    assert jnp.array_equal(same()(jax.random.key_data(key)), jax.random.key_data(key))
    assert same()(key).dtype == key.dtype
    for x in (1.0, np.float32(1.0)):
        assert same()(x).weak_type == isinstance(x, float)


def test_structures_are_those_of_the_call(kept):
    """They hold functions, which are not those of another call."""
    for number in (1.0, 2.0):
        x = jax.tree_util.Partial(lambda x, number=number: x + number, jnp.ones(()))
        assert compiled_soon(lambda x: x)(x)() == 1.0 + number
    assert len(kept) == 1


def test_of_those_kept_the_one_not_used_for_longest_goes(kept):
    for i in (0, 1, 2, 0, 3):
        compiled_soon(lambda x, i=i: x + i)(1.0)
    before = list(kept)
    compiled_soon(lambda x: x + 0)(1.0)
    assert len(before) == 3 and set(kept) == set(before)


def test_neither_data_nor_callbacks_are_kept(kept):
    data = jnp.arange(2.0**18)
    assert compiled_soon(lambda: data)().size == data.size
    compiled_soon(lambda x: jax.debug.callback(lambda x: None, x))(1.0)
    jax.effects_barrier()
    assert not kept


def test_what_is_kept_holds_neither_function_nor_arrays(kept):

    def run():
        constant, argument = jnp.arange(30.0), jnp.ones(3)

        def model(x):
            return x.sum() + constant.sum()

        assert compiled_soon(model)(argument) == 438.0
        return [weakref.ref(each) for each in (model, constant, argument)]

    gone = run()
    gc.collect()
    assert len(kept) == 1 and [each() for each in gone] == [None] * 3


def test_programs_of_few_operations_are_not_optimized(options, kept, monkeypatch):
    """In all of their runs."""
    monkeypatch.setattr(programs, "LIGHT", 500.0)
    level = {}
    for name, runs_once, size in (("few", False, 3), ("one", True, 99), ("large", True, 999)):
        program = compiled_soon(lambda x, unread: x + 1, runs_once=runs_once)
        program(np.ones(size), np.ones(9999))
        level[name] = dict(list(kept)[-1][-1])[programs.LEVEL]
    assert level == {"few": 0, "one": 0, "large": 1}
    program = compiled_soon(lambda x, unread: x + 1)  # sixty runs
    program(np.ones(99), np.ones(9999))
    assert dict(list(kept)[-1][-1])[programs.LEVEL] == 1


def precisions_of(program):
    """Precisions of the matrix product in the module of a program, by the default then set."""
    x, seen = jnp.eye(2), []
    for precision in (None, "highest", None):
        with jax.default_matmul_precision(precision):
            seen.append(float(program(x)))
    return seen


def test_a_changed_precision_of_products_is_seen():
    """A kept program does not outlive the precision that it was traced with."""

    def asked(x):
        is_highest = jax.config.jax_default_matmul_precision == "highest"
        return jnp.sum(x @ x) * (10.0 if is_highest else 1.0)

    assert precisions_of(compiled_soon(asked)) == [2.0, 20.0, 2.0]


def test_without_jit_it_runs_op_by_op(kept):
    seen = []
    with jax.disable_jit():
        compiled_soon(lambda x: seen.append(float(x)))(2.0)
    assert seen == [2.0]
