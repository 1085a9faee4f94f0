"""Programs that run a few times: XLA compiles them soon rather than well.

Most of the wait for a posterior of moderate size is compilation, and much of that is of programs
that find a start or expand a table and then never run again. With the options below XLA takes less
time for them on a CPU, and sums over a million rows take as long as before. With no optimization
at all (level 0) they compile in half of that time, and run up to five times as long: that is for
programs of few operations, which are counted (:func:`blackjax_ext.equations.operations`).
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blackjax_ext import equations
from blackjax_ext.types import Function

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
# from a traced program, the structure of its arguments, and what compiles it, to it or to a program
# that is the same
Keep = Callable[[Any, Any, Callable[[], Function]], Function]
KEEP: ContextVar[Keep | None] = ContextVar("KEEP", default=None)


@contextlib.contextmanager
def keeping(keep: Keep) -> Iterator[None]:
    """Within it, programs that are compiled soon are those that somebody keeps."""
    token = KEEP.set(keep)
    try:
        yield
    finally:
        KEEP.reset(token)


def compiled_soon(
    function: Function, static_argnums: int | tuple[int, ...] = (), *, runs_once: bool = False
) -> Function:
    """``jax.jit(function, static_argnums)`` for a program that runs a few times.

    Or once, where it `runs_once`, and may then be longer before it is worth optimizing; how long it
    is, its first arguments say. What is compiled goes with the function that is returned.

    Within another program, of which it becomes a part, it is ``jax.jit``. On accelerators XLA
    compiles it as any other.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> double = compiled_soon(lambda x: 2 * x)
    >>> float(double(jnp.ones(())))
    2.0
    """
    # JAX keeps what it knows of a function as long as that lives: those of modules do for ever
    jitted = partial(jax.jit, partial(function), static_argnums=static_argnums)
    plain, chosen = jitted(), list[Function]()

    def program(*arguments: Any, **keywords: Any) -> Any:
        if is_inside(arguments, keywords) or is_op_by_op():  # JAX takes no options there
            return plain(*arguments, **keywords)
        if not chosen:
            traced, keep = plain.trace(*arguments, **keywords), KEEP.get()
            options = options_for(traced.jaxpr, 1 if runs_once else 60)  # a few runs
            make = partial(jitted, compiler_options=options or None)  # of what is traced already
            given = jax.tree.structure((arguments, keywords))
            is_kept = keep is not None and static_argnums == ()
            chosen.append(keep(traced, given, make) if keep and is_kept else make())
        try:
            return chosen[0](*arguments, **keywords)
        except jax.errors.JaxRuntimeError as error:
            if not has_gone(error):
                raise
        chosen.clear()
        return program(*arguments, **keywords)

    return update_wrapper(program, function)


def options_for(traced: Any, num_runs: int) -> dict[str, Any]:
    """Options of the compiler, where it has them and the environment does not say otherwise."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    options = {k: v for k, v in OPTIONS.items() if k not in GONE and k not in flags}
    if LEVEL in options and num_runs * equations.operations(traced) <= LIGHT:
        options[LEVEL] = 0
    return options


def has_gone(error: Exception) -> bool:
    """Whether an option is not one of this jaxlib's; from then on it is left out."""
    option = re.search(r"compile option: '(\w+)'", str(error))
    if option is None or option[1] in GONE:
        return False
    GONE.add(option[1])
    return True


def is_inside(*arguments: Any) -> bool:
    """Whether what is called becomes a part of another program."""
    # an array, or a tracer where all of jax is traced
    leaves = [*jax.tree.leaves(arguments), jnp.asarray(np.int32(0))]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def is_op_by_op() -> bool:
    """Whether JAX compiles nothing, as its option ``jax_disable_jit`` says."""
    return bool(getattr(jax.config, "jax_disable_jit", False))
