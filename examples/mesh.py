"""Logistic regression whose rows are divided over the devices of one process or of many.

    python examples/mesh.py                          one process, all of its devices
    python examples/mesh.py --cluster                each process of a job on SLURM, Kubernetes, ...
    python examples/mesh.py localhost:12345 2 0      the first of two processes by hand,
    python examples/mesh.py localhost:12345 2 1      and the second, in another terminal

All of them print the same, from the first process. The page docs/howto/gpu.md says more.
"""

import sys
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_fwd import AMAGOLD, gather, join_processes, make_mesh, shard_rows

NUM_BLOCKS, ROWS_PER_BLOCK, NUM_COLUMNS = 16, 6_250, 5


def join(arguments: list[str]) -> None:
    """Find the other processes, before JAX is asked for anything."""
    if arguments == ["--cluster"]:
        join_processes()
    elif arguments:
        address, num_processes, process_id = arguments
        join_processes(address, int(num_processes), int(process_id))


def read_block(block: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and responses of a block of rows: a file, where data are real."""
    rng = np.random.default_rng(block)
    x = rng.normal(size=(ROWS_PER_BLOCK, NUM_COLUMNS)).astype(np.float32)
    share = 1 / (1 + np.exp(-x @ np.linspace(-1, 1, NUM_COLUMNS)))
    return x, (rng.random(ROWS_PER_BLOCK) < share).astype(np.float32)


def read_rows() -> tuple[np.ndarray, np.ndarray]:
    """The rows of this process: a number of processes that divides 16."""
    blocks = np.split(np.arange(NUM_BLOCKS), jax.process_count())[jax.process_index()]
    x, y = zip(*map(read_block, blocks), strict=True)
    return np.concatenate(x), np.concatenate(y)


def model(x, y):
    """Logistic regression in minibatches."""
    shape = dist.Normal(0, 1).expand([x.shape[1]])
    slopes = numpyro.sample("slopes", shape.to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=100) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slopes), obs=y[rows])


def main(arguments: list[str]) -> None:
    """Sample, and let the first process print."""
    join(arguments)
    kernel = AMAGOLD(model, acceptance="subsampled", num_integration_steps=4)
    mcmc = MCMC(
        kernel,
        num_warmup=200,
        num_samples=300,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=True,
    )
    with jax.set_mesh(make_mesh()):  # or make_mesh(chains=2), which divides the chains too
        x, y = shard_rows(read_rows(), of_process=True)
        begun = time.perf_counter()
        mcmc.run(jax.random.key(0), x, y, extra_fields=("inner.num_rows",))
        slopes, num_rows = gather(
            (mcmc.get_samples()["slopes"], mcmc.get_extra_fields()["inner.num_rows"])
        )
    if jax.process_index() == 0:
        print(f"{x.shape[0]:,} rows, {jax.process_count()} processes, {jax.device_count()} devices")
        print(f"{time.perf_counter() - begun:.0f} s, {num_rows.mean():.1f} rows read in a test")
        print("mean", slopes.mean(axis=0).round(3))
        print("sd  ", slopes.std(axis=0).round(4))


if __name__ == "__main__":
    main(sys.argv[1:])
