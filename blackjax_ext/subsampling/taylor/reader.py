r"""Programs read on boxes: the jaxpr of a function in, intervals of its derivatives out.

Each equation of the program is one operation on jets of :mod:`blackjax_ext.subsampling.taylor.jets`
or, where it depends on no variable, is done as it is: what a program computes from data alone is
taken as floats compute it, with the rounding of its last step.

*What is read.* Sums, products, quotients, powers, functions of
:mod:`blackjax_ext.subsampling.taylor.functions`, choices between values by what is known, what
moves entries of small arrays around and sums them, and functions that are called. A value that is
clamped is read where a box is on one side of each limit, and unbounded elsewhere. All else raises
`UnreadableError`, which names the primitive.

*Functions with derivatives of their own* (``jax.custom_jvp``). Their program is read as any other.
Where that is not smooth, as of functions that keep digits by a choice between two formulas, values
are read from the program, without a derivative, and the derivatives from the rule, as JAX takes
them: a rule of order M - 1 for :math:`\partial_j f` gives :math:`f_\alpha = (\partial_j
f)_{\alpha - e_j} / \alpha_j`. Values need no smoothness: those of a choice that the box leaves open
are in the hull of both. ``logaddexp``, and so softplus, is the second argument and softplus of the
difference; ``log_ndtr`` is a function of its own.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr
from jax.scipy.special import log_ndtr

from blackjax_ext.equations import equations_in, outputs_of, read_program
from blackjax_ext.primitives import COMPARISONS, INLINED, KINKS, SMOOTH, STRUCTURAL
from blackjax_ext.subsampling.intervals import Interval, outward
from blackjax_ext.subsampling.taylor import functions
from blackjax_ext.subsampling.taylor.jets import Box, Jet, with_axes
from blackjax_ext.types import Function


class UnreadableError(ValueError):
    """A program has an operation of which no bounds are known here."""

    def __init__(self, primitive: str, why: str = "no bound of its derivatives is known here"):
        self.primitive, self.why = primitive, why
        super().__init__(f"the primitive '{primitive}' in it: {why}")


class Either:
    """A choice that a box leaves open."""


Rule: TypeAlias = Callable[..., Jet]  # from a box, the parameters of a primitive and its values
KINK = "it is not smooth where it depends on a predictor"


def derivatives_over(function: Function, box: Box, *known: Any, **data: Any) -> Jet:
    """The jet over a box of ``function(variables, *known, **data)``, a scalar.

    Raises
    ------
    UnreadableError
        For an operation of which no bounds are known here.
    """
    closed = jax.make_jaxpr(function)(box.centres, *known, **data)
    variables = [box.variable(j) for j in range(len(box.centres))]
    (output,) = read(box, closed, [*variables, *jax.tree.leaves((known, data))])
    return as_jet(box, output)


def read(box: Box, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """Outputs of a program, jets where they depend on a variable."""
    rule = partial(equation_outputs, box)
    return read_program(closed, arguments, rule, calls=INLINED, is_opened=depends)


def depends(values: Sequence[Any]) -> bool:
    """Whether any of some values depends on a variable."""
    return any(isinstance(value, (Jet, Either)) for value in values)


def equation_outputs(box: Box, equation: Any, values: list[Any]) -> Sequence[Any]:
    """Outputs of one equation."""
    name = equation.primitive.name
    if not depends(values):
        return outputs_of(equation, *values)
    if name == "custom_jvp_call":
        return custom(box, equation, values)
    rule = moving(equation) if name in STRUCTURAL else JET_RULES.get(name)
    is_open = any(isinstance(value, Either) for value in values)
    if rule is None or (is_open and name not in OF_CHOICES):
        raise UnreadableError(name, *[KINK] if name in KINKS or is_open else [])
    return [rule(box, equation.params, *values)]


def rounded_interval(box: Box, value: Any) -> Interval:
    """A known number with the rounding of its last step."""
    value = jnp.asarray(value)
    is_exact = isinstance(value, float) or not jnp.issubdtype(value.dtype, jnp.floating)
    value = value.astype(box.dtype)
    return Interval(value, value) if is_exact else outward(value, value)


def as_jet(box: Box, value: Any) -> Jet:
    """A jet, also of what is known."""
    return value if isinstance(value, Jet) else box.constant(rounded_interval(box, value))


def moving(equation: Any) -> Rule:
    """The rule of what moves entries around, of all coefficients alike."""

    def rule(box: Box, params: Any, *values: Any) -> Jet:
        params, name = dict(params), equation.primitive.name
        if name == "convert_element_type":
            if not jnp.issubdtype(params["new_dtype"], jnp.floating):
                raise UnreadableError(name, KINK)
            params["new_dtype"] = box.dtype
        function = jax.vmap(jax.vmap(partial(equation.primitive.bind, **params)))
        return alike(box, function, values)

    return rule


def alike(box: Box, function: Function, values: Sequence[Any]) -> Jet:
    """A function of the ends of some jets, coefficient by coefficient."""
    jets = [as_jet(box, value) for value in values]
    over = tuple(sorted({j for jet in jets for j in jet.over}))
    return Jet(jax.tree.map(function, *(box.lifted(jet, over) for jet in jets)), over)


def univariate(function: Function) -> Rule:
    """The rule of a function of one variable."""

    def rule(box: Box, params: Any, x: Jet) -> Jet:
        del params
        return box.composed(function(x.values, box.order), x)

    return rule


def plus(box: Box, params: Any, x: Any, y: Any) -> Jet:
    """Sums."""
    del params
    return box.add(as_jet(box, x), as_jet(box, y))


def minus(box: Box, params: Any, x: Any, y: Any) -> Jet:
    """Differences."""
    return plus(box, params, x, -as_jet(box, y))


def multiplied(box: Box, params: Any, x: Any, y: Any) -> Jet:
    """Products."""
    del params
    return box.multiply(as_jet(box, x), as_jet(box, y))


def whole_power(box: Box, params: Any, x: Jet) -> Jet:
    """A whole power, by its size and one over it if it is negative."""
    y = params["y"]
    of_size = partial(functions.power_, power=abs(y))
    power_of_size = univariate(of_size)(box, params, x)
    return power_of_size if y >= 0 else RECIPROCAL(box, params, power_of_size)


def power(box: Box, params: Any, x: Any, y: Any) -> Jet:
    """``exp(y log(x))``, of positive x."""
    return EXP(box, params, multiplied(box, params, y, LOG(box, params, as_jet(box, x))))


def total(box: Box, params: Any, x: Jet) -> Jet:
    """Sums over axes."""
    coefficients = x.coefficients
    for axis in sorted((axis + 2 for axis in params["axes"]), reverse=True):
        first, *rest = (
            jax.tree.map(lambda end, i=i, axis=axis: jnp.take(end, i, axis=axis), coefficients)
            for i in range(coefficients.low.shape[axis])
        )
        coefficients = sum(rest, first)
    return box.tightened(Jet(coefficients, x.over))


def chosen(box: Box, params: Any, which: Any, *cases: Any) -> Jet:
    """The value that a known index chooses of several, or else the hull of all of them."""
    del params
    if isinstance(which, Either):
        return VALUES_OF_EITHER(box, {}, *cases)

    def pick(*ends: Array) -> Array:
        return jax.lax.select_n(jnp.broadcast_to(jnp.asarray(which), ends[0].shape), *ends)

    return alike(box, pick, cases)


def values_only(name: str, function: Callable[..., Interval]) -> Rule:
    """The rule of a function that is not smooth: for values alone."""

    def rule(box: Box, params: Any, *values: Any) -> Jet:
        del params
        if box.order:
            raise UnreadableError(name, KINK)
        jets = [as_jet(box, value) for value in values]
        over = tuple(sorted({j for jet in jets for j in jet.over}))
        return Jet(function(*(jet.coefficients for jet in jets)), over)

    return rule


def absolute_value(x: Interval) -> Interval:
    """Absolute values."""
    least = jnp.maximum(jnp.maximum(x.low, -x.high), 0.0)
    return Interval(least, jnp.maximum(jnp.abs(x.low), jnp.abs(x.high)))


def greater(x: Interval, y: Interval) -> Interval:
    """The greater of two."""
    return Interval(jnp.maximum(x.low, y.low), jnp.maximum(x.high, y.high))


def hull_of(*cases: Interval) -> Interval:
    """All that is in any of them."""
    low, high = cases[0].low, cases[0].high
    for case in cases[1:]:
        low, high = jnp.minimum(low, case.low), jnp.maximum(high, case.high)
    return Interval(low, high)


def clamped(box: Box, params: Any, low: Any, x: Any, high: Any) -> Jet:
    """A value between two limits that are known, as it is or as one of them."""
    del params
    if isinstance(low, Jet) or isinstance(high, Jet):
        raise UnreadableError("clamp", KINK)
    inner, limits = x.coefficients, [jnp.asarray(limit, box.dtype) for limit in (low, high)]
    if not box.order:
        clipped: Jet = x.mapped(lambda end: jnp.clip(end, *limits))
        return clipped
    below, above = (
        with_axes(box.lifted(box.constant(Interval(limit, limit)), x.over), inner.low.ndim)
        for limit in limits
    )
    is_inside = (inner.low[:, :1] >= limits[0]) & (inner.high[:, :1] <= limits[1])
    is_below, is_above = inner.high[:, :1] < limits[0], inner.low[:, :1] > limits[1]

    def pick(end: Array, *outside: Array, lost: float) -> Array:
        outer = jnp.where(is_below, outside[0], jnp.where(is_above, outside[1], lost))
        return jnp.where(is_inside, end, outer)

    return Jet(
        Interval(
            pick(inner.low, below.low, above.low, lost=-jnp.inf),
            pick(inner.high, below.high, above.high, lost=jnp.inf),
        ),
        x.over,
    )


VALUES_OF_EITHER = values_only("select_n", hull_of)
EXP, LOG = univariate(functions.exp_), univariate(functions.log_)
RECIPROCAL, SOFTPLUS = univariate(functions.reciprocal_), univariate(functions.softplus_)
OF_CHOICES = COMPARISONS | {"select_n"}
JET_RULES: dict[str, Function] = {
    **{name: univariate(getattr(functions, f"{name}_")) for name in SMOOTH},
    "add": plus,
    "add_any": plus,
    "clamp": clamped,
    "div": lambda box, params, x, y: multiplied(
        box, params, x, RECIPROCAL(box, {}, as_jet(box, y))
    ),
    "integer_pow": whole_power,
    "mul": multiplied,
    "neg": lambda box, params, x: -x,
    "pow": power,
    "reduce_precision": lambda box, params, x: x,
    "reduce_sum": total,
    "select_n": chosen,
    "square": lambda box, params, x: whole_power(box, {"y": 2}, x),
    "sub": minus,
    "abs": values_only("abs", absolute_value),
    "max": values_only("max", greater),
    "min": values_only("min", lambda x, y: -greater(-x, -y)),
    **dict.fromkeys(COMPARISONS, lambda *_: Either()),  # with a variable
}


def custom(box: Box, equation: Any, values: list[Any]) -> Sequence[Any]:
    """A function with derivatives of its own."""
    program = equation.params["call_jaxpr"]
    if rule := known_programs(str(box.dtype)).get(str(program)):
        return [rule(box, {}, *values)]
    try:
        return read(box, program, values)
    except UnreadableError as error:
        if box.order == 0 or error.why != KINK or len(equation.outvars) > 1:
            raise
    return [by_rule(box, equation, values)]


def of_logaddexp(box: Box, params: Any, x: Any, y: Any) -> Jet:
    """The second argument and softplus of the difference."""
    return plus(box, params, y, SOFTPLUS(box, params, minus(box, params, x, y)))


@cache
def known_programs(dtype: str) -> dict[str, Function]:
    """Rules of logaddexp and log_ndtr by their programs, of numbers and of arrays of one axis."""
    rules: dict[str, Function] = {}
    for shape in ((), (1,)):
        number = jnp.zeros(shape, dtype)
        for x, y in ((number, number), (number, 0.0), (0.0, number)):
            programs = custom_programs(jax.make_jaxpr(jnp.logaddexp)(x, y))
            rules |= dict.fromkeys(programs, of_logaddexp)
        programs = custom_programs(jax.make_jaxpr(log_ndtr)(number))
        rules |= dict.fromkeys(programs, univariate(functions.log_ndtr_))
    return rules


def custom_programs(program: ClosedJaxpr) -> set[str]:
    """Programs of the functions with derivatives of their own in a program."""
    return {
        str(equation.params["call_jaxpr"])
        for equation in equations_in(program)
        if equation.primitive.name == "custom_jvp_call"
    }


def by_rule(box: Box, equation: Any, values: list[Any]) -> Jet:
    """Values from the program of a function, and derivatives from its rule."""
    lower = box.below(box.order - 1)
    at = [i for i, value in enumerate(values) if isinstance(value, Jet)]
    jets = [values[i] for i in at]
    known = [value for value in values if not isinstance(value, Jet)]
    truncated = [box.truncated(v, 0) if isinstance(v, Jet) else v for v in values]
    (value,) = read(box.below(0), equation.params["call_jaxpr"], truncated)
    closed, here = tangent_program(equation, at), [box.truncated(j, lower.order) for j in jets]

    def slope(i: int) -> Jet:
        slopes = read(lower, closed, [*here, *(box.derivative(jet, i) for jet in jets), *known])
        return as_jet(lower, slopes[0])

    over = sorted({j for jet in jets for j in jet.over})
    return box.integrated(as_jet(box, value).values, {i: slope(i) for i in over})


def tangent_program(equation: Any, at: Sequence[int]) -> ClosedJaxpr:
    """The program of the derivative of an equation along tangents of some of its inputs."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    moving, still = [shapes[i] for i in at], [s for i, s in enumerate(shapes) if i not in at]

    def tangent(primals: Any, tangents: Any, known: Any) -> Any:
        def function(*moving: Any) -> Any:
            rest, given = iter(known), iter(moving)
            inputs = [next(given) if i in at else next(rest) for i in range(len(shapes))]
            return outputs_of(equation, *inputs)[0]

        return jax.jvp(function, tuple(primals), tuple(tangents))[1]

    return jax.make_jaxpr(tangent)(moving, moving, still)
