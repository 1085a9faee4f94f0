"""Any BlackJAX algorithm, called by the names of its parameters."""

import difflib
import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, Metric
from blackjax.util import generate_gaussian_noise
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation.windows import MANY
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function

SUPPLIED = {
    *("rng_key", "state", "logdensity_fn", "potential"),
    *("step_size", "inverse_mass_matrix", "position", "random_generator_arg"),
}

# what kernels take in the place of a log density, that no model gives
OTHER_TARGETS = {"grad_estimator", "logdensity_estimator", "laplace"}
ELSEWHERE = (
    "For minibatches use numpyro_fwd.AMAGOLD, L2MC or SGHMC; run others in a loop of their own."
)

NO_RATE = (
    "algorithm reports no acceptance_rate that a step size could be adapted to, and its bias may "
    "grow with the step size: give a step_size of your own with adapt_step_size=False, or take an "
    "algorithm that accepts and rejects, such as blackjax.hmc, blackjax.nuts or blackjax_ext.mala."
)


class StepInfo(NamedTuple):
    """Report of a transition, whatever the algorithm.

    acceptance_rate
        Acceptance probability; None for an algorithm with a step size that has none.
    is_divergent
        Whether the proposal was rejected because something there was not finite.
    num_steps
        Integration steps, 1 but for Hamiltonian algorithms.
    num_rows
        Rows that the acceptance test read, 0 for algorithms that do not say.
    has_moved
        Whether the position changed.
    first_rate
        What the step size is adapted to in place of the acceptance probability, by algorithms that
        select their steps: that of the step that was given. None for the others.
    hidden
        Coordinate that rounding hides where the step began or tried to end, -1 if none; None for
        algorithms that do not say.
    energy, num_doublings
        Of a trajectory; None for algorithms that do not say.
    laws
        Laws of the effects where the step ended; None for steps in the position itself.
    """

    acceptance_rate: Array | None
    is_divergent: Array
    num_steps: Array
    num_rows: Array
    has_moved: Array
    first_rate: Array | None = None
    hidden: Array | None = None
    energy: Array | None = None
    num_doublings: Array | None = None
    laws: Any = None

    @property
    def tuning_rate(self) -> Array:
        """Rate that the step size is adapted to."""
        return jnp.asarray(self.acceptance_rate if self.first_rate is None else self.first_rate)

    def rated(self, *, is_adapting: bool) -> "StepInfo":
        """The info with an acceptance probability; TypeError if there is none to adapt to."""
        if self.acceptance_rate is not None:
            return self
        if is_adapting:
            raise TypeError(NO_RATE)
        return self._replace(acceptance_rate=jnp.ones(self.is_divergent.shape))


