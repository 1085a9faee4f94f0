"""A step of vectorized chains in batches: the same draws, with the memory of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

from numpyro_fwd import AMAGOLD, MALA, AutoNUTS

SIZE, NUM_CHAINS = 5, 7
ROWS = np.random.default_rng(0).normal(size=(200, SIZE))


def model(x, batch=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(jnp.tanh(x[rows] @ w), 1.0), obs=jnp.ones(len(rows)))


def on_batches(x):
    return model(x, 20)


KERNELS = {"MALA": MALA, "AutoNUTS": AutoNUTS, "AMAGOLD": AMAGOLD}


def mcmc_of(name, size, **settings):
    kernel = KERNELS[name](on_batches if name == "AMAGOLD" else model, chain_batch_size=size)
    settings = {"num_warmup": 60, "num_samples": 20, **settings}
    return MCMC(
        kernel,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
        **settings,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name == "AMAGOLD" else ()) for name in KERNELS],
)
def test_draws_are_those_of_all_chains_at_once(name, x64):
    draws = []
    for size in (None, 1, 3):  # the last of seven chains is a batch of its own
        mcmc = mcmc_of(name, size)
        mcmc.run(jax.random.key(0), jnp.asarray(ROWS))
        draws.append(mcmc.get_samples()["w"])
    for batched in draws[1:]:
        np.testing.assert_allclose(batched, draws[0], rtol=1e-6, atol=1e-8)


@pytest.mark.long
def test_memory_of_a_step_is_that_of_a_batch():
    x = jax.random.normal(jax.random.key(1), (100_000, SIZE))

    def needed(size):
        kernel = MALA(model, chain_batch_size=size, warm_start=False)
        state = kernel.init(jax.random.split(jax.random.key(0), 32), 0, None, (x,), {})
        program = jax.jit(kernel.sample).lower(state, (x,), {}).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert needed(2) < 0.2 * needed(None)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.5, TypeError), ("all", TypeError)])
def test_sizes_that_are_none_are_named(size, error):
    with pytest.raises(error, match="chain_batch_size must be"):
        MALA(model, chain_batch_size=size)
