"""The chains of a run as one compiled program, which is called for each piece of it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import NEED_VALUES, split_arguments
from numpyro_fwd.bridge.numpyro_private import is_prng_key
from numpyro_fwd.storage.checkpoints import key_data_of
from numpyro_fwd.types import Args, Kwargs

__all__ = ["Piece", "begin", "fields_of", "latents"]

# statistics that are stored wherever the state of a kernel has them
STATISTICS = ("diverging", "potential_energy", "energy", "accept_prob", "num_steps")
BATCH = 64  # draws whose deterministic sites are computed at once
# ArviZ's names of them
STATISTIC_NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}


def begin(
    mcmc: Any, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs
) -> Any:
    """State before the first step: of vectorized chains, or of each chain stacked.

    It shares no memory with anything, so that it can be given away.
    """
    if is_prng_key(rng_key) and mcmc.num_chains > 1:
        rng_key = jax.random.split(rng_key, mcmc.num_chains)

    def first(rng_key: Array, init_params: Any) -> Any:
        return mcmc.sampler.init(rng_key, mcmc.num_warmup, init_params, model_args, model_kwargs)

    if mcmc.chain_method == "vectorized" or mcmc.num_chains == 1:
        state = first(rng_key, init_params)
    else:
        chains = [
            first(rng_key[c], jax.tree.map(lambda leaf, c=c: leaf[c], init_params))
            for c in range(mcmc.num_chains)
        ]
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *chains)
    if mcmc.post_warmup_state is not None:
        state = mcmc.post_warmup_state._replace(rng_key=state.rng_key)
    state = jax.tree.map(own, state)
    return jax.device_put(state, over_devices(mcmc)) if in_parallel(mcmc) else state


def in_parallel(mcmc: Any) -> bool:
    """Whether each chain has a device."""
    return mcmc.chain_method == "parallel" and mcmc.num_chains > 1


def over_devices(mcmc: Any) -> NamedSharding:
    """A chain on each device."""
    devices = Mesh(np.array(jax.local_devices()[: mcmc.num_chains]), ("chains",))
    return NamedSharding(devices, PartitionSpec("chains"))


def own(leaf: Any) -> Array:
    """A copy of a leaf, of a type that is not weak."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return jnp.array(leaf, copy=True)
    return jnp.array(leaf, dtype=leaf.dtype, copy=True)


def nested(state: Any, name: str) -> Any:
    """A field of a state, or of one of its fields, "adapt_state.step_size"; None if it has none."""
    for part in name.split("."):
        state = state.get(part) if isinstance(state, dict) else getattr(state, part, None)
    return state


def fields_of(mcmc: Any, state: Any, extra_fields: tuple[str, ...]) -> dict[str, str]:
    """Fields of the state that are stored besides the sites, by the names they are stored under.

    Raises
    ------
    ValueError
        For a field that the state has not, or that is not one array.
    """
    kernel = mcmc.sampler
    usual = [name for name in kernel.default_fields if name != kernel.sample_field]
    usual += [name for name in STATISTICS if name not in usual and nested(state, name) is not None]
    asked = [name for name in extra_fields if not name.startswith("~")]
    for name in asked:
        if (value := nested(state, name)) is None:
            known = getattr(state, "_fields", ())
            raise ValueError(
                f"extra_fields must be fields of the kernel's state, {', '.join(known)}, or fields "
                f"of these as 'adapt_state.step_size'; got {name!r}."
            )
        if not hasattr(value, "shape"):
            raise ValueError(f"extra_fields must each be one array; {name!r} holds several.")
    names = dict.fromkeys([*usual, *asked])
    return {STATISTIC_NAMES.get(name, name).replace("/", "."): name for name in names}


