r"""Gauss-Newton metric of a NumPyro model: expected Fisher information plus the prior's precision.

For a site with distribution :math:`p(y | \eta)` and parameters :math:`\eta(z)` of the latents z,
the expected Fisher information is :math:`J^T F J` with :math:`J = \partial \eta / \partial z` and
F in closed form. Here F is written as a square: each distribution has *standardized parameters*, a
function of :math:`\eta` whose Jacobian is :math:`F^{1/2}` (a normal's are :math:`\mu / \sigma` and
:math:`\sqrt2 \log \sigma`, with the :math:`\sigma` that divides held fixed). The standardized
parameters of all sites are one function of z with the Jacobian :math:`S`, and the metric is
:math:`S^T S`: positive semidefinite by construction, by forward mode alone. What is held fixed
comes from a second distribution `at`, the same site at the place of the metric, so that the
metric's own derivative, which MMALA takes, sees it move.

Latent sites enter the same way, with the information that a draw of the prior carries. For a family
that is moved by its location, or on a logarithmic scale by its scale, the unconstrained value u
moves against it: :math:`(\mu - u) / \sigma` stands for :math:`\mu / \sigma`. A scale that is itself
a latent gets the information that z carries about it, as in the funnel. Other priors give the
curvature of their log density in u, expected under the prior, with their parameters held fixed
(:mod:`numpyro_fwd.bridge.prior_curvature`). The curvature at one place would not do: that of a half
normal, :math:`2 e^{2u} / \sigma^2`, vanishes in the tail, and a proposal's scale with
it; its expectation is 2 everywhere.
"""

from collections.abc import Callable
from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution

from blackjax_ext.types import Function
from numpyro_fwd.bridge import special_functions
from numpyro_fwd.bridge.log_terms import kinds_of
from numpyro_fwd.bridge.numpyro_private import mask_of
from numpyro_fwd.bridge.prior_curvature import standardized_value
from numpyro_fwd.bridge.traces import sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Site, SiteValues

__all__ = [
    "gauss_newton",
    "of_latent_site",
    "of_observed_site",
    "squared_jacobian",
    "supported_distributions",
]
StandardizedParameters = list[Array]
EULER_GAMMA = 0.5772156649015329


def of_observed_site(
    d: dist.Distribution, at: dist.Distribution, value: Array
) -> StandardizedParameters:
    """Standardized parameters of an observed site, for each element of its log density."""
    shape = jnp.broadcast_shapes(d.batch_shape, jnp.shape(value)[: jnp.ndim(value) - d.event_dim])
    return broadcast_standardized(d, at, jnp.zeros(()), shape)


def of_latent_site(d: dist.Distribution, at: dist.Distribution, u: Array) -> StandardizedParameters:
    """Standardized parameters of a latent site with the unconstrained value `u`; see the module."""
    base = innermost(d)
    if isinstance(base, MOVED_BY_PARAMETERS):
        return broadcast_standardized(d, at, u, d.batch_shape)
    own = standardized_value(innermost(at), u)
    if type(base) in OWN_AND_PARAMETERS:
        return [own, *broadcast_standardized(d, at, jnp.zeros(()), d.batch_shape)]
    return [own]


def broadcast_standardized(
    d: dist.Distribution, at: dist.Distribution, u: Array, shape: tuple[int, ...]
) -> StandardizedParameters:
    """Standardized parameters of `d` for a batch of `shape`, vectors behind it."""
    if isinstance(d, Independent):
        events = d.base_dist.batch_shape[-d.reinterpreted_batch_ndims :]
        return broadcast_standardized(d.base_dist, at.base_dist, u, shape + events)
    if isinstance(d, ExpandedDistribution):
        return broadcast_standardized(d.base_dist, at.base_dist, u, shape)
    if isinstance(d, MaskedDistribution):
        return masked(d, at, u, shape)
    num_vector_dims = int(isinstance(d, VECTORS))
    return [
        jnp.broadcast_to(root, shape + root.shape[root.ndim - num_vector_dims :])
        for root in map(jnp.asarray, standardized(d, at, u))
    ]


