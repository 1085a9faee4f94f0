"""A warm-up whose chains disagree when it ends says so, once, however they are run."""

import warnings

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import blackjax_ext
import numpyro_fwd

pytestmark = pytest.mark.long

SIZE, NUM_CHAINS, CORRELATION = 30, 4, 0.99
METHODS = ["vectorized", "sequential"]


def correlated():
    """Each chain crawls about the mean that it starts with."""
    mean = numpyro.sample("mean", dist.Normal(0.0, CORRELATION**0.5))
    sd = (1.0 - CORRELATION) ** 0.5
    numpyro.sample("x", dist.Normal(mean, sd).expand([SIZE]).to_event(1))


def apart():
    numpyro.sample("x", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))


def said(model, kernel=numpyro_fwd.RandomWalk, num_warmup=300, **options):
    """What a run says."""
    mcmc = MCMC(
        kernel(model, **options.pop("options", {})),
        num_warmup=num_warmup,
        num_samples=10,
        num_chains=NUM_CHAINS,
        progress_bar=False,
        **options,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(0))
        mcmc.run(jax.random.key(1))
        jax.tree.map(lambda leaf: leaf, mcmc.last_state)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("chain_method", METHODS)
def test_chains_that_crawl_are_said_once_a_run(chain_method):
    found = said(correlated, chain_method=chain_method, options={"dense_mass": False})
    found = [message for message in found if "chains disagree" in message]
    assert len(found) == 2
    assert all("steps of the warm-up R-hat is" in each and "mean" in each for each in found)


@pytest.mark.parametrize("chain_method", METHODS)
def test_chains_that_agree_say_nothing(chain_method):
    kernel = numpyro_fwd.MALA
    assert not said(apart, kernel, chain_method=chain_method)


def test_a_short_window_says_nothing():
    found = said(correlated, num_warmup=100, chain_method="vectorized")
    assert not [message for message in found if "chains disagree" in message]


def test_warmup_of_blackjax_says_it():
    def logdensity_fn(x):
        return -0.5 * (x[0] ** 2 + jnp.sum((x[1:] - x[0]) ** 2) / (1.0 - CORRELATION))

    x = jnp.linspace(-1.0, 1.0, 4)[:, None] + jnp.zeros(SIZE)
    with pytest.warns(UserWarning, match="chains disagree: in the last 45 steps"):
        blackjax_ext.warmup(
            *(blackjax_ext.random_walk, logdensity_fn, jax.random.key(0), x, 300),
            target_acceptance_rate=0.234,
            differentiation="none",
            newton_start=False,
        )
