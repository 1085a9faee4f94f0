"""The chains of a run as compiled programs, which are kept for the next run.

Chains advance by one program, for warm-up and draws: it takes the data, the state and room for
draws, and goes on from step i to step j. Another makes of the positions what the user gets. Those
of earlier runs are taken again where all is the same on which they depend.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.infer import HMC, NUTS

from blackjax_ext.equations import primitives_in
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import NEED_VALUES, SplitArguments, program_with, split_arguments
from numpyro_fwd.bridge.fingerprints import KnownPrograms, describe_program, key_of_program
from numpyro_fwd.bridge.numpyro_private import (
    forget_steps,
    has_own_steps,
    is_prng_key,
    nested_attrgetter,
)
from numpyro_fwd.kernels.strategy import WholeDensity
from numpyro_fwd.types import Args, Kwargs


class Known(KnownPrograms):
    """The programs that were used last.

    Attributes
    ----------
    begun
        The step that the kernel made when it began last, and the warm-up that it made it for.
    """

    def __init__(self) -> None:
        super().__init__(8)  # pairs of programs
        self.begun: tuple[Any, int] = None, 0


def key_of_run(chains: Any, collected: Any, state: Any) -> Any:
    """What a program depends on; None for one that is not taken again."""
    kernel, mcmc, split = chains.kernel, chains.mcmc, chains.split
    is_whole = isinstance(getattr(kernel, "_strategy_of_run", None), WholeDensity)
    steps, num_warmup = chains.known.begun
    is_known = is_whole or (type(kernel) in (HMC, NUTS) and has_own_steps(kernel, steps))
    if split.key is None or not is_known:
        return None
    shapes = tuple(map(jax.typeof, jax.tree.leaves((split.arrays, state))))
    of_run = mcmc.num_chains, mcmc.chain_method, num_warmup, mcmc.thinning, mcmc.postprocess_fn
    of_kernel = kernel, options_of(kernel), options_of(getattr(kernel, "_effects", None))
    key = *of_kernel, split.key, collected, shapes, jax.tree.structure(state), of_run
    try:
        hash(key)
    except TypeError:
        return None
    code = code_of(kernel, split, position_of(chains, state), mcmc.postprocess_fn)
    return code and (*key, code)


def position_of(chains: Any, state: Any) -> Any:
    """Shapes of the position of one chain."""
    lead = int(chains.mcmc.num_chains > 1)
    position = nested_attrgetter(chains.kernel.sample_field)(state)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[lead:], x.dtype), position)


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


BATCH = 64  # draws whose sites are computed at once: each alone would cost more than a step does


class Program:
    """``function(arrays, *rest)`` compiled; with the arrays in it, if the model needs their values.

    Of `donated` arguments the memory is taken for results.
    """

    def __init__(self, function: Function, donated: tuple[int, ...] = ()):
        self.function, self.donated = function, donated
        self.program = jax.jit(function, donate_argnums=donated)
        self.with_values: Function | None = None

    def __call__(self, arrays: list[Any], *rest: Any) -> Any:
        """What it returns for these arguments."""
        return self.called(arrays, rest, lambda program, *given: program(*given))

    def traced(self, arrays: list[Any], *rest: Any) -> Any:
        """The program as JAX traces it, which a call takes again."""
        return self.called(arrays, rest, lambda program, *given: program.trace(*given))

    def called(self, arrays: list[Any], rest: tuple[Any, ...], how: Function) -> Any:
        """``how(program, *arguments)`` of the program that takes these arguments."""
        if self.with_values is None:
            try:
                return how(self.program, arrays, *rest)
            except NEED_VALUES:
                places = tuple(i - 1 for i in self.donated)
                self.with_values = jax.jit(partial(self.function, arrays), donate_argnums=places)
        return how(self.with_values, *rest)


class Programs(NamedTuple):
    """Programs of a run.

    advance
        From arrays of the model, state, room for draws, steps i and j, and the step of the first
        draw in the room, to state and room after step j - 1.
    finish
        From arrays, room and the number of draws in it, to what the user gets of them, (C, n, ...).
    """

    advance: Program
    finish: Program


class Collected(NamedTuple):
    """What a run collects.

    fields
        Fields of the state, the position first.
    without
        Sites of the position that are left out.
    room
        Draws of each chain for which there is room on the device.
    """

    fields: tuple[str, ...]
    without: frozenset[str] = frozenset()
    room: int = 0

    def __call__(self, state: Any) -> tuple[Any, ...]:
        """The fields of a state."""
        found = nested_attrgetter(*self.fields)(state)
        return found if len(self.fields) > 1 else (found,)

    @property
    def padded(self) -> int:
        """Draws of whole batches: in each a draw is computed as in any other."""
        return -(-self.room // BATCH) * BATCH


def without_sites(kernel: Any, extra_fields: tuple[str, ...]) -> frozenset[str]:
    """Sites that are left out: those of fields like "~z.a"."""
    start = f"~{kernel.sample_field}."
    return frozenset(name.removeprefix(start) for name in extra_fields if name.startswith(start))


class Chains:
    """Chains of an MCMC on the arguments of its model.

    Parameters
    ----------
    mcmc
        Any MCMC of NumPyro.
    known
        Programs of earlier runs; None to keep none.
    """

    def __init__(self, mcmc: Any, known: Known | None, model_args: Args, model_kwargs: Kwargs):
        self.mcmc, self.kernel, self.known = mcmc, mcmc.sampler, known
        self.given = model_args, model_kwargs
        self.is_parallel = mcmc.num_chains > 1 and mcmc.chain_method == "parallel"
        # whether chains run one after the other, or on devices, and not in the same steps
        self.is_stacked = mcmc.num_chains > 1 and mcmc.chain_method != "vectorized"
        split = split_arguments(model_args, model_kwargs)
        if self.is_parallel:  # arguments are on the devices of all
            on_all = NamedSharding(self.devices.mesh, PartitionSpec())
            split = split._replace(arrays=jax.device_put(split.arrays, on_all))
        self.split = split

    def begin(self, rng_key: Array, init_params: Any, state: Any = None) -> Any:
        """State before the first step, unless it is given; of chains that are not vectorized, all.

        It shares no memory with anything, so that it can be given away.
        """
        mcmc = self.mcmc
        if mcmc.num_chains > 1 and is_prng_key(rng_key):
            rng_key = jax.random.split(rng_key, mcmc.num_chains)
        init_params = jax.tree.map(jnp.asarray, init_params)
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(init_params)]
        if mcmc.num_chains > 1 and shapes and shapes[0][:1] != (mcmc.num_chains,):
            raise ValueError(
                "`init_params` must have the same leading dimension as `num_chains`, "
                f"{mcmc.num_chains}; got shape {shapes[0]}."
            )
        if mcmc.post_warmup_state is not None:
            own = rng_key[0] if self.kernel.is_ensemble_kernel else rng_key
            state = mcmc.post_warmup_state._replace(rng_key=own)
        if state is None or getattr(self.kernel, "_sample_fn", None) is None:
            first = self.first(rng_key, init_params)
            state = first if state is None else state
        return self.placed(jax.tree.map(strong, state))

    def first(self, rng_key: Array, init_params: Any) -> Any:
        """The state that the kernel makes of keys and starts."""
        if type(self.kernel) in (HMC, NUTS):
            forget_steps(self.kernel)
        num_chains, num_warmup = self.mcmc.num_chains, self.mcmc.num_warmup
        init = partial(self.kernel.init, model_args=self.given[0], model_kwargs=self.given[1])
        if self.is_stacked:
            each = [
                init(rng_key[c], num_warmup, jax.tree.map(lambda x, c=c: x[c], init_params))
                for c in range(num_chains)
            ]
            state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        else:
            state = init(rng_key, num_warmup, init_params)
        if self.known is not None:
            self.known.begun = getattr(self.kernel, "_sample_fn", None), num_warmup
        return state

    def placed(self, state: Any) -> Any:
        """The state, of parallel chains each on its device."""
        return jax.device_put(state, self.devices) if self.is_parallel else state

    @property
    def devices(self) -> NamedSharding:
        """A chain on each device."""
        devices = Mesh(np.array(jax.local_devices()[: self.mcmc.num_chains]), ("chains",))
        return NamedSharding(devices, PartitionSpec("chains"))

    def each(self, function: Function) -> Function:
        """A function of one chain, or of vectorized ones, for the chains of a run."""
        if not self.is_stacked:
            return function

        def of_tuple(leaves: tuple[Any, ...]) -> Any:
            return function(*leaves)

        method = self.mcmc.chain_method
        over = method(of_tuple) if callable(method) else partial(jax.lax.map, of_tuple)
        if self.is_parallel:
            devices, chains = self.devices.mesh, self.devices.spec
            over = jax.shard_map(
                over, mesh=devices, in_specs=(chains,), out_specs=chains, check_vma=False
            )
        return lambda *leaves: over(leaves)

    def room(self, state: Any, collected: Collected) -> Any:
        """Room for draws: (n, ...), for each chain of its own if they are stacked."""

        def room(leaf: Array) -> Array:
            shape = collected.padded, *jnp.shape(leaf)
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            return jnp.broadcast_to(leaf, shape) if is_key else jnp.zeros(shape, leaf.dtype)

        each = jax.vmap(room) if self.is_stacked else room
        return self.placed(jax.tree.map(each, collected(state)))

    def programs(self, collected: Collected, state: Any, room: Any) -> Programs:
        """The programs for these shapes: those of an earlier run, or new ones."""
        without_data = self.without_data(), collected  # which programs keep
        advance, finish = partial(steps, *without_data), partial(finished, *without_data)
        programs = Programs(Program(advance, (1, 2)), Program(finish))
        if self.known is None:
            return programs
        key = key_of_run(self, collected, state)
        if key is None:  # what they are is seen by tracing them, which takes longer
            arrays, structure = self.split.arrays, jax.tree.structure(state)
            traced = programs.advance.traced(arrays, state, room, 0, 0, 0)
            of_finish = key_of_program(programs.finish.traced(arrays, room, 0))
            key = of_finish and key_of_program(traced, structure, of_finish)
            return cast(Programs, self.known.take(key, lambda: programs))
        known: Programs = self.known.take(key, lambda: programs)
        if known.advance.with_values or known.finish.with_values:
            self.known.programs[key] = known = programs
        return known

    def without_data(self) -> "Chains":
        """The same with shapes in place of data."""
        chains = object.__new__(Chains)
        chains.__dict__ = {
            **self.__dict__,
            "split": self.split.without_data(),
            "given": None,
            "known": None,
        }
        return chains


def steps(
    chains: Chains,
    collected: Collected,
    arrays: list[Any],
    state: Any,
    room: Any,
    i: Array,
    stop: Array,
    first: Array,
) -> tuple[Any, Any]:
    """State and room after steps `i` to `stop`; what is before the `first` draw is lost."""
    model_args, model_kwargs = chains.split.join(arrays)

    def step(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, room = carry
        state = chains.kernel.sample(state, model_args, model_kwargs)
        place = jnp.maximum(i - first, 0) // chains.mcmc.thinning
        return state, jax.tree.map(lambda all, one: all.at[place].set(one), room, collected(state))

    def of_one(state: Any, room: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = jax.lax.fori_loop(i, stop, step, (state, room))
        return found

    after: tuple[Any, Any] = chains.each(of_one)(state, room)
    return after


def finished(
    chains: Chains, collected: Collected, arrays: list[Any], room: Any, num_draws: Array
) -> tuple[Any, ...]:
    """Draws as the user gets them: sites on their supports, chains first."""
    mcmc, without = chains.mcmc, collected.without
    on_supports = mcmc.postprocess_fn or chains.kernel.postprocess_fn(*chains.split.join(arrays))
    is_batched = mcmc.num_chains > 1 and not chains.is_stacked
    of_draw = partial(for_chains, on_supports, mcmc.num_chains) if is_batched else on_supports

    def sites(position: Any) -> Any:
        found = of_draw(position)
        return {k: v for k, v in found.items() if k not in without} if without else found

    def of_chain(_: Array, positions: Any) -> Any:
        return in_batches(sites, positions, collected, num_draws)

    position, *rest = room
    found = chains.each(of_chain)(jnp.arange(mcmc.num_chains), position), *rest

    def chains_first(leaf: Array) -> Array:
        if chains.is_stacked:
            return leaf[:, : collected.room]
        if not is_batched:
            return leaf[None, : collected.room]
        if leaf.shape[1:2] != (mcmc.num_chains,):  # what chains share
            leaf = jnp.broadcast_to(leaf[:, None], (len(leaf), mcmc.num_chains, *leaf.shape[1:]))
        return jnp.swapaxes(leaf[: collected.room], 0, 1)

    return jax.tree.map(chains_first, found)


def for_chains(function: Function, num_chains: int, position: Any) -> Any:
    """A function of each of vectorized chains; for all the same where there is no position."""
    if jax.tree.leaves(position):
        return jax.vmap(function)(position)
    same = function(position)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_chains, *jnp.shape(x))), same)


def in_batches(function: Function, room: Any, collected: Collected, num_draws: Array) -> Any:
    """A function of each of the first `num_draws` draws, of a batch of them at once."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), room)
    shapes = jax.eval_shape(function, one)
    found = jax.tree.map(lambda x: jnp.zeros((collected.padded, *x.shape), x.dtype), shapes)
    numbered = jnp.arange(collected.padded), room  # where there is no position, too

    def batch(b: Array, found: Any) -> Any:
        some = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, b * BATCH, BATCH), numbered)
        new = jax.vmap(lambda pair: function(pair[1]))(some)

        def put(all: Array, some: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all, some, b * BATCH, 0)

        return jax.tree.map(put, found, new)

    return jax.lax.fori_loop(0, -(-num_draws // BATCH), batch, found)


def strong(leaf: Any) -> Array:
    """A copy of a leaf, of a type that is not weak."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return jnp.array(leaf, copy=True)
    return jnp.array(leaf, dtype=leaf.dtype, copy=True)
