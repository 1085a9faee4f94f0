"""When a run is done: its goals, and effective draws and R-hat so far, in bounded memory."""

import dataclasses
import math
import time
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from numpyro_fwd.bridge.numpyro_private import effective_sample_size, gelman_rubin


@dataclasses.dataclass(frozen=True)
class Until:
    """When a run of :class:`numpyro_fwd.MCMC` or :func:`numpyro_fwd.sample_to` stops.

    It stops at `max_draws`, after `seconds`, or when the goals among `ess` and `r_hat` are all
    reached, whichever comes first. Without any of them it stops at the draws of the ``MCMC``.

    Parameters
    ----------
    max_draws
        Draws of each chain that are kept, after thinning, 1 or more.
    ess
        Effective draws of all chains together, for each parameter both in the bulk and in the
        tails (as ArviZ's ``ess``, methods "bulk" and "tail"), positive.
    r_hat
        Rank-normalised R-hat (as ArviZ's ``rhat``) of each parameter, above 1; it takes two chains.
        1.01 is usual.
    seconds
        Seconds of one call, positive; what earlier calls took does not count. It is looked at
        between pieces of a third of a second.

    Raises
    ------
    TypeError, ValueError
        For a number outside these ranges, by name.

    Examples
    --------
    >>> from numpyro_fwd import Until
    >>> Until(ess=1000, r_hat=1.01, seconds=3600).has_goals
    True
    """

    max_draws: int | None = None
    ess: float | None = None
    r_hat: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.max_draws is not None:
            check_whole_number("max_draws", self.max_draws)
            # of NumPy's integers Zarr and JSON take none
            object.__setattr__(self, "max_draws", int(self.max_draws))
        for name, least in (("ess", 0.0), ("r_hat", 1.0), ("seconds", 0.0)):
            if (value := getattr(self, name)) is not None:
                check_above(name, value, least)

    @property
    def has_goals(self) -> bool:
        """Whether effective draws or R-hat are asked for."""
        return self.ess is not None or self.r_hat is not None

    @property
    def is_open(self) -> bool:
        """Whether it says nothing."""
        return self.max_draws is None and self.seconds is None and not self.has_goals

    def is_met_by(self, ess: float, r_hat: float) -> bool:
        """Whether a parameter with these meets the goals; NaN does not."""
        has_ess = self.ess is None or ess >= self.ess
        return has_ess and (self.r_hat is None or r_hat <= self.r_hat)


def check_until(until: object, num_chains: int) -> Until:
    """The goals of a run of so many chains; without any, for None."""
    if until is None:
        return Until()
    if not isinstance(until, Until):
        raise TypeError(f"until must be an Until(...) or None; got {type(until).__name__}.")
    if until.r_hat is not None and num_chains < 2:
        raise ValueError(f"until: r_hat takes two chains or more; got num_chains={num_chains}.")
    return until


def check_whole_number(name: str, value: object) -> None:
    """Raise unless `value` is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer; got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more; got {value!r}.")


def check_above(name: str, value: object, least: float) -> None:
    """Raise unless `value` is a finite number above `least`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {value!r}.")
    if not least < float(value) < math.inf:
        raise ValueError(f"{name} must be finite and above {least:g}; got {value!r}.")


LEAST_DRAWS = 4  # draws of each chain of which there is an estimate


class Worst(NamedTuple):
    """The parameter with the fewest effective draws, and the highest R-hat of all.

    ess
        Effective draws, the lesser of bulk and tail.
    r_hat
        Rank-normalised R-hat; NaN for a single chain.
    parameter
        Name of the parameter with these effective draws.
    is_bound
        Whether there are more draws than were read, and so more effective ones.
    """

    ess: float = math.nan
    r_hat: float = math.nan
    parameter: str = ""
    is_bound: bool = False

    def and_also(self, other: "Worst") -> "Worst":
        """The worst of both; NaN is worse than any number."""
        is_worse = math.isnan(other.ess) or other.ess < self.ess
        ess, parameter = (other.ess, other.parameter) if is_worse else (self.ess, self.parameter)
        r_hat = other.r_hat if not self.r_hat >= other.r_hat else self.r_hat
        return Worst(ess, r_hat, parameter, self.is_bound or other.is_bound)


