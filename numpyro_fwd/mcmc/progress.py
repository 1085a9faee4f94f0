"""What is said of a run while it goes on: to a callback, and in the line of progress."""

import math
import time
from typing import NamedTuple

from tqdm.auto import tqdm

from numpyro_fwd.kernels.running_mcmc import is_terminal
from numpyro_fwd.mcmc.convergence import Until, Worst
from numpyro_fwd.types import SiteValues


class Progress(NamedTuple):
    """What a callback is told after each piece of a run.

    phase
        "warmup" or "sample".
    num_steps
        Steps so far, those of the warm-up among them.
    num_draws
        Draws of each chain so far.
    draws
        Those that are new since the last call, by site, (chains, draws, ...); empty in the warm-up.
    divergences
        Draws so far that diverged, of all chains; None if the kernel does not say.
    gradients
        Mean of the state's ``num_steps`` over draws so far, the gradients of a draw for most
        kernels; NaN without one.
    worst
        The fewest effective draws of a parameter and the highest R-hat when they were last looked
        at, as :class:`~numpyro_fwd.mcmc.convergence.Worst`; NaN before that.
    seconds
        Seconds since the first step, without compilation.
    """

    phase: str
    num_steps: int
    num_draws: int
    draws: SiteValues
    divergences: int | None
    gradients: float
    worst: Worst
    seconds: float


class Line:
    """A bar of tqdm: steps, and what there is to say of the draws.

    Parameters
    ----------
    is_shown
        Whether there is one.
    num_steps
        Steps of the run; None if that is not known.
    done
        Steps that are done already.
    """

    def __init__(self, is_shown: bool, num_steps: int | None, done: int):
        self.bar = tqdm(total=num_steps, initial=done, disable=not is_shown, miniters=0)
        self.is_shown = is_shown
        is_log = is_shown and not (self.bar.gui or is_terminal(self.bar))
        self.least = 10.0 if is_log else 0.0  # seconds between two lines: a file keeps all of them
        self.last = -math.inf

    def show(self, progress: Progress, until: Until, first: int, said: str) -> None:
        """Show how far the run is; `first` draws are those of earlier calls."""
        if not self.is_shown or time.monotonic() - self.last < self.least:
            return
        self.last = time.monotonic()
        self.bar.set_description_str(progress.phase, refresh=False)
        words = [*words_of(progress), *remaining(progress, until, first), said]
        self.bar.set_postfix_str(", ".join(filter(None, words)), refresh=False)
        self.bar.update(progress.num_steps - self.bar.n)
        self.bar.refresh()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def words_of(progress: Progress) -> list[str]:
    """What there is to say of the draws so far; a narrow terminal cuts off the last words."""
    if not progress.num_draws:
        return []
    worst, words = progress.worst, list[str]()
    if math.isfinite(worst.r_hat):
        words.append(f"R-hat {worst.r_hat:.3f}")
    if worst.parameter:
        over = "over " if worst.is_bound else ""
        words.append(f"ESS {over}{worst.ess:,.0f} ({worst.parameter})")
    if progress.divergences is not None:
        words.append(f"{progress.divergences} divergences")
    if progress.gradients > 1:
        words.append(f"{progress.gradients:.3g} gradients a draw")
    return [*words, f"{progress.num_draws} draws"]


def remaining(progress: Progress, until: Until, first: int) -> list[str]:
    """How long it takes until the goals are reached, if it goes on as it began.

    Effective draws grow as the draws do, and R-hat falls towards 1 in the inverse of them.
    """
    num_draws, worst, needed = progress.num_draws, progress.worst, []
    if num_draws <= first:
        return []
    if until.ess is not None and worst.ess > 0:
        needed.append(num_draws * until.ess / worst.ess)
    if until.r_hat is not None and worst.r_hat > 1:
        needed.append(num_draws * (worst.r_hat - 1) / (until.r_hat - 1))
    if not needed:
        return []
    ends = [max(needed), *([] if until.max_draws is None else [until.max_draws])]
    seconds = max(min(ends) - num_draws, 0.0) * progress.seconds / (num_draws - first)
    if until.seconds is not None:
        seconds = min(seconds, max(until.seconds - progress.seconds, 0.0))
    return [f"{tqdm.format_interval(seconds)} to the goal"]
