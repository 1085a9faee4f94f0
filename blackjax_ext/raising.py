"""Programs whose calls back into Python may raise: a point where one does has no density.

A solver that runs out of steps (``diffrax`` with ``throw=True``, by ``equinox.error_if``) and a
simulator behind ``jax.pure_callback`` raise on the host, and with them the whole program. A search
for a start leaps to places where the mass is not; there its programs get NaN instead. Steps of
chains do not: what raises where the mass is, or for a reason of its own, shall be seen.
"""

import os
import sysconfig
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import ClosedJaxpr

from blackjax_ext.equations import is_program, primitives_in
from blackjax_ext.types import Function
from blackjax_ext.work import evaluated, traced

__all__ = ["Raised", "forgiving", "forgiving_while", "without_checks"]

CALLS = frozenset(["pure_callback", "io_callback"])
OWN = os.path.dirname(os.path.abspath(__file__))
NOT_USERS = (OWN, os.path.join(os.path.dirname(OWN), "numpyro_fwd"))
NOT_USERS += tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))


@dataclass
class Raised:
    """What programs raised: whether they call Python, and the first error, with its line."""

    is_possible: bool = False
    first: str = ""


def forgiving(function: Function, raised: Raised) -> Function:
    """`function` of arrays, with NaN for what a call into Python returns that raises.

    What it calls is known where it is traced, so that this is the outermost transformation:
    nothing differentiates or vectorizes it.

    Examples
    --------
    >>> def root(x):
    ...     return jax.pure_callback(lambda x: np.float32(math.sqrt(x)), x, x)
    >>> import jax, math, numpy as np
    >>> answer = forgiving(root, raised := Raised())
    >>> float(answer(np.float32(4.0))), float(answer(np.float32(-1.0))), raised.first[:10]
    (2.0, nan, 'ValueError')
    """

    def evaluate(program: Any, constants: list[Any], leaves: list[Any]) -> list[Any]:
        raised.is_possible |= calls_python(program)
        return evaluated(answered(program, partial(nan_where_raised, raised)), constants, leaves)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return traced(function, *arguments, evaluate=evaluate)[0](*arguments)

    return call


def forgiving_while(condition: Any, function: Function, remedy: str) -> Function:
    """`function` of arrays as `forgiving` while a condition holds; then errors say what to do."""
    raised = Raised()

    def evaluate(program: Any, *operands: list[Any]) -> list[Any]:
        answers = partial(nan_where_raised, raised), partial(explained, remedy)
        programs = (partial(evaluated, answered(program, answer)) for answer in answers)
        values: list[Any] = jax.lax.cond(condition, *programs, *operands)
        return values

    return lambda *arguments: traced(function, *arguments, evaluate=evaluate)[0](*arguments)


def calls_python(program: Any) -> bool:
    """Whether a program calls back into Python."""
    return not CALLS.isdisjoint(primitives_in(program))


def answered(program: Any, answer: Function, place: str = "") -> Any:
    """A ``Jaxpr`` or ``ClosedJaxpr``, made at a `place`, whose calls into Python `answer` makes."""
    if not calls_python(program):
        return program
    if isinstance(program, ClosedJaxpr):
        return program.replace(jaxpr=answered(program.jaxpr, answer, place))

    def replaced(equation: Any) -> Any:
        at = line_of(equation) or place

        def inside(parameter: Any) -> Any:
            return answered(parameter, answer, at) if is_program(parameter) else parameter

        params = jax.tree.map(inside, equation.params, is_leaf=is_program)
        if equation.primitive.name in CALLS:
            called, avals = params["callback"], params["result_avals"]
            params["callback"] = partial(answer, called, avals, at)
        return equation.replace(params=params)

    return program.replace(eqns=[replaced(equation) for equation in program.eqns])


def nan_where_raised(
    raised: Raised, called: Function, avals: Any, place: str, *values: Any
) -> list[Any]:
    """What `called` returns; NaN where it raises."""
    function = getattr(called, "callback_func", called)
    # what equinox calls after a check that did not raise, as on a TPU: it asks at the keyboard
    if getattr(function, "__qualname__", "").endswith("_error.<locals>.tpu_msg"):
        return [nan_like(aval) for aval in avals]
    try:
        return list(called(*values))
    except (OSError, MemoryError):  # of the machine, not of the place
        raise
    except Exception as error:
        raised.first = raised.first or described(error, place)
        return [nan_like(aval) for aval in avals]


def explained(remedy: str, called: Function, avals: Any, place: str, *values: Any) -> list[Any]:
    """What `called` returns; an error with the place of the call and the remedy if it raises."""
    del avals
    try:
        return list(called(*values))
    except Exception as error:
        text = described(error, place)
        raise RuntimeError(f"model raises where a chain would step: {text}. {remedy}") from error


def described(error: Exception, place: str) -> str:
    """The error by its kind, its first line and its place."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__.lstrip('_')}: {text.rstrip('.')}{place}"


def nan_like(aval: Any) -> np.ndarray:
    """NaN of this shape and type; where there is none, the largest number."""
    if jnp.issubdtype(aval.dtype, np.inexact):
        return np.full(aval.shape, np.nan, aval.dtype)
    return np.full(
        aval.shape, True if aval.dtype == bool else jnp.iinfo(aval.dtype).max, aval.dtype
    )


def line_of(equation: Any) -> str:
    """Where a program of the user's own made an equation; "" where that is not known."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    for frame in frames:  # the innermost first
        if os.path.isabs(frame.file_name) and not frame.file_name.startswith(NOT_USERS):
            name, function = os.path.basename(frame.file_name), frame.function_name.split(".")[-1]
            return f" ({name}, line {frame.line_num}, in {function})"
    return ""


def without_checks(function: Function) -> Function:
    """`function` of a position, NaN where a ``checkify.check`` fails that JAX lets a program have.

    It does where its option ``jax_experimental_unsafe_xla_runtime_errors`` is on.
    """
    if not getattr(jax.config, "jax_experimental_unsafe_xla_runtime_errors", False):
        return function

    def call(position: Any) -> Any:
        plain, program = traced(function, position)
        if "check" not in primitives_in(program):
            return plain(position)
        error, value = checkify.checkify(plain)(position)
        flags = [leaf for leaf in jax.tree.leaves(error) if leaf.dtype == bool]
        return jnp.where(jnp.stack(flags).any(), jnp.nan, value) if flags else value

    return call
