r"""A mode of an energy that reads many rows, by Newton's method on the host.

A step is :math:`-|H|^{-1} g` with the absolute values of the eigenvalues of the Hessian scaled to a
unit diagonal, halved until the energy falls. Energies are compared in double precision, from the
pairs that the passes over the rows return: with a million rows in float32, the last steps of the
way gain less than the rounding of one float. The loop runs before anything is compiled for
sampling; only the passes grow with N.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.metrics import Dense
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling.predictors import (
    Derivatives,
    LinearPredictor,
    derivatives,
    energy,
    largest_change,
)

__all__ = ["Stationary", "check_curvature", "newton", "posterior_mode"]

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


class Stationary(NamedTuple):
    """Where Newton's method ended.

    x
        Flat position, shape (D,).
    gradient, hessian
        Of the energy at x, shapes (D,) and (D, D).
    step
        Newton's next step, shape (D,).
    distance
        Squared length of that step in standard deviations; above 1 there was no way down, and NaN
        says that a derivative was not finite.
    """

    x: np.ndarray
    gradient: Any
    hessian: Any
    step: np.ndarray
    distance: float

    @property
    def is_mode(self) -> bool:
        """Whether the place is as good as a mode."""
        return bool(self.distance < TOLERABLE)


def newton(
    energy_fn: Callable[[Any], Pair],
    derivatives_fn: Callable[[Any], tuple[Any, Any]],
    x: Any,
) -> Stationary:
    """Descend from `x`, shape (D,), until the next step is negligible or no step lowers the energy.

    Parameters
    ----------
    energy_fn
        Energy of a flat position, as a pair.
    derivatives_fn
        Gradient (D,) and Hessian (D, D) of the energy.
    x
        Start.

    Returns
    -------
    The last place. Cost: for each of at most 60 steps a pass of derivatives and one or more of
    energies; about ten steps from a start in sight of the mode.
    """
    x = np.asarray(x)  # arithmetic on the host compiles nothing
    value = in_double(energy_fn(x))
    for num_steps in range(MAX_STEPS + 1):
        gradient, hessian = derivatives_fn(x)
        step, distance = newton_step(gradient, hessian, float(jnp.finfo(x.dtype).eps))
        found = Stationary(x, gradient, hessian, np.asarray(step, x.dtype), distance)
        if not distance >= DONE or num_steps == MAX_STEPS:  # not if NaN either
            break
        lower, value = lower_point(energy_fn, x, found.step, value)
        if lower is None:
            break
        x = lower
    return found


def posterior_mode(posterior: LinearPredictor, start: ArrayTree) -> ArrayTree:
    """Mode of a posterior of linear predictors near `start`; ValueError if there is none."""
    x, unravel = ravel_pytree(start)

    def both(x):
        found = derivatives(posterior, unravel(x))
        return total(found)

    found = newton(lambda x: energy(posterior, unravel(x)), both, x)
    if not np.isfinite(found.distance):
        raise ValueError(NO_MODE.format("its derivatives are not finite"))
    position = unravel(jnp.asarray(found.x))
    change = float(largest_change(posterior, position, jnp.asarray(found.step)))
    if not found.is_mode or not change < MAX_CHANGE:
        raise ValueError(NO_MODE.format("Newton's method still moves"))
    return position


def total(found: Derivatives) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of rows and prior together, in double precision."""
    gradient = np.asarray(found.gradient, np.float64) + np.asarray(found.prior_gradient)
    return gradient, np.asarray(found.hessian, np.float64) + np.asarray(found.prior_hessian)


def in_double(pair: Pair) -> float:
    """The number that a pair stands for."""
    return float(pair.high) + float(pair.low)


def newton_step(
    gradient: Array | np.ndarray, hessian: Array | np.ndarray, eps: float
) -> tuple[np.ndarray, float]:
    """Step of saddle-free Newton and its squared length in deviations, NaN without derivatives.

    `eps` is the rounding of the passes that summed the Hessian.
    """
    gradient, hessian = np.asarray(gradient, np.float64), np.asarray(hessian, np.float64)
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        return gradient, np.nan
    metric: Any = scaled_eigen(hessian).absolute(gradient.size * eps)
    slope = metric.inverse_sqrt_transpose_times(gradient)
    return -metric.inverse_sqrt_times(slope), float(slope @ slope)


def lower_point(
    energy_fn: Callable[[Any], Pair], x: np.ndarray, step: np.ndarray, value: float
) -> tuple[np.ndarray | None, float]:
    """First point along `step`, halved again and again, with a lower energy; None if none has."""
    for i in range(MAX_HALVINGS):
        point = np.asarray(x + 0.5**i * step, x.dtype)
        new = in_double(energy_fn(point))
        if new < value:
            return point, new
    return None, value


def check_curvature(found: Derivatives) -> Dense:
    """Factor of the posterior's curvature; ValueError unless it is positive definite."""
    _, precision = total(found)
    diagonal, dtype = np.diagonal(precision), found.hessian.dtype
    if not (np.isfinite(precision).all() and (diagonal > 0).all()):
        raise ValueError(NO_MODE.format("its curvature there is not positive and finite"))
    eigen = scaled_eigen(precision)
    if eigen.values[0] <= diagonal.size * np.finfo(dtype).eps:
        raise ValueError(NO_MODE.format("its curvature there is not positive definite"))
    metric = eigen.absolute(0.0)
    return Dense(
        jnp.asarray(metric.inverse_sqrt, dtype),
        jnp.asarray(metric.sqrt, dtype),
        jnp.asarray(metric.log_determinant, dtype),
    )
