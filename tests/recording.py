"""What each test costs and which lines of the packages it runs: ``pytest --record FOLDER``.

Python's own monitoring (3.12 on) tells it of the packages' lines alone, so that a test takes about
as long as it does without.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import jax
import pytest

__all__ = ["Recorder"]

ROOT = Path(__file__).parent.parent
PACKAGES = f"{ROOT}/blackjax_ext/", f"{ROOT}/numpyro_fwd/"
TOOL = sys.monitoring.COVERAGE_ID if sys.version_info >= (3, 12) else None
COMPILED = "/jax/core/compile/backend_compile_duration"


class Recorder:
    """A plugin of pytest that writes a line of JSON for each test to a file of its process."""

    def __init__(self, folder: Path, is_short: bool):
        self.is_short = is_short
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl").open("a")
        self.lines: set[tuple[str, int]] = set()
        self.num_programs = 0
        jax.monitoring.register_event_duration_secs_listener(self.count)
        if TOOL is not None:
            events = sys.monitoring
            events.use_tool_id(TOOL, "numpyro_fwd tests")
            events.register_callback(TOOL, events.events.PY_START, self.begin)
            events.register_callback(TOOL, events.events.LINE, self.see)
            events.set_events(TOOL, events.events.PY_START)

    def count(self, event: str, *_, **__) -> None:
        self.num_programs += event == COMPILED

    def begin(self, code, _):
        """Ask for the lines of a function of the packages, once."""
        if code.co_filename.startswith(PACKAGES):
            sys.monitoring.set_local_events(TOOL, code, sys.monitoring.events.LINE)
        return sys.monitoring.DISABLE

    def see(self, code, line: int) -> None:
        """Keep a line."""
        self.lines.add((code.co_filename, line))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.lines.clear()
        self.num_programs = 0
        begin, clock = seconds(), time.monotonic()
        result = yield
        record = {
            "test": item.nodeid,
            "short": self.is_short,
            "seconds": round(seconds() - begin, 3),
            "clock": round(time.monotonic() - clock, 3),
            "programs": self.num_programs,
            "lines": sorted(f"{Path(file).relative_to(ROOT)}:{line}" for file, line in self.lines),
        }
        print(json.dumps(record), file=self.file, flush=True)
        return result


def seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
