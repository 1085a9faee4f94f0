"""State of a population under NumPyro's MCMC, and what its annealing is warned of.

One warning is of mass that was missed, which particles find that are cooled past the posterior.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.checks import item_of
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.smc import sampler
from blackjax_ext.smc.annealing import Schedule
from blackjax_ext.smc.cooled import missed_evidence, place_of
from blackjax_ext.smc.langevin_smc import LangevinSMCInfo, LangevinSMCState
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.kernels.notices import Notice

MANY_PARTICLES = 1_000
# variance of log weights that moves do not forget: on models of known evidence, with 100 to 1,000
# particles, at most 0.005 where it is right, 0.03 to 0.05 where it is two errors too low
MOST_REMEMBERED = 0.012
# fields of a state that steps after the annealing leave as they are
OF_ANNEALING = "schedule", "mixed_ancestors", "num_temperatures", "is_forced", "num_warmup"


class LangevinSMCKernelState(NamedTuple):
    """State of the population; every field but these leads with the particles.

    The exceptions are `i`, `inner`, `schedule`, `rng_key`, `num_warmup` and `data`.

    i
        Iteration, counted from the start of the warm-up.
    inner
        State of ``blackjax_ext.langevin_smc``; its weights are equal.
    schedule
        All temperatures, and what happened at each: a ``blackjax_ext.smc.annealing.Schedule`` whose
        arrays have shape (1, max_temperatures) and are NaN after the last temperature.
    temperature
        Power of the likelihood: 1 once the particles are annealed.
    log_evidence
        Logarithm of the estimate of the evidence; NaN if the population is lost.
    log_evidence_error
        Standard error of it, estimated from this run (Lee and Whiteley 2018).
    ess
        Least effective sample size in the last step, before any resampling: for Metropolis moves at
        temperature 1 the number of particles.
    least_ess
        Least effective sample size since the start, before any resampling.
    genealogical_ess
        Effective number of draws of the prior that the particles descend from.
    mixed_ancestors
        What `genealogical_ess` would be after the annealing if its moves had mixed: a half of it or
        less says that they were too few (``blackjax_ext.smc.annealing.mixed_ancestors``).
    num_temperatures
        How many temperatures it took.
    is_forced
        Whether there were `max_temperatures` of them, so that the last step jumped to 1.
    accept_prob
        Acceptance probability of the last step, or the share of the sample size that unadjusted
        moves kept.
    step_size
        Frozen after the warm-up.
    diverging
        Whether what a particle would have moved to was not a number; for all particles, whether the
        population is lost (see :class:`LangevinSMC`).
    ancestors
        Index of the draw of the prior that each particle descends from.
    rng_key
        Key of the next step.
    data
        Whose population it is: other data raise.
    """

    i: Array
    inner: LangevinSMCState
    schedule: Schedule
    temperature: Array
    log_evidence: Array
    log_evidence_error: Array
    ess: Array
    least_ess: Array
    genealogical_ess: Array
    mixed_ancestors: Array
    num_temperatures: Array
    is_forced: Array
    accept_prob: Array
    step_size: Array
    diverging: Array
    ancestors: Array
    rng_key: Array | None = None
    num_warmup: Array | int = 0
    data: Notice | None = None

    def __getitem__(self, key: Any) -> Any:
        return item_of(self, key)

    @property
    def z(self) -> Any:
        """Unconstrained particles."""
        return self.inner.position

    @property
    def potential_energy(self) -> Array:
        """Minus the log density of each particle."""
        return -(self.inner.local.logprior + self.inner.local.loglikelihood)


def described(
    inner: LangevinSMCState,
    info: LangevinSMCInfo,
    step_size: Array,
    least_ess: Array,
    **others: Any,
) -> LangevinSMCKernelState:
    """The state of the population `inner`, with what is known of it, and the `others` of fields."""
    like = jnp.zeros_like(inner.log_weights)
    lost = is_collapsed(least_ess, inner)
    error = jnp.sqrt(jnp.maximum(inner.variance, 0.0))
    return LangevinSMCKernelState(
        inner=inner,
        temperature=like + inner.temperature,
        log_evidence=jnp.where(lost, jnp.nan, like + inner.log_evidence),
        log_evidence_error=jnp.where(lost, jnp.nan, like + error),
        ess=like + info.least_ess,
        least_ess=like + least_ess,
        genealogical_ess=like + info.genealogical_ess,
        accept_prob=like + info.acceptance_rate,
        step_size=like + step_size,
        diverging=info.is_divergent | lost,
        ancestors=inner.ancestors,
        **others,
    )


def share_to_keep(num_particles: int) -> float:
    """Share of the conditional effective sample size that a temperature leaves by default.

    A temperature that leaves the share s adds about (1 / s - 1) / N to the variance of the log
    evidence. With fewer particles than many, for which s is 0.9, that is the variance with many;
    below 200 it grows again, lest ten particles take thousands of temperatures.
    """
    part = min(max(num_particles, 200), MANY_PARTICLES) / MANY_PARTICLES
    return 1.0 / (1.0 + part * (1.0 / 0.9 - 1.0))


def warn_of_annealing(
    state: LangevinSMCKernelState,
    max_temperatures: int,
    *,
    is_adjusted: bool,
    share: float,
    missed: Callable[[], list[str]],
) -> None:
    """Warn of an annealing that went wrong; traced values are let through.

    A temperature keeps `share` of the conditional effective sample size. `missed` looks for what
    the particles have missed, if nothing else is wrong.
    """
    if not not_jax_tracer(state.least_ess):
        return
    sentences = complaints(state, max_temperatures, share, is_adjusted) or missed()
    if sentences and is_first_process():
        warnings.warn("sequential Monte Carlo: " + " ".join(sentences), stacklevel=3)


def complaints(
    state: LangevinSMCKernelState, max_temperatures: int, share: float, is_adjusted: bool
) -> list[str]:
    """What went wrong in the annealing of a population."""
    # in every process: particles of others are asked for
    named = (state.least_ess, state.genealogical_ess, state.mixed_ancestors, state.log_evidence)
    least_ess, ancestors, mixed, log_evidence = (x[0] for x in on_host(named))
    size, sentences = state.ancestors.size, []
    if on_host(state.is_forced)[0]:
        sentences.append(
            f"all max_temperatures = {max_temperatures} temperatures were used, and the last step "
            "jumped to 1: give a larger max_temperatures."
        )
    # of the particles: an effective sample size below it is warned of
    if not least_ess >= 0.1 * size:
        sentences.append(
            f"the effective sample size fell to {least_ess:.1f} of {size} particles: take more "
            "particles, or shorter steps for unadjusted moves."
        )
    # descendants of one draw of the prior do not know how far runs differ
    if not ancestors >= 1.5:
        sentences.append(
            f"all {size} particles descend from one draw of the prior, so that log_evidence_error "
            "is too small: take more particles."
        )
    # so few do not know it either: with five two runs in five are two errors off
    elif size < 20:
        sentences.append(
            f"{size} particles cannot tell how far runs differ, so that log_evidence_error is too "
            "small: take more particles."
        )
    if np.isnan(log_evidence):
        sentences.append(
            "the population is lost: too few particles carried the weight, or rounding decided, so "
            "that the log evidence is NaN. Take more particles, or float64."
        )
    # of the ancestors of particles that mix well: 0.8 to 1.1 where they do
    if is_adjusted and not sentences and not ancestors >= 0.5 * mixed:
        other = "temperatures (tempering_ess=0.98)" if size >= MANY_PARTICLES else "particles"
        sentences.append(
            f"the {size} particles descend from {ancestors:.0f} draws of the prior, and would from "
            f"{mixed:.0f} if their moves had mixed: the log evidence may be too low by more than "
            f"log_evidence_error. Make more moves (num_moves=12), or take more {other}."
        )
    elif (
        is_adjusted
        and not sentences
        and size >= 100  # correlations of fewer are noise
        and not remembered(state.schedule, share) <= MOST_REMEMBERED
    ):
        sentences.append(
            "moves do not forget where the resampling put the particles: after those of a "
            "temperature the log likelihood has a correlation of up to "
            f"{np.max(correlations(state.schedule)):.2f} with what it was before, and the log "
            "evidence may be too low by more than log_evidence_error. Make more moves "
            "(num_moves=12)."
        )
    return sentences


def correlations(schedule: Schedule) -> np.ndarray:
    """Those of the log likelihood with itself before the moves, at each temperature but the last.

    After the last one nothing is weighed.
    """
    num_temperatures = int(on_host(schedule.num_temperatures)[0])
    values: np.ndarray = on_host(schedule.remembered)[0, : num_temperatures - 1]
    return values


def remembered(schedule: Schedule, share: float) -> float:
    r"""Variance of the log weights in the time in which moves forget, averaged over temperatures.

    A temperature that leaves the share s adds about :math:`1 / s - 1` to that variance. Its moves
    leave a correlation :math:`\rho`, so that the weights of :math:`\rho / (1 - \rho)` temperatures
    go together, and what they make of a particle has the variance
    :math:`(1 / s - 1) (\rho / (1 - \rho))^2`. The number of particles does not enter.
    """
    rho = np.clip(correlations(schedule), 0.0, 0.99)
    return (1.0 / share - 1.0) * float(np.mean(np.square(rho / (1.0 - rho)))) if rho.size else 0.0


def is_collapsed(least_ess: Array, inner: LangevinSMCState) -> Array:
    """Whether a few particles were the ancestors of all, or the log density has no digits left."""
    size = inner.log_weights.shape[0]
    loglikelihood = inner.local.loglikelihood
    finite = jnp.where(jnp.isfinite(loglikelihood), loglikelihood, 0.0)
    heat = inner.temperature * jnp.median(jnp.abs(finite))
    # of a log density: its difference then says nothing
    is_smooth = heat * jnp.finfo(heat.dtype).eps <= 0.5
    # a few more than 1, where resampling leaves copies of one particle
    return ~((least_ess >= min(5.0, size / 10)) & is_smooth)


SHARE = 0.5  # of the conditional effective sample size that is left, since nothing is estimated
TEMPERATURES = 30  # at most: a normal in 100 dimensions takes 15


@jax.jit
def drawn_from(rng_key: Array, cold: Any, temperature: Array, z: Any) -> tuple[Any, Array, Array]:
    """As many draws as particles from the place of `cold` ones.

    With the share of the particles `z` that are in the place, and the log density of the draws,
    infinite outside of it.
    """
    x, unravel = sampler.ravel(cold)
    place = place_of(x, temperature)
    y = place.draws(rng_key, x.shape[0])
    log_q = jnp.where(place.is_inside(y), place.logpdf(y), jnp.inf)
    return jax.vmap(unravel)(y), jnp.mean(place.is_inside(sampler.ravel(z)[0])), log_q


def complaints_of_cooling(state: Any, share: Array, log_weights: Array) -> list[str]:
    """Whether the place of cooled particles has more mass than the population `state` has there.

    `share` of its particles are in it, and `log_weights` are those of draws from a normal there.
    """
    facts = share, log_weights, state.log_evidence[0], state.log_evidence_error[0]
    share, log_weights, log_evidence, error = on_host(facts)
    gain = missed_evidence(float(share), log_weights - log_evidence)
    # of the log evidence, in nats and in standard errors
    if gain <= max(0.2, 3.0 * error):
        return []
    return [
        f"cooled past the posterior, particles fell into a place that {share:.0%} of the particles "
        f"are in, and with its mass the log evidence is {log_evidence + gain:.1f} or more instead "
        f"of {log_evidence:.1f}. Tempering has passed it by, like a narrow mode in a broad one: "
        "trust neither log_evidence nor the share of the draws in that mode. Take a nested sampler "
        "(blackjax.nss) for the evidence, and start NUTS in that mode to see it."
    ]
