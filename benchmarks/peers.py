"""Samplers of others beside ours: ``python benchmarks/peers.py``.

What a package has is taken from it (BlackJAX); the others are written from their papers in
``benchmarks/peers_from_papers``.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import numpy as np

from benchmarks.harness import evidence as known
from benchmarks.harness.peer_run import (
    EXPANDED,
    NORMAL,
    SAMPLERS,
    by_test,
    expansion_of,
    fresh,
    mode_of,
    reference,
    table,
)
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import worst_errors

COLUMNS = [
    *("sampler", "acceptance", "ESS per draw", "rows per ESS", "ESS/s", "mean off, sd", "sd off"),
    *("ESS", "s to 1,000 effective draws"),
]
APPROXIMATE = ("SGLD, step 0.1", "SGLD, step 0.5")


def seconds_to(found: dict[str, Any], ess: float = 1000.0) -> float:
    """Of a cold process to so many effective draws, if draws go on as they began."""
    return found["first"] + max(ess / found["ess"] - 1.0, 0.0) * found["sampling"]


def row_of(found: dict[str, Any], truth: dict[str, Any]) -> list[float]:
    """The columns after the name."""
    per_draw = found["ess"] / found["num"]
    off = worst_errors(
        *((np.asarray(each["mean"]), np.asarray(each["sd"])) for each in (found, truth))
    )
    return [
        *(found["acceptance"], per_draw, found["rows"] / per_draw),
        *(found["ess"] / found["sampling"], *off, found["ess"], seconds_to(found)),
    ]


SHOWN = [
    *("AMAGOLD, subsampled", "scalable subsampling, random walk", "factors, random walk"),
    *("scalable subsampling, from the normal", "SGLD, step 0.1", "SGLD, step 0.5"),
    *("Zig-Zag, subsampled", "Laplace, weighted", "Pathfinder, weighted"),
]
TEXT = (
    "Logistic regression, coefficients with standard normal priors, one chain. Errors are the "
    "largest of a coefficient, in sds of a reference in double precision (draws of the normal at "
    "the mode, weighted by importance); those of an exact sampler are of a finite run: about 2.5 "
    "over the root of the ESS. Rows per ESS: read per effective draw of the worst coefficient, by "
    "gradients and tests, each row once; what the set-up reads is left out. All that need a mode, "
    "a metric or bounds are given those of `blackjax_ext.potentials.expand`. 'Random walk' is the "
    "proposal of the paper of scalable subsampling, steps of 2 over the root of D in whitened "
    "coordinates; 'from the normal' proposes independent draws of the normal at the mode; "
    "'factors' is our test. Draws of Zig-Zag are points of its path, one for ten events. SGLD, "
    "with control variates, is approximate; for weighted draws the acceptance is the ESS per "
    "draw. The machine had other work: seconds are rough. "
)


def big_tables(quick: bool) -> Section:
    """Logistic regression with 1e5 rows, in one process."""
    num_rows, size, num_true = (2_000, 3, 500) if quick else (100_000, 20, 5_000)
    names = SHOWN[1:3] if quick else SHOWN
    x, y = table(num_rows, size)
    truth = REPORT.once(("truth", num_rows, size, num_true), reference, num_rows, size, num_true)
    expansion = expansion_of(x, y)
    rows = []
    for name in names:
        run, num = SAMPLERS[name]
        num = num // 20 if quick else num
        given = {"expansion": expansion} if name in EXPANDED else {}
        found = REPORT.once((name, num_rows, size, num), partial(run, **given), x, y, num)
        rows.append([name, *row_of(found, truth)[:-1]])
    read = {row[0]: row[3] for row in rows}
    checks = [
        (f"rows per ESS, {SHOWN[0]} / {name}", read[SHOWN[0]] / value, 1.0)
        for name, value in read.items()
        if SHOWN[0] in read and name not in (SHOWN[0], *APPROXIMATE)
    ]
    text = f"{num_rows:,} rows, {size} coefficients. {TEXT}"
    return Section("Big tables", text, COLUMNS[:-1], rows, checks)


def cold(quick: bool) -> Section:
    """The same and NUTS, each in a process of its own."""
    num_rows, size, num_true = (2_000, 3, 500) if quick else (100_000, 20, 20_000)
    truth = REPORT.once(("truth", num_rows, size, num_true), reference, num_rows, size, num_true)
    rows = []
    for name in ["factors, random walk"] if quick else SAMPLERS:
        num = SAMPLERS[name][1] // (20 if quick else 1)
        found = REPORT.once((name, num_rows, size, num), fresh, name, num_rows, size, num)
        rows.append([name, *row_of(found, truth)])
    text = (
        f"{num_rows:,} rows, {size} coefficients. {TEXT}Seconds to 1,000 effective draws: from a "
        "cold process, imports excluded, extrapolated at the speed of sampling if there are fewer."
    )
    return Section("From a cold process", text, COLUMNS, rows)


RULES = ("factors", "scalable")
MOVES = {"from the normal": 1.0, "half steps": 0.5}


def tests_of(num_rows: int, size: int, num: int, num_true: int) -> list[list[Any]]:
    """A row for each move and test, in one process and with one expansion."""
    x, y = table(num_rows, size)
    truth = reference(num_rows, size, num_true)
    expansion, rows = expansion_of(x, y), []
    for move, step_size in MOVES.items():
        for rule in RULES:
            found = by_test(rule, NORMAL, step_size, x, y, num, expansion)
            cells = row_of(found, truth)[:-1]
            rows.append([size, size**3 / num_rows**0.5, move, rule, found["rows"], *cells])
    return rows


def dimensions(quick: bool) -> Section:
    """Rows per effective draw of two tests as D^3 / sqrt(N) grows."""
    num_rows = 2_000 if quick else 100_000
    num, num_true = (200, 500) if quick else (4_000, 2_000)
    rows, checks = [], []
    for size in (3,) if quick else (20, 50, 100):
        key = (num_rows, size, num, num_true)
        found = REPORT.once(key, tests_of, *key)
        rows += found
        checks += [
            (f"rows per ESS, factors / scalable, {ours[2]}, D = {size}", ours[7] / theirs[7], 1.0)
            for ours, theirs in zip(found[::2], found[1::2], strict=True)
        ]
    text = (
        f"Logistic regression with {num_rows:,} rows, {num:,} transitions of one chain. Both tests "
        "have the same moves, expansion and bounds and draw rows at the same rate: the product of "
        "factors (`blackjax_ext.subsampling.thinning`, the test of AMAGOLD) stops at the first "
        "veto; scalable subsampling (arXiv 2407.19602) weighs the rows that it has drawn. 'From "
        "the normal' proposes independent draws of the normal at the mode; 'half steps' moves "
        "there by half (Crank-Nicolson). Rows per ESS: of the worst coefficient. Errors are the "
        f"largest of a coefficient, in sds of a reference in double precision ({num_true:,} draws "
        "of the normal at the mode, weighted by importance); a run of these lengths has about 2.5 "
        "over the root of its ESS. Seconds are of a machine that had other work."
    )
    names = ["D", "D^3 / sqrt(N)", "move", "test", "rows per test", *COLUMNS[1:-1]]
    return Section("Two tests by dimension", text, names, rows, checks)


def poisson_rows(num_rows: int, size: int, radius: float) -> float:
    r"""Rows that Poisson-MALA reads per step at least, :math:`\sum_i \phi_i`, where |w| <= radius.

    Its auxiliary variables have the rates :math:`\lambda M_i / L + \phi_i(x)` with :math:`0 \le
    \phi_i \le M_i` on the domain and :math:`\sum (\phi_i - U_i)` constant. A shift of each row by
    its mean makes :math:`\phi_i` half its range there on average, at least
    :math:`R |\nabla U_i|` in whitened coordinates.
    """
    x, y = (each.astype(np.float64) for each in table(num_rows, size))
    mode, root = mode_of(x, y)
    slope = np.abs(1 / (1 + np.exp(-(x @ mode))) - y) * np.linalg.norm(x @ root, axis=1)
    return float(radius * slope.sum())


def on_paper(quick: bool) -> Section:
    """Rows per step of Poisson-MALA by its formula."""
    sizes = [(2_000, 3)] if quick else [(100_000, 20), (100_000, 100), (1_000_000, 20)]
    rows = [
        [num_rows, size, poisson_rows(num_rows, size, size**0.5 + 4.0)] for num_rows, size in sizes
    ]
    return Section(
        "Poisson-MALA on paper",
        "Poisson-MALA (arXiv 2406.05242) has auxiliary variables of rates $\\lambda M_i / L + "
        "\\phi_i(x)$ with $0 \\le \\phi_i(x) \\le M_i$ and $L = \\sum M_i$, and no control "
        "variates: a step reads $\\lambda + \\sum_i \\phi_i(x)$ rows on average. On the ball "
        "$|w| \\le \\sqrt D + 4$ of whitened coordinates the least $\\phi_i$ that are not negative "
        "have $\\sum_i \\phi_i \\approx R \\sum_i |\\nabla U_i|$ at the mode, of the order of $D "
        "\\sqrt N$. On top comes $\\lambda$, which must be of the order of $L^2$ for its gap to be "
        "a fixed part of that of all rows (Zhang and De Sa 2019): more than a pass here. Not run.",
        ["N", "D", "rows per step, without lambda"],
        rows,
    )


MODELS = ("unequal modes, D = 10", "regression, D = 10", "eight schools")
EVIDENCE = {
    "LangevinSMC": known.ours,
    "BlackJAX persistent sampling": known.persistent,
    "BlackJAX nested slice sampling": known.nested,
}


def over_seeds(method: str, name: str, num: int, num_seeds: int) -> dict[str, list[float]]:
    """Log evidence and evaluations of some runs."""
    problem = known.PROBLEMS[name]()
    found = [EVIDENCE[method](problem, num, seed) for seed in range(num_seeds)]
    return {key: [each[key] for each in found] for key in ("value", "evaluations")}


def evidence(quick: bool) -> Section:
    """Log evidence at as many evaluations."""
    num, num_seeds, rows = (50, 2, []) if quick else (1_000, 10, [])
    for name in ("regression, D = 1",) if quick else MODELS:
        truth = known.PROBLEMS[name]().truth
        for method in EVIDENCE:
            key = (method, name, num, num_seeds)
            found = REPORT.once(key, over_seeds, *key)
            error = np.asarray(found["value"]) - truth
            root = float(np.sqrt(np.mean(error**2)))
            evaluations = float(np.mean(found["evaluations"])) / 1e3
            rows.append([name, method, error.mean(), error.std(ddof=1), root, evaluations])
    return Section(
        "Evidence",
        f"Errors of the log evidence over {num_seeds} seeds: LangevinSMC from defaults with "
        f"{num:,} particles; BlackJAX's adaptive persistent sampling with as many gradients and "
        "values per "
        "particle and temperature, whose MALA has one step for all dimensions, 1.2 D^(-1/6) times "
        "the least posterior sd; its nested slice sampling with as many live points as take the "
        "values of one run of ours. Unequal modes have sds 0.5 and 1, masses 36 and 64 percent.",
        ["model", "sampler", "bias", "standard deviation", "RMSE", "evaluations / 1,000"],
        rows,
    )


REPORT = Report(
    "peers",
    "Samplers of others",
    by_name(big_tables, dimensions, on_paper, cold, evidence),
    long=("cold", "evidence"),
)

if __name__ == "__main__":
    REPORT.main()
