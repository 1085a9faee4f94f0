"""Chains that start in coordinates of a model's effects."""

from typing import Any, cast

import jax
from jax import Array

from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.adaptation.run import bind, ravel_each
from blackjax_ext.coordinates.partial import first_pseudo, in_coordinates
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.scaled_noise import scaled_noise
from numpyro_fwd.kernels.strategy import (
    Run,
    Source,
    Start,
    Strategy,
    WholeDensity,
    follow_path,
    ravel_one,
)
from numpyro_fwd.types import Args, Kwargs, Model


class Effects(WholeDensity):
    """The effects of a model, and the strategy of steps in coordinates of them.

    ``recorded(target)`` is what is kept of a step.

    effects, noise, on_the_reals
        Names of the effects, of the noise of others, and of the effects with a location and a scale
        on the real line.
    as_written
        Sites that look like effects or like noise and are sampled as they are written, with why.
    """

    def __init__(self, strategy: Strategy, recorded: Function):
        if not isinstance(strategy, WholeDensity):
            raise TypeError(
                "learn_coordinates needs a kernel that reads all rows in each step; got one with "
                f"{type(strategy).__name__}."
            )
        super().__init__(strategy.differentiation)
        self.recorded = recorded
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

    def at(self, source: Source) -> ModelCoordinates:
        """The coordinates for the arguments of a source."""
        return self.of(cast(Model, source.model), *source.arguments)

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """Start chains whose first metric is that of coordinates before anything is observed."""
        if not run.is_searching:
            return super().start(run, rng_key, z, shared)

        def density_of(source):
            coordinates, logdensity_fn = self.at(source), source.logdensity()

            def function(u):
                return in_coordinates(logdensity_fn, coordinates, first_pseudo(coordinates, u))(u)

            return source.view.differentiable(function)

        def entered(arrays, z):
            coordinates = self.at(run.at(arrays))
            return jax.vmap(lambda x: coordinates.into(x, first_pseudo(coordinates, x)))(z)

        def left(arrays, u):
            coordinates = self.at(run.at(arrays))

            def placed(u):
                return coordinates.out(u, first_pseudo(coordinates, u)).position

            return ravel_each(jax.vmap(placed)(u))

        u = run(entered, z)
        start = follow_path(run, rng_key, u, density_of)
        return start._replace(x=run(left, jax.vmap(ravel_one(u))(start.x)))

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The algorithm in the coordinates."""
        del shared

        def bound(logdensity_fn: LogDensity) -> Stepper:
            target = bind(algorithm, logdensity_fn, self.differentiation)
            return cast(Stepper, self.recorded(target))

        return InCoordinates(bound, source.logdensity(), self.at(source))
