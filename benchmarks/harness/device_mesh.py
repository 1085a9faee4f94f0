"""Rows over two devices of one machine."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import blackjax_ext
from benchmarks.harness.timing import timed

__all__ = ["over_two"]

NUM_CHAINS = 64


def logdensity(slope: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Logistic regression."""
    logits = x @ slope
    return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * slope @ slope


def over_two(*, is_quick: bool) -> list[Any]:
    """Devices, milliseconds of a step on one and over two, and how far energies are apart."""
    if len(jax.devices()) < 2:
        return [len(jax.devices()), "", "", "one device: nothing is measured"]
    num_rows = 2_000 if is_quick else 1_000_000
    rng = np.random.default_rng(3)
    x = rng.normal(size=(num_rows, 20)).astype(np.float32)
    y = (rng.random(num_rows) < 0.5).astype(np.float32)
    kernel = blackjax_ext.mala.build_kernel()
    slopes = jnp.asarray(0.01 * rng.normal(size=(NUM_CHAINS, 20)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), NUM_CHAINS)

    @jax.jit
    def step(slopes, keys, *data):
        def one(slope, key):
            state = blackjax_ext.mala.init(slope, lambda z: logdensity(z, *data))
            return kernel(key, state, lambda z: logdensity(z, *data), 1e-3)[0].logdensity

        return jax.vmap(one)(slopes, keys)

    found = []
    for num in (1, 2):
        mesh = jax.make_mesh(
            (num,), ("rows",), axis_types=(AxisType.Auto,), devices=jax.devices()[:num]
        )
        with jax.set_mesh(mesh):
            data = [jax.device_put(each, NamedSharding(mesh, P("rows"))) for each in (x, y)]
            moved = jax.device_put((slopes, keys), NamedSharding(mesh, P()))
            times = [timed(step, *moved, *data) for _ in range(4)]
        found.append((np.asarray(times[0][0]), 1e3 * min(took for _, took in times[1:])))
    off = float(np.max(np.abs(found[1][0] / found[0][0] - 1.0)))
    return [2, f"{found[0][1]:.3g} on one, {found[1][1]:.3g} over two", off, "MALA, 64 chains"]
