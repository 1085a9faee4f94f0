"""What a warm-up tells of its chains when it ends, and the words to warn with."""

import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.mcmc.interweaving import RESOLUTION
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.warmup import windows
from blackjax_ext.warmup.windows import AdaptState

__all__ = [
    "STILL",
    "Health",
    "Hidden",
    "hidden_message",
    "is_bad",
    "judge",
    "messages",
    "stuck_message",
    "warn",
]

STILL = 200  # steps without a move, after which a chain that samples is said to be stuck
SHORT = 0.01  # of a standard deviation, below which a move is short
FEW = 5.0  # effective draws of a window, below which its chains tell nothing
# Steps after the warm-up that met what rounding hides: in number and share, when it is said
FEW_HIDDEN, SHARE_HIDDEN = 5, 0.005


class Health(NamedTuple):
    """How chains moved in the last window of a warm-up.

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
    """

    is_frozen: Array
    share_moved: Array
    rate: Array
    num_steps: Array
    jump: Array
    num_effective: Array
    step_size: Array


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
        """None yet, of chains at `x`, (C, D)."""
        zeros = jnp.zeros(x.shape[0], int)
        return cls(zeros, jnp.zeros((), int), zeros.astype(jnp.int32), jnp.zeros_like(x[:, 0]))

    def having(self, place: Array, x: Array, num_steps: Array) -> "Hidden":
        """With the last of `num_steps`, by chains at `x`, (C, D), with what it found, (C,).

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
        """The same on the host, (C,), also of states of one chain each that come stacked."""
        num_hidden, num_steps, place, size = (np.asarray(each) for each in self)
        return Hidden(num_hidden.ravel(), num_steps.max(), place.ravel(), size.ravel())

    @property
    def is_many(self) -> Array:
        """Whether chains, (C,), may miss what they could not enter or leave."""
        return (self.num_hidden > FEW_HIDDEN) & (self.num_hidden > SHARE_HIDDEN * self.num_steps)


def judge(state: AdaptState) -> Health:
    """How the chains moved in the window that `state` has seen."""
    motion = state.motion
    jump, num_effective = progress(state)
    return Health(
        windows.frozen(motion),
        motion.num_moved / jnp.maximum(motion.num_steps, 1),
        motion.rate,
        motion.num_steps,
        jump,
        num_effective,
        jnp.ravel(state.step_size)[0],
    )


def progress(state: AdaptState) -> tuple[Array, Array]:
    """Whitened length of a move per coordinate, and effective draws of a chain in the window."""
    moments, motion = state.moments, state.motion
    n = moments.num_draws
    covariance = state.metric.covariance(moments.second / n, moments.first / n)
    variance, square = state.metric.variances(covariance).mean(), moments.jumps.mean() / n
    weight = windows.shrinkage(variance, square, motion.num_steps.astype(square.dtype), 1.0)
    return jnp.sqrt(square), weight / jnp.maximum(1.0 - weight, 1e-6)


def is_bad(health: Health) -> Array:
    """Whether there is anything to say."""
    return health.is_frozen.any() | has_collapsed(health)


def has_collapsed(health: Health) -> Array:
    """Whether steps are too short to get anywhere."""
    is_long = health.num_steps >= windows.MIN_WINDOW
    return is_long & (health.jump < SHORT) & (health.num_effective < FEW)


def warn(advice: str, health: Health) -> None:
    """Warn of frozen chains and of steps that have collapsed."""
    health = on_host(health)
    if not is_first_process():
        return
    for _, message in messages(health, 0, health.is_frozen.size):
        warnings.warn(f"{message} {advice}", stacklevel=2)


def messages(health: Health, first: int, num_chains: int) -> list[tuple[int, str]]:
    """What is wrong, in sentences, with the place of the chain in `health`.

    The chains of `health` are those from `first` on, of `num_chains` in all.
    """
    frozen = [int(c) for c in np.flatnonzero(health.is_frozen)]
    if not frozen and has_collapsed(health):
        return [(0, collapsed_message(health))]
    return [(c, frozen_message(health, c, name_of(first + c, num_chains))) for c in frozen]


def collapsed_message(health: Health) -> str:
    """That steps are too short."""
    return (
        f"steps have collapsed: in the last {health.num_steps} steps of the warm-up a step "
        f"moved a coordinate by {health.jump:.1e} of its scale (step size "
        f"{health.step_size:.1e}), and they give {health.num_effective:.1f} independent draws."
    )


def frozen_message(health: Health, c: int, name: str) -> str:
    """That chain `c` of these is frozen."""
    is_rescued = not health.is_frozen.all()
    then = "It was put back where another chain is, and may freeze again. " if is_rescued else ""
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
        f"which {dtype} keeps to {digit:.0e}, and moves of a scale together with {site} do not "
        f"enter or leave scales below about {2 * digit / RESOLUTION:.1g}. These may be missing "
        "from the draws of all chains, with R-hat near 1. Use float64; or centre the location of "
        f"{site}, by subtracting a constant from the data; or write {site} non-centred"
    )


def name_of(c: int, num_chains: int) -> str:
    """Chain `c` in a sentence."""
    return f"chain {c} of {num_chains} (counted from 0)" if num_chains > 1 else "a chain"
