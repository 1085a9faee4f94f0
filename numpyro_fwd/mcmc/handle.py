"""A run in the background."""

import threading
from collections.abc import Callable
from typing import Any

from numpyro_fwd.mcmc.control import Control
from numpyro_fwd.mcmc.memory import Memory
from numpyro_fwd.mcmc.progress import Progress


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
