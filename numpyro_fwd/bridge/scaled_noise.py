r"""Effects that a model writes by their noise: z has a fixed law, and the model sees m + M z.

The law of z says nothing of m and M, which are computed from other latents; the program of the
model does. It is traced, and z is followed from operation to operation, as long as one alone takes
what the last has made, and makes of z what is affine in it: products with, quotients by and sums
with what has no part of z. So the value at the end is affine in z, all else of the model sees z
through it alone, and what it is at zero and along z, in forward mode, is m and M:

- :class:`~blackjax_ext.coordinates.laws.LocScaleNoise` where each entry of z makes one entry;
- :class:`~blackjax_ext.coordinates.laws.LocFactorNoise` where the last axis of z, or the first,
  went through a square matrix of latents: of that matrix the lower triangle is taken;
- ``WalkNoise`` where sums of z along its last axis, and else numbers alone, made it.

After a choice of rows, as in ``mu + tau * z[group]``, single numbers count, as they do the same to
each entry; after another product with a matrix of data, single numbers that are factors.

So a horseshoe's ``z * lambda * tau``, varying slopes ``z @ (s * L).T``, and what
``LocScaleReparam(0)`` makes of a model are understood alike. m and M are computed from latents that
come before z, or are no effects. What is read decides only where coordinates are worth while, which
are exact for any m and M that z has no part in.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints

from blackjax_ext.coordinates.laws import ColumnsNoise, Law, LocFactorNoise, LocScaleNoise
from blackjax_ext.coordinates.sequences import walk
from blackjax_ext.equations import Reader, Value, is_program, outputs_of
from blackjax_ext.primitives import CONVERTING, INDEXING, PLACING, RESHAPING
from numpyro_fwd.bridge.hierarchies import LOC_SCALE, MAPS, bare
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer, transforms_of
from numpyro_fwd.bridge.traces import is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Site, Sites

AS_ONE_NUMBER = CONVERTING | {"broadcast_in_dim", "reshape", "squeeze"}
ARITHMETIC: dict[str, Callable[[Any, Any], Array]] = {
    "add": jnp.add,
    "add_any": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
}
SCALING = frozenset(["mul", "div", "dot_general"])
MIXING = frozenset(["cumsum", "dot_general", "reduce_sum"])
# how entries of a value are those of the noise: one by one, chosen and copied, or in sums
EACH, CHOSEN, MIXED = range(3)


class Reading(NamedTuple):
    """What is read of a model.

    names
        Sites that have coordinates.
    as_written
        Others that look as if they should have, and why they have none.
    """

    names: tuple[str, ...]
    as_written: dict[str, str]


class Step(NamedTuple):
    """An operation of a program, with its values."""

    equation: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Name of its primitive."""
        return str(self.equation.primitive.name)


class Turn(NamedTuple):
    """An operation on the way from a noise to its effect.

    step
        The operation.
    place
        Which of its arguments comes from the noise.
    other
        The other one, None if there is none; of an array of copies what was copied.
    """

    step: Step
    place: int
    other: Value | None

    def __call__(self, x: Any, other: Any) -> Array:
        """What it makes of `x`."""
        inputs = (x,) if self.other is None else (x, other) if self.place == 0 else (other, x)
        if self.step.name in ARITHMETIC:
            return ARITHMETIC[self.step.name](*inputs)
        result: Array = outputs_of(self.step.equation, *inputs)[0]
        return result


