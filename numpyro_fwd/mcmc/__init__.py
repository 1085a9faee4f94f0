"""NumPyro's MCMC, whose runs compile once, can be watched, and keep their draws when stopped."""

from numpyro_fwd.mcmc.handle import Handle
from numpyro_fwd.mcmc.progress import Progress
from numpyro_fwd.mcmc.run import MCMC
from numpyro_fwd.mcmc.until import Until

__all__ = ["MCMC", "Handle", "Progress", "Until"]
