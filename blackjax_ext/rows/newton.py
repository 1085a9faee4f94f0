r"""A mode of an energy that reads many rows, by Newton's method on the host.

A step is :math:`-|H|^{-1} g` with the absolute values of the eigenvalues of the Hessian scaled to a
unit diagonal, halved until the energy falls. Derivatives are arrows
(:mod:`blackjax_ext.rows.arrowhead`), of which the groups are eliminated first. Energies are
compared in double precision, from the pairs that the passes over the rows return: with a million
rows in float32, the last steps of the way gain less than the rounding of one float. The loop runs
before anything is compiled for sampling; only the passes grow with N.

*Correlated coordinates.* A covariate whose mean is m of its standard deviations makes the
correlation of its slope with the intercept :math:`1 - 1/(2 m^2)`: from m = 1000 on, a Hessian that
is summed in float32 does not tell it from one. So a pass sums derivatives in the coordinates of a
root R, :math:`R^T g` and :math:`R^T H R`, from the columns of :math:`A_i R` and not of
:math:`A_i`. Where an eigenvalue of the outcome is too small to have digits, the pass is repeated
with the root :math:`R |R^T H R|^{-1/2}`, as in the iterated Cholesky QR of a tall matrix (Fukaya
et al. 2020): then the whitened curvature is near the identity, and its rounding is of the order of
the condition number, not of its square. What is on the host is in double precision.

*How correlated.* The condition number is the root of the ratio of the extreme eigenvalues of the
posterior's curvature, scaled to a unit diagonal: about 2 m for a covariate whose mean is m of its
standard deviations, 1 without correlation, whatever the units. :func:`check_resolution` says
whether floats resolve the mode and what is around it.

Reference: T. Fukaya, R. Kannan, Y. Nakatsukasa, Y. Yamamoto and Y. Yanagisawa 2020, Shifted
Cholesky QR for computing the QR factorization of ill-conditioned matrices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.rows.arrowhead import (
    Arrow,
    Eliminated,
    Whitening,
    eliminate,
    identity_whitening,
    inverse_factor,
    least_eigenvalue,
    refined,
    worst_condition,
)
from blackjax_ext.rows.compensated_sums import Pair

# from a start where an exponential of a row is e^k too large, about k of them
MAX_NEWTON_STEPS = 200
# where the rows are saturated the curvature is the prior's alone: a step of its width is too long
# by the number of rows and their size
MAX_HALVINGS = 50


class Tolerances(NamedTuple):
    """When a search for a mode is done, and what of it floats must resolve.

    Distances are squared and in standard deviations.
    """

    mode: float = 1e-6  # distance to a mode
    anchor: float = 1e-4  # that of rows in groups need not be closer
    tolerable: float = 1.0  # what may be left where no step lowers the energy any more
    # from here on Newton's steps become shorter by more than that each time: by e where an
    # exponential of a row of great leverage bends faster than its parabola
    near: float = 1e-2
    shorter: float = 0.5
    # decrease of the energy in units of the distance, half of which a parabola promises: after ten
    # halvings a step is rather that of rounding
    sufficient: float = 1e-3
    # distance of a start where the exponential of a row is all that floats see; nearer to zero it
    # may be less, and derivatives finite
    far: float = 1e12
    last_change: float = 0.2  # of a predictor, in units of its family's reach: in a mode it is zero
    # an eigenvalue has two digits from here on, in units of eps: sums of a chunk of rows are off by
    # hundreds of these
    resolved: float = 1e5
    rounding: float = 6e-4  # condition number times eps, up to which energies are right to 0.01
    spacing: float = 0.1  # of floats around the mode, in sds of the narrowest direction
    round: float = 0.1  # sds that hyperparameters move by in the last round at most
    coordinate: float = 0.05  # distance for each coordinate where steps lead no nearer
    singular: float = 0.1  # of a group where it was one: below, it says nothing of its spread
    slope: float = 1e-3  # of a difference of slopes
    unchanged: float = 1e-3  # of a curvature relative to the largest
    runaway: float = 20.0  # sds that a hyperparameter moves by in a round: beyond, it runs away


TOLERANCES = Tolerances()


class HostPosition(NamedTuple):
    """A position on the host: shared coordinates (p,) and groups (G, d)."""

    shared: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, x: Any) -> "HostPosition":
        """That of a flat position without groups."""
        return cls(x, np.zeros((1, 0), x.dtype))

    def plus(self, step: tuple[Any, Any], factor: float = 1.0) -> "HostPosition":
        """The position after a part of a step."""
        return HostPosition(
            (self.shared + factor * step[0]).astype(self.shared.dtype),
            (self.groups + factor * step[1]).astype(self.groups.dtype),
        )

    def halved(self, is_free: np.ndarray) -> "HostPosition":
        """Half of it, but for shared coordinates that are held."""
        shared = np.where(is_free, 0.5 * self.shared, self.shared).astype(self.shared.dtype)
        return HostPosition(shared, (0.5 * self.groups).astype(self.groups.dtype))

    @property
    def eps(self) -> float:
        """Spacing of floats at one."""
        return float(np.finfo(self.shared.dtype).eps)

    def frame(self) -> Whitening:
        """The coordinates themselves."""
        return identity_whitening(self.shared.size, *self.groups.shape)


class Energy(NamedTuple):
    """Energy of the rows, and that of the prior, in double precision."""

    rows: float
    prior: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.rows + self.prior


class Derivatives(NamedTuple):
    """Derivatives of an energy by the coordinates of a frame, on the host in double precision.

    rows, prior
        Arrows of both.
    sizes
        Of the columns of the rows, shape (p + d,).
    """

    rows: Arrow
    prior: Arrow
    sizes: np.ndarray

    def total(self) -> Arrow:
        """The arrow of both together."""
        return Arrow(*(a + b for a, b in zip(self.rows, self.prior, strict=True)))


class EnergyPasses:
    """Passes over all rows of an energy, and what Newton's method knows of it: here, no groups.

    Attributes
    ----------
    tolerance
        Squared distance to the mode in standard deviations at which it is done.
    follows
        Whether the coordinates follow the curvature at each step, or only where they must.
    """

    tolerance = TOLERANCES.mode
    follows = False

    def energy(self, point: HostPosition, frame: Whitening) -> Energy:
        """The energy at a position."""
        raise NotImplementedError

    def derivatives(self, point: HostPosition, frame: Whitening) -> Derivatives:
        """Derivatives at a position, by the coordinates of a frame."""
        raise NotImplementedError

    def in_frame(self, energy: Energy, point: HostPosition, frame: Whitening) -> Energy:
        """The energy in another frame, on which that of the prior may depend."""
        del point, frame
        return energy

    def first_free(self, point: HostPosition, sizes: np.ndarray) -> np.ndarray:
        """Which shared coordinates are moved, shape (p,); `sizes` are those of rows' columns."""
        del sizes
        return np.ones(point.shared.size, bool)

    def floor(self, frame: Whitening) -> float:
        """Least eigenvalue that the curvature of a group counts as."""
        del frame
        return 0.0

    def goes_round(self, point: HostPosition, distance: float, last: float) -> bool:
        """Whether steps lead no nearer, after one from the squared distance `last`."""
        del point, distance, last
        return False


