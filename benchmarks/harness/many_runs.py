"""Several runs of one MCMC in a process of its own: what the first, the second and the third cost.

``python -m benchmarks.harness.many_runs PROBLEM KERNEL numpyro|numpyro_fwd`` prints it as JSON. The
second run has another key, the third other data of the same shapes, too. With "fits" in place of
the package it is a loop of a hundred fits, each of data of its own, and with "mapped" one program
of all of them.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.cold_run import KERNELS, Clock, in_new_process, problem_of

__all__ = ["NUM_FITS", "runs"]

NUM_FITS = 100
SHIFTS = [i / NUM_FITS for i in range(NUM_FITS)]  # of the data, a fit each


def measure(problem: str, kernel: str, package: str) -> dict[str, Any]:
    """Processor seconds of three runs, and programs that each compiled; NaN for one that fails."""
    import jax
    import jax.numpy as jnp
    import numpyro.infer

    import numpyro_fwd

    clock = Clock()
    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    what = problem_of(problem)
    model, arrays = what.make()
    name, options = KERNELS[kernel]
    api = numpyro.infer.NUTS if name == "NUTS" else getattr(numpyro_fwd, name)
    make = numpyro.infer.MCMC if package == "numpyro" else numpyro_fwd.MCMC

    def made() -> Any:
        return make(
            api(model, **options),
            num_warmup=what.num_warmup,
            num_samples=what.num_samples,
            num_chains=what.num_chains,
            chain_method="vectorized" if what.num_chains > 1 else "sequential",
            progress_bar=False,
        )

    mcmc = made()
    arrays = jax.tree.map(jnp.asarray, arrays)

    def others(shift: float) -> Any:
        return jax.tree.map(lambda x: x + shift if jnp.issubdtype(x.dtype, float) else x, arrays)

    if package == "mapped":
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *map(others, SHIFTS))
        return mapped(made, stacked, clock)
    if package == "fits":
        return fits(lambda i: mcmc.run(jax.random.key(i), *others(SHIFTS[i])), clock)
    found: dict[str, Any] = {}
    for i, (label, given) in enumerate(
        (("first", arrays), ("second", arrays), ("data", others(0.0)))
    ):
        since, programs = time.process_time(), len(clock.compiled)
        try:
            mcmc.run(jax.random.key(i), *given)
            jax.block_until_ready(mcmc.get_samples())
        except ValueError:  # NumPyro's NUTS maps its step once more in each set-up of many chains
            found |= {label: float("nan"), f"{label} programs": float("nan")}
            continue
        found[label] = time.process_time() - since
        found[f"{label} programs"] = len(clock.compiled) - programs
    return found


def fits(fit: Any, clock: Clock) -> dict[str, Any]:
    """Processor seconds of two fits and of each after them, programs, and memory in MB."""
    since = time.process_time()
    fit(0)
    fit(1)
    first = time.process_time() - since
    since, programs, memory = time.process_time(), len(clock.compiled), {}
    for i in range(2, NUM_FITS):
        fit(i)
        if i + 1 in (10, NUM_FITS):
            memory[f"MB after {i + 1}"] = resident()
    each = (time.process_time() - since) / (NUM_FITS - 2)
    return {"first": first, "each": each, "programs": len(clock.compiled) - programs, **memory}


def mapped(made: Any, data: Any, clock: Clock) -> dict[str, Any]:
    """Processor seconds of fits by `jax.vmap`, programs after its own, and the memory in MB."""
    import jax

    def fit(key: Any, data: Any) -> Any:
        mcmc = made()
        mcmc.run(key, *data)
        return mcmc.get_samples()

    keys = jax.random.split(jax.random.key(0), NUM_FITS)
    since = time.process_time()
    program = jax.jit(jax.vmap(fit)).lower(keys, data).compile()
    first, since = time.process_time() - since, time.process_time()
    programs = len(clock.compiled)
    jax.block_until_ready(program(keys, data))
    each = (time.process_time() - since) / NUM_FITS
    programs = len(clock.compiled) - programs
    return {"first": first, "each": each, "programs": programs, f"MB after {NUM_FITS}": resident()}


def resident() -> float:
    """Resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def runs(problem: str, kernel: str, package: str) -> dict[str, Any]:
    """:func:`measure` in a new process."""
    return in_new_process("benchmarks.harness.many_runs", problem, kernel, package)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
