"""How a kernel sees a model's density: what chains share, where they start, what a step runs on.

A :class:`Strategy` has three methods, and :class:`WholeDensity` is that of every kernel which reads
all data as one density. :mod:`numpyro_fwd.kernels.row_strategies` has those that read rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation import budget, report
from blackjax_ext.adaptation.algorithm import Algorithm, StepInfo, Stepper
from blackjax_ext.adaptation.run import bind, ravel_each
from blackjax_ext.adaptation.start import find_start
from blackjax_ext.mcmc.derivatives import Wanted
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.programs import compiled_soon
from blackjax_ext.raising import Raised, forgiving
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.arguments import SplitArguments, run_with
from numpyro_fwd.bridge.numpyro_private import is_prng_key, not_jax_tracer
from numpyro_fwd.bridge.starts import check_finite
from numpyro_fwd.bridge.views import View, logdensity_of
from numpyro_fwd.kernels.running_mcmc import Say, silent
from numpyro_fwd.types import Args, Kwargs


class Source(NamedTuple):
    """Source of a density.

    model
        The kernel's model; None for a bare potential energy.
    view
        The model, or the potential energy, as a density.
    known
        What is known of its rows; None where nothing is.
    model_args, model_kwargs
        Arguments of the model.
    """

    model: Any
    view: View
    known: Any = None
    model_args: Args = ()
    model_kwargs: Kwargs | None = None

    def of(self, model_args: Args, model_kwargs: Kwargs | None) -> "Source":
        """The same with these arguments."""
        return self._replace(model_args=model_args, model_kwargs=model_kwargs)

    @property
    def arguments(self) -> tuple[Args, Kwargs | None]:
        """Positional and keyword arguments of the model."""
        return self.model_args, self.model_kwargs

    def logdensity(self) -> LogDensity:
        """Log density on the unconstrained space."""
        return logdensity_of(self.view, self.model_args, self.model_kwargs)


class Run(NamedTuple):
    """A run as a kernel describes it to its strategy.

    source
        The model, its view and its arguments.
    arguments
        The arguments, arrays and the rest apart.
    num_warmup
        Steps of the warm-up.
    is_searching
        Whether to look for a better start than the one given.
    adapts_metric
        Whether the warm-up adapts the metric.
    programs
        Compiled searches that earlier chains of the kernel left.
    raised
        What their programs raised.
    say
        Says what the kernel is doing to whoever waits.
    is_given
        Whether chains start at ``init_params``.
    """

    source: Source
    arguments: SplitArguments
    num_warmup: int
    is_searching: bool
    adapts_metric: bool
    programs: dict[Any, Function]
    raised: Raised
    say: Say = silent
    is_given: bool = False

    def at(self, arrays: list[Any]) -> Source:
        """The source with these arrays among its arguments."""
        return self.source.of(*self.arguments.join(arrays))

    def __call__(self, function: Function, *arguments: Any) -> Any:
        """``function(arrays, *arguments)``, compiled, NaN where it raises; see ``forgiving``."""
        program = compiled_soon(forgiving(function, self.raised), runs_once=True)
        return run_with(self.arguments, program, *arguments)

    def compiled(self, function: Function) -> Function:
        """``function(arrays, *arguments)`` as a compiled function of the other arguments."""
        return partial(run_with, self.arguments, compiled_soon(function))

    def search(
        self, function: Function, key: Any, x: Any, one_by_one: Function | None = None
    ) -> Any:
        """Search from x, (C, D), by the program that an earlier sequential chain left, if any.

        Once more by `one_by_one`, if it is given, where the model raised at a point.

        Only a search for a start is reused, which no state of the chain depends on: a model may
        read what is not among its arguments, and that may have changed.
        """
        # paths of gradients alone take more operations than are counted
        is_counted = budget.takes_hessians(x.shape[1], self.source.view.differentiation)
        program: Function = compiled_soon(forgiving(function, self.raised), runs_once=is_counted)
        if self.arguments.key is not None and not_jax_tracer(x):
            of_program = self.arguments.key, x.shape, one_by_one is None
            program = self.programs.setdefault(of_program, program)
        self.raised.first = ""
        found = jax.block_until_ready(run_with(self.arguments, program, key, x))
        is_done = one_by_one is None or not self.raised.first
        return found if is_done else self.search(cast(Function, one_by_one), key, x)


class Keys(NamedTuple):
    """Keys of C chains, shape (C,): of their state, of their first states, of the step size."""

    state: Array
    first: Array
    step_size: Array


class Start(NamedTuple):
    """Start of C chains.

    x
        Flat positions, shape (C, D).
    metric
        First metric, unless the user gave one; None for the identity.
    is_whitened
        Whether the metric is the posterior's curvature, so that the step size needs no search.
    keys
        Keys that are left.
    is_structured
        Whether `metric` keeps its own structure, whatever ``dense_mass`` asks for.
    step_size
        Factor of the step size that is given.
    """

    x: Array
    metric: Factor | None
    is_whitened: bool
    keys: Keys
    is_structured: bool = False
    step_size: Array | float = 1.0


class Strategy(Protocol):
    """Interface to a strategy; arrays of positions lead with the chains."""

    def prepare(self, run: Run, z: Any) -> Any:
        """Make once what all chains share and no step changes; None for nothing."""

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """Start chains whose first guesses are `z`, with keys (C,)."""

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The target of a step of `algorithm`."""