class Stationary(NamedTuple):
    """The point at which Newton's method ended.

    point
        The position.
    frame
        Coordinates of the derivatives, as they are rounded, in double precision.
    derivatives
        By these coordinates.
    eliminated
        Their sum without the groups; None where one was not finite.
    step
        Newton's next step, of shared coordinates and groups; zeros where it is not known.
    distance
        Squared length of that step in standard deviations; above 1 there was no way down, and NaN
        says that a derivative was not finite.
    is_free
        Which shared coordinates it moves, shape (p,).
    """

    point: HostPosition
    frame: Whitening
    derivatives: Derivatives
    eliminated: Eliminated | None
    step: tuple[Any, Any]
    distance: float
    is_free: np.ndarray

    @property
    def x(self) -> np.ndarray:
        """All coordinates of a posterior without groups, shape (p,)."""
        return self.point.shared

    @property
    def is_mode(self) -> bool:
        """Whether the place is as good as a mode."""
        return bool(self.distance < TOLERANCES.tolerable)

    def refined(self, more: np.ndarray | float = 0.0, is_free: Any = None) -> Whitening:
        """The frame of the curvature, and of `more` of it, among the free coordinates."""
        assert self.eliminated is not None
        is_free = self.is_free if is_free is None else is_free
        return refined(self.frame, self.eliminated, is_free, self.point.eps, more)

    def metric(self) -> Dense:
        """The metric of the absolute curvature without groups, on the host in double precision."""
        hessian, root = self.derivatives.total().of_shared, self.frame.root
        inner = scaled_eigen(hessian).absolute(self.x.size * self.point.eps)
        inverse_sqrt: Any = root @ np.asarray(inner.inverse_sqrt)
        sqrt: Any = np.asarray(inner.sqrt) @ np.linalg.inv(root)
        shrunk = 2.0 * np.linalg.slogdet(root)[1]
        return Dense(inverse_sqrt, sqrt, inner.log_determinant - shrunk)

    def spacing(self) -> float:
        """Spacing of floats around it, in standard deviations of the narrowest direction."""
        return np.nan if self.eliminated is None else spacing(self.point, self.refined())


