"""The share of a posterior that its emulator lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import Form, fitted
from blackjax_ext.emulators.tails import share_beyond


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


def test_a_thin_ridge_beyond_the_points_is_told_of():
    """A banana, whose polynomial is right everywhere, and is cut off at twice its sd."""
    dear = Dear(
        lambda x: x[1:] + x[:1] ** 2,
        lambda x, outputs: -0.5 * x[0] ** 2 - 50.0 * jnp.sum(outputs**2),
    )
    evaluations = Evaluations(
        lambda function: jax.jit(lambda *rest: function(dear, *rest)),
        np.arange(2, dtype=np.int32),
        "forward",
        jnp.float32,
    )
    rng = np.random.default_rng(0)
    points = evaluations.with_jacobians(rng.uniform(-1.0, 1.0, (16, 2)))
    of_fit = {"active": evaluations.active, "form": Form(2, 2, is_log=False)}
    emulator = fitted(points, np.zeros(2), np.eye(2), **of_fit)._replace(radius=np.array(2.0))
    a = rng.standard_normal(4000)
    draws = np.stack([a, 0.1 * rng.standard_normal(4000) - a**2], 1)
    wide = emulator._replace(radius=np.array(1e3))
    # of all of the mass, that beyond a^2 + a^4 = 4, at |a| = 1.25
    assert abs(share_beyond(evaluations, emulator, wide, draws) - 0.21) < 0.03
    assert share_beyond(evaluations, wide, wide, draws) == 0.0