class Scaling(NamedTuple):
    """How a model makes an effect of a noise.

    turns
        The operations.
    kind
        "each", "rows" or "columns" of a matrix, or "walk"; "none" if no latent scales it.
    end
        The operation at which reading stopped, if one is not understood.
    """

    turns: tuple[Turn, ...]
    kind: str
    end: Turn | None


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
        self.seen: dict[Any, tuple[Value, ...]] = {}
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
        """Outputs of an equation, which is kept; those of an equal one, if there is one."""
        inputs = tuple(map(self.first_of, inputs))
        kind: Any = equation.primitive.name, str(equation.params), inputs
        if any(map(is_program, jax.tree.leaves(equation.params, is_leaf=is_program))):
            kind = len(self.steps)  # programs may differ in constants that they do not show
        if kind not in self.seen:
            outputs = tuple(self.new(variable) for variable in equation.outvars)
            self.seen[kind] = outputs
            self.steps.append(Step(equation, inputs, outputs))
        return list(self.seen[kind])

    def first_of(self, value: Value) -> Value:
        """The first constant that has these whole numbers, as indices of groups; else the value."""
        constant = self.known.get(value.number)
        is_index = jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == bool
        if constant is None or not is_index or not not_jax_tracer(constant):
            return value
        kind = value.shape, value.dtype, np.asarray(constant).tobytes()
        return self.seen.setdefault(kind, (value,))[0]

    def latents_of(self, value: Value | None) -> frozenset[str]:
        """Latents that a value is computed from."""
        return frozenset() if value is None else self.latents.get(value, frozenset())

    def maker(self, value: Value | None) -> Step | None:
        """The operation that makes a value, if one does."""
        place = None if value is None else self.places.get(value)
        return None if place is None else self.steps[place]

    def way(self, name: str) -> Iterator[Turn]:
        """Operations that a noise goes through alone."""
        value = self.inputs[name]
        while len(users := self.users[value]) == 1 and users[0].inputs.count(value) == 1:
            step = users[0]
            place = step.inputs.index(value)
            if len(step.inputs) > 2 or len(step.outputs) > 1:
                return
            yield Turn(step, place, step.inputs[1 - place] if len(step.inputs) == 2 else None)
            value = step.outputs[0]

    def scaling(self, name: str, before: frozenset[str]) -> Scaling:
        """What makes an effect of a noise, with latents `before` it."""
        turns: list[Turn] = []
        moves: list[Step] = []  # choices and copies
        last, kind, entries = 0, "each", EACH  # `last` of the turns is one that latents make
        is_scaled = has_sum = False
        shape = self.inputs[name].shape
        for turn in self.way(name):
            found = self.latents_of(turn.other)
            operation = turn.step.name
            number = self.number_of(turn.other) or self.undone(turn.other, moves, shape)
            if found - before:
                break
            if entries == EACH and np.prod(turn.step.outputs[0].shape) != np.prod(shape):
                entries = CHOSEN  # of each there are copies
            if operation in ARITHMETIC:
                is_sum = operation in ("add", "add_any", "sub")
                is_late = entries == MIXED or kind != "each"  # for a location
                if is_sum and ((not found and number is None) or (found and is_late and entries)):
                    break  # of a residual, or of another term
                if operation == "div" and (turn.place == 1 or (has_sum and found)):
                    break
                if number is None and (entries != EACH or kind == "walk"):
                    if found:
                        break
                    entries = MIXED  # by data
                    continue
                if is_sum and is_late and (entries or kind == "walk"):
                    continue
                has_sum |= is_sum
                turns.append(turn if number is None else turn._replace(other=number))
                is_scaled |= bool(found) and not is_sum
                last = len(turns)
            elif operation in CONVERTING | {"neg"}:
                turns.append(turn)
            elif operation == "dot_general" and found:
                axis = self.axis_of_matrix(turn, shape)
                if kind != "each" or entries != EACH or axis is None:
                    break
                kind, is_scaled = axis, True
                turns.append(turn)
                last = len(turns)
            elif found:
                break
            elif operation == "cumsum" and self.is_walk(turn, turns, kind, entries):
                kind = "walk"
            elif operation in RESHAPING and turn.step.outputs[0].shape == turn.step.inputs[0].shape:
                continue
            elif operation in RESHAPING and kind == "each" and entries == EACH:
                turns.append(turn)
            elif operation in PLACING | INDEXING and turn.place == 0:
                entries = max(entries, CHOSEN)
                moves.append(turn.step)
            elif operation in MIXING:
                entries = MIXED
            else:
                break
        else:
            return Scaling(tuple(turns[:last]), kind if is_scaled else "none", None)
        return Scaling(tuple(turns[:last]), kind if is_scaled else "none", turn)

    def reason(self, name: str, before: frozenset[str]) -> str:
        """Why a noise is sampled as written, in words for its user."""
        end, uses = self.scaling(name, before).end, self.users[self.inputs[name]]
        if end is None:
            if len(uses) > 1:
                return f"{len(uses)} operations use it, and what they make is not one value"
            return "nothing that is sampled scales it"
        if late := self.latents_of(end.other) - before:
            return f"{listed(late)} at {end.step.name!r}: not sampled before it, or noise too"
        if (scales := self.latents_of(end.other)) and end.step.name in SCALING:
            return f"{end.step.name!r} with {listed(scales)} is not read"
        return f"nothing that is sampled scales it before {end.step.name!r}"

    def axis_of_matrix(self, turn: Turn, shape: tuple[int, ...]) -> str | None:
        """Which axis of a noise a square matrix is multiplied with, if it stays in its place."""
        matrix = turn.step.inputs[1 - turn.place]
        contracted, batch = turn.step.equation.params["dimension_numbers"]
        own = contracted[turn.place]
        is_square = len(matrix.shape) == 2 and matrix.shape[0] == matrix.shape[1]
        if any(batch) or not is_square or len(own) != 1 or turn.step.outputs[0].shape != shape:
            return None
        if len(shape) == 1 or (turn.place == 0 and own[0] == len(shape) - 1):
            return "rows"
        return "columns" if turn.place == 1 and own[0] == 0 and len(shape) == 2 else None

    def is_walk(self, turn: Turn, turns: list[Turn], kind: str, entries: int) -> bool:
        """Whether an operation makes sums of all up to each, of steps that one number scales."""
        params, rank = turn.step.equation.params, len(turn.step.inputs[0].shape)
        is_last = params["axis"] == rank - 1 and not params["reverse"]
        numbers = all(self.is_number(each) for each in turns)
        return is_last and kind == "each" and entries == EACH and numbers

    def is_number(self, turn: Turn) -> bool:
        """Whether an operation does the same to all entries, and moves none from zero."""
        if turn.other is None:
            return True
        return turn.step.name in ("mul", "div") and np.prod(turn.other.shape) == 1

    def number_of(self, value: Value | None) -> Value | None:
        """The one number of which a value is made of copies; None if there are more."""
        while value is not None and np.prod(value.shape) != 1:
            step = self.maker(value)
            value = step.inputs[0] if step is not None and step.name in AS_ONE_NUMBER else None
        return value

    def undone(
        self, value: Value | None, moves: list[Step], shape: tuple[int, ...]
    ) -> Value | None:
        """The value of the shape of a noise of which `value` has the same choices and copies."""
        for move in reversed(moves):
            step = self.maker(value)
            if step is None or step.name != move.name or step.inputs[1:] != move.inputs[1:]:
                return None
            if str(step.equation.params) != str(move.equation.params):
                return None
            value = step.inputs[0]
        return value if moves and value is not None and value.shape == shape else None

    def law(self, name: str, known: dict[str, Any], values: dict[int, Any]) -> Law:
        """The law of an effect, from what is known of a position.

        `values` are those of the program so far, at first `known` of it; more are added.
        """
        inputs = self.inputs
        values |= {inputs[name].number: leaf for name, leaf in known.items() if name in inputs}
        scaling = self.scaling(name, frozenset(known))
        if scaling.kind == "none":  # of other arguments, with which all is different
            return LocScaleNoise(jnp.zeros(()), jnp.ones(()))
        wanted = [turn.other for turn in scaling.turns if turn.other is not None]
        others = dict(zip(wanted, self.computed(wanted, values), strict=True))

        def effect(z: Array) -> Array:
            for turn in scaling.turns:
                if jnp.ndim(z) == 0 and turn.step.name in RESHAPING:
                    continue
                other = None if turn.other is None else others[turn.other]
                if other is not None and np.prod(np.shape(other)) == 1:
                    other = jnp.reshape(other, ())
                z = turn(z, other)
            return z

        shape, dtype = inputs[name].shape, inputs[name].dtype
        if scaling.kind == "walk":
            scale = jax.jvp(effect, (jnp.zeros((), dtype),), (jnp.ones((), dtype),))[1]
            return walk(scale, shape[-1], is_noise=True)
        zero = jnp.zeros(shape, dtype)
        if scaling.kind == "each":
            loc, scale = jax.jvp(effect, (zero,), (jnp.ones(shape, dtype),))
            return LocScaleNoise(loc.reshape(shape), scale.reshape(shape))
        axis = -1 if scaling.kind == "rows" else 0
        basis = jnp.eye(shape[axis], dtype=dtype)

        def column(e: Array) -> Array:
            along = e if axis == -1 else e[:, None]
            result: Array = jax.jvp(effect, (zero,), (jnp.broadcast_to(along, shape),))[1]
            return result

        matrix = jnp.moveaxis(jax.vmap(column)(basis), 0, -1)  # of each entry its row
        if axis == -1:
            return LocFactorNoise(effect(zero), jnp.tril(matrix))
        return ColumnsNoise(effect(zero).T, jnp.tril(jnp.swapaxes(matrix, 0, 1)))

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


