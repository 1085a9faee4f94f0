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
from jax.extend.core import ClosedJaxpr

from blackjax_ext.equations import read_program, sizes_of_scan
from blackjax_ext.primitives import INLINED, RULED
from blackjax_ext.types import Function

Flags = Sequence[bool]


def dependent(function: Function, z: Any) -> Any:
    """For each leaf of ``function(z)``, whether it is computed from `z`."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(z)
    flags = flags_of(closed, [True] * len(closed.jaxpr.invars))
    return jax.tree.unflatten(jax.tree.structure(shapes), flags)


def flags_of(program: ClosedJaxpr, inputs: Flags) -> list[bool]:
    """Which outputs of a program are computed from the flagged inputs."""
    return read_program(
        program, inputs, dependent_outputs, lambda *_: False, calls=INLINED | RULED, is_opened=any
    )


def dependent_outputs(equation: Any, inputs: Flags) -> Flags:
    """Which results of an equation are computed from the flagged ones of its inputs."""
    rule = LOOPS_AND_CHOICES.get(equation.primitive.name)
    if rule is None or not any(inputs):
        return [any(inputs)] * len(equation.outvars)
    return rule(equation, inputs)


def of_scan(equation: Any, inputs: Flags) -> Flags:
    """Dependence through a loop of known length: of the carry, then of what is stacked."""
    num_consts, num_carry = sizes_of_scan(equation)
    body = equation.params["jaxpr"]
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
        lambda carry: flags_of(params["body_jaxpr"], [*body, *carry]),
        inputs[num_condition + num_body :],
    )
    is_decided = any(flags_of(params["cond_jaxpr"], [*condition, *carry]))
    return [is_decided or flag for flag in carry]


def of_cond(equation: Any, inputs: Flags) -> Flags:
    """Dependence through a choice between programs by a number."""
    decided, *operands = inputs
    cases = [flags_of(branch, operands) for branch in equation.params["branches"]]
    return [decided or any(flags) for flags in zip(*cases, strict=True)]


def until_nothing_more(turn: Callable[[Flags], Flags], carry: Flags) -> Flags:
    """Flags of carried values after as many turns as change them."""
    while True:
        new = [old or new_flag for old, new_flag in zip(carry, turn(carry), strict=True)]
        if new == list(carry):
            return new
        carry = new


LOOPS_AND_CHOICES = {"scan": of_scan, "while": of_while, "cond": of_cond}
