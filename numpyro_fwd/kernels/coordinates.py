"""Chains that start in coordinates of a model's effects."""

from functools import partial
from typing import Any, cast

import jax
from jax import Array

from blackjax_ext.adaptation.algorithm import Stepper
from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.coordinates.partial import Coordinates, first_pseudo, in_coordinates
from blackjax_ext.types import Function
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.scaled_noise import scaled_noise
from numpyro_fwd.bridge.views import logdensity_of
from numpyro_fwd.kernels.strategy import (
    Run,
    Source,
    Start,
    Strategy,
    WholeDensity,
    ravel_one,
)
from numpyro_fwd.types import Args, Kwargs, Model

__all__ = ["Effects"]


class Effects:
    """The effects of a model, and steps in coordinates of them.

    effects, noise, on_the_reals
        Names of the effects, of the noise of others, and of the effects with a location and a scale
        on the real line.
    as_written
        Sites that look like effects or like noise and are sampled as they are written, with why.
    """

    def __init__(self, strategy: Strategy):
        check_whole(strategy)
        self.effects: tuple[str, ...] = ()
        self.noise: tuple[str, ...] = ()
        self.on_the_reals: tuple[str, ...] = ()
        self.as_written: dict[str, str] = {}

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.effects, *self.noise}

    def look(self, model: Model, model_args: Args, model_kwargs: Kwargs | None, z: Any) -> None:
        """Find the effects of a model at a position."""
        of_model = model, model_args, model_kwargs
        effects = effects_of(*of_model, z)
        noise = scaled_noise(*of_model, z, effects.names)
        self.effects, self.noise = effects.names, noise.names
        self.as_written = noise.as_written | effects.as_written
        self.on_the_reals = self.of(*of_model).on_the_reals(z) if self.names else ()

    def of(self, model: Model, model_args: Args, model_kwargs: Kwargs | None) -> ModelCoordinates:
        """The coordinates for these arguments."""
        return ModelCoordinates(model, model_args, model_kwargs, self.effects, self.noise)

    def start(self, strategy: Strategy, run: Run, rng_key: Array, z: Any) -> Start:
        """Start chains in the first coordinates."""
        model = cast(Model, run.source.model)
        return start_in_coordinates(strategy, run, rng_key, z, partial(self.of, model))

    def target(
        self, bind: Function, source: Source, model_args: Args, model_kwargs: Kwargs | None
    ) -> Stepper:
        """The target of a step; ``bind(logdensity_fn)`` is an algorithm on a log density."""
        coordinates = self.of(cast(Model, source.model), model_args, model_kwargs)
        logdensity_fn = logdensity_of(source.view, model_args, model_kwargs)
        return InCoordinates(bind, logdensity_fn, coordinates)


def check_whole(strategy: Strategy) -> None:
    """Raise TypeError unless a kernel that learns coordinates reads the model as one density."""
    if type(strategy) is not WholeDensity:
        raise TypeError(
            "learn_coordinates needs a kernel that reads all rows in each step; got one with "
            f"{type(strategy).__name__}."
        )


def start_in_coordinates(
    strategy: Strategy, run: Run, rng_key: Array, z: Any, coordinates_for: Function
) -> Start:
    """Start chains whose first metric is that of coordinates before anything is observed.

    ``coordinates_for(model_args, model_kwargs)`` are the coordinates of these arguments.
    """
    if not run.is_searching:
        return strategy.start(run, rng_key, z, None)

    def potential_fn(*args, **kwargs):
        coordinates: Coordinates = coordinates_for(args, kwargs)
        logdensity_fn = logdensity_of(run.source.view, args, kwargs)

        def function(u):
            return -in_coordinates(logdensity_fn, coordinates, first_pseudo(coordinates, u))(u)

        return function

    def entered(arrays, z):
        coordinates = coordinates_for(*run.arguments.join(arrays))
        return jax.vmap(lambda x: coordinates.into(x, first_pseudo(coordinates, x)))(z)

    def left(arrays, u):
        coordinates = coordinates_for(*run.arguments.join(arrays))

        def placed(u):
            return coordinates.out(u, first_pseudo(coordinates, u)).position

        return ravel_each(jax.vmap(placed)(u))

    view = run.source.view._replace(potential_fn=potential_fn)
    within = run._replace(source=run.source._replace(view=view))
    u = run(entered, z)
    start = strategy.start(within, rng_key, u, None)
    x = run(left, jax.vmap(ravel_one(u))(start.x))
    return start._replace(x=x)
