"""A logistic regression of rows on disk, in a process of its own.

``python -m benchmarks.harness.disk_run FOLDER ROWS`` writes the rows there and prints what
sampling them takes, as JSON.
"""

import json
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
    slopes = 0.3 * rng.normal(size=COLUMNS)
    new = np.lib.format.open_memmap
    x = new(f"{folder}/x.npy", "w+", np.float32, (num_rows, COLUMNS))
    y = new(f"{folder}/y.npy", "w+", np.float32, (num_rows,))
    for begin in range(0, num_rows, CHUNK):
        part = slice(begin, min(begin + CHUNK, num_rows))
        x[part] = rng.normal(size=x[part].shape)
        y[part] = rng.random(y[part].shape) < 1 / (1 + np.exp(-x[part] @ slopes))
    x.flush()
    y.flush()


def run(folder: str) -> dict[str, float]:
    """Seconds of 100 and 200 transitions with their set-up, peak memory, and rows of a test."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC

    from numpyro_fwd import AMAGOLD, on_disk

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=100) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])

    x, y = (on_disk(np.load(f"{folder}/{name}.npy", mmap_mode="r")) for name in "xy")
    kernel = AMAGOLD(model, acceptance="subsampled", num_integration_steps=4)
    mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
    begun = time.perf_counter()
    mcmc.run(jax.random.key(0), x, y, extra_fields=("inner.num_rows",))
    num_rows = np.asarray(mcmc.get_extra_fields()["inner.num_rows"])
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "MB": peak_memory(), "rows": float(num_rows.mean())}


def measured(num_rows: int) -> dict[str, float]:
    """What :func:`run` finds, in two new processes: the one that writes has had the rows."""
    with tempfile.TemporaryDirectory() as folder:
        for what in ("write", "run"):
            command = [sys.executable, "-m", "benchmarks.harness.disk_run", folder, what]
            done = subprocess.run(
                [*command, str(num_rows)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
            )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    if sys.argv[2] == "write":
        write(sys.argv[1], int(sys.argv[3]))
    else:
        print(json.dumps(run(sys.argv[1])))
