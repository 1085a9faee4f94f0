"""Gradient- and curvature-aware samplers as BlackJAX algorithms.

Each public name is called as ``name(logdensity_fn, step_size, ...)``, or with a potential of
:mod:`blackjax_ext.potentials` for those driven by minibatches (`amagold`, `l2mc`, `sghmc`). It
returns a BlackJAX ``SamplingAlgorithm(init, step)``, and has ``.init`` and ``.build_kernel``.
Names are imported when they are first used.
"""

import blackjax_ext.dependencies  # noqa: F401

# isort: split
from typing import TYPE_CHECKING

from blackjax_ext.lazy import attach

if TYPE_CHECKING:
    from blackjax_ext import acceptance as acceptance
    from blackjax_ext import metrics as metrics
    from blackjax_ext import potentials as potentials
    from blackjax_ext.adaptation.run import warmup as warmup
    from blackjax_ext.emulators.rounds import emulate as emulate
    from blackjax_ext.mcmc import schedules as schedules
    from blackjax_ext.mcmc.alsmmala import alsmmala as alsmmala
    from blackjax_ext.mcmc.amsmmala import amsmmala as amsmmala
    from blackjax_ext.mcmc.auto_mala import auto_mala as auto_mala
    from blackjax_ext.mcmc.derivatives import differenced as differenced
    from blackjax_ext.mcmc.emulated import emulated as emulated
    from blackjax_ext.mcmc.fmala import fmala as fmala
    from blackjax_ext.mcmc.hp_mala import hp_mala as hp_mala
    from blackjax_ext.mcmc.line_fmala import line_fmala as line_fmala
    from blackjax_ext.mcmc.mala import mala as mala
    from blackjax_ext.mcmc.mmala import mmala as mmala
    from blackjax_ext.mcmc.pc_fmala import pc_fmala as pc_fmala
    from blackjax_ext.mcmc.pc_line_fmala import pc_line_fmala as pc_line_fmala
    from blackjax_ext.mcmc.random_walk import random_walk as random_walk
    from blackjax_ext.mcmc.smmala import smmala as smmala
    from blackjax_ext.mcmc.tangents import forward_gradient as forward_gradient
    from blackjax_ext.sgmcmc.amagold import amagold as amagold
    from blackjax_ext.sgmcmc.l2mc import l2mc as l2mc
    from blackjax_ext.sgmcmc.sghmc import sghmc as sghmc
    from blackjax_ext.smc import moves as moves
    from blackjax_ext.smc.annealing import anneal as anneal
    from blackjax_ext.smc.langevin_smc import langevin_smc as langevin_smc
    from blackjax_ext.smc.open_horizon import open_horizon_smc as open_horizon_smc
    from blackjax_ext.subsampling import families as families
    from blackjax_ext.subsampling.group_sweeps import group_sweeps as group_sweeps

__getattr__, __dir__, __all__ = attach(__name__)
