r"""Curvature of a prior's log density in its unconstrained value, expected under the prior.

It is one number, or for a vector one matrix, for each element of the prior: the information about a
shift of the unconstrained value u, which is the variance of the score in u. Where there is no
closed form it is a mean over draws of the prior with a fixed key. The metric stays a function of
the position, so a sampler with it is exact, whatever the error of the mean.
"""

from collections.abc import Callable
from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.lax import stop_gradient
from numpyro.distributions import biject_to

from blackjax_ext.types import Function, LogDensity

__all__ = ["standardized_value"]

NUM_PRIOR_DRAWS = 256
# a vector's curvature is a matrix (k, k): fewer draws, the larger it is
MAX_MATRICES, MAX_COLUMNS = 32, 2048


def standardized_value(d: dist.Distribution, u: Array) -> Array:
    """The unconstrained value times a root of its expected curvature.

    Parameters
    ----------
    d
        The prior, without wrappers; its parameters are held fixed.
    u
        Unconstrained values, whose shape may be wider than the prior's own.
    """
    if d.event_dim == 0:
        return jnp.sqrt(scalar_curvature(d, u)) * u
    matrix = vector_curvature(d, u)
    values, vectors = jnp.linalg.eigh(matrix)
    root = jnp.sqrt(jnp.abs(values))[..., None] * jnp.swapaxes(vectors, -2, -1)
    flat = u.reshape(*batch_shape(d, u), -1)
    return (root @ flat[..., None])[..., 0]


@singledispatch
def scalar_curvature(d: dist.Distribution, u: Array) -> Array:
    """Expected curvature of a prior of numbers: mean squared score of its draws."""
    logdensity = unconstrained_logdensity(d, u)
    draws = unconstrained_draws(d, NUM_PRIOR_DRAWS)
    if draws is None:
        return stop_gradient(jnp.abs(curvatures_along_axes(logdensity, u[..., None])[0, 0]))
    scores = derivatives_along_axes(logdensity, draws[..., None])[0]
    return stop_gradient(finite_mean(jnp.square(scores)))


@scalar_curvature.register
def _(d: dist.Uniform, u: Array) -> Array:
    return jnp.asarray(1 / 3)  # of the logistic distribution


@scalar_curvature.register
def _(d: dist.Beta, u: Array) -> Array:
    a, b = d.concentration1, d.concentration0
    return a * b / (a + b + 1)


def vector_curvature(d: dist.Distribution, u: Array) -> Array:
    """Mean curvature of a prior of vectors at its draws, (..., k, k); at `u` if it has no draws."""
    batch = batch_shape(d, u)
    size = max(u.size // max(jnp.zeros(batch).size, 1), 1)
    draws = unconstrained_draws(d, max(min(MAX_COLUMNS // size, MAX_MATRICES), 1))
    flat = u.reshape(*batch, -1)[None] if draws is None else draws.reshape(-1, *d.batch_shape, size)
    matrices = curvatures_along_axes(unconstrained_logdensity(d, u), flat)
    mean = jnp.moveaxis(finite_mean(jnp.moveaxis(matrices, 2, 0)), (0, 1), (-2, -1))
    return stop_gradient(0.5 * (mean + jnp.swapaxes(mean, -2, -1)))


def batch_shape(d: dist.Distribution, u: Array) -> tuple[int, ...]:
    """Shape of `u` without the axes of one unconstrained value."""
    return u.shape[: u.ndim - biject_to(d.support).domain.event_dim]


def unconstrained_draws(d: dist.Distribution, num_draws: int) -> Array | None:
    """Draws of a prior in its unconstrained space; None if it cannot be drawn from."""
    try:
        values = d.sample(jax.random.key(0), (num_draws,))
    except NotImplementedError:  # an improper prior
        return None
    return biject_to(d.support).inv(values)


def unconstrained_logdensity(d: dist.Distribution, u: Array) -> Callable[[Array], Array]:
    """Log density of each element as a function of unconstrained values (..., k)."""
    transform = biject_to(d.support)
    event = u.shape[u.ndim - transform.domain.event_dim :]

    def logdensity(flat):
        v = flat.reshape(*flat.shape[:-1], *event)
        value = transform(v)
        return d.log_prob(value) + transform.log_abs_det_jacobian(v, value)

    return logdensity


def derivatives_along_axes(function: Function, flat: Array) -> Array:
    """Derivatives of each element along each axis of its values (..., k): (k, ...)."""
    axes = jnp.eye(flat.shape[-1], dtype=flat.dtype)
    return jax.vmap(
        lambda axis: jax.jvp(function, (flat,), (jnp.broadcast_to(axis, flat.shape),))[1]
    )(axes)


def curvatures_along_axes(logdensity: LogDensity, flat: Array) -> Array:
    """Minus the second derivatives of each element: (k, k, ...)."""
    return -derivatives_along_axes(lambda flat: derivatives_along_axes(logdensity, flat), flat)


def finite_mean(values: Array) -> Array:
    """Mean over the first axis of what is finite: a draw may be rounded to the boundary."""
    is_finite = jnp.isfinite(values)
    total = jnp.sum(jnp.where(is_finite, values, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(is_finite, axis=0), 1)
