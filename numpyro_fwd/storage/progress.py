"""The line that shows how far a run on disk is."""

import math
import time
from types import TracebackType

from tqdm.auto import tqdm

from numpyro_fwd.storage.convergence import Worst
from numpyro_fwd.storage.stopping import Until

__all__ = ["Progress"]


class Progress:
    """A bar of tqdm: draws, rate, the worst effective draws and R-hat, time to the goal.

    Parameters
    ----------
    is_shown
        Whether there is one.
    until
        The goals.
    num_draws
        Draws of each chain that there are already.
    """

    def __init__(self, is_shown: bool, until: Until, num_draws: int):
        self.until = until
        self.begun = time.monotonic()
        self.first = num_draws
        self.bar = tqdm(
            total=until.max_draws, initial=num_draws, unit="draw", disable=not is_shown, miniters=0
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.close()

    def say(self, text: str) -> None:
        """Say what is done, before the bar."""
        self.bar.set_description_str(text)

    def show(self, num_draws: int, worst: Worst, diagnostics: str) -> None:
        """Show this many draws."""
        if self.bar.disable:
            return
        self.bar.set_postfix_str(self.words(num_draws, worst, diagnostics), refresh=False)
        self.bar.update(num_draws - self.bar.n)
        self.bar.refresh()

    def words(self, num_draws: int, worst: Worst, diagnostics: str) -> str:
        """Text behind the progress bar."""
        parts = []
        if worst.parameter:
            parts.append(f"ESS {worst.ess:,.0f} ({worst.parameter})")
        if math.isfinite(worst.r_hat):
            parts.append(f"R-hat {worst.r_hat:.3f}")
        if (seconds := self.seconds_to_goal(num_draws, worst)) is not None:
            parts.append(f"{tqdm.format_interval(seconds)} to the goal")
        return ", ".join([*parts, diagnostics] if diagnostics else parts)

    def seconds_to_goal(self, num_draws: int, worst: Worst) -> float | None:
        """Seconds until the goals are reached, if it goes on as it began; None if unknown.

        Effective draws grow as the draws do, and R-hat falls towards 1 in the inverse of them.
        """
        new = num_draws - self.first
        if not new:
            return None
        pace = (time.monotonic() - self.begun) / new
        needed = []
        if self.until.ess is not None and worst.ess > 0:
            needed.append(num_draws * self.until.ess / worst.ess)
        if self.until.r_hat is not None and worst.r_hat > 1:
            needed.append(num_draws * (worst.r_hat - 1) / (self.until.r_hat - 1))
        limits = [pace * max(max(needed) - num_draws, 0.0)] if needed else []
        if self.until.max_draws is not None:
            limits.append(pace * (self.until.max_draws - num_draws))
        if self.until.seconds is not None:
            limits.append(max(self.until.seconds - (time.monotonic() - self.begun), 0.0))
        return min(limits) if limits else None
