"""The named kernels, each a BlackJAX algorithm with its target acceptance probability."""

from numpyro_fwd.kernels.forward_mode import (
    FMALA,
    MALA,
    PCFMALA,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)
from numpyro_fwd.kernels.minibatch import AMAGOLD, L2MC, SGHMC
from numpyro_fwd.kernels.second_order import ALSMMALA, AMSMMALA, HPMALA, MMALA, SMMALA

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
    "LineFMALA",
    "PCLineFMALA",
    "RandomWalk",
]
