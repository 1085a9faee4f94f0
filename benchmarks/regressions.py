"""Any regression below one pass: ``python benchmarks/regressions.py``.

Regressions of twenty coefficients with whatever else their likelihood has sampled, by a test that
reads a few rows, by one that reads all of them, and by NUTS.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import groups_run
from benchmarks.harness.regression_run import BATCH, NUM_STEPS, NUM_WARMUP, cold, truth
from benchmarks.harness.regressions import FAMILIES, OF_FRIEDMAN
from benchmarks.harness.report import Picture, Report, Section, by_name, rows_of
from benchmarks.harness.runs import worst_errors

COLUMNS = [
    *("likelihood, with what is sampled", "rows per test", "acceptance", "effective draws per s"),
    *("times NUTS's", "times the full test's"),
    *("s to 1,000 effective draws", "full test's, s", "NUTS's, s"),
    *("mean off, sd", "sd off", "NUTS's mean off", "NUTS's sd off"),
]
FIELDS = ("accept_prob", "inner.num_rows")
# of the prototypes, rows per test for 1e5 rows: the aim is at most twice as many
PROTOTYPES = {
    "logistic": 4.3,
    "normal, scale": 11.0,
    "Poisson": 9.0,
    "negative binomial, dispersion": 20.0,
    "gamma, shape": 22.0,
    "Student t, scale and df": 69.0,
}


def model_with(model: Any, *data: Any) -> None:
    """The model with a minibatch of rows."""
    model(*data, batch=BATCH)


def seconds_to(found: dict[str, Any], ess: float = 1000.0) -> float:
    """Of a cold process to so many effective draws, if draws go on as they began."""
    return found["first"] + max(ess / found["ess"] - 1.0, 0.0) * found["sampling"]


def errors_of(found: dict[str, Any], truth: dict[str, Any]) -> tuple[float, float]:
    """Largest errors of means and sds."""
    of_found, of_truth = ((np.array(of["mean"]), np.array(of["sd"])) for of in (found, truth))
    return worst_errors(of_found, of_truth)


def compare(name: str, num_rows: int, patience: float, is_small: bool = False) -> list[Any]:
    """A row of the table: a process for each sampler. `patience` is for NUTS, in seconds."""
    nums = {"subsampled": 4_000, "full": max(20, 20_000_000 // num_rows), "NUTS": 300}
    nums = dict.fromkeys(nums, 50) if is_small else nums
    few, full, nuts = (
        cold(name, num_rows, sampler, num, patience if sampler == "NUTS" else 3600.0)
        for sampler, num in nums.items()
    )
    about = truth(name, num_rows, 20_000_000 // num_rows if num_rows > 50_000 else 100)
    speed, of_full = (found["ess"] / found["sampling"] for found in (few, full))
    row = [name, few["rows"], few["acceptance"], speed]
    if not nuts:
        stopped = f"stopped after {patience:.0f} s of the clock"
        of_nuts = [stopped, "-", "-"]
        times = "-"
    else:
        of_nuts = [seconds_to(nuts), *errors_of(nuts, about)]
        times = speed / (nuts["ess"] / nuts["sampling"])
    row += [times, speed / of_full, seconds_to(few), seconds_to(full), of_nuts[0]]
    return [*row, *errors_of(few, about), *of_nuts[1:]]


def section(num_rows: int, patience: float, names: list[str], is_small: bool = False) -> Section:
    """The table for so many rows."""
    text = (
        f"{num_rows:,} rows, 20 coefficients, float32, `jit_model_args=True`. Each sampler has a "
        "process of its own: AMAGOLD with the test that reads a few rows, and with the one that "
        f"reads all ({NUM_STEPS} steps, {NUM_WARMUP['full']} of warm-up), and NUTS "
        f"({NUM_WARMUP['NUTS']} of warm-up), from their defaults. Rows per test: read by an "
        "acceptance test. Effective draws are those of the worst coordinate, per second of "
        "sampling. Seconds to 1,000 effective draws are those of a cold process from the call of "
        "`MCMC.run`, extrapolated at the speed of sampling where it has fewer. All seconds are "
        "processor seconds of one core, since the machine had other work. Off: the largest "
        "error of a mean or an sd of an unconstrained coordinate. The reference is in double "
        "precision, by weighted draws of the normal at the mode; the errors of exact samplers are "
        "those of a finite run, of the means about 2.5 over the root of the ESS, and NUTS has 300 "
        "draws."
    )
    rows = [
        REPORT.once((name, num_rows, patience), compare, name, num_rows, patience, is_small)
        for name in names
    ]
    checks = []
    if num_rows == 100_000:
        checks = [
            (f"rows per test, {row[0]}", row[1], 2 * PROTOTYPES[row[0]])
            for row in rows
            if row[0] in PROTOTYPES
        ]
        checks += [
            (f"50 x NUTS's effective draws per s / ours, {row[0]}", 50 / row[4], 1.0)
            for row in rows
            if isinstance(row[4], float)
        ]
    return Section(f"{num_rows:,} rows", text, COLUMNS, rows, checks)


def hundred_thousand(quick: bool) -> Section:
    """All families."""
    if quick:
        return section(2_000, 3600.0, list(FAMILIES)[:1], is_small=True)
    return section(100_000, 3600.0, list(FAMILIES))


def million(quick: bool) -> Section:
    """The same with a million rows; NUTS is not waited for."""
    if quick:
        return section(3_000, 0.1, list(FAMILIES)[1:2], is_small=True)
    return section(1_000_000, 240.0, list(FAMILIES))


def recipe(quick: bool) -> Section:
    """A million rows of a published recipe, which the model can only approximate."""
    made = section(
        2_000 if quick else 1_000_000, 240.0, list(OF_FRIEDMAN)[: 1 + (not quick)], quick
    )
    made.title = "A published recipe, a million rows"
    made.text = (
        "Responses of the first recipe of Friedman 1991 (`sklearn.datasets.make_friedman1`, ten "
        "features, noise 1), regressed on the features and their squares, so that the interaction "
        f"of two features is left to the noise. {made.text}"
    )
    return made


OF_GROUPS = [
    *("likelihood", "rows", "groups", "rows per sweep", "acceptance: shared", "groups"),
    *("least ESS per s: slopes", "effects", "spread", "times NUTS's, the least of these"),
    *("set-up, s", "NUTS's, s", "mean off by, sd", "sd off by"),
]


def compare_groups(
    name: str, num_rows: int, num_groups: int, num_sweeps: int, num_nuts: int, patience: float
) -> list[Any]:
    """A row of the table of groups: one chain each. `patience` is for NUTS, in seconds."""
    few = groups_run.cold(name, num_rows, num_groups, "subsampled", num_sweeps)
    nuts = groups_run.cold(name, num_rows, num_groups, "NUTS", num_nuts, patience)
    row = [name, num_rows, num_groups, few["rows"], few["acceptance"], few["of groups"]]
    row += [few["speed"][site] for site in groups_run.SITES]
    if not nuts:
        return [*row, "-", few["set-up"], f"stopped after {patience:.0f} s of the clock", "-", "-"]
    times = min(few["speed"][site] / nuts["speed"][site] for site in groups_run.SITES)
    return [*row, times, few["set-up"], nuts["set-up"], *errors_of(few, nuts)]


def section_of_groups(sizes: list[tuple], text: str) -> Section:
    """Mixed models of these sizes."""
    rows = [REPORT.once(("groups", *size), compare_groups, *size) for size in sizes]
    text = (
        "Mixed models: 20 slopes, an intercept for each group, centred, with a sampled mean and "
        "spread; float32. AMAGOLD with the subsampled test, four shared moves of "
        f"{groups_run.SHARED_STEPS} steps in a sweep, one chain after {groups_run.NUM_WARMUP} "
        "sweeps of warm-up. Rows per sweep: read by all tests of it. Least ESS: of the worst "
        "slope, the worst effect, and the spread, per second of sampling; set-up is everything "
        "before it, compilation included. All seconds are processor seconds of one core, since the "
        f"machine had other work. {text}"
    )
    return Section("Groups", text, OF_GROUPS, rows, [])


def groups(quick: bool) -> Section:
    """Hundreds of groups."""
    sizes = [
        ("logistic", 100_000, 200, 2_000, 200, 3600.0),
        ("Poisson", 100_000, 1_000, 2_000, 200, 3600.0),
    ]
    if quick:
        sizes = [("logistic", 5_000, 60, 50, 20, 3600.0)]
    return section_of_groups(
        sizes,
        "Off by: the largest difference to NUTS among all coordinates, whose own error is a large "
        "part of it.",
    )


def thousands(quick: bool) -> Section:
    """A million rows in hundreds and thousands of groups; NUTS is waited for at one size."""
    cases = [(name, num) for name in ("logistic", "Poisson") for num in (200, 1_000, 5_000)]
    waited_for = ("logistic", 1_000)
    sizes = [
        (*(name, 1_000_000, num, 1_000, 40), 1200.0 if (name, num) == waited_for else 240.0)
        for name, num in cases
    ]
    if quick:
        sizes = [("Poisson", 5_000, 100, 50, 20, 0.1)]
    section = section_of_groups(
        sizes, "NUTS has 40 draws after 40 of warm-up: too few for its error to say much."
    )
    section.title = "Groups, a million rows"
    rows = section.rows
    if not quick:
        section.checks = [
            ("rows per sweep, 1,000 groups, " + row[0], row[3], 10_000.0)
            for row in rows
            if row[2] == 1_000
        ]
        section.checks += [
            (f"30 x NUTS's least ESS per s / ours, 1,000 groups, {row[0]}", 30 / row[9], 1.0)
            for row in rows
            if row[2] == 1_000 and isinstance(row[9], float)
        ]
    return section


# --- picture --------------------------------------------------------------------------------------

SIZES = {"hundred_thousand": 100_000, "million": 1_000_000}
LOOKS = {
    "s to 1,000 effective draws": ("AMAGOLD, subsampled", "o-"),
    "NUTS's, s": ("NUTS", "^:"),
    "full test's, s": ("AMAGOLD, full test", "s--"),
}


def against_rows(sections: dict[str, dict], column: str) -> dict[str, list[tuple[int, float]]]:
    """Numbers of a column for each likelihood, with the rows they belong to."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, num_rows in SIZES.items():
        for row in rows_of(sections, name):
            if not isinstance(row[column], str):
                found.setdefault(row[COLUMNS[0]], []).append((num_rows, row[column]))
    return found


