"""A run, piece by piece: between two pieces it is said how far it is, and a stop is heard.

Draws stay in a room on the device until they are taken out, with their sites, by what keeps them:
memory, or a folder.
"""

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from numpyro_fwd.bridge.numpyro_private import nested_attrgetter
from numpyro_fwd.mcmc.convergence import Convergence, Until, Worst, next_look
from numpyro_fwd.mcmc.handle import Control
from numpyro_fwd.mcmc.memory import by_name, latents
from numpyro_fwd.mcmc.programs import Chains, Collected
from numpyro_fwd.mcmc.progress import Line, Progress
from numpyro_fwd.types import SiteValues

PIECE_SECONDS = 0.3  # of a piece: what Ctrl-C and the line wait for
FIRST_PIECE = 4  # steps, of which it is not known how long they take
LOOKING = 0.02  # of the time, that estimates may take which are only shown
WATCHED = ("diverging", "num_steps")  # fields that are counted for the line


class Plan(NamedTuple):
    """Which steps of a run are what.

    num_warmup
        Steps before those of the draws.
    skipped
        Further steps before those of the first draw, which thinning leaves over.
    thinning
        Steps of a draw.
    num_draws
        Draws of each chain at the end; None if goals or time decide.
    """

    num_warmup: int
    skipped: int
    thinning: int
    num_draws: int | None

    @property
    def num_steps(self) -> int | None:
        """Steps at the end, if that is known."""
        return None if self.num_draws is None else self.steps(self.num_draws)

    def steps(self, num_draws: int) -> int:
        """Steps of a run with so many draws of each chain."""
        return self.num_warmup + self.skipped + self.thinning * num_draws

    def draws(self, num_steps: int) -> int:
        """Draws of each chain after so many steps."""
        return max(num_steps - self.steps(0), 0) // self.thinning


class Done(NamedTuple):
    """How far a run is.

    steps
        Steps, of the warm-up and of draws.
    draws
        Draws of each chain that were taken out of the room.
    seconds
        Seconds in pieces.
    pace
        Seconds of a step, the slower of the last two pieces'.
    longest
        Steps of the longest piece.
    """

    steps: int = 0
    draws: int = 0
    seconds: float = 0.0
    pace: float = 0.0
    longest: int = 0


