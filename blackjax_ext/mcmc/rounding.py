r"""Bounds of the rounding errors of a function's outputs, read from its own program.

For a function f of stored numbers :math:`x_j`, of which the last digit is uncertain, `loss` is a
bound, to first order in the spacing :math:`\epsilon` of floats, on the error of each output,

.. math:: |\delta f_i| \le \epsilon \sum_j |\partial_j f_i| |x_j| + \text{what f itself rounds}.

It is a running error analysis: along the program of f every value v carries such a bound,

.. math:: e(v) = \sum_k \Big|\frac{\partial v}{\partial v_k}\Big| e(v_k) + \epsilon |v|,

over the arguments :math:`v_k` of the operation that made it, without the last term if that only
moves numbers around. All terms are sizes, so nothing cancels, whatever the signs and the order of
the coordinates are: :math:`x - m` has lost :math:`\epsilon (|x| + |m| + |x - m|)`.

Most operations have one slope for each output and argument, or only slopes that are not negative,
and :math:`|\partial v / \partial v_k| e(v_k)` is one JVP. Sums of products take the sizes of the
other factor; linear equations and the Cholesky factor C of A those of the inverse,

.. math::
    e(A^{-1} b) \le |A^{-1}| \big(e(b) + e(A) |A^{-1} b|\big), \qquad
    e(C) \le |C| \, \Phi\big(|C^{-1}| (e(A) + d \epsilon |C| |C|^T) |C^{-T}|\big),

where :math:`\Phi` takes the lower triangle and half of the diagonal. What else mixes its
arguments, such as a Fourier transform or a loop, is read by its Jacobian, or if that is large as if
its slopes had one sign.

Cost: about three times the operations of f. Data have no error.

References: N. J. Higham 2002, Accuracy and Stability of Numerical Algorithms (running error
analysis, section 3.3; triangular systems, 8.2; Cholesky, 10.3).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr

from blackjax_ext import primitives
from blackjax_ext.equations import outputs_of, read_program, sizes_of_scan
from blackjax_ext.primitives import INLINED, MOVING, RULED
from blackjax_ext.types import Function

__all__ = ["loss"]

# what does not round, besides what moves numbers
EXACT = primitives.EXTREMES | {"abs", "clamp", "neg", "optimization_barrier", "sort"}
# what mixes its arguments with slopes of both signs
MIXES = primitives.DECIDED | primitives.FACTORIZATIONS | primitives.TRANSFORMS
MIXES |= {"cumprod", "reduce_prod", "scatter_mul"}
MAX_JACOBIAN = 4096  # numbers of which what mixes them is read by its Jacobian

Errors = list[Any]  # an array for each value; None of what is exact


def loss(function: Function, x: Array) -> tuple[Array, Array]:
    """A function at `x`, (D,), and a bound on the error of each output."""
    closed = jax.make_jaxpr(function)(x)
    (value,), (error,) = program_errors(closed, [x], [last_digit(x)])
    return value, jnp.zeros_like(value) if error is None else error


def program_errors(
    closed: ClosedJaxpr, values: Sequence[Any], errors: Errors
) -> tuple[list[Any], Errors]:
    """Outputs of a program and their errors."""

    def rule(equation: Any, arguments: list[Any]) -> Any:
        return zip(*equation_errors(equation, *values_and_errors(arguments)), strict=True)

    outputs = read_program(
        closed,
        list(zip(values, errors, strict=True)),
        rule,
        lambda _, number: (number, None),
        calls=INLINED | RULED,
        is_opened=lambda pairs: not is_exact(values_and_errors(pairs)[1]),
    )
    return values_and_errors(outputs)


def values_and_errors(pairs: list[Any]) -> tuple[list[Any], Errors]:
    """Values and their errors."""
    return [value for value, _ in pairs], [error for _, error in pairs]


def is_exact(errors: Errors) -> bool:
    """Whether no value has an error."""
    return all(error is None for error in errors)


def equation_errors(equation: Any, values: list[Any], errors: Errors) -> tuple[list[Any], Errors]:
    """Outputs of one equation and their errors."""
    name = equation.primitive.name
    if is_exact(errors):
        outputs = outputs_of(equation, *values)
        return outputs, [None] * len(outputs)
    if name == "scan":
        return scanned(equation, values, errors)
    outputs = outputs_of(equation, *values)
    if name in MOVING:
        return outputs, outputs_of(equation, *among(values, errors))
    rule = ROUNDING_RULES.get(name, by_jacobian if name in MIXES else by_slopes)
    missed = rule(equation, values, errors, outputs)
    if name not in EXACT and not is_conversion(equation):
        rows = zip(outputs, missed, strict=True)
        missed = [None if e is None else e + last_digit(v) for v, e in rows]
    return outputs, missed


def is_float(value: Any) -> bool:
    """Whether a value is rounded at all."""
    return jnp.issubdtype(jnp.result_type(value), jnp.floating)


def last_digit(value: Array) -> Array:
    """Largest change of a value by its rounding."""
    return jnp.finfo(value.dtype).eps * jnp.abs(value)


def is_conversion(equation: Any) -> bool:
    """Whether an equation changes the type of numbers, and to one that holds all of them."""
    if equation.primitive.name != "convert_element_type":
        return False
    new = equation.params["new_dtype"]
    return bool(jnp.promote_types(equation.invars[0].aval.dtype, new) == new)


def of_rounded(values: Sequence[Any], errors: Errors) -> Errors:
    """Errors of what is rounded, zero where they are none; None of all else."""
    rows = zip(values, errors, strict=True)
    return [None if not is_float(v) else jnp.zeros_like(v) if e is None else e for v, e in rows]


def among(values: Sequence[Any], errors: Errors) -> list[Any]:
    """Errors in the places of what is rounded, with all else as it is: indices, choices."""
    rows = zip(values, of_rounded(values, errors), strict=True)
    return [v if e is None else e for v, e in rows]


def by_slopes(equation: Any, values: list[Any], errors: Errors, outputs: list[Any]) -> Errors:
    """Errors along each argument, by a JVP."""
    total: Errors = [jnp.zeros_like(v) if is_float(v) else None for v in outputs]
    for k, error in enumerate(errors):
        if error is not None:

            def of_argument(value: Array, k: int = k) -> list[Any]:
                return outputs_of(equation, *values[:k], value, *values[k + 1 :])

            _, slopes = jax.jvp(of_argument, (values[k],), (error,))
            total = [
                None if e is None else e + jnp.abs(slope)
                for e, slope in zip(total, slopes, strict=True)
            ]
    return total


def by_jacobian(equation: Any, values: list[Any], errors: Errors, outputs: list[Any]) -> Errors:
    """Errors by the sizes of all slopes."""
    places = [k for k, error in enumerate(errors) if error is not None]
    if sum(np.size(errors[k]) for k in places) > MAX_JACOBIAN:
        return by_slopes(equation, values, errors, outputs)
    rounded = [i for i, v in enumerate(outputs) if is_float(v)]

    def of_arguments(*arguments: Array) -> list[Array]:
        changed = list(values)
        for k, argument in zip(places, arguments, strict=True):
            changed[k] = argument
        outputs = outputs_of(equation, *changed)
        return [outputs[i] for i in rounded]

    slopes = jax.jacfwd(of_arguments, tuple(range(len(places))))(*(values[k] for k in places))
    total: Errors = [None] * len(outputs)
    for i, row in zip(rounded, slopes, strict=True):
        total[i] = sum(
            jnp.tensordot(jnp.abs(part), errors[k], np.ndim(errors[k]))
            for k, part in zip(places, row, strict=True)
        )
    return total


def of_products(equation: Any, values: list[Any], errors: Errors, outputs: list[Any]) -> Errors:
    """Errors of sums of products."""
    del outputs
    a, b = map(jnp.abs, values)
    e_a, e_b = of_rounded(values, errors)
    return [outputs_of(equation, e_a, b)[0] + outputs_of(equation, a, e_b)[0]]


def of_triangles(equation: Any, values: list[Any], errors: Errors, outputs: list[Any]) -> Errors:
    """Errors of the solution of linear equations with a triangular matrix, on either side."""
    (a, b), (e_a, e_b), x = values, of_rounded(values, errors), jnp.abs(outputs[0])
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    inverse = jnp.abs(outputs_of(equation, a, eye)[0])
    params = equation.params
    keep = jnp.tril if params["lower"] else jnp.triu
    e_a = keep(e_a, (-1 if params["lower"] else 1) if params["unit_diagonal"] else 0)
    e_a = e_a.mT if params["transpose_a"] else e_a
    del b
    return [inverse @ (e_b + e_a @ x)] if params["left_side"] else [(e_b + x @ e_a) @ inverse]


def of_cholesky(equation: Any, values: list[Any], errors: Errors, outputs: list[Any]) -> Errors:
    """Errors of the lower triangular factor."""
    del equation, values
    factor = jnp.tril(outputs[0])
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = jnp.abs(jax.scipy.linalg.solve_triangular(factor, eye, lower=True))
    size = jnp.abs(factor)
    of_matrix = errors[0] + factor.shape[-1] * jnp.finfo(factor.dtype).eps * size @ size.mT
    inner = jnp.tril(inverse @ of_matrix @ inverse.mT)
    return [size @ (inner - 0.5 * inner * eye)]


def scanned(equation: Any, values: list[Any], errors: Errors) -> tuple[list[Any], Errors]:
    """A loop over rows, whose carry has errors of its own."""
    params = equation.params
    num_consts, num_carry = sizes_of_scan(equation)
    errors = of_rounded(values, errors)
    last = num_consts + num_carry
    consts = values[:num_consts], errors[:num_consts]

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        arguments = [[*c, *now, *r] for c, now, r in zip(consts, carry, row, strict=True)]
        outputs, missed = program_errors(params["jaxpr"], *arguments)
        missed = of_rounded(outputs, missed)
        return (outputs[:num_carry], missed[:num_carry]), (outputs[num_carry:], missed[num_carry:])

    carry, rows = jax.lax.scan(
        body,
        (values[num_consts:last], errors[num_consts:last]),
        (values[last:], errors[last:]),
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*carry[0], *rows[0]], [*carry[1], *rows[1]]


ROUNDING_RULES = {
    "cholesky": of_cholesky,
    "dot_general": of_products,
    "triangular_solve": of_triangles,
}
