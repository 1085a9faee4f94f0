"""Programs of many small operations that are alike, as few of arrays that hold them all.

A model whose sites are made in a loop of Python, ``sample(f"effect_{j}", ...)``, has a program in
which each law stands once for each site: a hundred sites are thousands of equations, in each of the
programs that evaluate the density, and compile for minutes. Here operations of a program that are
alike, of the same primitive on small arrays of the same shapes and that wait for equally many
others, are done by one operation on their stacked arguments, as ``jax.vmap`` does it; the sum of
many terms is one sum of their stack. Numbers are the same up to the order of sums. Arguments that
come from one stack, in whatever order, are taken from it, so that a stack is made where values of
different origin meet and nowhere else.

A program that would not become less than half as long is left as it is.
"""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr

from blackjax_ext.equations import (
    Reader,
    Value,
    evaluated,
    needed_equations,
    outputs_of,
    program_of_call,
    programs_in,
    traced,
)
from blackjax_ext.primitives import ADDITIONS, CALLBACKS, FACTORIZATIONS, RANDOM
from blackjax_ext.types import Function

LEAST_VALUES = 250  # of a program in which there is something to gain
LEAST_TERMS = 4  # of a sum that is taken at once
KNOWN = -1  # in place of the number of a stack
ROWS = {"concatenate": "joined rows", "stack": "stacked rows"}  # along the first axis


class Operation(NamedTuple):
    """An operation of a program.

    name
        Of its primitive.
    kind
        What operations that are alike have in common; None for one that stays by itself.
    apply
        Outputs of its arguments.
    first
        Where a part of an array begins, on its first axes.
    """

    name: str
    kind: Hashable | None
    apply: Callable[..., Sequence[Any]]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    first: tuple[int, ...] = ()


class Flat(NamedTuple):
    """A program without calls: its operations, outputs, and the values that are known."""

    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Value]
    known: dict[int, Any]


def stacked(function: Function) -> Function:
    """`function` of trees of arrays, with those of its operations together that are alike."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        # of a new object: JAX would remember what the function read when it was traced before
        as_program, _ = traced(partial(function), *arguments, evaluate=together)
        return as_program(*arguments)

    return call


def together(jaxpr: Any, constants: list[Any], leaves: list[Any]) -> list[Any]:
    """What a program returns, by operations on stacks where they are a gain."""
    program = ClosedJaxpr(jaxpr, constants)
    num_values = length(program)
    if not jaxpr.effects and num_values >= LEAST_VALUES:
        flat = Flattening().of(program)
        batches = batches_of(flat.operations)
        if 2 * len(batches) <= num_values:
            with contextlib.suppress(NotImplementedError):  # of an operation without batches
                return Evaluation(flat, leaves).of(batches)
    return evaluated(jaxpr, constants, leaves)


def length(program: Any) -> int:
    """Values that a program computes for its outputs, with those of what it calls."""
    equations = needed_equations(program.jaxpr)
    inner = map(program_of_call, equations)
    return sum(
        len(equation.outvars) if called is None else length(called)
        for equation, called in zip(equations, inner, strict=True)
    )


class Flattening(Reader):
    """Values and operations of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.outputs: dict[Hashable, list[Value]] = {}

    def of(self, program: Any) -> Flat:
        """A program, flat."""
        inputs = [self.new(variable) for variable in program.jaxpr.invars]
        outputs = self.follow(program, inputs)
        return Flat(inputs, with_sums(self.operations, outputs), outputs, self.known)

    def done(self, equation: Any, inputs: tuple[Value, ...]) -> list[Value]:
        """Outputs of an equation, which are those of an earlier one if that is the same."""
        outputs = [self.new(variable) for variable in equation.outvars]
        operations = operations_of(equation, inputs, tuple(outputs))
        first = operations[0]
        if first.kind is None or first.name == "part":
            self.operations += operations
            return outputs
        key = first.kind, inputs
        if key not in self.outputs:
            self.operations.append(first)
            self.outputs[key] = outputs
        return self.outputs[key]


