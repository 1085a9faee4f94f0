"""Chains that start in coordinates of a model's effects."""

from typing import Any

import jax
from jax import Array

from blackjax_ext.adaptation.algorithm import Stepper
from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.coordinates import learning
from blackjax_ext.coordinates.partial import Coordinates, Frame, first_pseudo, in_coordinates
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.types import Function
from numpyro_fwd.bridge.views import logdensity_of
from numpyro_fwd.kernels.strategy import Run, Start, Strategy, WholeDensity, ravel_one

__all__ = [
    "check_alone",
    "check_has_gradient",
    "check_same_effects",
    "check_whole",
    "initial_coordinates",
    "start_in_coordinates",
]


def initial_coordinates(
    target: Stepper, metric: Factor, position: Any
) -> tuple[Any, learning.Learned | None]:
    """Coordinates of the first step, and what is known of them if `target` has them."""
    if not isinstance(target, InCoordinates):
        return metric, None
    learned = learning.first_learned(first_pseudo(target.coordinates, position))
    return Frame(metric, learned.pseudo), learned


def check_whole(strategy: Strategy) -> None:
    """Raise TypeError unless a kernel that learns coordinates reads the model as one density."""
    if type(strategy) is not WholeDensity:
        raise TypeError(
            "learn_coordinates needs a kernel that reads all rows in each step; got one with "
            f"{type(strategy).__name__}."
        )


def check_has_gradient(state: Any) -> None:
    """Raise TypeError unless a state in coordinates has the gradient that they are learned from."""
    if getattr(state.chain, "logdensity_grad", None) is None:
        raise TypeError(
            "learn_coordinates needs an algorithm whose state has a logdensity_grad, such as "
            f"blackjax.nuts, blackjax.hmc or blackjax.mala; got {type(state.chain).__name__}."
        )


def check_same_effects(learned: learning.Learned | None, names: set[str]) -> None:
    """Raise ValueError unless what is learned of is what a model has for the arguments of a run."""
    found = set() if learned is None else {k for k, c in learned.pseudo.items() if c is not None}
    if found != names:
        raise ValueError(
            f"the state that is resumed has learned coordinates of {sorted(found)}, and with these "
            f"arguments the effects of the model are {sorted(names)}. Run the warm-up on them, "
            "mcmc.post_warmup_state = None."
        )


def check_alone(parameters: dict[str, Any]) -> None:
    """Raise TypeError if an algorithm knows more of the model than its density."""
    if parameters:
        raise TypeError(
            "learn_coordinates needs an algorithm that knows of the model its density alone; this "
            f"kernel also hands it {sorted(parameters)}."
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
