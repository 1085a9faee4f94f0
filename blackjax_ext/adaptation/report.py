"""Diagnostics of the chains at the end of a warm-up, and the messages to warn with."""

import math
import warnings
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.newton_path import negligible
from blackjax_ext.adaptation.start import Starts
from blackjax_ext.adaptation.windows import AdaptState
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.precision import NOISE_RESOLUTION, OF_SHAPES

STILL = 200  # steps without a move, after which a chain that samples is said to be stuck
SIGN = (
    "Is its sign right (the log density; minus it where a potential energy is asked for), and are "
    "all priors proper?"
)
# R-hat of the last window, above which chains are said to disagree. With two effective draws of
# each of four chains the worst of a thousand coordinates has 1.9 by chance.
MAX_R_HAT = 2.5

SiteSizes: TypeAlias = tuple[tuple[str, int], ...]  # leaves: names, and numbers of coordinates


class Health(NamedTuple):
    """Diagnostics of the chains in the last window of a warm-up.

    is_frozen
        Whether each moved in fewer than 2 % of the steps, shape (C,).
    share_moved, rate
        Share of the steps in which each moved, and its acceptance probability of late, (C,).
    num_steps
        Steps of the window.
    jump
        Root of the mean square of a move, per whitened coordinate.
    num_effective
        Effective draws of each chain in the window.
    step_size
        The step size that is kept.
    spread
        Distance of the chains from each other, in sds of the metric, in coordinates in which each
        chain moves well about a place of its own, else zero; shape (D,).
    means, variances
        Of each chain in the window, shape (C, D), and within the chains, shape (D,); NaN of a chain
        that has learned coordinates alone, in which it cannot be compared with others.
    reach
        Largest absolute value of a coordinate.
    logdensity
        Log density of the chain where it is nearest to zero.
    """

    is_frozen: Array
    share_moved: Array
    rate: Array
    num_steps: Array
    jump: Array
    num_effective: Array
    step_size: Array
    spread: Array
    means: Array
    variances: Array
    reach: Array
    logdensity: Array


class Hidden(NamedTuple):
    """Steps after the warm-up that began or tried to end where rounding hides an effect.

    num_hidden
        How many of each chain, (C,).
    num_steps
        Of how many.
    place
        The coordinate that was hidden last, (C,).
    size
        Its absolute value, (C,).
    """

    num_hidden: Any
    num_steps: Any
    place: Any
    size: Any

    @classmethod
    def first(cls, x: Array) -> "Hidden":
        """Record before any step, of chains at `x`, (C, D)."""
        zeros = partial(jnp.zeros, x.shape[0])
        return cls(zeros(int), jnp.zeros((), int), zeros(jnp.int32), zeros(x.dtype))

    def having(self, place: Array, x: Array, num_steps: Array) -> "Hidden":
        """Record with the last of `num_steps`, by chains at `x`, (C, D), and what it found, (C,).

        Steps of the warm-up, the last of which has the number 0, do not count.
        """
        is_hidden = (place >= 0) & (num_steps > 0)
        size = jnp.abs(jnp.take_along_axis(x, jnp.maximum(place, 0)[:, None], 1)[:, 0])
        return Hidden(
            self.num_hidden + is_hidden,
            jnp.maximum(num_steps, 0),
            jnp.where(is_hidden, place, self.place),
            jnp.where(is_hidden, size, self.size),
        )

    def of_all(self) -> "Hidden":
        """Facts of all chains on the host, (C,); states of one chain each may come stacked."""
        num_hidden, num_steps, place, size = (np.asarray(array) for array in self)
        return Hidden(num_hidden.ravel(), num_steps.max(), place.ravel(), size.ravel())

    @property
    def is_many(self) -> Array:
        """Whether chains, (C,), may miss what they could not enter or leave."""
        # of the steps after the warm-up: more than a few, and more than a share
        is_many: Array = (self.num_hidden > 5) & (self.num_hidden > 0.005 * self.num_steps)
        return is_many


