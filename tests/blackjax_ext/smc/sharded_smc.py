"""Particles on four devices and on one give the same; test_sharding.py runs it in a process."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.stats import norm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import blackjax_ext

NUM_PARTICLES = 64


def logprior(x):
    return jnp.sum(norm.logpdf(x))


def loglikelihood(x):
    return jnp.sum(3.0 * x - jnp.exp(x))


def on_devices(tree, num):
    """Leaves that lead with the particles, spread over `num` devices; the rest on each of them."""
    mesh = Mesh(jax.devices()[:num], ("particles",))

    def place(leaf):
        leads = jnp.ndim(leaf) > 0 and leaf.shape[0] == NUM_PARTICLES
        return jax.device_put(
            leaf, NamedSharding(mesh, PartitionSpec("particles") if leads else PartitionSpec())
        )

    return jax.tree.map(place, tree)


def tempered(num):
    smc = blackjax_ext.langevin_smc(
        logprior, loglikelihood, step_size=0.6, num_integration_steps=2, ess_threshold=0.7
    )
    state = on_devices(smc.init(jax.random.normal(jax.random.key(0), (NUM_PARTICLES, 2))), num)
    resampled = 0
    step = jax.jit(smc.step)
    for i, temperature in enumerate((0.2, 0.6, 1.0)):
        state, info = step(jax.random.key(i), state, temperature)
        resampled += int(info.num_resampled)
    return state.position, state.log_weights, state.log_evidence, resampled


def trained(num):
    def potential(params, x, batch):
        return -logprior(x) + 0.5 * jnp.sum((batch - params - x) ** 2)

    smc = blackjax_ext.open_horizon_smc(potential, optax.sgd(0.05), step_size=0.4)
    draws = jax.random.normal(jax.random.key(0), (NUM_PARTICLES, 2))
    state = on_devices(smc.init(draws, jnp.zeros(2), logprior), num)
    resampled = 0
    step = jax.jit(smc.step)
    for i in range(4):
        state, info = step(jax.random.key(i), state, jnp.array([2.0 + i, 1.0]))
        resampled += int(info.is_resampled)
    return (state.position, state.params), state.log_weights, state.log_evidence, resampled


def main():
    assert len(jax.devices()) == 4
    for run in (tempered, trained):
        one, four = run(1), run(4)
        assert len(jax.tree.leaves(four[0])[0].sharding.device_set) == 4
        assert one[-1] == four[-1] > 0, "no resampling took place"
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(four), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    print("same")


if __name__ == "__main__":
    main()
