"""BlackJAX's tuning of its microcanonical samplers, instead of an adaptation they cannot have."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC

from numpyro_fwd import BlackJAXKernel

SCALES = jnp.array([0.1, 1.0, 10.0])


def potential(z):
    return 0.5 * jnp.sum((z / SCALES) ** 2)


@pytest.mark.parametrize("api", [blackjax.mclmc, blackjax.adjusted_mclmc])
def test_it_is_tuned_by_blackjax(api):
    kernel = BlackJAXKernel(potential_fn=potential, algorithm=api)
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=300, num_samples=2000, **options)
    mcmc.run(jax.random.key(0), init_params=jnp.ones((2, 3)), extra_fields=("accept_prob",))
    shared, state = mcmc.last_state.shared, mcmc.last_state
    assert (state.adapt_state.step_size == shared.step_size).all()
    np.testing.assert_allclose(shared.metric.inverse_sqrt, SCALES, rtol=0.5)
    np.testing.assert_allclose(mcmc.get_samples().std(axis=0), SCALES, rtol=0.15)
    if api is blackjax.adjusted_mclmc:
        assert abs(mcmc.get_extra_fields()["accept_prob"].mean() - 0.65) < 0.2


def test_a_length_of_ones_own_is_kept():
    kernel = BlackJAXKernel(potential_fn=potential, algorithm=blackjax.mclmc, L=2.0)
    assert kernel._algorithm.parameters == {"L": 2.0}


def test_without_a_warmup_there_is_no_length():
    kernel = BlackJAXKernel(potential_fn=potential, algorithm=blackjax.mclmc)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=1)
    with pytest.raises(ValueError, match="L must be given"):
        mcmc.run(jax.random.key(0), init_params=jnp.ones(3))
