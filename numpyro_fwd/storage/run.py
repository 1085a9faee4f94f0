"""A run that keeps its draws on disk: begun or found, gone on with, and ended."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.infer import MCMC

from numpyro_fwd.bridge.arguments import check_arguments
from numpyro_fwd.bridge.fingerprints import describe_program
from numpyro_fwd.bridge.traces import names_of_plates
from numpyro_fwd.mcmc.convergence import Until, Worst, check_until, check_whole_number
from numpyro_fwd.mcmc.handle import Control, interrupts
from numpyro_fwd.mcmc.loop import Done, Loop, Plan
from numpyro_fwd.mcmc.programs import Chains, Collected, without_sites
from numpyro_fwd.mcmc.progress import Line
from numpyro_fwd.mcmc.run import check_names, say_stopped
from numpyro_fwd.storage import fingerprint
from numpyro_fwd.storage.folder import (
    Folder,
    key_data_of,
    leaves_of,
    load,
    naming_path,
    put_back,
    save,
    store_package,
)
from numpyro_fwd.storage.store import DrawStore, fields_of, named, shapes_of
from numpyro_fwd.storage.writer import Writer
from numpyro_fwd.types import Args, Kwargs


class Stored(NamedTuple):
    """Result of :func:`numpyro_fwd.sample_to`.

    path
        The Zarr store, for ``xarray.open_datatree(path, engine="zarr")``.
    num_draws
        Draws of each chain in it.
    reason
        What ended the call: "max_draws", "goal", "seconds" or "stopped", by Ctrl-C.
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


