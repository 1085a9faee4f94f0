"""Tempered sequential Monte Carlo from end to end, and what it refuses."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal, norm

import blackjax_ext
from blackjax_ext import anneal, langevin_smc, moves
from blackjax_ext.smc.tempered import variances

pytestmark = pytest.mark.long

DESIGN = np.random.default_rng(0).normal(size=(12, 3))
Y = DESIGN @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(1).normal(size=12)
SCALE = 0.5
PRECISION = np.eye(3) + DESIGN.T @ DESIGN / SCALE**2
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ DESIGN.T @ Y / SCALE**2
EVIDENCE = multivariate_normal.logpdf(Y, np.zeros(12), DESIGN @ DESIGN.T + SCALE**2 * np.eye(12))

MOVES = {
    "langevin": {"step_size": 0.3, "num_moves": 4},
    "langevin_random_walk": {"step_size": 0.25, "num_moves": 4, "l_kernel": "random_walk"},
    "langevin_gaussian": {"step_size": 0.5, "num_moves": 3, "l_kernel": "gaussian"},
    "random_walk": {"step_size": 0.25, "proposal": "random_walk", "num_moves": 4},
    "hmc": {"step_size": 0.25, "num_integration_steps": 4, "num_moves": 2},
    "hmc_forward": {
        "step_size": 0.25,
        "num_integration_steps": 4,
        "num_moves": 2,
        "differentiation": "forward",
    },
    "hp_mala": {"step_size": 1.0, "num_moves": 3, "move": moves.Metropolis(blackjax_ext.hp_mala)},
    "blackjax_hmc": {
        "step_size": 0.3,
        "num_moves": 2,
        "move": moves.Metropolis(blackjax.hmc, num_integration_steps=4),
    },
    "particles": {
        "step_size": 0.6,
        "num_integration_steps": 2,
        "inverse_mass_matrix": "particles",
    },
}


def logprior(x):
    return jnp.sum(norm.logpdf(x["b"]))


def loglikelihood(x):
    return jnp.sum(norm.logpdf(jnp.asarray(Y), jnp.asarray(DESIGN) @ x["b"], SCALE))


def prior_draws(num, seed=0):
    return {"b": jax.random.normal(jax.random.key(seed), (num, 3))}


def smc_of(**arguments):
    arguments = {"step_size": 0.3, "inverse_mass_matrix": 4.0 * COVARIANCE} | arguments
    return langevin_smc(logprior, loglikelihood, **arguments)


@pytest.mark.first
@pytest.mark.parametrize("name", MOVES)
def test_conjugate_posterior(name):
    smc = smc_of(**MOVES[name])
    state, schedule = jax.jit(lambda key, state: anneal(key, smc, state))(
        jax.random.key(2), smc.init(prior_draws(4_000))
    )
    assert float(state.temperature) == 1.0 and 5 < schedule.num_temperatures < 60
    weights = np.exp(np.asarray(state.log_weights, np.float64))
    x = np.asarray(state.position["b"], np.float64)
    mean = weights @ x
    covariance = (weights[:, None] * (x - mean)).T @ (x - mean)
    np.testing.assert_allclose((mean - MEAN) / np.sqrt(np.diag(COVARIANCE)), 0.0, atol=0.2)
    np.testing.assert_allclose(np.diag(covariance) / np.diag(COVARIANCE), 1.0, atol=0.25)
    assert abs(float(state.log_evidence) - EVIDENCE) < 0.35


def test_what_is_remembered_is_from_before_the_moves():
    """Of each particle with its own past, also where it was resampled before it moved."""
    options = {"step_size": 0.2, "num_moves": 3, "move": moves.Metropolis(blackjax_ext.mala)}
    smc = langevin_smc(logprior, loglikelihood, ess_threshold=1.0, **options)
    start = smc.init(prior_draws(400))
    end, info = smc.step(jax.random.key(1), start)
    assert info.num_resampled == 1  # by the weights, before the first move
    past = start.local.loglikelihood[end.ancestors]
    expected = np.corrcoef(past, end.local.loglikelihood)[0, 1]
    np.testing.assert_allclose(info.remembered, expected, atol=1e-4)
    assert expected > 0.5


def test_hard_constraints_are_removed_first():
    """A likelihood that is zero for most prior draws: the evidence is still right."""

    def truncated(x):
        return jnp.where(x > 1.0, norm.logpdf(x, 2.0, 0.5), -jnp.inf)

    move = moves.Metropolis(blackjax_ext.mala)
    smc = langevin_smc(lambda x: norm.logpdf(x), truncated, step_size=0.5, move=move, num_moves=2)
    state = smc.init(jax.random.normal(jax.random.key(3), (20_000,)))
    step = jax.jit(smc.step)
    for i in range(6):
        state, info = step(jax.random.key(4 + i), state)
        # a proposal of zero density is rejected, not divergent
        assert int(info.num_divergent) == 0 and float(info.acceptance_rate) < 0.95
    axis = np.linspace(1.0, 9.0, 100_001)
    density = norm.pdf(axis) * norm.pdf(axis, 2.0, 0.5)
    truth = np.log(np.trapezoid(density, axis))
    assert float(state.temperature) == 1.0
    assert abs(float(state.log_evidence) - truth) < 0.06


def test_a_flat_likelihood_takes_one_step():
    smc = langevin_smc(logprior, lambda x: jnp.float32(-7.0), step_size=0.1)
    state, info = smc.step(jax.random.key(0), smc.init(prior_draws(100)))
    assert float(state.temperature) == 1.0 and int(info.num_resampled) == 0
    assert abs(float(state.log_evidence) + 7.0) < 0.2


def test_an_impossible_likelihood_has_no_evidence():
    smc = langevin_smc(logprior, lambda x: -jnp.inf + 0 * x["b"][0], step_size=0.1)
    state, _ = smc.step(jax.random.key(0), smc.init(prior_draws(100)))
    assert np.isneginf(state.log_evidence)
    np.testing.assert_allclose(state.log_weights, -np.log(100), rtol=1e-6)


def test_forward_mode_needs_no_reverse_mode():
    def loop(x):
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] - 0.1 * jnp.sum(x["b"] ** 2)), (0, 0.0)
        )[1]

    smc = langevin_smc(logprior, loop, step_size=0.3, differentiation="forward")
    state, _ = smc.step(jax.random.key(0), smc.init(prior_draws(50)))
    assert np.isfinite(state.log_evidence)
    with pytest.raises(ValueError, match="Reverse-mode"):
        langevin_smc(logprior, loop, step_size=0.3).init(prior_draws(50))


@pytest.mark.parametrize("name", ["langevin_gaussian", "hmc_forward", "hp_mala"])
def test_state_keeps_its_types(name, dtype):
    draws = jax.tree.map(lambda leaf: leaf.astype(dtype), prior_draws(20))
    smc = langevin_smc(
        lambda x: -0.5 * jnp.sum(x["b"] ** 2),
        lambda x: -jnp.sum(jnp.exp(x["b"])),
        **MOVES[name] | {"step_size": 0.1},
    )
    state = smc.init(draws)
    new_state, _ = jax.jit(smc.step)(jax.random.key(1), state)
    found = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), new_state)
    assert found == jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), state)
    found = {str(leaf.dtype) for leaf in jax.tree.leaves(new_state._replace(ancestors=()))}
    assert found == {str(dtype)}


@pytest.mark.parametrize("name", ["langevin_gaussian", "hp_mala"])
def test_keys_are_used_once(name):
    smc = smc_of(**MOVES[name])
    state = smc.init(prior_draws(20))
    with jax.debug_key_reuse(True):
        jax.jit(smc.step)(jax.random.key(1), state)


def test_variances_are_weighted():
    x = np.random.default_rng(2).normal(size=(50, 3)) * [1.0, 2.0, 5.0]
    log_weights = np.random.default_rng(3).normal(size=50)
    log_weights[:3] = [np.nan, np.inf, -np.inf]
    x[0] = np.nan
    found = variances(jnp.asarray(x), jnp.asarray(log_weights))
    weights = np.exp(log_weights[3:]) / np.exp(log_weights[3:]).sum()
    mean = weights @ x[3:]
    np.testing.assert_allclose(found, weights @ (x[3:] - mean) ** 2, rtol=0.01)
    assert np.isfinite(variances(jnp.asarray(x), jnp.full(50, -jnp.inf))).all()


def test_the_metric_of_a_metropolis_move_knows_the_temperature():
    """HP-MALA's step at a low temperature is that on the tempered density, by hand."""
    smc = smc_of(inverse_mass_matrix=None, **MOVES["hp_mala"] | {"num_moves": 1})
    state = smc.init(prior_draws(5))
    new_state, _ = smc.step(jax.random.key(1), state, 0.01)

    def tempered(x):
        return logprior(x) + 0.01 * loglikelihood(x)

    sampler = blackjax_ext.hp_mala(tempered, 1.0)
    key_move = jax.random.split(jax.random.split(jax.random.key(1), 1)[0])[1]
    for i, key in enumerate(jax.random.split(key_move, 5)):
        key_init, key_step = jax.random.split(key)
        first = sampler.init(jax.tree.map(lambda leaf, i=i: leaf[i], state.position), key_init)
        found = sampler.step(key_step, first)[0].position["b"]
        np.testing.assert_allclose(new_state.position["b"][i], found, rtol=1e-4, atol=1e-5)