class Algorithm(NamedTuple):
    """A BlackJAX algorithm with its fixed parameters; picklable, since kernels are built when used.

    Attributes
    ----------
    api
        What ``blackjax.generate_top_level_api_from`` returns.
    parameters
        Parameters of ``init``, of ``build_kernel`` or of the kernel, by name.
    """

    api: Any
    parameters: dict[str, Any]

    def check(self, others: Iterable[str] = (), instead: dict[str, str] | None = None) -> None:
        """Raise TypeError for an unknown or missing parameter, or for no algorithm at all.

        `others` are names that whoever calls takes besides, and `instead` says of unknown ones what
        to take in their place.
        """
        if not (hasattr(self.api, "init") and hasattr(self.api, "build_kernel")):
            raise TypeError(
                "algorithm must have init and build_kernel, as blackjax.hmc or blackjax_ext.fmala "
                f"do; got {self.api!r}."
            )
        builder = self.api.build_kernel
        if "mcmc_step_fn" in names(builder):
            raise TypeError(
                "algorithm must step one chain; this one moves a population by an mcmc_step_fn. "
                "Use numpyro_fwd.LangevinSMC, or run it by itself."
            )
        if missing := sorted(required(builder) - set(self.parameters)):
            raise TypeError(f"parameters {missing} of the algorithm must be given.")
        kernel = self.kernel()
        if stranger := OTHER_TARGETS & set(names(kernel)[2:3]):
            raise TypeError(
                "algorithm must sample from a log density; this one's kernel takes a "
                f"{stranger.pop()} in its place. {ELSEWHERE}"
            )
        takers = (self.api.init, builder, kernel)
        known = set().union(*(names(taker) for taker in takers))
        if unknown := sorted(set(self.parameters) - known):
            told = [f"{name}: {text}" for name, text in (instead or {}).items() if name in unknown]
            if told:
                raise TypeError(f"this kernel takes no {' '.join(told)}")
            raise TypeError(
                f"unknown parameters {unknown}; the algorithm takes {sorted(known - SUPPLIED)}."
                f"{nearest(unknown, known - SUPPLIED | set(others))}"
            )
        in_place = {*names(kernel)[:3]}  # whatever their names are
        for taker, given in ((self.api.init, set()), (kernel, in_place)):
            given = given | SUPPLIED | set(self.parameters)
            missing = sorted(required(taker) - given)
            if missing:
                raise TypeError(f"parameters {missing} of the algorithm must be given.")

    def kernel(self) -> Function:
        """The transition kernel."""
        kernel: Function = self.api.build_kernel(**self.only(self.api.build_kernel))
        return kernel

    def only(self, function: Function, **supplied: Any) -> dict[str, Any]:
        """The parameters, and those `supplied`, that `function` takes."""
        arguments = {**supplied, **self.parameters}
        return {name: arguments[name] for name in names(function) if name in arguments}

    def takes(self) -> list[str]:
        """Names of what the kernel takes in each step, besides key, state and target."""
        return names(self.kernel())[3:]

    def having(self, **parameters: Any) -> "Algorithm":
        """The algorithm with further parameters, or other values of them."""
        return Algorithm(self.api, self.parameters | parameters)

    @property
    def is_own(self) -> bool:
        """Whether the algorithm is one of `blackjax_ext`."""
        module: str = self.api.build_kernel.__module__
        return module.startswith("blackjax_ext.")

    @property
    def is_hamiltonian(self) -> bool:
        """Whether the algorithm is one of BlackJAX that follows trajectories with a metric."""
        return self.api in (blackjax.hmc, blackjax.nuts)

    def preconditioner(self, metric: Factor) -> Any:
        """`metric` in the form the algorithm takes: its factor, or arrays for BlackJAX's own."""
        if self.is_own:
            return metric
        # blackjax.barker 1.7 scales its proposal by the mass matrix instead of its inverse
        is_inverted = self.api is blackjax.barker
        if isinstance(metric, LowRank):
            parts = metric.scale, metric.vectors, metric.values
            if is_inverted:
                parts = 1.0 / metric.scale, metric.vectors, 1.0 / metric.values
            return LowRankInverseMassMatrix(*parts)
        if self.is_hamiltonian and isinstance(metric, Dense) and len(metric.sqrt) > MANY:
            return euclidean(metric)
        inverse = metric.inverse()
        return metric.precision(inverse.shape[-1]) if is_inverted else inverse


def euclidean(factor: Dense) -> Metric:
    """The metric for ``blackjax.hmc`` and ``blackjax.nuts``, which factorize a matrix in each step.

    In many dimensions that would cost more than the trajectory.
    """

    def flat(tree: Any) -> Array:
        return ravel_pytree(tree)[0]

    def scale(position: Any, element: Any, *, inv: bool, trans: bool) -> Any:
        del position
        x, unravel = ravel_pytree(element)
        root = factor.inverse_sqrt if inv else factor.sqrt
        return unravel(root @ x if trans else x @ root)

    def sample_momentum(rng_key: Array, position: Any) -> Any:
        noise = generate_gaussian_noise(rng_key, position)
        return scale(position, noise, inv=False, trans=False)

    def kinetic_energy(momentum: Any, position: Any = None) -> Array:
        return 0.5 * jnp.sum(flat(scale(position, momentum, inv=True, trans=False)) ** 2)

    def check_turning(left: Any, right: Any, total: Any, *positions: Any, **named: Any) -> Array:
        del positions, named
        ends = jnp.stack([flat(left), flat(right)])
        rho = flat(total) - 0.5 * (ends[0] + ends[1])
        return ~jnp.all(factor.inverse_times(ends) @ rho > 0)

    return Metric(sample_momentum, kinetic_energy, check_turning, scale)


class Stepper(Protocol):
    """An algorithm on its target, as a warm-up and a kernel call it."""

    def init(self, position: Any, rng_key: Array, metric: Factor) -> Any:
        """First state at `position`."""

    def renew(self, rng_key: Array, state: Any, metric: Factor) -> Any:
        """The state where `state` is, for steps in another metric."""

    def step(
        self, rng_key: Array, state: Any, step_size: Array, metric: Any, **supplied: Any
    ) -> tuple[Any, StepInfo]:
        """One transition; `supplied` are parameters that change from step to step."""


