"""Programs, read: what they call, need and compute, and how many operations that takes.

What a start can afford is counted in the program of a density. A clock would make runs differ from
each other, and XLA counts nothing of what LAPACK does. An elementwise operation counts its numbers,
a product of matrices its multiplications, a factorization or a solve :math:`2 n^3`. A loop of
unknown length counts as ten turns, and what is computed
outside of JAX as 1e9 operations; of a choice between programs the least counts, which leaves out
what raises errors. It is right to a factor of a few, which is enough to tell a
density that may be evaluated a million times from one that may not.
"""

import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from blackjax_ext.types import Function

__all__ = [
    "Reader",
    "Value",
    "batch_of_factorizations",
    "evaluated",
    "is_factoring",
    "largest",
    "needed_equations",
    "operations",
    "outputs_of",
    "primitives",
    "program_of_call",
    "programs_in",
    "traced",
]

UNKNOWN_TURNS = 10  # too few rather than too many: a start that is cut short costs the run more
CALLBACK_OPERATIONS = 1e9
FACTORIZATIONS = frozenset(
    ["cholesky", "eig", "eigh", "geqrf", "hessenberg", "householder_product", "lu", "qr", "schur"]
    + ["svd", "triangular_solve", "tridiagonal", "tridiagonal_solve"]
)
# operations that jaxlib counts for a factorization or a solve, in cubes of its columns
CUBES = {"cholesky": 1, "lu": 1, "triangular_solve": 1, "geqrf": 4, "householder_product": 4}
CUBES |= {"qr": 4, "eigh": 5, "svd": 10}
MOST_CUBES = 25  # of the others
LOOP = "cond", "body"
CALLS = frozenset(["jit", "pjit", "closed_call", "core_call"])
# calls that reverse mode does again, which changes no number
INLINED = CALLS | {"remat", "remat2", "checkpoint"}
PROGRAMS = "jaxpr", "call_jaxpr", "fun_jaxpr"  # names that calls give to theirs
CALLBACKS = frozenset(["pure_callback", "io_callback", "ffi_call"])


def operations(program: Any) -> float:
    """About how many operations a program takes, a ``Jaxpr`` or a ``ClosedJaxpr``."""
    return float(sum(of_equation(equation) for equation in program.eqns))


def of_equation(equation: Any) -> float:
    """Operations of one equation."""
    name, parameters = equation.primitive.name, equation.params
    if name == "scan":
        return int(parameters["length"]) * operations(parameters["jaxpr"])
    if name == "while":
        return UNKNOWN_TURNS * sum(operations(parameters[f"{part}_jaxpr"]) for part in LOOP)
    inner = [operations(part) for part in programs_in(equation)]
    if name == "cond":
        return min(inner)
    if inner:
        return sum(inner)
    if name in CALLBACKS:
        return CALLBACK_OPERATIONS
    shapes = [variable_shape(variable) for variable in (*equation.invars, *equation.outvars)]
    size = max(map(math.prod, shapes), default=0)
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        size = math.prod(shapes[0][axis] for axis in contracted)
        return 2 * math.prod(shapes[-1]) * size
    if name == "conv_general_dilated":
        return 2 * math.prod(shapes[-1]) * math.prod(shapes[1])
    if name in FACTORIZATIONS:
        return 2 * size * max(shapes[0][-1:], default=1)
    return size


def largest(program: Any) -> int:
    """Bytes of the largest array that a program makes."""
    own = (bytes_of(variable) for equation in program.eqns for variable in equation.outvars)
    inner = (largest(part) for equation in program.eqns for part in programs_in(equation))
    return max([0, *own, *inner])


def is_factoring(program: Any) -> bool:
    """Whether a program factors or solves anything."""
    return not FACTORIZATIONS.isdisjoint(primitives(program))


def batch_of_factorizations(program: Any) -> float:
    """Operations of the largest batch of factorizations or solves; 0 if each is of one matrix.

    No fewer than jaxlib takes them to be.
    """

    def of_one(equation: Any) -> float:
        name, shape = equation.primitive.name, variable_shape(equation.invars[0])
        if name not in FACTORIZATIONS:
            return max([0.0, *map(batch_of_factorizations, programs_in(equation))])
        if math.prod(shape[:-2]) <= 1:
            return 0.0
        is_complex = equation.invars[0].aval.dtype.kind == "c"
        return of_equation(equation) / 2 * CUBES.get(name, MOST_CUBES) * (3 if is_complex else 1)

    return max((of_one(equation) for equation in program.eqns if equation.invars), default=0.0)


def primitives(program: Any) -> Iterator[str]:
    """Names of the primitives of a program and of those inside it."""
    for equation in program.eqns:
        yield equation.primitive.name
        for inner in programs_in(equation):
            yield from primitives(inner)


