"""Options that several kernels share, each written once."""

import inspect
from typing import Any, TypedDict, get_args

from blackjax_ext.types import Function
from numpyro_fwd.kernels.blocks import DenseMass, GivenMetric

__all__ = ["AS_IT_IS_DONE", "INSTEAD", "KernelOptions", "full_signature", "options_of"]

# arguments of numpyro.infer.NUTS and HMC that ask for what is always done
AS_IT_IS_DONE = {
    **dict.fromkeys(("kinetic_fn", "num_steps", "trajectory_length")),
    **dict.fromkeys(("find_heuristic_step_size", "regularize_mass_matrix"), True),
}
LENGTH = (
    "trajectories of AutoNUTS end where they turn, or at its max_tree_depth; those of AMAGOLD, "
    "L2MC and BlackJAXKernel(model, blackjax.hmc) have num_integration_steps steps."
)
# what to take in place of the others
INSTEAD = {
    "kinetic_fn": "momenta are normal; give their inverse_mass_matrix, or dense_mass.",
    "num_steps": LENGTH,
    "trajectory_length": LENGTH,
    "max_tree_depth": "it has no tree; AutoNUTS has one.",
    "find_heuristic_step_size": "a warm-up that adapts the step size begins with a search for it; "
    "give step_size and adapt_step_size=False for none.",
    "forward_mode_differentiation": "AutoNUTS takes it; FMALA and its kin are in forward mode, and "
    'BlackJAXKernel(..., differentiation="forward").',
    "regularize_mass_matrix": "what is estimated is always regularized; give inverse_mass_matrix "
    "and adapt_mass_matrix=False for a metric of your own.",
}


class KernelOptions(TypedDict, total=False):
    """Keywords that every kernel takes; :class:`numpyro_fwd.BlackJAXKernel` says what they mean."""

    potential_fn: Function | None
    step_size: float
    inverse_mass_matrix: GivenMetric
    adapt_step_size: bool
    adapt_mass_matrix: bool
    dense_mass: DenseMass
    target_accept_prob: float | None
    init_strategy: Function
    warm_start: bool
    chain_batch_size: int | None


def full_signature(kernel: type) -> inspect.Signature:
    """Signature of a kernel with each of its options by name, instead of ``**options``."""
    own = inspect.signature(vars(kernel).get("__init__", kernel))
    merged = {
        name: parameter
        for name, parameter in own.parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    rest = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
    shared = options_of(kernel)
    names = [name for options in shared for name in options.__annotations__]
    for name in names:
        if name not in merged:
            merged[name] = inherited(kernel, name)
    return inspect.Signature([*merged.values(), *(rest if not shared else [])])


def options_of(kernel: type) -> tuple[Any, ...]:
    """The TypedDict of the options that a kernel takes by ``**options``; empty without one."""
    own = inspect.signature(vars(kernel).get("__init__", kernel))
    rest = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
    return get_args(rest[0].annotation) if rest else ()


def inherited(kernel: type, name: str) -> inspect.Parameter:
    """The parameter `name` of the nearest parent that has it."""
    for parent in kernel.__mro__[1:]:
        parameters = inspect.signature(vars(parent).get("__init__", parent)).parameters
        if name in parameters:
            parameter = parameters[name]
            default = getattr(kernel, "option_defaults", {}).get(name, parameter.default)
            return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)
    raise TypeError(f"{kernel.__name__} has no option {name}.")
