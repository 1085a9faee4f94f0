"""Calling a BlackJAX algorithm by the names of its parameters."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.mcmc.metrics import Dense, Factor

__all__ = ["Algorithm", "Facts"]

SUPPLIED = {"rng_key", "state", "logdensity_fn", "step_size", "inverse_mass_matrix", "position"}


class Facts(NamedTuple):
    """What a transition tells, whatever the algorithm."""

    acceptance_rate: Array
    is_divergent: Array
    num_steps: Array


class Algorithm(NamedTuple):
    """A BlackJAX algorithm with its fixed parameters; picklable, since kernels are built when used.

    api
        What ``blackjax.generate_top_level_api_from`` returns.

    Parameters
    ----------
        Parameters of ``init``, of ``build_kernel`` or of the kernel, by name.
    """

    api: Any
    parameters: dict[str, Any]

    def check(self) -> None:
        """Raise TypeError for an unknown or missing parameter, or for no algorithm at all."""
        if not (hasattr(self.api, "init") and hasattr(self.api, "build_kernel")):
            raise TypeError(
                "algorithm must have init and build_kernel, as blackjax.hmc or blackjax_ext.fmala "
                f"do; got {self.api!r}."
            )
        kernel = self.kernel()
        takers = (self.api.init, self.api.build_kernel, kernel)
        known = set().union(*(names(taker) for taker in takers))
        if unknown := sorted(set(self.parameters) - known):
            raise TypeError(
                f"unknown parameters {unknown}; the algorithm takes {sorted(known - SUPPLIED)}."
            )
        for taker in (self.api.init, kernel):
            missing = sorted(required(taker) - set(self.parameters) - SUPPLIED)
            if missing:
                raise TypeError(f"parameters {missing} of the algorithm must be given.")

    def kernel(self) -> Callable:
        """The transition kernel."""
        return self.api.build_kernel(**self.only(self.api.build_kernel))

    def only(self, function: Callable, **supplied: Any) -> dict[str, Any]:
        """The parameters, and those `supplied`, that `function` takes."""
        arguments = {**supplied, **self.parameters}
        return {name: arguments[name] for name in names(function) if name in arguments}

    def init(self, position, logdensity_fn, rng_key, metric: Factor):
        """First state at `position`."""
        supplied = {"rng_key": rng_key, "inverse_mass_matrix": self.preconditioner(metric)}
        return self.api.init(position, logdensity_fn, **self.only(self.api.init, **supplied))

    def step(self, rng_key, state, logdensity_fn, step_size, metric: Factor) -> tuple[Any, Facts]:
        """One transition."""
        kernel = self.kernel()
        supplied = {"step_size": step_size, "inverse_mass_matrix": self.preconditioner(metric)}
        new_state, info = kernel(rng_key, state, logdensity_fn, **self.only(kernel, **supplied))
        rate = jnp.asarray(getattr(info, "acceptance_rate", 1.0))
        facts = Facts(
            jnp.nan_to_num(rate),
            getattr(info, "is_divergent", ~jnp.isfinite(rate)),
            jnp.asarray(getattr(info, "num_integration_steps", 1)),
        )
        return new_state, facts

    def preconditioner(self, metric: Factor) -> Factor | Array:
        """`metric` in the form the algorithm takes: its factor, or a matrix for BlackJAX's own."""
        if self.api.build_kernel.__module__.startswith("blackjax_ext."):
            return metric
        if self.api is not blackjax.barker:
            return metric.inverse()
        # blackjax.barker 1.7 scales its proposal by the mass matrix instead of its inverse
        return metric.sqrt.T @ metric.sqrt if isinstance(metric, Dense) else 1 / metric.inverse()


def names(function: Callable) -> list[str]:
    """Names of the parameters of `function`."""
    return list(inspect.signature(function).parameters)


def required(function: Callable) -> set[str]:
    """Names of its parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name for p in parameters if p.default is p.empty and p.kind not in variadic}
