"""Warnings of a run about its chains: what is noticed in a step, and what is said of it."""

import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.adaptation.windows import AdaptState
from blackjax_ext.meshes import is_first_process
from numpyro_fwd.kernels.notices import Notice, is_concrete
from numpyro_fwd.kernels.same_data import check_data

HOW = "(numpyro.enable_x64() before anything else; numpyro.infer.reparam.LocScaleReparam(0))."


class OfChains(NamedTuple):
    """Facts of the :class:`~numpyro_fwd.kernels.notices.Notice` of vectorized chains, or of one.

    run
        Numbers of the key that the run began with, shape (2,): two runs say the same twice.
    health
        How the chains moved in the end of the warm-up, once it has ended.
    stuck_at
        Draw at which each chain had last stood still for too long, -1 for never, shape (C,).
    has_other_data
        Whether a step was given other data than those that the state was made with: an error.
    hidden
        Steps that met effects that rounding hides.
    """

    run: Array
    health: report.Health
    stuck_at: Array
    has_other_data: Array
    hidden: report.Hidden


def noticing_chains(rng_key: Array, adapt_state: AdaptState, inner: Any, advice: str) -> Notice:
    """Record before any event, of chains with keys (C,) and states `inner`, axis C first."""
    facts = OfChains(
        run=jnp.asarray(jax.random.key_data(rng_key[0])),
        health=jax.tree.map(jnp.zeros_like, report.judge(adapt_state, inner.logdensity)),
        stuck_at=jnp.full(rng_key.shape[0], -1),
        has_other_data=jnp.array(False),
        hidden=report.Hidden.first(ravel_each(inner.position, rng_key.shape[0])),
    )
    return Notice.first(facts, Words(advice, report.sites_of(inner.position)))


def of_the_warmup(notice: Notice, adapt_state: AdaptState, logdensity: Array) -> Notice:
    """Record with the diagnostics of the last window, of chains with log densities (C,)."""
    health = report.judge(adapt_state, logdensity)
    return notice.having(report.is_bad(health), health=health)


def of_stuck(notice: Notice, num_still: Array, num_draws: Array) -> Notice:
    """Record with the chains that have just stood still too long, `num_still` steps each."""
    is_stuck = jnp.ravel(num_still) == report.STILL
    stuck_at = jnp.where(is_stuck, num_draws, notice.facts.stuck_at)
    return notice.having(is_stuck.any(), stuck_at=stuck_at)


def of_hidden(notice: Notice, place: Array, x: Array, num_steps: Array) -> Notice:
    """Record with the last of `num_steps` after the warm-up: see :class:`report.Hidden`."""
    hidden = notice.facts.hidden.having(place, x, num_steps)
    return notice.having(hidden.is_many.any(), hidden=hidden)


@dataclass(frozen=True)
class Words:
    """What speaks of chains, with text that is known before the run.

    advice
        What to do about chains that do not move.
    sites
        Names of the leaves of a position, each with its number of coordinates.
    """

    advice: str
    sites: report.SiteSizes

    def __call__(self, facts: OfChains) -> None:
        """Warn of what has not been said, with the advice once for all chains that do not move.

        Raises
        ------
        ValueError
            For a state that was made with other data.
        """
        check_data(facts.has_other_data)
        if not is_first_process():
            return
        new = {note: text for note, text in notes(facts, self.sites) if note not in said}
        said.extend(new)
        does_move = all(isinstance(kind, str) for _, kind, _ in new)
        if new:
            advice = [] if does_move else [self.advice]
            warnings.warn("\n".join([*new.values(), *advice]), stacklevel=2)


# the run, what is said (a number for a chain that does not move), and the number of the chain
Note: TypeAlias = tuple[bytes, int | str, int]

# what has been said lately: a state comes back many times, from each step of a progress bar
said: deque[Note] = deque(maxlen=1000)


def notes(facts: OfChains, sites: report.SiteSizes) -> Iterator[tuple[Note, str]]:
    """All notes; sequential and parallel chains come stacked."""
    run, health, stuck_at = jax.tree.map(np.asarray, (facts.run, facts.health, facts.stuck_at))
    together = health if run.ndim == 1 else merged_health(health)
    if run.ndim == 1:
        run, health = jax.tree.map(lambda leaf: leaf[None], (run, health))
        stuck_at = stuck_at[None]
    for s in range(len(run)):  # states: of each chain, or of all
        state = run[s].tobytes()
        one: Any = jax.tree.map(lambda leaf: leaf[s], health)  # noqa: B023
        yield from notes_of(state, one, stuck_at[s], s, stuck_at.size)
        if text := report.places_message(one, sites):
            yield (state, "places", 0), text
    if text := report.unmixed_message(together, sites):
        yield (run[0].tobytes(), "unmixed", 0), text
    hidden = facts.hidden.of_all()
    if hidden.is_many.any():
        names = [report.names_of(sites, place)[0] for place in hidden.place]
        state = run[np.argmax(hidden.num_hidden) % len(run)].tobytes()
        yield (state, "hidden", 0), f"{report.hidden_message(hidden, names)} {HOW}"


def notes_of(
    run: bytes, health: Any, stuck_at: Any, first: int, num_chains: int
) -> Iterator[tuple[Note, str]]:
    """Notes on the chains of one state, of which the first has the number `first`."""
    # a state says nothing of its warm-up before that has ended
    if health.num_steps and report.is_lost(health):
        yield (run, "lost", 0), report.lost_message(health)
        return
    for c, text in report.messages(health, first, num_chains):
        yield (run, 0, c), text
    for c, draw in enumerate(stuck_at.tolist()):
        if draw >= 0:
            yield (run, 1 + draw, c), report.stuck_message(first + c, num_chains, draw)


def merged_health(health: Any) -> Any:
    """Health of chains that ran one by one, as if they had run together."""
    return health._replace(
        num_steps=health.num_steps.min(),
        jump=health.jump.max(),
        num_effective=health.num_effective.max(),
        means=health.means[:, 0],
        variances=health.variances.mean(axis=0),
    )


def forget(notice: Notice) -> None:
    """A run begins: it says again what another one with the same key has said."""
    if is_concrete(notice.facts.run):
        run = np.asarray(notice.facts.run).tobytes()
        for note in [note for note in said if note[0] == run]:
            said.remove(note)
