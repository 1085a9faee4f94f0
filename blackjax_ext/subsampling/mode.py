r"""A mode of an energy that reads many rows, by Newton's method on the host.

A step is :math:`-|H|^{-1} g` with the absolute values of the eigenvalues of the Hessian scaled to a
unit diagonal, halved until the energy falls. Energies are compared in double precision, from the
pairs that the passes over the rows return: with a million rows in float32, the last steps of the
way gain less than the rounding of one float. The loop runs before anything is compiled for
sampling; only the passes grow with N.

*Correlated coordinates.* A covariate whose mean is m of its standard deviations makes the
correlation of its slope with the intercept :math:`1 - 1/(2 m^2)`: from m = 1000 on, a Hessian that
is summed in float32 does not tell it from one. So a pass sums derivatives in the coordinates of a
root R, :math:`R^T g` and :math:`R^T H R`, from the columns of :math:`A_i R` and not of
:math:`A_i`. Where an eigenvalue of the outcome is too small to have digits, the pass is repeated
with the root :math:`R |R^T H R|^{-1/2}`, as in the iterated Cholesky QR of a tall matrix (Fukaya
et al. 2020): then the whitened curvature is near the identity, and its rounding is of the order of
the condition number, not of its square. What is on the host is in double precision.

*How correlated.* :func:`condition_number` is the root of the ratio of the extreme eigenvalues of
the posterior's curvature, scaled to a unit diagonal: about 2 m in the example, 1 without
correlation, whatever the units. What a position in floats cannot resolve raises
(:func:`check_resolution`).

Reference: T. Fukaya, R. Kannan, Y. Nakatsukasa, Y. Yamamoto and Y. Yanagisawa 2020, Shifted
Cholesky QR for computing the QR factorization of ill-conditioned matrices.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.metrics import Dense
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.programs import compiled_soon
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling.predictors import (
    Derivatives,
    LinearPredictor,
    energy,
    whitened_derivatives,
)
from blackjax_ext.types import Unravel

__all__ = [
    "DerivativesFn",
    "PosteriorPasses",
    "Stationary",
    "UnresolvedError",
    "check_curvature",
    "check_resolution",
    "check_rest",
    "condition_number",
    "in_double",
    "in_dtype",
    "newton",
    "posterior_mode",
    "resolved",
]

# from a start where an exponential of a row is e^k too large, about k of them
MAX_NEWTON_STEPS = 200
# where the rows are saturated the curvature is the prior's alone: a step of its width is too long
# by the number of rows and their size
MAX_HALVINGS = 50
# decrease of the energy in units of the squared distance, half of which a parabola promises: after
# ten halvings a step is rather that of rounding
SUFFICIENT = 1e-3
# squared distance of a start where the exponential of a row is all that floats see; nearer to zero
# it may be less, and derivatives finite
FAR_SQUARED, MAX_SHRINKS = 1e12, 10
MAX_ROOTS = 8  # passes that look for a root; each gains a factor of a hundred or more
# squared distance to the mode in standard deviations: done, and what may be left where no step
# lowers the energy any more
MODE_TOLERANCE, TOLERABLE = 1e-6, 1.0
# squared distance from which on Newton's steps become shorter by more than this each time: by e
# where an exponential of a row of great leverage bends faster than its parabola
NEAR, SHORTER = 1e-2, 0.5
# change of a predictor in the last step, in units of its family's reach: in a mode it is zero
MAX_LAST_CHANGE = 0.2
# an eigenvalue has two digits from here on, in units of eps: sums of a chunk of rows are off by
# hundreds of these
RESOLVED = 1e5
# condition number times the rounding of a float, up to which energies are right to 0.01
MAX_ROUNDING = 6e-4
# spacing of the floats around the mode, in standard deviations of the narrowest direction
MAX_SPACING = 0.1
RUNAWAY = (
    " A sampled scale, such as the standard deviation of centred groups, may tend to zero, where "
    "the density is unbounded: then there is no mode. A non-centred parametrization has a mode "
    '(use it with acceptance="full"); samplers without a control variate need no mode.'
)
NO_MODE = (
    "the posterior has no mode near the start ({}): separable data under a flat prior have none. "
    "Otherwise start nearer to the mode, or use a sampler without a control variate."
) + RUNAWAY
NOT_FINITE_ENERGY = (
    "the derivatives of the posterior are not finite in {} near the start: numbers that are too "
    "large or too small for it, such as the inverse square of a scale. Measure the responses and "
    "their scale in other units, check the data for NaN, or use float64 "
    "(jax.config.update('jax_enable_x64', True), with data in float64)."
)
UNRESOLVED = (
    "centre the covariates: the condition number of the posterior is {:.2g}, and energies are "
    "accurate up to {:.0f} only. {} has too few digits for a posterior whose coordinates are so "
    "correlated. Subtract the means (the intercept absorbs them), leave out a covariate that "
    "others determine, or use float64, which allows {:.0e} times as much "
    "(jax.config.update('jax_enable_x64', True), with data in float64)."
) + RUNAWAY
TOO_NARROW = (
    "the posterior is too narrow for {} where Newton's method ends: floats there are {:.2g} "
    "standard deviations apart in its narrowest direction, and at most {} is allowed. Coordinates "
    "far from zero have few digits: subtract a mean from the data, or use float64 "
    "(jax.config.update('jax_enable_x64', True), with data in float64)."
) + RUNAWAY


class UnresolvedError(ValueError):
    """Floats do not resolve the posterior."""


class Stationary(NamedTuple):
    """The point at which Newton's method ended.

    x
        Flat position, shape (D,).
    root
        R, shape (D, D), in double precision: the coordinates u of the derivatives, x + R u.
    gradient, hessian
        Of the energy at x, by u, shapes (D,) and (D, D), in double precision.
    step
        Newton's next step, shape (D,); zeros where a derivative was not finite.
    distance
        Squared length of that step in standard deviations; above 1 there was no way down, and NaN
        says that a derivative was not finite.
    """

    x: np.ndarray
    root: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    step: np.ndarray
    distance: float

    @property
    def is_mode(self) -> bool:
        """Whether the place is as good as a mode."""
        return bool(self.distance < TOLERABLE)

    def precision(self) -> np.ndarray:
        """Curvature by x, shape (D, D)."""
        inverse = np.linalg.inv(self.root)
        curved = inverse.T @ self.hessian @ inverse
        symmetric: np.ndarray = 0.5 * (curved + curved.T)
        return symmetric

    def metric(self, floor: float | None = None) -> Dense:
        """The metric of the absolute curvature, on the host in double precision.

        `floor` is the least eigenvalue in the coordinates of the root, that of rounding by default.
        """
        eps = float(np.finfo(self.x.dtype).eps)
        inner = scaled_eigen(self.hessian).absolute(self.x.size * eps if floor is None else floor)
        inverse_sqrt: Any = self.root @ np.asarray(inner.inverse_sqrt)
        sqrt: Any = np.asarray(inner.sqrt) @ np.linalg.inv(self.root)
        shrunk = 2.0 * np.linalg.slogdet(self.root)[1]
        return Dense(inverse_sqrt, sqrt, inner.log_determinant - shrunk)


DerivativesFn = Callable[[Any, Array], tuple[Any, Any]]


def newton(energy_fn: Callable[[Any], Pair], derivatives_fn: DerivativesFn, x: Any) -> Stationary:
    """Descend from `x`, shape (D,), until the next step is negligible or no step lowers the energy.

    Parameters
    ----------
    energy_fn
        Energy of a flat position, as a pair.
    derivatives_fn
        ``derivatives_fn(x, root)``, gradient (D,) and Hessian (D, D) of the energy of
        ``x + root @ u`` by u at zero.
    x
        Start.

    Returns
    -------
    The last place. Cost: for each of at most 200 steps a pass of derivatives and one or more of
    energies; about ten steps from a start in sight of the mode.
    """
    x = on_host(x)  # arithmetic on the host compiles nothing
    value = in_double(energy_fn(x))
    root, last = np.eye(x.size), np.inf
    for num_steps in range(MAX_NEWTON_STEPS + 1):
        point = resolved(derivatives_fn, x, root)
        root = point.root
        if np.isinf(last) and not point.distance < FAR_SQUARED and num_steps < MAX_SHRINKS:
            half = np.asarray(0.5 * x, x.dtype)
            new = in_double(energy_fn(half))
            if np.isnan(point.distance) or new < 0.5 * value:
                x, value, root = half, new, np.eye(x.size)
                continue
        # not if NaN either; where a curvature is rounding, so is the spacing
        done = max(MODE_TOLERANCE, min(spacing(point) ** 2, TOLERABLE))
        if not point.distance >= done or num_steps == MAX_NEWTON_STEPS:
            break
        if is_rounding(point.distance, last):
            return polished(derivatives_fn, point)
        last = point.distance
        lower, new = lower_point(energy_fn, point, value)
        if not point.is_mode and not value - new > SUFFICIENT * point.distance:
            other, lowest = lower_point(energy_fn, short(derivatives_fn, x), value)
            if lowest < new:
                lower, new, root = other, lowest, np.eye(x.size)
        value = new
        if lower is None:
            return polished(derivatives_fn, point)
        x = lower
    return point


def polished(derivatives_fn: DerivativesFn, point: Stationary) -> Stationary:
    """Go on near a mode, by steps that energies have no digits for.

    A row far in its tail moves by more than the reach of its family while its energy changes by
    less than the rounding of all rows' sum. Gradients are more accurate: a step is taken as long as
    it leaves a shorter one. Cost: a pass for each, one at least.
    """
    while point.is_mode:
        nearer = resolved(derivatives_fn, point.x + point.step, point.root)
        if not nearer.distance < SHORTER * point.distance:
            break
        point = nearer
    return point


def short(derivatives_fn: DerivativesFn, x: Any) -> Stationary:
    """A step that is Newton's across the steepest direction and short along all others.

    Where one row is far in its tail its curvature is all that the digits of the others' leave, and
    Newton's step along the others is rounding, too long to be halved into a lower energy. Cost: a
    pass.
    """
    return derivatives_at(derivatives_fn, x, np.eye(x.size), floor=1.0)[0]


def is_rounding(distance: float, last: float) -> bool:
    """Whether a step is what rounding leaves: so near, the error of the last one is squared.

    Of a hundred million rows in single precision that is more than `MODE_TOLERANCE`: it would go
    on for as long as rounding makes an energy lower than the one before.
    """
    return distance < NEAR and distance > SHORTER * last


def resolved(derivatives_fn: DerivativesFn, x: Any, root: np.ndarray | None = None) -> Stationary:
    """Derivatives at `x` in coordinates that leave digits in them, with Newton's step.

    Cost: a pass where the coordinates are scarcely correlated, a few more where they are.
    """
    eps = float(jnp.finfo(x.dtype).eps)
    root = np.eye(x.size) if root is None else root
    for _ in range(MAX_ROOTS):
        point, smallest, inner = derivatives_at(derivatives_fn, x, root)
        # zero stays zero
        if inner is None or not np.finfo(np.float64).eps < smallest < RESOLVED * eps:
            break
        root = point.root @ inner
    return point


def derivatives_at(
    derivatives_fn: DerivativesFn, x: Any, root: np.ndarray, floor: float = 0.0
) -> tuple[Stationary, float, np.ndarray | None]:
    """Derivatives by one root, the least eigenvalue of their scaled Hessian, and its root.

    The step is that of eigenvalues of at least `floor`, or rounding.
    """
    rounded: Any = np.asarray(root, x.dtype)
    found_there = on_host(tuple(derivatives_fn(x, rounded)))
    gradient, hessian = (np.asarray(array, np.float64) for array in found_there)
    root = np.asarray(rounded, np.float64)
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        return Stationary(x, root, gradient, hessian, np.zeros_like(x), np.nan), np.nan, None
    eigen = scaled_eigen(hessian)
    metric: Any = eigen.absolute(max(gradient.size * float(jnp.finfo(x.dtype).eps), floor))
    slope = metric.inverse_sqrt_transpose_times(gradient)
    step = np.asarray(root @ -metric.inverse_sqrt_times(slope), x.dtype)
    point = Stationary(x, root, gradient, hessian, step, float(slope @ slope))
    return point, float(np.min(np.abs(eigen.values))), metric.inverse_sqrt


def spacing(point: Stationary) -> float:
    """Spacing of the floats around a place, in standard deviations of the narrowest direction."""
    if not np.isfinite(point.distance):
        return np.nan
    size = np.abs(np.asarray(point.x, np.float64))
    steps = np.abs(np.asarray(point.metric().sqrt)) @ size
    return float(np.finfo(point.x.dtype).eps * np.linalg.norm(steps))


class PosteriorPasses:
    """Passes over the rows of one posterior, compiled for it and forgotten with it.

    Programs of functions of a module would be kept, with what they were made for.

    Attributes
    ----------
    is_seen
        Whether the rows depend on a coordinate, shape (D,), after a pass of derivatives.
    """

    def __init__(
        self, posterior: LinearPredictor, unravel: Unravel, say: Callable[[str], None] | None
    ):
        energy_at = compiled_soon(lambda rows, x: energy(rows, unravel(x)))
        derivatives_at = compiled_soon(
            lambda rows, x, root: whitened_derivatives(rows, unravel(x), root)
        )
        self.energy: Callable[[Any], Pair] = partial(energy_at, posterior)
        self._derivatives: Callable[[Any, Any], Derivatives] = partial(derivatives_at, posterior)
        self.is_seen = np.zeros(0, bool)
        self._say, self._num_rows, self._num_passes = say, posterior.num_rows, 0

    def announce(self, purpose: str) -> None:
        """Say that the rows are read once more."""
        self._num_passes += 1
        if self._say is not None:
            self._say(f"reading {self._num_rows:,} rows, {purpose}, pass {self._num_passes}")

    def derivatives(self, x: Any, root: Any) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian of rows and prior together, for :func:`newton`."""
        self.announce("looking for their mode")
        sums = on_host(self._derivatives(x, root))
        self.is_seen = sums.is_seen
        gradient = np.asarray(sums.gradient, np.float64) + sums.prior_gradient
        hessian = np.asarray(sums.hessian, np.float64) + sums.prior_hessian
        return gradient, hessian


