"""Writing beside the computation of the next draws, which waits as seldom as it can."""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpyro_fwd.types import SiteValues

WAITING = 3  # pieces that wait to be written, or are: each holds its draws in memory
CHECKPOINT_SECONDS = 0.25  # between two checkpoints, which are synchronized with the disk


class Writer:
    """A thread that writes the pieces of a run in their order.

    Draws are written at once, and a checkpoint says how many of them count. To synchronize one with
    the disk takes tens of milliseconds, in which a cheap density has thousands of draws: where
    pieces are shorter than a quarter of a second, a checkpoint stands for several of them. A run
    that is killed goes on from the last, so that it repeats no more than that.

    Parameters
    ----------
    append
        ``append(draws, done)`` writes the draws of a piece.
    commit
        ``commit(leaves, done)`` lets the draws so far count.
    """

    def __init__(self, append: Callable[..., None], commit: Callable[..., None]):
        self.append, self.commit = append, commit
        self.thread = ThreadPoolExecutor(1)
        self.waiting: deque[Future[Any]] = deque()
        self.last = -math.inf  # when a checkpoint was written
        self.has_failed = False
        self.left: tuple[Any, ...] = ()  # what the next one will say

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.thread.shutdown(cancel_futures=True)

    def put(self, draws: SiteValues, leaves: list[Any], done: Any) -> None:
        """Have a piece written; errors are those of the pieces before it."""
        while len(self.waiting) >= WAITING or (self.waiting and self.waiting[0].done()):
            self.waiting.popleft().result()
        self.waiting.append(self.thread.submit(self._guarded, self._write, draws, leaves, done))

    def settle(self) -> None:
        """Wait until everything is written, the checkpoint too."""
        while self.waiting:
            self.waiting.popleft().result()
        self.thread.submit(self._guarded, self._commit).result()

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Nothing is written after something that could not be: a gap would be among the draws."""
        if self.has_failed:
            return
        self.has_failed = True
        act(*arguments)
        self.has_failed = False

    def _write(self, draws: SiteValues, leaves: list[Any], done: Any) -> None:
        """The draws of a piece, and a checkpoint if the last one is old enough."""
        if draws:
            self.append(draws, done)
        self.left = (leaves, done)
        if time.monotonic() - self.last >= CHECKPOINT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        """A checkpoint, unless the last one says the same."""
        if self.left:
            self.commit(*self.left)
            self.left, self.last = (), time.monotonic()
