"""Options of kernels that read the rows of a model in minibatches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optax

from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.subsampling.anchors import MODE, check_anchor

__all__ = ["ControlVariate", "MinibatchOptions", "Subsampled"]

ControlVariate = Literal["second_order"]


class MinibatchOptions(KernelOptions, total=False):
    """Keywords every minibatch kernel takes, besides those of ``KernelOptions``.

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
