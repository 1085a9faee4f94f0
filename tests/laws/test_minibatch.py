"""The algorithms driven by minibatches obey the laws, and planted bugs break them."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import blackjax_ext
from blackjax_ext import potentials
from blackjax_ext.rows import compensated_sums, minibatches
from blackjax_ext.sgmcmc import amagold, leapfrog
from tests.laws import jax_contracts, laws, minibatch
from tests.laws.minibatch import BIASED, CASES

# L2MC is AMAGOLD with another potential
CONTRACT_CASES = {"fresh": CASES["fresh"], "persistent": CASES["persistent"], "sghmc": BIASED}
# fresh momentum is one draw more in the same kernel
every_case = pytest.mark.parametrize("case", ["persistent", "sghmc"])
# those that evaluate the density
every_exact_case = pytest.mark.parametrize("case", ["persistent"])


@pytest.fixture(autouse=True)
def cases_of_this_file(monkeypatch):
    """The contracts with jax, put to these samplers."""
    monkeypatch.setattr(jax_contracts, "CASES", CONTRACT_CASES)


@pytest.mark.first
@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_exact_starts_stay_exact(name, size):
    laws.power(minibatch.invariance(CASES[name], size))


def test_sghmc_is_biased_where_amagold_is_not(size):
    with pytest.raises(AssertionError, match="invariance"):
        minibatch.invariance(BIASED, size)


def test_accumulator_is_the_ratio_of_path_densities(x64):
    minibatch.path_density_ratio()


def test_no_friction_is_hmc(x64):
    minibatch.no_friction_is_hmc()


def test_gradient_is_unbiased(x64):
    minibatch.gradient_is_unbiased()


@pytest.mark.first
@pytest.mark.parametrize("order", [1, 2])
def test_control_variate_is_unbiased(order, x64):
    def make(batch_size):
        plain = minibatch.plain(batch_size)
        return potentials.control_variate(plain, jnp.asarray(minibatch.ANCHOR), order=order)

    minibatch.gradient_is_unbiased(make)


def test_energy_is_precise_in_float32():
    minibatch.energy_is_precise()


@pytest.mark.first
@every_case
def test_vmap_is_loop(case, x64):
    jax_contracts.vmap_is_loop(case)


@pytest.mark.first
@every_case
def test_compiles_once(case, dtype):
    jax_contracts.compiles_once(case, dtype)


@pytest.mark.first
@every_case
def test_keeps_dtype(case, dtype):
    jax_contracts.keeps_dtype(case, dtype)


@pytest.mark.first
@pytest.mark.parametrize("case", CONTRACT_CASES)
def test_uses_keys_once(case):
    jax_contracts.uses_keys_once(case)


@every_exact_case
def test_rejects_a_density_that_turns_nan(case):
    jax_contracts.rejects_nan(case, is_nan_at_start=False)


def test_sghmc_undoes_a_step_that_is_not_finite():
    potential = potentials.full_batch(lambda x: jnp.nan * x)
    sampler = blackjax_ext.sghmc(potential, 0.1)
    state, info = sampler.step(jax.random.key(0), sampler.init(1.0, jax.random.key(1)))
    assert info.is_divergent and not info.is_accepted
    assert state.position == 1.0 and jnp.isfinite(state.momentum)


@every_exact_case
def test_stays_at_a_nan_start(case):
    jax_contracts.rejects_nan(case, is_nan_at_start=True)


@every_exact_case
def test_escapes_from_minus_infinity(case):
    jax_contracts.escapes(case)


@every_case
def test_resumes_bit_for_bit(case):
    jax_contracts.resumes(case)


@every_case
def test_takes_any_pytree(case, x64):
    jax_contracts.takes_any_pytree(case)


TRUE_STEP, TRUE_CHOICE, TRUE_TRAJECTORY = leapfrog.step, amagold.select, leapfrog.trajectory


def energy_without_prior(functions, *arguments):
    """The acceptance test leaves the prior out."""
    return TRUE_ENERGY((lambda x: 0.0 * jnp.sum(x), functions[1]), *arguments)


def energy_of_the_first_chunk(values_at, num_rows, chunk_size, dtype):
    """The rows after the first chunk are forgotten."""
    return TRUE_SUM(values_at, chunk_size, chunk_size, dtype)


TRUE_ENERGY, TRUE_SUM = minibatches.posterior_energy, minibatches.over_rows


def step_with_sign_of_accumulator(phase, *arguments, **keywords):
    """The accumulator is subtracted."""
    new = TRUE_STEP(phase, *arguments, **keywords)
    return new._replace(accumulator=2.0 * phase.accumulator - new.accumulator)


def step_without_accumulator(phase, *arguments, **keywords):
    """The acceptance test is that of a symmetric proposal."""
    return TRUE_STEP(phase, *arguments, **keywords)._replace(accumulator=phase.accumulator)


def step_with_half_the_noise(phase, gradient_fn, noise, *arguments, **keywords):
    """The noise has the variance 2 eps beta that the Euler scheme for beta would have."""
    return TRUE_STEP(phase, gradient_fn, noise / jnp.sqrt(2.0), *arguments, **keywords)


def choice_without_a_flip(is_accepted, accepted, rejected):
    """A rejection keeps the direction of the momentum."""
    return TRUE_CHOICE(is_accepted, accepted, rejected._replace(momentum=-rejected.momentum))


def choice_with_the_old_energy(is_accepted, accepted, rejected):
    """U is not refreshed after an acceptance."""
    return TRUE_CHOICE(is_accepted, accepted._replace(cache=rejected.cache), rejected)


def choice_of_everything(is_accepted, accepted, rejected):
    """The acceptance test is deleted, and its rate still reported."""
    del is_accepted, rejected
    return accepted


def trajectory_with_a_moving_anchor(key, phase, step, potential, unravel, num_steps, **options):
    """The anchor is where the chain stands."""
    potential = potentials.control_variate(minibatch.plain(), unravel(phase.x), order=1)
    return TRUE_TRAJECTORY(key, phase, step, potential, unravel, num_steps, **options)


def gradient_without_the_scale(functions, num_rows, x, batch):
    """N/B is left out of the gradient."""
    return TRUE_GRADIENT(functions, batch.shape[0], x, batch)


TRUE_GRADIENT = minibatches.minibatch_gradient


def add_without_the_rounding(a, b):
    """Sums are not compensated."""
    return compensated_sums.Pair(a.high + compensated_sums.as_pair(b).high, jnp.zeros_like(a.high))


def invariance(name):
    return partial(minibatch.invariance, CASES[name], laws.SMALL)


# where a bug is planted, the bug, and the law that must notice with its message
MUTATIONS = {
    "prior_left_out": (
        *(minibatches, "posterior_energy", energy_without_prior),
        *(invariance("fresh"), "invariance"),
    ),
    "rows_left_out": (
        *(minibatches, "over_rows", energy_of_the_first_chunk),
        *(invariance("fresh"), "invariance"),
    ),
    "accumulator_sign": (
        *(leapfrog, "step", step_with_sign_of_accumulator),
        *(invariance("fresh"), "invariance"),
    ),
    "accumulator_left_out": (
        *(leapfrog, "step", step_without_accumulator),
        *(invariance("second_order"), "invariance"),
    ),
    "half_the_noise": (
        *(leapfrog, "step", step_with_half_the_noise),
        *(invariance("persistent"), "invariance"),
    ),
    "momentum_not_flipped": (
        *(amagold, "select", choice_without_a_flip),
        *(invariance("persistent"), "invariance"),
    ),
    "old_energy": (
        *(amagold, "select", choice_with_the_old_energy),
        *(invariance("first_order"), "invariance"),
    ),
    "accept_everything": (
        *(amagold, "select", choice_of_everything),
        *(invariance("noise"), "invariance"),
    ),
    "anchor_follows": (
        *(leapfrog, "trajectory", trajectory_with_a_moving_anchor),
        *(invariance("first_order"), "invariance"),
    ),
    "scale_of_the_gradient": (
        *(minibatches, "minibatch_gradient", gradient_without_the_scale),
        *(minibatch.gradient_is_unbiased, "Not equal"),
    ),
    "rounding_dropped": (
        *(compensated_sums, "add", add_without_the_rounding),
        *(minibatch.energy_is_precise, "precision"),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name, monkeypatch):
    module, attribute, bug, law, message = MUTATIONS[name]
    monkeypatch.setattr(module, attribute, bug)
    with jax.enable_x64(message == "Not equal"), pytest.raises(AssertionError, match=message):
        law()
