"""What a kernel is doing before the first step, on the line where the progress bar will be.

NumPyro's bar begins with the first step, which a start, passes over the data and compilers may let
wait for seconds or minutes. These words show wherever that bar does.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from numpyro.infer import MCMC
from tqdm.auto import tqdm  # type: ignore[import-untyped]

__all__ = ["Say", "silent", "words_of"]

Say = Callable[[str], None]
TICK = 0.5  # seconds between two looks at the clock


def silent(text: str) -> None:
    """Say nothing."""
    del text


@contextlib.contextmanager
def words_of(kernel: object) -> Iterator[Say]:
    """A function that says what `kernel` is doing, with the seconds since the words began.

    Without effect unless the MCMC that runs the kernel has a progress bar. The words go when they
    are over.
    """
    if not has_progress_bar():
        yield silent
        return
    name = type(kernel).__name__
    with tqdm(total=0, bar_format="{desc} [{elapsed}]", leave=False) as line, ticking(line):
        yield lambda text: line.set_description_str(f"{name}: {text}")


@contextlib.contextmanager
def ticking(line: tqdm) -> Iterator[None]:
    """Let the clock of `line` go on while nothing is said."""
    is_over = threading.Event()

    def tick():
        while not is_over.wait(TICK):
            line.refresh()

    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        yield
    finally:
        is_over.set()
        clock.join()


def has_progress_bar() -> bool:
    """Whether the innermost MCMC that is running shows a progress bar; False if none is.

    NumPyro does not tell its kernels, so the frames of the call are asked.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        # an MCMC, or what runs one with its draws on disk
        for each in (caller, getattr(caller, "__dict__", {}).get("mcmc")):
            if isinstance(each, MCMC):
                return bool(each.progress_bar)
        frame = frame.f_back
    return False
