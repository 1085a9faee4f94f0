"""Equal particles are evaluated once, and everything else is as before."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import blackjax_ext
from blackjax_ext.smc import open_horizon, sampler
from blackjax_ext.smc.offspring import evaluate_distinct

SIZE = 16
RNG = np.random.default_rng(3)
ANCESTORS = {
    "one": np.full(SIZE, 5),
    "two": np.repeat([3, 11], SIZE // 2),
    "three, not in order": RNG.permutation(np.repeat([15, 0, 4, 4], SIZE // 4)),
    "third": RNG.permutation(np.append(np.repeat([1, 2, 5, 7, 9], 3), 14)),
    "more than a third": np.maximum(np.arange(SIZE), 9),
    "all": RNG.permutation(SIZE),
}
NUM_EVALUATED = {"one": 2, "two": 2, "third": 6, "more than a third": 16, "all": 16}


def evaluate(x):
    return {"value": jnp.sum(x**3, axis=1), "twice": 2 * x}


@pytest.mark.first
@pytest.mark.parametrize("name", ANCESTORS)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_values_are_those_of_the_particles(name, is_mapped):
    ancestors = jnp.asarray(ANCESTORS[name])
    x = jax.random.normal(jax.random.key(0), (SIZE, 2))[ancestors]
    run = lambda x, ancestors: evaluate_distinct(evaluate, x, ancestors)  # noqa: E731
    if is_mapped:
        found = jax.vmap(run)(x[None], ancestors[None])
        found = jax.tree.map(lambda leaf: leaf[0], found)
    else:
        found = jax.jit(run)(x, ancestors)
    expected = evaluate(x)
    for leaf in expected:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-6)


@pytest.mark.first
@pytest.mark.parametrize("name", NUM_EVALUATED)
def test_few_are_evaluated_where_few_are_distinct(name):
    seen = []

    def counted(x):
        jax.debug.callback(lambda: seen.append(x.shape[0]))
        return evaluate(x)

    x = jnp.zeros((SIZE, 2))
    jax.block_until_ready(evaluate_distinct(counted, x, jnp.asarray(ANCESTORS[name])))
    jax.effects_barrier()
    assert seen == [NUM_EVALUATED[name]]


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_small_populations(size):
    x = jnp.arange(2.0 * size).reshape(size, 2)
    found = evaluate_distinct(evaluate, x, jnp.arange(size))
    np.testing.assert_allclose(found["twice"], 2 * x)


@pytest.mark.long
def test_guided_steps_are_those_of_evaluating_all(monkeypatch, x64):
    """Whether a step resampled, to few ancestors or to many, or did not."""
    prior = lambda x: -0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi)  # noqa: E731

    def potential(shift, x, y):
        return 0.5 * jnp.sum(x**2) + 5.0 * jnp.sum((y - shift - x) ** 2)

    def run():
        smc = blackjax_ext.open_horizon_smc(potential, optax.adam(0.1), step_size=0.1)
        x = jax.random.normal(jax.random.key(0), (40, 2), jnp.float64)
        state, infos = smc.init(x, jnp.zeros(2), prior), []
        step = jax.jit(smc.step)
        for i in range(8):
            data = jnp.array([1.0 + 0.1 * i, -2.0])
            state, info = step(jax.random.key(i), state, data)
            infos.append(info)
        return state, [bool(info.is_resampled) for info in infos]

    found, is_resampled = run()
    monkeypatch.setattr(open_horizon, "evaluate_distinct", lambda evaluate, x, _: evaluate(x))
    expected, _ = run()
    assert True in is_resampled and False in is_resampled
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_ancestors_survive_the_guard_of_resampling(monkeypatch):
    """A scheme that returns a particle without weight: its place is the heaviest's, whole."""
    particles = jnp.arange(4.0)[:, None], jnp.arange(4)
    log_weights = jnp.log(jnp.array([0.0, 0.7, 0.3, 0.0]))
    population = sampler.Population(particles, log_weights, jnp.zeros(()))
    scheme = lambda key, weights, num: jnp.array([0, 1, 2, 3])  # noqa: E731
    monkeypatch.setattr(sampler, "systematic", scheme)
    after = sampler.resample(jax.random.key(0), population)
    np.testing.assert_array_equal(after.particles[0][:, 0], after.particles[1])
    np.testing.assert_array_equal(after.particles[1], [1, 1, 2, 1])
