"""The hierarchy of a model: which sites are effects, whose laws have parameters that are sampled.

An effect is given by its noise if its law is that of a function of the noise and of parameters:

- a location and a scale (Normal, StudentT, ...): ``loc + scale z``;
- a scale on the positive half line (HalfNormal, ...): ``scale z``, a shift of the logarithm;
- a shape (Gamma, Beta, Dirichlet, ...): about a location and a scale of logarithms or logits;
- a location and a factor of a covariance (MultivariateNormal, also of low rank): ``loc + L z``;
- a random walk of a scale: ``cumsum(scale z)``.

A law with a location and a scale may be transformed, by others and by what takes unconstrained
values to the support, as in ``TransformedDistribution(Normal(loc, scale), ExpTransform())``.

All are affine maps of the unconstrained value, for given parameters: :class:`NoiseMap`. What such
a map is used for is exact whatever the model is (:mod:`blackjax_ext.mcmc.interweaving`); the table
decides only where it is worth while.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import biject_to, constraints, transforms

from blackjax_ext.coordinates.laws import coarseness_of
from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.precision import exact_products
from numpyro_fwd.bridge.numpyro_private import Messenger, transforms_of
from numpyro_fwd.bridge.traces import sites_at, unwrapped
from numpyro_fwd.types import Args, Kwargs, Model, Site

__all__ = ["ModelHierarchy", "NoiseMap", "effects_of", "map_of"]


class NoiseMap(NamedTuple):
    """From noise to an unconstrained value, and back, for one law.

    made_of
        The parameters of the map, from the distribution.
    out
        Parameters and noise to the value, and the logarithms of the slopes of each coordinate, or
        of the diagonal of the map, of a shape that broadcasts to it.
    into
        Parameters and value to the noise.
    is_whole
        Whether the coordinates of the last axis are mapped together or not at all.
    """

    made_of: Callable[[Any], tuple[Any, ...]]
    out: Callable[..., tuple[Array, Array]]
    into: Callable[..., Array]
    is_whole: bool = False

    def chosen(self, is_noise: Array) -> Array:
        """The coordinates that are mapped."""
        return jnp.broadcast_to(is_noise[..., :1], is_noise.shape) if self.is_whole else is_noise


def shifted(loc: Any, scale: Any, z: Array) -> tuple[Array, Array]:
    """Each coordinate by itself."""
    return loc + scale * z, jnp.log(jnp.abs(scale))


def unshifted(loc: Any, scale: Any, y: Array) -> Array:
    """The noise of :func:`shifted`."""
    return (y - loc) / scale


@exact_products
def mixed(loc: Any, factor: Array, z: Array) -> tuple[Array, Array]:
    """Coordinates of the last axis together, by a lower triangular factor."""
    sizes = jnp.log(jnp.abs(jnp.diagonal(factor, axis1=-2, axis2=-1)))
    return loc + (factor @ z[..., None])[..., 0], sizes


def unmixed(loc: Any, factor: Array, y: Array) -> Array:
    """The noise of :func:`mixed`."""
    rest = y - loc
    factor = jnp.broadcast_to(factor, (*rest.shape, rest.shape[-1]))
    return solve_triangular(factor, rest[..., None], lower=True)[..., 0]


def walked(scale: Any, num_steps: int, z: Array) -> tuple[Array, Array]:
    """Sums along the last axis."""
    del num_steps
    steps, sizes = shifted(0.0, jnp.asarray(scale)[..., None], z)
    return jnp.cumsum(steps, -1), sizes


def unwalked(scale: Any, num_steps: int, y: Array) -> Array:
    """The noise of :func:`walked`."""
    del num_steps
    steps = jnp.diff(y, axis=-1, prepend=jnp.zeros_like(y[..., :1]))
    return steps / jnp.asarray(scale)[..., None]


def by_scale(scale: Callable[[Any], Any]) -> NoiseMap:
    """Of a law on the positive half line: the logarithm is shifted."""
    return NoiseMap(lambda fn: (jnp.log(scale(fn)), 1.0), shifted, unshifted)


def by_shape(made_of: Callable[[Any], tuple[Array, Array, Array]]) -> NoiseMap:
    """The map of a law with a shape, of about a location and a scale, and its coarseness."""
    return NoiseMap(made_of, shaped, unshaped)


def shaped(loc: Array, scale: Array, coarseness: Array, z: Array) -> tuple[Array, Array]:
    """Each coordinate by itself."""
    del coarseness
    return shifted(loc, scale, z)


def unshaped(loc: Array, scale: Array, coarseness: Array, y: Array) -> Array:
    """The noise of :func:`shaped`."""
    del coarseness
    return unshifted(loc, scale, y)


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


FREE = NoiseMap(lambda fn: (0.0, 1.0), shifted, unshifted)  # noise is the value itself
LOC_SCALE = NoiseMap(lambda fn: (fn.loc, fn.scale), shifted, unshifted)
# unconstrained values are logarithms where the support is positive
MAPS: dict[type, NoiseMap] = {
    dist.Cauchy: LOC_SCALE,
    dist.Gumbel: LOC_SCALE,
    dist.Laplace: LOC_SCALE,
    dist.LogNormal: LOC_SCALE,
    dist.Logistic: LOC_SCALE,
    dist.Normal: LOC_SCALE,
    dist.StudentT: LOC_SCALE,
    dist.Exponential: by_scale(lambda fn: 1 / fn.rate),
    dist.Gamma: by_shape(of_gamma),
    dist.HalfCauchy: by_scale(lambda fn: fn.scale),
    dist.HalfNormal: by_scale(lambda fn: fn.scale),
    dist.InverseGamma: by_shape(of_inverse_gamma),
    # a Gumbel variate of scale 1 / k, the mean of which is minus Euler's constant times that
    dist.Weibull: NoiseMap(
        lambda fn: (jnp.log(fn.scale) - np.euler_gamma / fn.concentration, 1 / fn.concentration),
        shifted,
        unshifted,
    ),
    dist.Beta: by_shape(of_beta),
    dist.BetaProportion: by_shape(of_beta),
    dist.Dirichlet: by_shape(of_dirichlet),
    dist.LowRankMultivariateNormal: NoiseMap(
        lambda fn: (fn.loc, jnp.linalg.cholesky(fn.covariance_matrix)), mixed, unmixed, True
    ),
    dist.MultivariateNormal: NoiseMap(lambda fn: (fn.loc, fn.scale_tril), mixed, unmixed, True),
    # what is not constrained of it are independent normals
    dist.ZeroSumNormal: NoiseMap(
        lambda fn: (0.0, jnp.expand_dims(fn.scale, [*range(-fn.event_dim, 0)])), shifted, unshifted
    ),
    dist.GaussianRandomWalk: NoiseMap(lambda fn: (fn.scale, fn.num_steps), walked, unwalked, True),
}


def map_of(fn: Any) -> NoiseMap | None:
    """The map of a distribution's unconstrained values; None if the table has none."""
    found = MAPS.get(type(fn))
    if found is None and isinstance(fn, dist.TransformedDistribution):
        return TRANSFORMED if is_affine(fn) else None
    return found


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
    base = unwrapped(fn.base_dist)
    is_real = MAPS.get(type(base)) is LOC_SCALE and base.support is constraints.real
    return is_real and all(type(step) is transforms.AffineTransform for step in steps_of(fn))


