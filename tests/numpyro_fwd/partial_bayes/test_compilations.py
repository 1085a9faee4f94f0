"""Trainings that differ in their seeds alone compile once."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC

from numpyro_fwd import GOHSMC, OHSMC, SGSMC, LangevinSMC
from tests.numpyro_fwd.partial_bayes.test_training import Y, conjugate
from tests.numpyro_fwd.test_compilation import built, cache, compiled  # noqa: F401

pytestmark = pytest.mark.long


@pytest.mark.filterwarnings("ignore:the effective sample size fell")
@pytest.mark.parametrize("cls", [GOHSMC, OHSMC, SGSMC])
def test_seeds_of_a_training_share_their_programs(cls, built):  # noqa: F811
    smc = cls(conjugate, optax.adam(0.01), num_particles=20)

    def run(seed, y):
        arguments = {"validation": (y,), "validate_every": 2, "progress_bar": False}
        return smc.run(jax.random.key(seed), 4, y, **arguments)

    first = run(0, jnp.asarray(Y))
    # two pieces with a validation between them are one program
    assert built.count("jit(advance)") == built.count("jit(loss)") == 1
    built.clear()
    # other data of the same shapes, too
    others = [run(seed, jnp.asarray(Y + seed)) for seed in (1, 2)]
    assert not built
    assert all(not np.array_equal(first.losses, other.losses) for other in others)


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def test_seeds_of_langevin_smc_share_their_programs(cache, compiled, built):  # noqa: F811
    """The annealing is compiled once for a kernel.

    NumPyro makes its loop anew in every run: where programs are kept it is read from the disk.
    """
    kernel = LangevinSMC(normal, num_moves=1, num_clusters=0)
    options = {"chain_method": "vectorized", "progress_bar": False, "jit_model_args": True}
    mcmc = MCMC(kernel, num_warmup=1, num_samples=1, num_chains=20, **options)
    mcmc.run(jax.random.key(0), jnp.asarray(Y))
    assert compiled
    compiled.clear()
    built.clear()
    mcmc.run(jax.random.key(1), jnp.asarray(Y))
    mcmc.run(jax.random.key(2), jnp.asarray(Y + 1))
    assert set(built) == {"jit(_fori_collect_loop)"}
    assert not compiled
