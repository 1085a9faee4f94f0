"""Kernels beside AMAGOLD: with the gradient of all rows, and without an acceptance test."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from blackjax_ext.sgmcmc.l2mc import l2mc
from blackjax_ext.sgmcmc.sghmc import sghmc
from numpyro_fwd.kernels.minibatch import ControlVariate, MinibatchKernel, MinibatchOptions
from numpyro_fwd.types import Model


class L2MC(MinibatchKernel):
    """L2MC (Horowitz 1991): AMAGOLD with the gradient of all rows, its full-batch counterpart.

    T gradients and one evaluation on all N rows, in chunks. Without friction it is HMC.
    `target_accept_prob` is 0.65 by default. Models without subsample plates work too.

    Parameters
    ----------
    model
        NumPyro model.
    options
        See :class:`numpyro_fwd.kernels.minibatch.MinibatchOptions`.
    """

    needs_minibatches = False

    def __init__(self, model: Model | None = None, **options: Unpack[MinibatchOptions]):
        super().__init__(model, l2mc, **options)


class SGHMC(MinibatchKernel):
    """SGHMC (Chen, Fox and Guestrin 2014), biased: no acceptance test, no pass over the data.

    T gradients on B rows per transition. The bias grows with the step size, which cannot be
    adapted, and with the noise of the gradient: :class:`AMAGOLD` is the exact kernel.

    Parameters
    ----------
    model
        NumPyro model with subsample plates.
    control_variate
        As for :class:`AMAGOLD`.
    options
        See :class:`numpyro_fwd.kernels.minibatch.MinibatchOptions`; `step_size` is 0.1 by
        default.
    """

    option_defaults: ClassVar[Mapping[str, Any]] = {"step_size": 0.1}

    def __init__(
        self,
        model: Model | None = None,
        *,
        control_variate: ControlVariate | None = "second_order",
        **options: Unpack[MinibatchOptions],
    ):
        for name in ("adapt_step_size", "target_accept_prob"):
            if options.get(name):
                raise ValueError(
                    f"{name} must be left out: SGHMC accepts everything; got {options[name]!r}."
                )
        arguments: dict[str, Any] = {"step_size": 0.1, **options, "adapt_step_size": False}
        super().__init__(model, sghmc, control_variate=control_variate, **arguments)
