"""posteriordb whole: ``python benchmarks/posteriordb.py --measure looked_at held_out``.

AutoNUTS beside NumPyro's NUTS with a diagonal and a dense metric and nutpie with a diagonal and a
low-rank one, on the same densities in double precision: four chains from defaults, 1,000 steps of
warm-up and 1,000 draws, five seeds, a process for each sampler on a posterior. What is measured is
kept, a line for each, in benchmarks/harness/posteriordb/runs.json, so that a stopped run goes on;
the tables are made of that file. ``--samplers "AutoNUTS;NUTS"`` and ``--seeds`` measure less, and
posteriors may be named. Rows of nutpie need an environment that has it.

Half of the posteriors (`is_held_out`, a digest of the name) were not looked at while samplers
changed.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness.posteriordb import PORTS, is_held_out, reference_of
from benchmarks.harness.posteriordb.runs import SAMPLERS, all_seeds, size_of
from benchmarks.harness.report import ROOT, Picture, Report, Section

SEEDS, STEPS = 5, 1_000
WIDEST_DENSE = 300  # dimensions beyond which NUTS has no dense metric
RUNS = ROOT / "benchmarks" / "harness" / "posteriordb" / "runs.json"
HALVES = {
    "looked_at": [name for name in PORTS if not is_held_out(name)],
    "held_out": [name for name in PORTS if is_held_out(name)],
}
OURS, BEST_NUTS = "AutoNUTS", "NUTS, the better metric"
OTHERS = (*SAMPLERS[1:3], BEST_NUTS, *SAMPLERS[3:])
CONVERGED, RIGHT, MISLEADING = 1.01, 0.1, 0.25  # R-hat, and errors of means in reference sds
OF_REFERENCE = 0.01  # sds, the standard error of 10,000 draws

Kept = dict[str, dict[str, Any]]


def kept() -> Kept:
    """What has been measured, by posterior and sampler."""
    return json.loads(RUNS.read_text()) if RUNS.exists() else {}


def keep(posterior: str, size: int, sampler: str, measured: dict[str, Any]) -> None:
    """Put a sampler's seeds into the file, a line each."""
    found, lines = kept(), []
    found.setdefault(posterior, {"D": size})[sampler] = measured
    for name in sorted(found):
        rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in found[name].items()]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "}")
    RUNS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def rounded(run: dict[str, float]) -> dict[str, float]:
    """Four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in run.items()}


def measure(posterior: str, samplers: list[str], seeds: int) -> None:
    """What the file does not have of a posterior."""
    size = size_of(posterior)
    done = kept().get(posterior, {})
    for sampler in samplers:
        is_dense = "dense" in sampler and size > WIDEST_DENSE
        if is_dense or len(done.get(sampler, {}).get("runs", ())) >= seeds:
            continue
        start, found = time.monotonic(), {"day": datetime.date.today().isoformat()}
        try:
            found["runs"] = [rounded(run) for run in all_seeds(posterior, sampler, seeds, STEPS)]
        except subprocess.CalledProcessError as error:
            found["failed"] = error.stderr.strip().splitlines()[-1][:200]
        keep(posterior, size, sampler, found)
        print(posterior, sampler, f"{time.monotonic() - start:.0f} s", found, flush=True)


# --- tables ---------------------------------------------------------------------------------------


def facts(found: dict[str, Any]) -> dict[str, float] | None:
    """Of all seeds of a sampler on a posterior; None where it failed or was not run."""
    if not found or not found.get("runs"):
        return None
    of = {each: np.array([run[each] for run in found["runs"]]) for each in found["runs"][0]}
    whole = of["gradients"] + 4 * of["in warm-up"]
    error = float(of["error"].max()) if "error" in of else float("nan")
    is_converged = bool(of["rhat"].max() < CONVERGED)
    return {
        "bulk": float((1e3 * of["bulk"] / of["gradients"]).mean()),
        "tail": float((1e3 * of["tail"] / of["gradients"]).mean()),
        "with warm-up": float((1e3 * of["bulk"] / whole).mean()),
        "rhat": float(of["rhat"].max()),
        "error": error,
        "diverging": float(of["diverging"].mean()),
        "first": float(of["seconds"][0]),
        "again": float(of["seconds"][1:].mean()) if len(of["seconds"]) > 1 else float("nan"),
        "seeds": len(found["runs"]),
        "right": is_converged and ("error" not in of or error < RIGHT + OF_REFERENCE),
        "misleading": is_converged and error > MISLEADING,
    }


def all_facts(name: str, found: Kept) -> dict[str, dict[str, float] | None]:
    """Of each sampler on a posterior, and of NUTS with the metric of most ESS per gradient."""
    of = {sampler: facts(found.get(name, {}).get(sampler, {})) for sampler in SAMPLERS}
    both = [of["NUTS"], of["NUTS, dense"]]
    return {**of, BEST_NUTS: max(both, key=lambda each: each["bulk"]) if all(both) else None}


def pairs_of(names: list[str], other: str) -> list[tuple[dict, dict]]:
    """Facts of AutoNUTS and of another sampler on each posterior that both were run on."""
    found = kept()
    both = [(of[OURS], of[other]) for of in (all_facts(name, found) for name in names)]
    return [pair for pair in both if all(pair)]


def medians(quick: bool) -> Section:
    """AutoNUTS beside each of the others, by halves."""
    del quick
    rows = []
    for half, names in (*HALVES.items(), ("all", list(PORTS))):
        for other in OTHERS:
            if pairs := pairs_of(names, other):
                rows.append([half.replace("_", " "), other, *compared(pairs)])
    return Section(
        "AutoNUTS beside others",
        "Ratios are those of the least bulk ESS of an entry of a latent site per gradient, "
        "AutoNUTS over the other: the median over posteriors, the least, and the median with the "
        "gradients of the warm-up counted (not those of the search for a start). Right: with every "
        f"seed an R-hat below {CONVERGED} and, where the database has a reference, errors of all "
        f"means below {RIGHT} of its sds and its own error, {OF_REFERENCE}. Misleading: "
        f"such an R-hat with an error above {MISLEADING}. The better metric is, on each "
        "posterior, the one of more ESS per gradient. Seeds: the fewest of a run. Processor "
        "seconds of a first run and of one more on the same object are medians. Half of the "
        "posteriors were held out: not looked at while samplers changed.",
        [
            *("posteriors", "other", "number", "seeds", "right", "right, other", "misleading"),
            *("misleading, other", "median ratio", "least ratio", "ratio of tails"),
            *("ratio with warm-up", "first, s", "first, other, s", "again, s", "again, other, s"),
        ],
        rows,
    )


def compared(pairs: list[tuple[dict, dict]]) -> list:
    """A row of :func:`medians`, without its names."""

    def number(what: str) -> list[int]:
        return [sum(bool(pair[i][what]) for pair in pairs) for i in (0, 1)]

    def ratio(what: str) -> np.ndarray:
        both = np.array([(ours[what], theirs[what]) for ours, theirs in pairs])
        return both[:, 0] / np.maximum(both[:, 1], 1e-12)

    def median(what: str) -> list[float]:
        return [float(np.median([pair[i][what] for pair in pairs])) for i in (0, 1)]

    bulk = ratio("bulk")
    return [
        *(len(pairs), min(each["seeds"] for pair in pairs for each in pair)),
        *(*number("right"), *number("misleading")),
        *(float(np.median(bulk)), float(bulk.min()), float(np.median(ratio("tail")))),
        *(float(np.median(ratio("with warm-up"))), *median("first"), *median("again")),
    ]


def by_posterior(half: str, quick: bool) -> Section:
    """A row for each posterior."""
    del quick
    found, rows = kept(), []
    for name in HALVES[half]:
        if name not in found:
            continue
        of = all_facts(name, found)
        ours, nuts = of[OURS] or {}, of["NUTS"] or {}
        worth = [(of[sampler] or {}).get("bulk", "-") for sampler in SAMPLERS]
        rhats = [ours.get("rhat", "-"), nuts.get("rhat", "-")]
        error = ours.get("error", "-") if reference_of(name) else "-"
        rows.append([name, found[name]["D"], *worth, *rhats, error, ours.get("diverging", "-")])
    return Section(
        f"By posterior, {half.replace('_', ' ')}",
        "ESS per 1,000 gradients of each sampler, mean over seeds; the worst R-hat of AutoNUTS and "
        "of NUTS; of AutoNUTS the largest error of a mean, in standard deviations of the published "
        "draws where there are any, and divergences of 4,000 draws. '-': not run, or failed.",
        [
            *("posterior", "D", *SAMPLERS, "R-hat, AutoNUTS", "R-hat, NUTS"),
            *("error, AutoNUTS", "divergences, AutoNUTS"),
        ],
        rows,
    )


def drawn(sections: dict[str, dict]) -> Figure:
    """Ratios of ESS per gradient to the others, a posterior a dot, sorted."""
    del sections
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for other, colour in zip(SAMPLERS[1:], ("C0", "C1", "C2", "C3"), strict=True):
        if not (pairs := pairs_of(list(PORTS), other)):
            continue
        ratios = sorted(ours["bulk"] / max(theirs["bulk"], 1e-12) for ours, theirs in pairs)
        axes.plot(np.linspace(0, 1, len(ratios)), ratios, ".", color=colour, label=other)
    axes.axhline(1, color="grey", lw=0.8)
    axes.set(yscale="log", ylim=(0.1, 1e3), xlabel="share of posteriors", ylabel="AutoNUTS over it")
    axes.legend(title="ESS per gradient", fontsize=8)
    figure.tight_layout()
    return figure


def half_of(name: str) -> Any:
    """The section of a half."""
    found = partial(by_posterior, name)
    found.__doc__ = f"The posteriors of the half {name}."
    return found


REPORT = Report(
    "posteriordb",
    "posteriordb",
    {"medians": medians, **{name: half_of(name) for name in HALVES}},
    pictures={"medians": Picture("Ratios of effective draws per gradient, sorted", drawn)},
)


def main() -> None:
    """Measure what is named, and make the tables."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--measure", nargs="+", default=[])
    parser.add_argument("--samplers", default=";".join(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options, others = parser.parse_known_args()
    samplers = options.samplers.split(";")
    if unknown := sorted(set(samplers) - set(SAMPLERS)):
        parser.error(f"unknown samplers {unknown}; choose from {SAMPLERS}")
    names = [name for each in options.measure for name in HALVES.get(each, [each])]
    if unknown := sorted(set(names) - set(PORTS)):
        parser.error(f"unknown posteriors {unknown}; choose from {list(HALVES)} or {list(PORTS)}")
    for name in names:
        measure(name, samplers, options.seeds)
    REPORT.main(others)


if __name__ == "__main__":
    main()
