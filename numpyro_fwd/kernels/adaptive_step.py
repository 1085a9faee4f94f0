"""The named kernel whose steps adapt to the place."""

from typing import Unpack

from blackjax_ext.mcmc.auto_mala import auto_mala, check_persistence
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.types import Model

__all__ = ["AutoMALA"]


class AutoMALA(BlackJAXKernel):
    """MALA with a step size selected at each position, and persistent momentum; exact.

    For posteriors whose scale varies. One gradient for each trial of a step, 1 to 3 on average, in
    reverse mode. `step_size` is that of the first trial, and `target_accept_prob`, 0.8 by default,
    the acceptance probability that this trial alone would have. Hierarchies are sampled as they are
    written, in coordinates of their effects that the warm-up learns, as that of :class:`AutoNUTS`.

    Vectorized chains wait for the chain with the most trials; with ``chain_method="parallel"`` they
    do not. Extra fields: "num_steps", the gradients of a step, and "inner.exponent", j for a step
    of 2^j times `step_size`.

    Parameters
    ----------
    model
        NumPyro model.
    persistence
        Of the momentum, from 0 to below 1.
    learn_coordinates
        Whether to learn coordinates; if not, effects are sampled as they are written.
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
        learn_coordinates: bool = True,
        **options: Unpack[KernelOptions],
    ):
        check_persistence(persistence)
        super().__init__(
            model,
            auto_mala,
            persistence=persistence,
            learn_coordinates=learn_coordinates,
            **options,
        )
