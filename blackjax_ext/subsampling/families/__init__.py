r"""Likelihoods of a row as functions of its predictors, with bounds of their derivatives.

For a response :math:`y` and its predictors :math:`\theta` write
:math:`\phi(\theta) = -\log p(y | \theta)`. A family bounds the third derivatives of :math:`\phi`
over a box around predictors at an anchor, in units of the predictors, and some the fourth ones too.
Local bounds work for families whose derivatives are unbounded globally (a sampled scale, a log
link), and are several times smaller than global ones where these exist.
"""

from blackjax_ext.subsampling.families.counts import (
    beta_binomial,
    negative_binomial_2,
    poisson,
    zero_inflated_poisson,
)
from blackjax_ext.subsampling.families.densities import smooth
from blackjax_ext.subsampling.families.kind import Family, Kind
from blackjax_ext.subsampling.families.locations import (
    gumbel,
    logistic,
    normal,
    student_t,
)
from blackjax_ext.subsampling.families.logits import (
    bernoulli,
    binomial,
    categorical,
    negative_binomial,
    ordered_logistic,
)
from blackjax_ext.subsampling.families.positive import beta, exponential, gamma, weibull

__all__ = [
    "Family",
    "Kind",
    "bernoulli",
    "beta",
    "beta_binomial",
    "binomial",
    "categorical",
    "exponential",
    "gamma",
    "gumbel",
    "logistic",
    "negative_binomial",
    "negative_binomial_2",
    "normal",
    "ordered_logistic",
    "poisson",
    "smooth",
    "student_t",
    "weibull",
    "zero_inflated_poisson",
]