def judge(state: AdaptState, logdensity: Array) -> Health:
    """Diagnose the chains, with log densities (C,), from the window of `state`."""
    motion = state.motion
    jump, num_effective = progress(state)
    means, variances = windows.chain_moments(state.metric, state.moments)
    if state.coordinates is not None and len(means) == 1:
        variances = jnp.full_like(variances, jnp.nan)
    return Health(
        windows.frozen(motion),
        motion.num_moved / jnp.maximum(motion.num_steps, 1),
        motion.rate,
        motion.num_steps,
        jump,
        num_effective,
        jnp.ravel(state.step_size)[0],
        distances_apart(state),
        means,
        variances,
        jnp.max(jnp.abs(state.moments.previous), initial=0.0),
        logdensity[jnp.argmin(jnp.abs(logdensity))],
    )


def distances_apart(state: AdaptState) -> Array:
    """Distance of the centres of chains that are apart, in marginal sds, shape (D,)."""
    metric, moments = state.metric, state.moments
    is_apart = windows.centres(metric, moments).is_apart
    inverse = metric.inverse()
    variances = jnp.diagonal(inverse) if inverse.ndim == 2 else inverse
    distance: Array = windows.chain_offsets(metric, moments).std(axis=0) / jnp.sqrt(variances)
    # sds between chains, below which one may only be in a heavy tail for a while
    return jnp.where(is_apart.any() & ~(distance <= 4.0), distance, 0.0)


def progress(state: AdaptState) -> tuple[Array, Array]:
    """Whitened length of a move per coordinate, and effective draws of a chain in the window."""
    moments, motion = state.moments, state.motion
    square = moments.jumps.mean() / moments.num_draws
    variance = windows.centres(state.metric, moments).variances.mean()
    weight = windows.shrinkage(variance, square, motion.num_steps.astype(square.dtype), 1.0)
    return jnp.sqrt(square), weight / jnp.maximum(1.0 - weight, 1e-6)


def is_bad(health: Health) -> Array:
    """Whether there is anything to say."""
    is_any: Array = (
        health.is_frozen.any()
        | has_collapsed(health)
        | exceeds(health.spread, 0.0).any()
        | exceeds(r_hat(health), MAX_R_HAT).any()
        | is_lost(health)
    )
    return is_any


def exceeds(value: Any, limit: Any) -> Any:
    """Whether a value is above its limit, or not a number: no check passes by a NaN."""
    return ~(value <= limit)


def r_hat(health: Health) -> Array:
    """R-hat of the window, shape (D,); 1 where it is too short to tell, or chains stand still."""
    means, within = health.means, health.variances
    if len(means) == 1:
        return jnp.ones_like(within)
    # rounding leaves of a chain that stands still what it pleases
    digit = jnp.finfo(within.dtype).eps * jnp.abs(means).max(axis=0)
    # variances are NaN where chains cannot be compared; means are not, or the chains are lost
    is_known = exceeds(within, digit**2) & (within == within)
    is_known &= health.num_steps >= windows.MIN_WINDOW
    ratio: Array = jnp.sqrt(1.0 + means.var(axis=0, ddof=1) / jnp.where(is_known, within, 1.0))
    return jnp.where(is_known, ratio, 1.0)


def is_lost(health: Health) -> Array:
    """Whether chains are where no posterior is, and all else that is said of them is beside it."""
    return has_run_away(health) | is_coarse(health.logdensity)


def has_run_away(health: Health) -> Array:
    """Whether chains are where the mass of no posterior is."""
    # power of the largest float, above which no coordinate of a posterior is
    is_near: Array = health.reach < float(jnp.finfo(health.reach.dtype).max) ** 0.3
    return ~is_near


def is_coarse(logdensity: Array) -> Array:
    """Whether log densities so large have too few digits to accept or reject by."""
    # a kernel whose tests read few rows knows no log density: its NaN says nothing
    # nats between log densities that are neighbours: no proposal can be judged by them
    return jnp.abs(logdensity) * jnp.finfo(logdensity.dtype).eps > 100.0


def has_collapsed(health: Health) -> Array:
    """Whether steps are too short to get anywhere."""
    is_long = health.num_steps >= windows.MIN_WINDOW
    # a move of a hundredth of a standard deviation is short, and five effective draws tell nothing
    return is_long & ~((health.jump >= 0.01) | (health.num_effective >= 5.0))


