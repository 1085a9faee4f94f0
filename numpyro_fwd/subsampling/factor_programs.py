r"""How ``numpyro.factor`` is read: the program of its log density, parted into lines and a rest.

What a factor computes of one row is a program of the latents and of data. Each of its values is
known (no latent enters), affine in the latents, or neither. Affine values that the rest takes in
are the predictors; the rest, a function of these scalars and of what is known, is a smooth density
like any other (:mod:`numpyro_fwd.subsampling.smooth_likelihoods`).

*As few predictors as there are.* An affine value that is made of another predictor and of what is
known, as :math:`y \eta` is beside :math:`\eta`, is computed in the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from blackjax_ext.equations import outputs_of, read_program
from blackjax_ext.primitives import INLINED, LINEAR_IN_FIRST, PRODUCTS, SIGNED, STRUCTURAL
from blackjax_ext.subsampling.families.densities import MOST, check_readable, smooth_kind
from blackjax_ext.subsampling.families.kind import Kind

MOST_KNOWN = 64  # numbers that a row's factor takes beside its predictors
KNOWN, AFFINE, OTHER = 0, 1, 2
KEEPS_AFFINE = STRUCTURAL | SIGNED | {"add_any", "reduce_sum"}
ONE_BY_ONE = STRUCTURAL | SIGNED | {"div", "mul"}


class Line(NamedTuple):
    """One equation of a program without calls: values are numbered, constants are as they are."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]

    def numbered(self) -> list[int]:
        """Numbers of the inputs that are no constants."""
        return [each for each in self.inputs if type(each) is int]


class Constant(NamedTuple):
    """A constant that a program has written into it."""

    value: Any


def lines_of(
    closed: ClosedJaxpr, inputs: Sequence[int], numbers: Iterator[int]
) -> tuple[list[Line], list[Any]]:
    """The equations of a program, those of what it calls among them, and its outputs."""
    lines: list[Line] = []

    def rule(equation, arguments):
        outputs = tuple(next(numbers) for _ in equation.outvars)
        lines.append(Line(equation, tuple(arguments), outputs))
        return outputs

    outputs = read_program(closed, inputs, rule, lambda _, value: Constant(value), calls=INLINED)
    return lines, outputs


def dependence_of(line: Line, kinds: dict[int, int]) -> int:
    """Whether what a line computes is known, affine in the latents, or neither."""
    inputs = [kinds[each] if type(each) is int else KNOWN for each in line.inputs]
    name = line.equation.primitive.name
    if OTHER in inputs or AFFINE not in inputs:
        return max(inputs, default=KNOWN)
    is_linear = name in KEEPS_AFFINE
    if name == "convert_element_type":
        is_linear = jnp.issubdtype(line.equation.params["new_dtype"], jnp.floating)
    is_linear |= name in PRODUCTS and inputs.count(AFFINE) == 1
    is_linear |= name in LINEAR_IN_FIRST and AFFINE not in inputs[1:]
    is_linear |= name == "select_n" and inputs[0] == KNOWN
    return AFFINE if is_linear else OTHER


class FactorProgram:
    """What a factor computes of its predictors and of what is known. Equal by its text.

    Attributes
    ----------
    predictors, known
        Names of its scalar arguments.
    """

    def __init__(self, closed: ClosedJaxpr, num_predictors: int):
        self.closed = closed
        num = len(closed.jaxpr.invars) - num_predictors
        self.predictors = tuple(f"predictor_{i}" for i in range(num_predictors))
        self.known = tuple(f"known_{i}" for i in range(num))
        consts = tuple((np.asarray(each).tobytes(), str(each.dtype)) for each in closed.consts)
        self.text = (str(closed.jaxpr), consts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactorProgram) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __call__(self, y: Array, **values: Array) -> Array:
        """Log density of a row, of which there is no response."""
        del y
        arguments = [values[name] for name in (*self.predictors, *self.known)]
        like = self.closed.in_avals
        arguments = [jnp.asarray(a, x.dtype) for a, x in zip(arguments, like, strict=True)]
        return jaxpr_as_fun(self.closed)(*arguments)[0]

    def kind(self) -> Kind:
        """Its kind; UnreadableError for an operation of which no bounds are known."""
        kind = smooth_kind("factor", self.predictors, self).having(*self.predictors)
        check_readable(kind, self.known)
        return kind