class Piece:
    """A program that goes on from a state: some draws, and the state after them.

    Parameters
    ----------
    mcmc
        What to run.
    state
        A state of its chains, for the types.
    fields
        What is stored besides the sites.
    most
        Draws of the longest piece.
    without
        Sites that are not stored.
    model_args, model_kwargs
        Arguments of the model.
    """

    def __init__(
        self,
        mcmc: Any,
        state: Any,
        fields: dict[str, str],
        most: int,
        without: set[str],
        model_args: Args,
        model_kwargs: Kwargs,
    ):
        self.mcmc = mcmc
        self.fields = fields
        self.most = most
        self.without = without
        self.arguments = split_arguments(model_args, model_kwargs)
        self.is_batched = mcmc.chain_method == "vectorized" and mcmc.num_chains > 1
        try:
            self.arrays = list(map(jnp.asarray, self.arguments.arrays))
            self.traced = self.trace(self.run, state)
        except NEED_VALUES:
            # the model needs the values of its arguments: they become constants of the program
            self.arrays = []
            self.traced = self.trace(lambda _, *rest: self.run(self.arguments.arrays, *rest), state)

    def trace(self, run: Function, state: Any) -> Any:
        """The program, traced."""
        # a state that is not needed any more makes room for the next one
        return jax.jit(run, donate_argnums=1).trace(self.arrays, state, jnp.int32(0), jnp.int32(0))

    def compile(self) -> None:
        """Compile it."""
        self.program = self.traced.lower().compile()

    def __call__(self, state: Any, num_draws: int, steps_each: int) -> tuple[Any, Any]:
        """The state after `num_draws` times `steps_each` steps, and the draws, (C, most, ...)."""
        return self.program(self.arrays, state, jnp.int32(num_draws), jnp.int32(steps_each))

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of one draw of one chain, by ``group/name``."""
        _, draws = self.traced.out_info
        return {name: jax.ShapeDtypeStruct(one.shape[2:], one.dtype) for name, one in draws.items()}

    def run(
        self, arrays: list[Any], state: Any, num_draws: Array, steps_each: Array
    ) -> tuple[Any, Any]:
        """Run all chains."""
        one = partial(self.run_one, arrays, num_draws=num_draws, steps_each=steps_each)
        method = self.mcmc.chain_method
        if self.mcmc.num_chains == 1:
            state, draws = one(state)
            return state, {name: values[None] for name, values in draws.items()}
        if method == "vectorized":
            state, draws = one(state)
            return state, {name: jnp.swapaxes(values, 0, 1) for name, values in draws.items()}
        if callable(method):
            return method(one)(state)
        in_sequence = partial(jax.lax.map, one)
        if method == "sequential":
            return in_sequence(state)
        devices, chains = (placed := over_devices(self.mcmc)).mesh, placed.spec
        return jax.shard_map(
            in_sequence, mesh=devices, in_specs=chains, out_specs=chains, check_vma=False
        )(state)

    def run_one(
        self, arrays: list[Any], state: Any, *, num_draws: Array, steps_each: Array
    ) -> tuple[Any, Any]:
        """One chain, or vectorized ones: a buffer of which the first `num_draws` are filled."""
        model_args, model_kwargs = self.arguments.join(arrays)

        def step(_: Array, state: Any) -> Any:
            return self.mcmc.sampler.sample(state, model_args, model_kwargs)

        def draw(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            state, kept = carry
            state = jax.lax.fori_loop(0, steps_each, step, state)
            return state, jax.tree.map(lambda all, one: all.at[i].set(one), kept, self.kept(state))

        one = jax.eval_shape(self.kept, state)
        kept = jax.tree.map(lambda x: jnp.zeros((self.most, *x.shape), x.dtype), one)
        state, (positions, statistics) = jax.lax.fori_loop(0, num_draws, draw, (state, kept))
        # many draws at once: each alone would cost more than a step of a cheap density
        named = partial(self.sites, model_args=model_args, model_kwargs=model_kwargs)
        # jax.lax.map does not divide arrays without entries into batches
        has_entries = all(map(np.size, jax.tree.leaves((one[0], jax.eval_shape(named, one[0])))))
        batch_size = BATCH if has_entries else None
        return state, jax.lax.map(named, positions, batch_size=batch_size) | statistics

    def kept(self, state: Any) -> tuple[Any, dict[str, Array]]:
        """The part of a state that is stored: the position, and statistics by ``group/name``."""
        statistics = {}
        for name, field in self.fields.items():
            value = jnp.asarray(key_data_of(nested(state, field)))
            value = -value if field == "potential_energy" else value
            statistics[f"sample_stats/{name}"] = self.for_each_chain(value)
        return nested(state, self.mcmc.sampler.sample_field), statistics

    def sites(self, position: Any, model_args: Args, model_kwargs: Kwargs) -> dict[str, Array]:
        """All sites at a position, by ``group/name``."""
        kernel = self.mcmc.sampler
        on_supports = self.mcmc.postprocess_fn or kernel.postprocess_fn(model_args, model_kwargs)
        if self.is_batched:
            on_supports = jax.vmap(on_supports)
        stored = {k: v for k, v in by_name(on_supports(position)).items() if k not in self.without}
        check_names(list(stored))
        return {f"posterior/{k.replace('/', '.')}": storable(v) for k, v in stored.items()}

    def for_each_chain(self, value: Array) -> Array:
        """`value`, which vectorized chains may share."""
        num_chains = self.mcmc.num_chains
        if self.is_batched and value.shape[:1] != (num_chains,):
            return jnp.broadcast_to(value, (num_chains, *value.shape))
        return value


def check_names(names: list[str]) -> None:
    """Raise ValueError for sites that the store cannot hold under their names."""
    stored: dict[str, str] = {}
    for name in names:
        stored_as = name.replace("/", ".")
        if stored_as in ("chain", "draw"):
            raise ValueError(
                f"site '{name}' has the name of a dimension of the store: give it another name, or "
                f"leave it out with extra_fields=('~z.{name}',)."
            )
        if stored_as in stored:
            raise ValueError(
                f"sites '{stored[stored_as]}' and '{name}' would both be '{stored_as}' in the "
                "store, where a '/' is a '.': give one of them another name."
            )
        stored[stored_as] = name


def storable(value: Any) -> Array:
    """A value in a dtype that Zarr knows: bfloat16 is not one, and float32 holds its numbers."""
    value = jnp.asarray(value)
    return value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value


def by_name(sites: Any) -> dict[str, Any]:
    """Sites by their names; those of a `potential_fn` as ArviZ names them."""
    if hasattr(sites, "_asdict"):
        sites = sites._asdict()
    if isinstance(sites, dict):
        flat: dict[str, Any] = {}
        for name, value in sites.items():
            is_array = hasattr(value, "shape")
            inner = {} if is_array else {f"{name}.{k}": v for k, v in by_name(value).items()}
            flat |= inner or {name: value}
        return flat
    return {f"Param:{i}": value for i, value in enumerate(jax.tree.leaves(sites))}


def latents(mcmc: Any, state: Any) -> set[str] | None:
    """Names of what is sampled; None if the state does not tell it from deterministic sites."""
    z = nested(state, mcmc.sampler.sample_field)
    return {name.replace("/", ".") for name in by_name(z)} if isinstance(z, dict) else None
