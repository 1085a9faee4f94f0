"""Draws and rows on disk, and many processes: ``python benchmarks/scale.py``."""

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import numpy as np
import xarray

from benchmarks.harness import disk_run, mesh_run
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.stored_run import NUM_CHAINS, SIZE, measured, started

GOAL = 10_000_000  # draws


def overhead(quick: bool) -> Section:
    """Of `sample_to` over `MCMC.run`."""
    cases = [
        ("MALA", 0, "10000,40000"),
        ("MALA", 500, "5000,25000"),
        ("NUTS", 1000, "300,1300"),
    ]
    cases = [("MALA", 0, "1000,3000")] if quick else cases
    rows, checks = [], []
    for case in cases:
        kernel, num_rows, _ = case
        found = REPORT.once(("overhead", *case), compare, *case)
        shares = [100 * (found["disk"][i] / found["memory"][i] - 1) for i in range(2)]
        row = [found[where][i] for i in range(2) for where in ("memory", "disk")]
        rows.append([kernel, num_rows, *row[:2], shares[0], *row[2:], shares[1]])
        if not quick:
            checks.append((f"{kernel}, {num_rows} rows: more time, per cent", shares[0], 5.0))
            checks.append((f"{kernel}, {num_rows} rows: more CPU time, per cent", shares[1], 5.0))
    text = (
        f"{NUM_CHAINS} vectorized chains of a linear regression with {SIZE} coefficients (0 rows: "
        "their prior alone, which costs nearly nothing). Milliseconds for 1,000 draws of each "
        "chain, which are microseconds for a step of MALA in all chains, by the clock and of "
        "processors, from the difference of a longer and a shorter run in one process, so that "
        "compilation and set-up do not count: the least of three each, in turns. Files of 1,000 "
        "draws. Writing is done beside the next piece, so that it costs time where no core is idle."
    )
    columns = ["kernel", "rows"]
    for what in ("ms", "CPU ms"):
        columns += [f"MCMC.run, {what}", f"sample_to, {what}", "more, per cent"]
    return Section("What writing costs", text, columns, rows, checks)


