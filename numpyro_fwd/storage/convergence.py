"""Effective draws and R-hat of what a store holds, in bounded memory."""

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numpyro_fwd.storage.stopping import Until
from numpyro_fwd.storage.store import DrawStore

__all__ = ["Convergence", "Worst", "is_checked"]

KEPT = 1000  # draws of each chain that an estimate reads, if the goal needs no more
PER_EFFECTIVE = 8  # draws that it reads for each effective draw of the goal
GROWTH = 1.2  # of the draws between two looks at the goal
TAIL_QUANTILES = (0.05, 0.95)  # whose quantiles' ESS is that of the tails
MIN_DRAWS_OF_ESS = 4  # draws, below which ArviZ has no estimate


class Worst(NamedTuple):
    """The parameter with the fewest effective draws, and the highest R-hat of all.

    ess
        Effective draws, the lesser of bulk and tail.
    r_hat
        Rank-normalised R-hat; NaN for a single chain.
    parameter
        Name of the parameter with these effective draws.
    """

    ess: float = math.nan
    r_hat: float = math.nan
    parameter: str = ""

    def and_also(self, other: "Worst") -> "Worst":
        """The worst of both; NaN is worse than any number."""
        is_worse = math.isnan(other.ess) or other.ess < self.ess
        ess, parameter = (other.ess, other.parameter) if is_worse else (self.ess, self.parameter)
        r_hat = other.r_hat if not self.r_hat >= other.r_hat else self.r_hat
        return Worst(ess, r_hat, parameter)


BETTER_THAN_ANY = Worst(math.inf, -math.inf)  # better than any


def is_checked(num_writes: int) -> bool:
    """Whether the goal is looked at after so many writes of `draws_per_write` draws.

    It depends on nothing else, so that a run that was interrupted stops at the same draw.
    """
    if num_writes <= 1:
        return num_writes == 1

    def level(n: int) -> int:
        return int(math.log(n) / math.log(GROWTH))

    return level(num_writes) > level(num_writes - 1)


class Convergence:
    """Estimates for the parameters of a store, one parameter after the other.

    Of each chain at most 1,000 draws are read, or eight for each effective draw of the goal if that
    is more, evenly spaced over all draws so far. ArviZ's estimates are made of these. Fewer draws
    have no more effective ones, so that the goal is reached late rather than early; by little, as
    there are several draws for each effective one.

    Parameters
    ----------
    store
        Where the draws are.
    names
        Sites whose elements are the parameters: the latent ones.
    until
        The goals.
    num_chains
        Number of chains.
    """

    def __init__(self, store: DrawStore, names: list[str], until: Until, num_chains: int):
        self.store = store
        self.until = until
        goal = PER_EFFECTIVE * (until.ess or 0.0) / num_chains
        self.most = max(KEPT, math.ceil(goal))
        self.names = list(names)  # the site that was worst at the last look comes first

    def all(self, num_draws: int, seconds: float = math.inf) -> Worst:
        """The worst of all parameters, or of those that there is time for."""
        end = time.monotonic() + seconds
        worst = BETTER_THAN_ANY
        if num_draws < MIN_DRAWS_OF_ESS:
            return Worst()
        for one in self.each(num_draws):
            worst = worst.and_also(one)
            if time.monotonic() > end:
                break
        return worst

    def is_reached(self, num_draws: int) -> tuple[bool, Worst]:
        """Whether all parameters meet the goals, and the worst of those that were looked at.

        The first one that does not ends the search, and is the first of the next search.
        """
        worst_so_far = BETTER_THAN_ANY
        if num_draws < MIN_DRAWS_OF_ESS:
            return False, Worst()
        for one in self.each(num_draws):
            worst_so_far = worst_so_far.and_also(one)
            if not self.until.is_met_by(one.ess, one.r_hat):
                worst = one.parameter.split("[")[0]
                self.names.sort(key=lambda name: name != worst)
                return False, worst_so_far
        return True, worst_so_far

    def each(self, num_draws: int) -> Iterator[Worst]:
        """Estimates for each parameter that is not constant."""
        for name in list(self.names):
            draws = self.store.read(name, num_draws, self.most)
            flat = draws.reshape(*draws.shape[:2], -1)
            for j in range(flat.shape[2]):
                draws = flat[:, :, j].astype(float)
                if draws.min() < draws.max() or not np.isfinite(draws).all():
                    place = np.unravel_index(j, self.store.element_shape(name))
                    yield estimate(draws, label(name, place))


def label(name: str, place: tuple[Any, ...]) -> str:
    """Name of an element of a site."""
    return f"{name}[{', '.join(map(str, place))}]" if place else name


def estimate(draws: np.ndarray, parameter: str) -> Worst:
    """Estimates from draws (C, n) of a parameter; NaN where a draw is not finite."""
    if not np.isfinite(draws).all():
        return Worst(parameter=parameter)
    from arviz_stats import ess, rhat  # which takes a second or two

    with np.errstate(all="ignore"):  # a chain that stands still has no variance
        fewest = min(ess(draws, method="bulk"), ess(draws, method="tail", prob=TAIL_QUANTILES))
        r_hat = float(rhat(draws)) if len(draws) > 1 else math.nan
    return Worst(float(fewest), r_hat, parameter)
