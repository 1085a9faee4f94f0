"""How many operations programs take, and functions as their programs.

What a start can afford is counted in the program of a density. A clock would make runs differ from
each other, and XLA counts nothing of what LAPACK does. An elementwise operation counts its numbers,
a product of matrices its multiplications, a factorization or a solve :math:`2 n^3`. A loop of
unknown length counts as ten turns, and what is computed
outside of JAX as 1e9 operations; of a choice between programs the least counts, which leaves out
what raises errors. It is right to a factor of a few, which is enough to tell a
density that may be evaluated a million times from one that may not.
"""

import math
from typing import Any

import jax

from blackjax_ext.equations import equations_in, primitives_in, programs_in
from blackjax_ext.primitives import CALLBACKS, FACTORIZATIONS
from blackjax_ext.types import Function

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
