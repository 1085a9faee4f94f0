"""From a cold process to the draws: ``python benchmarks/waiting.py``.

Each row is four processes of its own: a cold one, another that goes on to 1,000 effective draws,
and two with a folder of compiled programs, of which the second finds them there. Run it on an idle
machine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.cold_run import (
    PROBLEMS,
    cold,
    cold_and_kept,
    cold_to_goal,
    is_enough,
)
from benchmarks.harness.many_runs import NUM_FITS, runs
from benchmarks.harness.report import Picture, Report, Section, by_name, rows_of

TO_GOAL = "s to 1,000 effective draws"
COLUMNS = [
    *("kernel", "programs", "tracing, s", "compiling, s", "running, s", "cold, s", "of NUTS's"),
    *("again, s", "kept, s"),
    *("draws", "R-hat", TO_GOAL, "MB"),
]
ONCE = {("million", "NUTS")}  # minutes
MOST_READ = 1_000_000  # rows, by kernels that read all of them
FITS = ("hierarchy", "AutoNUTS")


def wait(problem: str, kernels: tuple[str, ...], quick: bool) -> list[list]:
    """A row for each kernel, NUTS first."""
    kernels = kernels[:2] if quick else kernels
    found = {
        name: REPORT.once(
            (problem, name),
            cold_and_kept,
            *(problem, name, "once" if (problem, name) in ONCE else "twice"),
        )
        for name in kernels
    }
    enough = {
        name: REPORT.once((problem, name, "goal"), cold_to_goal, problem, name, one)
        for name, one in found.items()
    }
    return [
        [
            name,
            *(one[what] for what in ("programs", "tracing", "compiling", "running")),
            one["first"],
            one["first"] / found["NUTS"]["first"],
            "-" if one["second"] is None else one["second"],
            "-" if one["kept"] is None else one["kept"],
            *(enough[name]["draws"], enough[name]["r_hat"]),
            enough[name]["first"] if is_enough(enough[name]) else "-",
            one["memory"],
        ]
        for name, one in found.items()
    ]


def section(title: str, problem: str, kernels: tuple[str, ...], quick: bool) -> Section:
    """The table of one problem."""
    what = PROBLEMS[problem]
    text = (
        f"{what.num_chains} chains, {what.num_warmup} warm-up steps and {what.num_samples} draws. "
        "Programs: compiled by the first run. Tracing, with lowering, and compiling are JAX's; "
        "running is the rest: set-up, warm-up and sampling. Cold: the first `MCMC.run` of a "
        "process, imports excluded. Again: the same object a second time. Kept: the first run of "
        "another process that finds compiled programs (`numpyro_fwd.keep_compiled`). Seconds to "
        "1,000 effective draws of the worst parameter are those of a cold process that makes as "
        "many draws per chain as are in the column before, for an R-hat of at most 1.01; '-' where "
        "four tries or ten minutes do not do. MB: peak memory of the first process."
        f"{' With `jit_model_args=True`.' if what.jit_model_args else ''}"
    )
    return Section(title, text, COLUMNS, wait(problem, kernels, quick))


def regression(quick: bool) -> Section:
    """Logistic regression."""
    kernels = ("NUTS", "AutoNUTS", "AutoMALA", "MALA", "RandomWalk", "FMALA")
    return section("Breast cancer", "regression", kernels, quick)


def table(quick: bool) -> Section:
    """Many rows."""
    return section("100,000 rows", "table", ("NUTS", "AMAGOLD", "MALA"), quick)


def million(quick: bool) -> Section:
    """Very many rows."""
    return section("1,000,000 rows", "million", ("NUTS", "AMAGOLD"), quick)


def by_rows(quick: bool) -> Section:
    """A regression from a thousand rows to ten million."""
    table, words = [], ["kernel", "rows", "first run, s", "draws", "R-hat", TO_GOAL]
    for num_rows in (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        for kernel in ("NUTS", "AutoNUTS", "AMAGOLD"):
            if num_rows > MOST_READ and kernel != "AMAGOLD":
                continue
            problem = f"{num_rows} rows"
            one = REPORT.once((problem, kernel), cold, problem, kernel, "", "once")
            enough = REPORT.once((problem, kernel, "goal"), cold_to_goal, problem, kernel, one)
            seconds = enough["processor"] if is_enough(enough) else "-"
            table.append(
                [kernel, num_rows, one["processor"], enough["draws"], enough["r_hat"], seconds]
            )
    return Section(
        "From a thousand rows to ten million",
        "Logistic regression of 20 coefficients, one chain, 500 warm-up steps and 1,000 draws, "
        "with `jit_model_args=True`; AMAGOLD with the subsampled test. Seconds are of the "
        "processor, compilation included; the last are of a run that makes as many draws as are in "
        f"the column before. Beyond {MOST_READ:,} rows kernels that read all of them are not run: "
        "a gradient takes time in proportion to the rows.",
        words,
        table,
    )


def posteriors(quick: bool) -> Section:
    """The leaderboard, AutoNUTS beside NUTS."""
    from benchmarks.harness.board_posteriors import POSTERIORS

    rows = []
    for name in list(POSTERIORS)[: 2 if quick else None]:
        nuts, auto = (
            REPORT.once((name, kernel), cold, f"leaderboard {name}", kernel, "", "once")
            for kernel in ("NUTS", "AutoNUTS")
        )
        seconds = nuts["processor"], auto["processor"]
        rows.append([name, nuts["size"], *seconds, seconds[1] / seconds[0]])
    return Section(
        "The posteriors of the leaderboard",
        "Seconds of the processor that the first `MCMC.run` of a process takes, imports excluded, "
        "with four vectorized chains, 1,000 warm-up steps and 1,000 draws: set-up, tracing, "
        "compilation and sampling, whatever the draws are worth. First the medians of each column, "
        "and the largest ratios.",
        ["posterior", "D", "NUTS, s", "AutoNUTS, s", "ratio"],
        [*medians_of(rows), *sorted(rows, key=lambda row: row[-1])],
    )


def many_runs(quick: bool) -> Section:
    """Several runs of one object, by NumPyro's MCMC and by the one here."""
    problems = {
        "eight schools": "hierarchy",
        "breast cancer": "regression",
        "radon, 85 counties": "leaderboard radon",
    }
    rows = []
    for label, problem in list(problems.items())[: 1 if quick else None]:
        for kernel in ("NUTS", "AutoNUTS"):
            for package in ("numpyro", "numpyro_fwd"):
                one = REPORT.once(
                    ("many_runs", problem, kernel, package), runs, *(problem, kernel, package)
                )
                seconds = (one[what] for what in ("first", "second", "data"))
                programs = (one[f"{what} programs"] for what in ("first", "second", "data"))
                rows.append([label, kernel, f"{package}.MCMC", *seconds, *programs])
    return Section(
        "Several runs of one object",
        "Processor seconds of `run`, called three times on one `MCMC` in a process of its own: "
        "first, with another key, and with another key and other data of the same shapes; and how "
        "many programs each call compiled. Four vectorized chains.",
        [
            *("posterior", "kernel", "MCMC", "first, s", "second, s", "other data, s"),
            *("programs, first", "second", "other data"),
        ],
        rows,
    )


