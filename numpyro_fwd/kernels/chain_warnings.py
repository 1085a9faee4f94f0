"""Warnings of a run about its chains, given on the host when its state comes out of a program.

A callback could say it from within the compiled loop. But JAX keeps no program with a callback in
its compilation cache, so that every process, and every run, would compile the loop anew. The state
carries what was noticed instead. It is said when JAX puts the state together from the arrays that a
program returned: in ``tree_unflatten``, which is also called while programs are traced, with none.
"""

import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.adaptation.windows import AdaptState
from blackjax_ext.meshes import everywhere, is_first_process
from numpyro_fwd.kernels.same_data import NOTHING, check_data, is_concrete, is_ours, is_said

__all__ = ["Noticed", "forget"]

# what a program carries of it
CHAIN_ARRAYS = ("num_events", "run", "health", "stuck_at", "has_other_data", "hidden")
# kinds of notes that are not of chains that do not move
HIDDEN, PLACES, AWAY, UNMIXED = -1, -2, -3, -4
HOW = "(numpyro.enable_x64() before anything else; numpyro.infer.reparam.LocScaleReparam(0))."


class Words(NamedTuple):
    """Text of the warnings that is known before the run.

    advice
        What to do about chains that do not move.
    sites
        Names of the leaves of a position, each with its number of coordinates.
    """

    advice: str
    sites: report.SiteSizes


Note: TypeAlias = tuple[bytes, int, int]  # the run, the kind of what is said, and its number

# what has been said lately: a state comes back many times, from each step of a progress bar
said: deque[Note] = deque(maxlen=1000)


@jax.tree_util.register_pytree_node_class
class Noticed:
    """Record of what a run noticed of its vectorized chains, or of one chain.

    Attributes
    ----------
    num_events
        NOTHING and the number of events: nothing else is looked at while there is none.
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
    words
        What sentences need besides.
    """

    def __init__(
        self,
        num_events: Any,
        run: Any,
        health: Any,
        stuck_at: Any,
        has_other_data: Any,
        hidden: Any,
        words: Words,
    ):
        self.num_events = num_events
        self.run = run
        self.health = health
        self.stuck_at = stuck_at
        self.has_other_data = has_other_data
        self.hidden = hidden
        self.words = words

    @classmethod
    def first(cls, rng_key: Array, adapt_state: AdaptState, inner: Any, advice: str) -> "Noticed":
        """Record before any event, of chains with keys (C,) and states `inner`, axis C first."""
        position = inner.position
        health = jax.tree.map(jnp.zeros_like, report.judge(adapt_state, inner.logdensity))
        stuck_at = jnp.full(rng_key.shape[0], -1)
        run = jnp.asarray(jax.random.key_data(rng_key[0]))
        words = Words(advice, report.sites_of(position))
        hidden = report.Hidden.first(ravel_each(position, rng_key.shape[0]))
        nothing, no = jnp.array(NOTHING, int), jnp.array(False)
        first = cls(nothing, run, health, stuck_at, no, hidden, words)
        # the carry of a loop may stay divided as it was at first
        return first.everywhere()

    def of_the_warmup(self, adapt_state: AdaptState, logdensity: Array) -> "Noticed":
        """Record with the diagnostics of the last window, of chains with log densities (C,)."""
        health = report.judge(adapt_state, logdensity)
        return self.having(report.is_bad(health), health=health)

    def of_stuck(self, num_still: Array, num_draws: Array) -> "Noticed":
        """Record with the chains that have just stood still too long, `num_still` steps each."""
        is_stuck = jnp.ravel(num_still) == report.STILL
        return self.having(is_stuck.any(), stuck_at=jnp.where(is_stuck, num_draws, self.stuck_at))

    def of_hidden(self, place: Array, x: Array, num_steps: Array) -> "Noticed":
        """Record with the last of `num_steps` after the warm-up: see :class:`report.Hidden`."""
        hidden = self.hidden.having(place, x, num_steps)
        return self.having(hidden.is_many.any(), hidden=hidden)

    def of_data(self, is_other: Array) -> "Noticed":
        """Record with whether the data are others than those of the state."""
        return self.having(is_other, has_other_data=self.has_other_data | is_other)

    def having(self, is_event: Array, **facts: Any) -> "Noticed":
        """Record with these facts, which are an event or none."""
        num_events = self.num_events + jnp.asarray(is_event, int)
        # here already: XLA gives the carry of a loop the sharding of what a branch computes
        return Noticed(**{**vars(self), "num_events": num_events, **everywhere(facts)})

    def tree_flatten(self) -> tuple[tuple[Any, ...], Words]:
        """Arrays, and the text as static data."""
        return tuple(getattr(self, name) for name in CHAIN_ARRAYS), self.words

    @classmethod
    def tree_unflatten(cls, words: Words, children: tuple[Any, ...]) -> "Noticed":
        """Rebuild the state, and say what there is to say."""
        noticed = cls(**dict(zip(CHAIN_ARRAYS, children, strict=True)), words=words)
        # all of it, or the first process alone would fail where it reads what others hold
        is_all = all(map(is_concrete, jax.tree.leaves(children)))
        if not is_all:
            return noticed
        if is_said(noticed.num_events):
            check_data(noticed.has_other_data)
            noticed.say()
        elif np.ndim(noticed.num_events) == 1 and is_ours(noticed.num_events):
            noticed.say()  # chains that ran alone: they may disagree
        return noticed

    def everywhere(self) -> "Noticed":
        """Record with all arrays on each device, so that each process can read it."""
        return Noticed(
            **everywhere({name: getattr(self, name) for name in CHAIN_ARRAYS}), words=self.words
        )

    def say(self) -> None:
        """Warn of what has not been said, with the advice once for all chains that do not move."""
        if not is_first_process():
            return
        new = {note: text for note, text in self.notes() if note not in said}
        said.extend(new)
        does_move = all(kind < 0 for _, kind, _ in new)
        if new:
            advice = [] if does_move else [self.words.advice]
            warnings.warn("\n".join([*new.values(), *advice]), stacklevel=2)

    def notes(self) -> Iterator[tuple[Note, str]]:
        """All notes; sequential and parallel chains come stacked."""
        facts = self.run, self.health, self.stuck_at
        run, health, stuck_at = jax.tree.map(np.asarray, facts)
        if run.ndim == 1:
            yield from notes_of(run, health, stuck_at, 0, stuck_at.size)
            yield from notes_of_places(run, health, self.words.sites)
            yield from notes_of_disagreement(run, health, self.words.sites)
        else:
            for c in range(len(run)):
                one = jax.tree.map(partial(take, c), health)
                yield from notes_of(run[c], one, stuck_at[c], c, len(run))
                yield from notes_of_places(run[c], one, self.words.sites)
            yield from notes_of_disagreement(run[0], merged_health(health), self.words.sites)
        hidden = self.hidden.of_all()
        if hidden.is_many.any():
            sites = [report.names_of(self.words.sites, place)[0] for place in hidden.place]
            runs = run.reshape(-1, run.shape[-1])  # of each chain, or of all
            run = runs[np.argmax(hidden.num_hidden) % len(runs)]
            yield (run.tobytes(), HIDDEN, 0), f"{report.hidden_message(hidden, sites)} {HOW}"