def parted(
    function: Callable[[Any, Any], Array], z: Any, given: Any
) -> tuple[FactorProgram, list[Array], list[Array]]:
    """``function(z, given)``, one number, as a program, and its predictors and known arguments.

    Raises
    ------
    ValueError
        For a factor that depends on too many predictors, or on too much else.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(z, given)
    if prod(shape.shape) != 1:
        raise ValueError(f"it has {prod(shape.shape)} values for each row, and one can be read")
    numbers = count()
    shapes: dict[Any, Any] = {next(numbers): aval for aval in closed.in_avals}
    num_latents = len(jax.tree.leaves(z))
    kinds = {each: AFFINE if each < num_latents else KNOWN for each in shapes}
    lines, (outcome,) = lines_of(closed, list(shapes), numbers)
    if isinstance(outcome, Constant):
        raise ValueError(f"it is a constant, and depends on none of the one to {MOST} predictors")
    for line in lines:
        kinds |= dict.fromkeys(line.outputs, dependence_of(line, kinds))
        shapes |= dict(zip(line.outputs, (v.aval for v in line.equation.outvars), strict=True))
    rest = needed([line for line in lines if kinds[line.outputs[0]] == OTHER], [outcome])
    inputs = {each for line in rest for each in line.numbered()} | {outcome}
    roots = {affine_source(each, lines, kinds) for each in inputs if kinds[each] == AFFINE}
    cut = fewest(roots, lines, kinds)
    inner = {each for line in rest for each in line.outputs} | made_of(cut, lines, kinds)
    rest = [line for line in lines if inner.intersection(line.outputs)]
    rest = needed(rest, [outcome], stop=cut)
    inputs = {each for line in rest for each in line.numbered()} | {outcome}
    outside = inputs - {each for line in rest for each in line.outputs}
    predictors = sorted(each for each in outside if kinds[each] == AFFINE)
    known = sorted(each for each in outside if kinds[each] == KNOWN)
    sizes = [sum(prod(shapes[each].shape) for each in group) for group in (predictors, known)]
    if not 1 <= sizes[0] <= MOST:
        raise ValueError(f"it depends on {sizes[0]} predictors, and one to {MOST} can be read")
    if sizes[1] > MOST_KNOWN:
        raise ValueError(f"it takes {sizes[1]} numbers beside its predictors")

    def density(*scalars):
        values, given = {}, iter(scalars)
        for each in (*predictors, *known):
            parts = [next(given) for _ in range(prod(shapes[each].shape))]
            flat = jnp.stack(parts) if parts else jnp.zeros(0)
            values[each] = flat.reshape(shapes[each].shape).astype(shapes[each].dtype)
        return values_of_lines(rest, values)[outcome].reshape(())

    dtype = jnp.result_type(float)
    scalars = [jax.ShapeDtypeStruct((), dtype)] * sum(sizes)
    program = FactorProgram(jax.make_jaxpr(density)(*scalars), sizes[0])
    arguments = jax.tree.leaves((z, given))
    head = needed(lines, [*predictors, *known])
    values = values_of_lines(head, dict(enumerate(arguments)))
    return program, entries(values, predictors, dtype), entries(values, known, dtype)


def entries(values: dict[int, Any], numbers: Sequence[int], dtype: Any) -> list[Array]:
    """All entries of some values, one by one."""
    flat = [jnp.ravel(jnp.asarray(values[each], dtype)) for each in numbers]
    return [part for each in flat for part in each]


def needed(lines: Sequence[Line], outcomes: Sequence[int], stop: Any = ()) -> list[Line]:
    """The lines that lead to some outcomes, without those that lead to where to `stop`."""
    wanted, found = set(outcomes), []
    for line in reversed(lines):
        if wanted.intersection(line.outputs) and not set(stop).intersection(line.outputs):
            found.append(line)
            wanted.update(line.numbered())
    return found[::-1]


def values_of_lines(lines: Sequence[Line], values: dict[int, Any]) -> dict[int, Any]:
    """Values with those that lines compute."""
    for line in lines:
        inputs = [values[each] if type(each) is int else each.value for each in line.inputs]
        values = values | dict(zip(line.outputs, outputs_of(line.equation, *inputs), strict=True))
    return values


def affine_source(each: int, lines: Sequence[Line], kinds: dict[int, int]) -> int:
    """The affine value of which another is made entry by entry, as far back as there is one."""
    by_output = {output: line for line in lines for output in line.outputs}
    while (line := by_output.get(each)) is not None:
        affine = {other for other in line.numbered() if kinds[other] == AFFINE}
        if line.equation.primitive.name not in ONE_BY_ONE or len(affine) != 1:
            break
        (before,) = affine
        place = line.inputs.index(before)
        sizes = (line.equation.invars[place].aval.size, line.equation.outvars[0].aval.size)
        if sizes[0] != sizes[1]:
            break
        each = before
    return each


def fewest(cut: set[int], lines: Sequence[Line], kinds: dict[int, int]) -> set[int]:
    """The affine values of a cut of which all others in it are made."""
    for each in sorted(cut, reverse=True):
        if each in made_of(cut - {each}, lines, kinds):
            cut = cut - {each}
    return cut


def made_of(cut: set[int], lines: Sequence[Line], kinds: dict[int, int]) -> set[int]:
    """The affine values that are computed entry by entry from those of a cut and what is known."""
    found = set(cut)
    for line in lines:
        affine = [each for each in line.numbered() if kinds[each] == AFFINE]
        is_one_by_one = line.equation.primitive.name in ONE_BY_ONE
        if affine and is_one_by_one and kinds[line.outputs[0]] == AFFINE and found >= set(affine):
            found |= set(line.outputs)
    return found
