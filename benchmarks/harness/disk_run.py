"""A logistic regression of rows on disk, in a process of its own.

``python -m benchmarks.harness.disk_run FOLDER write ROWS`` writes rows there, of which
``... FOLDER disk`` and ``... FOLDER memory`` print what sampling them takes, as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.harness.kept_results import ROOT
from benchmarks.harness.memory import peak_memory

__all__ = ["COLUMNS", "measured"]

COLUMNS = 20
CHUNK = 500_000  # rows that are made at once


def write(folder: str, num_rows: int) -> None:
    """Covariates and responses as arrays of NumPy on disk."""
    rng = np.random.default_rng(0)
    slopes = 0.3 * rng.normal(size=COLUMNS).astype(np.float32)
    new = np.lib.format.open_memmap
    x = new(f"{folder}/x.npy", "w+", np.float32, (num_rows, COLUMNS))
    y = new(f"{folder}/y.npy", "w+", np.float32, (num_rows,))
    for begin in range(0, num_rows, CHUNK):
        part = slice(begin, min(begin + CHUNK, num_rows))
        some = rng.standard_normal(x[part].shape, np.float32)
        x[part] = some
        y[part] = rng.random(len(some)) < 1 / (1 + np.exp(-some @ slopes))
    x.flush()
    y.flush()


def run(folder: str, where: str) -> dict[str, float]:
    """Seconds of set-up, microseconds of a transition, rows of a test, and peak memory in MB.

    `where` is "disk" or "memory".
    """
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC

    from numpyro_fwd import AMAGOLD, on_disk

    class Timed(AMAGOLD):
        """Says how long its set-up takes."""

        seconds = 0.0

        def init(self, *arguments, **keywords):
            begun = time.perf_counter()
            state = jax.block_until_ready(super().init(*arguments, **keywords))
            Timed.seconds = time.perf_counter() - begun
            return state

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=100) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])

    files = [np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in "xy"]
    data = tuple(map(on_disk if where == "disk" else jax.numpy.asarray, files))
    kernel = Timed(model, acceptance="subsampled", num_integration_steps=4)
    mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False, jit_model_args=True)
    begun = time.perf_counter()
    mcmc.run(jax.random.key(0), *data, extra_fields=("inner.num_rows",))
    num_rows = np.asarray(mcmc.get_extra_fields()["inner.num_rows"])
    seconds = time.perf_counter() - begun
    found = {"seconds": seconds, "MB": peak_memory(), "rows": float(num_rows.mean())}

    @jax.jit
    def steps(state, data):
        return jax.lax.fori_loop(0, 200, lambda _, s: kernel.sample(s, data, {}), state)

    state, times = mcmc.last_state, []
    for _ in range(4):  # the first compiles
        begun = time.perf_counter()
        state = jax.block_until_ready(steps(state, data))
        times.append(time.perf_counter() - begun)
    return found | {"set-up": Timed.seconds, "us": 1e6 * min(times[1:]) / 200}


def measured(num_rows: int, where: tuple[str, ...]) -> list[dict[str, float]]:
    """What :func:`run` finds, each in a new process: the one that writes has had the rows."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("ROWS_DIR")) as folder:
        command = [sys.executable, "-m", "benchmarks.harness.disk_run", folder]
        subprocess.run([*command, "write", str(num_rows)], cwd=ROOT, check=True)
        return [
            json.loads(
                subprocess.run(
                    [*command, each], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
                ).stdout.splitlines()[-1]
            )
            for each in where
        ]


if __name__ == "__main__":
    if sys.argv[2] == "write":
        write(sys.argv[1], int(sys.argv[3]))
    else:
        print(json.dumps(run(*sys.argv[1:])))