def operations_of(
    equation: Any, inputs: tuple[Value, ...], outputs: tuple[Value, ...]
) -> list[Operation]:
    """The operations of an equation: parts of an array are one each, alike if of one shape."""
    name, params = equation.primitive.name, equation.params
    apply = partial(outputs_of, equation)
    is_small = are_small(outputs)
    firsts = firsts_of(name, params) if is_small else None
    if firsts is not None:
        kinds = [("part", inputs[0].number, output.shape) for output in outputs]
        rows = zip(kinds, outputs, firsts, strict=True)
        return [Operation("part", k, apply, inputs, (v,), first) for k, v, first in rows]
    kind = kind_of(equation) if is_small and are_small(inputs) else None
    is_along_first = params.get("axis" if name == "stack" else "dimension") == 0
    if is_along_first and all(math.prod(value.shape) for value in inputs):
        name = ROWS.get(name, name)
    return [Operation(name, kind, apply, inputs, outputs)]


def are_small(values: Sequence[Value]) -> bool:
    """Whether values have 256 numbers at most: a stack of more would be a copy of data."""
    return all(math.prod(value.shape) <= 256 for value in values)


def firsts_of(name: str, params: dict[str, Any]) -> list[tuple[int, ...]] | None:
    """Where the parts that an equation takes from an array begin, if it does that."""
    if name == "split" and params["axis"] == 0:
        return [(int(first),) for first in np.cumsum([0, *params["sizes"][:-1]])]
    if name == "slice" and params["start_indices"] and set(params["strides"] or [1]) == {1}:
        return [tuple(params["start_indices"])]
    return None


def kind_of(equation: Any) -> Hashable | None:
    """What tells an equation from others of other shapes; None for one that stays by itself.

    That is a loop, a factorization, a function with a rule that is not JAX's, or what cannot be
    compared.
    """
    name = equation.primitive.name
    variables = (*equation.invars, *equation.outvars)
    is_plain = all(isinstance(getattr(v.aval, "dtype", None), np.dtype) for v in variables)
    # random numbers of a batch are others
    if not is_plain or name in FACTORIZATIONS | CALLBACKS | RANDOM:
        return None
    if name == "custom_jvp_call":
        return rule_of(equation)
    kind = name, tuple(sorted(equation.params.items()))
    try:
        hash(kind)
    except TypeError:
        return None
    return None if programs_in(equation) else kind


def rule_of(equation: Any) -> Hashable | None:
    """A function of JAX with a derivative of its own, by the place of its rule and by what it does.

    Programs do not tell rules apart that others close over numbers, or call in turn: those of users
    stay by themselves.
    """
    rule = getattr(equation.params.get("jvp_jaxpr_fun"), "debug_info", None)
    place = getattr(rule, "func_src_info", None) or ""
    is_known = str(Path(jax.__file__).parent) in place and "custom_derivatives.py" not in place
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    is_real = all(jnp.issubdtype(shape.dtype, jnp.floating) for shape in shapes)
    if not (is_known and is_real) or equation.params["symbolic_zeros"]:
        return None

    def with_derivative(values: list[Any], tangents: list[Any]) -> Any:
        return jax.jvp(partial(outputs_of, equation), values, tangents)

    program = jax.make_jaxpr(with_derivative)(shapes, shapes)
    return None if has_constants(program) else (place, str(program))


def has_constants(program: Any) -> bool:
    """Whether a program, or one inside it, closes over arrays, which are not written out."""
    inner = (part for equation in program.eqns for part in programs_in(equation))
    return bool(getattr(program, "consts", ())) or any(map(has_constants, inner))


def with_sums(operations: list[Operation], outputs: list[Value]) -> list[Operation]:
    """The operations, with additions of what nothing else uses in one sum."""
    uses = Counter(value.number for value in outputs)
    uses.update(value.number for each in operations for value in each.inputs)
    sums: dict[int, tuple[list[Value], list[Operation]]] = {}  # terms and additions, by the result
    for each in operations:
        if is_addition(each):
            terms: list[Value] = []
            additions: list[Operation] = []
            for value in each.inputs:
                is_part = uses[value.number] == 1 and value.number in sums
                part = sums.pop(value.number) if is_part else ([value], [])
                terms, additions = joined(terms, part[0]), joined(additions, part[1])
            additions.append(each)
            sums[each.outputs[0].number] = terms, additions
    found = [each for each in sums.values() if len(each[0]) >= LEAST_TERMS]
    long = {id(additions[-1]): terms for terms, additions in found}
    inner = {id(addition) for _, additions in found for addition in additions}
    return [
        sum_of(each, long[id(each)]) if id(each) in long else each
        for each in operations
        if id(each) in long or id(each) not in inner
    ]


