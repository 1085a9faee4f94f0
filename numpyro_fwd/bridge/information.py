r"""Gauss-Newton metric of a NumPyro model: expected Fisher information plus the prior's precision.

For a site with distribution :math:`p(y | \eta)` and parameters :math:`\eta(z)` of the latents z,
the expected Fisher information is :math:`J^T F J` with :math:`J = \partial \eta / \partial z` and
F in closed form. Here F is written as a square: each distribution has *standardized parameters*, a
function of :math:`\eta` whose Jacobian is :math:`F^{1/2}` (a normal's are :math:`\mu / \sigma` and
:math:`\sqrt2 \log \sigma`, with the :math:`\sigma` that divides held fixed). The standardized
parameters of all sites are one function of z with the Jacobian :math:`S`, and the metric is
:math:`S^T S`: positive semidefinite by construction, by forward mode alone.

Latent sites enter the same way. For a location family the value moves against the location, so
:math:`(z - \mu) / \sigma` stands for :math:`\mu / \sigma`, and a scale that is itself a latent gets
the information that z carries about it, the expectation over z, as in the funnel. Other priors give
the absolute curvature of their log density in their own unconstrained value, with their parameters
held fixed.
"""

from collections.abc import Callable
from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.lax import stop_gradient
from numpyro.distributions import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    biject_to,
)

from numpyro_fwd.bridge.log_terms import kinds_of
from numpyro_fwd.bridge.numpyro_private import mask_of
from numpyro_fwd.bridge.traces import sites_at

__all__ = [
    "gauss_newton",
    "of_latent_site",
    "of_observed_site",
    "squared_jacobian",
    "supported_distributions",
]
StandardizedParameters = list[Array]


def of_observed_site(d: dist.Distribution, value: Array) -> StandardizedParameters:
    """Standardized parameters of an observed site, for each element of its log density."""
    shape = jnp.broadcast_shapes(d.batch_shape, jnp.shape(value)[: jnp.ndim(value) - d.event_dim])
    return broadcast_standardized(d, jnp.zeros(()), shape)


def of_latent_site(
    d: dist.Distribution, value: Array, unconstrained: Array
) -> StandardizedParameters:
    """Standardized parameters of a latent site at `value`; see the module."""
    if isinstance(unwrapped(d), LOCATION_FAMILIES):
        return broadcast_standardized(d, value, d.batch_shape)
    return [own_curvature(jax.tree.map(stop_gradient, d), unconstrained)]


def broadcast_standardized(
    d: dist.Distribution, value: Array, shape: tuple[int, ...]
) -> StandardizedParameters:
    """Standardized parameters of `d` for a batch of `shape`, vectors behind it."""
    if isinstance(d, Independent):
        events = d.base_dist.batch_shape[-d.reinterpreted_batch_ndims :]
        return broadcast_standardized(d.base_dist, value, shape + events)
    if isinstance(d, ExpandedDistribution):
        return broadcast_standardized(d.base_dist, value, shape)
    if isinstance(d, MaskedDistribution):
        mask = jnp.broadcast_to(jnp.asarray(mask_of(d)), shape)
        roots = broadcast_standardized(d.base_dist, value, shape)
        return [root * mask.reshape(shape + (1,) * (root.ndim - len(shape))) for root in roots]
    num_vector_dims = int(isinstance(d, VECTORS))
    return [
        jnp.broadcast_to(root, shape + root.shape[root.ndim - num_vector_dims :])
        for root in standardized(d, value)
    ]


@singledispatch
def standardized(d: dist.Distribution, value: Array) -> StandardizedParameters:
    """Functions of the parameters of `d` (minus `value`, for a location) with Jacobian F^{1/2}."""
    raise NotImplementedError(type(d).__name__)


def unwrapped(d: dist.Distribution) -> dist.Distribution:
    """`d` without the wrappers of plates, masks and ``to_event``."""
    while isinstance(d, (ExpandedDistribution, Independent, MaskedDistribution)):
        d = d.base_dist
    return d


def supported_distributions() -> list[str]:
    """Names of the distributions with a Fisher information in closed form."""
    kinds = set(standardized.registry) - {dist.Distribution, object}
    return sorted(kind.__name__ for kind in kinds)


def own_curvature(d: dist.Distribution, u: Array) -> Array:
    """The unconstrained value times the root of the absolute curvature of its log density."""
    transform = biject_to(d.support)

    def logdensity(u):
        value = transform(u)
        return jnp.sum(d.log_prob(value)) + jnp.sum(transform.log_abs_det_jacobian(u, value))

    fixed = stop_gradient(u)
    if d.event_dim == 0:
        ones = jnp.ones_like(fixed)
        curvature = jax.jvp(jax.jacfwd(logdensity), (fixed,), (ones,))[1]
        return jnp.sqrt(stop_gradient(jnp.abs(curvature))) * u
    hessian = jax.hessian(lambda v: logdensity(v.reshape(u.shape)))(fixed.ravel())
    values, vectors = jnp.linalg.eigh(-0.5 * (hessian + hessian.T))
    return stop_gradient(jnp.sqrt(jnp.abs(values))[:, None] * vectors.T) @ u.ravel()


def location_scale(
    value, loc, scale, of_location: float, of_scale: float
) -> StandardizedParameters:
    """Standardized parameters of a family with information F / scale^2 and F in log scale."""
    location = (loc - value) / stop_gradient(scale)
    return [of_location**0.5 * location, of_scale**0.5 * jnp.log(scale)]


@standardized.register
def _(d: dist.Normal, value):
    return location_scale(value, d.loc, d.scale, 1.0, 2.0)


@standardized.register
def _(d: dist.LogNormal, value):
    # 0 stands for an observed value, which does not move
    shift = jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1.0)), 0.0)
    return location_scale(shift, d.loc, d.scale, 1.0, 2.0)


