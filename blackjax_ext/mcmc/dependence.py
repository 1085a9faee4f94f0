"""Dependence of the outputs of a program on its inputs, read from its equations.

An outcome depends on an input if a chain of equations leads from the one to the other. Programs
within programs are followed by their own inputs, and what goes round a loop is followed until
nothing more is reached: a value may need as many turns as there are carried values to arrive. A
loop or a choice that is decided by an input depends on it in all that it computes.

The outcome may be the same for all values of the input, as after a product with zero. It is never
said not to depend where it does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from blackjax_ext.mcmc.derivatives import sizes_of_scan
from blackjax_ext.types import Function

__all__ = ["dependent", "flags_of"]

Flags = Sequence[bool]


def dependent(function: Function, z: Any) -> Any:
    """For each leaf of ``function(z)``, whether it is computed from `z`."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(z)
    flags = flags_of(closed.jaxpr, [True] * len(closed.jaxpr.invars))
    return jax.tree.unflatten(jax.tree.structure(shapes), flags)


def flags_of(jaxpr: Jaxpr, inputs: Flags) -> list[bool]:
    """Which outputs of a program are computed from the flagged inputs."""
    reached = {v for v, flag in zip(jaxpr.invars, inputs, strict=True) if flag}

    def is_reached(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in reached

    for equation in jaxpr.eqns:
        outputs = dependent_outputs(equation, [is_reached(atom) for atom in equation.invars])
        reached.update(v for v, flag in zip(equation.outvars, outputs, strict=True) if flag)
    return [is_reached(atom) for atom in jaxpr.outvars]


def dependent_outputs(equation: Any, inputs: Flags) -> Flags:
    """Which results of an equation are computed from the flagged ones of its inputs."""
    if not any(inputs):
        return [False] * len(equation.outvars)
    if rule := LOOPS_AND_CHOICES.get(equation.primitive.name):
        return rule(equation, inputs)
    programs = [program for program in map(program_of, equation.params.values()) if program]
    if len(programs) == 1 and is_call(programs[0], equation):
        return flags_of(programs[0], inputs)
    return [True] * len(equation.outvars)


def program_of(parameter: Any) -> Jaxpr | None:
    """The program that a parameter of an equation is, if it is one."""
    if isinstance(parameter, ClosedJaxpr):
        parameter = parameter.jaxpr
    return parameter if isinstance(parameter, Jaxpr) else None


def is_call(program: Jaxpr, equation: Any) -> bool:
    """Whether an equation may be a call of a program: its inputs and results are the program's."""

    def shapes(variables: Sequence[Any]) -> list[tuple[int, ...]]:
        return [variable.aval.shape for variable in variables]

    return shapes(program.invars) == shapes(equation.invars) and shapes(program.outvars) == shapes(
        equation.outvars
    )


def of_scan(equation: Any, inputs: Flags) -> Flags:
    """Dependence through a loop of known length: of the carry, then of what is stacked."""
    num_consts, num_carry = sizes_of_scan(equation)
    body = equation.params["jaxpr"].jaxpr
    consts, carry = inputs[:num_consts], inputs[num_consts:][:num_carry]
    xs = inputs[num_consts + num_carry :]

    def turn(carry: Flags) -> list[bool]:
        return flags_of(body, [*consts, *carry, *xs])

    carry = until_nothing_more(lambda carry: turn(carry)[:num_carry], carry)
    return [*carry, *turn(carry)[num_carry:]]


def of_while(equation: Any, inputs: Flags) -> Flags:
    """Dependence through a loop that goes on while a condition holds."""
    params = equation.params
    num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
    condition, body = inputs[:num_condition], inputs[num_condition:][:num_body]
    carry = until_nothing_more(
        lambda carry: flags_of(params["body_jaxpr"].jaxpr, [*body, *carry]),
        inputs[num_condition + num_body :],
    )
    is_decided = any(flags_of(params["cond_jaxpr"].jaxpr, [*condition, *carry]))
    return [is_decided or flag for flag in carry]


def of_cond(equation: Any, inputs: Flags) -> Flags:
    """Dependence through a choice between programs by a number."""
    decided, *operands = inputs
    cases = [flags_of(branch.jaxpr, operands) for branch in equation.params["branches"]]
    return [decided or any(flags) for flags in zip(*cases, strict=True)]


def until_nothing_more(turn: Callable[[Flags], Flags], carry: Flags) -> Flags:
    """Flags of carried values after as many turns as change them."""
    while True:
        new = [old or new_flag for old, new_flag in zip(carry, turn(carry), strict=True)]
        if new == list(carry):
            return new
        carry = new


LOOPS_AND_CHOICES = {"scan": of_scan, "while": of_while, "cond": of_cond}
