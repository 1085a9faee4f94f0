"""Gradient- and curvature-aware samplers as BlackJAX algorithms.

Each public name is called as ``name(logdensity_fn, step_size, ...)``, returns a BlackJAX
``SamplingAlgorithm(init, step)``, and has ``.init`` and ``.build_kernel``.
"""

from blackjax import generate_top_level_api_from

from blackjax_ext.mcmc import fmala as _fmala
from blackjax_ext.mcmc import line_fmala as _line_fmala
from blackjax_ext.mcmc import mala as _mala
from blackjax_ext.mcmc import metrics
from blackjax_ext.mcmc import pc_fmala as _pc_fmala
from blackjax_ext.mcmc import pc_line_fmala as _pc_line_fmala
from blackjax_ext.mcmc import random_walk as _random_walk

fmala = generate_top_level_api_from(_fmala)
line_fmala = generate_top_level_api_from(_line_fmala)
mala = generate_top_level_api_from(_mala)
pc_fmala = generate_top_level_api_from(_pc_fmala)
pc_line_fmala = generate_top_level_api_from(_pc_line_fmala)
random_walk = generate_top_level_api_from(_random_walk)

__all__ = [
    "fmala",
    "line_fmala",
    "mala",
    "metrics",
    "pc_fmala",
    "pc_line_fmala",
    "random_walk",
]
