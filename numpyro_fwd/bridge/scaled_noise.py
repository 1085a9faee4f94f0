r"""Effects that a model writes by their noise: z has a fixed law, and the model sees m + s z.

The law of z says nothing of m and s, which are computed from other latents; the program of the
model does. It is traced, and z is followed from operation to operation, as long as one alone takes
what the last has made:

- A product with what other latents make positive is a factor of s, so is a quotient by it.
- The sum of s z with what latents make is m, and the end, as all else is that is not linear in z.
- After a sum, a product with a matrix or a choice of rows a factor counts if it is one number, and
  nothing is m.
- Sums of z along its last axis, all factors of which are numbers, are a walk.

So a horseshoe's ``z * lambda * tau``, data times that, and what ``LocScaleReparam(0)`` makes of a
model are understood alike. s and m are computed from latents that come before z, or are no effects.
What is read decides only where coordinates are worth while, which are exact for any s and m that z
has no part in (:class:`blackjax_ext.coordinates.laws.LocScaleNoise`, ``WalkNoise``).
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints

from blackjax_ext.coordinates.laws import Law, LocScaleNoise, walk
from blackjax_ext.equations import Reader, Value, outputs_of
from blackjax_ext.primitives import (
    CONVERTING,
    CUMULATIVE,
    INDEXING,
    LINEAR_IN_FIRST,
    PLACING,
    PRODUCTS,
    REDUCTIONS,
    SIGNED,
)
from numpyro_fwd.bridge.hierarchies import LOC_SCALE, MAPS
from numpyro_fwd.bridge.numpyro_private import transforms_of
from numpyro_fwd.bridge.traces import is_latent, sites_at, unwrapped
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites

__all__ = ["NoiseProgram", "Scaling", "scaled_noise"]

LINEAR = LINEAR_IN_FIRST | PLACING | CONVERTING | SIGNED | PRODUCTS | {"cumsum", "reduce_sum"}
AS_ONE_NUMBER = CONVERTING | {"broadcast_in_dim", "reshape", "squeeze"}
# as positive as the least positive of their arguments, and as the most positive
OF_LEAST = PLACING | CONVERTING | CUMULATIVE | REDUCTIONS
OF_LEAST |= {"add", "concatenate", "div", "exp2", "log1p", "min", "mul", "sqrt"}
OF_FIRST = INDEXING | {"pow"}
UNKNOWN, NEVER_NEGATIVE, POSITIVE = range(3)


class Step(NamedTuple):
    """An operation of a program, with its values."""

    equation: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Name of its primitive."""
        return str(self.equation.primitive.name)


class ScaleFactor(NamedTuple):
    """A factor of a scale: where on the way of the noise it is, and whether it divides."""

    place: int
    is_divisor: bool


class Scaling(NamedTuple):
    """How a model scales and shifts a noise.

    factors
        Of the scale.
    loc
        Place of the operation that adds the location; None if none does.
    walk
        Place of the operation that makes a walk of the noise; None if none does.
    """

    factors: tuple[ScaleFactor, ...]
    loc: int | None = None
    walk: int | None = None


