"""Posteriors we did not choose, from defaults: ``python benchmarks/leaderboard.py NAME...``.

Four vectorized chains from three seeds, a posterior a section. Budget: NUTS, AutoNUTS and
ChEES-HMC make 1,000 steps of warm-up and 1,000 draws. Every other sampler gets the evaluations of a
chain that NUTS took in its first run, at least 4,000 and at most 24,000, in at least 1,000 steps:
half of them are warm-up, up to 2,000, the rest are draws. Equal numbers of draws would favour
samplers whose steps are long, and equal times the machine; evaluations are what grows with the
data.

An evaluation is that of the density, with a gradient or one JVP; a second-order JVP is two, a
Hessian D, its derivative another D. The two gradients of a step of the isokinetic integrator count
twice. What a warm-up evaluates is counted, the search for its start is not; ChEES-HMC and adjusted
MCLMC start where our kernels do. Seconds are of the processor, which other processes do not change.

``--kernels A,B NAME...`` measures these rows alone and keeps the others of a table,
``--reference NAME...`` makes references (benchmarks/harness/board_reference.json), and the section
`ranking`, `ranking_large`, `auto_nuts` and `pairs` are made from the others without measuring.
Beyond `SMALL` dimensions few samplers are run, so that the two rankings compare like with like.
"""

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import blackjax
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.experimental.compilation_cache import compilation_cache
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model

import numpyro_fwd
from benchmarks.harness import posteriordb
from benchmarks.harness.board_posteriors import POSTERIORS, PUBLISHED
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.microcanonical import (
    GRADIENTS,
    NUM_INTEGRATION_STEPS,
    microcanonical,
)
from benchmarks.harness.report import ROOT, Report, Section, by_name
from benchmarks.harness.runs import programs_of
from benchmarks.peers_from_papers.malt import malt

SEEDS, CHAINS = 3, 4
WARMUP, DRAWS = 1000, 1000  # of NUTS and ChEES-HMC
LEAST, MOST = 4_000, 24_000  # evaluations of a chain
MOST_WARMUP = 2_000
LEAST_STEPS = 1_000
SMALL = 64  # dimensions beyond which only `ON_LARGE` are run, and only so many draws are kept
MOST_KEPT = 2_500  # of a chain: far more than the effective ones there
WIDEST_DENSE = 300  # dimensions beyond which NUTS has no dense metric
WIDEST = 35  # dimensions beyond which no kernel with a Hessian in each step is run
MOST_RUNS = 8  # of 5,000 draws a chain, for a reference
REFERENCE = ROOT / "benchmarks" / "harness" / "board_reference.json"
RESULTS = ROOT / "docs" / "results" / "leaderboard.json"

# evaluations of a step in D dimensions, where the kernel does not count them itself: cheap first
COSTS: dict[str, Callable[[int], float]] = {
    "RandomWalk": lambda size: 1,
    "MALA": lambda size: 1,
    "FMALA": lambda size: 1,
    "AutoMALA": lambda size: 2,
    "LineFMALA": lambda size: 2,
    "PCFMALA": lambda size: 2,
    "PCLineFMALA": lambda size: 4,
    "ALSMMALA": lambda size: 1 + 0.15 * size,
    "AMSMMALA": lambda size: 1 + 2 * size / 7,
    "HPMALA": lambda size: 1 + size,
    "SMMALA": lambda size: 1 + size,
    "MMALA": lambda size: 1 + 2 * size,
}
COUNTED = ("AutoMALA",)
ON_LARGE = ("NUTS", "AutoNUTS", "NUTS dense", "RandomWalk", "MALA", "AutoMALA")
WITH_HESSIANS = ("ALSMMALA", "AMSMMALA", "HPMALA", "SMMALA", "MMALA")
PEERS = ("NUTS", "NUTS dense", "ChEES-HMC", "MCLMC", "adjusted MCLMC", "MALT")
SAMPLERS = ("NUTS", "AutoNUTS", *PEERS[1:], *COSTS)
TUNED = {  # and the gradients of a draw: the adjusted one makes two steps
    "MCLMC": (blackjax.mclmc, GRADIENTS),
    "adjusted MCLMC": (blackjax.adjusted_mclmc, NUM_INTEGRATION_STEPS * GRADIENTS),
}
PATH = 8  # leapfrog steps of MALT
COLUMNS = [
    *("sampler", "steps", "evaluations", "R-hat", "error of mean", "error of sd", "ESS"),
    *("cold, s", "warm, s"),
]