def masked(
    d: MaskedDistribution, at: MaskedDistribution, u: Array, shape: tuple[int, ...]
) -> StandardizedParameters:
    """Standardized parameters of a site with a mask.

    Where it is False the parameters are held fixed. So an observed value says nothing, and a latent
    one, whose density is flat there, keeps the precision of its prior: a metric needs one.
    """
    mask = jnp.broadcast_to(jnp.asarray(mask_of(d)), shape)
    moving = broadcast_standardized(d.base_dist, at.base_dist, u, shape)
    fixed = broadcast_standardized(at.base_dist, at.base_dist, u, shape)
    return [
        jnp.where(mask.reshape(shape + (1,) * (root.ndim - len(shape))), root, other)
        for root, other in zip(moving, fixed, strict=True)
    ]


@singledispatch
def standardized(d: dist.Distribution, at: dist.Distribution, u: Array) -> StandardizedParameters:
    """Functions of the parameters of `d` (minus `u`, for a location) with Jacobian F^{1/2}."""
    raise NotImplementedError(type(d).__name__)


def innermost(d: dist.Distribution) -> dist.Distribution:
    """`d` without the wrappers of plates, masks and ``to_event``."""
    while isinstance(d, (ExpandedDistribution, Independent, MaskedDistribution)):
        d = d.base_dist
    return d


def supported_distributions() -> list[str]:
    """Names of the distributions with a Fisher information in closed form."""
    kinds = set(standardized.registry) - {dist.Distribution, object, dist.Unit}
    return sorted(kind.__name__ for kind in kinds)


def location_scale(d, at, u, of_location: float, of_scale: float) -> StandardizedParameters:
    """Standardized parameters of a family with information F / scale^2 and F in log scale."""
    return [of_location**0.5 * (d.loc - u) / at.scale, of_scale**0.5 * jnp.log(d.scale)]


@standardized.register(dist.Normal)
@standardized.register(dist.LogNormal)
def _(d, at, u):
    return location_scale(d, at, u, 1.0, 2.0)


@standardized.register
def _(d: dist.Laplace, at, u):
    return location_scale(d, at, u, 1.0, 1.0)


@standardized.register
def _(d: dist.Logistic, at, u):
    return location_scale(d, at, u, 1 / 3, (3 + jnp.pi**2) / 9)


@standardized.register
def _(d: dist.Cauchy, at, u):
    return location_scale(d, at, u, 0.5, 0.5)


@standardized.register
def _(d: dist.StudentT, at, u):
    return location_scale(d, at, u, (at.df + 1) / (at.df + 3), 2 * at.df / (at.df + 3))


@standardized.register
def _(d: dist.MultivariateNormal, at, u):
    factor = at.scale_tril

    def solve(b):
        return jax.scipy.linalg.solve_triangular(
            jnp.broadcast_to(factor, b.shape[:-2] + factor.shape[-2:]), b, lower=True
        )

    # NumPyro keeps a scalar location as one of length 1
    difference = d.loc - u
    difference = jnp.broadcast_to(difference, difference.shape[:-1] + d.event_shape)
    location = solve(difference[..., None])[..., 0]
    covariance = solve(jnp.swapaxes(solve(d.covariance_matrix), -1, -2))
    flat = covariance.reshape(*covariance.shape[:-2], -1) / 2**0.5
    return [location, flat]


@standardized.register
def _(d: dist.VonMises, at, u):
    of_location, of_concentration = special_functions.von_mises_information(at.concentration)
    location = jnp.sqrt(of_location) * (d.loc - u)
    return [location, jnp.sqrt(of_concentration) * d.concentration]


@standardized.register
def _(d: dist.BernoulliLogits, at, u):
    p = jax.nn.sigmoid(at.logits)
    return [jnp.sqrt(p * (1 - p)) * d.logits]


@standardized.register
def _(d: dist.BernoulliProbs, at, u):
    return [d.probs * inverse_root(at.probs * (1 - at.probs))]


