"""A run whose draws are on disk: begun or found, gone on with, and ended."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.infer import MCMC

from numpyro_fwd.bridge.traces import names_of_plates
from numpyro_fwd.storage import checkpoints, fingerprint
from numpyro_fwd.storage.convergence import Convergence, Worst, is_checked
from numpyro_fwd.storage.folder import Folder, naming_path
from numpyro_fwd.storage.programs import Piece, begin, fields_of, latents
from numpyro_fwd.storage.progress import Progress
from numpyro_fwd.storage.stopping import Until
from numpyro_fwd.storage.store import DrawStore
from numpyro_fwd.storage.writer import Writer
from numpyro_fwd.types import Args, Kwargs

__all__ = ["Stored", "StoredRun"]

PIECE_SECONDS = 5.0  # of a piece: a checkpoint follows each
FIRST_PIECE = 8  # steps of the first piece
FASTER = 4  # times the steps of the longest piece so far
ESTIMATE_SHARE = 0.02  # of the time, that estimates take which are only shown


class Stored(NamedTuple):
    """Result of :func:`numpyro_fwd.sample_to`.

    path
        The Zarr store, for ``xarray.open_datatree(path, engine="zarr")``.
    num_draws
        Draws of each chain in it.
    reason
        What ended the call: "max_draws", "goal" or "seconds".
    worst
        The fewest effective draws of a parameter, its name, and the highest R-hat, of those that
        the last look at the goal saw; NaN if there was none.
    seconds
        Seconds of all calls on this path together, without compilation and set-up.
    last_state
        State of the kernel after the last draw, as ``MCMC.last_state``.
    """

    path: Path
    num_draws: int
    reason: str
    worst: Worst
    seconds: float
    last_state: Any

    def __repr__(self) -> str:
        shown = self._asdict()
        del shown["last_state"]  # pages of arrays
        fields = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({fields})"


class Done(NamedTuple):
    """How far a run is.

    steps
        Steps of the warm-up that are done.
    draws
        Draws of each chain that are stored.
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