def notes_of(
    run: Any, health: Any, stuck_at: Any, first: int, num_chains: int
) -> Iterator[tuple[Note, str]]:
    """Notes on the chains of one state, of which the first has the number `first`."""
    # a state says nothing of its warm-up before that has ended
    if health.num_steps and report.is_lost(health):
        yield (run.tobytes(), AWAY, 0), report.lost_message(health)
        return
    for c, text in report.messages(health, first, num_chains):
        yield (run.tobytes(), 0, c), text
    for c, draw in enumerate(stuck_at.tolist()):
        if draw >= 0:
            yield (run.tobytes(), 1 + draw, c), report.stuck_message(first + c, num_chains, draw)


def notes_of_places(run: Any, health: Any, sites: report.SiteSizes) -> Iterator[tuple[Note, str]]:
    """Notes on where the chains of one state are."""
    if (health.spread > 0).any() and not report.is_lost(health):
        yield (run.tobytes(), PLACES, 0), report.places_message(health, sites)


def notes_of_disagreement(
    run: Any, health: Any, sites: report.SiteSizes
) -> Iterator[tuple[Note, str]]:
    """Notes on how far apart chains are, unless it has been said where they are."""
    if (health.spread > 0).any() or report.is_lost(health).any():
        return
    if message := report.unmixed_message(health, sites):
        yield (run.tobytes(), UNMIXED, 0), message


def merged_health(health: Any) -> Any:
    """Health of chains that ran one by one, as if they had run together."""
    return health._replace(
        num_steps=health.num_steps.min(),
        jump=health.jump.max(),
        num_effective=health.num_effective.max(),
        means=health.means[:, 0],
        variances=health.variances.mean(axis=0),
    )


def take(c: int, leaf: np.ndarray) -> np.ndarray:
    """The part of chain `c`."""
    return leaf[c]


def forget(noticed: "Noticed") -> None:
    """A run begins: it says again what another one with the same key has said."""
    if is_concrete(noticed.run):
        run = np.asarray(noticed.run).tobytes()
        for note in [note for note in said if note[0] == run]:
            said.remove(note)