Draws = dict[str, np.ndarray]
Run = Callable[[int], tuple[Draws, float]]


# Samplers: from a seed to unconstrained draws (chains, draws, ...) and evaluations of a chain


def of_numpyro(
    kernel: Any, arguments: tuple, steps: tuple[int, int], cost: float = 1.0, every: int = 1
) -> Run:
    """A NumPyro kernel, of whose draws one of `every` is kept; `num_steps` times `cost` count."""
    num_warmup, num_draws = steps
    warm, draw = programs_of(kernel, num_warmup, num_draws, every)

    def run(seed: int) -> tuple[Draws, float]:
        keys = jax.random.split(jax.random.key(seed), CHAINS)
        state = kernel.init(keys, num_warmup, None, arguments, {})
        state, before = warm(state, arguments)
        (_, after), z = draw(state, arguments)
        draws = {name: np.moveaxis(np.asarray(value), 0, 1) for name, value in z.items()}
        return draws, cost * float((before + after).mean())

    return run


def chees(model: Callable, arguments: tuple, steps: tuple[int, int]) -> Run:
    """ChEES-HMC with BlackJAX's tuning and its estimate of variances.

    It starts where our kernels do: from NumPyro's uniform starts, chains that are far out never
    move, which is said of it in BlackJAX ("validated under located initializations").
    """
    num_warmup, num_draws = steps
    starter = numpyro_fwd.MALA(model)
    info = initialize_model(
        jax.random.key(0), model, model_args=arguments, dynamic_args=True, validate_grad=False
    )

    @jax.jit
    def sample(z, data, key_warm, key_draw):
        def logdensity(position):
            return -info.potential_fn(*data)(position)

        tuning = blackjax.chees_adaptation(logdensity, CHAINS, mass_matrix_estimation="diagonal")
        adam = optax.adam(0.025)
        (states, found), warm = tuning.run(key_warm, z, 0.1, adam, num_warmup)
        step = jax.vmap(blackjax.dynamic_hmc(logdensity, **found).step)

        def body(states, key):
            states, info = step(jax.random.split(key, CHAINS), states)
            return states, (states.position, info.num_integration_steps)

        _, (z, count) = jax.lax.scan(body, states, jax.random.split(key_draw, num_draws))
        return z, (warm.info.num_integration_steps.sum() + count.sum()) / CHAINS

    def run(seed: int) -> tuple[Draws, float]:
        key_start, key_warm, key_draw = jax.random.split(jax.random.key(seed), 3)
        keys = jax.random.split(key_start, CHAINS)
        z = starter.init(keys, num_warmup, None, arguments, {}).z
        z, count = sample(z, arguments, key_warm, key_draw)
        return {n: np.moveaxis(np.asarray(v), 0, 1) for n, v in z.items()}, float(count)

    return run


