"""MALA and a random walk: the references of the other families."""

from blackjax_ext.mcmc.mala import mala
from blackjax_ext.mcmc.random_walk import random_walk
from numpyro_fwd.kernels.named import NamedKernel


class RandomWalk(NamedKernel):
    """Random-walk Metropolis, preconditioned: the reference.

    One evaluation of the density per step. `target_accept_prob` is 0.234 by default. Only the warm
    start uses derivatives, if the model has any; with ``warm_start=False`` none are looked for.
    """

    algorithm = random_walk
    differentiation = "none"
    best_accept_prob = 0.234  # Roberts, Gelman and Gilks 1997


class MALA(NamedKernel):
    """Metropolis-adjusted Langevin algorithm, preconditioned (Roberts and Tweedie 1996).

    One gradient per step, in reverse mode. `target_accept_prob` is 0.574 by default.
    """

    algorithm = mala
    best_accept_prob = 0.574  # Roberts and Rosenthal 1998
    correlates_many = True
