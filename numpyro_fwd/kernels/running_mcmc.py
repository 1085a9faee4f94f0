"""The MCMC that runs a kernel: its arguments, and the line where its progress bar will be.

NumPyro's bar begins with the first step, which a start, passes over the data and compilers may let
wait for seconds or minutes. Until then that line says what the kernel is doing, wherever the bar
would be shown.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import jax
from numpyro.infer import MCMC
from tqdm.auto import tqdm

from blackjax_ext.meshes import is_first_process
from numpyro_fwd.meshes import is_local
from numpyro_fwd.types import Args, Kwargs

Say = Callable[[str], None]
TICK = 0.5  # seconds between two looks at the clock


def silent(text: str) -> None:
    """Say nothing."""
    del text


@contextlib.contextmanager
def status_line(kernel: object) -> Iterator[Say]:
    """A function that shows what `kernel` is doing, with the seconds since the line began.

    Without effect unless the MCMC that runs the kernel has a progress bar. The line is removed at
    the end.
    """
    mcmc = running_mcmc()
    if mcmc is None or not mcmc.progress_bar or not is_first_process():
        yield silent
        return
    name = type(kernel).__name__
    with tqdm(total=0, bar_format="{desc} [{elapsed}]", leave=False) as line, ticking(line):
        yield lambda text: line.set_description_str(f"{name}: {text}")


@contextlib.contextmanager
def ticking(line: tqdm) -> Iterator[None]:
    """Let the clock of `line` go on while nothing is said, but in a file, which keeps each line."""
    if not (line.gui or is_terminal(line)):
        yield
        return
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


def is_terminal(line: tqdm) -> bool:
    """Whether a line is written where the next one takes its place."""
    file = getattr(line, "fp", None)
    return file is not None and bool(file.isatty())


def check_arguments_of_loop(model_args: Args, model_kwargs: Kwargs | None) -> None:
    """Raise ValueError if other processes hold rows that the running MCMC makes constants."""
    if all(is_local(leaf) for leaf in jax.tree.leaves((model_args, model_kwargs))):
        return
    if getattr(running_mcmc(), "_jit_model_args", True):
        return
    raise ValueError(
        "MCMC must be given jit_model_args=True for data of which other processes hold a part: "
        "without it they would be constants of its program, which each process must have whole."
    )


def running_mcmc() -> MCMC | None:
    """The innermost MCMC that is running; None if none is.

    NumPyro does not tell its kernels, so the frames of the call are asked.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        # an MCMC, or what runs one with its draws on disk
        for candidate in (caller, getattr(caller, "__dict__", {}).get("mcmc")):
            if isinstance(candidate, MCMC):
                return candidate
        frame = frame.f_back
    return None