class NoiseProgram(Reader):
    """What a model computes of its noise, operation by operation.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments.
    names
        Latents whose own log densities are left out.
    position
        Unconstrained values of all latents, of which only the shapes are read.
    """

    def __init__(
        self,
        model: Model,
        model_args: Args,
        model_kwargs: Kwargs | None,
        names: tuple[str, ...],
        position: dict[str, Any],
    ):
        def others(z):
            sites = sites_at(model, model_args, model_kwargs, z, jax.random.key(0))
            return [
                site["fn"].log_prob(site["value"])
                for name, site in sites.items()
                if site["type"] == "sample" and name not in names
            ]

        super().__init__()
        self.steps: list[Step] = []
        program = jax.make_jaxpr(others)({n: jax.typeof(leaf) for n, leaf in position.items()})
        inputs = map(self.new, program.jaxpr.invars)
        self.inputs = dict(zip(sorted(position), inputs, strict=True))
        self.follow(program, list(self.inputs.values()))
        self.places = {v: i for i, step in enumerate(self.steps) for v in step.outputs}
        self.users = defaultdict(list)
        self.latents = {value: frozenset([name]) for name, value in self.inputs.items()}
        for step in self.steps:
            found = frozenset().union(*map(self.latents_of, step.inputs))
            self.latents |= dict.fromkeys(step.outputs, found)
            for value in step.inputs:
                self.users[value].append(step)

    def done(self, equation: Any, inputs: tuple[Value, ...]) -> list[Value]:
        """Outputs of an equation, which is kept."""
        outputs = [self.new(variable) for variable in equation.outvars]
        self.steps.append(Step(equation, inputs, tuple(outputs)))
        return outputs

    def latents_of(self, value: Value | None) -> frozenset[str]:
        """Latents that a value is computed from."""
        return frozenset() if value is None else self.latents.get(value, frozenset())

    def maker(self, value: Value | None) -> Step | None:
        """The operation that makes a value, if one does."""
        place = None if value is None else self.places.get(value)
        return None if place is None else self.steps[place]

    def way(self, name: str) -> Iterator[tuple[Step, int, Value | None]]:
        """Operations that a noise goes through alone, its place in each, and the other argument."""
        value = self.inputs[name]
        while len(users := self.users[value]) == 1:
            step = users[0]
            place = step.inputs.index(value)
            other = step.inputs[1 - place] if len(step.inputs) == 2 else None
            yield step, place, other
            value = step.outputs[0]

    def scaling(self, name: str, before: frozenset[str]) -> Scaling | None:
        """What scales a noise, computed from latents `before` it; None if nothing does."""
        factors: list[ScaleFactor] = []
        sums: int | None = None
        are_numbers = True  # factors so far, and nothing else
        is_plain = True  # nothing but factors so far
        for i, (step, place, other) in enumerate(self.way(name)):
            kind, found = step.name, self.latents_of(other)
            if found - before or kind not in LINEAR or (kind in LINEAR_IN_FIRST and place == 1):
                break
            if kind in ("mul", "div") and found:
                is_number = self.is_one_number(other)
                is_factor = (is_plain or kind == "mul") and self.sign(other) == POSITIVE
                if not is_factor or not (is_plain or is_number):
                    break
                factors.append(ScaleFactor(i, kind == "div"))
                are_numbers &= is_number
            elif kind in ("add", "sub") and self.is_zero(other):
                continue  # as LocScaleReparam(0) takes zero times the location off
            elif kind in ("add", "sub") and found:
                loc = i if is_plain else None
                return Scaling(tuple(factors), loc, sums) if factors else None
            else:
                sums = i if are_numbers and self.sums_along_last(step) else sums
                are_numbers &= kind in ("mul", "div") and self.is_one_number(other)
                is_plain = False
        return Scaling(tuple(factors), None, sums) if factors else None

    def sums_along_last(self, step: Step) -> bool:
        """Whether an operation makes sums of all up to each, along the last axis."""
        params, rank = step.equation.params, len(step.inputs[0].shape)
        return step.name == "cumsum" and params["axis"] == rank - 1 and not params["reverse"]

    def is_zero(self, value: Value | None) -> bool:
        """Whether a value is a product with zero."""
        step = self.maker(value)
        if step is None:
            return self.sign(value) == NEVER_NEGATIVE
        is_product = step.name == "mul" or step.name in AS_ONE_NUMBER
        return is_product and any(map(self.is_zero, step.inputs))

    def is_one_number(self, value: Value | None) -> bool:
        """Whether all entries of a value are one."""
        while value is not None and np.prod(value.shape) != 1:
            step = self.maker(value)
            value = step.inputs[0] if step is not None and step.name in AS_ONE_NUMBER else None
        return value is not None

    def sign(self, value: Value | None) -> int:
        """Whether a value is positive, or never negative, whatever the latents are."""
        step = self.maker(value)
        if step is None:
            return (
                UNKNOWN if value is None else sign_of_number(self.known.get(value.number, np.nan))
            )
        signs = [self.sign(each) for each in step.inputs]
        if step.name in ("exp", "logistic"):
            return POSITIVE
        if step.name in ("abs", "square"):
            return max(NEVER_NEGATIVE, *signs)
        if step.name == "integer_pow":
            is_even = step.equation.params["y"] % 2 == 0
            return max(signs[0], NEVER_NEGATIVE if is_even else UNKNOWN)
        if step.name == "add":
            return max(signs) if min(signs) else UNKNOWN
        if step.name == "max":
            return max(signs)
        if step.name == "rsqrt":
            return POSITIVE if signs[0] else UNKNOWN
        if step.name == "clamp":
            return min(max(signs[:2]), signs[2])
        if step.name == "select_n":
            return min(signs[1:])
        if step.name in OF_FIRST:
            return signs[0]
        return min(signs) if step.name in OF_LEAST else UNKNOWN

    def law(
        self, name: str, scaling: Scaling, known: dict[str, Any], values: dict[int, Any]
    ) -> Law:
        """The law of an effect, from what is known of a position.

        `values` are those of the program so far, at first `known` of it; more are added.
        """
        inputs = self.inputs
        values |= {inputs[name].number: leaf for name, leaf in known.items() if name in inputs}
        way = [way for way, _ in zip(self.way(name), range(self.last(scaling) + 1), strict=False)]
        if not self.is_read(way, scaling, known):  # of other arguments, with which all is different
            return LocScaleNoise(jnp.zeros(()), jnp.ones(()))
        others = [way[factor.place][2] for factor in scaling.factors]
        if scaling.loc is not None:
            others.append(way[scaling.loc][2])
        *factors, last = self.computed([each for each in others if each is not None], values)
        loc: Array = jnp.zeros(())
        if scaling.loc is None:
            factors.append(last)
        else:
            loc = -last if way[scaling.loc][0].name == "sub" else last
        shape, scale = inputs[name].shape, jnp.ones(())
        for factor, value in zip(scaling.factors, factors, strict=True):
            value = value if jnp.shape(value) == shape else jnp.ravel(value)[0]
            scale = scale / value if factor.is_divisor else scale * value
        if scaling.walk is not None:
            return walk(jnp.ravel(scale)[0], shape[-1], is_noise=True)
        return LocScaleNoise(loc, scale)

    def is_read(self, way: list[Any], scaling: Scaling, known: dict[str, Any]) -> bool:
        """Whether a noise goes the way on which a scaling was read, through what is known."""
        kinds = {each.place: ["div" if each.is_divisor else "mul"] for each in scaling.factors}
        kinds |= {} if scaling.loc is None else {scaling.loc: ["add", "sub"]}
        kinds |= {} if scaling.walk is None else {scaling.walk: ["cumsum"]}
        return len(way) > self.last(scaling) and all(
            way[i][0].name in names and not self.latents_of(way[i][2]) - known.keys()
            for i, names in kinds.items()
        )

    def last(self, scaling: Scaling) -> int:
        """Place of the last operation that a scaling reads."""
        places = (scaling.factors[-1].place, scaling.loc, scaling.walk)
        return max(place for place in places if place is not None)

    def computed(self, wanted: list[Value], values: dict[int, Any]) -> list[Any]:
        """Values of a program, by those of its operations that they need and `values` lack."""
        needed: set[int] = set()
        missing = [each for each in wanted if each.number not in values]
        while missing:
            place = self.places[missing.pop()]
            if place not in needed:
                needed.add(place)
                missing += [each for each in self.steps[place].inputs if each.number not in values]
        for place in sorted(needed):
            step = self.steps[place]
            outputs = outputs_of(step.equation, *(values[each.number] for each in step.inputs))
            numbers = (each.number for each in step.outputs)
            values |= dict(zip(numbers, outputs, strict=True))
        return [values[each.number] for each in wanted]