class BoundAlgorithm(NamedTuple):
    """An algorithm on a log density.

    algorithm
        The algorithm, with its fixed parameters.
    logdensity_fn
        Log density on the unconstrained space, or what the algorithm takes in its place.
    """

    algorithm: Algorithm
    logdensity_fn: Any

    def init(self, position: Any, rng_key: Array, metric: Factor) -> Any:
        """First state at `position`."""
        algorithm = self.algorithm
        supplied = {"rng_key": rng_key, "inverse_mass_matrix": algorithm.preconditioner(metric)}
        supplied["random_generator_arg"] = rng_key  # of trajectories of random length
        arguments = algorithm.only(algorithm.api.init, **supplied)
        return check_state(algorithm.api.init(position, self.logdensity_fn, **arguments))

    def renew(self, rng_key: Array, state: Any, metric: Factor) -> Any:
        """The state anew in `metric`; `state` itself where states do not depend on one."""
        if "inverse_mass_matrix" not in names(self.algorithm.api.init):
            return state
        return self.init(state.position, rng_key, metric)

    def step(
        self, rng_key: Array, state: Any, step_size: Array, metric: Factor, **supplied: Any
    ) -> tuple[Any, StepInfo]:
        """One transition; `supplied` are parameters that change from step to step."""
        algorithm, kernel = self.algorithm, self.algorithm.kernel()
        arguments = algorithm.only(
            kernel,
            step_size=step_size,
            inverse_mass_matrix=algorithm.preconditioner(metric),
        )
        logdensity_fn, unpacked = self.logdensity_fn, None
        if algorithm.is_hamiltonian and len(jax.tree.leaves(state.position)) > 1:
            state, logdensity_fn, unpacked = packed(state, logdensity_fn)
        new_state, info = kernel(rng_key, state, logdensity_fn, **{**arguments, **supplied})
        rate = jnp.nan_to_num(getattr(info, "acceptance_rate", 1.0))
        is_fine = jnp.isfinite(getattr(info, "acceptance_rate", new_state.logdensity))
        is_fine &= getattr(info, "nonans", True)  # of blackjax.mclmc, which steps back from NaN
        # one who takes no step size has nothing to adapt by a rate
        is_rated = hasattr(info, "acceptance_rate") or "step_size" not in algorithm.takes()
        return new_state if unpacked is None else unpacked(new_state), StepInfo(
            rate if is_rated else None,
            getattr(info, "is_divergent", ~is_fine),
            jnp.asarray(
                getattr(info, "num_integration_steps", getattr(info, "num_evaluations", 1))
            ),
            jnp.asarray(getattr(info, "num_rows", 0)),
            getattr(info, "has_moved", is_different(state.position, new_state.position)),
            getattr(info, "first_rate", None),
            energy=getattr(info, "energy", None),
            num_doublings=getattr(info, "num_trajectory_expansions", None),
        )


def coordinates_of(states: Any) -> Any:
    """Coordinates in which steps are taken: the position, but for states that name others."""
    return states.coordinates if hasattr(states, "coordinates") else states.position


def gradients_of(states: Any) -> Any:
    """Gradients in the coordinates that steps are taken in; None for states without any.

    A metric of the position has its own use for them.
    """
    chains = getattr(states, "chain", states)  # of a state that names its coordinates
    return None if hasattr(chains, "metric") else getattr(chains, "logdensity_grad", None)


def packed(state: Any, logdensity_fn: Function) -> tuple[Any, Function, Function]:
    """A state and its density with vectors in place of trees, and the way back.

    A trajectory that doubles chooses between states at each turn, leaf by leaf.
    """
    x, unravel = ravel_pytree(state.position)
    flat = state._replace(position=x, logdensity_grad=ravel_pytree(state.logdensity_grad)[0])

    def unpacked(state: Any) -> Any:
        position, gradient = unravel(state.position), unravel(state.logdensity_grad)
        return state._replace(position=position, logdensity_grad=gradient)

    return flat, stacked(lambda x: logdensity_fn(unravel(x))), unpacked


def check_state(state: Any) -> Any:
    """The state; TypeError for one without a position and its log density, of a single chain."""
    lacking = [name for name in ("position", "logdensity") if not hasattr(state, name)]
    if lacking:
        fields = getattr(state, "_fields", ())
        raise TypeError(
            f"algorithm must have states with a position and its logdensity; {type(state).__name__}"
            f" has no {' and no '.join(lacking)}, but {list(fields)}. Run it in a loop of its own."
        )
    return state


def is_different(position: Any, other: Any) -> Array:
    """Whether two positions differ anywhere."""
    pairs = zip(jax.tree.leaves(position), jax.tree.leaves(other), strict=True)
    return jnp.array([jnp.any(a != b) for a, b in pairs]).any()


def nearest(unknown: list[str], known: Iterable[str]) -> str:
    """A sentence with the known names that the unknown ones resemble; empty if there are none."""
    pairs = [(name, difflib.get_close_matches(name, sorted(known), 1)) for name in unknown]
    suggestions = [f"{close[0]} instead of {name}" for name, close in pairs if close]
    return f" Did you mean {', '.join(suggestions)}?" if suggestions else ""


def names(function: Function) -> list[str]:
    """Names of the parameters of `function`."""
    return list(inspect.signature(function).parameters)


def required(function: Function) -> set[str]:
    """Names of its parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name for p in parameters if p.default is p.empty and p.kind not in variadic}
