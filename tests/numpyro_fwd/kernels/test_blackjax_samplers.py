"""Every sampler of BlackJAX as a kernel of NumPyro: it samples, or says why not."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.marginal_latent_gaussian import svd_from_covariance
from blackjax.mcmc.slice import direction_proposal
from numpyro.infer import MCMC

from numpyro_fwd import BlackJAXKernel

SCALES = np.array([1.0, 3.0])
PRIOR = 4.0  # sd of the normal prior that some samplers hold apart from the likelihood
SVD = svd_from_covariance(PRIOR**2 * jnp.eye(2))

SAMPLES = {
    "additive_step_random_walk": {"random_step": lambda key, x: noise(key)},
    "adjusted_mclmc": {},
    "adjusted_mclmc_dynamic": {},
    "barker": {},
    "coordinate_slice": {},
    "dhmc": {},
    "dmhmc": {},
    "elliptical_slice": {"cov_matrix": PRIOR**2 * jnp.eye(2), "mean": jnp.zeros(2)},
    "ghmc": {"momentum_inverse_scale": SCALES, "alpha": 0.3, "delta": 0.3},
    "gist_step_size": {"initial_step_size": 1.0, "num_integration_steps": 3},
    "gist_trajectory_length": {"max_num_steps": 32},
    "hmc": {"num_integration_steps": 3},
    "irmh": {
        "proposal_distribution": lambda key: 1.0 + 2.0 * noise(key),
        "proposal_logdensity_fn": lambda old, new: -0.125 * distance(new.position),
    },
    "mala": {},
    "mclmc": {"L": 1.4, "step_size": 1.2, "adapt_step_size": False},
    "mgrad_gaussian": {"cov_svd": SVD, "U_t": SVD.U_t, "delta": 2.0},
    "mhmc": {"num_integration_steps": 3},
    "nuts": {},
    "rmh": {"transition_generator": lambda key, x: x + noise(key)},
    "rmhmc": {"num_integration_steps": 3},
    "slice_sampling": {"proposal_generator": direction_proposal(jnp.asarray(SCALES)), "width": 5.0},
}
APART = {"elliptical_slice", "mgrad_gaussian"}

REFUSED = {
    **dict.fromkeys(["laplace_hmc", "laplace_mhmc", "laplace_dhmc", "laplace_dmhmc"], "laplace"),
    **dict.fromkeys(["sgld", "sghmc", "sgnht"], "grad_estimator in its place.*AMAGOLD"),
    "csgld": "logdensity_estimator in its place",
    "orbital_hmc": r"PeriodicOrbitalState has no position and no logdensity.*'positions'",
    "svgd": "'optimizer'",
}
POPULATIONS = [
    *("adaptive_persistent_sampling_smc", "adaptive_tempered_smc", "inner_kernel_tuning"),
    *("partial_posteriors_smc", "persistent_sampling_smc", "pretuning", "tempered_smc"),
]
REFUSED |= dict.fromkeys(POPULATIONS, "must step one chain.*mcmc_step_fn.*LangevinSMC")
ALIASES = {"barker_proposal", "dynamic_hmc", "multinomial_hmc"}


def noise(rng_key):
    return SCALES * jax.random.normal(rng_key, (2,))


def distance(x):
    return jnp.sum(((x - 1.0) / SCALES) ** 2)


def potential(x):
    return 0.5 * distance(x)


def test_the_tables_have_all_samplers():
    found = [
        name
        for name in blackjax.__all__
        if isinstance(getattr(blackjax, name), blackjax.GenerateSamplingAPI)
    ]
    assert sorted(found) == sorted([*SAMPLES, *REFUSED, *ALIASES])


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLES)
def test_it_samples_a_normal(name):
    kernel = BlackJAXKernel(
        potential_fn=potential, algorithm=getattr(blackjax, name), **SAMPLES[name]
    )
    mcmc = MCMC(
        kernel,
        num_warmup=300,
        num_samples=1500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), init_params=jnp.ones((4, 2)))
    draws = mcmc.get_samples()
    precision = SCALES**-2.0 + (PRIOR**-2.0 if name in APART else 0.0)
    mean, sd = SCALES**-2.0 / precision, precision**-0.5
    np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0.0, atol=0.25)
    np.testing.assert_allclose(draws.std(0) / sd, 1.0, atol=0.2)


@pytest.mark.parametrize("name", REFUSED)
def test_it_says_why_not(name):
    arguments = {"period": 5} if name == "orbital_hmc" else {}

    def run():
        kernel = BlackJAXKernel(
            potential_fn=potential, algorithm=getattr(blackjax, name), **arguments
        )
        mcmc = MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
        mcmc.run(jax.random.key(0), init_params=jnp.ones(2))

    with pytest.raises(TypeError, match=REFUSED[name]):
        run()


@pytest.mark.long
def test_chains_have_trajectories_of_their_own_lengths():
    """Each chain has a key of its own; one for all would give all the same lengths."""
    mcmc = MCMC(
        BlackJAXKernel(potential_fn=potential, algorithm=blackjax.dhmc),
        num_warmup=20,
        num_samples=20,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), init_params=jnp.ones((2, 2)), extra_fields=("num_steps",))
    lengths = mcmc.get_extra_fields(group_by_chain=True)["num_steps"]
    assert (lengths[0] != lengths[1]).any() and len(np.unique(lengths)) > 3
