"""The named kernel whose steps adapt to the place: for hierarchies without reparametrization."""

from typing import Any, Unpack

from blackjax_ext.mcmc.auto_mala import auto_mala, check_shares
from numpyro_fwd.bridge.hierarchies import ModelHierarchy
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.types import Args, Kwargs, Model

__all__ = ["AutoMALA"]


class AutoMALA(BlackJAXKernel):
    """MALA with a step size selected at each position, and persistent momentum; exact.

    For posteriors whose scale varies, such as centred hierarchies. One gradient for each trial of a
    step, 1 to 3 on average, in reverse mode. `step_size` is that of the first trial, and
    `target_accept_prob`, 0.8 by default, the acceptance probability that this trial alone would
    have.

    Vectorized chains wait for the chain with the most trials; with ``chain_method="parallel"`` they
    do not. Extra fields: "num_steps", the gradients of a step, and "inner.exponent", j for a step
    of 2^j times `step_size`.

    Parameters
    ----------
    model
        NumPyro model.
    persistence
        Of the momentum, from 0 to below 1.
    isotropic_share
        From 0 to 1: how often a step of all coordinates uses the same scale for all of them
        instead of their posterior scales.
    block_share
        From 0 to 1: how often a step moves only some of the sites. Such steps let the scales of a
        hierarchy move where its effects can only take short steps. None for half of the steps if
        the model has effects, and a fifth otherwise.
    interweave
        Whether half of the steps of some sites also move the effects whose location or scale these
        sites are, as in a non-centred model.
    options
        See :class:`BlackJAXKernel`.
    """

    best_accept_prob = 0.8
    correlates_many = True

    def __init__(
        self,
        model: Model | None = None,
        *,
        persistence: float = 0.9,
        isotropic_share: float = 0.1,
        block_share: float | None = None,
        interweave: bool = True,
        **options: Unpack[KernelOptions],
    ):
        check_shares(persistence, isotropic_share, block_share)
        self._interweaves = interweave
        super().__init__(
            model,
            auto_mala,
            persistence=persistence,
            isotropic_share=isotropic_share,
            block_share=block_share,
            **options,
        )

    @property
    def _seeks_effects(self) -> bool:
        return self._interweaves

    def model_parameters(self, model_args: Args, model_kwargs: Kwargs | None) -> dict[str, Any]:
        """The hierarchy of the model, if it has effects."""
        if not self._effects or self._viewed is None:
            return {}
        return {"hierarchy": ModelHierarchy(self._viewed, model_args, model_kwargs, self._effects)}
