"""Potential energies with minibatch gradients: the public names of `rows` and `subsampling`."""

from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.rows.minibatches import Anchor, anchor_at, anchored, control_variate, minibatch
from blackjax_ext.rows.potentials import (
    StochasticPotential,
    check_potential,
    energy_at,
    exact,
    full_batch,
    gaussian_noise,
)
from blackjax_ext.subsampling.expansion import Expansion, expand, expand_groups
from blackjax_ext.subsampling.grouping import GroupedPredictor, grouped_predictor
from blackjax_ext.subsampling.passes import energy
from blackjax_ext.subsampling.predictors import LinearPredictor, linear_predictor
from blackjax_ext.subsampling.remainders import expected_rows
from blackjax_ext.subsampling.row_tests import expanded_minibatch

__all__ = [
    "Anchor",
    "Expansion",
    "GroupedPredictor",
    "LinearPredictor",
    "Pair",
    "StochasticPotential",
    "anchor_at",
    "anchored",
    "check_potential",
    "control_variate",
    "energy",
    "energy_at",
    "exact",
    "expand",
    "expand_groups",
    "expanded_minibatch",
    "expected_rows",
    "full_batch",
    "gaussian_noise",
    "grouped_predictor",
    "linear_predictor",
    "minibatch",
]
