"""Data, references and counts of the simulators: ``python -m benchmarks.harness.simulator_runs``.

``data`` draws the data of those that are synthetic, ``reference NAME...`` makes long runs, and
``counts NAME...`` measures effective draws per evaluation; all in double precision. Without names:
all. Each writes its file beside this one, the simulators that are not named keep their lines.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS
from numpyro.infer.util import unconstrain_fn

import numpyro_fwd
from benchmarks.harness import simulators
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.runs import programs_of
from benchmarks.harness.simulators import DATA, REFERENCE, SIMULATORS, Simulator

COUNTS = Path(__file__).parent / "simulator_counts.json"
BOARD = Path(__file__).parent / "board_reference.json"
CHAINS = 4
MOST_RUNS = 8  # of a reference
NUM_TANGENTS = 8
NUM_SEEDS = 3  # of the one that has points of its own
EMULATED = "Emulated"
# draws of a chain, and of its warm-up, of what is counted
STEPS = {
    EMULATED: (20, 1000),
    "RandomWalk": (2000, 15_000),
    "FMALA": (2000, 5000),
    "AutoNUTS, forward": (1000, 500),
    "NUTS, reverse": (1000, 500),
}

# where many chains start for a reference
GUESSES: dict[str, dict] = {
    "lynx_hare_8": {
        "theta": [0.5, 0.025, 0.8, 0.025],
        "z_init": [30.0, 5.0],
        "sigma": [0.3, 0.3],
    },
    "antibody": {**simulators.USUAL, "sigma": [0.2, 0.2]},
}

Draws = dict[str, np.ndarray]


# Data


def make_data() -> None:
    """Data of the three synthetic ones, from fixed parameters and seeds."""
    rng = np.random.default_rng(61)
    truth = jax.tree.map(jnp.asarray, simulators.ANTIBODY_TRUTH)
    log_concentrations = np.asarray(simulators.solve_antibody(truth))
    noise = np.array([0.1, 0.15])[:, None, None] * rng.standard_normal(log_concentrations.shape)
    truth = jax.tree.map(jnp.asarray, simulators.EPIDEMIC_TRUTH)
    infections = np.exp(np.asarray(simulators.solve_epidemic(truth)))
    mean, concentration = infections * np.array([0.3, 0.4, 0.6]), 25.0
    cases = rng.poisson(mean * rng.gamma(concentration, 1 / concentration, mean.shape))
    coefficients = jnp.asarray(rng.standard_normal(simulators.NUM_MODES))
    pressures = np.asarray(simulators.solve_flow({"coefficients": coefficients}))
    pressures = pressures + 0.01 * rng.standard_normal(pressures.shape)
    found = {
        "antibody": np.round(log_concentrations + noise, 4).tolist(),
        "epidemic": cases.tolist(),
        "flow": np.round(pressures, 5).tolist(),
    }
    write(DATA, found)


def write(path: Path, found: dict[str, Any]) -> None:
    """A JSON file with a simulator a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# Runs


def sample(
    kernel: Any,
    args: tuple,
    num_warmup: int,
    num_draws: int,
    seed: int,
    every: int = 1,
    num_chains: int = CHAINS,
    init: dict | None = None,
) -> tuple[Callable[[], Draws], dict[str, float]]:
    """Makes more and more draws (chains, draws, ...); and steps of a chain, of the warm-up first.

    A step counts as many times as the kernel says that it has evaluated the density.
    """

    warm, draw = programs_of(kernel, num_warmup, num_draws, every)
    keys = jax.random.split(jax.random.key(seed), num_chains)
    state, count = warm(kernel.init(keys, num_warmup, init, args, {}), args)
    counts = {"warmup": float(count.mean()), "draws": 0.0}
    runs: list[Draws] = []

    def more() -> Draws:
        nonlocal state
        (state, count), z = draw(state, args)
        counts["draws"] += float(count.mean())
        runs.append({n: np.moveaxis(np.asarray(x, np.float64), 0, 1) for n, x in z.items()})
        return {n: np.concatenate([each[n] for each in runs], 1) for n in runs[0]}

    return more, counts


def diagnostics(draws: Draws) -> dict[str, float]:
    """Worst R-hat, and least bulk ESS of the means and of the squares."""
    squares = {n: (x - x.mean((0, 1))) ** 2 for n, x in draws.items()}
    return {"rhat": worst_rhat(draws), "ess": least_ess(draws), "ess_squares": least_ess(squares)}


