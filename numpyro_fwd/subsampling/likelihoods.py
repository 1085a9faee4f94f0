"""How distributions of NumPyro are read: their predictors in coordinates without ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from blackjax_ext.subsampling.families import (
    counts,
    locations,
    logits,
    positive,
)
from blackjax_ext.subsampling.families.kind import Kind


@dataclass(frozen=True)
class Reading:
    """How a distribution is read.

    Attributes
    ----------
    kind
        Its family, from the distribution.
    predictors
        The predictors of the family in their order, from the distribution.
    data
        What else the loss needs, each from the distribution.
    response
        The response of the family, from the value of the site.
    has_classes
        Whether the predictor has an axis of its own, of classes.
    """

    kind: Callable[[Any], Kind]
    predictors: Callable[[Any], tuple[Array, ...]]
    data: dict[str, Callable[[Any], Array]] = field(default_factory=dict)
    response: Callable[[Array], Array] = lambda value: value
    has_classes: bool = False


def always(kind: Kind, predictors: Callable[[Any], tuple[Array, ...]], **how: Any) -> Reading:
    """The reading of a class whose distributions have one kind."""
    return Reading(lambda fn: kind, predictors, **how)


def by_logits(kind: Kind, **how: Any) -> Reading:
    """The reading of a class with log odds."""
    return always(kind, lambda fn: (fn.logits,), **how)


def by_scale(kind: Kind, **how: Any) -> Reading:
    """The reading of a class with a location and a scale."""
    return always(kind, lambda fn: (fn.loc, jnp.log(fn.scale)), **how)


def predictors_of_gamma(fn: Any) -> tuple[Array, Array]:
    """Log mean and log concentration, of a concentration and a rate."""
    return jnp.log(fn.concentration) - jnp.log(fn.rate), jnp.log(fn.concentration)


def predictors_of_beta(fn: Any) -> tuple[Array, Array]:
    """Log odds of the mean and log precision, of two concentrations."""
    one, zero = fn.concentration1, fn.concentration0
    return jnp.log(one) - jnp.log(zero), jnp.log(one + zero)


def of_cutpoints(fn: Any) -> tuple[Array, ...]:
    """The predictor less the first cutpoint, and the logarithms of the gaps."""
    gaps = jnp.log(jnp.diff(fn.cutpoints, axis=-1))
    return fn.predictor - fn.cutpoints[..., 0], *jnp.moveaxis(gaps, -1, 0)


TRIALS: dict[str, Any] = {"total_count": lambda fn: fn.total_count}
READINGS: dict[type, Reading] = {
    dist.BernoulliLogits: by_logits(logits.BERNOULLI),
    dist.Beta: always(positive.BETA, predictors_of_beta),
    dist.BetaBinomial: always(counts.BETA_BINOMIAL, predictors_of_beta, data=TRIALS),
    dist.BetaProportion: always(positive.BETA, predictors_of_beta),
    dist.BinomialLogits: by_logits(logits.BINOMIAL, data=TRIALS),
    dist.CategoricalLogits: by_logits(logits.CATEGORICAL, has_classes=True),
    dist.Cauchy: always(locations.STUDENT_T, lambda fn: (fn.loc, jnp.log(fn.scale), jnp.zeros(()))),
    dist.Exponential: always(positive.GAMMA, lambda fn: (-jnp.log(fn.rate), jnp.zeros(()))),
    dist.Gamma: always(positive.GAMMA, predictors_of_gamma),
    dist.GammaPoisson: always(counts.NEGATIVE_BINOMIAL_2, predictors_of_gamma),
    dist.Gumbel: by_scale(locations.GUMBEL),
    # one over the response is gamma
    dist.InverseGamma: always(
        positive.GAMMA,
        lambda fn: predictors_of_gamma(fn.base_dist),
        response=lambda value: 1 / value,
    ),
    dist.LogNormal: by_scale(locations.NORMAL, response=jnp.log),
    dist.Logistic: by_scale(locations.LOGISTIC),
    dist.NegativeBinomial2: always(counts.NEGATIVE_BINOMIAL_2, predictors_of_gamma),
    dist.NegativeBinomialLogits: by_logits(logits.NEGATIVE_BINOMIAL, data=TRIALS),
    dist.Normal: by_scale(locations.NORMAL),
    dist.OrderedLogistic: Reading(
        lambda fn: logits.ordered_kind(fn.cutpoints.shape[-1]), of_cutpoints
    ),
    dist.Poisson: always(counts.POISSON, lambda fn: (jnp.log(fn.rate),)),
    dist.StudentT: always(
        locations.STUDENT_T, lambda fn: (fn.loc, jnp.log(fn.scale), jnp.log(fn.df))
    ),
    dist.Weibull: always(
        positive.WEIBULL, lambda fn: (jnp.log(fn.scale), jnp.log(fn.concentration))
    ),
    dist.ZeroInflatedPoisson: always(
        counts.ZERO_INFLATED_POISSON,
        lambda fn: (jnp.log(fn.rate), jnp.log(fn.gate) - jnp.log1p(-fn.gate)),
    ),
}
BY_LOGITS = "give it logits instead of probabilities"
REFUSED = {
    "BernoulliProbs": BY_LOGITS,
    "BinomialProbs": BY_LOGITS,
    "CategoricalProbs": BY_LOGITS,
    "IntervalCensoredDistribution": (
        "its values are pairs; a distribution of your own with the ends as arguments can be read, "
        "whose log_prob is log S(a) + log(-expm1(log S(b) - log S(a))) with the survival "
        "probabilities S"
    ),
    "Laplace": "it has a kink; Logistic is smooth and has the same tails",
    "Unit": (
        "a numpyro.factor names no parameters; give a distribution of your own whose log_prob it "
        "is, with what it is made of as scalar arguments that arg_constraints names"
    ),
    "MaskedDistribution": "rows that are masked cannot be read; leave them out of the data",
}


def find_reading(fn: Any) -> Reading | None:
    """How to read a distribution, if that is known."""
    return READINGS.get(type(fn))
