"""Draws and rows on disk, and many processes: ``python benchmarks/scale.py``."""

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import arviz as az
import numpy as np

from benchmarks.harness import disk_run, mesh_run
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.stored_run import NUM_CHAINS, SIZE, measured, started

GOAL = 10_000_000  # draws


def overhead(quick: bool) -> Section:
    """Of `sample_to` over `MCMC.run`."""
    cases = [("MALA", 0, "10000,40000"), ("NUTS", 1000, "300,1300")]
    cases = [("MALA", 0, "1000,3000")] if quick else cases
    rows, checks = [], []
    for case in cases:
        kernel, num_rows, _ = case
        found = REPORT.once(("overhead", *case), compare, *case)
        shares = [100 * (found["disk"][i] / found["memory"][i] - 1) for i in range(2)]
        row = [found[where][i] for i in range(2) for where in ("memory", "disk")]
        rows.append([kernel, num_rows, *row[:2], shares[0], *row[2:], shares[1]])
        if not quick:
            checks.append((f"{kernel}, {num_rows} rows: overhead, per cent", shares[0], 5.0))
    text = (
        f"{NUM_CHAINS} vectorized chains of a linear regression with {SIZE} coefficients (0 rows: "
        "their prior alone, which costs nearly nothing). Milliseconds for 1,000 draws of each "
        "chain, by the clock and of processors, from the difference of a longer and a shorter run "
        "in one process, so that compilation and set-up do not count: the least of two each, in "
        "turns. Files of 1,000 draws. Writing is done beside the next piece, so that it costs time "
        "where no core is idle."
    )
    columns = ["kernel", "rows"]
    for what in ("ms", "CPU ms"):
        columns += [f"MCMC.run, {what}", f"sample_to, {what}", "more, per cent"]
    return Section("What writing costs", text, columns, rows, checks)