class StoredRun:
    """A call of :func:`numpyro_fwd.sample_to`."""

    def __init__(self, folder: Folder, mcmc: MCMC, until: Until, draws_per_write: int):
        self.folder = folder
        self.mcmc = mcmc
        self.until = until
        self.draws_per_write = draws_per_write
        self.num_warmup = 0 if mcmc.post_warmup_state is not None else mcmc.num_warmup
        self.done = Done()
        self.worst = Worst()
        self.estimating = 0.0  # seconds
        self.writer: Writer

    def prepare(
        self,
        rng_key: Array,
        extra_fields: tuple[str, ...],
        init_params: Any,
        model_args: Args,
        model_kwargs: Kwargs,
    ) -> None:
        """Bring the chains to where the run is, and the store with them."""
        is_new = self.folder.begin()
        saved, record = ([], {}) if is_new else checkpoints.load(self.folder.checkpoint)
        facts = record.get("facts", {})
        self.facts: dict[str, Any] = {
            "options": self.options(rng_key, extra_fields, init_params),
            "data": fingerprint.describe_arguments(model_args, model_kwargs),
        }
        self.compare(facts)  # before anything takes time
        model = getattr(self.mcmc.sampler, "model", None)
        if model is not None:
            self.facts["model"] = fingerprint.describe_model(model, model_args, model_kwargs)
            self.compare(facts)
        self.state = begin(self.mcmc, rng_key, init_params, model_args, model_kwargs)
        fields = fields_of(self.mcmc, self.state, extra_fields)
        without = sites_without(self.mcmc, extra_fields)
        self.piece = Piece(
            *(self.mcmc, self.state, fields, self.draws_per_write, without),
            *(model_args, model_kwargs),
        )
        self.facts["options of the kernel"] = {
            "the program of a step": fingerprint.describe_program(self.piece.traced.jaxpr),
            **fingerprint.describe_state(self.state),
        }
        self.compare(facts)
        self.facts_as_json = json.dumps(self.facts).encode()
        self.store = DrawStore(self.folder.path)
        self.saved = checkpoints.leaves_of(self.state)
        if is_new:
            self.create(model, model_args, model_kwargs)
        else:
            self.find(saved, record["done"])
        self.piece.compile()
        names = latents(self.mcmc, self.state)
        stored = [name.split("/", 1)[1] for name in self.piece.shapes if name[:3] == "pos"]
        names_watched = [name for name in stored if names is None or name in names] or stored
        self.convergence = Convergence(self.store, names_watched, self.until, self.mcmc.num_chains)

    def options(
        self, rng_key: Array, extra_fields: tuple[str, ...], init_params: Any
    ) -> dict[str, Any]:
        """Options of the run, besides data and model."""
        mcmc = self.mcmc
        method = mcmc.chain_method
        return {
            **fingerprint.versions(),
            "jax_enable_x64": jnp.result_type(float) == jnp.float64,
            "backend": jax.default_backend(),
            "kernel": type(mcmc.sampler).__name__,
            "num_chains": mcmc.num_chains,
            "chain_method": getattr(method, "__name__", str(method)),
            "num_warmup": mcmc.num_warmup,
            "thinning": mcmc.thinning,
            "draws_per_write": self.draws_per_write,
            "extra_fields": list(extra_fields),
            "rng_key": str(np.asarray(checkpoints.key_data_of(rng_key)).tolist()),
            "init_params": fingerprint.describe_numbers(init_params),
            "post_warmup_state": fingerprint.describe_numbers(mcmc.post_warmup_state),
        }

    def compare(self, facts: dict[str, Any]) -> None:
        """Raise if the run on the path is another one."""
        for what in self.facts.keys() & facts.keys():
            fingerprint.check_same(self.folder.path, what, facts[what], self.facts[what])

    def create(self, model: Any, model_args: Args, model_kwargs: Kwargs) -> None:
        """An empty store and a first checkpoint."""
        dims = {} if model is None else names_of_plates(model, model_args, model_kwargs)
        groups: dict[str, dict[str, Any]] = {"posterior": {}, "sample_stats": {}}
        for name, one in self.piece.shapes.items():
            group, variable = name.split("/", 1)
            groups[group][variable] = one
        dims = {name.replace("/", "."): axes for name, axes in dims.items()}
        with self.explaining():
            self.store.create(groups, self.mcmc.num_chains, dims, self.draws_per_write)
            self.save_checkpoint(self.saved, self.done)
            self.store.publish(0)

    def find(self, saved: list[np.ndarray], done: dict[str, Any]) -> None:
        """The store and the state of the last checkpoint."""
        self.done = Done(**done)
        self.store.open()
        self.store.check(self.done.draws, set(self.piece.shapes))
        with self.explaining():
            self.store.publish(self.done.draws)
        self.state = checkpoints.put_back(self.state, saved)
        self.saved = saved

    def explaining(self) -> Any:
        """Errors of the system, with what is there."""
        num_draws = self.done.draws
        return naming_path(self.folder.path, f"the first {num_draws} draws of each chain are safe")

    def save_checkpoint(self, leaves: list[np.ndarray], done: Done) -> None:
        """The state, how far the run is, and what it is a run of."""
        facts = {"facts": self.facts_as_json, "done": done._asdict()}
        checkpoints.save(self.folder.checkpoint, leaves, **facts)

    def append(self, draws: dict[str, np.ndarray], done: Done) -> None:
        """Draws, which do not count yet."""
        with self.explaining():
            num_new = next(iter(draws.values())).shape[1]
            self.store.append(done.draws - num_new, draws)

    def commit(self, leaves: list[np.ndarray], done: Done) -> None:
        """The checkpoint that says how many draws count, then what readers see."""
        with self.explaining():
            self.save_checkpoint(leaves, done)
            self.store.publish(done.draws)
        self.done = done

    def go_on(self) -> Stored:
        """Piece after piece until something ends it."""
        self.begun = time.monotonic()
        done = self.done
        with (
            Progress(self.mcmc.progress_bar, self.until, done.draws) as progress,
            Writer(self.append, self.commit) as self.writer,
        ):
            self.progress = progress
            while not (reason := self.reason_to_stop(done)):
                draws, done = self.advance(done)
                self.writer.put(draws, self.saved, done)
                self.show(done)
            self.writer.settle()
            with self.explaining():
                self.store.finish()
            if self.until.has_goals and reason != "goal" and done.draws:
                self.worst = self.convergence.all(done.draws)
            self.show(done)
        return Stored(self.folder.path, done.draws, reason, self.worst, done.seconds, self.state)

    def reason_to_stop(self, done: Done) -> str:
        """Why it ends here, or nothing."""
        until = self.until
        if until.max_draws is not None and done.draws >= until.max_draws:
            return "max_draws"
        if self.is_at_goal(done):
            return "goal"
        is_late = until.seconds is not None and self.elapsed >= until.seconds
        return "seconds" if is_late else ""

    def is_at_goal(self, done: Done) -> bool:
        """Whether the goals are reached, where they are looked at."""
        num_writes, rest = divmod(done.draws, self.draws_per_write)
        if not self.until.has_goals or rest or not is_checked(num_writes):
            return False
        self.writer.settle()
        is_reached, self.worst = self.convergence.is_reached(done.draws)
        return is_reached

    @property
    def elapsed(self) -> float:
        """Seconds of this call."""
        return time.monotonic() - self.begun

    def advance(self, done: Done) -> tuple[dict[str, np.ndarray], Done]:
        """The next piece: its draws, none in the warm-up, and how far the run is then."""
        is_warmup = done.steps < self.num_warmup
        num_draws, steps_each = self.warmup_piece(done) if is_warmup else self.draws_piece(done)
        begun = time.monotonic()
        self.state, buffers = self.piece(self.state, num_draws, steps_each)
        self.saved = checkpoints.leaves_of(self.state)  # waits
        took = time.monotonic() - begun
        num_steps = num_draws * steps_each
        draws = {} if is_warmup else {k: np.asarray(v)[:, :num_draws] for k, v in buffers.items()}
        return draws, Done(
            done.steps + num_steps if is_warmup else done.steps,
            done.draws if is_warmup else done.draws + num_draws,
            done.seconds + took,
            max(took / num_steps, done.pace / 2),
            max(num_steps, done.longest),
        )

    def warmup_piece(self, done: Done) -> tuple[int, int]:
        """One draw, which is not kept, after as many steps as it may take."""
        return 1, min(self.most_steps(done), self.num_warmup - done.steps)

    def draws_piece(self, done: Done) -> tuple[int, int]:
        """Draws up to the end of a file of the store, or fewer, and the steps of each."""
        thinning = self.mcmc.thinning
        room = self.draws_per_write - done.draws % self.draws_per_write
        if self.until.max_draws is not None:
            room = min(room, self.until.max_draws - done.draws)
        return min(room, max(1, self.most_steps(done) // thinning)), thinning

    def most_steps(self, done: Done) -> int:
        """Steps of a piece of a few seconds, if steps take as long as they did."""
        if not done.longest:
            return FIRST_PIECE
        seconds = PIECE_SECONDS
        if self.until.seconds is not None:
            seconds = min(seconds, self.until.seconds - self.elapsed)
        return max(1, min(FASTER * done.longest, int(seconds / max(done.pace, 1e-9))))

    def show(self, done: Done) -> None:
        """Say how far the run is."""
        if not self.mcmc.progress_bar:
            return
        if done.steps < self.num_warmup:
            self.progress.say(f"warm-up {done.steps}/{self.num_warmup}")
        else:
            self.progress.say("sampling")
            self.estimate(done)
        is_one = self.mcmc.num_chains == 1
        text = self.mcmc.sampler.get_diagnostics_str(self.state) if is_one else ""
        self.progress.show(done.draws, self.worst, text)

    def estimate(self, done: Done) -> None:
        """An estimate to show, if estimates have not taken too long."""
        if self.estimating > ESTIMATE_SHARE * self.elapsed:
            return
        begun = time.monotonic()
        self.writer.settle()
        self.worst = self.convergence.all(done.draws, seconds=ESTIMATE_SHARE * self.elapsed)
        self.estimating += time.monotonic() - begun


def sites_without(mcmc: MCMC, extra_fields: tuple[str, ...]) -> set[str]:
    """Sites that are not stored: those of fields like "~z.a"."""
    start = f"~{mcmc.sampler.sample_field}."
    return {name.removeprefix(start) for name in extra_fields if name.startswith(start)}
