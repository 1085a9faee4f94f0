r"""Programs of JAX, read equation by equation: one reader, and a rule for what it is to find.

Values of any kind take the places of numbers: flags of what depends on what, numbers with a bound
of their errors, intervals of derivatives, checksums. A rule says what an equation makes of them
(``blackjax_ext.primitives`` lists what primitives do), and :func:`read_program` does the rest:
where a value comes from, what a constant is, and that a program which is called is read in its
place. What a loop does or a choice between programs, a rule says, which reads theirs in turn.

How many operations a program takes is counted, too, by which a start knows what it can afford: a
clock would make runs differ from each other, and XLA counts nothing of what LAPACK does. An
elementwise operation counts its numbers, a product of matrices its multiplications, a factorization
or a solve :math:`2 n^3`. A loop of unknown length counts as ten turns, and what is computed outside
of JAX as 1e9 operations; of a choice between programs the least counts, which leaves out what
raises errors. It is right to a factor of a few, which is enough to tell a density that may be
evaluated a million times from one that may not.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from blackjax_ext.primitives import CALLBACKS, CALLS, FACTORIZATIONS
from blackjax_ext.types import Function

PROGRAMS = "jaxpr", "call_jaxpr", "fun_jaxpr", "call"  # names that calls give to theirs


def read_program(
    program: Any,
    inputs: Sequence[Any],
    rule: Callable[[Any, list[Any]], Any],
    known: Callable[[Any, Any], Any] = lambda _, number: number,
    *,
    calls: Collection[str] = CALLS,
    is_opened: Callable[[list[Any]], bool] = lambda _: True,
    is_kept: Callable[[Any], bool] = lambda _: False,
    reads_all: bool = False,
) -> list[Any]:
    """Values of the outputs of a program, by a rule for each of its equations.

    Parameters
    ----------
    program
        A ``ClosedJaxpr``.
    inputs
        Values of its arguments, of whatever kind.
    rule
        ``(equation, values)``: values of the outputs of an equation.
    known
        ``(variable, number)``: the value of a constant, or of a number that stands in the program,
        whose variable is a ``Literal``. The number by default.
    calls
        Primitives whose programs are read in their places.
    is_opened
        Whether that is so of a call with such values; of others the rule is asked.
    is_kept
        Whether the rule is asked of a call, whatever its values are.
    reads_all
        Whether equations on which no output depends are read too.
    """

    def read(program: Any, inputs: Sequence[Any]) -> list[Any]:
        jaxpr = program.jaxpr
        pairs = zip(jaxpr.constvars, program.consts, strict=True)
        values = {variable: known(variable, number) for variable, number in pairs}
        values |= dict(zip(jaxpr.invars, inputs, strict=True))

        def value(atom: Any) -> Any:
            return known(atom, atom.val) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns if reads_all else needed_equations(jaxpr):
            arguments = list(map(value, equation.invars))
            called = program_of_call(equation, calls)
            is_read = called is not None and is_opened(arguments) and not is_kept(equation)
            outputs = read(called, arguments) if is_read else rule(equation, arguments)
            values.update(zip(equation.outvars, outputs, strict=True))
        return list(map(value, jaxpr.outvars))

    return read(program, inputs)


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
    primitive, params = equation.primitive, equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:  # what held where the program was traced
        outputs = primitive.bind(*values, **params)
    return list(outputs) if primitive.multiple_results else [outputs]


def equations_in(program: Any) -> Iterator[Any]:
    """Equations of a program, a ``Jaxpr`` or a ``ClosedJaxpr``, and of those inside it."""
    for equation in program.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations_in(inner)


def primitives_in(program: Any) -> set[str]:
    """Names of the primitives of a program and of those inside it."""
    return {equation.primitive.name for equation in equations_in(program)}


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


def sizes_of_scan(equation: Any) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried.

    By their shapes, which every JAX has: what is carried has those of the body, and rows one axis
    more.
    """
    body = equation.params["jaxpr"].jaxpr

    def num_alike(outer: Any, inner: Any) -> int:
        pairs = zip(outer, inner, strict=True)
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)

    num_carry = num_alike(equation.outvars, body.outvars)
    return num_alike(equation.invars, body.invars) - num_carry, num_carry


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

    def new(self, variable: Any, constant: Any = None) -> Value:
        """A value, which is known if it is of a constant."""
        self.count += 1
        if constant is not None:
            self.known[self.count] = constant
        aval = variable.aval
        return Value(self.count, tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None))

    def constant(self, variable: Any, constant: Any) -> Value:
        """A value that is known; equal numbers that stand in the program are one."""
        if not isinstance(variable, Literal):
            return self.new(variable, constant)
        aval: Any = variable.aval
        key = aval.dtype, np.shape(constant), np.asarray(constant).tobytes()
        if key not in self.literals:
            self.literals[key] = self.new(variable, constant)
        return self.literals[key]

    def follow(self, program: Any, inputs: Sequence[Value]) -> list[Value]:
        """Outputs of a program."""

        def rule(equation: Any, arguments: list[Value]) -> list[Value]:
            return arguments if is_idle(equation) else self.done(equation, tuple(arguments))

        return read_program(program, inputs, rule, self.constant)


def is_idle(equation: Any) -> bool:
    """Whether an equation returns its only argument as it is, weak types aside."""
    if equation.primitive.name != "convert_element_type":
        return False
    return bool(equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype)


UNKNOWN_TURNS = 10  # too few rather than too many: a start that is cut short costs the run more
CALLBACK_OPERATIONS = 1e9
# operations that jaxlib counts for a factorization or a solve, in cubes of its columns
CUBES = {"cholesky": 1, "lu": 1, "triangular_solve": 1, "geqrf": 4, "householder_product": 4}
CUBES |= {"qr": 4, "eigh": 5, "svd": 10}
LOOP = "cond", "body"


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
    outputs = (output for equation in equations_in(program) for output in equation.outvars)
    return max(map(bytes_of, outputs), default=0)


def is_factoring(program: Any) -> bool:
    """Whether a program factors or solves anything."""
    return not FACTORIZATIONS.isdisjoint(primitives_in(program))


def batch_of_factorizations(program: Any) -> float:
    """Operations of the largest batch of factorizations or solves; 0 if each is of one matrix.

    No fewer than jaxlib takes them to be.
    """

    def of_one(equation: Any) -> float:
        name, matrices = equation.primitive.name, equation.invars[0].aval
        if math.prod(matrices.shape[:-2]) <= 1:
            return 0.0
        is_complex = matrices.dtype.kind == "c"
        # of the others 25 cubes
        return of_equation(equation) / 2 * CUBES.get(name, 25) * (3 if is_complex else 1)

    equations = equations_in(program)
    return max((of_one(e) for e in equations if e.primitive.name in FACTORIZATIONS), default=0.0)


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