def seconds_drawn(sections: dict[str, dict]) -> Figure:
    """A panel for each likelihood; NUTS has no point where it was stopped."""
    figure, axes = plt.subplots(2, 7, figsize=(13, 4.6), sharex=True, sharey=True)
    panels = dict(zip(FAMILIES, axes.flat, strict=True))
    for column, (label, line) in LOOKS.items():
        for likelihood, points in against_rows(sections, column).items():
            panels[likelihood].loglog(*zip(*points, strict=True), line, ms=5, label=label)
    for likelihood, ax in panels.items():
        ax.set_title(likelihood.replace(", ", ",\n"), fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("rows")
    figure.supylabel("processor seconds to 1,000 effective draws", fontsize=9)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=3, loc="upper right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def reads_drawn(sections: dict[str, dict]) -> Figure:
    """Rows that a test reads, a line for each likelihood."""
    figure, ax = plt.subplots(figsize=(7, 4))
    for i, (likelihood, points) in enumerate(against_rows(sections, "rows per test").items()):
        look = {"color": f"C{i % 10}", "label": likelihood}
        ax.loglog(*zip(*points, strict=True), "o-" if i < 10 else "s--", ms=4, **look)
    ax.set(xlabel="rows", ylabel="rows that a test reads")
    ax.legend(fontsize=7, bbox_to_anchor=(1.02, 1.0), loc="upper left")
    figure.tight_layout()
    return figure


REPORT = Report(
    "regressions",
    "Any regression below one pass",
    by_name(hundred_thousand, groups, million, recipe, thousands),
    long=("million", "recipe", "thousands"),
    pictures={
        "hundred_thousand": Picture("Seconds to 1,000 effective draws against rows", seconds_drawn),
        "million": Picture("Rows that a test reads against all rows", reads_drawn),
    },
)

if __name__ == "__main__":
    REPORT.main()
