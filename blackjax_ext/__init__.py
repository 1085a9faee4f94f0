"""Gradient- and curvature-aware samplers as BlackJAX algorithms.

Each public name is called as ``name(logdensity_fn, step_size, ...)``, or with a potential of
:mod:`blackjax_ext.potentials` for those driven by minibatches (`amagold`, `l2mc`, `sghmc`). It
returns a BlackJAX ``SamplingAlgorithm(init, step)``, and has ``.init`` and ``.build_kernel``.
"""

import blackjax_ext.dependencies  # noqa: F401

# isort: split
import inspect
from types import ModuleType

from blackjax import GenerateSamplingAPI

from blackjax_ext import metrics, potentials
from blackjax_ext.mcmc import alsmmala as _alsmmala
from blackjax_ext.mcmc import amsmmala as _amsmmala
from blackjax_ext.mcmc import auto_fmala as _auto_fmala
from blackjax_ext.mcmc import auto_mala as _auto_mala
from blackjax_ext.mcmc import fmala as _fmala
from blackjax_ext.mcmc import hp_mala as _hp_mala
from blackjax_ext.mcmc import interweaving, schedules
from blackjax_ext.mcmc import line_fmala as _line_fmala
from blackjax_ext.mcmc import mala as _mala
from blackjax_ext.mcmc import mmala as _mmala
from blackjax_ext.mcmc import pc_fmala as _pc_fmala
from blackjax_ext.mcmc import pc_line_fmala as _pc_line_fmala
from blackjax_ext.mcmc import random_walk as _random_walk
from blackjax_ext.mcmc import smmala as _smmala
from blackjax_ext.mcmc.derivatives import differenced
from blackjax_ext.mcmc.forward_gradient import forward_gradient
from blackjax_ext.sgmcmc import acceptance
from blackjax_ext.sgmcmc import amagold as _amagold
from blackjax_ext.sgmcmc import group_sweeps as _group_sweeps
from blackjax_ext.sgmcmc import l2mc as _l2mc
from blackjax_ext.sgmcmc import sghmc as _sghmc
from blackjax_ext.smc import langevin_smc as _langevin_smc
from blackjax_ext.smc import moves
from blackjax_ext.smc import open_horizon as _open_horizon
from blackjax_ext.smc.annealing import anneal
from blackjax_ext.subsampling import families
from blackjax_ext.warmup.run import warmup


class Algorithm(GenerateSamplingAPI):  # type: ignore[misc]  # BlackJAX has no types
    """BlackJAX's interface to a module, with the docstring and the signature of its algorithm."""

    __doc__ = property(lambda self: self.differentiable.__doc__)
    __signature__ = property(lambda self: inspect.signature(self.differentiable))


def public(module: ModuleType) -> Algorithm:
    """The algorithm of a module under its public name."""
    return Algorithm(module.as_top_level_api, module.init, module.build_kernel)


alsmmala = public(_alsmmala)
amagold = public(_amagold)
amsmmala = public(_amsmmala)
auto_fmala = public(_auto_fmala)
auto_mala = public(_auto_mala)
fmala = public(_fmala)
group_sweeps = public(_group_sweeps)
hp_mala = public(_hp_mala)
l2mc = public(_l2mc)
langevin_smc = public(_langevin_smc)
line_fmala = public(_line_fmala)
mala = public(_mala)
mmala = public(_mmala)
open_horizon_smc = public(_open_horizon)
pc_fmala = public(_pc_fmala)
pc_line_fmala = public(_pc_line_fmala)
random_walk = public(_random_walk)
sghmc = public(_sghmc)
smmala = public(_smmala)

__all__ = [
    "acceptance",
    "alsmmala",
    "amagold",
    "amsmmala",
    "anneal",
    "auto_fmala",
    "auto_mala",
    "differenced",
    "families",
    "fmala",
    "forward_gradient",
    "group_sweeps",
    "hp_mala",
    "interweaving",
    "l2mc",
    "langevin_smc",
    "line_fmala",
    "mala",
    "metrics",
    "mmala",
    "moves",
    "open_horizon_smc",
    "pc_fmala",
    "pc_line_fmala",
    "potentials",
    "random_walk",
    "schedules",
    "sghmc",
    "smmala",
    "warmup",
]