def is_addition(operation: Operation) -> bool:
    """Whether an operation adds small arrays, of so many digits that the order does not matter."""
    if operation.name not in ADDITIONS or operation.kind is None:
        return False
    # a number that stands in the program may be added to a vector
    shapes = {value.shape for value in (*operation.inputs, *operation.outputs)}
    return len(shapes) == 1 and operation.outputs[0].dtype.itemsize >= 4


def sum_of(last: Operation, terms: list[Value]) -> Operation:
    """The sum of all terms, in place of the last addition."""
    return Operation("sum", ("sum", len(terms), last.kind), total, tuple(terms), last.outputs)


def joined(first: list[Any], second: list[Any]) -> list[Any]:
    """The longer list, with the other at its end."""
    first, second = (first, second) if len(first) >= len(second) else (second, first)
    first.extend(second)
    return first


def total(*terms: Any) -> list[Any]:
    """The sum."""
    return [sum(terms[1:], terms[0])]


def batches_of(operations: list[Operation]) -> list[list[Operation]]:
    """The operations in batches that are alike, each after what it waits for."""
    levels: dict[int, int] = {}
    batches: dict[tuple[int, Hashable], list[Operation]] = defaultdict(list)
    for i, each in enumerate(operations):
        level = 1 + max((levels.get(value.number, 0) for value in each.inputs), default=0)
        levels |= {value.number: level for value in each.outputs}
        types = tuple((value.shape, value.dtype) for value in each.inputs)
        batches[level, i if each.kind is None else (each.kind, types)].append(each)
    return [batches[key] for key in sorted(batches, key=lambda key: key[0])]


