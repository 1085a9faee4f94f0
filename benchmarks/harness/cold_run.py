"""One run in a process of its own.

``python -m benchmarks.harness.cold_run PROBLEM KERNEL CACHE once|twice DRAWS`` prints what it
waited for as JSON; PROBLEM is one of `PROBLEMS`, "10000 rows" or any other number of them, or
"leaderboard" and a posterior of it, and CACHE, a folder of compiled programs, may be empty. `cold`
starts such processes.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.kept_results import ROOT
from benchmarks.harness.memory import peak_memory

__all__ = [
    "KERNELS",
    "PROBLEMS",
    "cold",
    "cold_and_kept",
    "cold_to_goal",
    "in_new_process",
    "is_enough",
]

GOAL = 1_000.0  # effective draws of the worst parameter
WORST_R_HAT = 1.01
MOST_TRIES = 4
MOST_SECONDS = 600  # of set-up, warm-up and sampling, for the goal


class Problem(NamedTuple):
    """A model with its data, and how long its chains are.

    make
        Makes model and data: JAX is imported by whoever calls it.
    num_warmup, num_samples, num_chains, jit_model_args
        Of the run.
    """

    make: Callable[[], tuple[Callable, tuple]]
    num_warmup: int
    num_samples: int
    num_chains: int = 4
    jit_model_args: bool = False


def regression() -> tuple[Callable, tuple]:
    """Breast cancer data, 31 coefficients."""
    from benchmarks.harness.models import breast_cancer_data, logistic_regression

    return logistic_regression, breast_cancer_data()


def hierarchy() -> tuple[Callable, tuple]:
    """Eight schools, non-centred: 10 dimensions."""
    import numpyro
    import numpyro.distributions as dist

    def schools(y, sd):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + tau * z, sd), obs=y)

    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
    return schools, (y, np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32))


def table(num_rows: int) -> tuple[Callable, tuple]:
    """Logistic regression with 20 coefficients, whose rows AMAGOLD may subsample."""
    import numpyro
    import numpyro.distributions as dist

    def model(x, y, batch=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([20]).to_event(1))
        with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 20)).astype(np.float32)
    is_one = rng.random(len(x)) < 1 / (1 + np.exp(-x @ (0.5 * rng.normal(size=20))))
    return model, (x, is_one.astype(np.float32))


PROBLEMS = {
    "regression": Problem(regression, 500, 500),
    "hierarchy": Problem(hierarchy, 500, 500),
    "table": Problem(partial(table, 100_000), 500, 1000, num_chains=1),
    "million": Problem(partial(table, 1_000_000), 500, 1000, num_chains=1, jit_model_args=True),
}


def problem_of(name: str) -> Problem:
    """The problem of this name: one of `PROBLEMS`, "10000 rows", or a posterior."""
    if name in PROBLEMS:
        return PROBLEMS[name]
    if name.endswith(" rows"):
        num_rows = int(name.removesuffix(" rows"))
        return PROBLEMS["million"]._replace(make=partial(table, num_rows))
    from benchmarks.harness.board_posteriors import POSTERIORS

    return Problem(POSTERIORS[name.removeprefix("leaderboard ")].make, 1000, 1000)


# name of a row, and what it is: a kernel and its options
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in (*("NUTS", "AutoNUTS", "AutoMALA", "MALA", "RandomWalk", "FMALA"),)
    },
    "AMAGOLD": ("AMAGOLD", {"acceptance": "subsampled"}),
}


class Clock:
    """When JAX traced and compiled, as pairs of seconds from a beginning to an end."""

    def __init__(self) -> None:
        self.traced: list[tuple[float, float]] = []
        self.compiled: list[tuple[float, float]] = []

    def listen(self, event: str, seconds: float, **facts: Any) -> None:
        """Note what JAX has done."""
        del facts
        now = time.perf_counter()
        if event.endswith("backend_compile_duration"):
            self.compiled.append((now - seconds, now))
        elif event.endswith(("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")):
            self.traced.append((now - seconds, now))

    @staticmethod
    def seconds(spans: list[tuple[float, float]]) -> float:
        """Seconds that spans cover: a program within another is traced once."""
        total, last = 0.0, 0.0
        for begin, end in sorted(spans):
            total += max(end - max(begin, last), 0.0)
            last = max(last, end)
        return total


def measure(
    problem: str, kernel: str, cache: str, how_often: str = "twice", num_samples: str = ""
) -> dict[str, Any]:
    """Seconds of two runs of one object, programs that were compiled, worst ESS and R-hat, memory.

    `how_often` is "once" for the first run alone; the second is then None. `num_samples` may be ""
    for the problem's own.
    """
    begin = time.perf_counter()
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    import numpyro_fwd

    if cache:
        numpyro_fwd.keep_compiled(cache)
    imported = time.perf_counter() - begin
    clock = Clock()
    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    what = problem_of(problem)
    model, arrays = what.make()
    num_draws = int(num_samples or what.num_samples)
    name, options = KERNELS[kernel]
    if name == "AMAGOLD":
        whole = model
        model = lambda x, y: whole(x, y, batch=100)  # noqa: E731
    api = NUTS if name == "NUTS" else getattr(numpyro_fwd, name)
    mcmc = MCMC(
        api(model, **options),
        num_warmup=what.num_warmup,
        num_samples=num_draws,
        num_chains=what.num_chains,
        chain_method="vectorized" if what.num_chains > 1 else "sequential",
        progress_bar=False,
        jit_model_args=what.jit_model_args,
    )
    arrays = jax.tree.map(jax.numpy.asarray, arrays)
    numpyro.enable_validation(False)

    def run() -> float:
        begin = time.perf_counter()
        mcmc.run(jax.random.key(0), *arrays)
        jax.block_until_ready(mcmc.get_samples())
        return time.perf_counter() - begin

    since = time.process_time()
    first, processor = run(), time.process_time() - since
    tracing, compiling = (clock.seconds(clock.traced), clock.seconds(clock.compiled))
    num_programs = len(clock.compiled)
    found = mcmc.get_samples(group_by_chain=True)
    from benchmarks.harness.diagnostics import least_ess, worst_rhat  # after what is timed

    draws = {name: np.asarray(each) for name, each in found.items()}
    return {
        "import": imported,
        "first": first,
        "processor": processor,
        "tracing": tracing,
        "compiling": compiling,
        "running": first - tracing - compiling,
        "second": run() if how_often == "twice" else None,
        "programs": num_programs,
        "draws": num_draws,
        "size": sum(map(np.size, jax.tree.leaves(mcmc.last_state.z))) // what.num_chains,
        "ess": least_ess(draws),
        "r_hat": worst_rhat(draws),
        "memory": peak_memory(),
    }


def cold(
    problem: str,
    kernel: str,
    cache: str = "",
    how_often: str = "twice",
    num_samples: int | None = None,
) -> dict[str, Any]:
    """:func:`measure` in a new process; `cache` is a folder of compiled programs, "" for none."""
    arguments = problem, kernel, cache, how_often, num_samples or ""
    return in_new_process("benchmarks.harness.cold_run", *arguments)


def in_new_process(module: str, *arguments: Any, patience: float | None = None) -> dict[str, Any]:
    """The JSON that a module prints last, in a process that finds no compiled programs.

    Nothing if it takes longer than `patience` seconds.
    """
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def cold_and_kept(problem: str, kernel: str, how_often: str = "twice") -> dict[str, Any]:
    """The same, with `kept`: seconds of the first run of a second process, with kept programs.

    Where runs are long, "once" leaves out the second and the third.
    """
    found = cold(problem, kernel, "", how_often)
    if how_often == "once":
        return {**found, "kept": None}
    with tempfile.TemporaryDirectory() as cache:
        cold(problem, kernel, cache)
        return {**found, "kept": cold(problem, kernel, cache)["first"]}


def cold_to_goal(problem: str, kernel: str, found: dict[str, Any]) -> dict[str, Any]:
    """A cold run that is long enough for the goal; `found` is what a shorter one measured.

    Or the longest that was tried, where the next would sample for more than MOST_SECONDS.
    """
    for _ in range(MOST_TRIES):
        if is_enough(found):
            break
        times = GOAL / found["ess"] if found["ess"] < GOAL else 1.5
        times = 1.2 * min(times, 100.0)
        if times * found["running"] > MOST_SECONDS:
            break
        num_samples = math.ceil(times * found["draws"])
        found = cold(problem, kernel, "", "once", num_samples)
    return found


def is_enough(found: dict[str, Any]) -> bool:
    """Whether a run has the effective draws, and an R-hat that lets one believe them."""
    return found["ess"] >= GOAL and found["r_hat"] <= WORST_R_HAT


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
