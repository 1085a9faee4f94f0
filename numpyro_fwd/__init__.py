"""NumPyro kernels for gradient- and curvature-aware samplers: ``MCMC(FMALA(model))``."""

import blackjax_ext  # noqa: F401

# isort: split
from numpyro_fwd.compilation import keep_compiled
from numpyro_fwd.densities import Density
from numpyro_fwd.disk import on_disk
from numpyro_fwd.kernels.adaptive_step import AutoMALA
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.centredness import Centredness, reparam_config
from numpyro_fwd.kernels.forward_mode import (
    FMALA,
    MALA,
    PCFMALA,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)
from numpyro_fwd.kernels.minibatch import AMAGOLD, L2MC, SGHMC
from numpyro_fwd.kernels.nuts import AutoNUTS
from numpyro_fwd.kernels.options import Subsampled
from numpyro_fwd.kernels.second_order import ALSMMALA, AMSMMALA, HPMALA, MMALA, SMMALA
from numpyro_fwd.kernels.smc import LangevinSMC
from numpyro_fwd.kernels.smc_summary import PopulationSummary, smc_summary
from numpyro_fwd.meshes import gather, join_processes, make_mesh, shard_rows
from numpyro_fwd.partial_bayes.open_horizon import GOHSMC, OHSMC
from numpyro_fwd.partial_bayes.predicting import Prediction
from numpyro_fwd.partial_bayes.sgsmc import SGSMC
from numpyro_fwd.storage import Until, sample_to

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
    "AutoMALA",
    "AutoNUTS",
    "BlackJAXKernel",
    "Centredness",
    "Density",
    "LangevinSMC",
    "LineFMALA",
    "PCLineFMALA",
    "PopulationSummary",
    "Prediction",
    "RandomWalk",
    "Subsampled",
    "Until",
    "gather",
    "join_processes",
    "keep_compiled",
    "make_mesh",
    "on_disk",
    "reparam_config",
    "sample_to",
    "shard_rows",
    "smc_summary",
]
