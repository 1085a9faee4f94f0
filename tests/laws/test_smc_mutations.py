"""Planted bugs in sequential Monte Carlo: each must make the law that it names fail."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from blackjax_ext.smc import (
    annealing,
    l_kernels,
    langevin_smc,
    mixtures,
    moves,
    proposals,
    sampler,
    tempered,
)
from tests.laws import smc

LEAPFROG, WEIGH, RESAMPLE = proposals.leapfrog, sampler.update_weights, sampler.resample
REGRESSION, TEMPERED = l_kernels.regression, tempered.tempered
CONCENTRATION, NOTED = sampler.concentration, annealing.noted
SAMPLE = mixtures.Mixture.sample
NEXT, VARIANCES = tempered.next_temperature, tempered.variances


def reset_without_resampling(rng_key, population, num=None):
    """The weights become equal, and every particle stays where it is."""
    return population._replace(log_weights=jnp.full_like(population.log_weights, -jnp.log(5)))


def resample_without_reset(rng_key, population, num=None):
    """The particles are drawn by their weights, and keep the weights by which they were drawn."""
    found = RESAMPLE(rng_key, population, num)
    return found._replace(log_weights=population.log_weights)


def resample_by_squares(rng_key, population, num=None):
    """Heavy particles are drawn too often."""
    squares = jax.nn.log_softmax(2.0 * population.log_weights)
    return RESAMPLE(rng_key, population._replace(log_weights=squares), num)


def weightless_particles_are_picked(rng_key, population, num=None):
    """The index of a scheme is taken as it comes."""
    weights = jnp.exp(population.log_weights)
    indices = sampler.systematic(rng_key, weights, weights.size)
    particles = jax.tree.map(lambda leaf: leaf[indices], population.particles)
    uniform = jnp.full_like(weights, -jnp.log(weights.size))
    return sampler.Population(particles, uniform, population.log_evidence)


def first_factor_for_all(population, log_factors):
    """Evidence is multiplied by a mean that forgets the weights."""
    found = WEIGH(population, log_factors)
    mean = jax.nn.logsumexp(log_factors) - jnp.log(log_factors.size)
    return found._replace(log_evidence=population.log_evidence + mean)


def forgetful(population, log_factors):
    """Weights start over at each weighing."""
    return WEIGH(population._replace(log_weights=0.0 * population.log_weights), log_factors)


def without_guard(log_weights):
    """NaN stays NaN."""
    return log_weights


def longer_momentum(momentum, *arguments):
    """The momentum that is drawn is 5 percent longer than the one that is weighed."""
    return LEAPFROG(1.05 * momentum, *arguments)._replace(start=momentum)


def prior_left_out(*arguments):
    """Moves are weighed by the likelihood alone."""
    target = TEMPERED(*arguments)
    evaluate = target.evaluate
    return target._replace(evaluate=lambda x: evaluate(x)._replace(logprior=jnp.zeros(x.shape[0])))


def half_kick_dropped(move, log_weights):
    """The reversed kernel without the gradient at the end, which is another kernel."""
    return l_kernels.log_momentum_ratio(move.start, move.half)


def fit_to_all(x, p, weights):
    """Each particle is weighed by a fit that saw it."""
    return REGRESSION(x, p, jnp.full_like(weights, 1.0 / weights.size))


def ess_of_great_factors(log_weights, log_factors):
    """The greatest factor is subtracted after the weights were added, which are then lost."""
    first = jax.nn.logsumexp(log_weights + log_factors)
    second = jax.nn.logsumexp(log_weights + 2.0 * log_factors)
    return log_weights.size * jnp.exp(2.0 * first - second)


def weigh_great_factors(population, log_factors):
    """The same when weights are updated."""
    log_weights = sampler.guard(population.log_weights + sampler.guard(log_factors))
    total = jax.nn.logsumexp(log_weights)
    return population._replace(
        log_weights=log_weights - total, log_evidence=population.log_evidence + total
    )


def plain_reweigh(population, increment, loglikelihood):
    """Log likelihoods are multiplied by the increment as they are."""
    return weigh_great_factors(
        population, tempered.tempered_loglikelihood(increment, loglikelihood)
    )


def linear_bisection(temperature, log_weights, loglikelihood, tempering_ess):
    """No first temperature is below 2^-30."""
    found = NEXT(temperature, log_weights, loglikelihood, tempering_ess)
    return jnp.maximum(found, 2.0**-30)


def absolute_floor(x, log_weights):
    """Variances of a narrow posterior are those of the floor."""
    return VARIANCES(x, log_weights) + 1e-6


def particles_not_families(log_weights, ancestors, num_ancestors):
    """The squared weights of particles, which forgets who resampling left without offspring."""
    return jnp.sum(jnp.exp(2.0 * log_weights))


def resampled_variance_counts(log_weights, ancestors, num_ancestors):
    """Families of twice the weight."""
    return 2.0 * CONCENTRATION(log_weights, ancestors, num_ancestors)


def ancestors_stay(rng_key, population, num=None):
    """Resampling forgets to take the ancestors along."""
    found = RESAMPLE(rng_key, population, num)
    if not isinstance(found.particles, tuple):
        return found
    particles = (*found.particles[:2], population.particles[2], *found.particles[3:])
    return found._replace(particles=particles)


def noted_late(schedule, state, info, step_size):
    """The temperature is written one row below its place."""
    found = NOTED(schedule, state, info, step_size)
    return found._replace(temperature=jnp.roll(found.temperature, 1))


def least_of_the_moves_alone(schedule, state, info, step_size):
    """The effective sample size is that after resampling."""
    return NOTED(schedule, state, info._replace(ess=0.0 * info.ess + 500.0), step_size)


def flat_proposal(self, x):
    """The ratio of a jump leaves out the density it is proposed with."""
    return 0.0 * x[:, 0]


def proposal_is_wider(self, rng_key, num):
    """Jumps are drawn from a mixture 10 percent wider than the one in their ratio."""
    return SAMPLE(self._replace(variances=1.21 * self.variances), rng_key, num)


class Mutation(NamedTuple):
    """A bug in `module`.`name`, the law that must fail, and its message."""

    module: Any
    name: str
    bug: Callable
    law: Callable
    message: str
    x64: bool = False


EVIDENCE = partial(smc.evidence_is_unbiased, "langevin_reversed")
NEVER = partial(smc.evidence_is_unbiased, "never_resampled")
COUNTS = smc.resampling_keeps_expectations
ALIVE = partial(smc.never_picks_a_weightless_particle, smc.last, "float32")
REVERSED = smc.reversed_is_the_langevin_ratio
MUTATIONS = {
    "reset_without_resampling": Mutation(
        sampler, "resample", reset_without_resampling, COUNTS, "off by"
    ),
    "resample_without_reset": Mutation(
        sampler, "resample", resample_without_reset, EVIDENCE, "off by"
    ),
    "resample_by_squares": Mutation(sampler, "resample", resample_by_squares, EVIDENCE, "off by"),
    "weightless_particles_are_picked": Mutation(
        sampler, "resample", weightless_particles_are_picked, ALIVE, "picked"
    ),
    "evidence_forgets_the_weights": Mutation(
        sampler, "update_weights", first_factor_for_all, NEVER, "off by"
    ),
    "weights_start_over": Mutation(
        sampler, "update_weights", forgetful, smc.weights_accumulate, "Not equal", True
    ),
    "without_guard": Mutation(
        sampler, "guard", without_guard, smc.counts_nan_particles, "mismatch"
    ),
    "longer_momentum": Mutation(moves, "leapfrog", longer_momentum, EVIDENCE, "off by"),
    "prior_left_out": Mutation(langevin_smc, "tempered", prior_left_out, EVIDENCE, "off by"),
    "no_backward_kernel": Mutation(
        l_kernels, "log_momentum_ratio", lambda start, end: 0.0 * start[:, 0], EVIDENCE, "off by"
    ),
    "tempered_from_zero": Mutation(
        langevin_smc,
        "tempered_loglikelihood",
        lambda increment, values: 1.2 * increment * values,
        EVIDENCE,
        "off",
    ),
    "half_kick_dropped": Mutation(
        l_kernels, "reversed", half_kick_dropped, REVERSED, "Not equal", True
    ),
    "ess_of_great_factors": Mutation(
        sampler,
        "conditional_ess",
        ess_of_great_factors,
        partial(smc.conditional_ess_keeps_its_digits, 1e12, 0.0, "float32"),
        "Not equal",
    ),
    "weigh_great_factors": Mutation(
        sampler,
        "update_weights",
        weigh_great_factors,
        partial(smc.great_factors_keep_the_weights, -4e8, "float32"),
        "Not equal",
    ),
    "plain_reweigh": Mutation(
        langevin_smc,
        "reweigh",
        plain_reweigh,
        partial(smc.weights_keep_their_digits, 1e3, 1e4, "float32"),
        "Not equal",
    ),
    "linear_bisection": Mutation(
        tempered,
        "next_temperature",
        linear_bisection,
        partial(smc.next_temperature_leaves_its_share, 1e12, 0.0, "float32"),
        "Not equal",
    ),
    "absolute_floor": Mutation(
        tempered,
        "variances",
        absolute_floor,
        partial(smc.annealed_evidence, 1e15, "float32"),
        "for -34.5",
    ),
    "particles_not_families": Mutation(
        sampler,
        "concentration",
        particles_not_families,
        smc.concentration_counts_families,
        "Not equal",
    ),
    "resampled_variance_counts": Mutation(
        sampler,
        "concentration",
        resampled_variance_counts,
        smc.evidence_error_covers,
        "standard error",
    ),
    "variance_without_families": Mutation(
        sampler,
        "concentration",
        particles_not_families,
        smc.evidence_error_covers,
        "standard error",
    ),
    "ancestors_stay": Mutation(
        sampler, "resample", ancestors_stay, smc.ancestors_are_followed, "ancestors"
    ),
    "noted_late": Mutation(
        annealing, "noted", noted_late, smc.schedule_tells_what_happened, "schedule"
    ),
    "ess_after_resampling": Mutation(
        annealing,
        "noted",
        least_of_the_moves_alone,
        smc.schedule_tells_what_happened,
        "Not equal",
    ),
    "goal_is_never_met": Mutation(
        sampler,
        "soft",
        lambda power, differences: 0.5 * power * differences,
        smc.softened_factors_leave_their_share,
        "Not equal",
    ),
    "flat_proposal": Mutation(
        mixtures.Mixture, "logpdf", flat_proposal, smc.jumps_keep_the_target, "jumps"
    ),
    "proposal_is_wider": Mutation(
        mixtures.Mixture, "sample", proposal_is_wider, smc.jumps_keep_the_target, "jumps"
    ),
    "fit_to_all": Mutation(
        l_kernels,
        "regression",
        fit_to_all,
        partial(smc.gaussian_bias_falls, "langevin_gaussian"),
        "biases",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name, monkeypatch):
    mutation = MUTATIONS[name]
    monkeypatch.setattr(mutation.module, mutation.name, mutation.bug)
    smc.simulate.cache_clear()
    smc.annealings.cache_clear()
    with jax.enable_x64(mutation.x64), pytest.raises(AssertionError, match=mutation.message):
        mutation.law()
    smc.simulate.cache_clear()
    smc.annealings.cache_clear()
