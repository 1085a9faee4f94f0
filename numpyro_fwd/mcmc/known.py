"""Programs of earlier runs, and what they depend on besides the shapes of their arguments."""

from typing import Any, cast

import jax
from numpyro.infer import HMC, NUTS

from blackjax_ext.equations import primitives_in
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import SplitArguments, program_with
from numpyro_fwd.bridge.fingerprints import KnownPrograms, describe_program
from numpyro_fwd.bridge.numpyro_private import has_own_steps, nested_attrgetter
from numpyro_fwd.kernels.strategy import WholeDensity


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
