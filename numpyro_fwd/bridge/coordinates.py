"""Coordinates of a model's effects, given pseudo-observations of them.

The laws of effects are read by running the model, and :mod:`numpyro_fwd.bridge.hierarchies` says
which laws these are; those of noise that a model scales, from its program
(:mod:`numpyro_fwd.bridge.scaled_noise`).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from numpyro.distributions import biject_to, constraints

from blackjax_ext.coordinates import maps
from blackjax_ext.coordinates.laws import Law, LocScale, Pseudo
from blackjax_ext.coordinates.partial import Placed
from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.stacking import stacked
from numpyro_fwd.bridge.hierarchies import MAPS, bare, kept, law_of, mask_of
from numpyro_fwd.bridge.numpyro_private import Messenger
from numpyro_fwd.bridge.scaled_noise import NoiseProgram, Reading, reason_of_model
from numpyro_fwd.bridge.traces import sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Site

OF_LOOPS = "it is in a loop of NumPyro, in which no law is read"


class placing(Messenger):
    """Give effects their values as the model runs, and keep their laws.

    Parameters
    ----------
    fn
        The model.
    given
        The coordinates of each effect, or its unconstrained value.
    pseudo
        Observations of each effect, or None where the values themselves are given.
    law_of_noise
        From the name of a noise and the values so far, all leaves that are no effects among them,
        to the law of its effect; None for other sites.

    Sites of NumPyro's loops have their values when they come here; they are `fixed`.
    """

    def __init__(
        self,
        fn: Model,
        given: dict[str, Array],
        pseudo: dict[str, Pseudo] | None,
        law_of_noise: Callable[[str, dict[str, Array]], Law | None],
    ):
        super().__init__(fn)
        self.given, self.pseudo = given, pseudo
        self.law_of_noise = law_of_noise
        self.laws: dict[str, Law] = {}
        self.is_real: dict[str, bool] = {}
        self.values: dict[str, Array] = {}
        self.log_det: Any = 0.0
        self.fixed: set[str] = set()

    def process_message(self, msg: Site) -> None:
        """Answer a site."""
        name = msg.get("name")
        if msg["type"] != "sample" or name not in self.given:
            return
        if msg["value"] is not None:
            self.fixed.add(name)
            return
        fn = bare(msg["fn"])
        law = self.law_of_noise(name, self.values)
        if law is None:
            law = law_of(msg["fn"])
        elif (mask := mask_of(msg["fn"])) is not True:
            law = kept(law, mask, 0.0)
        self.laws[name] = law
        is_plain = type(fn) in MAPS  # and has a `loc` and a `scale`
        self.is_real[name] = is_plain and type(law) is LocScale and fn.support is constraints.real
        value = self.given[name]
        if self.pseudo is not None:
            value, log_det = maps.out(law, self.pseudo[name], value)
            self.log_det += log_det
        self.values[name] = value
        msg["value"] = biject_to(msg["fn"].support)(value)


class ModelCoordinates:
    """The coordinates of a model for given arguments.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments.
    names
        Its effects: ``effects_of``.
    noise
        Sites that are the noise of effects: :func:`numpyro_fwd.bridge.scaled_noise.scaled_noise`.
    """

    def __init__(
        self,
        model: Model,
        model_args: Args,
        model_kwargs: Kwargs | None,
        names: tuple[str, ...],
        noise: tuple[str, ...],
    ):
        self.model = model, model_args, model_kwargs
        self.names, self.noise = (*names, *noise), noise
        self.programs: dict[Any, NoiseProgram] = {}

    def program_at(self, position: dict[str, Array]) -> NoiseProgram | None:
        """What the model computes of its noise, if it scales any: read once for these shapes."""
        if not self.noise:
            return None
        key = tuple((name, jax.typeof(leaf)) for name, leaf in sorted(position.items()))
        if key not in self.programs:
            self.programs[key] = NoiseProgram(*self.model, self.noise, position)
        return self.programs[key]

    def run(self, position: dict[str, Array], pseudo: dict[str, Pseudo] | None) -> placing:
        """A run of the model with coordinates of its effects, or with their values."""
        effects = {name: position[name] for name in self.names if name in position}
        rest = {name: leaf for name, leaf in position.items() if name not in effects}
        program = self.program_at(position)
        values = {} if program is None else dict(program.known)

        def law_of_noise(name: str, so_far: dict[str, Array]) -> Law | None:
            if program is None or name not in self.noise:
                return None
            return program.law(name, rest | so_far, values)

        model, model_args, model_kwargs = self.model
        handler = placing(model, effects, pseudo, law_of_noise)
        sites_at(handler, model_args, model_kwargs, rest, jax.random.key(0))
        return handler

    def effects(self, position: dict[str, Array]) -> dict[str, bool | None]:
        """True for each effect, None for every other leaf."""
        return {name: name not in self.noise if name in self.names else None for name in position}

    def on_the_reals(self, position: dict[str, Array]) -> tuple[str, ...]:
        """The effects on the real line with a location and a scale."""
        found: dict[str, bool] = {}
        jax.eval_shape(lambda z: found.update(self.run(z, None).is_real), position)
        return tuple(name for name, flag in found.items() if flag)

    def out(self, u: dict[str, Array], pseudo: dict[str, Any]) -> Placed:
        """The position at `u`."""

        def placed(u: dict[str, Array], pseudo: dict[str, Any]) -> Placed:
            handler = self.run(u, pseudo)
            found = {name: handler.laws.get(name) for name in u}
            return Placed(u | handler.values, handler.log_det, found)

        result: Placed = stacked(placed)(u, pseudo)
        return result

    def into(self, position: dict[str, Array], pseudo: dict[str, Any]) -> dict[str, Array]:
        """The coordinates of a position."""

        def entered(position: dict[str, Array], pseudo: dict[str, Any]) -> dict[str, Array]:
            found = self.run(position, None).laws.items()
            return position | {
                name: maps.into(law, pseudo[name], position[name]) for name, law in found
            }

        result: dict[str, Array] = stacked(entered)(position, pseudo)
        return result


def effects_of(
    model: Model, model_args: Args, model_kwargs: Kwargs | None, position: dict[str, Any]
) -> Reading:
    """The effects of a model at a position: latents whose laws are computed from others.

    None of a model that enumerates discrete latents, and none in a loop of NumPyro
    (``numpyro.contrib.control_flow``), where a site's law may depend on the site itself.
    """
    names: list[str] = []
    kinds: dict[str, str] = {}
    looped: set[str] = set()
    unread = ""

    def laws_at(z):
        nonlocal unread
        handler = placing(model, z, None, lambda *_: None)
        sites = sites_at(handler, model_args, model_kwargs, {}, jax.random.key(0))
        unread = reason_of_model(sites)
        looped.update(handler.fixed)
        latents = {name: site["fn"] for name, site in sites.items() if name in z}
        kinds.update({name: type(bare(fn)).__name__ for name, fn in latents.items()})
        names[:] = [] if unread else handler.laws
        read = {} if unread else handler.laws
        leaves = {name: jax.tree.leaves(fn) for name, fn in latents.items()}
        # those that are traced among them
        return read, {n: [x for x in each if isinstance(x, Array)] for n, each in leaves.items()}

    read, written = dependent(laws_at, position)

    def depends(flags: Any) -> bool:
        return any(jax.tree.leaves(flags))

    effects = tuple(name for name in names if depends(read[name]))
    no_law = "no law of a {} is read: its noise is not known"
    as_written = {
        name: unread or (OF_LOOPS if name in looped else no_law.format(kinds[name]))
        for name, flags in written.items()
        if name not in effects and depends(flags)
    }
    return Reading(effects, as_written)
