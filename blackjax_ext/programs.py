"""Programs that run a few times: XLA compiles them soon rather than well, and once in a process.

Most of the wait for a posterior of moderate size is compilation, and much of that is of programs
that find a start or expand a table and then never run again. With the options below XLA takes less
time for them on a CPU, and sums over a million rows take as long as before. With no optimization
at all (level 0) they compile in half of that time, and run up to five times as long: that is for
programs of few operations, which are counted (:func:`blackjax_ext.work.operations`).

A second run needs the same programs. A function may read what is not among its arguments, and that
may have changed, so it is traced and lowered each time: what has been compiled is found by the
module that XLA would be given, with its constants, and can never be stale.
"""

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache, update_wrapper
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext import work
from blackjax_ext.types import Function

__all__ = ["compiled_soon"]

LEVEL = "xla_backend_optimization_level"
# fewer passes of LLVM, and loops that are not fused by the newer emitters, which compile slowly
OPTIONS: dict[str, Any] = {
    LEVEL: 1,
    "xla_cpu_use_fusion_emitters": False,
}
GONE: set[str] = set()  # options that the jaxlib here does not know
# operations, in all its runs, below which a program is not worth optimizing: without it they take
# about a second more, and XLA takes a second or two less
LIGHT = 2e9
FEW = 60  # runs of a program
MOST_TEXT = 2**20  # characters of a module that is kept: one with data in it is not
MOST_CONSTANTS = MOST_TEXT // 4  # bytes of constants that are worth printing
MOST_KEPT = 64  # executables
# of jax.config
CONSTANTS_APART = "jax_use_simplified_jaxpr_constants"
OP_BY_OP = "jax_disable_jit"
PRECISION = "jax_default_matmul_precision"


def compiled_soon(
    function: Function, static_argnums: int | tuple[int, ...] = (), *, runs_once: bool = False
) -> Function:
    """``jax.jit(function, static_argnums)`` for a program that runs a few times.

    Or once, where it `runs_once`, and may then be longer before it is worth optimizing.

    Within another program, of which it becomes a part, it is just that. On accelerators XLA
    compiles it as any other.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> double = compiled_soon(lambda x: 2 * x)
    >>> float(double(jnp.ones(())))
    2.0
    """

    @cache
    def jitted(*options: tuple[str, Any]) -> Function:
        return jax.jit(
            function, static_argnums=static_argnums, compiler_options=dict(options) or None
        )

    flat = FlatProgram(function, static_argnums, 1 if runs_once else FEW)

    def program(*arguments: Any, **keywords: Any) -> Any:
        if is_inside(arguments, keywords):
            return jitted()(*arguments, **keywords)
        options = options_here()
        try:
            if is_on_default_device(arguments, keywords):
                return flat(options, arguments, keywords)
            return jitted(*options.items())(*arguments, **keywords)
        except jax.errors.JaxRuntimeError as error:
            if not has_gone(error):
                raise
        return program(*arguments, **keywords)

    return update_wrapper(program, function)