def posterior_mode(passes: PosteriorPasses, x: Array) -> Stationary:
    """Mode of a posterior near `x`, shape (D,); ValueError if there is none.

    Whether predictors still move there, as they do where the data are separable and no prior holds
    them, is for :func:`check_rest`.
    """
    mode = newton(passes.energy, passes.derivatives, x)
    if not np.isfinite(mode.distance):
        raise ValueError(NOT_FINITE_ENERGY.format(mode.x.dtype) + RUNAWAY)
    if not mode.is_mode:
        raise no_mode_error(mode)
    return mode


def check_rest(mode: Stationary, change: float) -> None:
    """Raise ValueError if Newton's next step changes a predictor by more than MAX_CHANGE.

    `change` is in units of the reach of the predictor's family.
    """
    if not change < MAX_LAST_CHANGE:
        raise no_mode_error(mode)


def no_mode_error(point: Stationary) -> ValueError:
    """The error of a place that is no mode; raises another if floats do not resolve it."""
    check_resolution(point)
    return ValueError(NO_MODE.format("Newton's method still moves"))


def in_double(pair: Pair) -> float:
    """The number that a pair stands for."""
    high, low = on_host((pair.high, pair.low))
    return float(high) + float(low)


def lower_point(
    energy_fn: Callable[[Any], Pair], start: Stationary, value: float
) -> tuple[np.ndarray | None, float]:
    """First point along a step, halved again and again, with a lower energy; None if none has.

    In a mode rounding decides which of two energies is lower. There no step is tried that is so
    short that the search would be done: each is a pass over all rows.
    """
    for i in range(MAX_HALVINGS):
        if start.is_mode and 0.25**i * start.distance < MODE_TOLERANCE:
            break
        point = np.asarray(start.x + 0.5**i * start.step, start.x.dtype)
        new = in_double(energy_fn(point))
        if -np.inf < new < value:  # a law that overflows, as truncated ones do, is no way down
            return point, new
    return None, value