BETTER_THAN_ANY = Worst(math.inf, -math.inf)  # better than any


def next_look(num_draws: int) -> int:
    """The number of draws, more than these, at which the goal is looked at next.

    It depends on nothing else, so that a run that was interrupted stops at the same draw.
    """
    look = 100
    while look <= num_draws:
        look += look // 5  # a fifth more
    return look


class Draws(Protocol):
    """What has been drawn."""

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a site, (C, n, ...), evenly spaced."""


class Convergence:
    """Estimates for parameters, one after the other.

    Of each chain at most 1,000 draws are read, or eight for each effective draw of the goal if that
    is more, evenly spaced over all draws so far. Fewer draws have no more effective ones, so that
    the goal is reached late rather than early; by little, as there are several draws for each
    effective one.

    Parameters
    ----------
    drawn
        Where the draws are.
    names
        Sites whose elements are the parameters: the latent ones.
    until
        The goals.
    num_chains
        Number of chains.
    """

    def __init__(self, drawn: Draws, names: list[str], until: Until, num_chains: int):
        self.drawn = drawn
        self.until = until
        # draws of each chain that an estimate reads: eight for each effective draw of the goal
        self.most = max(1000, math.ceil(8 * (until.ess or 0.0) / num_chains))
        self.names = list(names)  # the site that was worst at the last look comes first

    def all(self, num_draws: int, seconds: float = math.inf) -> Worst:
        """The worst of all parameters, or of those that there is time for."""
        end = time.monotonic() + seconds
        worst = BETTER_THAN_ANY
        if num_draws < LEAST_DRAWS:
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
        if num_draws < LEAST_DRAWS:
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
            draws = self.drawn.read(name, num_draws, self.most)
            for place in np.ndindex(draws.shape[2:]):
                one = draws[:, :, *place].astype(float)
                if one.min() < one.max() or not np.isfinite(one).all():
                    found = estimate(one, label(name, place))
                    yield found._replace(is_bound=num_draws > self.most)


def label(name: str, place: tuple[Any, ...]) -> str:
    """Name of an element of a site."""
    return f"{name}[{', '.join(map(str, place))}]" if place else name


def estimate(draws: np.ndarray, parameter: str) -> Worst:
    """Estimates from draws (C, n) of a parameter, as ArviZ's; NaN where a draw is not finite.

    NumPyro's sum of autocorrelations ends a term before ArviZ's where that term is positive, which
    is a percent or so of short runs.
    """
    if not np.isfinite(draws).all():
        return Worst(parameter=parameter)
    normal = by_ranks(halves(draws))
    tails = [halves(draws <= q).astype(float) for q in np.quantile(draws, (0.05, 0.95))]
    with np.errstate(all="ignore"):  # a chain that stands still has no variance
        fewest = min(float(effective_sample_size(each)) for each in (normal, *tails))
        folded = by_ranks(halves(np.abs(draws - np.median(draws))))
        r_hat = max(float(gelman_rubin(each)) for each in (normal, folded))
    return Worst(fewest, r_hat if len(draws) > 1 else math.nan, parameter)


def halves(draws: np.ndarray) -> np.ndarray:
    """The first and the second halves of chains, as chains."""
    n = draws.shape[1] // 2
    return np.concatenate([draws[:, :n], draws[:, -n:]])


def by_ranks(draws: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks of draws."""
    normal: np.ndarray = ndtri(
        (rankdata(draws).reshape(draws.shape) - 3 / 8) / (draws.size + 1 / 4)
    )
    return normal