class WholeDensity:
    """All data as one density; the start is the end of a path.

    Parameters
    ----------
    differentiation
        "reverse", "forward" or "none": what the algorithm takes.
    """

    forgives = True  # a step to where the model raises is rejected

    def __init__(self, differentiation: Wanted):
        self.differentiation: Wanted = differentiation

    def prepare(self, run: Run, z: Any) -> Any:
        """None: chains share nothing."""

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """A draw from the best normal approximation on a path, and its metric if it has one."""
        del shared
        return follow_path(run, rng_key, z, Source.logdensity)

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The algorithm on the log density."""
        del shared
        return bind(algorithm, source.logdensity(), self.differentiation)


class Still(NamedTuple):
    """State of a chain that has nowhere to go."""

    position: Any
    logdensity: Array


class NoSteps(NamedTuple):
    """A stepper for positions without coordinates."""

    logdensity_fn: LogDensity

    def init(self, position: Any, rng_key: Array, metric: Factor) -> Still:
        """The state at the only position there is."""
        del rng_key, metric
        return Still(position, jnp.asarray(self.logdensity_fn(position)))

    def renew(self, rng_key: Array, state: Still, metric: Factor) -> Still:
        """The state as it is."""
        del rng_key, metric
        return state

    def step(
        self, rng_key: Array, state: Still, step_size: Array, metric: Factor, **supplied: Any
    ) -> tuple[Still, StepInfo]:
        """The state as it is, accepted."""
        del rng_key, step_size, metric, supplied
        zero, yes = jnp.zeros((), int), jnp.array(True)
        return state, StepInfo(jnp.ones_like(state.logdensity), ~yes, zero, zero, yes)


class Motionless:
    """For models without unconstrained coordinates: no latents, or simplexes of one entry.

    Each draw is the only value that the latents can have, with the deterministic sites.
    """

    def prepare(self, run: Run, z: Any) -> Any:
        """None: chains share nothing."""

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """The only position there is."""
        del run, z, shared
        return Start(jnp.zeros((rng_key.shape[0], 0)), None, False, split_keys(rng_key)[0])

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """Steps that lead nowhere."""
        del algorithm, shared
        return NoSteps(source.logdensity())


def follow_path(run: Run, rng_key: Array, z: Any, density_of: Function) -> Start:
    """Start at the end of a path, if the run looks for a start.

    ``density_of(source)`` is the log density.
    """
    keys, key_path = split_keys(rng_key)
    x, differentiation = ravel_each(z), run.source.view.differentiation
    if not run.is_searching or differentiation == "none":
        evaluate(run, x, z, density_of)
        return Start(x, None, False, keys)
    unravel = ravel_one(z)

    def find(arrays, key, x, *, is_one_by_one=False):
        logdensity_fn = density_of(run.at(arrays))
        return find_start(
            *(key, lambda x: logdensity_fn(unravel(x)), x, differentiation),
            is_one_by_one=is_one_by_one,
        )

    run.say("looking for a start")
    starts = run.search(find, key_path[0], x, partial(find, is_one_by_one=True))
    check_finite(starts.first_values)
    if not_jax_tracer(starts.x):
        report.warn_of_starts(starts, report.sites_of(z))
    is_whitened = run.adapts_metric and starts.metric is not None
    return Start(starts.x, starts.metric if is_whitened else None, is_whitened, keys)


@partial(compiled_soon, static_argnums=1, runs_once=True)
def split_each(rng_key: Array, num: int) -> tuple[Array, ...]:
    """Split a key, or each key of a batch, into `num`."""
    if is_prng_key(rng_key):
        return tuple(jax.random.split(rng_key, num))
    keys = jax.vmap(lambda key: jax.random.split(key, num))(rng_key)
    return tuple(keys[:, j] for j in range(num))


def split_keys(rng_key: Array) -> tuple[Keys, Array]:
    """Keys for the chains, and one of each for the search of its start."""
    state, search, first, step_size = split_each(rng_key, 4)
    return Keys(state, first, step_size), search


def ravel_one(z: Any) -> Callable[[Array], Any]:
    """Map a flat position (D,) to a pytree like the position of one of the chains in `z`."""
    unravels = []

    def look(z):  # traced for its shapes: nothing is computed
        unravels.append(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], z))[1])

    jax.eval_shape(look, z)
    return unravels[0]


def evaluate(run: Run, x: Array, z: Any, density_of: Function) -> Array:
    """Log densities at x, shape (C,); ValueError unless they are finite."""
    unravel = ravel_one(z)

    def at_all(arrays, x):
        logdensity_fn = density_of(run.at(arrays))
        return jax.vmap(lambda x: logdensity_fn(unravel(x)))(x)

    values = run(at_all, x)
    check_finite(values)
    return values
