"""Steps of a logistic regression divided over processes, and what they send.

``python -m benchmarks.harness.mesh_run PORT PROCESSES RANK CASE`` prints, in the first process,
microseconds of a step and bytes as JSON; CASE is "KERNEL,AXIS,ROWS,CHAINS".
"""

import json
import math
import re
import socket
import subprocess
import sys
import time
from functools import partial

import numpy as np

from benchmarks.harness.kept_results import ROOT

__all__ = ["COLUMNS", "measured", "sent"]

COLUMNS = 20
SECONDS = 200
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
NUM_STEPS = {"MALA": 50, "full": 5, "subsampled": 20, "LangevinSMC": 10}


def kernel_of(name: str):
    """A kernel of the regression."""
    import numpyro
    import numpyro.distributions as dist

    from numpyro_fwd import AMAGOLD, MALA, LangevinSMC

    def model(x, y, batch_size=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=batch_size) as rows:
            some, those = (x, y) if batch_size is None else (x[rows], y[rows])
            numpyro.sample("y", dist.Bernoulli(logits=some @ slopes), obs=those)

    if name == "MALA":
        return MALA(model, step_size=0.01)
    if name == "LangevinSMC":
        return LangevinSMC(model, num_clusters=0)
    return AMAGOLD(
        partial(model, batch_size=100), acceptance=name, num_integration_steps=4, step_size=0.3
    )


def run(name: str, axis: str, num_rows: int, num_chains: int, num_processes: int) -> dict:
    """Microseconds of a step, the least of three runs of several, and bytes that it sends."""
    import jax

    from numpyro_fwd import make_mesh, shard_rows

    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, COLUMNS)).astype(np.float32)
    share = 1 / (1 + np.exp(-x @ rng.normal(size=COLUMNS) / 4))
    y = (rng.random(num_rows) < share).astype(np.float32)
    kernel, num_steps = kernel_of(name), NUM_STEPS[name]
    sizes = {"chains": 1, "rows": 1, axis: num_processes}
    with jax.set_mesh(make_mesh(**sizes)):
        data = shard_rows((x, y))
        keys = jax.random.split(jax.random.key(0), num_chains)
        state = kernel.init(keys, 0, None, data, {})

        @jax.jit
        def steps(state, data):
            return jax.lax.fori_loop(0, num_steps, lambda _, s: kernel.sample(s, data, {}), state)

        steps = steps.lower(state, data).compile()  # once, for its text and to run
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            jax.block_until_ready(steps(state, data))  # from the same state each time
            times.append(time.perf_counter() - begun)
    return {"us": 1e6 * min(times[1:]) / num_steps, "bytes": sent(steps.as_text()) / num_steps}


def sent(text: str) -> int:
    """Bytes of the results of all collectives of a program, as often as its loops are known to run.

    Loops of unknown length count once.
    """
    found: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if opened := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            lines = found.setdefault(opened[2], [])
            entry = opened[2] if opened[1] else entry
        else:
            lines.append(line)

    def of(name: str) -> int:
        total = 0
        for line in found.get(name, ()):
            if result := re.search(rf"= (.*?) (?:{COLLECTIVES})(?:-start)?\(", line):
                total += num_bytes(result[1])
            times = re.search(r"known_trip_count\D*(\d+)", line)
            inner = re.findall(r"(?:body|calls|to_apply|branch_computations)=\{?([^,}]*)", line)
            inner += re.findall(r"branch_computations=\{[^,}]*, ([^}]*)", line)
            names = [each.strip().lstrip("%") for part in inner for each in part.split(",")]
            total += int(times[1] if times else 1) * sum(map(of, names))
        return total

    return of(entry)


def num_bytes(shapes: str) -> int:
    """Bytes of arrays, as "(f32[4,32]{1,0}, u32[])"."""
    return sum(
        max(int(bits) // 8, 1) * math.prod(int(n) for n in sizes.split(",") if n)
        for bits, sizes in re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", shapes.replace("pred", "u8"))
    )


def measured(name: str, axis: str, num_rows: int, num_chains: int, num_processes: int) -> dict:
    """What :func:`run` finds, in so many new processes."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    case = f"{name},{axis},{num_rows},{num_chains}"
    command = [sys.executable, "-m", "benchmarks.harness.mesh_run", str(port), str(num_processes)]
    processes = [
        subprocess.Popen([*command, str(rank), case], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in range(num_processes)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))


if __name__ == "__main__":
    from numpyro_fwd import join_processes

    port, num_processes, rank = map(int, sys.argv[1:4])
    if num_processes > 1:
        join_processes(f"localhost:{port}", num_processes, rank)
    kernel, axis, *sizes = sys.argv[4].split(",")
    found = run(kernel, axis, *map(int, sizes), num_processes)
    if rank == 0:
        print(json.dumps(found))