class Keeper(Protocol):
    """What keeps draws.

    Attributes
    ----------
    seconds
        Between two times that the room is emptied, at most.
    """

    seconds: float

    def take(self, found: dict[str, Any], state: Any, done: Done) -> None:
        """Keep draws (C, n, ...) by field, none or some; the run is so far, in this state."""

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a site, (C, n, ...), evenly spaced."""


class Loop:
    """A run of chains.

    Parameters
    ----------
    chains
        The chains.
    collected
        What is collected of them.
    plan, until
        Which steps are what, and when it ends.
    keeper
        What keeps the draws.
    control
        Whether somebody stops or pauses it.
    callback
        ``callback(progress)`` after each piece; its errors end the run.
    """

    def __init__(
        self,
        chains: Chains,
        collected: Collected,
        plan: Plan,
        until: Until,
        keeper: Keeper,
        control: Control,
        callback: Callable[[Progress], Any] | None = None,
    ):
        self.chains, self.collected, self.plan, self.until = chains, collected, plan, until
        self.keeper, self.control, self.callback = keeper, control, callback
        self.error: Exception | None = None
        self.worst, self.looked, self.looking = Worst(), -1, 0.0
        self.counted, self.divergences, self.num_steps = 0, 0, 0.0

    def begin(self, state: Any) -> None:
        """Take chains before their first step."""
        self.room = self.chains.room(state, self.collected)
        self.programs = self.chains.programs(self.collected, state, self.room)
        self.go_on_from(state, Done())

    def go_on_from(self, state: Any, done: Done) -> None:
        """Take chains that are so far."""
        self.state, self.done, self.first_draws = state, done, done.draws

    def arguments(self, stop: int) -> tuple[Any, ...]:
        """Arguments of the program that goes on to a step."""
        first = self.plan.steps(self.done.draws)
        return self.chains.split.arrays, self.state, self.room, self.done.steps, stop, first

    @property
    def step_as_traced(self) -> Any:
        """The program of steps, as JAX traced it."""
        return self.programs.advance.traced(*self.arguments(self.done.steps)).jaxpr

    @property
    def shapes(self) -> dict[str, Any]:
        """Shapes of draws as they are kept, by field."""
        arrays = self.chains.split.arrays
        found = self.programs.finish.traced(arrays, self.room, 0).out_info
        return dict(zip(self.collected.fields, found, strict=True))

    def go(self, line: Line, phase: str | None = None) -> str:
        """Go on piece after piece, and say what ended it."""
        self.advance(self.done.steps)  # compiles, as the next line does
        self.finished(0)
        self.begun = self.emptied = time.monotonic()
        while not (reason := self.reason_to_stop()):
            self.timed(self.next_stop())
            new = self.take_out() if self.is_taken_out() else {}
            self.tell(line, phase, new)
            self.control.wait()
        self.take_out()
        if self.until.has_goals and reason != "goal" and self.done.draws:
            self.worst = self.convergence.all(self.done.draws)
        line.least = 0.0
        if line.is_shown:
            self.show(line, self.progress(phase, {}))
        return reason

    @cached_property
    def convergence(self) -> Convergence:
        """Estimates for what is sampled."""
        field, num_chains = self.chains.kernel.sample_field, self.chains.mcmc.num_chains
        names = latents(nested_attrgetter(field)(self.state), by_name(self.shapes[field]))
        return Convergence(self.keeper, names, self.until, num_chains)

    @property
    def elapsed(self) -> float:
        """Seconds since the first piece."""
        return time.monotonic() - self.begun

    def reason_to_stop(self) -> str:
        """Why it ends here, or nothing."""
        until = self.until
        if self.is_at_end:
            return "max_draws"
        if self.is_at_goal():
            return "goal"
        if until.seconds is not None and self.elapsed >= until.seconds:
            return "seconds"
        return "stopped" if self.control.is_stopped else ""

    @property
    def is_at_end(self) -> bool:
        """Whether all draws are there."""
        return self.plan.num_steps is not None and self.done.steps >= self.plan.num_steps

    def is_at_goal(self) -> bool:
        """Whether the goals are reached, where they are looked at."""
        num_draws = self.done.draws
        is_here = num_draws > self.looked and self.done.steps == self.plan.steps(num_draws)
        if not (self.until.has_goals and is_here and next_look(num_draws - 1) == num_draws):
            return False
        self.looked = num_draws
        is_reached, self.worst = self.convergence.is_reached(num_draws)
        return is_reached

    def next_stop(self) -> int:
        """The step after which the next piece ends."""
        done, plan, until = self.done, self.plan, self.until
        seconds = PIECE_SECONDS
        if until.seconds is not None:
            seconds = min(seconds, until.seconds - self.elapsed)
        most = FIRST_PIECE
        if done.longest:
            # no more than eight times the longest piece so far
            most = min(8 * done.longest, int(seconds / max(done.pace, 1e-9)))
        end = done.steps + max(most, 1)
        if done.steps < plan.num_warmup:
            return min(end, plan.num_warmup)
        num_draws, room = plan.draws(done.steps), self.collected.room
        ends = [done.draws + room - done.draws % room]  # where a file of draws does, too
        ends += [] if plan.num_draws is None else [plan.num_draws]
        ends += [next_look(num_draws)] if until.has_goals else []
        return min(end, *map(plan.steps, ends))

    def timed(self, stop: int) -> None:
        """Go on to a step."""
        begun = time.monotonic()
        self.advance(stop)
        took, num_steps = time.monotonic() - begun, stop - self.done.steps
        self.done = self.done._replace(
            steps=stop,
            seconds=self.done.seconds + took,
            pace=max(took / num_steps, self.done.pace / 2),
            longest=max(num_steps, self.done.longest),
        )

    def advance(self, stop: int) -> None:
        """Have the state and the room after a step."""
        self.state, self.room = self.programs.advance(*self.arguments(stop))
        jax.block_until_ready(self.state)

    def is_taken_out(self) -> bool:
        """Whether the room is emptied now."""
        num_draws, room = self.plan.draws(self.done.steps), self.collected.room
        if time.monotonic() - self.emptied >= self.keeper.seconds:
            return True
        if num_draws == self.done.draws:
            return False
        is_full = num_draws - self.done.draws >= room - self.done.draws % room
        is_look = self.until.has_goals and next_look(num_draws - 1) == num_draws
        is_shown = self.chains.mcmc.progress_bar and self.may_look()
        is_wanted = self.callback is not None or self.control.is_watched
        return is_full or is_look or is_shown or is_wanted or self.is_at_end

    def take_out(self) -> SiteValues:
        """Empty the room: the new draws by site."""
        num_draws = self.plan.draws(self.done.steps) - self.done.draws
        found, self.emptied = {}, time.monotonic()
        if num_draws:
            found = self.finished(num_draws)
            self.count(found, num_draws)
            self.done = self.done._replace(draws=self.done.draws + num_draws)
            self.room = self.chains.room(self.state, self.collected)
        self.keeper.take(found, self.state, self.done)
        return by_name(found[self.chains.kernel.sample_field]) if found else {}

    def finished(self, num_draws: int) -> dict[str, Any]:
        """The first draws in the room, by field."""
        leaves = self.programs.finish(self.chains.split.arrays, self.room, num_draws)
        leaves = jax.block_until_ready(leaves)
        if num_draws < self.collected.room:
            leaves = jax.tree.map(lambda leaf: cut(leaf, num_draws), leaves)
        return dict(zip(self.collected.fields, leaves, strict=True))

    def count(self, found: dict[str, Any], num_draws: int) -> None:
        """Count what the line says of new draws, where this process has them."""
        has = {k: v for k, v in found.items() if k in WATCHED and is_here(v)}
        if "diverging" in has:
            self.divergences += int(np.sum(has["diverging"]))
        if "num_steps" in has:
            self.num_steps += float(np.mean(has["num_steps"])) * num_draws
            self.counted += num_draws

    def may_look(self) -> bool:
        """Whether estimates that are only shown have not taken too long."""
        return is_here(self.room) and self.looking <= LOOKING * self.elapsed

    def tell(self, line: Line, phase: str | None, new: SiteValues) -> None:
        """Tell the callback, the handle and the line how far the run is."""
        if self.callback is None and not line.is_shown and not self.control.is_watched:
            return
        progress = self.control.progress = self.progress(phase, new)
        self.show(line, progress)
        if self.callback is not None:
            try:
                self.callback(progress)
            except Exception as error:  # raised when what there is has been kept
                self.error = error
                self.control.stop()

    def progress(self, phase: str | None, new: SiteValues) -> Progress:
        """How far the run is."""
        done, begun = self.done, time.monotonic()
        if done.draws and (self.is_at_end or self.may_look()):
            self.worst = self.convergence.all(done.draws, seconds=LOOKING * self.elapsed)
            self.looking += time.monotonic() - begun
        return Progress(
            phase or ("warmup" if done.steps < self.plan.num_warmup else "sample"),
            done.steps,
            self.plan.draws(done.steps),
            new,
            self.divergences if "diverging" in self.collected.fields else None,
            self.num_steps / self.counted if self.counted else math.nan,
            self.worst,
            self.elapsed,
        )

    def show(self, line: Line, progress: Progress) -> None:
        """Show it in the line, of a single chain with what its kernel says."""
        mcmc = self.chains.mcmc
        is_one = mcmc.num_chains == 1 or mcmc.sampler.is_ensemble_kernel
        said = mcmc.sampler.get_diagnostics_str(self.state) if is_one and line.is_shown else ""
        line.show(progress, self.until, self.first_draws, said)


def is_here(tree: Any) -> bool:
    """Whether this process has all of arrays."""
    return all(getattr(x, "is_fully_addressable", True) for x in jax.tree.leaves(tree))


def cut(leaf: Any, num_draws: int) -> Any:
    """The first draws of a room; without the memory of the rest."""
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended)
    if is_key or not leaf.is_fully_addressable:
        return leaf[:, :num_draws]
    return np.array(np.asarray(leaf)[:, :num_draws])