def scaled_noise(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    position: dict[str, Any],
    effects: tuple[str, ...],
) -> Reading:
    """The sites that a model scales as noise; `effects` are those that are no noise.

    None of a model that enumerates discrete latents.
    """
    order: list[str] = []
    names: list[str] = []
    unread = ""

    def look(z):
        nonlocal unread
        sites = sites_at(model, model_args, model_kwargs, z, jax.random.key(0))
        unread = reason_of_model(sites)
        order.extend(sites)
        names.extend(
            name
            for name, site in sites.items()
            if name in z and name not in effects and is_noise(site)
        )

    jax.eval_shape(look, position)
    if unread or not names:
        return Reading((), dict.fromkeys(names, unread))
    program = NoiseProgram(model, model_args, model_kwargs, tuple(names), position)

    def before(name: str, noise: tuple[str, ...]) -> frozenset[str]:
        """Latents that are no `noise`, or come before a name."""
        later = {*order[order.index(name) :]} & {*noise, *effects}
        return frozenset(position) - later - {name}

    def scaled(noise: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that are scaled by latents that are no `noise`, or come before."""
        scalings = ((name, program.scaling(name, before(name, noise))) for name in names)
        return tuple(name for name, scaling in scalings if scaling.kind != "none")

    # what is noise of no scale is a latent like any other: a mean, say, that comes after
    found = scaled(scaled(()))
    # one number alone looks like any latent
    others = (name for name in names if name not in found and np.size(position[name]) > 1)
    return Reading(found, {name: program.reason(name, before(name, found)) for name in others})


def listed(names: Iterable[str]) -> str:
    """Names in order, separated by commas."""
    return ", ".join(sorted(names))


def reason_of_model(sites: Sites) -> str:
    """Why no site of a model is read; empty if no latents are enumerated."""
    is_enumerated = transforms_of(sites).has_enumerate_support
    return "the model sums over discrete latents, and no law is read there" if is_enumerated else ""


def is_noise(site: Site) -> bool:
    """Whether a site is a latent with a location and a scale on the real line."""
    fn = bare(site["fn"])
    return is_latent(site) and MAPS.get(type(fn)) is LOC_SCALE and fn.support is constraints.real