# References


def reference_kernel(name: str) -> tuple[Any, int, int, int, int]:
    """Kernel, chains, warm-up, draws of a run, and how many go by for one that is kept.

    Where a solve is cheap a random walk has its effective draws sooner than NUTS by any derivative,
    and many solves side by side cost little more than one.
    """
    simulator = SIMULATORS[name]
    if simulator.model is simulator.reverse:
        return NUTS(simulator.model, dense_mass=True), CHAINS, 1000, 1500, 1
    walk = numpyro_fwd.RandomWalk(simulator.model, dense_mass=True)
    if name in GUESSES:
        return walk, 32, 4000, 5000, 20
    return walk, CHAINS, 6000, 40_000, 20


def starts(name: str, num_chains: int) -> dict | None:
    """Unconstrained points around a guess; None leaves the search for a start to the kernel."""
    if name not in GUESSES:
        return None
    simulator, rng = SIMULATORS[name], np.random.default_rng(0)
    guess = {site: jnp.asarray(value, float) for site, value in GUESSES[name].items()}
    z = unconstrain_fn(simulator.model, simulator.args(), {}, guess)
    return {n: x + 0.1 * rng.standard_normal((num_chains, *x.shape)) for n, x in z.items()}


def make_reference(name: str) -> dict:
    """Moments of the unconstrained latents by chains that are longer until they suffice.

    Of all years of lynx and hare the leaderboard has them, by NUTS.
    """
    if name == "lynx_hare":
        return {"sampler": "NUTS", **json.loads(BOARD.read_text())[name]}
    args, start = SIMULATORS[name].args(), time.process_time()
    kernel, num_chains, num_warmup, num_draws, every = reference_kernel(name)
    first = starts(name, num_chains)
    more, counts = sample(kernel, args, num_warmup, num_draws, 100, every, num_chains, first)
    for turn in range(MOST_RUNS):
        draws = more()
        found = diagnostics(draws)
        shown = ", ".join(f"{key} {value:.5g}" for key, value in found.items())
        print(f"{name}: {turn + 1} runs, {shown}, {counts}", flush=True)
        if found["rhat"] <= 1.005 and min(found["ess"], found["ess_squares"]) >= 3000:
            break
    print(f"{name}: {time.process_time() - start:.0f} s of the processor", flush=True)
    sites = {n: (rounded(x.mean((0, 1))), rounded(x.std((0, 1)))) for n, x in draws.items()}
    return {"sampler": type(kernel).__name__, **found, "sites": sites}


def rounded(x: np.ndarray) -> Any:
    """As lists of six significant digits."""
    return np.vectorize(lambda value: float(f"{value:.6g}"))(x).tolist()


# Counts


def counted_kernels(simulator: Simulator) -> dict[str, tuple[Any, str, int]]:
    """Kernels by name; what they evaluate, and the JVPs of one evaluation."""
    model, size = simulator.model, simulator.size
    kernels: dict[str, tuple[Any, str, int]] = {
        "RandomWalk": (numpyro_fwd.RandomWalk(model, dense_mass=True), "solve", 0)
    }
    if simulator.has_derivatives:
        fmala = numpyro_fwd.FMALA(model, num_tangents=NUM_TANGENTS, dense_mass=True)
        kernels["FMALA"] = fmala, "step", NUM_TANGENTS
        # a model with both: forward mode all the same
        auto = numpyro_fwd.AutoNUTS(model, forward_mode_differentiation=True)
        kernels["AutoNUTS, forward"] = auto, "gradient", size
    if simulator.reverse is not None:
        kernels["NUTS, reverse"] = NUTS(simulator.reverse, dense_mass=True), "gradient", 0
    return kernels


def errors(name: str, draws: Draws) -> dict[str, float]:
    """Largest errors against the reference: of means in standard deviations, of these relative."""
    truth = simulators.reference(name)
    of_mean = [np.max(np.abs(draws[n].mean((0, 1)) - m) / s) for n, (m, s) in truth.items()]
    of_sd = [np.max(np.abs(draws[n].std((0, 1)) / s - 1)) for n, (_, s) in truth.items()]
    return {"error_of_mean": float(max(of_mean)), "error_of_sd": float(max(of_sd))}


