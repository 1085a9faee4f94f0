"""NumPyro's MCMC, whose runs compile once, can be watched, and keep their draws when stopped.

NumPyro makes the loop over the steps of a run anew in each run, and XLA compiles it. Here chains
advance in pieces of a few tenths of a second, all by one program, for warm-up and draws: it takes
the data, the state and the draws so far, and goes on from step i to step j. Programs are kept with
the `MCMC`, and taken again where shapes and the model are the same, which is seen by tracing anew
its energy and what becomes of a draw. Between two pieces a line says how far the chains are, and
Ctrl-C is heard.
"""

import contextlib
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.infer import HMC, NUTS
from tqdm.auto import tqdm

from blackjax_ext.equations import primitives_in
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import (
    NEED_VALUES,
    SplitArguments,
    program_with,
    split_arguments,
)
from numpyro_fwd.bridge.numpyro_private import (
    forget_steps,
    has_own_steps,
    is_prng_key,
    is_under_jax_transform,
    nested_attrgetter,
    split_gelman_rubin,
)
from numpyro_fwd.kernels.strategy import WholeDensity
from numpyro_fwd.storage.fingerprint import describe_program
from numpyro_fwd.storage.programs import own as strong

__all__ = ["MCMC"]

PIECE_SECONDS = 0.3  # of a piece: what Ctrl-C and the line wait for
FIRST_PIECE = 4  # steps, of which it is not known how long they take
FASTER = 8  # times the steps of the longest piece so far
LOOKING = 0.02  # of the time, that R-hat may take
LEAST_DRAWS = 4  # of which there is an R-hat
BATCH = 64  # draws whose sites are computed at once
MOST_KNOWN = 8  # pairs of programs that are kept


class Program:
    """``function(arrays, *rest)`` compiled; with the arrays in it, if the model needs their values.

    Of `donated` arguments the memory is taken for results.
    """

    def __init__(self, function: Function, donated: tuple[int, ...]):
        self.function, self.donated = function, donated
        self.program = jax.jit(function, donate_argnums=donated)
        self.with_values: Function | None = None

    def __call__(self, arrays: list[Any], *rest: Any) -> Any:
        if self.with_values is None:
            try:
                return self.program(arrays, *rest)
            except NEED_VALUES:
                places = tuple(i - 1 for i in self.donated)
                self.with_values = jax.jit(partial(self.function, arrays), donate_argnums=places)
        return self.with_values(*rest)


class Programs(NamedTuple):
    """Programs of a run.

    advance
        From arrays of the model, state, draws, steps i and j, and the step of the first draw, to
        state and draws after step j - 1.
    finish
        From arrays and draws to what the user gets of them, (chains, draws, ...).
    """

    advance: Program
    finish: Program


class Collected(NamedTuple):
    """What a run collects.

    fields
        Fields of the state, the position first.
    without
        Sites of the position that are left out.
    num_draws
        Draws of each chain.
    """

    fields: tuple[str, ...]
    without: frozenset[str]
    num_draws: int

    def __call__(self, state: Any) -> tuple[Any, ...]:
        """The fields of a state."""
        found = nested_attrgetter(*self.fields)(state)
        return found if len(self.fields) > 1 else (found,)


