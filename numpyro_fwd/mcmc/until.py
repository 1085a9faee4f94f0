"""When a run is done."""

import dataclasses
import math
from numbers import Integral, Real


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
