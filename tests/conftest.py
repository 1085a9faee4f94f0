"""Options and fixtures shared by all tests."""

import contextlib
import ctypes
import gc
import os
from itertools import compress, count, permutations
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests import seeds, selection
from tests.laws.laws import FULL, SMALL, Size


def share(folders: list[Path]) -> None:
    """Link files of each folder into the others."""
    for one, other in permutations(folders, 2):
        for name in set(os.listdir(one)) - set(os.listdir(other)):
            with contextlib.suppress(FileExistsError):
                os.link(one / name, other / name)


# JAX writes the entries of its compilation cache without a lock: each worker gets a folder, in
# which is all that earlier runs have compiled
if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    cache = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = str(cache / os.environ["PYTEST_XDIST_WORKER"])
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        jax.config.update("jax_compilation_cache_dir", folder)
    else:
        share(list(cache.glob("gw*")))

# of processes that tests start: the last jaxlib for Python 3.11 has a fault that an import names.
# (What "-W" repeats of this would keep its place here, before "-W error".)
os.environ.setdefault("PYTHONWARNINGS", "ignore:jaxlib 0.10.2 computes")

# tracing makes many objects and little garbage: to look for it each 700 of them costs a tenth
gc.set_threshold(100_000, 20, 50)


def pytest_addoption(parser):
    parser.addoption(
        "--full-laws", action="store_true", help="run the laws of tests/laws at their full size"
    )
    parser.addoption("--seeds", type=int, default=0, help="another number, other seeds: seeds.py")
    parser.addoption(
        "--alarms", type=int, default=0, help="run statistical tests with so many other seeds each"
    )
    parser.addoption("--short", action="store_true", help="run a part of the tests: selection.py")
    parser.addoption("--not-short", action="store_true", help="run what --short leaves out")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    number = pyfuncitem.config.getoption("--seeds")
    if num_seeds := pyfuncitem.config.getoption("--alarms"):
        for n in range(1, num_seeds):
            with seeds.others(n), noting(pyfuncitem, "alarm"):
                call(pyfuncitem)
        with seeds.others(num_seeds), noting(pyfuncitem, "alarm"):
            return (yield)
        return True
    try:
        with seeds.others(number):
            return (yield)
    except AssertionError as error:
        if not pyfuncitem.get_closest_marker("statistical"):
            raise
        note(pyfuncitem, "failed first", error)
        with seeds.others(number + AGAIN):
            call(pyfuncitem)
        return True


def call(item: pytest.Function) -> None:
    """Run the function of a test once more."""
    names = item._fixtureinfo.argnames
    item.obj(**{name: item.funcargs[name] for name in names})


def note(item: pytest.Item, what: str, error: Exception) -> None:
    """Keep the first line of an error for the end of the output."""
    item.user_properties.append((what, str(error).split("\n")[0]))


@contextlib.contextmanager
def noting(item: pytest.Item, what: str):
    """Note that a test fails, which is no failure."""
    try:
        yield
    except AssertionError as error:
        note(item, what, error)


def pytest_terminal_summary(terminalreporter, config):
    passed = terminalreporter.getreports("passed")
    noted = [(report.nodeid, *each) for report in passed for each in report.user_properties]
    for name, what, words in noted:
        if what == "failed first":
            terminalreporter.line(f"{name} passed with new seeds alone: {words}")
        if what == "alarm":
            terminalreporter.line(f"{name} failed with other seeds: {words}")
    if num_seeds := config.getoption("--alarms"):
        num = sum(what == "alarm" for _, what, _ in noted)
        terminalreporter.line(f"{num} of {num_seeds * len(passed)} runs of right samplers failed.")


def pytest_collection_modifyitems(config, items):
    # the long ones first: a worker that begins one at the end works alone
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--alarms"):
        keep(config, items, [bool(item.get_closest_marker("statistical")) for item in items])
    full = selection.full(items)
    if config.getoption("--short") or config.getoption("--not-short"):
        chosen = selection.short(items)
        keep(config, items, [(item in chosen) == config.getoption("--short") for item in items])
    if config.getoption("--full-laws"):
        return
    skip = pytest.mark.skip(reason="runs only with --full-laws")
    for item in items:
        if item in full:
            item.add_marker(skip)


def keep(config, items: list[pytest.Item], is_chosen: list[bool]) -> None:
    """Leave out the items that are not chosen."""
    config.hook.pytest_deselected(items=[*compress(items, [not each for each in is_chosen])])
    items[:] = compress(items, is_chosen)


AGAIN = 1_000  # far from every number that --seeds is given
EVERY = 20  # tests between two looks at the maps of a process, which take milliseconds
TESTS = count()
MAX_MAPS = 40_000  # Linux allows a process 65,530; XLA takes some for every program it compiles
# pages of a worker, most of which are compiled programs: a quarter of the memory
MAX_RESIDENT = os.sysconf("SC_PHYS_PAGES") // 4


@pytest.fixture(autouse=True)
def few_programs(request):
    """Drop the compiled programs before there are too many for the process or for its memory.

    A process that has no maps left waits forever, or crashes.
    """
    yield
    process = Path("/proc/self")
    every = 1 if request.config.getoption("--alarms") else EVERY  # each with many seeds
    if not process.exists() or next(TESTS) % every:
        return
    num_maps = (process / "maps").read_bytes().count(b"\n")
    resident = int((process / "statm").read_text().split()[1])
    if num_maps > MAX_MAPS or resident > MAX_RESIDENT:
        jax.clear_caches()
        gc.collect()
        give_back()


def give_back() -> None:
    """Return freed memory to the system, which glibc would keep."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(scope="session")
def size(request) -> Size:
    """How many chains and steps a statistical law runs."""
    return FULL if request.config.getoption("--full-laws") else SMALL


@pytest.fixture(params=["float64", "float32 under x64"])
def dtype(request):
    """Each floating dtype under x64, where a slip of one into the other can happen."""
    with jax.enable_x64("64" in request.param):
        yield jnp.dtype(request.param.split()[0])


@pytest.fixture
def x64():
    """Double precision, for identities that hold up to rounding."""
    with jax.enable_x64(True):
        yield
