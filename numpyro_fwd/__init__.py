"""NumPyro kernels for gradient- and curvature-aware samplers: ``MCMC(FMALA(model))``."""

from numpyro_fwd.kernel import BlackJAXKernel
from numpyro_fwd.kernels import FMALA, MALA, PCFMALA, LineFMALA, PCLineFMALA, RandomWalk

__all__ = [
    "FMALA",
    "MALA",
    "PCFMALA",
    "BlackJAXKernel",
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
