"""The share of a posterior that its emulator lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext


def bounded(x):
    """Outputs that say nothing of a tail."""
    return jnp.stack([jnp.tanh(x[0]), 0.5 * x[1]])


def density_with(log_prior):
    def density(x, outputs):
        return log_prior(x) - 0.5 * jnp.sum((outputs - jnp.array([0.8, 0.3])) ** 2) / 0.25

    return density


PRIORS = {
    "normal": lambda x: -0.5 * jnp.sum(x**2) / 4.0,
    "logistic": lambda x: -2.0 * jnp.sum(jax.nn.softplus(jnp.abs(x)) - 0.5 * jnp.abs(x)),
    "cauchy": lambda x: -jnp.sum(jnp.log1p((x / 3.0) ** 2)),
}


@pytest.mark.parametrize(("prior", "is_far"), [("normal", 0), ("logistic", 0), ("cauchy", 1)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heavy_tails_are_told_of_and_others_are_not(prior, is_far, seed):
    starts = jax.random.normal(jax.random.key(9), (8, 2))
    _, found = blackjax_ext.emulate(
        bounded, density_with(PRIORS[prior]), jax.random.key(seed), starts
    )
    assert (found.lacking > 0.05) == is_far
    assert np.isfinite(found.lacking)