def sign_of_number(value: Any) -> int:
    """The same of a constant: unknown of data, which may be others in the next run."""
    if isinstance(value, jax.Array) or np.ndim(value):
        return UNKNOWN
    return POSITIVE if value > 0 else NEVER_NEGATIVE if value == 0 else UNKNOWN


def scaled_noise(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    position: dict[str, Any],
    effects: tuple[str, ...],
) -> dict[str, Scaling]:
    """How a model scales its noise, by site; `effects` are the sites that are no noise.

    None of a model that enumerates discrete latents, or whose latents are in a loop of NumPyro.
    """
    order: list[str] = []
    names: list[str] = []

    def look(z):
        sites = sites_at(model, model_args, model_kwargs, z, jax.random.key(0))
        order.extend(sites)
        if is_plain_model(sites):
            names.extend(
                name
                for name, site in sites.items()
                if name in z and name not in effects and is_noise(site)
            )

    jax.eval_shape(look, position)
    if not names or len(names) == len(position):
        return {}
    program = NoiseProgram(model, model_args, model_kwargs, tuple(names), position)

    def scalings(noise: tuple[str, ...]) -> dict[str, Scaling]:
        """Of each of `noise`, by latents that are none, or come before it."""
        found = {}
        for name in names:
            later = set(order[order.index(name) :]) & {*noise, *effects} | {name}
            if (scaling := program.scaling(name, frozenset(position) - later)) is not None:
                found[name] = scaling
        return found

    # what is noise of no scale is a latent like any other: a mean, say, that comes after
    return scalings(tuple(scalings(())))


def is_plain_model(sites: Sites) -> bool:
    """Whether all latents are numbers, outside of NumPyro's loops."""
    is_looping = any(site["type"] == "control_flow" for site in sites.values())
    return not is_looping and not transforms_of(sites).has_enumerate_support


def is_noise(site: Site) -> bool:
    """Whether a site is a latent with a location and a scale on the real line."""
    fn = unwrapped(site["fn"])
    return is_latent(site) and MAPS.get(type(fn)) is LOC_SCALE and fn.support is constraints.real