@standardized.register
def _(d: dist.Laplace, value):
    return location_scale(value, d.loc, d.scale, 1.0, 1.0)


@standardized.register
def _(d: dist.Logistic, value):
    return location_scale(value, d.loc, d.scale, 1 / 3, (3 + jnp.pi**2) / 9)


@standardized.register
def _(d: dist.Cauchy, value):
    return location_scale(value, d.loc, d.scale, 0.5, 0.5)


@standardized.register
def _(d: dist.StudentT, value):
    df = stop_gradient(d.df)
    return location_scale(value, d.loc, d.scale, (df + 1) / (df + 3), 2 * df / (df + 3))


@standardized.register
def _(d: dist.MultivariateNormal, value):
    factor = stop_gradient(d.scale_tril)

    def solve(b):
        return jax.scipy.linalg.solve_triangular(
            jnp.broadcast_to(factor, b.shape[:-2] + factor.shape[-2:]), b, lower=True
        )

    location = solve((d.loc - value)[..., None])[..., 0]
    covariance = solve(jnp.swapaxes(solve(d.covariance_matrix), -1, -2))
    flat = covariance.reshape(*covariance.shape[:-2], -1) / 2**0.5
    return [location, flat]


@standardized.register
def _(d: dist.BernoulliLogits, value):
    p = stop_gradient(jax.nn.sigmoid(d.logits))
    return [jnp.sqrt(p * (1 - p)) * d.logits]


@standardized.register
def _(d: dist.BernoulliProbs, value):
    p = stop_gradient(d.probs)
    return [d.probs / jnp.sqrt(p * (1 - p))]


@standardized.register
def _(d: dist.BinomialLogits, value):
    p = stop_gradient(jax.nn.sigmoid(d.logits))
    return [jnp.sqrt(d.total_count * p * (1 - p)) * d.logits]


@standardized.register
def _(d: dist.BinomialProbs, value):
    p = stop_gradient(d.probs)
    return [d.probs * jnp.sqrt(d.total_count / (p * (1 - p)))]


@standardized.register
def _(d: dist.Poisson, value):
    return [d.rate / jnp.sqrt(stop_gradient(d.rate))]


@standardized.register
def _(d: dist.Exponential, value):
    return [jnp.log(d.rate)]


@standardized.register
def _(d: dist.Gamma, value):
    # information in (a, log b): [[psi'(a), -1], [-1, a]]
    a = stop_gradient(d.concentration)
    rest = jax.scipy.special.polygamma(1, a) - 1 / a
    both = jnp.sqrt(a) * (jnp.log(d.rate) - d.concentration / a)
    return [both, jnp.sqrt(rest) * d.concentration]


@standardized.register
def _(d: dist.CategoricalLogits, value):
    return [centred(d.logits)]


@standardized.register
def _(d: dist.MultinomialLogits, value):
    return [jnp.sqrt(d.total_count)[..., None] * centred(d.logits)]


@standardized.register
def _(d: dist.CategoricalProbs, value):
    return [d.probs / jnp.sqrt(stop_gradient(d.probs))]


@standardized.register
def _(d: dist.MultinomialProbs, value):
    return [jnp.sqrt(d.total_count)[..., None] * d.probs / jnp.sqrt(stop_gradient(d.probs))]


def centred(logits: Array) -> Array:
    """Logits about their mean, each times the root of its probability."""
    p = stop_gradient(jax.nn.softmax(logits, axis=-1))
    return jnp.sqrt(p) * (logits - jnp.sum(p * logits, axis=-1, keepdims=True))


VECTORS = (
    dist.MultivariateNormal,
    dist.CategoricalLogits,
    dist.CategoricalProbs,
    dist.MultinomialLogits,
    dist.MultinomialProbs,
)
LOCATION_FAMILIES = (
    dist.Normal,
    dist.LogNormal,
    dist.Laplace,
    dist.Logistic,
    dist.Cauchy,
    dist.StudentT,
    dist.MultivariateNormal,
)


def squared_jacobian(function: Callable[[Array], Array], z: Array) -> Array:
    """``S^T S`` for the Jacobian S of `function` at `z`: D JVPs that share one primal."""
    jacobian = jax.jacfwd(function)(z)
    return jacobian.T @ jacobian


def gauss_newton(model: Callable, model_args: tuple, model_kwargs: dict | None) -> Callable:
    """Expected information plus prior precision of `model` as a function of the unconstrained z.

    It returns an array of shape (D, D) in the order of ``ravel_pytree``, and raises ValueError for
    a site whose information has no closed form here. See :mod:`numpyro_fwd.bridge.information`.
    """

    def standardized_at(z):
        sites = sites_at(model, model_args, model_kwargs, z, jax.random.key(0))
        found = []
        for name, kind in kinds_of(sites, z).items():
            if kind == "jacobian":
                continue
            site = sites[name]
            try:
                if kind == "observed":
                    new = of_observed_site(site["fn"], site["value"])
                else:
                    new = of_latent_site(site["fn"], site["value"], z[name])
            except NotImplementedError as error:
                raise ValueError(
                    f"site '{name}' ({error}) has no Fisher information in closed form, which "
                    'metric="gauss_newton" needs; it is known for '
                    f"{', '.join(supported_distributions())}. Give a metric_fn such as "
                    "blackjax_ext.metrics.softabs_hessian() instead."
                ) from error
            scale = 1.0 if site["scale"] is None else site["scale"]
            found += [jnp.ravel(jnp.sqrt(scale) * each) for each in new]
        return jnp.concatenate(found)

    def information(z):
        flat, unravel = ravel_pytree(z)
        return squared_jacobian(lambda flat: standardized_at(unravel(flat)), flat)

    return information