@standardized.register
def _(d: dist.BinomialLogits, at, u):
    p = jax.nn.sigmoid(at.logits)
    return [jnp.sqrt(d.total_count * p * (1 - p)) * d.logits]


@standardized.register
def _(d: dist.BinomialProbs, at, u):
    return [d.probs * jnp.sqrt(d.total_count) * inverse_root(at.probs * (1 - at.probs))]


@standardized.register
def _(d: dist.Poisson, at, u):
    return [d.rate * inverse_root(at.rate)]


@standardized.register
def _(d: dist.GammaPoisson, at, u):
    # mean and concentration are orthogonal
    mean, r = at.concentration / at.rate, at.concentration
    of_concentration = special_functions.negative_binomial_information(mean, r)
    return [
        d.concentration / d.rate * inverse_root(mean + mean**2 / r),
        jnp.sqrt(of_concentration) * d.concentration,
    ]


@standardized.register
def _(d: dist.HalfNormal, at, u):
    return [2.0**0.5 * (jnp.log(d.scale) - u)]


@standardized.register
def _(d: dist.HalfCauchy, at, u):
    return [0.5**0.5 * (jnp.log(d.scale) - u)]


@standardized.register
def _(d: dist.Exponential, at, u):
    return [jnp.log(d.rate) + u]


@standardized.register
def _(d: dist.Gamma, at, u):
    return gamma_parameters(d.concentration, at.concentration, jnp.log(d.rate) + u)


@standardized.register
def _(d: dist.InverseGamma, at, u):
    return gamma_parameters(d.concentration, at.concentration, jnp.log(d.rate) - u)


def gamma_parameters(concentration: Array, at: Array, log_rate: Array) -> StandardizedParameters:
    """Standardized parameters for the information [[psi'(a), -1], [-1, a]] in (a, log rate)."""
    rest = special_functions.trigamma_excess(at)
    return [jnp.sqrt(at) * (log_rate - concentration / at), jnp.sqrt(rest) * concentration]


@standardized.register
def _(d: dist.Weibull, at, u):
    k = at.concentration
    location = k * (jnp.log(d.scale) - u) - (1 - EULER_GAMMA) / k * d.concentration
    return [location, jnp.pi / 6**0.5 / k * d.concentration]


@standardized.register
def _(d: dist.Beta, at, u):
    root = special_functions.beta_information_root(at.concentration1, at.concentration0)
    first = root[0] * d.concentration1 + root[1] * d.concentration0
    return [first, root[2] * d.concentration0]


@standardized.register
def _(d: dist.CategoricalLogits, at, u):
    return [centred(d.logits, at.logits)]


@standardized.register
def _(d: dist.MultinomialLogits, at, u):
    return [jnp.sqrt(d.total_count)[..., None] * centred(d.logits, at.logits)]


@standardized.register
def _(d: dist.CategoricalProbs, at, u):
    return [d.probs * inverse_root(at.probs)]


@standardized.register
def _(d: dist.MultinomialProbs, at, u):
    return [jnp.sqrt(d.total_count)[..., None] * d.probs * inverse_root(at.probs)]


@standardized.register
def _(d: dist.Unit, at, u):
    return [check_constant(jnp.asarray(d.log_factor, float))]


def centred(logits: Array, at: Array) -> Array:
    """Logits about their mean, each times the root of its probability."""
    p = jax.nn.softmax(at, axis=-1)
    return jnp.sqrt(p) * (logits - jnp.sum(p * logits, axis=-1, keepdims=True))


def inverse_root(variance: Array) -> Array:
    """One over the root; 0 for the variance 0 of what is certain, which does not move."""
    variance = jnp.asarray(variance)
    return jnp.where(variance > 0, jnp.where(variance > 0, variance, 1.0) ** -0.5, 0.0)


@jax.custom_jvp
def check_constant(factor: Array) -> Array:
    """`factor`; raises where it is differentiated, which is where it depends on the latents."""
    return factor


@check_constant.defjvp
def _(primals, tangents):
    raise DependentFactorError


class DependentFactorError(Exception):
    """A ``numpyro.factor`` depends on the latents."""


