"""What forward-mode sampling costs and what it yields: ``python benchmarks/forward_mode.py``.

Each section is a function that measures and returns a :class:`Section`. The sections are kept in
``docs/results/forward_mode.json``, from which ``docs/results/forward_mode.md`` is written.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import (
    compilation_cache as compilation_cache_of_jax,
)
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS, init_to_value
from numpyro.infer.util import initialize_model

import blackjax_ext
from benchmarks.harness import data, models, simulator_runs
from benchmarks.harness.diagnostics import ess_of
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import run_chains, worst_errors
from benchmarks.harness.timing import in_turn, timed
from blackjax_ext.mcmc import tangents
from blackjax_ext.mcmc.langevin import standard_normal
from numpyro_fwd import (
    FMALA,
    PCFMALA,
    BlackJAXKernel,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)

STEP_SIZE = 1e-4  # what a step costs does not depend on it
ROWS = (400, 10_000)
# from uniform starts NUTS leaves chains in poor modes of the lynx-hare posterior (R-hat 1.6)
ROUGH_GUESS = {
    "theta": jnp.array([0.5, 0.025, 0.8, 0.025]),
    "z_init": jnp.array([30.0, 5.0]),
    "sigma": jnp.array([0.3, 0.3]),
}


# Targets and kernels


def jvp(logdensity_fn: Callable) -> Callable:
    return lambda x, v: jax.jvp(logdensity_fn, (x,), (v,))


def second_jvp(logdensity_fn: Callable) -> Callable:
    return lambda x, v: jax.jvp(lambda y: jvp(logdensity_fn)(y, v), (x,), (v,))


@cache
def network_problem(num_rows: int, depth: int = 5, width: int = 100):
    """Log density, network and a tangent; 40,701 parameters by default."""
    key_network, key_tangent, key_data = jax.random.split(jax.random.key(0), 3)
    network = models.make_network(key_network, depth=depth, width=width)
    tangent = models.make_network(key_tangent, depth=depth, width=width)
    return models.network_regression(key_data, num_rows), network, tangent


def step_of(name: str, logdensity_fn: Callable, position, **options):
    """A step of the algorithm called `name`, and its arguments."""
    algorithm = getattr(blackjax_ext, name)(logdensity_fn, STEP_SIZE, **options)
    return algorithm.step, (jax.random.key(2), algorithm.init(position, jax.random.key(1)))


# Operations


def count_flops(function: Callable, *args) -> float:
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


def count_missed(name: str, size: int) -> float:
    """Operations of a step's random draws that XLA does not count.

    It counts the body of a loop once, and large arrays are drawn in a loop over two blocks.
    """
    key, like = jax.random.key(0), jnp.zeros(size)
    missed = count_flops(lambda key: tangents.draw(key, 1, like, "rademacher"), key)
    if "line" not in name:
        missed += count_flops(lambda key: standard_normal(key, size, like.dtype), key)
    return missed


def flops_at(num_rows: int, quick: bool) -> tuple[list, dict[str, float]]:
    """Rows of the table for `num_rows`, and the ratios; with `quick`, those that have a target."""
    logdensity_fn, network, tangent = network_problem(num_rows)
    first = count_flops(jvp(logdensity_fn), network, tangent)
    second = count_flops(second_jvp(logdensity_fn), network, tangent)
    counts = {
        "evaluation": count_flops(logdensity_fn, network),
        "JVP": first,
        "gradient": count_flops(jax.value_and_grad(logdensity_fn), network),
        "second-order JVP": second,
    }
    size = ravel_pytree(network)[0].size
    others = () if quick else ("pc_fmala",)
    for name in ("fmala", "line_fmala", "pc_line_fmala", *others):
        step, args = step_of(name, logdensity_fn, network)
        counts[name] = count_flops(step, *args) + count_missed(name, size)
    if not quick:
        step, args = step_of("mala", logdensity_fn, network)
        counts["mala"] = count_flops(step, *args)
    rows = [[num_rows, name, n / 1e6, n / first, n / second] for name, n in counts.items()]
    return rows, {name: n / (second if "pc" in name else first) for name, n in counts.items()}


def flops(quick: bool) -> Section:
    """Floating point operations of a step on the network, by XLA's cost analysis."""
    tables = {num_rows: flops_at(num_rows, quick) for num_rows in (ROWS[1:] if quick else ROWS)}
    checks = [
        (f"{name} / {unit}, {num_rows} rows", tables[num_rows][1][name], limit)
        for num_rows in tables
        for name, unit, limit in (
            ("fmala", "JVP", 1.05 if num_rows == 10_000 else 1.1),
            ("line_fmala", "JVP", 2.05),
            ("pc_line_fmala", "second-order JVP", 2.05),
        )
    ]
    return Section(
        "Operations of a step",
        "XLA's cost analysis of the compiled step on the network with 40,701 parameters. XLA "
        "counts the body of a loop once; the part of the random draws that it misses for this "
        "reason, in blocks, is added. One tangent, default arguments.",
        ["rows of data", "what", "Mflop", "in JVPs", "in second-order JVPs"],
        [row for rows, _ in tables.values() for row in rows],
        checks,
    )


