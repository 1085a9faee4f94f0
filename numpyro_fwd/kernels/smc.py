"""Sequential Monte Carlo as a NumPyro kernel: the chains are the particles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.smc.resampling import systematic
from jax import Array
from numpyro.infer.mcmc import MCMCKernel

import blackjax_ext
from blackjax_ext import moves
from blackjax_ext.checks import check_count, check_positive, check_share
from blackjax_ext.smc import langevin_smc, sampler
from blackjax_ext.smc.langevin_smc import LangevinSMCState
from blackjax_ext.smc.tempered import COVARIANCE, PARTICLES, next_temperature
from numpyro_fwd.bridge.arguments import check_arguments, naming_arguments
from numpyro_fwd.bridge.numpyro_private import is_prng_key
from numpyro_fwd.bridge.priors import (
    check_latents,
    check_likelihoods,
    constrain,
    draw_prior,
    split_logdensity,
)
from numpyro_fwd.bridge.traces import first_sites

__all__ = ["LangevinSMC", "LangevinSMCKernelState"]

# Metropolis' probability for Langevin proposals; share of the sample size for unadjusted ones
TARGETS = {True: 0.574, False: 0.9}
MAX_CHANGE = 0.5
MIN_ESS = 5.0  # a few more than 1: resampling leaves copies of one particle
MAX_ROUNDING = 0.5  # of a log density: its difference then says nothing


class LangevinSMCKernelState(NamedTuple):
    """State of the population; every field but `i`, `inner` and `rng_key` leads with the particles.

    i
        Iteration, counted from the start of the warm-up.
    inner
        State of ``blackjax_ext.langevin_smc``; its weights are equal.
    temperature
        Power of the likelihood: 1 after the warm-up.
    log_evidence
        Logarithm of the estimate of the evidence: of the model, after the warm-up.
    ess
        Effective sample size before the weights were made equal.
    least_ess
        Least effective sample size since the start, before any resampling.
    accept_prob
        Acceptance probability, or the share of the sample size that unadjusted moves kept.
    step_size
        Frozen after the warm-up.
    diverging
        Whether what a particle would have moved to was not finite; for all particles, whether the
        population is lost (see :class:`LangevinSMC`).
    rng_key
        Key of the next step.
    """

    i: Array
    inner: LangevinSMCState
    temperature: Array
    log_evidence: Array
    ess: Array
    least_ess: Array
    accept_prob: Array
    step_size: Array
    diverging: Array
    rng_key: Array
    num_warmup: Array

    @property
    def z(self) -> Any:
        """Unconstrained particles."""
        return self.inner.position


class LangevinSMC(MCMCKernel):
    r"""Tempered sequential Monte Carlo from prior draws, with Langevin moves.

    Use it with ``MCMC(LangevinSMC(model), num_warmup=..., num_samples=..., num_chains=<particles>,
    chain_method="vectorized")``. The warm-up anneals from the prior to the posterior in at most
    `num_warmup` temperatures, chosen by the effective sample size; every draw after it is a
    population of the posterior with equal weights. Extra fields: `log_evidence`, `ess`,
    `least_ess`, `temperature`, `accept_prob`, `step_size`.

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
        Moves per step.
    l_kernel
        None for Metropolis-adjusted moves; "reversed", "random_walk" or "gaussian" for unadjusted
        ones, weighted by that backward kernel.
    num_integration_steps
        Leapfrog steps of an unadjusted move, 1 by default, or of an `algorithm` that takes them.
    algorithm
        Metropolis kernel to move with: ``blackjax_ext.hp_mala``, ``blackjax.hmc``, ...
    ess_threshold
        Resample below this share of the particles.
    tempering_ess
        Share of the conditional effective sample size a temperature may leave.
    parameters
        Further keywords of `algorithm`.

    Raises
    ------
    ValueError, TypeError
        For an argument, a model or a chain method that cannot work.

    The evidence is biased by O(1 / particles), because temperatures, step sizes and scales are
    chosen by looking at the particles. With a `num_warmup` so short that temperatures must be
    forced up, its variance grows: see `least_ess`.

    A population is lost if `least_ess` was below 5 (or a tenth of the particles, if that is less),
    so that one particle and its copies are the ancestors of all, or if the log likelihood is so
    large that rounding moves it by 0.5 (4e6 in single precision).
    `log_evidence` is then NaN, and `diverging` true for every particle. Take more temperatures
    (`num_warmup`), more particles, or double precision.

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
    >>> mcmc = MCMC(LangevinSMC(model), num_warmup=20, num_samples=1, num_chains=1000,
    ...             chain_method="vectorized", progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]), extra_fields=("log_evidence",))
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.2)
    True
    """

    sample_field = "z"
    default_fields = ("z", "diverging")
    is_ensemble_kernel = True

    def __init__(
        self,
        model: Callable,
        *,
        step_size: float = 1.0,
        adapt_step_size: bool = True,
        num_moves: int = 5,
        l_kernel: str | Callable | None = None,
        num_integration_steps: int | None = None,
        algorithm: Any = None,
        ess_threshold: float = 0.5,
        tempering_ess: float = 0.7,
        **parameters: Any,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        if l_kernel is not None and (algorithm is not None or parameters):
            raise ValueError("l_kernel and algorithm exclude each other: give one of them.")
        check_positive("step_size", step_size)
        check_share("ess_threshold", ess_threshold)
        check_share("tempering_ess", tempering_ess)
        check_count("num_moves", num_moves)
        algorithm = blackjax_ext.mala if algorithm is None else algorithm
        self._is_adjusted = l_kernel is None
        if num_integration_steps is not None:
            check_count("num_integration_steps", num_integration_steps)
            parameters["num_integration_steps"] = num_integration_steps
        self._move: Any = (
            metropolis(algorithm, parameters)
            if l_kernel is None
            else moves.Unadjusted(l_kernel=l_kernel, **parameters)
        )
        self._model = model
        self._step_size = step_size
        self._adapt_step_size = adapt_step_size
        self._tempering_ess = tempering_ess
        self._num_moves = num_moves
        self._ess_threshold = ess_threshold
        self._sample_fn: Callable | None = None

    @property
    def model(self) -> Callable:
        """The model, as given."""
        return self._model

    def get_diagnostics_str(self, state: LangevinSMCKernelState) -> str:
        """Temperature, effective sample size and evidence for the progress bar."""
        return (
            f"temperature {state.temperature[0]:.2e}. ess={state.ess[0]:.0f}. "
            f"log evidence={state.log_evidence[0]:.2f}"
        )

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Map from unconstrained particles to the sites' supports and deterministic sites."""
        return constrain(self._model, model_args, model_kwargs)

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> LangevinSMCKernelState:
        """First population: prior draws, one per key."""
        if is_prng_key(rng_key):
            raise ValueError(
                "LangevinSMC needs MCMC(..., num_chains=<particles>, chain_method='vectorized') "
                "with at least 2 particles."
            )
        if num_warmup < 1:
            raise ValueError(
                "num_warmup is the number of temperatures and must be at least 1; "
                f"got {num_warmup}."
            )
        if init_params is not None:
            raise ValueError("init_params must be None: LangevinSMC starts from prior draws.")
        model_kwargs = model_kwargs or {}
        num = rng_key.shape[0]
        rng_key, key_sites, key_prior = jax.random.split(rng_key[0], 3)
        check_arguments(model_args, model_kwargs)
        check_latents(first_sites(key_sites, self._model, model_args, model_kwargs))
        with naming_arguments(model_args, model_kwargs):
            z = draw_prior(key_prior, self._model, model_args, model_kwargs, num)
            inner = langevin_smc.init(
                z,
                *split_logdensity(self._model, model_args, model_kwargs),
                differentiation=self._move.differentiation,
            )
        check_likelihoods(inner.local.loglikelihood, self._model, model_args, model_kwargs, z)
        self._sample_fn = self.sample
        zeros = jnp.zeros(num, inner.log_weights.dtype)
        return LangevinSMCKernelState(
            i=jnp.array(0),
            inner=inner,
            temperature=zeros,
            log_evidence=zeros,
            ess=zeros + num,
            least_ess=zeros + num,
            accept_prob=zeros,
            step_size=zeros + self._step_size,
            diverging=jnp.zeros(num, bool),
            rng_key=rng_key,
            num_warmup=jnp.array(num_warmup, int),
        )

    def sample(
        self, state: LangevinSMCKernelState, model_args: tuple, model_kwargs: dict | None
    ) -> LangevinSMCKernelState:
        """One temperature in the warm-up, moves alone after it; equal weights at the end."""
        rng_key, key_step, key_resample = jax.random.split(state.rng_key, 3)
        step_size = state.step_size[0]
        temperature = self._next_temperature(state)
        kernel = langevin_smc.build_kernel(
            self._move, num_moves=self._num_moves, ess_threshold=self._ess_threshold
        )
        with naming_arguments(model_args, model_kwargs):
            inner, info = kernel(
                key_step,
                state.inner,
                *split_logdensity(self._model, model_args, model_kwargs or {}),
                step_size,
                COVARIANCE if self._is_adjusted else PARTICLES,
                temperature=temperature,
            )
        inner = equalized(key_resample, inner)
        # what the moves do at temperature 1 tells nothing new of the evidence
        is_final = state.inner.temperature == 1
        log_evidence = jnp.where(is_final, state.inner.log_evidence, inner.log_evidence)
        inner = inner._replace(log_evidence=log_evidence)
        change = jnp.clip(info.acceptance_rate - TARGETS[self._is_adjusted], -MAX_CHANGE)
        is_adapting = self._adapt_step_size & (state.i < state.num_warmup)
        step_size = jnp.where(is_adapting, step_size * jnp.exp(change), step_size)
        like = jnp.zeros_like(state.temperature)
        least_ess = jnp.minimum(state.least_ess, info.least_ess)
        lost = is_lost(least_ess, inner)
        return LangevinSMCKernelState(
            i=state.i + 1,
            inner=inner,
            temperature=like + inner.temperature,
            log_evidence=jnp.where(lost, jnp.nan, like + inner.log_evidence),
            ess=like + info.ess,
            least_ess=least_ess,
            accept_prob=like + info.acceptance_rate,
            step_size=like + step_size,
            diverging=info.is_divergent | lost,
            rng_key=rng_key,
            num_warmup=state.num_warmup,
        )

    def _next_temperature(self, state: LangevinSMCKernelState) -> Array:
        """Chosen by the effective sample size, and high enough to reach 1 in the warm-up."""
        inner = state.inner
        left = jnp.maximum(state.num_warmup - state.i, 1)
        # equal ratios for what is left: equal differences would begin with a leap
        least = jnp.where(inner.temperature > 0, inner.temperature ** (1.0 - 1.0 / left), 0.0)
        is_last = left == 1
        found = next_temperature(
            inner.temperature,
            inner.log_weights,
            inner.local.loglikelihood,
            self._tempering_ess,
            jnp.where(is_last, 1.0, 0.0),
        )
        # the floor binds only in the second half: early temperatures are small for a reason
        is_late = 2 * state.i >= state.num_warmup
        return jnp.where(is_late, jnp.maximum(found, jnp.minimum(least, 1.0)), found)

    def __getstate__(self) -> dict:
        """Everything but what tells MCMC that the kernel is ready."""
        return {**self.__dict__, "_sample_fn": None}