class StoredRun:
    """A call of :func:`numpyro_fwd.sample_to`."""

    seconds = 5.0  # between two writes, of which a checkpoint follows each

    def __init__(self, folder: Folder, mcmc: MCMC, until: Until, draws_per_write: int):
        self.folder = folder
        self.mcmc = mcmc
        self.until = until
        self.draws_per_write = draws_per_write
        self.control = Control()
        self.done = Done()  # what the last checkpoint says
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
        saved, record = ([], {}) if is_new else load(self.folder.checkpoint)
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
        chains = Chains(self.mcmc, getattr(self.mcmc, "_known", None), model_args, model_kwargs)
        state = chains.begin(rng_key, init_params)
        self.loop = self.loop_of(chains, state, extra_fields)
        self.shapes = shapes_of(self.position, self.loop.shapes)
        self.facts["options of the kernel"] = {
            "the program of a step": describe_program(self.loop.step_as_traced),
            **fingerprint.describe_state(state),
        }
        self.compare(facts)
        self.facts_as_json = json.dumps(self.facts).encode()
        self.store = DrawStore(self.folder.path)
        if is_new:
            self.create(leaves_of(state), model, model_args, model_kwargs)
        else:
            self.find(state, saved, record["done"])

    @property
    def position(self) -> str:
        """The field of the position."""
        return str(self.mcmc.sampler.sample_field)

    def loop_of(self, chains: Chains, state: Any, extra_fields: tuple[str, ...]) -> Loop:
        """The loop of this run, before its first step."""
        mcmc, until, thinning = self.mcmc, self.until, self.mcmc.thinning
        num_warmup = 0 if mcmc.post_warmup_state is not None else mcmc.num_warmup
        num_draws = mcmc.num_samples // thinning if until.is_open else until.max_draws
        plan = Plan(num_warmup, mcmc.num_samples % thinning, thinning, num_draws)
        fields = fields_of(mcmc.sampler, state, extra_fields)
        without = without_sites(mcmc.sampler, extra_fields)
        collected = Collected(fields, without, self.draws_per_write)
        callback = getattr(mcmc, "callback", None)
        loop = Loop(chains, collected, plan, until, self, self.control, callback)
        loop.begin(state)
        return loop

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
            "steps before the first draw": mcmc.num_samples % mcmc.thinning,
            "draws_per_write": self.draws_per_write,
            "extra_fields": list(extra_fields),
            "rng_key": str(np.asarray(key_data_of(rng_key)).tolist()),
            "init_params": fingerprint.describe_numbers(init_params),
            "post_warmup_state": fingerprint.describe_numbers(mcmc.post_warmup_state),
        }

    def compare(self, facts: dict[str, Any]) -> None:
        """Raise if the run on the path is another one."""
        for what in self.facts.keys() & facts.keys():
            fingerprint.check_same(self.folder.path, what, facts[what], self.facts[what])

    def create(
        self, leaves: list[np.ndarray], model: Any, model_args: Args, model_kwargs: Kwargs
    ) -> None:
        """An empty store and a first checkpoint."""
        dims = {} if model is None else names_of_plates(model, model_args, model_kwargs)
        groups: dict[str, dict[str, Any]] = {"posterior": {}, "sample_stats": {}}
        for name, one in self.shapes.items():
            group, variable = name.split("/", 1)
            groups[group][variable] = one
        dims = {name.replace("/", "."): axes for name, axes in dims.items()}
        with self.explaining():
            self.store.create(groups, self.mcmc.num_chains, dims, self.draws_per_write)
            self.save_checkpoint(leaves, self.done)
            self.store.publish(0)

    def find(self, state: Any, saved: list[np.ndarray], done: dict[str, Any]) -> None:
        """The store and the state of the last checkpoint."""
        self.done = Done(**done)
        self.store.open()
        self.store.check(self.done.draws, set(self.shapes))
        with self.explaining():
            self.store.publish(self.done.draws)
        self.loop.go_on_from(put_back(state, saved), self.done)

    def explaining(self) -> Any:
        """Errors of the system, with what is there."""
        num_draws = self.done.draws
        return naming_path(self.folder.path, f"the first {num_draws} draws of each chain are safe")

    def save_checkpoint(self, leaves: list[np.ndarray], done: Done) -> None:
        """The state, how far the run is, and what it is a run of."""
        facts = {"facts": self.facts_as_json, "done": done._asdict()}
        save(self.folder.checkpoint, leaves, **facts)

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

    def take(self, found: dict[str, Any], state: Any, done: Done) -> None:
        """Have draws written, and the state that they led to."""
        draws = named(self.position, found) if found else {}
        draws = {name: np.asarray(values) for name, values in draws.items()}
        self.writer.put(draws, leaves_of(state), done)

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a site, evenly spaced."""
        self.writer.settle()
        return self.store.read(name.replace("/", "."), num_draws, most)

    def go_on(self) -> Stored:
        """Piece after piece until something ends it."""
        loop, path = self.loop, self.folder.path
        with (
            interrupts(self.control),
            Line(self.mcmc.progress_bar, loop.plan.num_steps, loop.done.steps) as line,
            Writer(self.append, self.commit) as self.writer,
        ):
            reason = loop.go(line)
            self.writer.settle()
            with self.explaining():
                self.store.finish()
        if self.control.is_interrupted:
            say_stopped(loop, False, "the same call")
        if loop.error is not None:
            raise loop.error
        done = loop.done
        return Stored(path, done.draws, reason, loop.worst, done.seconds, loop.state)


def sample_to(
    path: str | os.PathLike[str],
    mcmc: MCMC,
    rng_key: Array,
    *args: Any,
    draws_per_write: int = 1000,
    until: Until | None = None,
    extra_fields: tuple[str, ...] = (),
    init_params: Any = None,
    **kwargs: Any,
) -> Stored:
    r"""Run an ``MCMC`` with its draws on disk, or continue such a run.

    Draws are appended to a Zarr store in ArviZ's layout, which ``xarray.open_datatree`` and
    ``az.from_zarr`` read while it grows, and the kernel's state is saved after each write, at most
    four times a second. A run that was interrupted, by Ctrl-C or by ``kill -9`` at any moment,
    continues when the same call is made again: its draws are those of a run that was never
    interrupted, bit for bit. Memory does not depend on the number of draws.

    Parameters
    ----------
    path
        Folder of the store: new, empty, or that of the run to continue.
    mcmc
        Any kernel, all chain methods. Its options count as in ``mcmc.run``, those of
        ``numpyro_fwd.MCMC`` too, and draws are the same, but for `num_samples` where `until` says
        when to stop. A `post_warmup_state` takes the place of the warm-up.
    rng_key
        Key of the run, or a key for each chain.
    args, kwargs
        Arguments of the model.
    draws_per_write
        Draws of each chain in a file of the store, 1 or more. There is a file for each site and
        each such number of draws. Draws are written at least every five seconds or so.
    until
        When to stop; None for that of `mcmc`. It may change from call to call.
    extra_fields
        Fields of the kernel's state to be stored besides ``diverging``, ``potential_energy``,
        ``energy``, ``accept_prob`` and ``num_steps``, which are where the state has them;
        ``"~z.a"`` leaves out site ``a``, as in ``MCMC.run``. They have ArviZ's names in
        ``sample_stats``.
    init_params
        Where to begin, as in ``MCMC.run``.

    Returns
    -------
    What is stored and why the call ended, as :class:`~numpyro_fwd.storage.Stored`.

    Raises
    ------
    ValueError
        If the run on `path` is one of other data, another model, other options or other versions
        of JAX and NumPyro; if its store is truncated; for arguments out of range. By name.
    FileExistsError
        If there is something else on `path`.
    OSError
        If nothing can be written to `path`, or the disk is full: what was written is readable, and
        the same call continues the run once there is room.
    RuntimeError
        If another call writes to `path`.
    ImportError
        If a package of the extra "store" is missing.

    Notes
    -----
    Sites have the shape (chains, draws, \*shape), with plates as dimensions; a ``/`` in a name is
    a ``.`` in the store. Draws are written while the next piece is computed. What is on the disk
    survives the end of the process at any moment. After a power failure the last files may be lost,
    which the next call reports.

    Examples
    --------
    >>> import tempfile, jax, numpyro, xarray, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import MALA, Until, sample_to
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> mcmc = MCMC(MALA(model), num_warmup=200, num_samples=1000, progress_bar=False)
    >>> y, path = jax.numpy.array([1.0, 2.0, 3.0]), tempfile.mkdtemp()
    >>> sample_to(path, mcmc, jax.random.key(0), y, until=Until(max_draws=300)).num_draws
    300
    >>> stored = sample_to(path, mcmc, jax.random.key(0), y, until=Until(max_draws=500))
    >>> xarray.open_datatree(path, engine="zarr").posterior["mean"].shape
    (1, 500)
    """
    if not isinstance(mcmc, MCMC):
        raise TypeError(f"mcmc must be a numpyro.infer.MCMC; got {type(mcmc).__name__}.")
    if jax.process_count() > 1:
        raise ValueError(
            f"sample_to writes from one process, and there are {jax.process_count()}: call "
            "mcmc.run in all of them, and write what numpyro_fwd.gather(mcmc.get_samples()) gives "
            "in one."
        )
    check_whole_number("draws_per_write", draws_per_write)
    until = getattr(mcmc, "until", None) if until is None else until
    until = check_until(until, mcmc.num_chains)
    check_names(extra_fields)
    check_arguments(args, kwargs)
    store_package("zarr")  # before anything is written
    folder = Folder(path)
    with folder.claimed():
        run = StoredRun(folder, mcmc, until, int(draws_per_write))
        run.prepare(rng_key, tuple(extra_fields), init_params, args, kwargs)
        return run.go_on()
