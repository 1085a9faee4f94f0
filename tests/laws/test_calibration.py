"""Ranks of what the prior drew are uniform among the draws of each NumPyro kernel."""

import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import langevin
from tests.laws import calibration
from tests.laws.calibration import CASES

NUM_REPLICATES = 400
BY_DEFAULT = [("FMALA", "normal"), ("SMMALA", "logistic"), ("AutoMALA", "counts")]
OTHERS = [
    (name, model)
    for name, case in CASES.items()
    for model in case.models
    if (name, model) not in BY_DEFAULT
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "model"), BY_DEFAULT)
def test_ranks_are_uniform(name, model):
    calibration.assert_uniform(calibration.ranks(CASES[name], model, NUM_REPLICATES))


@pytest.mark.full
@pytest.mark.parametrize(("name", "model"), OTHERS)
def test_ranks_of_all_kernels_are_uniform(name, model):
    num_replicates = 100 if CASES[name].is_looped else NUM_REPLICATES
    calibration.assert_uniform(calibration.ranks(CASES[name], model, num_replicates))


@pytest.mark.full
@pytest.mark.parametrize("model", calibration.MODELS)
def test_ranks_of_particles_are_uniform(model):
    calibration.assert_uniform(calibration.ranks_of_particles(model, 100))


TRUE_ACCEPT = langevin.accept


def accept_without_prior(rng_key, log_ratio, end_logdensity, end, start):
    """Leaves out the prior, a standard normal one."""

    def logprior(state):
        return -0.5 * jnp.sum(jnp.square(ravel_pytree(state.position)[0]))

    log_ratio = log_ratio - logprior(end) + logprior(start)
    return TRUE_ACCEPT(rng_key, log_ratio, end_logdensity, end, start)


def test_a_prior_that_is_left_out_shows(monkeypatch):
    monkeypatch.setattr(langevin, "accept", accept_without_prior)
    with pytest.raises(AssertionError, match="calibration"):
        calibration.assert_uniform(calibration.ranks(CASES["MALA"], "logistic", NUM_REPLICATES))
