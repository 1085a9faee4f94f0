"""NumPyro kernels for gradient- and curvature-aware samplers: ``MCMC(FMALA(model))``."""

import blackjax_ext  # noqa: F401

# isort: split
from typing import TYPE_CHECKING

from blackjax_ext.lazy import attach

if TYPE_CHECKING:
    from blackjax_ext.emulators.marking import expensive as expensive
    from numpyro_fwd.compilation import keep_compiled as keep_compiled
    from numpyro_fwd.densities import Density as Density
    from numpyro_fwd.disk import on_disk as on_disk
    from numpyro_fwd.kernels.adaptive_step import AutoMALA as AutoMALA
    from numpyro_fwd.kernels.base import BlackJAXKernel as BlackJAXKernel
    from numpyro_fwd.kernels.coordinates import Centredness as Centredness
    from numpyro_fwd.kernels.coordinates import reparam_config as reparam_config
    from numpyro_fwd.kernels.derivative_free import RandomWalk as RandomWalk
    from numpyro_fwd.kernels.emulated import Emulated as Emulated
    from numpyro_fwd.kernels.emulated import EmulatorReport as EmulatorReport
    from numpyro_fwd.kernels.first_order import MALA as MALA
    from numpyro_fwd.kernels.forward_mode import FMALA as FMALA
    from numpyro_fwd.kernels.forward_mode import PCFMALA as PCFMALA
    from numpyro_fwd.kernels.forward_mode import LineFMALA as LineFMALA
    from numpyro_fwd.kernels.forward_mode import PCLineFMALA as PCLineFMALA
    from numpyro_fwd.kernels.minibatch import AMAGOLD as AMAGOLD
    from numpyro_fwd.kernels.nuts import AutoNUTS as AutoNUTS
    from numpyro_fwd.kernels.second_order import ALSMMALA as ALSMMALA
    from numpyro_fwd.kernels.second_order import AMSMMALA as AMSMMALA
    from numpyro_fwd.kernels.second_order import HPMALA as HPMALA
    from numpyro_fwd.kernels.second_order import MMALA as MMALA
    from numpyro_fwd.kernels.second_order import SMMALA as SMMALA
    from numpyro_fwd.kernels.sghmc import L2MC as L2MC
    from numpyro_fwd.kernels.sghmc import SGHMC as SGHMC
    from numpyro_fwd.kernels.smc import LangevinSMC as LangevinSMC
    from numpyro_fwd.kernels.smc_summary import PopulationSummary as PopulationSummary
    from numpyro_fwd.kernels.smc_summary import smc_summary as smc_summary
    from numpyro_fwd.mcmc import MCMC as MCMC
    from numpyro_fwd.mcmc import Until as Until
    from numpyro_fwd.meshes import gather as gather
    from numpyro_fwd.meshes import join_processes as join_processes
    from numpyro_fwd.meshes import make_mesh as make_mesh
    from numpyro_fwd.meshes import shard_rows as shard_rows
    from numpyro_fwd.partial_bayes.ohsmc import OHSMC as OHSMC
    from numpyro_fwd.partial_bayes.open_horizon import GOHSMC as GOHSMC
    from numpyro_fwd.partial_bayes.predicting import Prediction as Prediction
    from numpyro_fwd.partial_bayes.sgsmc import SGSMC as SGSMC
    from numpyro_fwd.storage import sample_to as sample_to

__getattr__, __dir__, __all__ = attach(__name__)