BAD = {
    "step_size": ({"step_size": -1.0}, "step_size must be positive"),
    "ess_threshold": ({"ess_threshold": 1.5}, "ess_threshold must be between 0 and 1; got 1.5"),
    "tempering_ess": ({"tempering_ess": 1.0}, "tempering_ess must be strictly between"),
    "num_moves": ({"num_moves": 0}, "num_moves must be at least 1; got 0"),
    "proposal": ({"proposal": "walk"}, "proposal must be one of .* got 'walk'"),
    "l_kernel": ({"l_kernel": "optimal"}, "l_kernel must be one of .* got 'optimal'"),
    "differentiation": ({"differentiation": "both"}, "differentiation must be one of"),
    "num_integration_steps": ({"num_integration_steps": 0}, "num_integration_steps must be"),
    "inverse_mass_matrix": ({"inverse_mass_matrix": -np.ones(3)}, "inverse_mass_matrix"),
    "metric_name": (
        {"inverse_mass_matrix": "cloud"},
        "must be 'particles', 'covariance', None.* got 'cloud'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    arguments, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        smc_of(**arguments)


@pytest.mark.parametrize("position", [{"b": jnp.zeros(())}, {"b": jnp.zeros((0, 3))}])
def test_no_particles(position):
    with pytest.raises(ValueError, match="position must hold particles"):
        smc_of().init(position)


def test_leaves_without_a_common_axis():
    with pytest.raises(ValueError, match="position must hold particles"):
        smc_of().init({"a": jnp.zeros((3, 2)), "b": jnp.zeros((4, 3))})


def test_no_algorithm():
    with pytest.raises(TypeError, match="algorithm must have init and build_kernel"):
        moves.Metropolis(lambda x: x)


def test_moves_of_auto_mala_tell_of_the_step_that_they_were_given():
    """Shorter ones are accepted; an adaptation by these would lengthen it for ever."""
    smc = langevin_smc(
        lambda x: jnp.sum(norm.logpdf(x)),
        lambda x: jnp.sum(norm.logpdf(1.0, x, 0.5)),
        step_size=100.0,
        move=moves.Metropolis(blackjax_ext.auto_mala),
    )
    state = smc.init(jax.random.normal(jax.random.key(0), (200, 2)))
    _, info = jax.jit(smc.step)(jax.random.key(1), state)
    assert info.acceptance_rate < 0.1 and info.is_accepted.mean() > 0.5