VECTORS = (
    dist.MultivariateNormal,
    dist.CategoricalLogits,
    dist.CategoricalProbs,
    dist.MultinomialLogits,
    dist.MultinomialProbs,
)
# their unconstrained value moves against a location, or against the logarithm of a scale
MOVED_BY_PARAMETERS = (
    dist.Normal,
    dist.LogNormal,
    dist.Laplace,
    dist.Logistic,
    dist.Cauchy,
    dist.StudentT,
    dist.MultivariateNormal,
    dist.HalfNormal,
    dist.HalfCauchy,
    dist.Exponential,
    dist.Gamma,
    dist.InverseGamma,
    dist.Weibull,
)
# priors whose parameters, if they are latents, get their information too
OWN_AND_PARAMETERS = (dist.Beta, dist.BetaProportion)


def squared_jacobian(
    function: Callable[[Array], Array], z: Array, *, has_forward_mode: bool = True
) -> Array:
    """``S^T S`` for the Jacobian S of `function` at `z`: D JVPs that share one primal.

    Without a forward mode it takes as many gradients as `function` has values.
    """
    jacobian = (jax.jacfwd if has_forward_mode else jax.jacrev)(function)(z)
    return jacobian.T @ jacobian


def gauss_newton(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    *,
    has_forward_mode: bool = True,
) -> Function:
    """Expected information plus prior precision of `model` as a function of the unconstrained z.

    It returns an array of shape (D, D) in the order of ``ravel_pytree``, and raises ValueError for
    a site whose information has no closed form here. See :mod:`numpyro_fwd.bridge.information`.
    """

    def sites_of(z):
        return sites_at(model, model_args, model_kwargs, z, jax.random.key(0))

    def information(z):
        flat, unravel = ravel_pytree(z)
        fixed = sites_of(z)

        def standardized_at(flat):
            z = unravel(flat)
            sites = sites_of(z)
            return jnp.concatenate(
                [
                    of_site(name, kind, sites[name], fixed[name]["fn"], z)
                    for name, kind in kinds_of(sites, z).items()
                    if kind != "jacobian"
                ]
            )

        return squared_jacobian(standardized_at, flat, has_forward_mode=has_forward_mode)

    return information


def of_site(name: str, kind: str, site: Site, at: dist.Distribution, z: SiteValues) -> Array:
    """Standardized parameters of a site as a flat array; raises if it has none."""
    try:
        if kind == "observed":
            found = of_observed_site(site["fn"], at, site["value"])
        elif name in z:
            found = of_latent_site(site["fn"], at, z[name])
        else:
            raise ValueError(
                f"site '{name}' ({type(site['fn']).__name__}) is a discrete latent, which "
                'metric="gauss_newton" cannot sum over; give a metric_fn instead.'
            )
    except NotImplementedError as error:
        raise ValueError(
            f"site '{name}' ({error}) has no Fisher information in closed form, which "
            f'metric="gauss_newton" needs; it is known for {", ".join(supported_distributions())}. '
            "Give a metric_fn such as blackjax_ext.metrics.softabs_hessian() instead."
        ) from error
    except DependentFactorError as error:
        raise ValueError(
            f"factor '{name}' depends on the latents, and has no Fisher information, which "
            'metric="gauss_newton" needs: only a constant numpyro.factor can be left out. Write it '
            "as an observed site, or give a metric_fn such as "
            "blackjax_ext.metrics.softabs_hessian() instead."
        ) from error
    if site["scale"] is None:
        return jnp.concatenate([jnp.ravel(each) for each in found])
    num_axes = max(len(site["fn"].batch_shape), jnp.ndim(site["value"]) - site["fn"].event_dim)
    weight = jnp.sqrt(jnp.asarray(site["scale"]))
    return jnp.concatenate([jnp.ravel(weighed(each, weight, num_axes)) for each in found])


def weighed(root: Array, weight: Array, num_axes: int) -> Array:
    """`root` times weights of log densities, which have its first axes but none of its events."""
    if not weight.ndim:
        return weight * root
    return weight.reshape(weight.shape + (1,) * (root.ndim - num_axes)) * root
