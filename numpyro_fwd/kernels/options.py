"""Options that several kernels share, each written once."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import optax

from blackjax_ext.types import Function
from numpyro_fwd.kernels.blocks import DenseMass, GivenMetric
from numpyro_fwd.subsampling.anchors import MODE, check_anchor

__all__ = [
    "ControlVariate",
    "KernelOptions",
    "MinibatchOptions",
    "Subsampled",
    "full_signature",
]

ControlVariate = Literal["second_order"]


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


class MinibatchOptions(KernelOptions, total=False):
    """Keywords every minibatch kernel takes, besides those of :class:`KernelOptions`.

    With a control variate, `dense_mass` is on and `adapt_mass_matrix` off by default: the metric is
    the curvature at the mode.

    Attributes
    ----------
    num_integration_steps
        T, gradients per transition; 10 by default.
    friction
        beta >= 0, in whitened coordinates; None for 1/4, which damps the noise of the gradient.
        For AMAGOLD, None means 0 with a control variate, which leaves little noise, if the
        momentum is resampled.
    resample_momentum
        Draw a new momentum for each trajectory (reversible), the default, or keep it.
    chunk_size
        Rows that a full pass reads at once, which bounds its memory; None for as many as have
        their intermediate results in 32 MiB.
    num_epochs
        Passes over the data, before the warm-up, of an optimizer on minibatches that finds a
        start. None for 3 beyond 512 dimensions, and 0 below, where Newton's path finds it.
    optimizer
        Of optax, for the energy divided by the number of rows; None for Adam.
    """

    num_integration_steps: int
    friction: float | None
    resample_momentum: bool
    chunk_size: int | None
    num_epochs: int | None
    optimizer: optax.GradientTransformation | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Subsampled:
    """The exact test that reads a few rows: ``AMAGOLD(model, acceptance=Subsampled(...))``.

    With these defaults it is what the name "subsampled" stands for.

    Parameters
    ----------
    anchor
        Where the rows are expanded: "mode" of the posterior (with the scales of groups at their own
        most likely values), or a dict with a value for each latent site, in its support, such as
        the mean of the draws of a short run. The sampler is exact with any anchor, since it is
        fixed before the first step; tests read more rows if it is far from the draws. Values of
        deterministic sites are ignored.
    gradient
        What trajectories follow: "expansion", which reads no rows, or "minibatch", which corrects
        it by B rows and had fewer effective draws per second wherever it was measured
        (``docs/algorithms/subsampled.md``). Both are exact. Where rows say little (ten of them, one
        event among a thousand) the tails are heavier than those of the expansion, whose
        trajectories rarely go there: draws may lack them, with R-hat near one. A warning says so;
        "minibatch" or another kernel helps. Models with groups always use the expansion.

    Examples
    --------
    >>> from numpyro_fwd import Subsampled
    >>> test = Subsampled(anchor={"mean": 2.0}, gradient="minibatch")
    """

    anchor: Literal["mode"] | Mapping[str, Any] = MODE
    gradient: Literal["expansion", "minibatch"] = "expansion"

    def __post_init__(self) -> None:
        check_anchor(self.anchor)
        if not isinstance(self.anchor, str):  # what is done to the user's dict changes no run
            object.__setattr__(self, "anchor", dict(self.anchor))
        if not isinstance(self.gradient, str) or self.gradient not in ("expansion", "minibatch"):
            raise ValueError(f'gradient must be "expansion" or "minibatch"; got {self.gradient!r}.')


def full_signature(kernel: type) -> inspect.Signature:
    """Signature of a kernel with each of its options by name, instead of ``**options``."""
    own = inspect.signature(vars(kernel).get("__init__", kernel))
    merged = {
        name: parameter
        for name, parameter in own.parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    rest = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
    shared = get_args(rest[0].annotation) if rest else ()
    names = [name for options in shared for name in options.__annotations__]
    for name in names:
        if name not in merged:
            merged[name] = inherited(kernel, name)
    return inspect.Signature([*merged.values(), *(rest if not shared else [])])


def inherited(kernel: type, name: str) -> inspect.Parameter:
    """The parameter `name` of the nearest parent that has it."""
    for parent in kernel.__mro__[1:]:
        parameters = inspect.signature(vars(parent).get("__init__", parent)).parameters
        if name in parameters:
            parameter = parameters[name]
            default = getattr(kernel, "option_defaults", {}).get(name, parameter.default)
            return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)
    raise TypeError(f"{kernel.__name__} has no option {name}.")