def compare(kernel: str, num_rows: int, draws: str) -> dict[str, list[float]]:
    """Milliseconds for 1,000 draws in memory and on disk, by the clock and of processors."""
    found: dict[str, list[dict]] = {"memory": [], "disk": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            for where, paces in found.items():
                with tempfile.TemporaryDirectory(dir=folder) as inner:
                    paces.append(measured(Path(folder), where, kernel, num_rows, draws, inner))
    return {
        where: [min(pace[name] for pace in paces) for name in ("seconds", "cpu")]
        for where, paces in found.items()
    }


def memory(quick: bool) -> Section:
    """Of runs that become longer."""
    sizes = (1000, 2000) if quick else (25_000, 50_000, 100_000, 250_000)
    rows = []
    for num_draws in sizes:
        on_disk, in_memory = REPORT.once(("memory", num_draws), of_size, num_draws)
        rows.append(
            [
                NUM_CHAINS * num_draws,
                *(on_disk[what] for what in ("MB", "disk", "files", "seconds")),
                in_memory["MB"],
            ]
        )
    total, found = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    each = np.polyfit(total, found, 1)[0]  # MB of one more draw
    text = (
        f"{SIZE} parameters, {NUM_CHAINS} chains, MALA on a normal. Draws of all chains together; "
        "peak memory of the process, MB on disk, and peak memory of `MCMC.run` for as many draws. "
        f"From the longest run to {GOAL:,} draws the line through these points adds "
        f"{max(each, 0.0) * (GOAL - total[-1]):,.0f} MB to {found[-1]:,.0f}; the draws themselves "
        f"are {GOAL * SIZE * 4 / 1e6:,.0f} MB."
    )
    columns = ["draws", "sample_to, MB", "on disk, MB", "files", "seconds", "MCMC.run, MB"]
    checks = (
        [] if quick else [("memory of the longest over the shortest", found[-1] / found[0], 1.1)]
    )
    return Section("Memory", text, columns, rows, checks)


def of_size(num_draws: int) -> tuple[dict, dict]:
    """A run on disk and one in memory."""
    with tempfile.TemporaryDirectory() as folder:
        on_disk = measured(Path(folder), "disk", "MALA", 0, num_draws)
        return on_disk, measured(Path(folder), "memory", "MALA", 0, num_draws)


def kills(quick: bool) -> Section:
    """Twenty, at random moments."""
    num_kills = 2 if quick else 20
    found = REPORT.once(("kills", num_kills), kill, num_kills)
    text = (
        "A run of 60,000 draws of each of four chains of MALA on a normal with 100 dimensions is "
        "killed with SIGKILL again and again, up to a tenth of a second after its first new "
        "checkpoint; then it goes on to its end. Arrays of the store that differ from those of a "
        "run that was never killed, in any bit."
    )
    columns = ["kills", "kills in the warm-up", "draws at the last kill", "arrays", "that differ"]
    checks = [("arrays that differ", found[-1], 0.0)]
    return Section("Kills", text, columns, [found], checks)


def kill(num_kills: int) -> list[int]:
    """A row of the table."""
    rng, num_draws = random.Random(0), 60_000
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "killed"
        arguments = ("MALA", 0, num_draws)
        assert started(folder, Path(name) / "whole", *arguments).wait() == 0
        done, in_warmup, last = 0, 0, 0
        while done < num_kills:
            done += interrupted(folder, path, arguments, rng.uniform(0, 2) / num_kills)
            last = az.from_zarr(str(path)).posterior.sizes["draw"]
            in_warmup += last == 0
        assert started(folder, path, *arguments).wait() == 0
        num_arrays, num_other = different(Path(name) / "whole", path)
    return [done, in_warmup, last, num_arrays, num_other]


def interrupted(folder: Path, path: Path, arguments: tuple, seconds: float) -> bool:
    """Whether a run was killed before its end, so long after its first new checkpoint."""
    begun = time.time()
    process = started(folder, path, *arguments)
    checkpoint = path / ".sample_to" / "checkpoint.npz"
    while process.poll() is None and not (
        checkpoint.exists() and checkpoint.stat().st_mtime > begun
    ):
        time.sleep(0.005)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def different(path: Path, other: Path) -> tuple[int, int]:
    """Number of arrays of a store, and of those that are not the same in the other one."""
    one, two = az.from_zarr(str(path)), az.from_zarr(str(other))
    same = [
        np.array_equal(np.asarray(one[group][name]), np.asarray(two[group][name]), equal_nan=True)
        for group in one.groups()
        for name in one[group].variables
    ]
    return len(same), same.count(False)


def rows_on_disk(quick: bool) -> Section:
    """A regression whose rows stay on disk."""
    sizes = (10_000,) if quick else (1_000_000, 5_000_000)
    rows = []
    for num_rows in sizes:
        found = REPORT.once(("rows", num_rows), disk_run.measured, num_rows)
        size = num_rows * (disk_run.COLUMNS + 1) * 4 / 1e6
        rows.append([num_rows, size, *(found[what] for what in ("MB", "seconds", "rows"))])
    text = (
        f"A logistic regression with {disk_run.COLUMNS} coefficients, float32, by AMAGOLD with the "
        "subsampled test: 200 transitions after 100 of warm-up, in a new process. Peak memory "
        "holds pages of the files, which the system takes back, JAX and its compiler; seconds hold "
        "set-up and compilation."
    )
    columns = ["rows", "on disk, MB", "peak memory, MB", "seconds", "rows per test"]
    return Section("Rows on disk", text, columns, rows)


# kernel, what is divided, rows and chains of one process
MESHES = (
    ("MALA", "rows", 40_000, 4),
    ("full", "rows", 40_000, 4),
    ("subsampled", "rows", 100_000, 4),
    ("MALA", "chains", 10_000, 8),
    ("subsampled", "chains", 100_000, 4),
)


def meshes(quick: bool) -> Section:
    """Rows and chains over two processes."""
    rows = []
    for case in (("MALA", "rows", 1000, 4),) if quick else MESHES:
        kernel, axis, num_rows, num_chains = case
        more = [2 * num_rows, num_chains] if axis == "rows" else [num_rows, 2 * num_chains]
        one, both, twice = (
            REPORT.once(("meshes", kernel, axis, *sizes, num), mesh_run.measured, *args)
            for sizes, num in (((num_rows, num_chains), 1), ((num_rows, num_chains), 2), (more, 2))
            for args in [(kernel, axis, *sizes, num)]
        )
        times = [found["us"] for found in (one, both, twice)]
        on_paper = [2 * (1 - 1 / num) * both["bytes"] for num in (2, 8, 64, 512)]
        rows.append([kernel, axis, num_rows, num_chains, *times, *on_paper])
    text = (
        f"A logistic regression with {mesh_run.COLUMNS} coefficients, float32, on processors: "
        "microseconds of a step of all chains in one process, in two that divide "
        "its rows or chains, and in two that have as much each, which is twice as much in all. "
        "Processes find each other on one machine and talk by Gloo; two of them need two cores "
        "that nothing else uses to take half the time. Bytes are those of the collectives in the "
        "text that XLA compiles for the divided step, loops of known length as often as they run "
        "and others (rounds of a test) once, times 2 (1 - 1 / P) for a ring of P devices: measured "
        "for two, on paper for more, since the results of the collectives do not grow with P."
    )
    columns = ["kernel", "divided", "rows", "chains", "one, us", "two, us", "two with twice, us"]
    columns += [f"bytes sent of {num}" for num in (2, 8, 64, 512)]
    return Section("Many processes", text, columns, rows)


REPORT = Report("scale", "On disk", by_name(overhead, memory, kills, rows_on_disk, meshes))

if __name__ == "__main__":
    REPORT.main()
