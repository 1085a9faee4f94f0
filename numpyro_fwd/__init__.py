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
from numpyro_fwd.partial_bayes import GOHSMC, OHSMC
from numpyro_fwd.sgsmc import SGSMC
from numpyro_fwd.smc import LangevinSMC

__all__ = [
    "ALSMMALA",
    "AMAGOLD",
    "AMSMMALA",
    "FMALA",
    "GOHSMC",
    "HPMALA",
    "L2MC",
    "MALA",
    "MMALA",
    "OHSMC",
    "PCFMALA",
    "SGHMC",
    "SGSMC",
    "SMMALA",
    "BlackJAXKernel",
    "LangevinSMC",
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
