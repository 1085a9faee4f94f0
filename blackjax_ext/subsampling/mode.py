r"""The mode of a posterior of linear predictors, and whether floats resolve what is around it.

:mod:`blackjax_ext.rows.newton` finds it by passes over the rows. What it finds must be a
mode: with a curvature, at rest, and resolved (:mod:`blackjax_ext.rows.newton`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from blackjax_ext.meshes import on_host
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.programs import compiled_soon
from blackjax_ext.rows.arrowhead import Arrow, Whitening, cast, seen_first
from blackjax_ext.rows.newton import (
    IN_DOUBLE,
    RUNAWAY,
    TOLERANCES,
    Derivatives,
    Energy,
    EnergyPasses,
    HostPosition,
    check_resolution,
    descend,
    in_double,
    resolved,
)
from blackjax_ext.subsampling.grouping import GroupedPredictor
from blackjax_ext.subsampling.passes import (
    plain_prior,
    prior_arrow,
    row_arrow,
    row_energy,
    smoothed_prior,
)

NO_MODE = (
    "the posterior has no mode near the start ({}): separable data under a flat prior have none. "
    "Otherwise start nearer to the mode, or use a sampler without a control variate."
) + RUNAWAY
NOT_FINITE_ENERGY = (
    "the derivatives of the posterior are not finite in {} near the start. Check the data for NaN; "
    "if numbers are too large or too small, such as the inverse square of a scale, measure the "
    "responses and their scale in other units, or use float64 "
) + IN_DOUBLE


class ExpansionPoint(NamedTuple):
    """Where rows are expanded.

    Attributes
    ----------
    point
        The position.
    frame
        Coordinates that the curvature there makes the identity, in double precision.
    step
        Newton's next step, of shared coordinates and groups.
    num_seen
        P: rows see the first of the shared coordinates of the frame.
    metric
        That of the curvature, without groups.
    """

    point: HostPosition
    frame: Whitening
    step: tuple[Any, Any]
    num_seen: int
    metric: Dense | None = None


class RowPasses(EnergyPasses):
    """Passes over the rows of one posterior, compiled for it and forgotten with it.

    Programs of functions of a module would be kept, with what they were made for. With
    `is_smoothed` the prior is its mean over the groups' own spread, where that is known.
    """

    is_smoothed = False
    # which shared coordinates rows see, after a first pass of derivatives
    is_seen = np.zeros(0, bool)

    def __init__(self, predictor: GroupedPredictor, say: Callable[[str], Any] | None):
        self.predictor, self._say, self._num_passes = predictor, say, 0
        join = predictor.grouping.join

        def energies(of: Any, y: Any, b: Any, frame: Any, is_smoothed: bool) -> Any:
            return row_energy(of.rows, join(y, b)), prior(of, y, b, frame, is_smoothed)

        def prior(of: Any, y: Any, b: Any, frame: Any, is_smoothed: bool) -> Any:
            prior_of = smoothed_prior if is_smoothed else plain_prior
            return prior_of(of, join(y, b), frame)(0.0 * y, 0.0 * b)

        def arrows(of: Any, y: Any, b: Any, frame: Any, is_smoothed: bool) -> Any:
            return row_arrow(of, join(y, b), frame), arrow(of, y, b, frame, is_smoothed)

        def arrow(of: Any, y: Any, b: Any, frame: Any, is_smoothed: bool) -> Any:
            return prior_arrow(of, join(y, b), frame, is_smoothed=is_smoothed)

        self._energies, self._prior_energy, self._arrows, self._prior_arrow = (
            compiled_soon(function, static_argnums=4)
            for function in (energies, prior, arrows, arrow)
        )

    def announce(self, purpose: str) -> None:
        """Say that the rows are read once more."""
        self._num_passes += 1
        if self._say is not None:
            num_rows = self.predictor.rows.num_rows
            self._say(f"reading {num_rows:,} rows, {purpose}, pass {self._num_passes}")

    def energy(self, point: HostPosition, frame: Whitening) -> Energy:
        """The energy at a position."""
        rows, prior = self._energies(*self._arguments(point, frame))
        return Energy(in_double(rows), float(on_host(prior)))

    def derivatives(self, point: HostPosition, frame: Whitening) -> Derivatives:
        """Derivatives at a position."""
        self.announce("looking for their mode")
        (rows, sizes), prior = self._arrows(*self._arguments(point, frame))
        return Derivatives(in_double_precision(rows), in_double_precision(prior), on_host(sizes))

    def first_free(self, point: HostPosition, sizes: np.ndarray) -> np.ndarray:
        """All coordinates."""
        self.is_seen = sizes[: point.shared.size] > 0
        return super().first_free(point, sizes)

    def prior(self, point: HostPosition, frame: Whitening) -> Arrow:
        """Arrow of the prior alone."""
        return in_double_precision(self._prior_arrow(*self._arguments(point, frame)))

    def smooths(self, frame: Whitening) -> bool:
        """Whether a mean is taken over the spread, which a first frame does not know."""
        return self.is_smoothed and not frame.is_first()

    def _arguments(self, point: HostPosition, frame: Whitening) -> tuple[Any, ...]:
        rounded = cast(frame, point.shared.dtype)
        return self.predictor, *point, rounded, self.smooths(frame)


def in_double_precision(arrow: Arrow) -> Arrow:
    """An arrow on the host, in double precision."""
    return Arrow(*(np.asarray(part, np.float64) for part in on_host(tuple(arrow))))


def anchor_without_groups(
    passes: RowPasses, point: HostPosition, *, find_mode: bool
) -> ExpansionPoint:
    """The mode near a position, or the position itself, with the frame of the curvature there.

    ValueError if there is none, or if it is not positive definite or not resolved. Whether
    predictors still move there, as they do where the data are separable and no prior holds them, is
    for :func:`check_rest`.
    """
    search = descend if find_mode else resolved
    place = search(passes, point, point.frame())
    if place.eliminated is None or (find_mode and not np.isfinite(place.distance)):
        raise ValueError(NOT_FINITE_ENERGY.format(place.x.dtype) + find_mode * RUNAWAY)
    if find_mode and not place.is_mode:
        raise no_mode_error(place.point, place.refined())
    hessian = place.derivatives.total().of_shared
    if not (np.diagonal(hessian) > 0).all():
        raise ValueError(NO_MODE.format("its curvature there is not positive"))
    if not scaled_eigen(hessian).values[0] > place.x.size * point.eps:
        raise ValueError(NO_MODE.format("its curvature there is not positive definite"))
    check_resolution(place.point, place.refined())
    if not passes.is_seen.any():
        raise ValueError("predict_fn must depend on the position; its Jacobian is zero everywhere.")
    frame = seen_first(place.refined(), passes.is_seen).rounded(place.x.dtype)
    step = place.step if find_mode else (0 * place.point.shared, place.point.groups)
    return ExpansionPoint(place.point, frame, step, int(passes.is_seen.sum()), place.metric())


def check_rest(anchor: ExpansionPoint, change: float) -> None:
    """Raise ValueError if Newton's next step changes a predictor by too much.

    `change` is in units of the reach of the predictor's family.
    """
    if not change < TOLERANCES.last_change:
        raise no_mode_error(anchor.point, anchor.frame)


def no_mode_error(point: HostPosition, frame: Whitening) -> ValueError:
    """The error of a place that is no mode; raises another if floats do not resolve it."""
    check_resolution(point, frame)
    return ValueError(NO_MODE.format("Newton's method still moves"))