def warn(advice: str, health: Health, sites: SiteSizes) -> None:
    """Warn of chains that are frozen or apart, and of steps that have collapsed.

    Raises
    ------
    ValueError
        If they are where no posterior is.
    """
    health = on_host(health)
    if is_lost(health):
        raise ValueError(f"logdensity_fn: {lost_message(health)}")
    if not is_first_process():
        return
    for _, message in messages(health, 0, health.is_frozen.size):
        warnings.warn(f"{message} {advice}", stacklevel=2)
    if message := places_message(health, sites) or unmixed_message(health, sites):
        warnings.warn(message, stacklevel=2)


def warn_of_starts(starts: Starts, sites: SiteSizes) -> None:
    """Warn where paths to a start end in different places, and too few at the best of them."""
    starts = on_host(starts)
    if not starts.is_settled and is_first_process():
        best = np.max(starts.evidence, where=np.isfinite(starts.evidence), initial=-np.inf)
        message = rise_message(best) if is_coarse(best) else starts_message(starts, sites)
        warnings.warn(message, stacklevel=2)


def rise_message(evidence: Any) -> str:
    """That paths to a start have found no place that can be sampled."""
    return (
        f"paths to a start end where {digits_message(evidence)} and proposals are accepted by "
        f"rounding. {SIGN}"
    )


def starts_message(starts: Starts, sites: SiteSizes) -> str:
    """That it is not known where the mass is."""
    evidence = np.sort(starts.evidence[np.isfinite(starts.evidence)])[::-1]
    lesser = evidence[evidence < evidence[0] - negligible(starts.x[0])]
    names = names_of(sites, np.flatnonzero(starts.is_elsewhere))
    where = f" (they differ in {listed(names)})" if names else ""
    return (
        f"paths to a start end in different places: of {evidence.size}, "
        f"{evidence.size - lesser.size} found the best (log evidence about {evidence[0]:.1f}), the "
        f"others places that are lower by {evidence[0] - lesser[0]:.1f} to "
        f"{evidence[0] - lesser[-1]:.3g}{where}. There may be better "
        "places that none found. Chains start in more than one of these: trust them if R-hat is "
        "near 1, else give init_strategy or starts in the place that you mean, or sample with "
        "LangevinSMC."
    )


def messages(health: Health, first: int, num_chains: int) -> list[tuple[int, str]]:
    """Sentences on what is wrong with steps, each with the place of the chain in `health`.

    The chains of `health` are those from `first` on, of `num_chains` in all.
    """
    frozen = [int(c) for c in np.flatnonzero(health.is_frozen)]
    if not frozen and has_collapsed(health):
        return [(0, collapsed_message(health))]
    return [(c, frozen_message(health, c, name_of(first + c, num_chains))) for c in frozen]


def sites_of(position: Any) -> SiteSizes:
    """Name and number of coordinates of each leaf of positions with a leading axis."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(position)
    return tuple(
        (jax.tree_util.keystr(path, simple=True), math.prod(np.shape(leaf)[1:]))
        for path, leaf in leaves
    )


def names_of(sites: SiteSizes, places: Any) -> list[str]:
    """The sites of some coordinates, each once."""
    ends = np.cumsum([size for _, size in sites])
    indices = np.unique(np.searchsorted(ends, np.atleast_1d(places), side="right"))
    return [sites[i][0] or "position" for i in indices]


def listed(names: list[str], most: int = 5) -> str:
    """Names in a sentence, no more than `most` of them."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def places_message(health: Health, sites: SiteSizes) -> str:
    """That chains sample different places; empty if they do not, or no posterior is there."""
    is_elsewhere = exceeds(health.spread, 0.0)
    if not is_elsewhere.any() or is_lost(health):
        return ""
    names = names_of(sites, np.flatnonzero(is_elsewhere))
    return (
        f"chains do not mix: in the last {health.num_steps} steps of the warm-up each of them "
        f"moved about a place of its own, {health.spread.max():.1f} sds from the others (in "
        f"{listed(names)}). The share of draws in each place is not its probability. If the "
        "places are copies of one another, as of labels or angles, constrain the model to one of "
        "them, or trust only what is the same in all; if not, sample with LangevinSMC."
    )