def affine(fn: dist.TransformedDistribution) -> tuple[Any, Any]:
    """Location and scale of the unconstrained values."""
    base = unwrapped(fn.base_dist)
    loc, scale = base.loc, base.scale
    for step in steps_of(fn):
        loc, scale = step.loc + step.scale * loc, step.scale * scale
    return loc, scale


TRANSFORMED = NoiseMap(affine, shifted, unshifted)


class weaving(Messenger):
    """Give effects their values, and look at their parameters and their noise.

    Parameters
    ----------
    fn
        The model.
    given
        For each effect its unconstrained value, or its noise.
    is_noise
        For each effect whether that is its noise.
    """

    def __init__(self, fn: Model, given: dict[str, Array], is_noise: dict[str, Array]):
        super().__init__(fn)
        self.given, self.is_noise = given, is_noise
        self.laws: dict[str, NoiseMap] = {}
        self.parameters: dict[str, tuple[Any, ...]] = {}
        self.values: dict[str, Array] = {}
        self.noise: dict[str, Array] = {}
        self.log_det: Array | float = 0.0
        self.is_looping = False

    def process_message(self, msg: Site) -> None:
        """Answer a site."""
        self.is_looping |= msg["type"] == "control_flow"
        name = msg.get("name")
        if msg["type"] != "sample" or name not in self.given or self.is_looping:
            return
        fn, given = unwrapped(msg["fn"]), self.given[name]
        self.laws[name] = law = map_of(fn) or FREE
        is_noise = law.chosen(self.is_noise[name])
        self.parameters[name] = parameters = law.made_of(fn)
        outcome, log_slopes = law.out(*parameters, given)
        self.values[name] = jnp.where(is_noise, outcome, given)
        self.noise[name] = law.into(*parameters, given)
        self.log_det += jnp.sum(jnp.where(is_noise, log_slopes, 0.0))
        msg["value"] = biject_to(msg["fn"].support)(self.values[name])