def many_fits(quick: bool) -> Section:
    """Fits of many data sets, by a loop and in one program."""
    del quick
    rows = []
    for label, package in (("a loop", "fits"), ("one program", "mapped")):
        one = REPORT.once(("many_fits", "AutoNUTS", package), runs, *FITS, package)
        whats = ("first", "each", "programs", "MB after 10", f"MB after {NUM_FITS}")
        rows.append(["AutoNUTS", label, *(one.get(what, "-") for what in whats)])
    return Section(
        "A hundred fits",
        "Eight schools, each fit of data of its own, four vectorized chains. A loop of `run` on "
        "one `numpyro_fwd.MCMC`: processor seconds of the first two fits, which compile, and of "
        "each after them, programs that these compiled, and the memory of the process after ten "
        "fits and after all. One program: `jax.vmap` of a function that makes an `MCMC` and runs "
        "it; its first seconds are those of its compilation.",
        ["kernel", "fits by", "first, s", "a fit, s", "programs", "MB after 10", "MB after 100"],
        rows,
    )


def medians_of(rows: list[list]) -> list[list]:
    """Rows of the medians and of the largest ratio, of few dimensions, of many, and of all."""
    groups = {
        "up to 64 dimensions": [row for row in rows if row[1] <= 64],
        "more dimensions": [row for row in rows if row[1] > 64],
        "all": rows,
    }
    found = []
    for label, group in groups.items():
        columns = np.array([row[1:] for row in group], float).reshape(-1, 4)
        if group:
            found.append([f"{label}, median", *np.median(columns, axis=0).tolist()])
            found.append([f"{label}, largest", "-", "-", "-", float(columns[:, -1].max())])
    return found


# --- picture --------------------------------------------------------------------------------------

PARTS = ("tracing, s", "compiling, s", "running, s")
COLOURS = ("#56B4E9", "#0072B2", "#E69F00")


def bars(ax: Axes, rows: list[dict]) -> None:
    """Seconds of the parts of a cold run, one after the other, and those to 1,000 draws."""
    names = [row["kernel"] for row in rows]
    left = [0.0] * len(rows)
    for part, colour in zip(PARTS, COLOURS, strict=True):
        seconds = [row[part] for row in rows]
        ax.barh(names, seconds, left=left, color=colour, label=part.removesuffix(", s"))
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    goals = [(row["s to 1,000 effective draws"], row["kernel"]) for row in rows]
    reached = [goal for goal in goals if goal[0] != "-"]
    ax.plot(*zip(*reached, strict=True), "kD", ms=4, label="1,000 effective draws")
    ax.invert_yaxis()
    ax.set(xlabel="seconds", xlim=(0, None))


def drawn(sections: dict[str, dict]) -> Figure:
    """A panel for each problem."""
    measured = [name for name in REPORT.sections if name in sections and name in PROBLEMS]
    heights = [1 + len(sections[name]["rows"]) for name in measured]
    size = {"figsize": (9, 0.28 * sum(heights) + 0.5 * len(measured))}
    figure, axes = plt.subplots(len(measured), 1, **size, height_ratios=heights, squeeze=False)
    for ax, name in zip(axes.flat, measured, strict=True):
        bars(ax, rows_of(sections, name))
        ax.set_title(sections[name]["title"], loc="left", fontsize=10)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), ncols=4, loc="upper right", fontsize=8)
    figure.tight_layout()
    return figure


REPORT = Report(
    "waiting",
    "What you wait for",
    by_name(regression, many_runs, many_fits, posteriors, table, million, by_rows),
    long=("posteriors", "million"),
    pictures={
        "regression": Picture(
            "Seconds that a first run traces, compiles and runs, and to 1,000 effective draws",
            drawn,
        )
    },
)

if __name__ == "__main__":
    REPORT.main()