def condition_number(precision: np.ndarray) -> float:
    """Root of the ratio of the extreme eigenvalues of a curvature scaled to a unit diagonal."""
    values = np.abs(scaled_eigen(precision).values)
    return float(np.sqrt(values[-1] / max(values[0], np.finfo(np.float64).tiny)))


def check_resolution(point: Stationary) -> None:
    r"""Raise ValueError if floats do not resolve the posterior around `point`.

    Up to a condition number of 6e-4 / eps, 5,000 in float32, energies around the mode are right to
    0.01: the whitened position :math:`w = R^{-1} (x - a)` and the whitened rows :math:`A_i R` are
    sums that cancel to one part of the condition number, of which each has the rounding eps, and
    the energy is :math:`|w|^2 / 2`. And floats around the mode must be closer together than a tenth
    of a standard deviation of the narrowest direction, or a chain would jump between them.
    """
    eps = float(np.finfo(point.x.dtype).eps)
    condition, steps = condition_number(point.precision()), spacing(point)
    if not condition <= MAX_ROUNDING / eps:
        more = eps / float(np.finfo(np.float64).eps)
        most = MAX_ROUNDING / eps
        raise UnresolvedError(UNRESOLVED.format(condition, most, point.x.dtype, more))
    if not steps <= MAX_SPACING:
        raise UnresolvedError(TOO_NARROW.format(point.x.dtype, steps, MAX_SPACING))


def check_curvature(mode: Stationary) -> Dense:
    """Metric of the posterior's curvature, on the host; ValueError unless positive definite."""
    if not np.isfinite(mode.hessian).all():
        raise ValueError(NOT_FINITE_ENERGY.format(mode.x.dtype))
    if not (np.diagonal(mode.hessian) > 0).all():
        raise ValueError(NO_MODE.format("its curvature there is not positive"))
    least = scaled_eigen(mode.hessian).values[0]
    if least <= mode.x.size * float(np.finfo(mode.x.dtype).eps):
        raise ValueError(NO_MODE.format("its curvature there is not positive definite"))
    check_resolution(mode)
    return mode.metric(0.0)


def in_dtype(metric: Dense, dtype: Any) -> Dense:
    """A metric of the host for the device."""
    return Dense(
        jnp.asarray(metric.inverse_sqrt, dtype),
        jnp.asarray(metric.sqrt, dtype),
        jnp.asarray(metric.log_determinant, dtype),
    )
