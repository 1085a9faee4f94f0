"""Forward-only from start to posterior: Lotka-Volterra with an adaptive solver, lynx and hare.

The reference is a random walk, whose steps take no derivative.
"""

import arviz as az
import jax
import numpy as np
import pytest
from numpyro.infer import MCMC

pytest.importorskip("diffrax")

from benchmarks import models
from numpyro_fwd import FMALA, PCFMALA, LineFMALA, PCLineFMALA, RandomWalk


def draws(kernel, num_warmup, num_samples):
    """Posterior draws of four vectorized chains."""
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *models.lynx_hare_data())
    samples = mcmc.get_samples(group_by_chain=True)
    return {site: np.asarray(value, np.float64) for site, value in samples.items()}


@pytest.fixture(scope="module")
def reference():
    """Means and standard deviations by a random walk."""
    samples = draws(RandomWalk(models.lynx_hare, dense_mass=True), 2000, 10000)
    rhat = az.rhat(az.from_dict(samples))
    assert max(float(value.max()) for value in rhat.values()) < 1.02
    return {site: (value.mean((0, 1)), value.std((0, 1))) for site, value in samples.items()}


@pytest.mark.parametrize(
    "kernel",
    [
        FMALA(models.lynx_hare, num_tangents=8, dense_mass=True),
        LineFMALA(models.lynx_hare, num_tangents=4, dense_mass=True),
        PCFMALA(models.lynx_hare, dense_mass=True),
        PCLineFMALA(models.lynx_hare, dense_mass=True),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_every_forward_mode_kernel_finds_the_posterior(kernel, reference):
    samples = draws(kernel, 1000, 3000)
    rhat = az.rhat(az.from_dict(samples))
    assert max(float(value.max()) for value in rhat.values()) < 1.05
    for site, (mean, sd) in reference.items():
        assert (np.abs(samples[site].mean((0, 1)) - mean) < 0.25 * sd).all(), site
