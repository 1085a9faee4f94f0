"""Laws of open-horizon sequential Monte Carlo as plain functions."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.stats import norm

import blackjax_ext
from tests.laws.smc import MAX_DEVIATION, Outcome

NUM_RUNS, NUM_PARTICLES = 20_000, 8
# batches whose targets differ, and parameters that move by a known amount after each
BATCHES = jnp.array([[1.0, 0.3], [-0.4, 1.2], [0.8, 2.0]])
DRIFT = 0.4

CASES: dict[str, dict] = {
    "guided": {"step_size": 0.4},
    "unguided": {"step_size": 0.4, "guided": False},
    "literal": {"step_size": 0.35, "l_kernel": "random_walk"},
    "random_walk": {"step_size": 0.3, "proposal": "random_walk"},
    "hmc": {"step_size": 0.25, "num_integration_steps": 3},
    "hmc_unguided": {"step_size": 0.25, "num_integration_steps": 2, "guided": False},
}


def drifting() -> optax.GradientTransformation:
    """An optimizer that ignores the gradient, so that the last target is known."""

    def update(gradients, state, params=None):
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, DRIFT), gradients), state

    return optax.GradientTransformation(lambda params: (), update)


def logprior(x):
    return norm.logpdf(x, 0.3, 1.1)


def potential(params, x, batch):
    """Skewed in x; the parameter shifts it, the batch scales it."""
    rate = jnp.exp(0.7 * x + 0.3 * params["shift"])
    return -logprior(x) - batch[0] * x + batch[1] * rate


@cache
def integrals() -> np.ndarray:
    """Integrals of (1, x, x^2) over the last target, by quadrature."""
    with jax.enable_x64(True):
        axis = jnp.linspace(-14.0, 10.0, 20_001)
        params = {"shift": jnp.array(DRIFT * (len(BATCHES) - 1))}
        density = jnp.exp(-jax.vmap(lambda x: potential(params, x, BATCHES[-1]))(axis))
        return np.asarray(density @ functions(axis) * (axis[1] - axis[0]))


def functions(x):
    """Functions whose integrals a population estimates, shape (N, 3)."""
    return jnp.stack([jnp.ones_like(x), x, x**2], axis=-1)


def simulate(name: str) -> Outcome:
    """Many runs through the batches."""
    arguments = {"ess_threshold": 0.7} | CASES[name]
    smc = blackjax_ext.open_horizon_smc(potential, drifting(), **arguments)

    def run(rng_key):
        key_prior, *keys = jax.random.split(rng_key, 1 + len(BATCHES))
        draws = 0.3 + 1.1 * jax.random.normal(key_prior, (NUM_PARTICLES,))
        state = smc.init(draws, {"shift": jnp.zeros(())}, logprior)
        state, infos = jax.lax.scan(
            lambda state, pair: smc.step(pair[0], state, pair[1]), state, (jnp.stack(keys), BATCHES)
        )
        estimate = jnp.exp(state.log_weights + state.log_evidence) @ functions(state.position)
        return estimate, infos.is_resampled, infos.acceptance_rate[-1]

    keys = jax.random.split(jax.random.key(12), NUM_RUNS)
    estimates, resampled, acceptance = jax.jit(jax.vmap(run))(keys)
    errors = (np.asarray(estimates, np.float64) - integrals()) / integrals()[0]
    return Outcome(errors, np.asarray(resampled), float(np.mean(acceptance)))


def evidence_is_unbiased(name: str) -> None:
    """The estimates for the last target have the right means, whatever came before it."""
    outcome = simulate(name)
    deviation = outcome.errors.std(0) / np.sqrt(NUM_RUNS)
    score = outcome.errors.mean(0) / deviation
    assert np.all(np.abs(score) < 5.0), f"evidence: {name} is off by {score} deviations"
    assert np.all(deviation < MAX_DEVIATION), f"evidence: {name} has no power: {deviation}"
    share = np.mean(outcome.num_resampled)
    assert 0.05 < share < 0.95, f"evidence: {name} resamples at {share} of the steps"


def step_with_sgd(broken: bool = False):
    """One step with plain gradient descent at rate 1: what it took off the parameters."""

    def energy(params, x, batch):
        value = 0.5 * jnp.sum((batch - params["scale"] * x - params["shift"]) ** 2) + 0.5 * x**2
        return value * jnp.where(x > 0.5, jnp.nan, 1.0) if broken else value

    smc = blackjax_ext.open_horizon_smc(energy, optax.sgd(1.0), step_size=0.3)
    draws = jax.random.normal(jax.random.key(13), (50,))
    params = {"scale": jnp.array(0.7), "shift": jnp.array([0.2, -0.3])}
    state = smc.init(draws, params, lambda x: norm.logpdf(x))
    batch = jnp.array([[1.0, 0.4], [0.3, 2.0], [1.5, -0.2]])
    new_state, info = smc.step(jax.random.key(14), state, batch)
    taken = jax.tree.map(lambda old, new: old - new, params, new_state.params)
    return energy, params, batch, new_state, info, taken


def gradient_is_that_of_the_bound(broken: bool = False) -> None:
    """The gradient in the parameters is the brute-force gradient of the weighted potential."""
    energy, params, batch, state, info, taken = step_with_sgd(broken)
    weights = jnp.exp(state.log_weights)
    alive = state.position[weights > 0]

    def bound(params):
        terms = [energy(params, x, batch) for x in alive]
        return jnp.dot(weights[weights > 0], jnp.stack(terms))

    expected = jax.grad(bound)(params)
    for name in params:
        np.testing.assert_allclose(taken[name], expected[name], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(info.loss, bound(params), rtol=1e-5)
    assert (int(info.num_divergent) > 5) == broken and bool(info.is_divergent) == broken