def compare(kernel: str, num_rows: int, draws: str) -> dict[str, list[float]]:
    """Milliseconds for 1,000 draws in memory and on disk, by the clock and of processors."""
    found: dict[str, list[dict]] = {"memory": [], "disk": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            for where, paces in found.items():
                with tempfile.TemporaryDirectory(dir=folder) as inner:
                    paces.append(measured(Path(folder), where, kernel, num_rows, draws, inner))
    return {
        where: [min(pace[name] for pace in paces) for name in ("seconds", "cpu")]
        for where, paces in found.items()
    }


def memory(quick: bool) -> Section:
    """Of runs that become longer."""
    sizes = (1000, 2000) if quick else (25_000, 250_000, GOAL // NUM_CHAINS)
    rows = []
    for num_draws in sizes:
        on_disk, in_memory = REPORT.once(("memory", num_draws), of_size, num_draws)
        numbers = (on_disk[what] for what in ("MB", "disk", "files", "seconds"))
        rows.append([NUM_CHAINS * num_draws, *numbers, in_memory["MB"] if in_memory else "-"])
    found = [row[1] for row in rows]
    text = (
        f"{SIZE} parameters, {NUM_CHAINS} chains, MALA on a normal. Draws of all chains together; "
        "peak memory of the process, MB on disk, and peak memory of `MCMC.run` for as many draws, "
        "but not for the most. "
        f"The draws of the longest run are {GOAL * SIZE * 4 / 1e6:,.0f} MB."
    )
    columns = ["draws", "sample_to, MB", "on disk, MB", "files", "seconds", "MCMC.run, MB"]
    checks = (
        [] if quick else [("memory of the longest over the shortest", found[-1] / found[0], 1.1)]
    )
    return Section("Memory", text, columns, rows, checks)


def of_size(num_draws: int) -> tuple[dict, dict | None]:
    """A run on disk and one in memory, unless that would take many gigabytes."""
    with tempfile.TemporaryDirectory() as folder:
        on_disk = measured(Path(folder), "disk", "MALA", 0, num_draws)
        if NUM_CHAINS * num_draws == GOAL:
            return on_disk, None
        return on_disk, measured(Path(folder), "memory", "MALA", 0, num_draws)


def kills(quick: bool) -> Section:
    """Twenty, at random moments."""
    num_kills = 2 if quick else 20
    found = REPORT.once(("kills", num_kills), kill, num_kills)
    text = (
        "A run of 200,000 draws of each of four chains of MALA on a normal with 100 dimensions is "
        "killed with SIGKILL again and again, up to half a second after its first new "
        "checkpoint; then it goes on to its end. Arrays of the store that differ from those of a "
        "run that was never killed, in any bit."
    )
    columns = ["kills", "kills in the warm-up", "draws at the last kill", "arrays", "that differ"]
    checks = [("arrays that differ", found[-1], 0.0)]
    return Section("Kills", text, columns, [found], checks)


def kill(num_kills: int) -> list[int]:
    """A row of the table."""
    rng, num_draws = random.Random(0), 200_000
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "killed"
        arguments = ("MALA", 0, num_draws)
        assert started(folder, Path(name) / "whole", *arguments).wait() == 0
        done, in_warmup, last = 0, 0, 0
        while done < num_kills:
            done += interrupted(folder, path, arguments, rng.uniform(0, 0.5))
            last = xarray.open_datatree(path, engine="zarr").posterior.sizes["draw"]
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
    one, two = (xarray.open_datatree(each, engine="zarr") for each in (path, other))
    same = [
        np.array_equal(np.asarray(one[group][name]), np.asarray(two[group][name]), equal_nan=True)
        for group in one.groups()
        for name in one[group].variables
    ]
    return len(same), same.count(False)


def rows_on_disk(quick: bool) -> Section:
    """A regression whose rows stay on disk; a hundred million of them with --full."""
    sizes = (10_000,) if quick else (1_000_000,)
    cases = [(num_rows, ("memory", "disk")) for num_rows in sizes]
    if REPORT.is_full and not quick:
        cases.append((100_000_000, ("disk",)))
    rows = []
    for num_rows, where in cases:
        all_found = REPORT.once(("rows", num_rows, *where), disk_run.measured, num_rows, where)
        size = num_rows * (disk_run.COLUMNS + 1) * 4 / 1e6
        for each, found in zip(where, all_found, strict=True):
            numbers = (found[what] for what in ("MB", "set-up", "seconds", "us", "rows"))
            rows.append([num_rows, each, size, *numbers])
    text = (
        f"A logistic regression with {disk_run.COLUMNS} coefficients, float32, by AMAGOLD with the "
        "subsampled test: 200 transitions of four leapfrog steps with 100 rows each, after 100 of "
        "warm-up, by `MCMC.run` in a new process. Peak memory is the resident set at its highest "
        "(VmHWM), of which JAX and its compiler have some 550 MB. Set-up is `kernel.init`, "
        "all passes over the rows and their compilation; all is the call of `MCMC.run`. A "
        "transition is the fastest of three loops of 200. Rows are those of the tests alone; the "
        "system keeps what it read of the files, as far as it has memory for it. `--full` writes "
        "8 GB to $ROWS_DIR, or to the folder of temporary files, and removes them."
    )
    columns = ["rows", "in", "data, MB", "peak memory, MB", "set-up, s", "all, s"]
    columns += ["transition, us", "rows per test"]
    checks = [
        ("peak memory of a hundred million rows, MB", row[3], 3000.0)
        for row in rows
        if row[0] == 100_000_000
    ]
    return Section("Rows on disk", text, columns, rows, checks)


# kernel, what is divided, rows and chains (or particles) of one process
MESHES = (
    ("MALA", "rows", 40_000, 4),
    ("subsampled", "rows", 40_000, 4),
    ("MALA", "chains", 10_000, 8),
    ("LangevinSMC", "chains", 2_000, 512),
)


def meshes(quick: bool) -> Section:
    """Rows, chains and particles over two processes."""
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
        what = "particles" if kernel == "LangevinSMC" else axis
        rows.append([kernel, what, num_rows, num_chains, *times, *on_paper])
    text = (
        f"A logistic regression with {mesh_run.COLUMNS} coefficients, float32, on processors: "
        "microseconds of a step of all chains (or particles) in one process, in two that divide "
        "its rows or chains, and in two that have as much each, which is twice as much in all. "
        "Processes find each other on one machine and talk by Gloo; two of them need two cores "
        "that nothing else uses to take half the time. Bytes are those of the collectives in the "
        "text that XLA compiles for the divided step, loops of known length as often as they run "
        "and others (rounds of a test) once, times 2 (1 - 1 / P) for a ring of P devices: from the "
        "program for two, on paper for more, where the results of the collectives do not grow with "
        "P. Rows of particles move between devices where the population is resampled."
    )
    columns = ["kernel", "divided", "rows", "chains", "one, us", "two, us", "two with twice, us"]
    columns += [f"bytes sent of {num}" for num in (2, 8, 64, 512)]
    return Section("Many processes", text, columns, rows)


REPORT = Report("scale", "On disk", by_name(overhead, memory, kills, rows_on_disk, meshes))

if __name__ == "__main__":
    REPORT.main()
