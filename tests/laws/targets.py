"""Targets with exact draws and known marginals.

Each has a Rosenblatt transform: D functions of the position that are independent and uniform on
(0, 1) under the target, and under nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats


class Target(NamedTuple):
    """A density, exact draws from it, and its Rosenblatt transform.

    name
        Key of the step sizes in the table of samplers.
    logdensity
        Pytree to scalar.
    draw
        ``(generator, n) -> pytree`` with n exact draws along the leading axis.
    uniforms
        ``flat draws (n, D) -> (n, D)``, independent uniforms under the target.
    covariance
        Covariance for the dense preconditioner, shape (D, D), in the order of ``ravel_pytree``.
    reverse_mode
        Whether ``jax.grad`` works on the density.
    """

    name: str
    logdensity: Callable
    draw: Callable
    uniforms: Callable
    covariance: np.ndarray
    reverse_mode: bool = True


SHAPES = np.array([0.7, 1.0, 2.0])


def log_gamma_logdensity(x):
    """Logarithms of independent gamma variables: skewed, flat to the left, a wall to the right."""
    return jnp.sum(jnp.asarray(SHAPES, x.dtype) * x - jnp.exp(x))


def log_gamma_draw(rng, n):
    # G(a) = G(a + 1) U^(1/a) keeps the far left tail, where a gamma variable underflows
    grown = np.log(rng.gamma(SHAPES + 1, size=(n, 3)))
    return grown + np.log(rng.uniform(size=(n, 3))) / SHAPES


LOG_GAMMA = Target(
    name="log_gamma",
    logdensity=log_gamma_logdensity,
    draw=log_gamma_draw,
    uniforms=lambda x: scipy.special.gammainc(SHAPES, np.exp(x)),
    # not the covariance, which is diagonal: any preconditioner must be exact
    covariance=np.array([[2.5, 0.5, 0.0], [0.5, 1.5, 0.3], [0.0, 0.3, 0.8]]),
)

FUNNEL_SCALE = 1.5


def funnel_logdensity(x):
    """``x_0 ~ N(0, 1.5^2)`` and ``x_i ~ N(0, exp(x_0))``."""
    neck, rest = x[0], x[1:]
    return (
        -0.5 * (neck / FUNNEL_SCALE) ** 2
        - 0.5 * jnp.sum(rest**2) * jnp.exp(-neck)
        - 0.5 * neck * rest.shape[0]
    )


def funnel_draw(rng, n):
    z = rng.normal(size=(n, 4))
    neck = FUNNEL_SCALE * z[:, :1]
    return np.concatenate([neck, np.exp(neck / 2) * z[:, 1:]], axis=1)


def funnel_uniforms(x):
    z = np.concatenate([x[:, :1] / FUNNEL_SCALE, x[:, 1:] * np.exp(-x[:, :1] / 2)], axis=1)
    return scipy.stats.norm.cdf(z)


FUNNEL = Target(
    name="funnel",
    logdensity=funnel_logdensity,
    draw=funnel_draw,
    uniforms=funnel_uniforms,
    covariance=0.5 * np.diag([2.0, 1.0, 1.5, 2.0]) + 0.2,
)

MEAN = np.array([1.0, -2.0, 0.5])
FACTOR = np.array([[1.0, 0.0, 0.0], [-0.5, 0.8, 0.0], [0.6, 0.3, 1.2]])
PRECISION = np.linalg.inv(FACTOR @ FACTOR.T)


def normal_logdensity(position):
    """A correlated normal over the leaves of a dict."""
    x = jnp.append(position["effects"].ravel(), position["location"])
    shifted = x - jnp.asarray(MEAN, x.dtype)
    return -0.5 * shifted @ jnp.asarray(PRECISION, x.dtype) @ shifted


def normal_draw(rng, n):
    x = MEAN + rng.normal(size=(n, 3)) @ FACTOR.T
    return {"location": x[:, 2], "effects": x[:, :2].reshape(n, 1, 2)}


NORMAL = Target(
    name="normal",
    logdensity=normal_logdensity,
    draw=normal_draw,
    uniforms=lambda x: scipy.stats.norm.cdf(np.linalg.solve(FACTOR, (x - MEAN).T).T),
    covariance=FACTOR @ FACTOR.T,
)


def loop_logdensity(x):
    """An autoregression of log-gamma innovations, summed by a loop that only runs forward."""

    def body(carry):
        i, previous, total = carry
        innovation = x[i] - 0.5 * previous
        return i + 1, x[i], total + innovation - jnp.exp(innovation)

    zero = jnp.zeros((), x.dtype)
    return jax.lax.while_loop(lambda carry: carry[0] < x.shape[0], body, (0, zero, zero))[2]


def loop_draw(rng, n):
    x = np.log(rng.exponential(size=(n, 3)))
    for i in range(1, 3):
        x[:, i] += 0.5 * x[:, i - 1]
    return x


def loop_uniforms(x):
    innovations = x - 0.5 * np.concatenate([np.zeros((len(x), 1)), x[:, :-1]], axis=1)
    return scipy.special.gammainc(1.0, np.exp(innovations))


LOOP = Target(
    name="loop",
    logdensity=loop_logdensity,
    draw=loop_draw,
    uniforms=loop_uniforms,
    covariance=np.array([[1.6, 0.8, 0.4], [0.8, 2.0, 1.0], [0.4, 1.0, 2.1]]),
    reverse_mode=False,
)

TARGETS = {target.name: target for target in (LOG_GAMMA, FUNNEL, NORMAL, LOOP)}
