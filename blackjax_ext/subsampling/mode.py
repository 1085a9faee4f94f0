r"""The mode of a posterior of linear predictors, by Newton's method on the host.

A step is :math:`-|H|^{-1} g` with the absolute values of the eigenvalues of the Hessian scaled to a
unit diagonal, halved until the energy falls. Energies are compared in double precision, from the
pairs that the passes over the rows return. The loop runs before anything is compiled for sampling;
only the passes grow with N.
"""

import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax.flatten_util import ravel_pytree

from blackjax_ext.metrics.factors import Dense
from blackjax_ext.subsampling.predictors import (
    Derivatives,
    LinearPredictor,
    derivatives,
    energy,
    largest_change,
)

__all__ = ["check_curvature", "mode"]

MAX_STEPS = 60
MAX_HALVINGS = 20
# squared distance to the mode in standard deviations: done, and what may be left where no step
# lowers the energy any more
DONE, TOLERABLE = 1e-6, 1.0
# change of a predictor in the last step, in units of its curvature: in a mode it is zero
MAX_CHANGE = 0.1
NO_MODE = (
    "the posterior has no mode near the start ({}): separable data under a flat prior have none. "
    'Elsewhere a start nearer to it helps; acceptance="full" does without.'
)


def mode(posterior: LinearPredictor, start: ArrayTree) -> ArrayTree:
    """Mode near `start`; ValueError if there is none.

    Cost: per step, a pass of derivatives and one or more of energies; about ten steps.
    """
    x, unravel = ravel_pytree(start)
    value = energy_at(posterior, unravel(x))
    for _ in range(MAX_STEPS):
        found = derivatives(posterior, unravel(x))
        step, distance = newton_step(found)
        if not np.isfinite(distance):
            raise ValueError(NO_MODE.format("its derivatives are not finite"))
        if distance < DONE:
            break
        better, new_value = descend(posterior, x, jnp.asarray(step, x.dtype), unravel, value)
        if better is None:
            break
        x, value = better, new_value
    change = float(largest_change(posterior, unravel(x), jnp.asarray(step, x.dtype)))
    if not distance < TOLERABLE or not change < MAX_CHANGE:
        raise ValueError(NO_MODE.format("Newton's method still moves"))
    return unravel(x)


def energy_at(posterior: LinearPredictor, position: ArrayTree) -> float:
    """Energy in double precision."""
    pair = energy(posterior, position)
    return float(pair.high) + float(pair.low)


def newton_step(found: Derivatives) -> tuple[np.ndarray, float]:
    """Step of saddle-free Newton in double precision, and its squared length in deviations."""
    gradient = np.asarray(found.gradient, np.float64) + np.asarray(found.prior_gradient)
    hessian = np.asarray(found.hessian, np.float64) + np.asarray(found.prior_hessian)
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        return gradient, np.nan
    size = np.abs(np.diagonal(hessian))
    scale = np.where(size > 0, size, 1.0) ** -0.5
    eigenvalues, vectors = np.linalg.eigh(scale[:, None] * hessian * scale)
    eps = np.finfo(found.hessian.dtype).eps
    inverse = 1.0 / np.maximum(np.abs(eigenvalues), gradient.size * eps)
    along = vectors.T @ (scale * gradient)
    return -scale * (vectors @ (inverse * along)), float(along @ (inverse * along))


def descend(posterior, x, step, unravel, value):
    """First point on a ladder of lengths with a lower energy, and its energy; None if none has."""
    for i in range(MAX_HALVINGS):
        point = x + 0.5**i * step
        new = energy_at(posterior, unravel(point))
        if new < value:
            return point, new
    return None, value


def check_curvature(found: Derivatives) -> Dense:
    """Factor of the posterior's curvature; ValueError unless it is positive definite."""
    precision = np.asarray(found.hessian, np.float64) + np.asarray(found.prior_hessian)
    diagonal = np.diagonal(precision)
    if not (np.isfinite(precision).all() and (diagonal > 0).all()):
        raise ValueError(NO_MODE.format("its curvature there is not positive and finite"))
    scale = diagonal**-0.5
    eigenvalues, vectors = np.linalg.eigh(scale[:, None] * precision * scale)
    if eigenvalues[0] <= diagonal.size * np.finfo(found.hessian.dtype).eps:
        raise ValueError(NO_MODE.format("its curvature there is not positive definite"))
    root = eigenvalues**0.5
    dtype = found.hessian.dtype
    return Dense(
        jnp.asarray(scale[:, None] * vectors / root, dtype),
        jnp.asarray(root[:, None] * vectors.T / scale, dtype),
        jnp.asarray(2.0 * np.sum(np.log(root / scale)), dtype),
    )
