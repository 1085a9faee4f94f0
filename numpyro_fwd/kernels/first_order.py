"""MALA, the reference of the families that take derivatives."""

from blackjax_ext.mcmc.mala import mala
from numpyro_fwd.kernels.named import NamedKernel


class MALA(NamedKernel):
    """Metropolis-adjusted Langevin algorithm, preconditioned (Roberts and Tweedie 1996).

    One gradient per step, in reverse mode. `target_accept_prob` is 0.574 by default.
    """

    algorithm = mala
    best_accept_prob = 0.574  # Roberts and Rosenthal 1998
    correlates_many = True
