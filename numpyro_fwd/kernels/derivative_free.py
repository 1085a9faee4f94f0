"""The random walk, which needs no derivative: the reference of all others."""

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
