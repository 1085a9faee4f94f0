"""NumPyro kernels for gradient- and curvature-aware samplers: ``MCMC(FMALA(model))``."""

from numpyro_fwd.kernel import BlackJAXKernel
from numpyro_fwd.kernels import (
    ALSMMALA,
    AMAGOLD,
    AMSMMALA,
    FMALA,
    HPMALA,
    L2MC,
    MALA,
    MMALA,
    PCFMALA,
    SGHMC,
    SMMALA,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)

__all__ = [
    "ALSMMALA",
    "AMAGOLD",
    "AMSMMALA",
    "FMALA",
    "HPMALA",
    "L2MC",
    "MALA",
    "MMALA",
    "PCFMALA",
    "SGHMC",
    "SMMALA",
    "BlackJAXKernel",
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
