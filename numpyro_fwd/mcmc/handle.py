"""A run in the background, and how any run is stopped and paused: by its handle, or by Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from numpyro_fwd.mcmc.memory import Memory
from numpyro_fwd.mcmc.progress import Progress


class Control:
    """What somebody wants of a run, which asks between two pieces.

    Attributes
    ----------
    is_watched
        Whether draws shall be there after each piece.
    is_interrupted
        Whether Ctrl-C was pressed.
    progress
        What there is to say of the run so far; None before its first piece.
    """

    def __init__(self, *, is_watched: bool = False):
        self.is_watched, self.is_interrupted = is_watched, False
        self.progress: Any = None
        self._stopped, self._may_run = threading.Event(), threading.Event()
        self._may_run.set()

    @property
    def is_stopped(self) -> bool:
        """Whether the run shall end."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the run after its piece."""
        self._stopped.set()
        self._may_run.set()

    def interrupt(self) -> None:
        """End the run for Ctrl-C."""
        self.is_interrupted = True
        self._stopped.set()

    def pause(self) -> None:
        """Let it wait after its piece."""
        if not self.is_stopped:
            self._may_run.clear()

    def resume(self) -> None:
        """Let it go on."""
        self._may_run.set()

    def wait(self) -> None:
        """Wait while it is paused."""
        self._may_run.wait()


@contextlib.contextmanager
def interrupts(control: Control) -> Iterator[None]:
    """Let Ctrl-C stop the run; pressed again, it is an error at once.

    In threads, and where a program has a handler of its own, Ctrl-C does what it does.
    """
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or usual is not signal.default_int_handler:
        yield
        return

    def pressed(*_: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        control.interrupt()

    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


class Handle:
    """A run that goes on in a thread, as ``MCMC.run(..., blocking=False)`` returns it.

    What is asked of it happens between two pieces of the run, of a third of a second; while a
    kernel looks for a start, or programs are compiled, it waits. The process ends after the run.
    """

    def __init__(self, run: Callable[[], None], control: Control, memory: Memory):
        self._run, self._control, self._memory = run, control, memory
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._body, name="MCMC")
        self._thread.start()

    def _body(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def __repr__(self) -> str:
        said, done = ("running" if self.is_running else "over"), self.progress
        return f"Handle({said}, {done.num_draws if done else 0} draws of each chain)"

    @property
    def is_running(self) -> bool:
        """Whether the run goes on, or is paused."""
        return self._thread.is_alive()

    @property
    def progress(self) -> Progress | None:
        """How far the run is; None before its first piece."""
        found: Progress | None = self._control.progress
        return found

    def draws(self, group_by_chain: bool = False) -> Any:
        """Draws so far by site, as of ``get_samples``; nothing before the first."""
        return self._memory.samples(group_by_chain)

    def pause(self) -> None:
        """Let the run wait."""
        self._control.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._control.resume()

    def stop(self) -> None:
        """End the run, and wait for that; what it has drawn is in the `MCMC`.

        Raises
        ------
        Exception
            That of the run.
        """
        self._control.stop()
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the run, so many seconds at most; whether it is over.

        Raises
        ------
        Exception
            That of the run.
        """
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self.is_running