def descend(
    passes: EnergyPasses, point: HostPosition, frame: Whitening, is_free: np.ndarray | None = None
) -> Stationary:
    """Descend from a position until the next step is negligible or no step lowers the energy.

    Returns
    -------
    The last place. Cost: for each of at most 200 steps a pass of derivatives and one or more of
    energies; about ten steps from a start in sight of the mode.
    """
    first, last = frame, np.inf
    energy = passes.energy(point, frame)
    for num_steps in range(MAX_NEWTON_STEPS + 1):
        here = resolved(passes, point, frame, is_free)
        frame, is_free = here.frame, is_free if here.eliminated is None else here.is_free
        # a far start shrinks so often at most
        if np.isinf(last) and not here.distance < TOLERANCES.far and num_steps < 10:
            half = point.halved(here.is_free)
            new = passes.energy(half, first)
            if np.isnan(here.distance) or new.total < 0.5 * energy.total:
                point, energy, frame = half, new, first
                continue
        # not if NaN either; where a curvature is rounding, so is the spacing
        done = max(passes.tolerance, min(here.spacing() ** 2, TOLERANCES.tolerable))
        if not here.distance >= done or num_steps == MAX_NEWTON_STEPS:
            break
        if passes.goes_round(point, here.distance, last):
            break
        # so near, a step squares the error of the last one, or is what rounding leaves: of a
        # hundred million rows in single precision that is more than the tolerance
        if here.distance < TOLERANCES.near and here.distance > TOLERANCES.shorter * last:
            return polished(passes, here)
        last = here.distance
        energy = passes.in_frame(energy, point, frame)
        lower, new = lower_point(passes, here, energy)
        if passes.follows:
            frame = here.refined()
        elif not (here.is_mode or energy.total - new.total > TOLERANCES.sufficient * here.distance):
            # Newton's across the steepest direction, short along all others: where one row is far
            # in its tail its curvature is all that the digits of the others' leave
            short = newton_step(passes, point, point.frame(), here.is_free, floor=1.0)
            other, lowest = lower_point(passes, short, energy)
            if lowest.total < new.total:
                lower, new, frame = other, lowest, point.frame()
        if lower is None:
            return polished(passes, here)
        point, energy = lower, new
    return here


