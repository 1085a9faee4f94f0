"""NumPyro kernels for gradient- and curvature-aware samplers: ``MCMC(FMALA(model))``."""

from numpyro_fwd.kernel import BlackJAXKernel
from numpyro_fwd.kernels import (
    ALSMMALA,
    AMSMMALA,
    FMALA,
    HPMALA,
    MALA,
    MMALA,
    PCFMALA,
    SMMALA,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)

__all__ = [
    "ALSMMALA",
    "AMSMMALA",
    "FMALA",
    "HPMALA",
    "MALA",
    "MMALA",
    "PCFMALA",
    "SMMALA",
    "BlackJAXKernel",
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
