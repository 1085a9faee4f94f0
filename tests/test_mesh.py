"""Meshes: several devices of one process, and two processes, draw what one device draws."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh

from blackjax_ext.meshes import num_blocks

ROOT = Path(__file__).parent.parent
SECONDS = 400  # of two processes on a machine that is busy with others; they take a minute alone
# a draw in double precision, of which rounding is multiplied in each of the steps before it
TOLERANCE = 1e-8
COMPLAINTS = {
    "NaN": "model_args[0] is nan at (700, 0)",
    "NaN below one pass": "model_args[1] is nan at (700,)",
    "rows on disk": "rows on disk are not read on a mesh of several devices",
    "no rows": "data['n'] must be an array that leads with the rows; got int",
    "shapes": "rows is float64(1000, 2) in process 0 and float64(998, 2) in process 1",
    "own rows": "rows is float64(10, 2) in process 0 and float64(11, 2) in process 1",
    "indivisible": 'multiple of the 2 devices along the axis "rows" of the mesh; got 999. Append 1',
    "key": "rng_key is key<fry>(2,)",
    "version": "numpyro is",
    "constants": "jit_model_args=True",
    "chains": 'multiple of the 2 devices along the axis "chains" of the mesh; got 3. Take 4',
}


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(*arguments: object, num_devices: int = 1) -> subprocess.Popen:
    """A process of tests.mesh_process."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count="
    return subprocess.Popen(
        [sys.executable, "-m", "tests.mesh_process", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags + str(num_devices)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(processes: list[subprocess.Popen]) -> list[tuple[list[dict], str]]:
    """What processes said, and their standard errors; none of them outlives the test."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=SECONDS)
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            assert process.returncode == 0, err[-2000:]
            found.append((lines, err))
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # or else its pipes are found open in a later test
    return found


@pytest.mark.first
@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("full", "subsampled"), ("MALA", "SMMALA", "FMALA"), ("LangevinSMC",)], ids="-".join
)
def test_devices_of_one_process_draw_as_one(names):
    ((lines, _),) = finished([start("one", *names, num_devices=4)])
    assert [line["kernel"] for line in lines] == list(names)
    for line in lines:
        assert line["error"] < TOLERANCE, line


@pytest.mark.full
def test_all_kernels_draw_as_one():
    ((lines, _),) = finished([start("one", "others", num_devices=4)])
    assert len(lines) == 15
    for line in lines:
        assert line["error"] < TOLERANCE, line


SOME = {"subsampled": [1, 2], "MALA": [2, 1]}


@pytest.mark.first
@pytest.mark.slow
@pytest.mark.parametrize("also", [{}, {"full": [1, 2], "LangevinSMC": [2, 1]}])
def test_two_processes_draw_as_one(also):
    port = free_port()
    (lines, shown), (other_lines, hidden) = finished([start("two", port, p, *also) for p in (0, 1)])
    found = {line["kernel"]: line["mesh"] for line in lines if "kernel" in line}
    assert found == SOME | also
    for line in lines:
        assert line.get("error", 0.0) < TOLERANCE, line
    # a set-up that leaves out the rows of the second process is seen
    assert next(line["planted"] for line in lines if "planted" in line) > 1.0
    # what is wrong is an error in both, and says what
    for each in (lines, other_lines):
        says = {line["complaint"]: line["says"] for line in each if "complaint" in line}
        assert says.keys() == COMPLAINTS.keys()
        for name, words in COMPLAINTS.items():
            assert words in says[name], says[name]
    # one of them speaks, and both go on
    stuck = [next(line for line in each if "stuck" in line) for each in (lines, other_lines)]
    assert [line["stuck"] for line in stuck] == [2, 0]
    assert [line["shape"] for line in stuck] == [[500, 2], [500, 2]]
    assert "sample: 100%" in shown and "8/8" not in hidden


def test_rows_that_cannot_be_divided_are_one_block():
    mesh = AbstractMesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    with use_abstract_mesh(mesh):
        assert [num_blocks(num_rows) for num_rows in (1, 9, 10)] == [1, 1, 2]
    assert num_blocks(10) == 1


@pytest.mark.long
def test_a_process_that_is_missing_is_not_waited_for():
    process = start("alone", free_port())
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "joined" not in out and process.returncode != 0
    assert "timed out" in err.lower() or "deadline" in err.lower()


@pytest.mark.long
def test_passes_send_sums_and_no_rows():
    ((lines, _),) = finished([start("sent", num_devices=4)])
    found = {line["sent"]: line["bytes"] for line in lines if "sent" in line}
    # a chunk of 4 x 64 rows would be 5 kB: gradient and Hessian are 5 numbers, energies are pairs
    assert found["derivatives"] < 100 and found["energy"] < 300
    # 32 rows at a time for each of four chains: 3 numbers each, the entries of the alias table and
    # the bound, and what is said of the chains
    assert found["test"] < 4 * 32 * (3 * 8 + 4 + 4 + 8) + 200
    # a device has its own rows of bounds and alias table
    (table,) = (line for line in lines if "held" in line)
    assert table["held"] == table["all"] / 4
