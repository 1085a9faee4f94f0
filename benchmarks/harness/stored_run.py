"""Runs with their draws on disk, or in memory, in processes of their own.

``python -m benchmarks.harness.stored_run WHERE KERNEL ROWS DRAWS`` prints seconds and memory as
JSON; WHERE is the path of a store, or "memory" for ``MCMC.run``. For two numbers of draws,
"SHORT,LONG", it prints what 1,000 draws more of each chain take.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.kept_results import ROOT
from benchmarks.harness.memory import peak_memory

__all__ = ["NUM_CHAINS", "SIZE", "command", "measured", "started"]

SIZE = 100  # parameters
NUM_CHAINS = 4
NUM_WARMUP = 1000


def mcmc_of(kernel: str, rows: int, num_draws: int) -> tuple[Any, tuple]:
    """A linear regression with 100 coefficients, or for no rows a normal, and its data."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    import numpyro_fwd

    def model(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([SIZE]).to_event(1))
        if rows:
            numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)

    x = jax.random.normal(jax.random.key(0), (rows, SIZE))
    y = x.sum(axis=1) / 10 + jax.random.normal(jax.random.key(1), (rows,))
    mcmc = MCMC(
        NUTS(model) if kernel == "NUTS" else getattr(numpyro_fwd, kernel)(model),
        num_warmup=NUM_WARMUP,
        num_samples=num_draws,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=True,
    )
    return mcmc, (x, y)


def run(where: str, kernel: str, rows: int, num_draws: int) -> dict[str, float]:
    """Seconds of a run, compilation included, and the peak memory of this process in MB."""
    import jax

    import numpyro_fwd

    numpyro_fwd.keep_compiled(os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    mcmc, data = mcmc_of(kernel, rows, num_draws)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    if where == "memory":
        mcmc.run(jax.random.key(2), *data)
        jax.block_until_ready(mcmc.get_samples())
    else:
        numpyro_fwd.sample_to(where, mcmc, jax.random.key(2), *data)
    return {
        "seconds": time.perf_counter() - begun,
        "cpu": time.process_time() - begun_cpu,
        "MB": peak_memory(),
    }


def pace(where: str, kernel: str, rows: int, short: int, long: int) -> dict[str, float]:
    """Milliseconds of 1,000 draws of each chain, from the difference of two runs, and of CPUs."""
    # the first run of a process pays for much that the others find
    _, one, two = (
        run(f"{where}-{i}" if where != "memory" else where, kernel, rows, n)
        for i, n in enumerate((short, short, long))
    )
    return {name: 1e6 * (two[name] - one[name]) / (long - short) for name in ("seconds", "cpu")}


def command(where: str, kernel: str, rows: int, num_draws: int | str) -> list[str]:
    """What runs it."""
    words = (where, kernel, str(rows), str(num_draws))
    return [sys.executable, "-m", "benchmarks.harness.stored_run", *words]


def measured(
    folder: Path,
    where: str,
    kernel: str,
    rows: int,
    num_draws: int | str,
    inner: str | None = None,
) -> dict[str, float]:
    """What a process says of its run, and the MB of its store, which is removed.

    Compiled programs are kept in `folder`, the store in `inner`, which may be the same.
    """
    path = Path(inner or folder) / "draws" if where == "disk" else None
    done = subprocess.run(
        command(str(path or "memory"), kernel, rows, num_draws),
        cwd=ROOT,
        env=environment(folder),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if path is not None and path.exists():
        files = [each for each in path.rglob("*") if each.is_file()]
        found |= {"disk": sum(each.stat().st_size for each in files) / 1e6, "files": len(files)}
        shutil.rmtree(path)
    return found


def started(folder: Path, path: Path, kernel: str, rows: int, num_draws: int) -> subprocess.Popen:
    """A process that runs, for whoever wants to kill it."""
    return subprocess.Popen(
        command(str(path), kernel, rows, num_draws),
        cwd=ROOT,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
    )


def environment(folder: Path) -> dict[str, str]:
    """The environment, with compiled programs kept in `folder`."""
    return {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}


if __name__ == "__main__":
    where, kernel, rows, num_draws = sys.argv[1:]
    numbers = [int(number) for number in num_draws.split(",")]
    print(json.dumps((run if len(numbers) == 1 else pace)(where, kernel, int(rows), *numbers)))