def programs_in(equation: Any) -> list[Any]:
    """Programs among the parameters of an equation."""
    leaves = jax.tree.leaves(equation.params, is_leaf=is_program)
    return [leaf for leaf in leaves if is_program(leaf)]


def is_program(parameter: Any) -> bool:
    """Whether a parameter of an equation is a program."""
    return isinstance(parameter, (ClosedJaxpr, Jaxpr))


def program_of_call(equation: Any, calls: Collection[str] = CALLS) -> ClosedJaxpr | None:
    """The program that an equation calls, if its primitive is among `calls`."""
    if equation.primitive.name not in calls:
        return None
    inner = next(value for name, value in equation.params.items() if name in PROGRAMS)
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def needed_equations(jaxpr: Any) -> list[Any]:
    """Equations on which the outputs depend: a model computes more, and checks its arguments."""
    wanted, equations = {v for v in jaxpr.outvars if not isinstance(v, Literal)}, []
    for equation in reversed(jaxpr.eqns):
        if wanted & set(equation.outvars):
            equations.append(equation)
            wanted |= {v for v in equation.invars if not isinstance(v, Literal)}
    return equations[::-1]


def outputs_of(equation: Any, *values: Any) -> list[Any]:
    """Outputs of an equation for these arguments."""
    primitive = equation.primitive
    given = primitive.get_bind_params(equation.params)
    # older versions of JAX give functions apart
    functions_of, params = given if isinstance(given, tuple) else ((), given)
    outputs = primitive.bind(*functions_of, *values, **params)
    return list(outputs) if primitive.multiple_results else [outputs]


def traced(
    function: Function, *arguments: Any, evaluate: Function | None = None
) -> tuple[Function, Any]:
    """`function` as its program, and that: it is traced once, however often it is used.

    `evaluate` is :func:`evaluated`, or another way to what a program returns.
    """
    evaluate = evaluate or evaluated
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    structure = jax.tree.structure(shapes)

    def as_program(*arguments: Any) -> Any:
        leaves = evaluate(program.jaxpr, program.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(structure, leaves)

    return as_program, program


def evaluated(program: Any, constants: list[Any], leaves: list[Any]) -> list[Any]:
    """What a program returns."""
    values: list[Any] = jax.core.eval_jaxpr(program, constants, *leaves)
    return values


def variable_shape(variable: Any) -> tuple[int, ...]:
    """Shape of a variable of a program."""
    return tuple(getattr(variable.aval, "shape", ()))


def bytes_of(variable: Any) -> int:
    """Bytes of a variable of a program."""
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 0)
    return math.prod(variable_shape(variable)) * itemsize


class Value(NamedTuple):
    """A value in a program, by its number; equal numbers that stand in it have one."""

    number: int
    shape: tuple[int, ...]
    dtype: Any


class Reader:
    """Values of a program in order, with the programs that it calls in their places.

    What is read of an operation, a subclass says by `done`. Values that are known, constants and
    numbers that stand in the program, are in `known`, by their number.
    """

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.literals: dict[Hashable, Value] = {}
        self.count = 0

    def done(self, equation: Any, inputs: tuple[Value, ...]) -> list[Value]:
        """Outputs of an equation."""
        raise NotImplementedError

    def new(self, variable: Any) -> Value:
        """A value that is not known."""
        self.count += 1
        aval = variable.aval
        return Value(self.count, tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None))

    def constant(self, variable: Any, value: Any) -> Value:
        """A value that is known."""
        new = self.new(variable)
        self.known[new.number] = value
        return new

    def literal(self, atom: Any) -> Value:
        """A number that stands in the program."""
        key = atom.aval.dtype, np.shape(atom.val), np.asarray(atom.val).tobytes()
        if key not in self.literals:
            self.literals[key] = self.constant(atom, atom.val)
        return self.literals[key]

    def follow(self, program: Any, inputs: Sequence[Value]) -> list[Value]:
        """Outputs of a program."""
        jaxpr = program.jaxpr
        pairs = zip(jaxpr.constvars, program.consts, strict=True)
        values = {variable: self.constant(variable, value) for variable, value in pairs}
        values |= dict(zip(jaxpr.invars, inputs, strict=True))

        def value(atom: Any) -> Value:
            return self.literal(atom) if isinstance(atom, Literal) else values[atom]

        for equation in needed_equations(jaxpr):
            arguments = tuple(map(value, equation.invars))
            inner = program_of_call(equation)
            if inner is not None:
                outputs = self.follow(inner, arguments)
            elif is_idle(equation):
                outputs = list(arguments)
            else:
                outputs = self.done(equation, arguments)
            values |= dict(zip(equation.outvars, outputs, strict=True))
        return list(map(value, jaxpr.outvars))


def is_idle(equation: Any) -> bool:
    """Whether an equation returns its only argument as it is, weak types aside."""
    if equation.primitive.name != "convert_element_type":
        return False
    return bool(equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype)
