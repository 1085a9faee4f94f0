"""Sequential Monte Carlo as a NumPyro kernel: the chains are the particles."""

import contextlib
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.infer import NUTS
from numpyro.infer.mcmc import MCMCKernel

from blackjax_ext import moves
from blackjax_ext.checks import check_count, check_positive, check_share
from blackjax_ext.equations import evaluated, needed_equations, traced
from blackjax_ext.mcmc.auto_mala import auto_mala
from blackjax_ext.mcmc.derivatives import differentiation_of
from blackjax_ext.smc import annealing, langevin_smc, sampler
from blackjax_ext.smc.cooled import COLDEST
from blackjax_ext.smc.langevin_smc import LangevinSMCInfo, LangevinSMCState
from blackjax_ext.smc.tempered import COVARIANCE, PARTICLES, next_temperature
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.arguments import (
    SplitArguments,
    check_arguments,
    naming_arguments,
    run_with,
    split_arguments,
)
from numpyro_fwd.bridge.fingerprints import fingerprint
from numpyro_fwd.bridge.numpyro_private import is_prng_key
from numpyro_fwd.bridge.priors import (
    check_latents,
    check_likelihoods,
    constrain,
    draw_prior,
    split_logdensity,
    warn_of_ties,
    warn_without_likelihood,
)
from numpyro_fwd.bridge.starts import NUM_COMPARED, check_products
from numpyro_fwd.bridge.traces import first_sites, imputing
from numpyro_fwd.kernels.notices import InPlace, Notice, compared, noticing_data
from numpyro_fwd.kernels.options import INSTEAD
from numpyro_fwd.kernels.running_mcmc import check_arguments_of_loop
from numpyro_fwd.kernels.smc_state import (
    OF_ANNEALING,
    SHARE,
    TEMPERATURES,
    LangevinSMCKernelState,
    complaints_of_cooling,
    described,
    drawn_from,
    share_to_keep,
    warn_of_annealing,
)
from numpyro_fwd.meshes import check_run, over_chains
from numpyro_fwd.types import Args, Kwargs, Model

# Metropolis' probability for Langevin proposals; share of the sample size for unadjusted ones
TARGETS = {True: 0.574, False: 0.9}
# by the derivatives that a model has
MOVES = {
    "forward": "no reverse mode, which this algorithm needs: give algorithm=blackjax_ext.fmala, or "
    "blackjax_ext.random_walk.",
    "gradients": "gradients alone, as by a custom_vjp, and this algorithm takes other derivatives: "
    "leave algorithm out, or give blackjax_ext.mala.",
    "none": "no derivatives, which this algorithm needs: give algorithm=blackjax_ext.random_walk.",
}


class Climb(NamedTuple):
    """From which temperature to which particles are taken, and how.

    All of it are arguments of one program, which cools and evaluates, too.
    """

    first: Array
    last: Array
    share: Array
    step_size: Array
    max_temperatures: Array

    @classmethod
    def of(cls, first: float, last: float, share: float, step_size: Any, most: int) -> "Climb":
        """The same with arrays, whose types are those of every other climb: one program for all."""
        floats = [jnp.asarray(value, float) for value in (first, last, share, step_size)]
        return cls._make([*floats, jnp.asarray(most, int)])