def polished(passes: EnergyPasses, here: Stationary) -> Stationary:
    """Go on near a mode, by steps that energies have no digits for.

    A row far in its tail moves by more than the reach of its family while its energy changes by
    less than the rounding of all rows' sum. Gradients are more accurate: a step is taken as long as
    it leaves a shorter one. Cost: a pass for each, one at least.
    """
    while here.is_mode:
        nearer = resolved(passes, here.point.plus(here.step), here.frame, here.is_free)
        if not nearer.distance < TOLERANCES.shorter * here.distance:
            break
        here = nearer
    return here


def resolved(
    passes: EnergyPasses, point: HostPosition, frame: Whitening, is_free: np.ndarray | None = None
) -> Stationary:
    """Derivatives at a position in coordinates that leave digits in them, with Newton's step.

    Cost: a pass where the coordinates are scarcely correlated, a few more where they are.
    """
    # passes that look for a root; each gains a factor of a hundred or more
    for _ in range(8):
        here = newton_step(passes, point, frame, is_free)
        if here.eliminated is None:
            break
        is_free = here.is_free
        least = least_eigenvalue(here.eliminated.schur, is_free)
        # zero stays zero
        if not np.finfo(np.float64).eps < least < TOLERANCES.resolved * point.eps:
            break
        frame = here.refined()
    return here


def newton_step(
    passes: EnergyPasses,
    point: HostPosition,
    frame: Whitening,
    is_free: np.ndarray | None = None,
    floor: float = 0.0,
) -> Stationary:
    """Derivatives in one frame, with Newton's step of the free shared coordinates and all groups.

    The step is that of eigenvalues of at least `floor`, or rounding.
    """
    frame = frame.rounded(point.shared.dtype)
    derivatives = passes.derivatives(point, frame)
    arrow, everything = derivatives.total(), np.ones(point.shared.size, bool)
    none = np.zeros_like(point.shared), np.zeros_like(point.groups)
    if not all(np.isfinite(part).all() for part in arrow):  # which say nothing of what is free
        is_free = everything if is_free is None else is_free
        return Stationary(point, frame, derivatives, None, none, np.nan, is_free)
    is_free = passes.first_free(point, derivatives.sizes) if is_free is None else is_free
    eliminated = eliminate(arrow, point.eps, max(passes.floor(frame), floor))
    both = is_free & is_free[:, None]
    root = np.where(both, inverse_factor(eliminated.schur, is_free, point.eps, floor), 0.0)
    slope = root.T @ eliminated.slope
    u = -root @ slope
    v = -eliminated.solved(arrow.groups + np.einsum("cdp,p->cd", arrow.coupling, u))
    within = np.einsum("cd,cd->", arrow.groups, eliminated.solved(arrow.groups))
    distance = float(slope @ slope + within)
    step = frame.steps(u, v)
    return Stationary(point, frame, derivatives, eliminated, step, distance, is_free)


