"""How a run is stopped and paused: by Ctrl-C, or by its handle."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


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