class MCMC(numpyro.infer.MCMC):
    """``numpyro.infer.MCMC`` whose runs compile once, can be watched, and can be stopped.

    Arguments, attributes and results are NumPyro's. A second `run` takes the programs of the first
    where keys or the values of the data are all that is new, for the kernels of this package and
    for NumPyro's HMC and NUTS, but for a few small ones that look for a start. Other kernels may
    keep data in what they compile, and are compiled in each run.
    The line of progress shows the number of divergences and the worst R-hat so far with its site.
    Ctrl-C during the draws ends the run and keeps the draws; during the warm-up it is an error, as
    there are none.

    Draws are those of NumPyro's MCMC with the same key; sites that are transformed may differ in
    their last digit, since many draws are transformed at once. A `chain_method` that is a function,
    and runs within other programs (``jax.jit``, ``jax.vmap``), are NumPyro's own.

    Raises
    ------
    ValueError
        As NumPyro's MCMC, for an argument outside its range.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> import numpyro_fwd
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> kernel = numpyro_fwd.MALA(model)
    >>> mcmc = numpyro_fwd.MCMC(kernel, num_warmup=300, num_samples=300, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
    >>> mcmc.run(jax.random.key(1), jnp.array([4.0, 5.0, 6.0]))  # the loop is compiled already
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 5.0) < 0.3)
    True
    """

    def __init__(self, sampler: Any, **options: Any):
        super().__init__(sampler, **options)
        self._known: dict[Any, Programs] = {}
        self._begun: tuple[Any, int] = None, self.num_warmup  # steps of the kernel, of its warm-up

    def run(
        self,
        rng_key: Array,
        *args: Any,
        extra_fields: Sequence[str] = (),
        init_params: Any = None,
        **kwargs: Any,
    ) -> None:
        """Run the chains; see NumPyro's ``MCMC.run``."""
        if callable(self.chain_method) or is_under_jax_transform():
            super().run(
                rng_key, *args, extra_fields=extra_fields, init_params=init_params, **kwargs
            )
            return
        self._args, self._kwargs = args, kwargs
        check_names(extra_fields)
        try:
            state, lower, upper = self._begin(rng_key, init_params)
            size = self._collection_params["collection_size"]
            size = upper - lower if size is None else size
            collected = self._collected(extra_fields, size // self.thinning)
            split = self._everywhere(split_arguments(args, kwargs))
            draws = self._room(state, collected)
            programs = self._programs(split, collected, state, draws)
            first = lower + (upper - lower) % self.thinning
            advance = partial(programs.advance, split.arrays)
            with interrupts() as is_stopped:
                steps = first, lower, upper
                state, draws, done = self._advance(advance, state, draws, steps, is_stopped)
                self._last_state = state
                num_draws = max(done - first, 0) // self.thinning
                if done < upper:
                    stopped(done, lower, num_draws)
                found = jax.block_until_ready(programs.finish(split.arrays, draws))
            if done < upper:
                found = jax.tree.map(lambda leaf: leaf[:, :num_draws], found)
        finally:
            self._set_collection_params()
        self._states, self._states_flat = dict(zip(collected.fields, found, strict=True)), None

    def _collected(self, extra_fields: Sequence[str], num_draws: int) -> Collected:
        """What is collected, by the names that a user gives."""
        names = dict.fromkeys((self._sample_field, *self._default_fields, *extra_fields))
        start = f"~{self._sample_field}."
        without = (name.removeprefix(start) for name in names if name.startswith(start))
        fields = tuple(name for name in names if not name.startswith(start))
        return Collected(fields, frozenset(without), num_draws)

    def _begin(self, rng_key: Array, init_params: Any) -> tuple[Any, int, int]:
        """State before the first step, and the steps between which draws are collected.

        That of sequential and parallel chains is the states of all, stacked.
        """
        state = self._get_cached_init_state(rng_key, self._args, self._kwargs)
        if self.num_chains > 1 and is_prng_key(rng_key):
            rng_key = jax.random.split(rng_key, self.num_chains)
        init_params = jax.tree.map(jnp.asarray, init_params)
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(init_params)]
        if self.num_chains > 1 and shapes and shapes[0][:1] != (self.num_chains,):
            raise ValueError(
                "`init_params` must have the same leading dimension as `num_chains`, "
                f"{self.num_chains}; got shape {shapes[0]}."
            )
        if self._warmup_state is not None:
            self._set_collection_params(0, self.num_samples, self.num_samples, "sample")
            own = rng_key[0] if self.sampler.is_ensemble_kernel else rng_key
            state = self._warmup_state._replace(rng_key=own)
        if state is None or getattr(self.sampler, "_sample_fn", None) is None:
            first = self._first(rng_key, init_params)
            state = first if state is None else state
        params = self._collection_params
        return self._placed(jax.tree.map(strong, state)), params["lower"], params["upper"]

    def _first(self, rng_key: Array, init_params: Any) -> Any:
        """The state that the kernel makes of keys and starts."""
        if type(self.sampler) in (HMC, NUTS):
            forget_steps(self.sampler)
        init = partial(self.sampler.init, model_args=self._args, model_kwargs=self._kwargs)
        if self._is_stacked:
            each = [
                init(rng_key[c], self.num_warmup, jax.tree.map(lambda x, c=c: x[c], init_params))
                for c in range(self.num_chains)
            ]
            state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        else:
            state = init(rng_key, self.num_warmup, init_params)
        self._begun = getattr(self.sampler, "_sample_fn", None), self.num_warmup
        return state

    @property
    def _is_stacked(self) -> bool:
        """Whether chains run one after the other, or on devices, and not in the same steps."""
        return self.num_chains > 1 and self.chain_method != "vectorized"

    def _placed(self, state: Any) -> Any:
        """The state, of parallel chains each on its device."""
        return jax.device_put(state, self._devices) if self._is_parallel else state

    def _everywhere(self, split: SplitArguments) -> SplitArguments:
        """Arguments of the model, on the devices of all parallel chains."""
        if not self._is_parallel:
            return split
        on_all = NamedSharding(self._devices.mesh, PartitionSpec())
        return split._replace(arrays=jax.device_put(split.arrays, on_all))

    @property
    def _is_parallel(self) -> bool:
        """Whether each chain has a device."""
        return self.num_chains > 1 and self.chain_method == "parallel"

    @property
    def _devices(self) -> NamedSharding:
        """A chain on each device."""
        devices = Mesh(np.array(jax.local_devices()[: self.num_chains]), ("chains",))
        return NamedSharding(devices, PartitionSpec("chains"))

    def _each(self, function: Function) -> Function:
        """A function of one chain, or of vectorized ones, for the chains of a run."""
        if not self._is_stacked:
            return function
        in_sequence = partial(jax.lax.map, lambda leaves: function(*leaves))

        def of_all(*leaves: Any) -> Any:
            return in_sequence(leaves)

        if not self._is_parallel:
            return of_all
        devices, chains = self._devices.mesh, self._devices.spec
        over: Function = jax.shard_map(
            of_all, mesh=devices, in_specs=chains, out_specs=chains, check_vma=False
        )
        return over

    def _room(self, state: Any, collected: Collected) -> Any:
        """Room for draws: (num_draws, ...), for each chain of its own if they are stacked."""

        def room(leaf: Array) -> Array:
            shape = collected.num_draws, *jnp.shape(leaf)
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            return jnp.broadcast_to(leaf, shape) if is_key else jnp.zeros(shape, leaf.dtype)

        each = jax.vmap(room) if self._is_stacked else room
        return self._placed(jax.tree.map(each, collected(state)))

    def _programs(
        self, split: SplitArguments, collected: Collected, state: Any, draws: Any
    ) -> Programs:
        """The programs for these shapes: those of an earlier run, or new ones."""
        key = self._key(split, collected, state, draws)
        programs = self._known.pop(key, None)
        if programs is None or programs.advance.with_values or programs.finish.with_values:
            of_run = split.without_data(), collected  # which programs keep
            advance, finish = partial(self._steps, *of_run), partial(self._finished, *of_run)
            programs = Programs(Program(advance, (1, 2)), Program(finish, (1,)))
        if key is not None:
            self._known[key] = programs  # the last that was used
        for oldest in list(self._known)[:-MOST_KNOWN]:
            del self._known[oldest]
        return programs

    def _key(self, split: SplitArguments, collected: Collected, state: Any, draws: Any) -> Any:
        """What a program depends on; None for one that is not taken again."""
        kernel = self.sampler
        is_whole = isinstance(getattr(kernel, "_strategy_of_run", None), WholeDensity)
        steps, num_warmup = self._begun
        is_known = is_whole or (type(kernel) in (HMC, NUTS) and has_own_steps(kernel, steps))
        if split.key is None or not is_known:
            return None
        shapes = tuple(map(jax.typeof, jax.tree.leaves((split.arrays, state, draws))))
        of_run = self.num_chains, self.chain_method, num_warmup, self.thinning, self.postprocess_fn
        of_kernel = kernel, options_of(kernel), options_of(getattr(kernel, "_effects", None))
        key = *of_kernel, split.key, collected, shapes, jax.tree.structure(state), of_run
        try:
            hash(key)
        except TypeError:
            return None
        code = code_of(kernel, split, self._position(state), self.postprocess_fn)
        return code and (*key, code)

    def _position(self, state: Any) -> Any:
        """Shapes of the position of one chain."""
        lead = int(self.num_chains > 1)
        (position,) = Collected((self._sample_field,), frozenset(), 0)(state)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[lead:], x.dtype), position)

    def _steps(
        self,
        split: SplitArguments,
        collected: Collected,
        arrays: list[Any],
        state: Any,
        draws: Any,
        i: Array,
        stop: Array,
        first: Array,
    ) -> tuple[Any, Any]:
        """State and draws after steps `i` to `stop`; what is before the `first` draw is lost."""
        model_args, model_kwargs = split.join(arrays)

        def step(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, draws = carry
            state = self.sampler.sample(state, model_args, model_kwargs)
            place = jnp.maximum(i - first, 0) // self.thinning
            new = collected(state)
            return state, jax.tree.map(lambda all, one: all.at[place].set(one), draws, new)

        def of_one(state: Any, draws: Any) -> tuple[Any, Any]:
            found: tuple[Any, Any] = jax.lax.fori_loop(i, stop, step, (state, draws))
            return found

        after: tuple[Any, Any] = self._each(of_one)(state, draws)
        return after

    def _finished(
        self, split: SplitArguments, collected: Collected, arrays: list[Any], draws: Any
    ) -> tuple[Any, ...]:
        """Draws as the user gets them: sites on their supports, chains first."""
        on_supports = self.postprocess_fn or self.sampler.postprocess_fn(*split.join(arrays))
        is_batched = self.num_chains > 1 and not self._is_stacked
        of_draw = partial(for_chains, on_supports, self.num_chains) if is_batched else on_supports

        def sites(position: Any) -> Any:
            found, without = of_draw(position), collected.without
            return {k: v for k, v in found.items() if k not in without} if without else found

        def of_chain(_: Array, positions: Any) -> Any:
            return in_batches(sites, positions, collected.num_draws)

        position, *rest = draws
        found = self._each(of_chain)(jnp.arange(self.num_chains), position), *rest
        if self._is_stacked:
            return found
        chains_first = partial(jnp.swapaxes, axis1=0, axis2=1) if is_batched else lambda x: x[None]
        return jax.tree.map(chains_first, found)

    def _advance(
        self,
        advance: Function,
        state: Any,
        draws: Any,
        steps: tuple[int, int, int],
        is_stopped: Callable[[], bool],
    ) -> tuple[Any, Any, int]:
        """State, draws and number of steps at the end, or where the user stopped the run.

        `steps` are those of the first draw, of the end of the warm-up, and of the end.
        """
        first, lower, upper = steps
        done, pace, longest = 0, 0.0, 0
        with self._line(upper) as show:
            state, draws = advance(state, draws, 0, 0, first)  # compiles
            while done < upper and not is_stopped():
                wanted = (
                    min(FASTER * longest, int(PIECE_SECONDS / pace)) if longest else FIRST_PIECE
                )
                end = lower if done < lower else upper
                num_steps = min(max(wanted, 1), end - done)
                begun = time.perf_counter()
                state, draws = advance(state, draws, done, done + num_steps, first)
                jax.block_until_ready(state)
                pace = (time.perf_counter() - begun) / num_steps
                longest, done = max(longest, num_steps), done + num_steps
                show(done, state, draws, max(done - first, 0) // self.thinning)
        return state, draws, done

    @contextlib.contextmanager
    def _line(self, num_steps: int) -> Iterator[Callable[..., None]]:
        """The line of progress: steps, and what there is to say of the draws."""
        if not self.progress_bar:
            yield lambda *_: None
            return
        looking = 0.0
        with tqdm(total=num_steps) as bar:

            def show(done: int, state: Any, draws: Any, num_draws: int) -> None:
                nonlocal looking
                phase, lower = self._collection_params["phase"], self._collection_params["lower"]
                bar.set_description_str(phase or ("warmup" if done < lower else "sample"), False)
                bar.update(done - bar.n)
                elapsed = bar.format_dict["elapsed"]
                if done == num_steps or looking <= LOOKING * elapsed:
                    begun = time.perf_counter()
                    bar.set_postfix_str(self._words(state, draws, num_draws), refresh=False)
                    looking += time.perf_counter() - begun
                bar.refresh()

            yield show

    def _words(self, state: Any, draws: Any, num_draws: int) -> str:
        """Of a single chain what its kernel says, of several divergences and the worst R-hat."""
        if self.num_chains == 1 or self.sampler.is_ensemble_kernel:
            said: str = self.sampler.get_diagnostics_str(state)
            return said
        if num_draws < LEAST_DRAWS:
            return ""
        axis = 0 if self._is_stacked else 1
        position, *rest = draws

        def of_chains(leaf: Any) -> np.ndarray:
            lead = (slice(None), slice(num_draws)) if axis == 0 else (slice(num_draws),)
            return np.moveaxis(np.asarray(leaf[lead]), axis, 0)

        words = []
        if self._default_fields[1:2] == ("diverging",) and rest:
            words.append(f"{int(of_chains(rest[0]).sum())} divergences")
        leaves = jax.tree_util.tree_leaves_with_path(position)
        worst, name = max(
            (
                (float(np.max(split_gelman_rubin(of_chains(x)), initial=0.0)), path)
                for path, x in leaves
            ),
            key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0],
            default=(math.nan, ()),
        )
        site = jax.tree_util.keystr(name, simple=True, separator=".")
        return ", ".join([*words, f"R-hat {worst:.3f} ({site})"])

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs."""
        return {**super().__getstate__(), "_known": {}, "_begun": (None, self.num_warmup)}


def options_of(owner: Any) -> tuple[tuple[str, Any], ...]:
    """Numbers, names and tuples of them that a kernel has: those on which its steps depend, too."""
    kinds = bool, int, float, str, tuple
    return tuple(
        sorted((k, v) for k, v in getattr(owner, "__dict__", {}).items() if type(v) in kinds)
    )


def code_of(
    kernel: Any, split: SplitArguments, position: Any, postprocess_fn: Function | None
) -> str | None:
    """A checksum of what a run computes of a model, and of what it reads besides its arguments.

    That is the potential energy and what becomes of a draw, with derivatives where a model has its
    own. None for a model that calls Python, which no program shows.
    """

    def energy_of(arrays: list[Any]) -> Function:
        model_args, model_kwargs = split.join(arrays)
        if isinstance(kernel, HMC):
            return cast(Function, kernel.get_potential_fn(model_args, model_kwargs))
        return cast(Function, kernel._view.potential_fn(*model_args, **model_kwargs))

    def computed(arrays: list[Any], position: Any) -> Any:
        on_supports = postprocess_fn or kernel.postprocess_fn(*split.join(arrays))
        return energy_of(arrays)(position), on_supports(position)

    def derivatives(arrays: list[Any], position: Any) -> Any:
        energy, mode = energy_of(arrays), differentiation_of(kernel)
        if mode == "none":
            return None
        if mode == "forward":
            return jax.jvp(energy, (position,), (position,))
        return jax.grad(energy)(position)

    program = program_with(split, computed, position)
    names = primitives_in(program)
    if any("callback" in name for name in names):
        return None
    described = describe_program(program)
    if any(name.startswith("custom_") for name in names):  # whose rules are no part of the program
        described += describe_program(program_with(split, derivatives, position))
    return described


def differentiation_of(kernel: Any) -> str:
    """How a kernel differentiates its potential energy."""
    if isinstance(kernel, HMC):
        return "forward" if kernel._forward_mode_differentiation else "reverse"
    return cast(str, kernel._view.differentiation)


def check_names(extra_fields: Any) -> None:
    """Raise TypeError for what is no sequence of names."""
    if not isinstance(extra_fields, (tuple, list)):
        raise TypeError(f"extra_fields must be a tuple or a list; got {extra_fields!r}.")


def for_chains(function: Function, num_chains: int, position: Any) -> Any:
    """A function of each of vectorized chains; for all the same where there is no position."""
    if jax.tree.leaves(position):
        return jax.vmap(function)(position)
    same = function(position)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_chains, *jnp.shape(x))), same)


def in_batches(function: Function, draws: Any, num_draws: int) -> Any:
    """A function of each draw, of many at once: each alone would cost more than a step does."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), draws)
    # jax.lax.map does not divide arrays without entries into batches
    has_entries = all(map(np.size, jax.tree.leaves((one, jax.eval_shape(function, one)))))
    numbered = jnp.arange(num_draws), draws  # where there is no position, too
    batch_size = BATCH if has_entries else None
    return jax.lax.map(lambda pair: function(pair[1]), numbered, batch_size=batch_size)


def stopped(done: int, lower: int, num_draws: int) -> None:
    """Say what a run has that was stopped; KeyboardInterrupt if it has no draws."""
    if not num_draws:
        where = f"{done} of {lower} of the warm-up" if done < lower else f"{done}, before the first"
        raise KeyboardInterrupt(f"stopped after step {where}: no draws.")
    warnings.warn(
        f"the run was stopped, and {num_draws} draws of each chain are kept. To go on: "
        "mcmc.post_warmup_state = mcmc.last_state, and run again.",
        stacklevel=3,
    )


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; pressed again, it is an error at once.

    In threads, and where a program has a handler of its own, Ctrl-C does what it does.
    """
    is_pressed = threading.Event()
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or usual is not signal.default_int_handler:
        yield is_pressed.is_set
        return

    def pressed(*_: Any) -> None:
        signal.signal(signal.SIGINT, usual)
        is_pressed.set()

    signal.signal(signal.SIGINT, pressed)
    try:
        yield is_pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)