def lower_point(
    passes: EnergyPasses, here: Stationary, energy: Energy
) -> tuple[HostPosition | None, Energy]:
    """First point along a step, halved again and again, with a lower energy; None if none has.

    In a mode rounding decides which of two energies is lower. There no step is tried that is so
    short that the search would be done: each is a pass over all rows.
    """
    for i in range(MAX_HALVINGS):
        if here.is_mode and 0.25**i * here.distance < TOLERANCES.mode:
            break
        point = here.point.plus(here.step, 0.5**i)
        new = passes.energy(point, here.frame)
        # a law that overflows, as truncated ones do, is no way down
        if -np.inf < new.total < energy.total:
            return point, new
    return None, energy


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
    As :func:`descend`.
    """
    point = HostPosition.of(on_host(x))  # arithmetic on the host compiles nothing
    return descend(DensePasses(energy_fn, derivatives_fn), point, point.frame())


class DensePasses(EnergyPasses):
    """Passes of an energy of flat positions."""

    def __init__(self, energy_fn: Callable[[Any], Pair], derivatives_fn: DerivativesFn):
        self._energy, self._derivatives = energy_fn, derivatives_fn

    def energy(self, point: HostPosition, frame: Whitening) -> Energy:
        """The energy at a position."""
        del frame
        return Energy(in_double(self._energy(point.shared)), 0.0)

    def derivatives(self, point: HostPosition, frame: Whitening) -> Derivatives:
        """Gradient and Hessian at a position."""
        rounded: Any = np.asarray(frame.root, point.shared.dtype)
        sums = on_host(tuple(self._derivatives(point.shared, rounded)))
        gradient, hessian = (np.asarray(part, np.float64) for part in sums)
        size = gradient.size
        rest = np.zeros((1, 0)), np.zeros((1, 0, size)), np.zeros((1, 0, 0))
        arrow = Arrow(gradient, rest[0], hessian, *rest[1:])
        return Derivatives(arrow, Arrow(*(0.0 * part for part in arrow)), np.ones(size))


def spacing(point: HostPosition, frame: Whitening) -> float:
    """Spacing of the floats at a position, in standard deviations of the narrowest direction."""
    shared, groups = (np.abs(np.asarray(part, np.float64)) for part in point)
    of_shared = np.abs(frame.root_inverse) @ shared
    of_groups = np.einsum("cij,cj->ci", np.abs(frame.roots_inverse), groups)
    most = max(float(np.linalg.norm(of_shared)), float(of_groups.max(initial=0.0)))
    return point.eps * most


def in_double(pair: Pair) -> float:
    """The number that a pair stands for."""
    high, low = on_host((pair.high, pair.low))
    return float(high) + float(low)


IN_DOUBLE = "(jax.config.update('jax_enable_x64', True), with data in float64)."
RUNAWAY = (
    " A sampled scale, such as the standard deviation of centred groups, may tend to zero, where "
    "the density is unbounded: then there is no mode. A non-centred parametrization has a mode "
    '(use it with acceptance="full"); samplers without a control variate need no mode.'
)
UNRESOLVED = (
    "the condition number of the posterior is {:.2g}, and energies are accurate up to {:.0f} only: "
    "{} has too few digits for coordinates that are so correlated. If covariates are far from "
    "zero, subtract their means (the intercept absorbs them); leave out one that others determine; "
    "or use float64, which allows {:.0e} times as much "
) + (IN_DOUBLE + RUNAWAY)
TOO_NARROW = (
    "the posterior is too narrow for {} where Newton's method ends: floats there are {:.2g} "
    "standard deviations apart in its narrowest direction, and at most {} is allowed. Coordinates "
    "far from zero have few digits: subtract a mean from the data, or use float64 "
) + (IN_DOUBLE + RUNAWAY)


class UnresolvedError(ValueError):
    """Floats do not resolve the posterior."""


def check_resolution(point: HostPosition, frame: Whitening) -> None:
    r"""Raise ValueError if floats do not resolve the posterior around a position.

    `frame` is that of its curvature. Up to a condition number of 6e-4 / eps, 5,000 in float32,
    energies around the mode are right to 0.01: the whitened position :math:`w = R^{-1} (x - a)` and
    the whitened rows :math:`A_i R` are sums that cancel to one part of the condition number, of
    which each has the rounding eps, and the energy is :math:`|w|^2 / 2`. And floats around the mode
    must be closer together than a tenth of a standard deviation of the narrowest direction, or a
    chain would jump between them.
    """
    dtype, most = point.shared.dtype, TOLERANCES.rounding / point.eps
    condition, steps = worst_condition(frame), spacing(point, frame)
    if not condition <= most:
        more = point.eps / float(np.finfo(np.float64).eps)
        raise UnresolvedError(UNRESOLVED.format(condition, most, dtype, more))
    if not steps <= TOLERANCES.spacing:
        raise UnresolvedError(TOO_NARROW.format(dtype, steps, TOLERANCES.spacing))


def in_dtype(metric: Dense, dtype: Any) -> Dense:
    """A metric of the host for the device."""
    placed: Dense = jax.device_put(jax.tree.map(lambda part: np.asarray(part, dtype), metric))
    return placed
