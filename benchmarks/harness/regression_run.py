"""A regression of a big table in a process of its own, and its moments in double precision.

``python -m benchmarks.harness.regression_run NAME N SAMPLER DRAWS`` prints what it found as JSON;
`cold` starts such a process. With ``truth`` for the sampler that is the reference.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.cold_run import in_new_process

__all__ = ["BATCH", "NUM_STEPS", "NUM_WARMUP", "cold", "truth"]

BATCH, NUM_STEPS = 100, 4  # of AMAGOLD
NUM_WARMUP = {"subsampled": 200, "full": 200, "NUTS": 300}
MODULE = "benchmarks.harness.regression_run"


def cold(name: str, num_rows: int, sampler: str, num: int, patience: float) -> dict[str, Any]:
    """What a sampler finds in a new process; nothing if it takes longer than `patience` seconds."""
    return in_new_process(MODULE, name, num_rows, sampler, num, patience=patience)


def truth(name: str, num_rows: int, num: int) -> dict[str, Any]:
    """Means and sds of the unconstrained coordinates from `num` pairs of weighted draws."""
    return in_new_process(MODULE, name, num_rows, "truth", num)


def measure(name: str, num_rows: int, sampler: str, num: int) -> dict[str, Any]:
    """Processor seconds of ``MCMC.run``, of its draws alone, and what they say."""
    import jax
    from numpyro.infer import MCMC, NUTS, init_to_median

    from benchmarks.harness.diagnostics import least_ess
    from benchmarks.harness.regressions import table
    from numpyro_fwd import AMAGOLD

    model, data = table(name, num_rows)
    kernel: Any
    if sampler == "NUTS":
        kernel = NUTS(model, init_strategy=init_to_median)
    else:
        kernel = AMAGOLD(
            lambda *data: model(*data, batch=BATCH),
            acceptance=sampler,
            num_integration_steps=NUM_STEPS,
            init_strategy=init_to_median,
        )
    mcmc = MCMC(
        kernel,
        num_warmup=NUM_WARMUP[sampler],
        num_samples=num,
        progress_bar=False,
        jit_model_args=True,
    )
    jax.block_until_ready(data)
    begun = time.process_time()
    mcmc.run(jax.random.key(0), *data)
    jax.block_until_ready(mcmc.get_samples())
    first = time.process_time() - begun
    draws, fields, seconds = more(kernel, mcmc.last_state, data, num, sampler == "subsampled")
    flat = np.concatenate([np.asarray(v).reshape(num, -1) for v in draws.values()], axis=1)
    return {
        "first": first,
        "sampling": seconds,
        "num": num,
        "ess": least_ess(flat[None]),
        "mean": flat.mean(0, dtype=np.float64).tolist(),
        "sd": flat.std(0, dtype=np.float64).tolist(),
        **{field: float(np.mean(values)) for field, values in fields.items()},
    }


def more(
    kernel: Any, state: Any, data: tuple, num: int, has_tests: bool
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """As many draws again, unconstrained, and their seconds without compilation."""
    import jax

    from benchmarks.harness.timing import timed

    def step(data, state, _):
        state = kernel.sample(state, data, {})
        if not has_tests:
            return state, (state.z, {})
        return state, (state.z, {"acceptance": state.accept_prob, "rows": state.inner.num_rows})

    def run(state, data):
        return jax.lax.scan(lambda state, _: step(data, state, _), state, length=num)[1]

    program = jax.jit(run).lower(state, data).compile()
    (draws, fields), seconds = timed(program, state, data, clock=time.process_time)
    return draws, fields, seconds


def reference(name: str, num_rows: int, num: int) -> dict[str, Any]:
    r"""Moments by importance from the normal at the mode, in double precision.

    The draws z of the standard normal come in pairs z, -z, and what their own moments differ from
    those of the normal is taken off: with weights w the mean of z is
    :math:`\sum w_i z_i - \frac1n \sum z_i`, whose error is that of the weights alone.
    """
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree
    from numpyro.infer import init_to_median
    from numpyro.infer.util import initialize_model

    from benchmarks.harness.regressions import table

    model, data = table(name, num_rows)
    data = jax.tree.map(in_double, data)
    info = initialize_model(
        jax.random.key(0), model, init_strategy=init_to_median(), model_args=data, dynamic_args=True
    )
    x, unravel = ravel_pytree(jax.tree.map(in_double, info.param_info.z))

    @jax.jit
    def energy(x, data):
        return info.potential_fn(*data)(unravel(x))

    mode, root = mode_of(energy, x, data)
    half = np.random.default_rng(11).normal(size=(num, len(mode)))
    z = np.concatenate([half, -half])
    energies = np.array([energy(each, data) for each in jnp.asarray(mode + z @ root.T)])
    logs = 0.5 * np.sum(z**2, axis=1) - energies
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ z
    square = (z.T * weights) @ z - z.T @ z / len(z) + np.eye(len(mode))
    covariance = root @ (square - np.outer(mean, mean)) @ root.T
    return {
        "mean": (mode + root @ mean).tolist(),
        "sd": np.sqrt(np.diag(covariance)).tolist(),
        "ess": float(1 / np.sum(weights**2) / len(z)),
    }


def in_double(array: Any) -> Any:
    """An array in double precision; whole numbers stay what they are."""
    import jax.numpy as jnp

    array = jnp.asarray(array)
    return array.astype(jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def mode_of(energy: Callable, x: Any, data: tuple) -> tuple[np.ndarray, np.ndarray]:
    """The mode by Newton's method, damped, and a root of the inverse Hessian there."""
    import jax

    slope = jax.jit(jax.grad(energy))

    @jax.jit
    def bend(x, data):
        def along(u):
            return jax.jvp(lambda x: jax.grad(energy)(x, data), (x,), (u,))[1]

        return jax.lax.map(along, np.eye(len(x)))

    x = np.asarray(x)
    for _ in range(60):
        g, h = np.asarray(slope(x, data)), np.asarray(bend(x, data))
        values, vectors = np.linalg.eigh(0.5 * (h + h.T))
        step = -vectors @ ((vectors.T @ g) / np.maximum(np.abs(values), 1e-8 * values.max()))
        decrement = float(-g @ step)
        here, size = float(energy(x, data)), 1.0
        while size > 1e-9 and not float(energy(x + size * step, data)) <= here + 1e-9:
            size /= 2
        x = x + size * step
        if decrement < 1e-12:
            break
    assert decrement < 1e-6 and values.min() > 0, "no mode was found"
    return x, vectors / np.sqrt(values)


if __name__ == "__main__":
    from benchmarks.harness.timing import on_one_core

    on_one_core()  # before jax starts its threads
    _, chosen, rows, what, how_many = sys.argv
    if what == "truth":
        import jax

        jax.config.update("jax_enable_x64", True)
        print(json.dumps(reference(chosen, int(rows), int(how_many))))
    else:
        print(json.dumps(measure(chosen, int(rows), what, int(how_many))))