def effects_of(
    model: Model, model_args: Args, model_kwargs: Kwargs | None, position: dict[str, Any]
) -> tuple[str, ...]:
    """Names of the effects of a model at a position: their parameters are computed from latents.

    None of a model that enumerates discrete latents, or whose latents are in a loop of NumPyro
    (``numpyro.contrib.control_flow``), where a site's parameters may depend on the site itself.
    """
    names: list[str] = []

    def parameters(z):
        no = {name: jnp.zeros(jnp.shape(leaf), bool) for name, leaf in z.items()}
        handler = weaving(model, z, no)
        sites = sites_at(handler, model_args, model_kwargs, {}, jax.random.key(0))
        if handler.is_looping or transforms_of(sites).has_enumerate_support:
            return {}
        names[:] = handler.parameters
        return handler.parameters

    found = dependent(parameters, position)
    return tuple(name for name in names if any(jax.tree.leaves(found[name])))


class ModelHierarchy:
    """The hierarchy of a model for given arguments.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and its arguments.
    names
        Its effects: :func:`effects_of`.
    """

    def __init__(
        self, model: Model, model_args: Args, model_kwargs: Kwargs | None, names: tuple[str, ...]
    ):
        self.model, self.names = (model, model_args, model_kwargs), names

    def run(self, position: dict[str, Array], is_noise: dict[str, Array]) -> weaving:
        """A run of the model at a position, with the noise of some effects in their places."""
        model, model_args, model_kwargs = self.model
        handler = weaving(model, {name: position[name] for name in is_noise}, is_noise)
        rest = {name: leaf for name, leaf in position.items() if name not in is_noise}
        sites_at(handler, model_args, model_kwargs, rest, jax.random.key(0))
        return handler

    def effects(self, position: dict[str, Array]) -> tuple[bool, ...]:
        """Whether each leaf is an effect."""
        return tuple(name in self.names for name in sorted(position))

    def of_effects(self, leaves: dict[str, Array]) -> dict[str, Array]:
        """The leaves of effects; arguments of another run may have given the model more of them."""
        return {name: leaves[name] for name in self.names if name in leaves}

    def noise(self, position: dict[str, Array], is_noise: dict[str, Array]) -> dict[str, Array]:
        """The noise of effects."""
        flags = self.of_effects(is_noise)
        handler = self.run(position, jax.tree.map(jnp.zeros_like, flags))
        chosen = {
            name: jnp.where(handler.laws[name].chosen(flags[name]), handler.noise[name], leaf)
            for name, leaf in position.items()
            if name in flags
        }
        return position | chosen

    def outcomes(
        self, noise: dict[str, Array], is_noise: dict[str, Array]
    ) -> tuple[dict[str, Array], Array]:
        """The position, and the log determinant of the Jacobian."""
        handler = self.run(noise, self.of_effects(is_noise))
        return noise | handler.values, jnp.asarray(handler.log_det)