# Wall time


def five_calls(function: Callable, arguments: tuple) -> Callable[[], Any]:
    """Five calls of a compiled function, one after the other."""
    compiled = jax.jit(function).lower(*arguments).compile()
    return lambda: [compiled(*arguments) for _ in range(5)][-1]


def time_all(calls: dict[str, tuple[Callable, tuple]], repeats: int) -> dict[str, float]:
    """Seconds per call, the least of `repeats`."""
    programs = {name: five_calls(*call) for name, call in calls.items()}
    return {name: found / 5 for name, found in in_turn(programs, repeats).items()}


def wall_calls() -> dict[str, tuple[Callable, tuple]]:
    logdensity_fn, network, tangent = network_problem(400)
    key, like = jax.random.key(0), ravel_pytree(network)[0]
    calls = {
        "evaluation": (logdensity_fn, (network,)),
        "JVP": (jvp(logdensity_fn), (network, tangent)),
        "gradient": (jax.value_and_grad(logdensity_fn), (network,)),
        "normals, jax.random": (lambda key: jax.random.normal(key, like.shape), (key,)),
        "normals, in blocks": (lambda key: standard_normal(key, like.size, like.dtype), (key,)),
        "signs, in blocks": (lambda key: tangents.signs(key, like.size, like.dtype), (key,)),
        "mala": step_of("mala", logdensity_fn, network),
        "random_walk": step_of("random_walk", logdensity_fn, network),
    }
    for law in ("rademacher", "sphere"):
        fmala = partial(step_of, "fmala", logdensity_fn, network, tangents=law)
        calls[f"fmala, {law}"] = fmala()
        calls[f"fmala, {law}, fresh tangent"] = fmala(persistent_tangent=False)
        calls[f"line_fmala, {law}"] = step_of("line_fmala", logdensity_fn, network, tangents=law)
    return calls


def wall(quick: bool) -> Section:
    """Wall time of a step on the network at 400 rows."""
    seconds = time_all(wall_calls(), 10 if quick else 60)
    ratio = {name: s / seconds["JVP"] for name, s in seconds.items()}
    return Section(
        "Wall time of a step",
        "The network with 40,701 parameters at 400 rows, float32: the least of many timings, taken "
        "in turn in one run. Read the ratios.",
        ["what", "ms", "in JVPs"],
        [[name, 1e3 * s, ratio[name]] for name, s in seconds.items()],
        [
            ("fmala / JVP", ratio["fmala, rademacher"], 2.5),
            ("line_fmala / two JVPs", ratio["line_fmala, rademacher"] / 2, 1.3),
        ],
    )


# Memory


def temporary_bytes(function: Callable, *args) -> int:
    return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes


def memory_at(depth: int) -> list:
    logdensity_fn, network, _ = network_problem(10_000, depth=depth, width=50)
    forward = temporary_bytes(*flat(step_of("fmala", logdensity_fn, network)))
    reverse = temporary_bytes(*flat(step_of("mala", logdensity_fn, network)))
    return [depth, forward / 2**20, reverse / 2**20, forward / reverse]


def flat(call: tuple[Callable, tuple]) -> tuple:
    return call[0], *call[1]


def memory(quick: bool) -> Section:
    """Temporary memory of a step against the depth of the network."""
    rows = [memory_at(depth) for depth in ((4, 32) if quick else (4, 8, 16, 32, 64))]
    at = {depth: (forward, ratio) for depth, forward, _, ratio in rows}
    checks = [("fmala / mala at depth 32", at[32][1], 0.2)]
    if 64 in at:
        checks.append(("fmala, depth 64 / depth 4", at[64][0] / at[4][0], 1.5))
    return Section(
        "Memory of a step",
        "XLA's memory analysis: temporary memory of one step on a network with hidden layers of 50 "
        "units at 10,000 rows. Reverse mode keeps every layer's activations, forward mode two.",
        ["hidden layers", "fmala, MiB", "mala, MiB", "ratio"],
        rows,
        checks,
    )