def unmixed_message(health: Health, sites: SiteSizes) -> str:
    """That chains disagree, unless it is known why; empty if they do not."""
    r_hats, is_elsewhere = np.asarray(r_hat(health)), exceeds(health.spread, 0.0).any()
    is_known, is_bad = is_elsewhere or is_lost(health).any(), exceeds(r_hats, MAX_R_HAT)
    if is_known or health.is_frozen.any() or has_collapsed(health) or not is_bad.any():
        return ""
    worst = np.argsort(-r_hats, kind="stable")[: np.count_nonzero(is_bad)]
    names = list(dict.fromkeys(name for place in worst for name in names_of(sites, place)))
    return (
        f"chains disagree: in the last {health.num_steps} steps of the warm-up R-hat is "
        f"{r_hats.max():.2f} (worst in {listed(names)}). They have not reached the bulk of the "
        "posterior, or mix too slowly. Give a longer warm-up, another metric, or a model in other "
        "coordinates, and trust draws only if their own R-hat is near 1."
    )


def lost_message(health: Health) -> str:
    """That chains have gone where no posterior is."""
    value, reach, step_size = health.logdensity, health.reach, health.step_size
    if has_run_away(health):
        return (
            f"chains have run away, to coordinates of {reach:.1e} with a step size of "
            f"{step_size:.1e} and a log density of {value:.1e}, which does not fall there. {SIGN}"
        )
    return (
        f"{digits_message(value)} at all chains (coordinates up to {reach:.1e}, step size "
        f"{step_size:.1e}): rounding decides which proposals are accepted. {SIGN} If they are, "
        "give data or parameters other units, subtract a constant, or use float64."
    )


def digits_message(value: Any) -> str:
    """That a log density has too few digits."""
    digit = np.finfo(value.dtype).eps * abs(value)
    return f"the log density is {value:.1e}, which {value.dtype} keeps to {digit:.0e},"


def collapsed_message(health: Health) -> str:
    """That steps are too short."""
    return (
        f"steps have collapsed: in the last {health.num_steps} steps of the warm-up a step "
        f"moved a coordinate by {health.jump:.1e} of its scale (step size "
        f"{health.step_size:.1e}), and all of them are worth {health.num_effective:.1f} "
        "independent draws."
    )


def frozen_message(health: Health, c: int, name: str) -> str:
    """That chain `c` of these is frozen."""
    is_rescued = not health.is_frozen.all()
    then = "It was moved to where another chain is, and may freeze again. " if is_rescued else ""
    return (
        f"{name} is frozen: it moved in {100 * health.share_moved[c]:.1f} % of the last "
        f"{health.num_steps} steps of the warm-up, with acceptance probability "
        f"{health.rate[c]:.2f}. {then}Do not trust its draws."
    )


def stuck_message(c: int, num_chains: int, num_draws: int) -> str:
    """That chain `c` has not moved for long after the warm-up."""
    return (
        f"{name_of(c, num_chains)} has stuck while sampling: it did not move in {STILL} steps up "
        f"to draw {num_draws}. A region that it has not visited is missing from all of its draws, "
        "not only from these."
    )


def hidden_message(hidden: Hidden, sites: list[str]) -> str:
    """That chains have met effects of their `sites` that rounding hides."""
    c = int(np.argmax(hidden.num_hidden))
    size, site = hidden.size[c], sites[c]
    digit, dtype = np.finfo(size.dtype).eps * size, size.dtype
    return (
        f"rounding hides scales of {site}: {name_of(c, len(sites))} met them in "
        f"{hidden.num_hidden[c]} of {hidden.num_steps} steps. {site} has values near {size:.2g}, "
        f"where {dtype} numbers are {digit:.0e} apart, so that scales below about "
        f"{2 * digit / NOISE_RESOLUTION:.1g} cannot be sampled together with {site}, nor shapes "
        f"above about {1 / (OF_SHAPES * np.finfo(dtype).eps):.0e} of a beta or gamma law. These "
        "may be missing from the draws of all chains, with R-hat near 1. Use float64; or subtract "
        f"a constant from the data, so that {site} is near zero; or write {site} non-centred"
    )


def name_of(c: int, num_chains: int) -> str:
    """Chain `c` in a sentence."""
    return f"chain {c} of {num_chains} (counted from 0)" if num_chains > 1 else "a chain"
