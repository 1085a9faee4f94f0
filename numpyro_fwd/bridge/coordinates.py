"""Partly centred coordinates of a model's effects (:mod:`blackjax_ext.coordinates.partial`).

The laws of effects are read by running the model, as :mod:`numpyro_fwd.bridge.hierarchies` does,
whose table says which laws these are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array
from numpyro.distributions import biject_to, constraints

from blackjax_ext.coordinates import laws
from blackjax_ext.coordinates.laws import Law, LocFactor, LocScale, Walk
from blackjax_ext.coordinates.partial import Placed
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function
from numpyro_fwd.bridge.hierarchies import FREE, MAPS, map_of, mixed, shaped, shifted, walked
from numpyro_fwd.bridge.numpyro_private import Messenger
from numpyro_fwd.bridge.predictors import unwrapped
from numpyro_fwd.bridge.traces import sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Site

__all__ = ["ModelCoordinates"]

LAWS: dict[Function, Callable[..., Law]] = {
    shifted: LocScale,
    shaped: LocScale,
    mixed: LocFactor,
    walked: Walk,
}


def law_of(fn: Any) -> Law:
    """The law of the unconstrained values of a distribution."""
    found = map_of(fn) or FREE
    return LAWS[found.out](*found.made_of(fn))


class placing(Messenger):
    """Give effects their values as the model runs, and keep their laws.

    Parameters
    ----------
    fn
        The model.
    given
        The coordinates of each effect, or its unconstrained value.
    centredness
        Of each effect, or None where the values themselves are given.
    """

    def __init__(self, fn: Model, given: dict[str, Array], centredness: dict[str, Array] | None):
        super().__init__(fn)
        self.given, self.centredness = given, centredness
        self.laws: dict[str, Law] = {}
        self.is_real: dict[str, bool] = {}
        self.values: dict[str, Array] = {}
        self.log_det: Any = 0.0
        self.is_looping = False

    def process_message(self, msg: Site) -> None:
        """Answer a site."""
        self.is_looping |= msg["type"] == "control_flow"
        name = msg.get("name")
        if msg["type"] != "sample" or name not in self.given or self.is_looping:
            return
        fn = unwrapped(msg["fn"])
        self.laws[name] = law = law_of(fn)
        is_plain = type(fn) in MAPS  # and has a `loc` and a `scale`
        self.is_real[name] = (
            is_plain and isinstance(law, LocScale) and fn.support is constraints.real
        )
        value = self.given[name]
        if self.centredness is not None:
            value, log_det = laws.out(law, self.centredness[name], value)
            self.log_det += log_det
        self.values[name] = value
        msg["value"] = biject_to(msg["fn"].support)(value)


def placed(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    names: tuple[str, ...],
    position: dict[str, Array],
    centredness: dict[str, Array] | None,
) -> placing:
    """A run of a model with coordinates of its effects, or with their values."""
    effects = {name: position[name] for name in names if name in position}
    rest = {name: leaf for name, leaf in position.items() if name not in effects}
    handler = placing(model, effects, centredness)
    sites_at(handler, model_args, model_kwargs, rest, jax.random.key(0))
    return handler


class ModelCoordinates:
    """The coordinates of a model for given arguments.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments.
    names
        Its effects: :func:`numpyro_fwd.bridge.hierarchies.effects_of`.
    """

    def __init__(
        self, model: Model, model_args: Args, model_kwargs: Kwargs | None, names: tuple[str, ...]
    ):
        self.run = partial(placed, model, model_args, model_kwargs, names)
        self.names = names

    def effects(self, position: dict[str, Array]) -> dict[str, bool | None]:
        """True for each effect, None for every other leaf."""
        return {name: True if name in self.names else None for name in position}

    def on_the_reals(self, position: dict[str, Array]) -> tuple[str, ...]:
        """The effects on the real line with a location and a scale."""
        found: dict[str, bool] = {}
        jax.eval_shape(lambda z: found.update(self.run(z, None).is_real), position)
        return tuple(name for name, flag in found.items() if flag)

    def out(self, u: dict[str, Array], centredness: dict[str, Any]) -> Placed:
        """The position at `u`."""

        def placed(u: dict[str, Array], centredness: dict[str, Any]) -> Placed:
            handler = self.run(u, centredness)
            found = {name: handler.laws.get(name) for name in u}
            return Placed(u | handler.values, handler.log_det, found)

        result: Placed = stacked(placed)(u, centredness)
        return result

    def into(self, position: dict[str, Array], centredness: dict[str, Any]) -> dict[str, Array]:
        """The coordinates of a position."""

        def entered(position: dict[str, Array], centredness: dict[str, Any]) -> dict[str, Array]:
            found = self.run(position, None).laws.items()
            return position | {
                name: laws.into(law, centredness[name], position[name]) for name, law in found
            }

        result: dict[str, Array] = stacked(entered)(position, centredness)
        return result