def sampler(name: str, model: Callable, arguments: tuple, size: int, budget: float) -> tuple:
    """A sampler by name, and its steps: warm-up and draws."""
    if name in ("NUTS", "NUTS dense"):
        kernel = NUTS(model, dense_mass=name == "NUTS dense")
        return of_numpyro(kernel, arguments, (WARMUP, DRAWS)), (WARMUP, DRAWS)
    if name == "AutoNUTS":
        kernel = numpyro_fwd.AutoNUTS(model)
        return of_numpyro(kernel, arguments, (WARMUP, DRAWS)), (WARMUP, DRAWS)
    if name == "ChEES-HMC":
        return chees(model, arguments, (WARMUP, DRAWS)), (WARMUP, DRAWS)
    if name in TUNED:  # tuned for as many steps before the warm-up, which burns in
        algorithm, cost = TUNED[name]
        steps = shared(budget / cost)
        return microcanonical(algorithm, model, arguments, steps, CHAINS), steps
    if name == "MALT":
        kernel = numpyro_fwd.BlackJAXKernel(model, malt, num_steps=PATH, dense_mass=size <= 64)
        steps = shared(budget / PATH)
        return of_numpyro(kernel, arguments, steps), steps
    cost = COSTS[name](size)
    steps = shared(budget / cost)
    kernel = getattr(numpyro_fwd, name)(model)
    every = -(-steps[1] // MOST_KEPT) if size > SMALL else 1
    cost = 1.0 if name in COUNTED else cost
    return of_numpyro(kernel, arguments, steps, cost, every), steps


def samplers_for(size: int) -> list[str]:
    """Samplers that are run in so many dimensions."""
    if size <= SMALL:
        return [n for n in SAMPLERS if size <= WIDEST or n not in WITH_HESSIANS]
    return [n for n in ON_LARGE if size <= WIDEST_DENSE or n != "NUTS dense"]


def shared(num_steps: float) -> tuple[int, int]:
    """Warm-up and draws of so many steps."""
    num_steps = max(int(num_steps), LEAST_STEPS)
    num_warmup = min(num_steps // 2, MOST_WARMUP)
    return num_warmup, num_steps - num_warmup


# What is compared


def transforms(model: Callable, arguments: tuple) -> dict[str, Callable]:
    """From the support of each latent site to real numbers."""
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(*arguments)
    sites = {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    return {name: biject_to(site["fn"].support).inv for name, site in sites.items()}


def quantities(name: str, draws: Draws) -> Draws:
    """What the reference has of unconstrained draws: those, sites, or what is identified."""
    model, arguments = POSTERIORS[name].make()
    compared = POSTERIORS[name].compared
    if name not in PUBLISHED and compared is None:
        return draws
    info = initialize_model(jax.random.key(0), model, model_args=arguments, validate_grad=False)

    def of_draw(z):
        sites = info.postprocess_fn(z)
        return sites if compared is None else compared(sites)

    return jax.jit(jax.vmap(jax.vmap(of_draw)))(draws)


def reference(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations by site."""
    if name in PUBLISHED:
        return posteriordb.reference_of(PUBLISHED[name])
    found = POSTERIORS[name].exact or json.loads(REFERENCE.read_text())[name]["sites"]
    return {site: (np.asarray(mean), np.asarray(sd)) for site, (mean, sd) in found.items()}


def make_reference(name: str) -> dict:
    """Moments of what is compared by chains of NUTS, which are longer until they suffice."""
    posterior = POSTERIORS[name]
    model, arguments = posterior.make()
    mcmc = MCMC(
        NUTS(posterior.easier or model, target_accept_prob=0.95),
        num_warmup=2000,
        num_samples=5000,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    compared = posterior.compared or unconstrained(model, arguments)
    compared, runs = jax.jit(jax.vmap(jax.vmap(compared))), []
    rng_key = jax.random.key(100)
    for _ in range(MOST_RUNS):
        mcmc.run(rng_key, *arguments)
        mcmc.post_warmup_state = mcmc.last_state
        rng_key = mcmc.last_state.rng_key
        found = compared(mcmc.get_samples(group_by_chain=True))
        runs.append({n: np.asarray(x, np.float64) for n, x in found.items()})
        draws = {n: np.concatenate([run[n] for run in runs], 1) for n in found}
        rhat, ess = diagnostics(draws)
        print(f"{name}: {len(runs)} runs, R-hat {rhat:.4f}, ESS {ess:.0f}", flush=True)
        if rhat <= 1.003 and ess >= 4000:
            break
    sites = {n: (rounded(x.mean((0, 1))), rounded(x.std((0, 1)))) for n, x in draws.items()}
    return {"rhat": rhat, "ess": ess, "sites": sites}


def unconstrained(model: Callable, arguments: tuple) -> Callable[[dict], dict]:
    """From the sites of a draw to real numbers."""
    back = transforms(model, arguments)
    return lambda sites: {name: f(sites[name]) for name, f in back.items()}


def rounded(x: np.ndarray) -> Any:
    """As lists of six significant digits."""
    return np.vectorize(lambda value: float(f"{value:.6g}"))(x).tolist()


def make_references(names: list[str]) -> None:
    """Put references into their file, a posterior a line; in double precision."""
    jax.config.update("jax_enable_x64", True)
    kept = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    made = [n for n, p in POSTERIORS.items() if p.exact is None]
    made = [n for n in made if n not in PUBLISHED]
    for name in names or made:
        start = time.process_time()
        kept[name] = make_reference(name)
        print(f"{name}: {time.process_time() - start:.0f} s of the processor", flush=True)
        jax.clear_caches()
        lines = [f"{json.dumps(n)}: {json.dumps(found)}" for n, found in kept.items()]
        REFERENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def diagnostics(draws: Draws) -> tuple[float, float]:
    """Worst rank-normalized R-hat and least bulk ESS; inf and 0 where a chain says nothing."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return worst_rhat(draws), least_ess(draws)


def judged(name: str, draws: Draws) -> dict[str, float]:
    """R-hat, ESS and the largest errors against the reference."""
    truth, found = reference(name), quantities(name, draws)
    compared = {site: np.asarray(found[site], np.float64) for site in truth}
    rhat, ess = diagnostics(compared)
    mean, sd = 0.0, 0.0
    for site, (true_mean, true_sd) in truth.items():
        x = compared[site]
        off = np.abs(x.mean((0, 1)) - true_mean) / true_sd
        mean = max(mean, float(np.nan_to_num(off, nan=np.inf).max()))
        off = np.abs(x.std((0, 1)) / true_sd - 1)
        sd = max(sd, float(np.nan_to_num(off, nan=np.inf).max()))
    return {"rhat": rhat, "ess": ess, "mean": mean, "sd": sd}


# Tables


@contextmanager
def empty_cache() -> Iterator[None]:
    """Nothing is compiled, and what will be is kept on disk, as `keep_compiled` does."""
    options = [name for name in jax.config.values if "cache" in name]
    before = {name: jax.config.values[name] for name in options}
    try:
        with tempfile.TemporaryDirectory() as folder:
            jax.clear_caches()
            compilation_cache.reset_cache()
            numpyro_fwd.keep_compiled(folder)
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def measure(name: str, label: str, budget: float, quick: bool) -> dict[str, Any]:
    """All seeds of a sampler; what fails says why."""
    model, arguments = POSTERIORS[name].make()
    size = dimensions(model, arguments)
    found: list[dict] = []
    try:
        with empty_cache(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run, steps = sampler(label, model, arguments, size, budget)
            for seed in range(1 if quick else SEEDS):
                start = time.process_time()
                draws, evaluations = run(seed)
                seconds = time.process_time() - start
                found.append(
                    {**judged(name, draws), "evaluations": evaluations, "seconds": seconds}
                )
    except (ValueError, FloatingPointError, RuntimeError, TypeError) as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:80]}"}
    return {"steps": sum(steps), "runs": found}


def dimensions(model: Callable, arguments: tuple) -> int:
    """Of the unconstrained space."""
    info = initialize_model(jax.random.key(0), model, model_args=arguments, validate_grad=False)
    return sum(leaf.size for leaf in jax.tree.leaves(info.param_info.z))


def row(label: str, found: dict) -> list:
    """The worst of the seeds; seconds of the first, and the mean of the others."""
    if "failed" in found:
        return [label, *[float("nan")] * (len(COLUMNS) - 1)]
    of = {each: [run[each] for run in found["runs"]] for each in found["runs"][0]}
    return [
        *(label, found["steps"], float(np.mean(of["evaluations"]))),
        *(max(of["rhat"]), max(of["mean"]), max(of["sd"]), min(of["ess"])),
        *(of["seconds"][0], float(np.mean(of["seconds"][1:] or np.nan))),
    ]


CHOSEN: list[str] = []  # samplers to measure again; none for all


def kept_rows(name: str) -> dict[str, list]:
    """Rows of a posterior in the results, by sampler, if only some are measured."""
    if not CHOSEN or not RESULTS.exists():
        return {}
    sections = json.loads(RESULTS.read_text())["sections"]
    return {r[0]: r for r in sections[name]["rows"]} if name in sections else {}


def table(name: str, quick: bool) -> Section:
    """A row for each sampler."""
    model, arguments = POSTERIORS[name].make()
    size = dimensions(model, arguments)
    labels = samplers_for(size)
    rows = kept_rows(name)
    budget = rows["NUTS"][2] if "NUTS" in rows else MOST
    for label in labels[:1] if quick else labels:
        if CHOSEN and label not in CHOSEN:
            continue
        found = REPORT.once((name, label), measure, name, label, clipped(budget), quick)
        if label == "NUTS" and "runs" in found:
            budget = found["runs"][0]["evaluations"]
        rows[label] = row(label, found)
        if "failed" in found:
            print(label, found["failed"], flush=True)
    where = "posteriordb" if name in PUBLISHED else "long chains of NUTS"
    if POSTERIORS[name].exact:
        where = "exact moments"
    return Section(
        name.replace("_", " ").capitalize(),
        f"{POSTERIORS[name].kind[:1].upper()}{POSTERIORS[name].kind[1:]}, D = {size}. Errors "
        f"against {where}, in reference standard deviations. Of three seeds the worst R-hat and "
        "errors and the least bulk ESS of a quantity; evaluations of a chain, warm-up included. "
        "Seconds of the processor; cold: the first seed, with compilation. Warm: the mean of the "
        "others, whose programs are there.",
        COLUMNS,
        [rows[label] for label in labels if label in rows],
    )


def clipped(budget: float) -> float:
    """Evaluations that a chain gets."""
    return float(np.clip(budget, LEAST, MOST))


# All posteriors together


def kept_tables() -> dict[str, dict[str, list]]:
    """Rows of each posterior that has been run, by sampler."""
    kept = json.loads(RESULTS.read_text())["sections"] if RESULTS.exists() else {}
    return {n: {r[0]: r for r in kept[n]["rows"]} for n in POSTERIORS if n in kept}


def is_small(rows: dict[str, list]) -> bool:
    """Whether a posterior has the rows of few dimensions: samplers that large ones do not get."""
    return set(PEERS) <= set(rows)


def ranking(quick: bool) -> Section:
    """Shares of posteriors that each sampler gets right, from the tables of the others."""
    tables = kept_tables()
    small = {name: rows for name, rows in tables.items() if is_small(rows)}
    section = ranking_of(
        small,
        "All posteriors",
        f"{len(small)} posteriors of at most {SMALL} dimensions have been run; a sampler with "
        f"Hessians where there are at most {WIDEST}. Right: errors of all means below 0.1 "
        "reference standard deviations and R-hat below 1.01, with each of three seeds. Converged: "
        "R-hat alone. Misleading: R-hat below 1.01 and an error above 0.25. The last columns are "
        "medians over posteriors, ESS that of the worst quantity. The picture also has the "
        "posteriors of more dimensions.\n\n"
        "![Largest error of a mean, by sampler and posterior](leaderboard.png)",
    )
    if not quick:
        REPORT.picture(picture(tables, [r[0] for r in section.rows]), "leaderboard.png")
    return section


def ranking_large(quick: bool) -> Section:
    """The same of posteriors of many dimensions, on which fewer samplers are run."""
    large = {name: rows for name, rows in kept_tables().items() if not is_small(rows)}
    return ranking_of(
        large,
        "Posteriors of many dimensions",
        f"{len(large)} posteriors of more than {SMALL} dimensions, on which only these samplers "
        f"are run, and NUTS with a dense metric up to {WIDEST_DENSE}. Columns are those of the "
        f"first table. Of a chain at most {MOST_KEPT:,} draws are kept, evenly spaced. An error is "
        "the largest of hundreds here, and that of an exact sampler grows with their number.",
    )


def ranking_of(tables: dict[str, dict[str, list]], title: str, text: str) -> Section:
    """A table of samplers, those that are right most often first."""
    rows = [ranked(label, tables) for label in SAMPLERS]
    return Section(
        title,
        text,
        [
            *("sampler", "posteriors", "right", "converged", "misleading", "median error"),
            *("ESS per 1,000 evaluations", "cold, s", "warm, s"),
        ],
        sorted((r for r in rows if r[1]), key=lambda r: (-r[2], -r[3])),
    )


def paired(other: str = "NUTS") -> dict[str, dict[str, dict[str, float]]]:
    """What AutoNUTS and NUTS, as `other`, did on posteriors that both were run on; failures too."""
    tables = kept_tables().items()
    both = {n: rows for n, rows in tables if {other, "AutoNUTS"} <= set(rows)}
    names = {"AutoNUTS": "AutoNUTS", "NUTS": other}
    return {n: {k: facts(rows[name]) for k, name in names.items()} for n, rows in both.items()}


def facts(row: list) -> dict[str, float]:
    """Of a sampler on a posterior; what failed has no ESS."""
    _, evaluations, rhat, mean, _, ess, _, warm = map(float, row[1:])
    is_converged = rhat < 1.01
    return {
        **{"R-hat": rhat, "error": mean, "warm": warm},
        "worth": float(np.nan_to_num(ess / evaluations)),
        "right": is_converged and mean < 0.1,
        "misleading": is_converged and mean > 0.25,
    }


def auto_nuts(quick: bool) -> Section:
    """AutoNUTS beside NUTS on the posteriors that both were run on."""
    pairs, dense, tables = paired(), paired("NUTS dense"), kept_tables()
    small = {n: pair for n, pair in pairs.items() if is_small(tables[n])}
    large = {n: pair for n, pair in pairs.items() if n not in small}
    groups = {
        f"up to {SMALL} dimensions": small,
        f"up to {SMALL} dimensions, NUTS dense": {n: dense[n] for n in small if n in dense},
        **{"more dimensions": large, "all": pairs},
    }
    return Section(
        "AutoNUTS beside NUTS",
        "Posterior by posterior, both from defaults with equal numbers of steps. ESS is that of "
        "the worst quantity, per evaluation; ratios are AutoNUTS over NUTS, medians over "
        "posteriors. Right and misleading are those of the first table. A sampler that failed "
        "has an ESS of zero. NUTS has its defaults, and in the second row a dense metric.",
        [
            *("posteriors of", "posteriors", "right", "right, NUTS"),
            *("ESS at least NUTS's", "ratio of ESS", "least ratio"),
            *("misleading", "misleading, NUTS", "ratio of warm s"),
        ],
        [
            [label, *compared_pairs(list(group.values()))]
            for label, group in groups.items()
            if group
        ],
    )


def compared_pairs(pairs: list[dict[str, dict[str, float]]]) -> list:
    """A row of :func:`auto_nuts`."""

    def number(sampler: str, what: str) -> int:
        return sum(bool(pair[sampler][what]) for pair in pairs)

    worth = ratios(pairs, "worth")
    return [
        *(len(pairs), number("AutoNUTS", "right"), number("NUTS", "right")),
        *(int(np.sum(worth >= 1)), median(worth), float(np.nanmin(worth, initial=np.inf))),
        *(number("AutoNUTS", "misleading"), number("NUTS", "misleading")),
        median(ratios(pairs, "warm")),
    ]


def median(values: np.ndarray) -> float:
    """Of what is a number."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def ratios(pairs: list[dict[str, dict[str, float]]], what: str) -> np.ndarray:
    """AutoNUTS over NUTS; infinite where NUTS has nothing."""
    found = np.array([(pair["AutoNUTS"][what], pair["NUTS"][what]) for pair in pairs], float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return found[:, 0] / found[:, 1]


def pairs(quick: bool) -> Section:
    """The same, a posterior a row."""
    found = paired()
    worth = ratios(list(found.values()), "worth")
    rows = [
        [
            *(name, pair["NUTS"]["R-hat"], pair["AutoNUTS"]["R-hat"]),
            *(pair["NUTS"]["error"], pair["AutoNUTS"]["error"], float(worth[i])),
        ]
        for i, (name, pair) in enumerate(found.items())
    ]
    return Section(
        "AutoNUTS beside NUTS, by posterior",
        "Worst R-hat and largest error of a mean of three seeds; ratios of ESS per evaluation, "
        "AutoNUTS over NUTS.",
        [
            *("posterior", "R-hat, NUTS", "R-hat, AutoNUTS", "error, NUTS", "error, AutoNUTS"),
            "ratio of ESS",
        ],
        rows,
    )


def ranked(label: str, tables: dict[str, dict[str, list]]) -> list:
    """A sampler's row: shares of the posteriors it was run on, and medians."""
    found = [t[label] for t in tables.values() if label in t]
    if not found:
        return [label, 0]
    _, evaluations, rhat, mean, _, ess, cold, warm = np.array([r[1:] for r in found], float).T
    with np.errstate(invalid="ignore"):
        converged = rhat < 1.01
        shares = [(converged & (mean < 0.1)).mean(), converged.mean()]
        misleading = (converged & (mean > 0.25)).mean()
    medians = [np.nanmedian(x) for x in (mean, 1000 * ess / evaluations, cold, warm)]
    return [label, len(found), *map(float, (*shares, misleading, *medians))]


def picture(tables: dict[str, dict[str, list]], labels: list[str]) -> Any:
    """Errors of means, coloured: dark is right; a cross has no finite error, blank was not run."""
    figure, axes = plt.subplots(figsize=(11, 0.36 * len(tables) + 2.6))
    colours = plt.get_cmap("cividis").with_extremes(bad="white")
    errors = np.array(
        [
            [np.clip(t[n][4], 0.01, 10) if n in t else np.nan for n in labels]
            for t in tables.values()
        ]
    ).reshape(len(tables), len(labels))
    norm = plt.matplotlib.colors.LogNorm(0.02, 2)
    drawn = axes.imshow(errors, cmap=colours, norm=norm, aspect="auto")
    for i, t in enumerate(tables.values()):
        for j, n in enumerate(labels):
            if n not in t:
                continue
            value, rhat = t[n][4], t[n][3]
            text = "×" if not np.isfinite(value) else f"{value:.2f}" if value < 10 else ">10"
            mark = "" if rhat < 1.01 or not np.isfinite(value) else "*"
            bright = not np.isfinite(value) or value > 0.25
            colour = "black" if bright else "white"
            axes.text(j, i, text + mark, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
    axes.set_yticks(range(len(tables)), [n.replace("_", " ") for n in tables])
    axes.set_title("Largest error of a mean in reference sds (* R-hat above 1.01, × failed)")
    figure.colorbar(drawn, ax=axes, extend="both", label="error of mean", pad=0.01)
    figure.tight_layout()
    return figure


def section_of(name: str) -> Callable[[bool], Section]:
    """The section of a posterior."""
    found = partial(table, name)
    found.__doc__ = POSTERIORS[name].kind
    return found


REPORT = Report(
    "leaderboard",
    "Leaderboard",
    {
        **by_name(ranking, ranking_large, auto_nuts, pairs),
        **{name: section_of(name) for name in POSTERIORS},
    },
    long=tuple(POSTERIORS),
)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--reference", action="store_true")
    options, others = parser.parse_known_args()
    if options.reference:
        return make_references(others)
    CHOSEN[:] = [name for name in options.kernels.split(",") if name]
    if unknown := sorted(set(CHOSEN) - set(SAMPLERS)):
        parser.error(f"unknown kernels {unknown}; choose from {SAMPLERS}")
    REPORT.main(others)


if __name__ == "__main__":
    main()
