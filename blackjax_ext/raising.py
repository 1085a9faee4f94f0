"""Programs whose calls back into Python may raise: where one does, a point has no density.

A solver that runs out of steps (``diffrax`` with ``throw=True``, by ``equinox.error_if``) and a
simulator behind ``jax.pure_callback`` raise on the host, and the whole program with them. A search
for a start and a chain may leap to places where the mass is not: their programs get NaN instead.
"""

import os
import sysconfig
import warnings
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blackjax_ext.equations import equations_in, evaluated, is_program, primitives_in, traced
from blackjax_ext.factoring import moving_leaves, replaced
from blackjax_ext.types import Function

CALLS = frozenset(["pure_callback", "io_callback"])
OWN = os.path.dirname(os.path.abspath(__file__))
PATHS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
NOT_USERS = OWN, os.path.join(os.path.dirname(OWN), "numpyro_fwd"), *PATHS


@dataclass
class Raised:
    """What programs raised: whether they call Python, and the first error, with its line."""

    is_possible: bool = False
    first: str = ""

    def note(self, error: str) -> None:
        """Keep the first."""
        self.first = self.first or error


def forgiving(function: Function, raised: Raised) -> Function:
    """`function` of arrays, with NaN for what a call into Python returns that raises.

    What it calls is known where it is traced: nothing differentiates or vectorizes it further.
    """

    def evaluate(program: Any, constants: list[Any], leaves: list[Any]) -> list[Any]:
        program = opened(program)
        raised.is_possible |= not CALLS.isdisjoint(primitives_in(program))
        answer = partial(nan_where_raised, raised.note)
        return evaluated(answered(program, answer), constants, leaves)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        # a model may need the values of arrays that are known
        moves = [moves or not any(is_traced) for moves in is_traced]

        def of(moving: list[Any]) -> Any:
            return function(*jax.tree.unflatten(structure, replaced(leaves, moves, moving)))

        moving = moving_leaves(leaves, moves)
        return traced(of, moving, evaluate=evaluate)[0](moving)

    return call


def warning_after(condition: Any, function: Function, remedy: str) -> Function:
    """`function` of arrays as `forgiving`; once a condition no longer holds, it warns, too."""
    told = set[str]()

    def warn(error: str) -> None:
        if error not in told:
            told.add(error)
            warnings.warn(
                f"model raises where a chain would step: {error}. Such points are rejected, as if "
                "they had no density: draws are wrong if what raises is a mistake in the model. "
                f"{remedy}",
                stacklevel=2,
            )

    def evaluate(program: Any, *operands: list[Any]) -> list[Any]:
        answers = (partial(nan_where_raised, note) for note in (Raised().note, warn))
        programs = (partial(evaluated, answered(opened(program), answer)) for answer in answers)
        values: list[Any] = jax.lax.cond(condition, *programs, *operands)
        return values

    return lambda *args: traced(function, *args, evaluate=evaluate)[0](*args)


def opened(program: Any) -> Any:
    """A program with what primitives of other packages do in their places, if they call Python.

    As those of lineax, whose solvers check what they return where no reader of equations sees it.
    """
    if not any(map(is_foreign, equations_in(program))):
        return program
    if hasattr(program, "jaxpr"):
        return program.replace(jaxpr=opened(program.jaxpr))

    def shown(equation: Any) -> Any:
        if not is_foreign(equation):
            inside = lambda each: opened(each) if is_program(each) else each  # noqa: E731
            return equation.replace(
                params=jax.tree.map(inside, equation.params, is_leaf=is_program)
            )
        does = jax.jit(partial(equation.primitive.impl, **equation.params))
        try:
            (call,) = jax.make_jaxpr(does)(*map(like_of, equation.invars)).eqns
        except Exception:  # it is lowered in another way, and whatever it does is not to be seen
            return equation
        params = call.params | {"jaxpr": opened(call.params["jaxpr"])}
        if CALLS.isdisjoint(primitives_in(params["jaxpr"])):
            return equation
        return equation.replace(primitive=call.primitive, params=params, effects=call.effects)

    return program.replace(eqns=list(map(shown, program.eqns)))


def answered(program: Any, answer: Function, place: str = "") -> Any:
    """A ``Jaxpr`` or ``ClosedJaxpr``, made at a `place`, whose calls into Python `answer` makes."""
    if CALLS.isdisjoint(primitives_in(program)):
        return program
    if hasattr(program, "jaxpr"):
        return program.replace(jaxpr=answered(program.jaxpr, answer, place))

    def with_answer(equation: Any) -> Any:
        at = line_of(equation) or place

        def inside(parameter: Any) -> Any:
            return answered(parameter, answer, at) if is_program(parameter) else parameter

        params = jax.tree.map(inside, equation.params, is_leaf=is_program)
        if equation.primitive.name in CALLS:
            params["callback"] = partial(answer, params["callback"], params["result_avals"], at)
        return equation.replace(params=params)

    return program.replace(eqns=[with_answer(equation) for equation in program.eqns])


def is_foreign(equation: Any) -> bool:
    """Whether its primitive is of another package than JAX, which evaluates it by a function."""
    does = equation.primitive.impl
    return not getattr(does, "func", does).__module__.startswith("jax.")


def like_of(atom: Any) -> Any:
    """The shape and the type of a value in a program."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def nan_where_raised(note: Function, called: Any, avals: Any, place: str, *values: Any) -> Any:
    """What `called` returns; NaN where it raises, of which `note` is told."""
    name = getattr(getattr(called, "callback_func", called), "__qualname__", "")
    try:
        # equinox asks at the keyboard after a check that did not raise, as on a TPU
        if not name.endswith("_error.<locals>.tpu_msg"):
            return called(*values)
    except (OSError, MemoryError):  # of the machine, not of the place
        raise
    except Exception as error:
        note(described(error, place))
    return [nan_like(aval) for aval in avals]


def described(error: Exception, place: str) -> str:
    """The error by its kind, its first line and its place."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__.lstrip('_')}: {text}{place}"


def nan_like(aval: Any) -> np.ndarray:
    """NaN of this shape and type; where there is none, the largest number."""
    if jnp.issubdtype(aval.dtype, np.inexact):
        return np.full(aval.shape, np.nan, aval.dtype)
    return np.full(aval.shape, aval.dtype == bool or jnp.iinfo(aval.dtype).max, aval.dtype)


def line_of(equation: Any) -> str:
    """Where a program of the user's own made an equation; "" where that is not known."""
    for frame in getattr(equation.source_info.traceback, "frames", ()):  # the innermost first
        if os.path.isabs(frame.file_name) and not frame.file_name.startswith(NOT_USERS):
            name, function = os.path.basename(frame.file_name), frame.function_name.split(".")[-1]
            return f" ({name}, line {frame.line_num}, in {function})"
    return ""
