"""NumPyro's MCMC, whose runs compile once, can be watched, and keep their draws when stopped."""

from numpyro_fwd.mcmc.convergence import Until
from numpyro_fwd.mcmc.handle import Handle
from numpyro_fwd.mcmc.progress import Progress
from numpyro_fwd.mcmc.run import MCMC

__all__ = ["MCMC", "Handle", "Progress", "Until"]
