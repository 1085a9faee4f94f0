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

from benchmarks.harness.regressions import FAMILIES, table
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import run_chains, worst_errors
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


REPORT = Report(
    "regressions",
    "Any regression below one pass",
    by_name(hundred_thousand, million),
    long=("million",),
)

if __name__ == "__main__":
    REPORT.main()