# Effective sample size on normals


def normal_logdensity(x):
    return -0.5 * x @ x


@partial(jax.jit, static_argnames=("size", "num_chains", "num_steps", "options", "name"))
def draws_of_a_normal(
    step_size, size: int, num_chains: int, num_steps: int, options: tuple, name: str = "fmala"
):
    """Those of a sampler that starts in equilibrium, (chains, steps, size)."""
    law = {k: v for k, v in options if k != "persistent_tangent"}
    algorithm = getattr(blackjax_ext, name)
    kernel = partial(algorithm.build_kernel(), **dict(options))
    key_start, key_init, key_steps = jax.random.split(jax.random.key(size), 3)
    x = jax.random.normal(key_start, (num_chains, size))

    def chain(x, key_init, key):
        def step(state, key):
            state, _ = kernel(key, state, normal_logdensity, step_size)
            return state, state.position

        state = algorithm.init(x, normal_logdensity, key_init, **law)
        return jax.lax.scan(step, state, jax.random.split(key, num_steps))[1]

    keys = (jax.random.split(key, num_chains) for key in (key_init, key_steps))
    return jax.vmap(chain)(x, *keys)


def ess_per_step(step_size, size: int, num_chains: int, num_steps: int, *law) -> float:
    """Mean over coordinates of the bulk ESS of :func:`draws_of_a_normal`."""
    draws = draws_of_a_normal(step_size, size, num_chains, num_steps, *law)
    return float(np.mean(ess_of(draws))) / (num_chains * num_steps)


def tuned_ess(size: int, quick: bool, name: str = "fmala", **options) -> tuple[float, float]:
    """Best ESS per step over a grid of step sizes, and that step size."""
    grid = np.array([1.8, 2.4, 3.0] if quick else [1.5, 1.8, 2.1, 2.4, 2.7, 3.0]) / size**0.5
    shape = (size, 16, 1000) if quick else (size, 64, 10_000 if size > 10 else 4000)
    ess = [ess_per_step(eps, *shape, tuple(options.items()), name) for eps in grid]
    return max(zip(ess, grid, strict=True))


def persistent(quick: bool) -> Section:
    """ESS per JVP with a tangent that persists and with fresh ones."""
    rows, checks = [], []
    for size in (10, 100):
        ess = {}
        for keep in (True, False):
            per_step, step_size = tuned_ess(size, quick, persistent_tangent=keep)
            ess[keep] = per_step / (1 if keep else 2)
            rows.append([size, str(keep), step_size, 1e3 * per_step, 1e3 * ess[keep]])
        per_step, step_size = tuned_ess(size, quick, "random_walk")
        rows.append([size, "random walk", step_size, 1e3 * per_step, ""])
        checks.append((f"False / True, D = {size}", ess[False] / ess[True], 0.6))
    return Section(
        "What a persistent tangent is worth",
        "FMALA on a standard normal, mean ESS of the coordinates, step size chosen from a grid. A "
        "step costs one JVP with `persistent_tangent=True` and two with `False`; a random walk "
        "needs none.",
        ["D", "`persistent_tangent`", "step size", "ESS / 1000 steps", "ESS / 1000 JVPs"],
        rows,
        checks,
    )


def laws(quick: bool) -> Section:
    """ESS per step of both laws of tangents."""
    rows, checks = [], []
    for size in (2, 10, 100):
        ess, step_size = {}, tuned_ess(size, quick, tangents="sphere")[1]
        shape = (size, 16, 1000) if quick else (size, 128, 10_000)
        for law in ("sphere", "rademacher"):
            ess[law] = ess_per_step(step_size, *shape, (("tangents", law),))
        rows.append([size, step_size, *(1e3 * e for e in ess.values())])
        checks.append((f"sphere / rademacher, D = {size}", ess["sphere"] / ess["rademacher"], 1.1))
    return Section(
        "The law of the tangents",
        "ESS per 1000 steps of FMALA on a standard normal at the same step size. Signs mix as well "
        "as the sphere, and cost less to draw (see the wall times): they are the default.",
        ["D", "step size", "sphere", "rademacher"],
        rows,
        checks,
    )


# What NumPyro adds to a step