class LangevinSMC(MCMCKernel):
    r"""Tempered sequential Monte Carlo from prior draws, with Langevin moves.

    Use it with ``MCMC(LangevinSMC(model), num_warmup=..., num_samples=..., num_chains=<particles>,
    chain_method="vectorized")``. The start anneals from the prior to the posterior, in as many
    temperatures as the effective sample size requires. All steps after it move the particles at
    temperature 1. During the first `num_warmup` of these, of which a few are enough, the step size
    continues to adapt. Every draw is a population of the posterior with equal weights.
    :func:`smc_summary` summarizes the sites and the evidence.

    Extra fields: `log_evidence`, `log_evidence_error`, `ess`, `least_ess`, `genealogical_ess`,
    `mixed_ancestors`, `num_temperatures`, `is_forced`, `temperature`, `accept_prob`, `step_size`,
    and `schedule`: ``mcmc.get_extra_fields()["schedule"].temperature[-1]`` has all temperatures,
    its other fields the diagnostics at each.

    Parameters
    ----------
    model
        NumPyro model with proper priors and continuous latents.
    step_size
        First step size, in units of the population: of its covariance if moves are
        Metropolis-adjusted and there are 5 D (D + 1) particles or more in D dimensions, else of its
        standard deviations.
    adapt_step_size
        Adapt it during the warm-up.
    num_moves
        Moves per temperature, and per step after them.
    num_clusters
        After each move every particle tries to jump by a mixture of that many normals, fitted to
        the others (``blackjax_ext.moves.WithJumps``), at the cost of one evaluation: modes keep
        their share, and a nearly normal posterior mixes better. 0 for none.
    l_kernel
        None for Metropolis-adjusted moves; "reversed", "random_walk" or "gaussian" for unadjusted
        ones, weighted by that backward kernel.
    algorithm
        Metropolis kernel to move with: ``blackjax_ext.mala``, ``blackjax_ext.hp_mala``,
        ``blackjax.hmc``, ...; None for ``blackjax_ext.auto_mala``, whose step size adapts to the
        position of each particle.
    ess_threshold
        Resample below this share of the particles.
    tempering_ess
        Share of the conditional effective sample size a temperature may leave. None for 0.9 with
        1,000 particles or more, and for more with fewer, up to 0.978 with 200, so that each
        temperature adds no more to the variance of the log evidence than with 1,000.
    max_temperatures
        Maximum number of temperatures; the last one is 1 even if the weights become very uneven.
    parameters
        Further keywords of `algorithm`; of unadjusted moves `num_integration_steps`, 1 by default.

    Raises
    ------
    ValueError, TypeError
        For an argument, a model or a chain method that cannot work.

    Warns
    -----
    UserWarning
        After the annealing: if there were `max_temperatures` temperatures, if the least
        effective sample size was below a tenth of the particles, if there are fewer than 20, if
        all particles descend from one draw of the prior, or from less than half as many as if their
        Metropolis moves had mixed, if the population is lost, or, where nothing of this is so, if
        particles that are cooled past temperature 1 find mass that the population has missed.

    Notes
    -----
    A kernel keeps its annealing compiled for other keys, and for other data of the same shapes.
    The loop around the steps after it is kept by :class:`numpyro_fwd.MCMC`; NumPyro's compiles it
    in every run. Where the evidence is all that is wanted, there is none in
    ``kernel.init(jax.random.split(key, particles), 0, None, args, kwargs)``, whose state has it.

    The evidence is biased by O(1 / particles), because temperatures, step sizes and scales are
    chosen by looking at the particles.

    A population is lost if `least_ess` was below 5 (or a tenth of the particles, if that is less),
    so that one particle and its copies are the ancestors of all, or if the log likelihood is so
    large that rounding moves it by 0.5 (4e6 in single precision).
    `log_evidence` is then NaN, and `diverging` true for every particle. Take more particles, or
    double precision.

    Latents in a ``numpyro.handlers.scale`` start from draws of the prior as it is without the
    scale; what the scale adds to the density counts as likelihood, and is in the evidence.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import LangevinSMC
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> mcmc = MCMC(LangevinSMC(model), num_warmup=5, num_samples=1, num_chains=1000,
    ...             chain_method="vectorized", progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]), extra_fields=("log_evidence",))
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.2)
    True
    """

    sample_field = "z"
    default_fields = ("z", "diverging", "ancestors")
    is_ensemble_kernel = True

    def __init__(
        self,
        model: Model,
        *,
        step_size: float = 1.0,
        adapt_step_size: bool = True,
        num_moves: int = 3,
        num_clusters: int = 8,
        l_kernel: str | Function | None = None,
        algorithm: Any = None,
        ess_threshold: float = 0.5,
        tempering_ess: float | None = None,
        max_temperatures: int = 1000,
        **parameters: Any,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        of_nuts = {*inspect.signature(NUTS).parameters, *INSTEAD} & parameters.keys()
        if of_nuts:
            raise TypeError(
                f"LangevinSMC takes no {', '.join(sorted(of_nuts))}: particles start from "
                "draws of the prior, and their covariance is the metric. Give step_size, "
                "num_moves, or num_integration_steps with algorithm=blackjax.hmc."
            )
        rest = parameters.keys() - {"num_integration_steps"}
        if l_kernel is not None and (algorithm is not None or rest):
            raise ValueError("l_kernel and algorithm exclude each other: give one of them.")
        check_positive("step_size", step_size)
        check_share("ess_threshold", ess_threshold)
        if tempering_ess is not None:
            check_share("tempering_ess", tempering_ess)
        check_count("num_moves", num_moves)
        check_count("max_temperatures", max_temperatures)
        if num_clusters != 0:
            check_count("num_clusters", num_clusters)
        if algorithm is None:
            # a step that suits each particle's place: with one for all, a narrow mode dies out
            algorithm = auto_mala
        self._is_adjusted = l_kernel is None
        if len(rest) < len(parameters):
            check_count("num_integration_steps", parameters["num_integration_steps"])
        self._move: Any = (
            moves.Metropolis(algorithm, **parameters)
            if l_kernel is None
            else moves.Unadjusted(l_kernel=l_kernel, **parameters)
        )
        if num_clusters:
            self._move = moves.WithJumps(self._move, num_clusters)
        self._given, self._model = model, imputing(model)
        self._step_size = step_size
        self._adapt_step_size = adapt_step_size
        self._tempering_ess = tempering_ess
        self._max_temperatures = max_temperatures
        self._num_moves = num_moves
        self._ess_threshold = ess_threshold
        self._sample_fn: Function | None = None
        self._programs: dict[Any, Function] = {}
        self._in_place = InPlace()

    @property
    def model(self) -> Model:
        """The model, as given."""
        return self._given

    def get_diagnostics_str(self, state: LangevinSMCKernelState) -> str:
        """Number of temperatures, ancestors and evidence for the progress bar."""
        return (
            f"{state.num_temperatures[0]:.0f} temperatures, {state.genealogical_ess[0]:.0f} "
            f"ancestors. log evidence={state.log_evidence[0]:.2f}"
        )

    def postprocess_fn(self, model_args: Args, model_kwargs: Kwargs | None) -> Function:
        """Map from unconstrained particles to the sites' supports and deterministic sites."""
        return constrain(self._model, model_args, model_kwargs)

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: Args,
        model_kwargs: Kwargs | None,
    ) -> LangevinSMCKernelState:
        """First population: prior draws, one per key."""
        if is_prng_key(rng_key):
            raise ValueError(
                "LangevinSMC needs MCMC(..., num_chains=<particles>, chain_method='vectorized') "
                "with at least 2 particles."
            )
        if init_params is not None:
            raise ValueError("init_params must be None: LangevinSMC starts from prior draws.")
        model_kwargs = model_kwargs or {}
        check_run(type(self).__name__, rng_key, num_warmup, model_args, model_kwargs)
        check_arguments_of_loop(model_args, model_kwargs)
        num = rng_key.shape[0]
        rng_key, key_sites, key_prior, key_anneal = jax.random.split(rng_key[0], 4)
        check_arguments(model_args, model_kwargs)
        sites = first_sites(key_sites, self._model, model_args, model_kwargs)
        check_latents(sites)
        warn_without_likelihood(sites)
        made = fingerprint(model_args, model_kwargs)
        model_args, model_kwargs = self._in_place.as_they_are(made, model_args, model_kwargs)
        with naming_arguments(model_args, model_kwargs):
            z = draw_prior(key_prior, self._model, model_args, model_kwargs, num)
            z = over_chains(z)
            warn_of_ties(z)
            split = split_arguments(model_args, model_kwargs)
            anneal: Function = jax.jit(partial(self._annealed, split))
            if split.key is not None:
                anneal = self._programs.setdefault(split.key, anneal)
            keys = jax.random.split(key_anneal)
            with explaining_derivatives(self._model, model_args, model_kwargs, z):
                program = partial(run_with, split, anneal)
                share = self._tempering_ess or share_to_keep(num)
                climb = Climb.of(0.0, 1.0, share, self._step_size, self._max_temperatures)
                state, loglikelihood = program(*keys, z, climb)
        check_likelihoods(loglikelihood, self._model, model_args, model_kwargs, z)
        self._sample_fn = self.sample
        warn_of_annealing(
            *(state, self._max_temperatures),
            is_adjusted=self._is_adjusted,
            share=share,
            missed=lambda: self._missed(program, keys, state),
        )
        check_products(lambda: self._energies(split, state.inner.position))
        return state._replace(
            rng_key=rng_key, num_warmup=jnp.array(num_warmup, int), data=noticing_data(made)
        )

    def _energies(self, split: SplitArguments, z: Any) -> Array:
        """Log densities of a few particles, by a program of their own."""

        @jax.jit
        def energies(arrays, z):
            return jax.vmap(density_of(self._model, *split.join(arrays)))(z)

        return run_with(split, energies, jax.tree.map(lambda leaf: leaf[:NUM_COMPARED], z))

    def _densities(
        self, z: Any, model_args: Args, model_kwargs: Kwargs
    ) -> tuple[LogDensity, LogDensity]:
        """Log prior and log likelihood, of which a program evaluates each five times.

        So the model runs once for each, and operations that are alike go together.
        """
        first = jax.tree.map(lambda leaf: leaf[0], z)
        prior, likelihood = split_logdensity(self._model, model_args, model_kwargs)
        return (
            traced(stacked(prior), first, evaluate=needed)[0],
            traced(stacked(likelihood), first, evaluate=needed)[0],
        )

    def _annealed(
        self,
        split: SplitArguments,
        arrays: list[Any],
        key_climb: Array,
        key_resample: Array,
        z: Any,
        climb: Climb,
    ) -> tuple[LangevinSMCKernelState, Array]:
        """Particles taken along `climb`, and the log likelihoods that they began with."""
        densities = self._densities(z, *split.join(arrays))
        first = langevin_smc.init(z, *densities, differentiation=self._move.differentiation)
        first = first._replace(temperature=climb.first.astype(first.temperature.dtype))
        size = first.log_weights.size

        def step(i, inner, step_size):
            least = jnp.where(i == climb.max_temperatures - 1, climb.last, 0.0)
            weights = inner.log_weights, inner.local.loglikelihood
            share = climb.share, least, climb.last
            temperature = next_temperature(inner.temperature, *weights, *share)
            key = jax.random.fold_in(key_climb, i)
            inner, info = self._step(key, inner, densities, step_size, temperature)
            return inner, info, self._adapted(step_size, info)

        inner, info, step_size, schedule = annealing.climb(
            *(step, first, climb.step_size, self._max_temperatures),
            last_temperature=climb.last,
        )
        inner = equalized(key_resample, inner)
        mixed = annealing.mixed_ancestors(schedule, size, self._ess_threshold)
        num = jnp.full(size, schedule.num_temperatures)
        state = described(
            *(inner, info, step_size, jnp.minimum(size, jnp.nanmin(schedule.least_ess))),
            i=jnp.zeros((), int),
            schedule=jax.tree.map(lambda leaf: leaf[None], schedule),
            mixed_ancestors=jnp.zeros_like(inner.log_weights) + mixed,
            num_temperatures=num,
            is_forced=num == schedule.temperature.size,
        )
        return state, first.local.loglikelihood

    def _missed(self, program: Function, keys: Array, state: LangevinSMCKernelState) -> list[str]:
        """A sentence on mass that particles find when they are cooled, if it is missing.

        The program of the annealing does all of it: where first and last temperature are the same
        it evaluates the density.
        """
        key_climb, key_resample, key_draws = jax.random.split(keys[1], 3)
        most = min(TEMPERATURES, self._max_temperatures)
        cooling = Climb.of(1.0, COLDEST, SHARE, state.step_size[0], most)
        cold, _ = program(key_climb, key_resample, state.z, cooling)
        y, share, log_q = drawn_from(key_draws, cold.z, cold.inner.temperature, state.z)
        there, _ = program(
            key_climb, key_resample, over_chains(y), cooling._replace(last=cooling.first)
        )
        return complaints_of_cooling(state, share, -there.potential_energy - log_q)

    def _step(
        self,
        rng_key: Array,
        inner: LangevinSMCState,
        densities: tuple[LogDensity, LogDensity],
        step_size: Array,
        temperature: Array | float,
    ) -> tuple[LangevinSMCState, LangevinSMCInfo]:
        kernel = langevin_smc.build_kernel(
            self._move, num_moves=self._num_moves, ess_threshold=self._ess_threshold
        )
        scales = COVARIANCE if self._is_adjusted else PARTICLES
        return kernel(rng_key, inner, *densities, step_size, scales, temperature=temperature)

    def _adapted(self, step_size: Array, info: LangevinSMCInfo) -> Array:
        """The step size after a step that adapts it, if any does."""
        change = jnp.clip(info.acceptance_rate - TARGETS[self._is_adjusted], -0.5)
        return step_size * jnp.exp(change) if self._adapt_step_size else step_size

    def sample(
        self, state: LangevinSMCKernelState, model_args: Args, model_kwargs: Kwargs | None
    ) -> LangevinSMCKernelState:
        """Moves at temperature 1, where the warm-up adapts their step size; equal weights."""
        rng_key, key_step, key_resample = jax.random.split(cast(Array, state.rng_key), 3)
        step_size = state.step_size[0]
        with naming_arguments(model_args, model_kwargs):
            densities = self._densities(state.z, model_args, model_kwargs or {})
            inner, info = self._step(key_step, state.inner, densities, step_size, 1.0)
        # what the moves do at temperature 1 tells nothing new of the evidence
        inner = equalized(key_resample, inner)._replace(
            log_evidence=state.inner.log_evidence, variance=state.inner.variance
        )
        is_adapting = state.i < state.num_warmup
        step_size = jnp.where(is_adapting, self._adapted(step_size, info), step_size)
        data = cast(Notice, state.data)
        return described(
            *(inner, info, step_size, jnp.minimum(state.least_ess, info.least_ess)),
            **{name: getattr(state, name) for name in OF_ANNEALING},
            i=state.i + 1,
            rng_key=rng_key,
            data=compared(data, data.facts.made, model_args, model_kwargs),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs and what tells MCMC that the kernel is ready."""
        return {**self.__dict__, "_sample_fn": None, "_programs": {}, "_in_place": InPlace()}


def density_of(model: Model, model_args: Args, model_kwargs: Kwargs) -> LogDensity:
    """Log density of prior and likelihood."""
    prior, likelihood = split_logdensity(model, model_args, model_kwargs)
    return lambda z: prior(z) + likelihood(z)


def needed(program: Any, constants: list[Any], leaves: list[Any]) -> list[Any]:
    """What a program returns, without what a model computes besides it."""
    if not program.effects:
        program = program.replace(eqns=needed_equations(program))
    return evaluated(program, constants, leaves)


@contextlib.contextmanager
def explaining_derivatives(
    model: Model, model_args: Args, model_kwargs: Kwargs, z: Any
) -> Iterator[None]:
    """Say which derivatives a model lacks where an algorithm fails for that."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(word in str(error).lower() for word in ("differentiat", "jvp", "vjp")):
            raise
        first = jax.tree.map(lambda leaf: leaf[0], z)
        mode = differentiation_of(density_of(model, model_args, model_kwargs), first, "none")
        if mode not in MOVES:
            raise
        raise ValueError(f"model has {MOVES[mode]}") from error


def equalized(rng_key: Array, state: LangevinSMCState) -> LangevinSMCState:
    """The population resampled to equal weights, unless they are."""
    particles = state.position, state.local, state.ancestors
    population = sampler.Population(particles, state.log_weights, state.log_evidence)
    # rounding leaves the effective sample size of equal weights a little below N
    population, _ = sampler.resample_below(rng_key, population, 1.0 - 1e-4)
    position, local, ancestors = population.particles
    return state._replace(
        position=position, local=local, log_weights=population.log_weights, ancestors=ancestors
    )