def count(name: str, sampler: str) -> dict:
    """A row of the table."""
    simulator = SIMULATORS[name]
    kernel, unit, num_jvps = counted_kernels(simulator)[sampler]
    num_warmup, num_draws = STEPS[sampler]
    start = time.process_time()
    more, steps = sample(kernel, simulator.args(), num_warmup, num_draws, 0)
    draws = more()
    found = diagnostics(draws)
    least = min(found["ess"], found["ess_squares"]) / CHAINS
    rate = least / steps["draws"]
    return {
        "simulator": name,
        "sampler": sampler,
        "unit": unit,
        "jvps_of_unit": num_jvps,
        "warmup": CHAINS * steps["warmup"],
        "draws": CHAINS * num_draws,
        "evaluations": CHAINS * steps["draws"],
        **found,
        "ess_of_evaluation": found["ess"] / (CHAINS * steps["draws"]),
        "ess_squares_of_evaluation": found["ess_squares"] / (CHAINS * steps["draws"]),
        # chains that do not agree have no rate
        "until_1000": CHAINS * steps["warmup"] + 1000 / rate if found["rhat"] <= 1.01 else None,
        **errors(name, draws),
        "seconds": time.process_time() - start,
    }


def count_emulated(name: str, seed: int) -> dict:
    """A row of `Emulated`, of one seed of its points and of its chains."""
    simulator, start = SIMULATORS[name], time.process_time()
    kernel = numpyro_fwd.Emulated(simulator.model, seed=seed)
    num_warmup, num_draws = STEPS[EMULATED]
    args = simulator.args()
    more, _ = sample(kernel, args, num_warmup, num_draws, seed)
    draws = more()
    # learned above: another state of these data takes no solve
    state = kernel.init(jax.random.split(jax.random.key(0), CHAINS), num_warmup, None, args, {})
    setup = kernel.emulator(SimpleNamespace(last_state=state))
    found = diagnostics(draws)
    rate = min(found["ess"], found["ess_squares"]) / (CHAINS * num_draws)
    before = setup.num_solves + setup.num_jvps + CHAINS * (num_warmup + 1)
    return {
        **{"simulator": name, "sampler": EMULATED, "seed": seed, "unit": "solve"},
        **{"jvps_of_unit": 0, "solves_before": setup.num_solves, "jvps_before": setup.num_jvps},
        **{"failed_before": setup.num_failed, "acceptance": setup.acceptance},
        **{"warmup": CHAINS * num_warmup, "draws": CHAINS * num_draws, **found},
        "ess_of_evaluation": found["ess"] / (CHAINS * num_draws),
        "ess_squares_of_evaluation": found["ess_squares"] / (CHAINS * num_draws),
        # a JVP counts as a solve
        "until_1000": before + 1000 / rate if found["rhat"] <= 1.01 else None,
        **errors(name, draws),
        "seconds": time.process_time() - start,
    }


def kept(path: Path) -> dict[str, Any]:
    """What a file has."""
    return json.loads(path.read_text()) if path.exists() else {}


def make_references(names: list[str]) -> None:
    """Put references into their file."""
    for name in names:
        found = make_reference(name)
        write(REFERENCE, kept(REFERENCE) | {name: found})
        jax.clear_caches()


def make_counts(names: list[str], samplers: list[str]) -> None:
    """Put rows into their file; those of other samplers stay."""
    for name in names:
        for seed in range(NUM_SEEDS if EMULATED in samplers else 0):
            row = count_emulated(name, seed)
            print(json.dumps(row), flush=True)
            others = [r for r in kept(COUNTS).get(name, []) if r.get("seed") != seed]
            write(COUNTS, kept(COUNTS) | {name: [*others, row]})
            jax.clear_caches()
        for sampler in counted_kernels(SIMULATORS[name]):
            if sampler not in samplers:
                continue
            row = count(name, sampler)
            print(json.dumps(row), flush=True)
            rows = [r for r in kept(COUNTS).get(name, []) if r["sampler"] != sampler]
            write(COUNTS, kept(COUNTS) | {name: [*rows, row]})
            jax.clear_caches()


def main() -> None:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["data", "reference", "counts"])
    parser.add_argument("names", nargs="*", help=f"which of {list(SIMULATORS)}")
    parser.add_argument("--samplers", nargs="+", default=list(STEPS), help="what is counted")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    names = options.names or list(SIMULATORS)
    if options.what == "data":
        make_data()
    elif options.what == "reference":
        make_references(names)
    else:
        make_counts(names, options.samplers)


if __name__ == "__main__":
    main()
