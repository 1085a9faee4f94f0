"""A run that is interrupted goes on bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from numpyro_fwd.mcmc import loop
from numpyro_fwd.storage import run as stored_run
from numpyro_fwd.storage import writer
from tests.numpyro_fwd.storage import runs

pytestmark = pytest.mark.long

CASES = {
    "NUTS in sequence": ("NUTS", "sequential", 2),
    "MALA vectorized": ("MALA", "vectorized", 2),
    "MALA, one chain": ("MALA", "vectorized", 1),
    "AMAGOLD": ("AMAGOLD", "vectorized", 2),
    "AIES, an ensemble": ("AIES", "vectorized", 10),
}


@pytest.mark.parametrize("case", CASES)
def test_in_pieces_as_in_one_go(case, tmp_path):
    name, chain_method, num_chains = CASES[case]

    def mcmc():
        return runs.mcmc_of(name, num_chains=num_chains, chain_method=chain_method)

    whole = runs.run(tmp_path / "whole", 25, mcmc())
    for max_draws in (3, 20, 25):
        stored = runs.run(tmp_path / "pieces", max_draws, mcmc())
        assert stored.num_draws == max_draws
        assert stored.reason == "max_draws"
    runs.assert_same(tmp_path / "whole", tmp_path / "pieces")
    numbers = (jax.tree.leaves(each.last_state) for each in (whole, stored))
    for one, other in zip(*numbers, strict=True):
        if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)


def test_a_run_does_not_depend_on_its_pieces(tmp_path, monkeypatch):
    """The time that steps take decides how long pieces are, and nothing else."""
    runs.run(tmp_path / "usual")
    monkeypatch.setattr(loop, "FIRST_PIECE", 1)
    monkeypatch.setattr(loop, "PIECE_SECONDS", 1e-9)
    monkeypatch.setattr(stored_run.StoredRun, "seconds", 0.0)
    runs.run(tmp_path / "step by step", 25)
    runs.assert_same(tmp_path / "usual", tmp_path / "step by step")


def test_thinning(tmp_path):
    """Every third draw is kept."""
    runs.run(tmp_path / "all", 30, runs.mcmc_of(thinning=1))
    runs.run(tmp_path / "some", 10, runs.mcmc_of(thinning=3, num_samples=30))
    everything, some = runs.draws_of(tmp_path / "all"), runs.draws_of(tmp_path / "some")
    name = "posterior/slopes"
    np.testing.assert_allclose(some[name], everything[name][:, 2::3], rtol=1e-4)


class Killed(BaseException):
    """The end of a process, as far as it can be had without one."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole") / "run"
    runs.run(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "seconds"),
    [
        (31, 0.0),
        (8, 60.0),
        *(pytest.param(first, 0.0, marks=pytest.mark.full) for first in (2, 12, 19, 45)),
        pytest.param(20, 60.0, marks=pytest.mark.full),
    ],
)
def test_killed_between_any_two_files(first, seconds, whole, tmp_path, monkeypatch):
    """Files of a run are put in their places one by one: it may end before any of them.

    With a checkpoint after each write, and with one for all of them.
    """
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", seconds)
    replace, count = os.replace, 0

    def replace_or_die(*names):
        nonlocal count
        count += 1
        if count == first:
            raise Killed
        replace(*names)

    monkeypatch.setattr(os, "replace", replace_or_die)
    with pytest.raises(Killed):
        runs.run(tmp_path / "killed")
    if (tmp_path / "killed" / ".zmetadata").exists():
        assert runs.draws_of(tmp_path / "killed")["posterior/sum"].shape[1] % 10 in (0, 5)
    runs.run(tmp_path / "killed")
    runs.assert_same(whole, tmp_path / "killed")


def start(path, max_draws):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.numpyro_fwd.storage.runs", str(path), str(max_draws)],
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.slow
def test_kill_9(tmp_path):
    """In the set-up, in the warm-up, in a write, wherever it is; draws are read while it runs.

    What is killed would never end by itself, so that the speed of a machine decides no kill.
    """
    path, rng = tmp_path / "killed", random.Random(0)
    checkpoint = path / ".sample_to" / "checkpoint.npz"
    for _ in range(2):
        begun = time.time()
        process = start(path, max_draws=10**9)
        while process.poll() is None and not (
            checkpoint.exists() and checkpoint.stat().st_mtime > begun
        ):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        runs.draws_of(path)
    num_draws = num_draws_of(path)
    assert start(path, num_draws + 20).wait() == 0
    assert num_draws_of(path) >= num_draws + 20  # the last checkpoint may have had more
    assert start(tmp_path / "whole", num_draws_of(path)).wait() == 0
    runs.assert_same(tmp_path / "whole", path)


def num_draws_of(path):
    return runs.draws_of(path)["posterior/sum"].shape[1]


@pytest.mark.parametrize("error", [None, RuntimeError("enough")])
def test_ctrl_c_and_errors_of_a_callback_lose_nothing(error, tmp_path, monkeypatch):
    """In the draws, of which those that there are count, and are gone on from."""
    monkeypatch.setattr(loop, "PIECE_SECONDS", 1e-9)  # pieces of a step

    def stops(progress):
        if progress.num_draws > 4 and error is not None:
            raise error
        if progress.num_draws > 4:
            os.kill(os.getpid(), signal.SIGINT)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    mcmc = runs.mcmc_of()
    mcmc.callback = stops
    try:
        raised = pytest.warns(UserWarning, match=r"5 draws of each chain are kept.*the same call")
        with pytest.raises(RuntimeError, match="enough") if error else raised:
            assert runs.run(tmp_path / "run", mcmc=mcmc).reason == "stopped"
    finally:
        signal.signal(signal.SIGINT, usual)
    assert num_draws_of(tmp_path / "run") == 5
    runs.run(tmp_path / "run")
    runs.run(tmp_path / "whole")
    runs.assert_same(tmp_path / "run", tmp_path / "whole")