class Evaluation:
    """Values of a flat program: some by themselves, and some as entries of stacks."""

    def __init__(self, flat: Flat, leaves: list[Any]):
        self.outputs = flat.outputs
        self.known, self.values = flat.known, dict(flat.known)
        self.stacks: list[Array] = []
        self.places: dict[int, tuple[int, int]] = {}  # stack and entry of a value
        self.made: dict[tuple[int, ...], Array] = {}
        alike = defaultdict(list)
        for value, leaf in zip(flat.inputs, leaves, strict=True):
            self.values[value.number] = leaf
            alike[value.shape, value.dtype].append(value)
        for values in alike.values():
            if len(values) >= LEAST_TERMS and are_small(values[:1]):
                self.put(values, stack_of_leaves([self.values[value.number] for value in values]))

    def of(self, batches: list[list[Operation]]) -> list[Array]:
        """Outputs of the program."""
        for batch in batches:
            if batch[0].name == "part":
                self.cut(batch)
            elif len(batch) > 1:
                self.do_together(batch)
            else:
                self.do_alone(batch[0])
        return [jnp.asarray(self.value(value), value.dtype) for value in self.outputs]

    def value(self, value: Value) -> Any:
        """A value by itself."""
        if value.number not in self.values:
            stack, i = self.places[value.number]
            self.values[value.number] = jax.lax.index_in_dim(self.stacks[stack], i, keepdims=False)
        return self.values[value.number]

    def put(self, values: Sequence[Value], stack: Array) -> None:
        """Keep values as entries of a stack."""
        self.places |= {value.number: (len(self.stacks), i) for i, value in enumerate(values)}
        self.stacks.append(stack)

    def cut(self, parts: list[Operation]) -> None:
        """Parts of one array, of the same shape."""
        array, shape = self.value(parts[0].inputs[0]), parts[0].outputs[0].shape
        firsts = np.array([[*each.first, *[0] * array.ndim][: array.ndim] for each in parts])
        rows, size = firsts[:, 0], shape[0]
        if shape[1:] == array.shape[1:] and (np.diff(rows) == size).all():
            stack = array[rows[0] : rows[-1] + size].reshape(len(parts), *shape)
        else:
            cut = partial(jax.lax.dynamic_slice, slice_sizes=shape)
            stack = jax.vmap(cut, (None, 0))(array, tuple(firsts.T))
        self.put([part.outputs[0] for part in parts], stack)

    def do_alone(self, operation: Operation) -> None:
        """One operation; entries of a stack that it sums or joins need not be taken apart."""
        if operation.name == "sum":
            terms = sorted(operation.inputs, key=self.place)
            results = [jnp.sum(self.stack_of(terms), 0, operation.outputs[0].dtype)]
        elif operation.name == "joined rows":
            results = [jnp.concatenate(self.rows(operation.inputs))]
        elif operation.name == "stacked rows":
            results = [self.stack_of(operation.inputs)]
        else:
            results = list(operation.apply(*map(self.value, operation.inputs)))
        self.values |= {v.number: x for v, x in zip(operation.outputs, results, strict=True)}

    def do_together(self, batch: list[Operation]) -> None:
        """Operations that are alike, on their stacked arguments, those of one stack together."""
        batch = sorted(batch, key=lambda each: list(map(self.place, each.inputs)))
        arguments, axes = [], []
        for values in zip(*(each.inputs for each in batch), strict=True):
            is_common = len({value.number for value in values}) == 1
            arguments.append(self.value(values[0]) if is_common else self.stack_of(values))
            axes.append(None if is_common else 0)
        stacks = jax.vmap(batch[0].apply, axes)(*arguments)
        for values, stack in zip(
            zip(*(each.outputs for each in batch), strict=True), stacks, strict=True
        ):
            self.put(values, stack)

    def stack_of(self, values: Sequence[Value]) -> Array:
        """Values in a stack, (n, ...), from as few pieces as they come in."""
        key = tuple(value.number for value in values)
        if key not in self.made:
            order = sorted(range(len(values)), key=lambda i: self.place(values[i]))
            in_order = [values[i] for i in order]
            runs = self.runs(values)
            if 2 * len(self.runs(in_order)) < len(runs):  # they come in turn from several stacks
                self.made[key] = taken(self.stack_of(in_order), np.argsort(order))
            else:
                pieces = [self.piece(source, run) for source, run in runs]
                self.made[key] = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
        return self.made[key]

    def runs(self, values: Sequence[Value]) -> list[tuple[int | None, list[Value]]]:
        """Neighbours of one source, with it."""
        return [(source, list(run)) for source, run in groupby(values, self.source)]

    def rows(self, values: Sequence[Value]) -> list[Array]:
        """Arrays to concatenate, neighbours of one shape as one."""
        pieces = []
        for shape, run in groupby(values, lambda value: value.shape):
            members = list(run)
            if len(members) == 1:
                pieces.append(self.value(members[0]))
            else:
                pieces.append(self.stack_of(members).reshape(-1, *shape[1:]))
        return pieces

    def place(self, value: Value) -> tuple[int, int]:
        """Stack and entry of a value, -1 of what is by itself."""
        return self.places.get(value.number, (-1, value.number))

    def source(self, value: Value) -> int | None:
        """The stack in which a value is, `KNOWN` or None for a value by itself."""
        if value.number in self.known:
            return KNOWN
        return self.places.get(value.number, (None, 0))[0]

    def piece(self, source: int | None, values: list[Value]) -> Array:
        """Values of one source in a stack."""
        if source is None or source == KNOWN:
            leaves = [self.values[value.number] for value in values]
            if any(isinstance(leaf, Array) for leaf in leaves):
                return stack_of_leaves(leaves)
            return jnp.asarray(np.stack(leaves), values[0].dtype)
        stack, places = self.stacks[source], [self.places[value.number][1] for value in values]
        first, last = places[0], places[-1] + 1
        if places != list(range(first, last)):
            return taken(stack, np.array(places))
        return stack if last - first == len(stack) else stack[first:last]


def stack_of_leaves(leaves: list[Any]) -> Array:
    """Leaves in a stack, those that are one array stacked once."""
    distinct = {id(leaf): leaf for leaf in leaves}
    if len(distinct) == len(leaves):
        return jnp.stack(leaves)
    places = {key: place for place, key in enumerate(distinct)}
    stack = jnp.stack(list(distinct.values()))
    return taken(stack, np.array([places[id(leaf)] for leaf in leaves]))


def taken(stack: Array, places: np.ndarray) -> Array:
    """Entries of a stack."""
    entries: Array = jnp.take(stack, places, 0, mode="clip")
    return entries
