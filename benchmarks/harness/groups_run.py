"""A mixed model of a big table in a process of its own.

``python -m benchmarks.harness.groups_run NAME N GROUPS SAMPLER DRAWS`` prints what it found as
JSON; `cold` starts such a process.
"""

import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.cold_run import in_new_process

__all__ = ["SHARED_STEPS", "SITES", "cold"]

BATCH = 100
SHARED_STEPS = 3  # of AMAGOLD
NUM_WARMUP = 200  # sweeps of AMAGOLD; NUTS has as many steps as draws
SITES = ("slope", "effect", "spread")
FIELDS = {
    "rows": "inner.num_rows",
    "acceptance": "accept_prob",
    "of groups": "inner.chain.group_acceptance_rate",
}
MODULE = "benchmarks.harness.groups_run"


def cold(
    name: str, num_rows: int, num_groups: int, sampler: str, num: int, patience: float | None = None
) -> dict[str, Any]:
    """What a sampler finds in a new process; nothing if it takes longer than `patience` seconds."""
    return in_new_process(MODULE, name, num_rows, num_groups, sampler, num, patience=patience)


def measure(name: str, num_rows: int, num_groups: int, sampler: str, num: int) -> dict[str, Any]:
    """Effective draws per processor second of the worst of each site, and moments of all."""
    from numpyro.infer import NUTS

    from benchmarks.harness.diagnostics import least_ess
    from benchmarks.harness.regressions import mixed
    from benchmarks.harness.runs import run_chains
    from numpyro_fwd import AMAGOLD

    model, data = mixed(name, num_rows, num_groups)
    is_nuts = sampler == "NUTS"
    kernel: Any = (
        NUTS(model)
        if is_nuts
        else AMAGOLD(
            partial(model, batch=BATCH),
            acceptance="subsampled",
            num_integration_steps=SHARED_STEPS,
        )
    )
    run = run_chains(
        kernel,
        data,
        num if is_nuts else NUM_WARMUP,
        num,
        1,
        () if is_nuts else tuple(FIELDS.values()),
        clock=time.process_time,
    )
    mean, sd = run.moments
    found = {} if is_nuts else {key: np.mean(run.fields[field]) for key, field in FIELDS.items()}
    return {
        "set-up": run.compilation + run.warmup,
        "speed": {site: least_ess(run.draws[site]) / run.sampling for site in SITES},
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        **{key: float(value) for key, value in found.items()},
    }


if __name__ == "__main__":
    from benchmarks.harness.timing import on_one_core

    on_one_core()  # before jax starts its threads
    _, chosen, rows, groups, what, how_many = sys.argv
    print(json.dumps(measure(chosen, int(rows), int(groups), what, int(how_many))))