def metropolis(algorithm: Any, parameters: dict) -> moves.Metropolis:
    """The Metropolis move of `algorithm`; ValueError for leapfrog steps that it does not take."""
    name = "num_integration_steps"
    if name in parameters and name not in moves.parameters_of(algorithm):
        raise ValueError(
            f"{name} is for unadjusted moves and for algorithms with leapfrog steps of their own: "
            f"give an l_kernel or such an algorithm; got {parameters[name]}."
        )
    return moves.Metropolis(algorithm, **parameters)


def is_lost(least_ess: Array, inner: LangevinSMCState) -> Array:
    """Whether a few particles were the ancestors of all, or the log density has no digits left."""
    size = inner.log_weights.shape[0]
    loglikelihood = inner.local.loglikelihood
    finite = jnp.where(jnp.isfinite(loglikelihood), loglikelihood, 0.0)
    heat = inner.temperature * jnp.median(jnp.abs(finite))
    too_rough = heat * jnp.finfo(heat.dtype).eps > MAX_ROUNDING
    return (least_ess < min(MIN_ESS, size / 10)) | too_rough


def equalized(rng_key: Array, state: LangevinSMCState) -> LangevinSMCState:
    """The population resampled to equal weights, unless they are."""
    population = sampler.Population(
        (state.position, state.local), state.log_weights, state.log_evidence
    )
    # rounding leaves the effective sample size of equal weights a little below N
    population, _ = sampler.resample_below(rng_key, population, 1.0 - 1e-4, systematic)
    position, local = population.particles
    return state._replace(position=position, local=local, log_weights=population.log_weights)
