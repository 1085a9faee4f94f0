"""Laws of sequential Monte Carlo."""

import jax
import numpy as np
import pytest
from blackjax.smc.resampling import systematic

from tests.laws import smc


@pytest.mark.first
@pytest.mark.parametrize("name", smc.CASES)
def test_evidence_is_unbiased(name):
    smc.evidence_is_unbiased(name)


def test_population_of_one_is_unbiased():
    smc.evidence_is_unbiased("langevin_reversed", num_particles=1)


@pytest.mark.long
@pytest.mark.parametrize("name", smc.GAUSSIAN)
def test_gaussian_bias_falls(name):
    smc.gaussian_bias_falls(name)


@pytest.mark.long
def test_resampling_is_triggered_sometimes():
    share = np.mean(smc.simulate("langevin_reversed").num_resampled > 0, axis=0)
    assert np.all(share < 0.95) and share.max() > 0.3, share
    assert not np.any(smc.simulate("never_resampled").num_resampled)


def test_reversed_is_the_langevin_ratio(x64):
    smc.reversed_is_the_langevin_ratio()


def test_random_walk_kernel_is_the_random_walk(x64):
    smc.random_walk_kernel_is_the_random_walk()


def test_leapfrog_is_reversible(x64):
    smc.leapfrog_is_reversible()


@pytest.mark.long
def test_gaussian_is_right_for_a_normal():
    smc.gaussian_is_right_for_a_normal()


def test_weights_accumulate(x64):
    smc.weights_accumulate()


def test_never_picks_a_weightless_particle():
    smc.never_picks_a_weightless_particle(systematic, "float32")


DIGITS = (
    smc.conditional_ess_keeps_its_digits,
    smc.next_temperature_leaves_its_share,
    smc.weights_keep_their_digits,
)


# log likelihoods about zero, and far from it
@pytest.mark.first
@pytest.mark.parametrize(
    ("law", "spread", "offset", "precision"),
    [
        (law, spread, 3.0 * ((i + j) % 2), ["float32", "float64"][(i + j // 2) % 2])
        for i, law in enumerate(DIGITS)
        for j, spread in enumerate(smc.SPREADS)
    ],
)
def test_digits(law, spread, offset, precision):
    with jax.enable_x64(precision == "float64"):
        law(spread, offset, precision)


@pytest.mark.first
@pytest.mark.parametrize(("precision", "offset"), [("float32", -4e8), ("float64", -4e17)])
def test_great_evidences(precision, offset):
    with jax.enable_x64(precision == "float64"):
        smc.great_factors_keep_the_weights(offset, precision)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spread", "precision"), [(1e3, "float64"), (1e9, "float32"), (1e15, "float32")]
)
def test_annealed_evidence(spread, precision):
    with jax.enable_x64(precision == "float64"):
        smc.annealed_evidence(spread, precision)


def test_resampling_keeps_expectations():
    smc.resampling_keeps_expectations()


def test_never_picks_a_weightless_particle_because_of_rounding():
    smc.never_picks_a_weightless_particle(smc.last, "float32")


@pytest.mark.long
def test_counts_nan_particles():
    smc.counts_nan_particles()


@pytest.mark.first
@pytest.mark.parametrize(
    "law",
    [
        smc.evidence_error_covers,
        smc.concentration_counts_families,
        smc.ancestors_are_followed,
        smc.schedule_tells_what_happened,
        smc.softened_factors_leave_their_share,
        smc.jumps_keep_the_target,
        smc.jumps_find_the_shares,
    ],
)
def test_diagnostics(law):
    law()
