"""Laws of effects, sites of a model whose laws have parameters that are sampled.

An effect is given by its noise if its law is that of a function of the noise and of parameters:

- a location and a scale (Normal, StudentT, ...): ``loc + scale z``;
- a scale on the positive half line (HalfNormal, ...): ``scale z``, a shift of the logarithm;
- a shape (Gamma, Beta, Dirichlet, ...): about a location and a scale of logarithms or logits;
- a location and a factor of a covariance (MultivariateNormal, also of low rank): ``loc + L z``;
- a random walk of a scale: ``cumsum(scale z)``.

A law with a location and a scale may be transformed, by others and by what takes unconstrained
values to the support, as in ``TransformedDistribution(Normal(loc, scale), ExpTransform())``.

For given parameters all are affine maps from the noise to the unconstrained value
(:mod:`blackjax_ext.coordinates.laws`). Coordinates by them are exact whatever the model is; the
table decides only where they are worth while.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import biject_to, constraints, transforms

from blackjax_ext.coordinates.laws import (
    ColumnsNoise,
    Law,
    LocFactor,
    LocScale,
    LocScaleNoise,
    coarseness_of,
)
from blackjax_ext.coordinates.sequences import StateSpace, Waves, followed, walk

WRAPPERS = dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution


class LawOf(NamedTuple):
    """The law of the unconstrained values of a distribution.

    law
        Its kind, a function of parameters.
    made_of
        The parameters, from the distribution.
    """

    law: Callable[..., Law]
    made_of: Callable[[Any], tuple[Any, ...]]

    def __call__(self, fn: Any) -> Law:
        """The law of `fn`."""
        return self.law(*self.made_of(fn))


def by_scale(scale: Callable[[Any], Any]) -> LawOf:
    """Of a law on the positive half line: the logarithm is shifted."""
    return LawOf(LocScale, lambda fn: (jnp.log(scale(fn)), 1.0))


def of_gamma(fn: Any) -> tuple[Array, Array, Array]:
    """Location, scale and coarseness of the logarithm of a gamma variate."""
    mean, variance = log_gamma_moments(fn.concentration)
    return mean - jnp.log(fn.rate), jnp.sqrt(variance), coarseness_of(fn.concentration)


def of_inverse_gamma(fn: Any) -> tuple[Array, Array, Array]:
    """Location, scale and coarseness of the logarithm of the inverse of a gamma variate."""
    loc, scale, coarseness = of_gamma(fn)
    return -loc, scale, coarseness


def of_beta(fn: Any) -> tuple[Array, Array, Array]:
    """Location, scale and coarseness of the logit of a beta variate."""
    return of_odds(fn.concentration1, fn.concentration0)


def of_dirichlet(fn: Any) -> tuple[Array, Array, Array]:
    """Location, scale and coarseness of the logits of broken sticks, which are beta variates."""
    shape = fn.concentration
    rest = jnp.cumsum(shape[..., :0:-1], -1)[..., ::-1]
    loc, scale, coarseness = of_odds(shape[..., :-1], rest)
    # NumPyro's StickBreakingTransform has equal shares at zero
    return loc + jnp.log(jnp.arange(rest.shape[-1], 0, -1)), scale, coarseness


def of_odds(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Location, scale and coarseness of the log ratio of two gamma variates of these shapes."""
    (m1, v1), (m2, v2) = map(log_gamma_moments, (first, second))
    return m1 - m2, jnp.sqrt(v1 + v2), coarseness_of(first + second)


def log_gamma_moments(shape: Array) -> tuple[Array, Array]:
    """Mean and variance of the logarithm of a gamma variate of scale one, to 2 % of the scale.

    By one step of the recurrences of the digamma and trigamma functions, and their asymptotes.
    """
    inverse = 1 / shape  # the square of a whole number may overflow
    return jnp.log(shape + 0.5) - inverse, 1 / (shape + 0.5) + inverse**2