class Form(NamedTuple):
    """How the arguments of a call are put together from arrays.

    tree
        Structure of the arguments and keywords, without the static ones.
    static
        Places and values of the static arguments.
    """

    tree: Any
    static: tuple[tuple[int, Any], ...]

    def join(self, leaves: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keywords with these arrays."""
        arguments, keywords = jax.tree.unflatten(self.tree, leaves)
        for place, value in self.static:
            arguments.insert(place, value)
        return arguments, keywords


class FlatProgram:
    """A function compiled for lists of arrays, so that what is kept of it knows nothing else.

    Functions in the structure of arguments and outcomes belong to one run.
    """

    def __init__(self, function: Function, static_argnums: int | tuple[int, ...], num_runs: int):
        self.function, self.num_runs = function, num_runs
        static = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
        self.static = sorted(static)
        self.made: dict[Hashable, tuple[Function, Any]] = {}

    def __call__(
        self, options: dict[str, Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Results of the function for these arguments."""
        rest = [argument for i, argument in enumerate(arguments) if i not in self.static]
        leaves, tree = jax.tree.flatten((rest, keywords))
        form = Form(tree, tuple((i, arguments[i]) for i in self.static))
        precision = getattr(jax.config, PRECISION, None)
        here = default_device(), jnp.result_type(float), precision, bool(options)
        kind = form, tuple(map(jax.typeof, leaves)), here
        if kind not in self.made:
            self.made[kind] = self.make(form, leaves, options)
        executable, out_tree = self.made[kind]
        return jax.tree.unflatten(out_tree, executable(*leaves))

    def make(self, form: Form, leaves: list[Any], options: dict[str, Any]) -> tuple[Function, Any]:
        """The executable for a list of arrays, and the structure of what the function returns."""
        structures = []

        def flat(*leaves: Any) -> list[Any]:
            arguments, keywords = form.join(leaves)
            results, structure = jax.tree.flatten(self.function(*arguments, **keywords))
            structures.append(structure)
            return results

        function = getattr(self.function, "func", self.function)  # of a partial function
        flat.__name__ = getattr(function, "__name__", "program")  # the module has its name
        traced = jax.jit(flat).trace(*leaves)
        return executable_of(traced, options, self.num_runs), structures[-1]


class Executables:
    """Executables by what they were compiled from; the one not used for longest is forgotten."""

    def __init__(self, most: int):
        self.most, self.lock = most, threading.Lock()
        self.kept: OrderedDict[Hashable, Function] = OrderedDict()

    def find(self, key: Hashable, make: Callable[[], Function]) -> Function:
        """The one of a key, made if there is none."""
        with self.lock:
            executable = self.kept.get(key)
        executable = make() if executable is None else executable  # no lock while XLA compiles
        with self.lock:
            self.kept[key] = executable
            self.kept.move_to_end(key)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
        return executable


EXECUTABLES = Executables(MOST_KEPT)


def executable_of(traced: Any, options: dict[str, Any], num_runs: int) -> Function:
    """The executable of a traced function, compiled now unless it has been before."""
    lowered = traced.lower()
    read = arguments_read(lowered)
    if LEVEL in options and num_runs * work.operations(traced.jaxpr) <= LIGHT:
        options = {**options, LEVEL: 0}
    key = cache_key(traced, lowered, read)

    def make() -> Function:
        executable: Function = lowered.compile(compiler_options=options)
        return executable

    if key is None:
        return make()
    return EXECUTABLES.find((key, default_device(), tuple(options.items())), make)


def cache_key(traced: Any, lowered: Any, read: tuple[int, ...] | None) -> Hashable | None:
    """Key of an executable: all that it depends on; None for one that is not kept."""
    if sum(getattr(constant, "nbytes", 0) for constant in traced.jaxpr.consts) > MOST_CONSTANTS:
        return None
    text = text_of(lowered)
    # a callback is an address of this process, and partitions have devices of their own
    is_own = "callback" in text or "mhlo.num_partitions = 1 " not in text
    # constants apart from the module would be those of one run
    is_own = is_own or getattr(jax.config, CONSTANTS_APART, False)
    if read is None or is_own or len(text) > MOST_TEXT:
        return None
    # kinds of keys and weak types are not in a module
    types = tuple(traced.jaxpr.in_avals), tuple(traced.jaxpr.out_avals)
    return hashlib.sha256(text.encode()).digest(), types, read


def text_of(lowered: Any) -> str:
    """The module that XLA is given."""
    return str(lowered.as_text())


def arguments_read(lowered: Any) -> tuple[int, ...] | None:
    """Which arguments have a place in a module, since the others have none; None if unknown."""
    try:
        return tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):  # jax promises nothing of it
        return None


def is_on_default_device(*arguments: Any) -> bool:
    """Whether a program of these arguments runs on the default device, and not op by op."""
    arrays = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    is_here = all(array.devices() == {default_device()} for array in arrays)
    return is_here and not getattr(jax.config, OP_BY_OP, False)


def default_device() -> Any:
    """Device on which JAX puts an array that nothing else places."""
    return next(iter(array_or_tracer().devices()))


def array_or_tracer() -> Array:
    """An array, or a tracer where all of jax is traced."""
    return jnp.asarray(np.int32(0))


def options_here() -> dict[str, Any]:
    """Options of the compiler, where it has them and the environment does not say otherwise."""
    if jax.default_backend() != "cpu":
        return {}
    return {
        name: value for name, value in OPTIONS.items() if name not in GONE and not is_chosen(name)
    }


def has_gone(error: Exception) -> bool:
    """Whether an option is not one of this jaxlib's; from then on it is left out."""
    option = re.search(r"compile option: '(\w+)'", str(error))
    if option is None or option[1] in GONE:
        return False
    GONE.add(option[1])
    return True


def is_inside(*arguments: Any) -> bool:
    """Whether what is called becomes a part of another program."""
    leaves = [*jax.tree.leaves(arguments), array_or_tracer()]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def is_chosen(name: str) -> bool:
    """Whether the environment says what this option of the compiler is to be."""
    return name in os.environ.get("XLA_FLAGS", "")
