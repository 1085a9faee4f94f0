"""Metrics: factors that represent one, and functions that make one from a position."""

from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import (
    InverseMassMatrix,
    absolute,
    check_metric,
    factorize,
    from_precision,
    spectral,
)
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.metrics.metric_functions import (
    HessianMetric,
    Local,
    Metric,
    MetricFn,
    absolute_hessian,
    as_metric,
    clipped_hessian,
    diagonal_hessian,
    fisher,
    mass_matrix,
    softabs_hessian,
)
from blackjax_ext.metrics.structures import (
    IDENTITY,
    Blocks,
    Composed,
    Dense,
    Diagonal,
    Spectral,
    triangular,
)

__all__ = [
    "IDENTITY",
    "Blocks",
    "Composed",
    "Dense",
    "Diagonal",
    "Factor",
    "HessianMetric",
    "InverseMassMatrix",
    "Local",
    "LowRank",
    "Metric",
    "MetricFn",
    "Spectral",
    "absolute",
    "absolute_hessian",
    "as_metric",
    "check_metric",
    "clipped_hessian",
    "diagonal_hessian",
    "factorize",
    "fisher",
    "from_precision",
    "mass_matrix",
    "softabs_hessian",
    "spectral",
    "triangular",
]
