"""Any regression below one pass: ``python benchmarks/regressions.py``.

Regressions of twenty coefficients with whatever else their likelihood has sampled, by a test that
reads a few rows, by one that reads all of them, and by NUTS.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import numpy as np
from numpyro.infer import NUTS, init_to_median

from benchmarks.harness.regressions import FAMILIES, mixed, table
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import least_ess, run_chains, worst_errors
from numpyro_fwd import AMAGOLD

COLUMNS = [
    *("likelihood, with what is sampled", "rows per test", "acceptance", "effective draws per s"),
    *("times NUTS's", "times the full test's", "set-up, s", "NUTS's, s"),
    *("mean off by, sd", "sd off by"),
]
BATCH = 100
FIELDS = ("accept_prob", "inner.num_rows")


def model_with(model: Any, *data: Any) -> None:
    """The model with a minibatch of rows."""
    model(*data, batch=BATCH)


def compare(name: str, num_rows: int, num_nuts: int) -> list[Any]:
    """A row of the table: one chain each."""
    model, data = table(name, num_rows)
    found = {}
    for test, num_samples in {"subsampled": 4_000, "full": max(50, 20_000_000 // num_rows)}.items():
        kernel = AMAGOLD(
            partial(model_with, model),
            acceptance=test,
            num_integration_steps=4,
            init_strategy=init_to_median,
        )
        fields = FIELDS if test == "subsampled" else ()
        found[test] = run_chains(kernel, data, 200, num_samples, 1, fields)
    nuts = run_chains(NUTS(model, init_strategy=init_to_median), data, num_nuts, num_nuts, 1)
    few, speed = found["subsampled"], {name: of.ess / of.sampling for name, of in found.items()}
    off = worst_errors(few.moments, nuts.moments)
    return [
        name,
        float(np.mean(few.fields["inner.num_rows"])),
        float(np.mean(few.fields["accept_prob"])),
        speed["subsampled"],
        speed["subsampled"] / (nuts.ess / nuts.sampling),
        speed["subsampled"] / speed["full"],
        few.compilation + few.warmup,
        nuts.compilation + nuts.warmup,
        *off,
    ]


def section(num_rows: int, num_nuts: int, names: list[str]) -> Section:
    """The table for so many rows."""
    text = (
        f"{num_rows:,} rows, 20 coefficients, float32. AMAGOLD, batches of {BATCH}, four steps, "
        f"one chain of 4,000 transitions after 200 of warm-up; NUTS {num_nuts} after {num_nuts}. "
        "Rows per test: read by an acceptance test. Effective draws are those of the worst "
        "parameter, per second of sampling; set-up is everything before it, compilation included. "
        "Off by: the largest difference to NUTS, whose own error is a large part of it."
    )
    rows = [REPORT.once((name, num_rows), compare, name, num_rows, num_nuts) for name in names]
    checks = [("rows per test, Student t", rows[-1][1], 140.0)] if num_rows == 100_000 else []
    return Section(f"{num_rows:,} rows", text, COLUMNS, rows, checks)


def hundred_thousand(quick: bool) -> Section:
    """All families."""
    names = list(FAMILIES)
    return section(100_000, 300, names[:1] + names[-1:] if quick else names)


def million(quick: bool) -> Section:
    """Some of them."""
    return section(1_000_000, 100, ["logistic"] if quick else ["logistic", "normal, scale"])


OF_GROUPS = [
    *("likelihood", "rows", "groups", "rows per sweep", "acceptance: shared", "groups"),
    *("least ESS per s: slopes", "effects", "spread", "times NUTS's, the least of these"),
    *("set-up, s", "NUTS's, s", "mean off by, sd", "sd off by"),
]
SITES = ("slope", "effect", "spread")


def compare_groups(
    name: str, num_rows: int, num_groups: int, num_sweeps: int, num_nuts: int
) -> list[Any]:
    """A row of the table of groups: one chain each; no NUTS where it has no draws."""
    model, data = mixed(name, num_rows, num_groups)
    kernel = AMAGOLD(
        partial(model_with, model), acceptance="subsampled", num_integration_steps=NUM_STEPS
    )
    fields = (*FIELDS, "inner.chain.group_acceptance_rate")
    few = run_chains(kernel, data, 200, num_sweeps, 1, fields)
    speed = {site: least_ess(few.draws[site]) / few.sampling for site in SITES}
    row = [name, num_rows, num_groups]
    row += [float(np.mean(few.fields[field])) for field in ("inner.num_rows", *fields[::2])]
    row += [speed[site] for site in SITES]
    if not num_nuts:
        return [*row, None, few.compilation + few.warmup, None, None, None]
    nuts = run_chains(NUTS(model), data, num_nuts, num_nuts, 1)
    times = min(speed[s] / (least_ess(nuts.draws[s]) / nuts.sampling) for s in SITES)
    setups = [run.compilation + run.warmup for run in (few, nuts)]
    return [*row, times, *setups, *worst_errors(few.moments, nuts.moments)]


def section_of_groups(sizes: list[tuple], text: str) -> Section:
    """Mixed models of these sizes."""
    rows = [REPORT.once(("groups", *size), compare_groups, *size) for size in sizes]
    rows = [["not run" if cell is None else cell for cell in row] for row in rows]
    text = (
        "Mixed models: 20 slopes, an intercept for each group, centred, with a sampled mean and "
        "spread; float32. AMAGOLD with the subsampled test, four shared moves of "
        f"{NUM_STEPS} steps in a sweep, one chain after 200 sweeps of warm-up. Rows per sweep: "
        "read by all tests of it. Least ESS: of the worst slope, the worst effect, and the spread, "
        f"per second of sampling; set-up is everything before it, compilation included. {text}"
    )
    return Section("Groups", text, OF_GROUPS, rows, [])


NUM_STEPS = 3


def groups(quick: bool) -> Section:
    """Hundreds of groups."""
    sizes = [("logistic", 100_000, 200, 2_000, 200), ("Poisson", 100_000, 1_000, 2_000, 200)]
    if quick:
        sizes = [("logistic", 5_000, 60, 50, 20)]
    return section_of_groups(
        sizes,
        "Off by: the largest difference to NUTS among all coordinates, whose own error is a large "
        "part of it.",
    )


def thousands(quick: bool) -> Section:
    """A million rows in thousands of groups, where NUTS is run at the first size alone."""
    sizes = [("logistic", 1_000_000, 1_000, 1_000, 40), ("Poisson", 1_000_000, 5_000, 1_000, 0)]
    if quick:
        sizes = [("Poisson", 5_000, 100, 50, 0)]
    section = section_of_groups(
        sizes, "NUTS has 40 draws after 40 of warm-up: too few for its error to say much."
    )
    section.title = "Groups, a million rows"
    return section


REPORT = Report(
    "regressions",
    "Any regression below one pass",
    by_name(hundred_thousand, groups, million, thousands),
    long=("million", "thousands"),
)

if __name__ == "__main__":
    REPORT.main()
