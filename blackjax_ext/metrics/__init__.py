"""Metrics: factors that represent one, and functions that make one from a position."""

from typing import TYPE_CHECKING

from blackjax_ext import lazy

if TYPE_CHECKING:
    from blackjax_ext.metrics.factor import Factor as Factor
    from blackjax_ext.metrics.factors import InverseMassMatrix as InverseMassMatrix
    from blackjax_ext.metrics.factors import absolute as absolute
    from blackjax_ext.metrics.factors import check_metric as check_metric
    from blackjax_ext.metrics.factors import factorize as factorize
    from blackjax_ext.metrics.factors import from_precision as from_precision
    from blackjax_ext.metrics.factors import spectral as spectral
    from blackjax_ext.metrics.low_rank import LowRank as LowRank
    from blackjax_ext.metrics.metric_functions import HessianMetric as HessianMetric
    from blackjax_ext.metrics.metric_functions import Local as Local
    from blackjax_ext.metrics.metric_functions import Metric as Metric
    from blackjax_ext.metrics.metric_functions import MetricFn as MetricFn
    from blackjax_ext.metrics.metric_functions import absolute_hessian as absolute_hessian
    from blackjax_ext.metrics.metric_functions import as_metric as as_metric
    from blackjax_ext.metrics.metric_functions import clipped_hessian as clipped_hessian
    from blackjax_ext.metrics.metric_functions import diagonal_hessian as diagonal_hessian
    from blackjax_ext.metrics.metric_functions import fisher as fisher
    from blackjax_ext.metrics.metric_functions import mass_matrix as mass_matrix
    from blackjax_ext.metrics.metric_functions import softabs_hessian as softabs_hessian
    from blackjax_ext.metrics.structures import IDENTITY as IDENTITY
    from blackjax_ext.metrics.structures import Blocks as Blocks
    from blackjax_ext.metrics.structures import Composed as Composed
    from blackjax_ext.metrics.structures import Dense as Dense
    from blackjax_ext.metrics.structures import Diagonal as Diagonal
    from blackjax_ext.metrics.structures import Spectral as Spectral
    from blackjax_ext.metrics.structures import triangular as triangular

__getattr__, __dir__, __all__ = lazy.attach(__name__)
