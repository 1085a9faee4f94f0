"""Samplers of BlackJAX by name, with the settings of the paper, for small targets."""

from collections.abc import Callable
from typing import Any

import blackjax_ext

SHORT = {"num_integration_steps": 10, "friction": 0.25}
# algorithm, noise of its gradients, arguments
SETTINGS = {
    "SGHMC": ("sghmc", 1.0, SHORT),
    "AMAGOLD": ("amagold", 1.0, SHORT),
    "L2MC": ("l2mc", 0.0, SHORT),
    "HMC": ("l2mc", 0.0, SHORT | {"friction": 0.0}),
}
WALK = "random walk"


def make_sampler(name: str, logdensity: Callable, potential: Any, step_size: Any):
    """The sampler of a name: on minibatches of the potential, or on the density."""
    if name == WALK:
        return blackjax_ext.random_walk(logdensity, step_size)
    algorithm, _, arguments = SETTINGS[name]
    return getattr(blackjax_ext, algorithm)(potential, step_size, **arguments)
