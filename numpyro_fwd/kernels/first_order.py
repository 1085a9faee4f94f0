"""MALA and a random walk: the references of the other families."""

from typing import Unpack

from blackjax_ext.mcmc.mala import mala
from blackjax_ext.mcmc.random_walk import random_walk
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.types import Model

__all__ = ["MALA", "RandomWalk"]


class RandomWalk(BlackJAXKernel):
    """Random-walk Metropolis, preconditioned: the reference.

    One evaluation of the density per step. `target_accept_prob` is 0.234 by default. Only the warm
    start uses derivatives, if the model has any; with ``warm_start=False`` none are looked for.

    Parameters
    ----------
    model
        NumPyro model.
    options
        See :class:`BlackJAXKernel`.
    """

    best_accept_prob = 0.234  # Roberts, Gelman and Gilks 1997

    def __init__(self, model: Model | None = None, **options: Unpack[KernelOptions]):
        super().__init__(model, random_walk, differentiation="none", **options)


class MALA(BlackJAXKernel):
    """Metropolis-adjusted Langevin algorithm, preconditioned (Roberts and Tweedie 1996).

    One gradient per step, in reverse mode. `target_accept_prob` is 0.574 by default.

    Parameters
    ----------
    model
        NumPyro model.
    options
        See :class:`BlackJAXKernel`.
    """

    best_accept_prob = 0.574  # Roberts and Rosenthal 1998
    correlates_many = True

    def __init__(self, model: Model | None = None, **options: Unpack[KernelOptions]):
        super().__init__(model, mala, **options)
