"""Distributions read by their programs: those that would not be made anew as they were."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from numpyro_fwd.subsampling import smooth_likelihoods
from numpyro_fwd.subsampling.smooth_likelihoods import smooth_reading


class Located(dist.Distribution):
    """A density of a location and a scale."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc, scale, *, validate_args=None):
        self.loc, self.scale = jnp.asarray(loc), jnp.asarray(scale)
        super().__init__(jnp.shape(loc), validate_args=validate_args)

    def log_prob(self, value):
        return -jnp.sqrt(1 + ((value - self.loc) / self.scale) ** 2) - jnp.log(self.scale)


class Doubled(Located):
    """One whose scale is not the one it was given."""

    def __init__(self, loc, scale, *, validate_args=None):
        super().__init__(loc, 2 * scale, validate_args=validate_args)


class Steps(Located):
    """One of whole locations."""

    def log_prob(self, value):
        return -0.5 * (value - self.loc.astype(int)) ** 2


class WithoutZeros(dist.NegativeBinomial2):
    """A subclass of a distribution that is read by a formula of its own."""

    def log_prob(self, value):
        shape, rate = self.concentration, self.rate
        lgamma = jax.lax.lgamma
        ways = lgamma(value + shape) - lgamma(shape) - lgamma(value + 1.0)
        of_zero = -shape * jnp.log1p(1 / rate)
        return ways + of_zero - value * jnp.log1p(rate) - jnp.log(-jnp.expm1(of_zero))


class Tempered(dist.ZeroInflatedProbs):
    """A subclass of a zero-inflated distribution with another density."""

    def log_prob(self, value):
        return 0.5 * super().log_prob(value)


COUNTS = dist.NegativeBinomial2(1.5, 2.0)


@pytest.mark.first
@pytest.mark.parametrize(
    ("fn", "y"),
    [
        (Located(0.4, 2.0), 1.3),
        (WithoutZeros(1.5, 2.0), 3.0),
        (dist.ZeroInflatedProbs(COUNTS, 0.2), 0.0),
        (dist.ZeroInflatedLogits(COUNTS, -0.2), 2.0),
        (dist.NegativeBinomialProbs(3.0, 0.3), 2.0),
        (dist.Gompertz(1.2, 0.4), 0.7),
        *[
            (censoring(base, flag), 0.7)
            for censoring in (dist.LeftCensoredDistribution, dist.RightCensoredDistribution)
            for base in (
                *(dist.Exponential(0.7), dist.Gumbel(0.3, 1.4), dist.LogNormal(0.3, 1.4)),
                *(dist.Logistic(0.3, 1.4), dist.Normal(0.3, 1.4), dist.Weibull(1.4, 0.8)),
            )
            for flag in (False, True)
        ],
        (dist.RightCensoredDistribution(dist.Gompertz(1.2, 0.4), True), 0.7),
        (dist.TruncatedNormal(0.3, 1.4, low=-0.5), 0.7),
        (dist.TruncatedNormal(0.3, 1.4, high=1.5), 0.7),
        (dist.TruncatedNormal(0.3, 1.4, low=-0.5, high=1.5), 0.7),
        (dist.LeftTruncatedDistribution(dist.Logistic(0.3, 1.4), -0.5), 0.7),
    ],
    ids=lambda each: type(each).__name__,
)
def test_reads_the_density_that_a_distribution_has(fn, y):
    reading = smooth_reading(fn)
    theta = jnp.stack([jnp.asarray(each, float) for each in reading.predictors(fn)])
    known = {name: of(fn) for name, of in reading.data.items()}
    loss = reading.kind(fn).loss(theta, jnp.asarray(y), **known)
    np.testing.assert_allclose(loss, -fn.log_prob(jnp.asarray(y)), rtol=1e-5)


REFUSED = {
    "Doubled": (Doubled(0.4, 2.0), "made anew .* another density"),
    "Tempered": (Tempered(COUNTS, 0.2), "made anew .* another density"),
    "Steps": (Steps(0.4, 2.0), "primitive 'convert_element_type'.*not smooth"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_distribution_is_refused(name):
    fn, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        smooth_reading(fn)


@pytest.mark.parametrize("name", ["Doubled", "Tempered"])
def test_a_planted_bug_is_found(name, monkeypatch):
    """That nothing is compared."""
    monkeypatch.setattr(smooth_likelihoods, "check_made_anew", lambda structure: None)
    smooth_likelihoods.reading_for.cache_clear()
    try:
        with pytest.raises(pytest.fail.Exception):
            test_what_would_be_another_distribution_is_refused(name)
    finally:
        smooth_likelihoods.reading_for.cache_clear()
