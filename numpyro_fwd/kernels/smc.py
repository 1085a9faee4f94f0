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
from blackjax_ext.smc.tempered import PARTICLES, next_temperature
from numpyro_fwd.bridge.numpyro_private import is_prng_key
from numpyro_fwd.bridge.priors import (
    check_latents,
    constrain,
    draw_prior,
    split_logdensity,
)
from numpyro_fwd.bridge.traces import first_sites

__all__ = ["LangevinSMC", "LangevinSMCKernelState"]

# Metropolis' probability for Langevin proposals; share of the sample size for unadjusted ones
TARGETS = {True: 0.574, False: 0.9}
MAX_CHANGE = 0.5


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
    accept_prob
        Acceptance probability, or the share of the sample size that unadjusted moves kept.
    step_size
        Frozen after the warm-up.
    diverging
        Whether what a particle would have moved to was not finite.
    rng_key
        Key of the next step.
    """

    i: Array
    inner: LangevinSMCState
    temperature: Array
    log_evidence: Array
    ess: Array
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
    `temperature`, `accept_prob`, `step_size`.

    Parameters
    ----------
    model
        NumPyro model with proper priors and continuous latents.
    step_size
        First step size, in units of the standard deviations of the population.
    adapt_step_size
        Adapt it during the warm-up.
    num_moves
        Moves per step.
    l_kernel
        None for Metropolis-adjusted moves; "reversed", "random_walk" or "gaussian" for unadjusted
        ones, weighted by that backward kernel.
    num_integration_steps
        Leapfrog steps of an unadjusted move.
    algorithm
        Metropolis kernel to move with: ``blackjax_ext.hp_mala``, ...
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
    forced up, its variance grows: see `ess`.

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
        num_integration_steps: int = 1,
        algorithm: Any = None,
        ess_threshold: float = 0.5,
        tempering_ess: float = 0.7,
        **parameters: Any,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        if l_kernel is not None and (algorithm is not None or parameters):
            raise ValueError("l_kernel and algorithm exclude each other: give one of them.")
        if l_kernel is None and num_integration_steps != 1:
            raise ValueError(
                "num_integration_steps is for unadjusted moves: give an l_kernel, or an algorithm "
                f"with leapfrog steps of its own; got {num_integration_steps}."
            )
        check_positive("step_size", step_size)
        check_share("ess_threshold", ess_threshold)
        check_share("tempering_ess", tempering_ess)
        check_count("num_moves", num_moves)
        algorithm = blackjax_ext.mala if algorithm is None else algorithm
        self._is_adjusted = l_kernel is None
        self._move: Any = (
            moves.Metropolis(algorithm, **parameters)
            if l_kernel is None
            else moves.Unadjusted(l_kernel=l_kernel, num_integration_steps=num_integration_steps)
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
        check_latents(first_sites(key_sites, self._model, model_args, model_kwargs))
        z = draw_prior(key_prior, self._model, model_args, model_kwargs, num)
        inner = langevin_smc.init(
            z,
            *split_logdensity(self._model, model_args, model_kwargs),
            differentiation=self._move.differentiation,
        )
        self._sample_fn = self.sample
        zeros = jnp.zeros(num, inner.log_weights.dtype)
        return LangevinSMCKernelState(
            jnp.array(0),
            inner,
            zeros,
            zeros,
            zeros + num,
            zeros,
            zeros + self._step_size,
            jnp.zeros(num, bool),
            rng_key,
            jnp.array(num_warmup, int),
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
        inner, info = kernel(
            key_step,
            state.inner,
            *split_logdensity(self._model, model_args, model_kwargs or {}),
            step_size,
            PARTICLES,
            temperature=temperature,
        )
        inner = equalized(key_resample, inner)
        # what the moves do at temperature 1 tells nothing new of the evidence
        is_final = state.inner.temperature == 1
        log_evidence = jnp.where(is_final, state.log_evidence[0], inner.log_evidence)
        inner = inner._replace(log_evidence=log_evidence)
        change = jnp.clip(info.acceptance_rate - TARGETS[self._is_adjusted], -MAX_CHANGE)
        is_adapting = self._adapt_step_size & (state.i < state.num_warmup)
        step_size = jnp.where(is_adapting, step_size * jnp.exp(change), step_size)
        like = jnp.zeros_like(state.temperature)
        return LangevinSMCKernelState(
            state.i + 1,
            inner,
            like + inner.temperature,
            like + inner.log_evidence,
            like + info.ess,
            like + info.acceptance_rate,
            like + step_size,
            info.is_divergent,
            rng_key,
            state.num_warmup,
        )

    def _next_temperature(self, state: LangevinSMCKernelState) -> Array:
        """Chosen by the effective sample size, and high enough to reach 1 in the warm-up."""
        inner = state.inner
        left = jnp.maximum(state.num_warmup - state.i, 1)
        least = inner.temperature + (1.0 - inner.temperature) / left
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


def equalized(rng_key: Array, state: LangevinSMCState) -> LangevinSMCState:
    """The population resampled to equal weights, unless they are."""
    population = sampler.Population(
        (state.position, state.local), state.log_weights, state.log_evidence
    )
    # rounding leaves the effective sample size of equal weights a little below N
    population, _ = sampler.resample_below(rng_key, population, 1.0 - 1e-4, systematic)
    position, local = population.particles
    return state._replace(position=position, local=local, log_weights=population.log_weights)