@contextlib.contextmanager
def compilation_cache():
    """Keep compiled programs, so that a run of MCMC does not compile what one before it did."""
    options = {
        "jax_compilation_cache_dir": None,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in options.items():
            jax.config.update(name, folder if value is None else value)
        compilation_cache_of_jax.reset_cache()
        try:
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache_of_jax.reset_cache()


def run_mcmc(num_samples: int, data) -> MCMC:
    kernel = FMALA(models.logistic_regression)
    mcmc = MCMC(kernel, num_warmup=500, num_samples=num_samples, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    jax.block_until_ready(mcmc.get_samples())
    return mcmc


def bare_scan(mcmc: MCMC, data, num_steps: int) -> Callable:
    """The kernel of `mcmc` after its warm-up, in a scan that collects nothing but positions."""
    view = initialize_model(jax.random.key(0), models.logistic_regression, model_args=data)
    kernel, adapted = blackjax_ext.fmala.build_kernel(), mcmc.last_state.adapt_state

    def logdensity(z):
        return -view.potential_fn(z)

    def step(state, key):
        state, _ = kernel(key, state, logdensity, adapted.step_size, adapted.metric)
        return state, state.position

    def scan(key):
        keys = jax.random.split(key, num_steps)
        return jax.lax.scan(step, mcmc.last_state.inner, keys)[1]

    return jax.jit(scan).lower(jax.random.key(0)).compile()


def overhead(quick: bool) -> Section:
    """Time per step of MCMC(FMALA(model)) against a bare scan of the same kernel."""
    data = tuple(jnp.asarray(a) for a in models.breast_cancer_data())
    short, long = (1_000, 21_000) if quick else (1_000, 101_000)
    times: dict[int, list[float]] = {short: [], long: []}
    bare: list[float] = []
    processor_seconds = partial(timed, clock=time.process_time)
    with compilation_cache():
        scan = bare_scan(run_mcmc(short, data), data, long - short)
        run_mcmc(long, data)
        for _ in range(2 if quick else 5):
            for num_samples, seconds in times.items():
                seconds.append(processor_seconds(run_mcmc, num_samples, data)[1])
            bare.append(processor_seconds(scan, jax.random.key(1))[1])
    per_step = (min(times[long]) - min(times[short])) / (long - short)
    per_bare = min(bare) / (long - short)
    return Section(
        "What NumPyro adds to a step",
        "Logistic regression on the breast cancer data, 569 rows, 31 parameters; processor time. "
        "The time per step of MCMC is the difference between a long and a short run, with programs "
        "from the compilation cache, over the difference in length, the least of several each. The "
        "scan runs the same kernel, step size and metric and collects the positions only.",
        ["what", "µs per step"],
        [
            ["`MCMC(FMALA(model), progress_bar=False)`", 1e6 * per_step],
            ["`lax.scan` of `blackjax_ext.fmala`", 1e6 * per_bare],
        ],
        [("MCMC / bare scan", per_step / per_bare, 1.2)],
    )


# Lynx and hare


class Setting(NamedTuple):
    """How a sampler runs: its maker, and draws per chain."""

    make: Callable
    num_samples: int


def lynx_hare_settings() -> dict[str, Setting]:
    """What is compared on the lynx-hare posterior, by name."""

    def hmc(model, num_steps, **options):
        forward = {"differentiation": "forward", "target_accept_prob": 0.8, **options}
        return BlackJAXKernel(model, blackjax.hmc, num_integration_steps=num_steps, **forward)

    settings = {"RandomWalk": Setting(RandomWalk, 10_000)}
    for name, kernel in (("FMALA", FMALA), ("LineFMALA", LineFMALA)):
        for k in (1, 4, 8):
            settings[f"{name}, K = {k}"] = Setting(partial(kernel, num_tangents=k), 5_000)
    settings["PCFMALA"] = Setting(PCFMALA, 5_000)
    settings["PCLineFMALA"] = Setting(PCLineFMALA, 5_000)
    settings["HMC, 3 steps, gradients of D JVPs"] = Setting(partial(hmc, num_steps=3), 2_000)
    nuts = partial(
        NUTS, forward_mode_differentiation=True, init_strategy=init_to_value(values=ROUGH_GUESS)
    )
    settings["NUTS, vectorized"] = Setting(nuts, 1_000)
    return settings


def lynx_hare_unit(name: str, setting: Setting, quick: bool) -> dict:
    """A row of the table, and the moments."""
    num_warmup, num_samples = 1_000 if "NUTS" in name else 2_000, setting.num_samples
    if quick:
        num_warmup, num_samples = num_warmup // 10, num_samples // 20
    kernel = setting.make(models.lynx_hare, dense_mass=True)
    run = run_chains(kernel, data.lynx_hare(), num_warmup, num_samples)
    rates = [run.ess / run.sampling, run.ess / (run.sampling + run.warmup)]
    found = [run.ess, run.rhat, run.warmup, run.sampling, run.compilation]
    return {"row": [name, num_samples], "found": [*found, *rates], "moments": run.moments}


def lynx_hare(quick: bool) -> Section:
    """ESS per second of every sampler on the lynx-hare posterior."""
    settings = lynx_hare_settings()
    names = ["FMALA, K = 8", "NUTS, vectorized"] if quick else settings
    units = {
        name: REPORT.once((name,), lynx_hare_unit, name, settings[name], quick) for name in names
    }
    nuts = units["NUTS, vectorized"]
    rows = [
        [
            *(*unit["row"], *worst_errors(unit["moments"], nuts["moments"])),
            *(*unit["found"], unit["found"][-2] / nuts["found"][-2]),
        ]
        for unit in units.values()
    ]
    return Section(
        "Lynx and hare",
        "The Lotka-Volterra posterior of `benchmarks/harness/models.py`: 8 parameters, an adaptive "
        "solver with a `while_loop`, no reverse mode. Four chains, `dense_mass=True`, defaults "
        "otherwise; least bulk ESS and worst R-hat of the unconstrained parameters. Errors, the "
        "worst of a parameter, are against NUTS: of the mean, in standard deviations, and of the "
        "standard deviation, relative. The times are without "
        "compilation and the search for a start, which have their own column. NUTS is given a "
        "rough guess to start from; the others start at random and find their own way.",
        [
            "sampler",
            "draws per chain",
            "error of mean",
            "error of sd",
            "ESS",
            "R-hat",
            "warm-up, s",
            "sampling, s",
            "compilation and start, s",
            "ESS/s",
            "ESS/s with warm-up",
            "ESS/s over NUTS",
        ],
        rows,
    )


def simulators(quick: bool) -> Section:
    """Solves until a thousand effective draws, on six posteriors with a dear function."""
    del quick  # measured by benchmarks/harness/simulator_runs.py, kept beside it
    rows = []
    for name, found in simulator_runs.kept(simulator_runs.COUNTS).items():
        by_sampler: dict[str, list[dict]] = {}
        for row in found:
            by_sampler.setdefault(row["sampler"], []).append(row)
        for sampler, several in by_sampler.items():
            before = [row.get("solves_before", 0) + row.get("jvps_before", 0) for row in several]
            until = [row["until_1000"] for row in several]
            has_count = None not in until  # chains that do not agree have none
            seconds = [
                1000 * row["seconds"] / min(row["ess"], row["ess_squares"]) for row in several
            ]
            rows.append(
                [
                    *(name, sampler, several[0]["unit"], several[0]["jvps_of_unit"], len(several)),
                    int(np.median(before)),
                    *(
                        float(np.median([row[key] for row in several]))
                        for key in ("ess_of_evaluation", "ess_squares_of_evaluation")
                    ),
                    *(
                        float(f"{function(until):.3g}") if has_count else "-"
                        for function in (np.median, np.max)
                    ),
                    float(np.median(seconds)) if has_count else "-",
                    *(
                        max(row[key] for row in several)
                        for key in ("rhat", "error_of_mean", "error_of_sd")
                    ),
                ]
            )
    return Section(
        "One solve a draw",
        "Posteriors of `benchmarks/harness/simulators.py`, whose dear function is marked by "
        "`expensive`. Units until the least of the bulk ESS of means and of squares is 1,000, "
        "extrapolated from the draws, with warm-up, and for Emulated with the solves and the JVPs "
        "before it, a JVP counted as a solve; for the others the search for a start is not "
        "counted. The unit is a solve, a step or a gradient, with so many JVPs. Medians over the "
        "seeds; R-hat and errors are the worst of them. Errors are against long runs, of means in "
        "standard deviations, of these relative. Where R-hat is above 1.01 there is no count. "
        "Seconds are of a processor, of the whole run with its compilation, for 1,000 of its "
        "effective draws. Four chains, double precision. Measured by "
        "`python -m benchmarks.harness.simulator_runs counts`.",
        [
            *("simulator", "sampler", "unit", "JVPs of a unit", "seeds", "solves and JVPs before"),
            *("ESS of means per unit", "ESS of squares per unit"),
            *("units until 1,000", "worst seed's", "processor s for 1,000"),
            *("R-hat", "error of mean", "error of sd"),
        ],
        rows,
    )


REPORT = Report(
    "forward_mode",
    "Forward-mode samplers: cost and yield",
    by_name(flops, wall, memory, persistent, laws, overhead, lynx_hare, simulators),
    long=("lynx_hare",),
)

if __name__ == "__main__":
    REPORT.main()
