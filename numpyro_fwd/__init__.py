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
from numpyro_fwd.partial_bayes import GOHSMC, OHSMC, SGSMC
from numpyro_fwd.smc import LangevinSMC

__all__ = [
    "ALSMMALA",
    "AMSMMALA",
    "FMALA",
    "GOHSMC",
    "HPMALA",
    "MALA",
    "MMALA",
    "OHSMC",
    "PCFMALA",
    "SGSMC",
    "SMMALA",
    "BlackJAXKernel",
    "LangevinSMC",
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
