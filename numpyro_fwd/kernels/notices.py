"""What a run noticed is said on the host when its state comes out of a program: by one class.

NumPyro gives a kernel no better moment. Its MCMC calls a kernel before its loop, while the loop is
traced, and for the text of a progress bar; after the loop it calls nothing of it. A callback could
speak from within the loop. But JAX keeps no program with a callback in its compilation cache, so
that every process would compile the loop anew. What remains is the moment at which JAX puts the
state together from the arrays that a program returned: ``tree_unflatten`` of a class of pytrees.

It is also called while programs are traced, with arrays that have no values, and by all who map the
leaves of a state to others. So nothing is said unless all leaves are arrays with values, and the
number of events is one that a program of ours returned.

What is noticed are data of a run that are not those which a kernel, or the state it goes on from,
knows, and chains that do not move or do not agree.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.adaptation.windows import AdaptState
from blackjax_ext.meshes import everywhere, is_first_process
from numpyro_fwd.bridge.fingerprints import Fingerprint, is_other, mutable_arrays
from numpyro_fwd.bridge.numpyro_private import give_arguments, not_jax_tracer
from numpyro_fwd.disk import OnDisk
from numpyro_fwd.kernels.running_mcmc import running_mcmc
from numpyro_fwd.types import Args, Kwargs

NOTHING = 0x5EA10000  # the number of events of a state of which nothing is to be said


@jax.tree_util.register_pytree_node_class
class Notice:
    """A record in the state of a run, which speaks when it comes out of a program.

    Attributes
    ----------
    num_events
        NOTHING and the number of events: nothing else is looked at while there is none.
    facts
        What was noticed: a NamedTuple of arrays.
    speak
        Called with the facts after an event, to warn or to raise. Static, so that it is a function
        or compares by its value.
    """

    def __init__(self, num_events: Any, facts: Any, speak: Callable[[Any], None]):
        self.num_events = num_events
        self.facts = facts
        self.speak = speak

    @classmethod
    def first(cls, facts: Any, speak: Callable[[Any], None]) -> "Notice":
        """Record before any event."""
        # the carry of a loop may stay divided as it was at first
        return cls(jnp.array(NOTHING, int), facts, speak).everywhere()

    def having(self, is_event: Array, **facts: Any) -> "Notice":
        """Record with these facts, which are an event or none."""
        num_events = self.num_events + jnp.asarray(is_event, int)
        # here already: XLA gives the carry of a loop the sharding of what a branch computes
        return Notice(num_events, self.facts._replace(**everywhere(facts)), self.speak)

    def everywhere(self) -> "Notice":
        """Record with all arrays on each device, so that each process can read it."""
        num_events, facts = everywhere((self.num_events, self.facts))
        return Notice(num_events, facts, self.speak)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Callable[[Any], None]]:
        """Arrays, and what speaks as static data."""
        return (self.num_events, self.facts), self.speak

    @classmethod
    def tree_unflatten(cls, speak: Callable[[Any], None], children: tuple[Any, Any]) -> "Notice":
        """Rebuild the record, and say what there is to say."""
        notice = cls(*children, speak)
        # all of it, or the first process alone would fail where it reads what others hold
        if all(map(is_concrete, jax.tree.leaves(children))) and is_ours(notice.num_events):
            # chains that ran alone come stacked: they may disagree where none has an event
            if is_said(notice.num_events) or np.ndim(notice.num_events) == 1:
                speak(notice.facts)
        return notice


def is_said(events: Any) -> bool:
    """Whether a program of ours returned a number of events that is not NOTHING.

    A state is a pytree, whose leaves anyone may map to others. What the functions of ``jax.tree``
    make of NOTHING is a boolean, or far from it, and says nothing.
    """
    return is_ours(events) and bool(np.any(np.asarray(events) > NOTHING))


def is_ours(events: Any) -> bool:
    """Whether a program of ours returned this number of events."""
    if not is_concrete(events) or not jnp.issubdtype(events.dtype, jnp.integer):
        return False
    numbers = np.asarray(events)
    return bool(np.all((numbers >= NOTHING) & (numbers < NOTHING + 2**28)))


def is_concrete(x: Any) -> bool:
    """Whether `x` is an array with values: what is traced has none, nor what was given away."""
    if not isinstance(x, Array) or not not_jax_tracer(x):
        return False
    return (x.is_fully_addressable or x.is_fully_replicated) and not x.is_deleted()


OTHER_DATA = (
    "the state that is resumed was made with other data: the log density in it, and what its "
    "chains share, are not those of these arguments. Run the warm-up on them, "
    "mcmc.post_warmup_state = None; or keep step size and metric, mcmc.post_warmup_state = "
    "mcmc.sampler.refresh(mcmc.last_state, args, kwargs), unless chains share an expansion or an "
    "emulator; or pass the arguments that the state was made with."
)
OTHER_PARTICLES = (
    "the particles that are resumed were annealed to other data, to which their evidence belongs. "
    "Anneal to these data from the prior, mcmc.post_warmup_state = None, or pass the arguments "
    "that the state was made with."
)


class InPlace:
    """Notices arrays of NumPy that were changed in place between two runs of a kernel.

    NumPyro keeps its loop by the identity of the arguments, and JAX what it has made of them, with
    the numbers that they held then.

    Attributes
    ----------
    has_changed
        Whether there were any.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[int, ...], int] | None = None  # the arrays, and their checksum
        self.has_changed = False

    def as_they_are(
        self, digest: Fingerprint, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[tuple[Any, ...], Any]:
        """Arguments, as new objects once an array has changed; those of the running MCMC, too."""
        arrays = mutable_arrays(model_args, model_kwargs)
        if not arrays or isinstance(digest.whole, jax.core.Tracer):
            return model_args, model_kwargs
        last, self._last = self._last, (arrays, int(digest.whole))
        if last is not None and last[0] == arrays and last != self._last:
            self.has_changed = True
        if not self.has_changed:
            return model_args, model_kwargs
        new = as_new((model_args, model_kwargs))
        if (mcmc := running_mcmc()) is not None:
            give_arguments(mcmc, *new)
        return new


class OfParticles(NamedTuple):
    """Facts of the :class:`~numpyro_fwd.kernels.notices.Notice` of a population on its data.

    made
        Fingerprint of the data that it was made with.
    has_other_data
        Whether a step was given others: an error once the state comes out of a program.
    """

    made: Fingerprint
    has_other_data: Array


def noticing_data(made: Fingerprint) -> Notice:
    """Record of the data of a population, before any step."""
    return Notice.first(OfParticles(made, jnp.array(False)), check_particles)


def compared(notice: Notice, made: Fingerprint, model_args: Args, model_kwargs: Any) -> Notice:
    """Record with whether these arguments are others than those of the fingerprint `made`."""
    is_new = is_other(made, model_args, model_kwargs)
    return notice.having(is_new, has_other_data=notice.facts.has_other_data | is_new)


def check_particles(facts: OfParticles) -> None:
    """Raise ValueError for particles that were annealed to other data."""
    if np.any(facts.has_other_data):
        raise ValueError(OTHER_PARTICLES)


def check_data(has_other: Any) -> None:
    """Raise ValueError for a state that was made with other data; what is traced passes."""
    if is_concrete(has_other) and np.any(has_other):
        raise ValueError(OTHER_DATA)


def as_new(arguments: Any) -> Any:
    """Arrays of NumPy and rows on disk as other objects that hold the same."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf.view()
        return leaf.renewed() if isinstance(leaf, OnDisk) else leaf

    return jax.tree.map(one, arguments, is_leaf=lambda leaf: isinstance(leaf, OnDisk))


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
