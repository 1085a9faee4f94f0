"""Forward-only from start to posterior: Lotka-Volterra with an adaptive solver, lynx and hare.

The reference is a random walk, whose steps take no derivative, at the full size.
"""

import arviz_base
import arviz_stats
import jax
import numpy as np
import pytest
from numpyro.infer import MCMC

pytest.importorskip("diffrax")

from benchmarks.harness import data, models
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
    mcmc.run(jax.random.key(0), *data.lynx_hare())
    samples = mcmc.get_samples(group_by_chain=True)
    return {site: np.asarray(value, np.float64) for site, value in samples.items()}


def worst_rhat(samples):
    """The largest R-hat of all sites."""
    return max(
        float(value.max())
        for value in arviz_stats.rhat(arviz_base.convert_to_dataset(samples)).values()
    )


def check(kernels, reference):
    """Every kernel mixes, and has the means of the reference."""
    for kernel in kernels:
        samples = draws(kernel, 1000, 3000)
        name = type(kernel).__name__
        assert worst_rhat(samples) < 1.05, name
        for site, expected in reference.items():
            error = samples[site].mean((0, 1)) - expected.mean((0, 1))
            assert (np.abs(error) < 0.25 * expected.std((0, 1))).all(), (name, site)


def every_direction():
    """All eight tangents: MALA by forward mode."""
    return FMALA(models.lynx_hare, num_tangents=8, dense_mass=True)


@pytest.mark.full
def test_a_line_finds_the_posterior_that_all_directions_find():
    """The notebook has the random walk, FMALA and LineFMALA."""
    reference = draws(every_direction(), 500, 1500)
    assert worst_rhat(reference) < 1.02
    check([PCLineFMALA(models.lynx_hare, dense_mass=True)], reference)


@pytest.mark.full
def test_every_forward_mode_kernel_finds_the_posterior():
    reference = draws(RandomWalk(models.lynx_hare, dense_mass=True), 2000, 10000)
    assert worst_rhat(reference) < 1.02
    others = (PCFMALA, PCLineFMALA)
    line = LineFMALA(models.lynx_hare, num_tangents=4, dense_mass=True)
    kernels = [kernel(models.lynx_hare, dense_mass=True) for kernel in others]
    check([every_direction(), line, *kernels], reference)