def low_rank_factor(fn: dist.LowRankMultivariateNormal) -> Any:
    """The Cholesky factor of the covariance, of its root by rows.

    The covariance itself has not the digits: where the diagonal is below 1e-7 of the squares of the
    factor, in single precision, it is singular.
    """
    size = fn.loc.shape[-1]
    factor = jnp.swapaxes(fn.cov_factor, -1, -2)
    scales = jnp.sqrt(fn.cov_diag)[..., None, :] * jnp.eye(size)
    batch = jnp.broadcast_shapes(factor.shape[:-2], scales.shape[:-2])
    # the larger rows first, of which rounding would hide the others
    parts = [jnp.broadcast_to(part, (*batch, *part.shape[-2:])) for part in (factor, scales)]
    root = jnp.linalg.qr(jnp.concatenate(parts, axis=-2), mode="r")
    signs = jnp.where(jnp.diagonal(root, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return jnp.swapaxes(signs[..., None] * root, -1, -2)


def of_states(fn: dist.GaussianStateSpace) -> tuple[Array, Array, Array]:
    """Means of the states of a state space model, the factor of their noise and the transition."""
    states = StateSpace(0.0, fn.scale_tril[..., None, :, :], jnp.asarray(fn.transition_matrix))
    start = jnp.asarray(fn.initial_value)
    first = jnp.einsum("ij,...j->...i", states.transition, start)
    steps = jnp.zeros((*first.shape[:-1], fn.num_steps, first.shape[-1]), first.dtype)
    loc = followed(states.transition, steps.at[..., 0, :].set(first))
    return states._replace(loc=loc)


FREE = LawOf(LocScale, lambda fn: (0.0, 1.0))  # noise is the value itself
LOC_SCALE = LawOf(LocScale, lambda fn: (fn.loc, fn.scale))
# unconstrained values are logarithms where the support is positive
MAPS: dict[type, LawOf] = {
    dist.Cauchy: LOC_SCALE,
    dist.Gumbel: LOC_SCALE,
    dist.Laplace: LOC_SCALE,
    dist.LogNormal: LOC_SCALE,
    dist.Logistic: LOC_SCALE,
    dist.Normal: LOC_SCALE,
    dist.StudentT: LOC_SCALE,
    dist.Exponential: by_scale(lambda fn: 1 / fn.rate),
    dist.Gamma: LawOf(LocScale, of_gamma),
    dist.HalfCauchy: by_scale(lambda fn: fn.scale),
    dist.HalfNormal: by_scale(lambda fn: fn.scale),
    dist.InverseGamma: LawOf(LocScale, of_inverse_gamma),
    # a Gumbel variate of scale 1 / k, the mean of which is minus Euler's constant times that
    dist.Weibull: LawOf(
        LocScale,
        lambda fn: (jnp.log(fn.scale) - np.euler_gamma / fn.concentration, 1 / fn.concentration),
    ),
    dist.Beta: LawOf(LocScale, of_beta),
    dist.BetaProportion: LawOf(LocScale, of_beta),
    dist.Dirichlet: LawOf(LocScale, of_dirichlet),
    dist.LowRankMultivariateNormal: LawOf(LocFactor, lambda fn: (fn.loc, low_rank_factor(fn))),
    dist.MultivariateNormal: LawOf(LocFactor, lambda fn: (fn.loc, fn.scale_tril)),
    # what is not constrained of it are normals, whose scales are those of the axes of the event
    dist.ZeroSumNormal: LawOf(LocScale, lambda fn: (0.0, fn.scale)),
    dist.GaussianRandomWalk: LawOf(walk, lambda fn: (fn.scale, fn.num_steps)),
    dist.GaussianStateSpace: LawOf(StateSpace, of_states),
}


def bare(fn: dist.Distribution) -> dist.Distribution:
    """The distribution under independent dimensions, expansions and masks."""
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    return fn


def mask_of(fn: dist.Distribution) -> Any:
    """Where a distribution has a density, True or of a shape that broadcasts to its values."""
    mask: Any = True
    while isinstance(fn, WRAPPERS):
        own = fn._mask if isinstance(fn, dist.MaskedDistribution) else True
        if own is not True:
            own = jnp.broadcast_to(jnp.asarray(own), fn.batch_shape)
            mask = jnp.expand_dims(own, [*range(-fn.event_dim, 0)]) & mask
        fn = fn.base_dist
    return mask


def law_of(fn: Any) -> Law:
    """The law of a distribution's unconstrained values; that of noise if the table has none.

    Where a mask takes the density away, too: what is flat has no coordinates that depend on others.
    """
    inner, mask = bare(fn), mask_of(fn)
    is_shifted = isinstance(inner, dist.TransformedDistribution) and is_affine(inner)
    law = MAPS.get(type(inner), TRANSFORMED if is_shifted else FREE)(inner)
    return law if mask is True else kept(law, mask, 1.0)


def kept(law: Law, mask: Any, free: float) -> Law:
    """The law where the mask is; elsewhere, and of a walk, a location of 0 and a scale `free`."""
    if isinstance(law, LocFactor):
        if isinstance(law, ColumnsNoise):  # whose location and factor lead with the last axis
            mask = jnp.broadcast_to(mask, law.loc.T.shape).T
        identity = free * jnp.eye(law.factor.shape[-1], dtype=law.factor.dtype)
        both = mask[..., :, None] & mask[..., None, :]  # a component is seen by itself and others
        factor = jnp.where(both, law.factor, identity)
        return type(law)(jnp.where(mask, law.loc, 0.0), factor)
    if isinstance(law, Waves) or not isinstance(law, LocScale):
        return (LocScaleNoise if law.is_noise else LocScale)(0.0, jnp.full((), free))
    coarseness = None if law.coarseness is None else jnp.where(mask, law.coarseness, 0.0)
    return type(law)(jnp.where(mask, law.loc, 0.0), jnp.where(mask, law.scale, free), coarseness)


def steps_of(fn: dist.TransformedDistribution) -> list[transforms.Transform]:
    """The transforms between the base of a distribution and its unconstrained values."""
    *steps, last = fn.transforms
    support = biject_to(fn.support)
    while isinstance(support, transforms.IndependentTransform):
        support = support.base_transform
    is_support = type(last) is type(support) and isinstance(
        last, (transforms.ExpTransform, transforms.SigmoidTransform)
    )
    return steps if is_support else [*steps, last]


def is_affine(fn: dist.TransformedDistribution) -> bool:
    """Whether the unconstrained values are those of a location and a scale, shifted and scaled."""
    base = bare(fn.base_dist)
    is_real = MAPS.get(type(base)) is LOC_SCALE and base.support is constraints.real
    return is_real and all(type(step) is transforms.AffineTransform for step in steps_of(fn))


def affine(fn: dist.TransformedDistribution) -> tuple[Any, Any]:
    """Location and scale of the unconstrained values."""
    base = bare(fn.base_dist)
    loc, scale = base.loc, base.scale
    for step in steps_of(fn):
        loc, scale = step.loc + step.scale * loc, step.scale * scale
    return loc, scale


TRANSFORMED = LawOf(LocScale, affine)
