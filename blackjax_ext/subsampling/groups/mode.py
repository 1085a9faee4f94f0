r"""An anchor for rows in groups: a mode, with hyperparameters where they are likely.

The joint density of centred groups and their scale need not have a mode: where the scale runs to
zero it has no bound. So coordinates that no row sees (*hyperparameters*: means and scales of the
groups) are held while Newton's method finds the mode of all others, with steps by the arrow
(:mod:`blackjax_ext.subsampling.groups.frames`). Then they go to the maximum of

.. math::
    \log p(h, s) + \sum_c \log \int p(b_c \mid h)\, e^{-g_c^T b_c - \frac12 b_c^T R_c b_c}\, db_c,

their density with the groups integrated by Laplace's method, where the rows are their expansion to
second order: exactly for a normal prior. And so on, a few rounds. Any anchor is exact; this one is
where the chain will be.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling.groups.fits import derivatives, newton
from blackjax_ext.subsampling.groups.frames import (
    Arrow,
    Eliminated,
    Frame,
    eliminate,
    first_frame,
    inverse_root,
    refined,
)
from blackjax_ext.subsampling.groups.passes import prior_arrow, row_arrow
from blackjax_ext.subsampling.groups.predictor import GroupedPredictor
from blackjax_ext.subsampling.mode import MAX_HALVINGS, MAX_STEPS, NO_MODE, NOT_FINITE, in_double
from blackjax_ext.subsampling.predictors import energy

__all__ = ["Anchor", "GroupPasses", "cast", "find_anchor"]

DONE = 1e-4  # squared distance to the mode in standard deviations: an anchor need not be closer
MAX_ROUNDS = 8  # of the mode given the hyperparameters, and of these
NEAR = 0.1  # standard deviations that hyperparameters move by in the last round, at most
SINGULAR = 0.1  # of a group's curvature: below, its determinant says nothing of its spread
BESIDE = 1e-3  # standard deviations
NUM_INNER = 3  # Newton steps to the mode of the groups
# of the hyperparameters, to a fraction of their standard deviations
SEARCH = {"xtol": 0.02, "ftol": 1e-7, "maxiter": 10}


class Point(NamedTuple):
    """A position on the host: shared coordinates (p,) and groups (G, d)."""

    shared: np.ndarray
    groups: np.ndarray

    def plus(self, step: tuple[np.ndarray, np.ndarray], factor: float = 1.0) -> "Point":
        """The position after a part of a step."""
        return Point(
            (self.shared + factor * step[0]).astype(self.shared.dtype),
            (self.groups + factor * step[1]).astype(self.groups.dtype),
        )


class Anchor(NamedTuple):
    """Where Newton's method ended.

    Attributes
    ----------
    point
        The position.
    frame
        Coordinates that the curvature there makes the identity, in double precision.
    step
        Newton's next step, of y and b.
    distance
        Its squared length in standard deviations.
    """

    point: Point
    frame: Frame
    step: tuple[np.ndarray, np.ndarray]
    distance: float


def cast(frame: Frame, dtype: Any) -> Frame:
    """A frame of the host for the device."""
    return Frame(*(jnp.asarray(each, dtype) for each in frame))


class GroupPasses:
    """Passes over the rows of one posterior, compiled for it and forgotten with it."""

    def __init__(self, predictor: GroupedPredictor, say: Callable[[str], Any] | None):
        self.predictor, self._say, self._num = predictor, say, 0
        join = predictor.grouping.join
        self._rows = jax.jit(lambda of, y, b, frame: row_arrow(of, join(y, b), frame))
        self._prior = jax.jit(lambda of, y, b, frame: prior_arrow(of, join(y, b), frame))
        self._energy = jax.jit(lambda of, y, b: energy(of.rows, join(y, b)))
        self._log_evidence = jax.jit(partial(log_evidence, join), static_argnums=(0,))
        self._evidence_hessian = jax.jit(
            lambda *known: jax.hessian(partial(log_evidence, join, *known[:-1]))(known[-1]),
            static_argnums=(0,),
        )

    def announce(self, purpose: str) -> None:
        """Say that the rows are read once more."""
        self._num += 1
        if self._say is not None:
            num_rows = self.predictor.rows.num_rows
            self._say(f"reading {num_rows:,} rows, {purpose}, pass {self._num}")

    def energy(self, point: Point) -> float:
        """Potential energy."""
        pair: Pair = self._energy(self.predictor, *point)
        return in_double(pair)

    def arrows(self, point: Point, frame: Frame) -> tuple[Arrow, Arrow, np.ndarray]:
        """Of the rows and of the prior, and sizes of the rows' columns."""
        self.announce("looking for their mode")
        rounded = cast(frame, point.shared.dtype)
        rows, sizes = self._rows(self.predictor, *point, rounded)
        prior = self._prior(self.predictor, *point, rounded)
        return in_double_precision(rows), in_double_precision(prior), on_host(sizes)


def in_double_precision(arrow: Arrow) -> Arrow:
    """An arrow on the host."""
    return Arrow(*(np.asarray(each, np.float64) for each in on_host(tuple(arrow))))


def added(one: Arrow, other: Arrow) -> Arrow:
    """The sum of two."""
    return Arrow(*(a + b for a, b in zip(one, other, strict=True)))


class Found(NamedTuple):
    """Derivatives at a point, with Newton's step.

    rows
        Arrow of the rows, by the coordinates of `frame`.
    eliminated
        The arrow of rows and prior together, without the groups.
    step, distance
        As of :class:`Anchor`.
    sizes
        Of the rows' columns, shape (p + d,).
    """

    rows: Arrow
    eliminated: Eliminated
    step: tuple[np.ndarray, np.ndarray]
    distance: float
    sizes: np.ndarray


def look(passes: GroupPasses, point: Point, frame: Frame, is_free: np.ndarray | None) -> Found:
    """Derivatives and Newton's step of the free shared coordinates and all groups.

    None for `is_free` frees those that the rows see.
    """
    eps = float(np.finfo(point.shared.dtype).eps)
    rows, prior, sizes = passes.arrows(point, frame)
    arrow = added(rows, prior)
    if not all(np.isfinite(each).all() for each in arrow):
        raise ValueError(NOT_FINITE.format(point.shared.dtype))
    is_free = sizes[: point.shared.size] > 0 if is_free is None else is_free
    found = eliminate(arrow, eps)
    both = is_free & is_free[:, None]
    root = np.where(both, inverse_root(found.schur, is_free, eps), 0.0)
    slope = root.T @ found.slope
    u = -root @ slope
    v = -found.solved(arrow.groups + np.einsum("cdp,p->cd", arrow.coupling, u))
    within = np.einsum("cd,cd->", arrow.groups, found.solved(arrow.groups))
    step = frame.steps(u, v)
    return Found(rows, found, step, float(slope @ slope + within), sizes)


def descend(
    passes: GroupPasses, point: Point, frame: Frame, is_free: np.ndarray | None
) -> tuple[Point, Frame, Found, np.ndarray]:
    """Newton's method with the hyperparameters held; also which shared coordinates are free."""
    eps = float(np.finfo(point.shared.dtype).eps)
    value = passes.energy(point)
    for _ in range(MAX_STEPS):
        found = look(passes, point, frame, is_free)
        is_free = found.sizes[: point.shared.size] > 0 if is_free is None else is_free
        if found.distance < DONE:
            return point, frame, found, is_free
        for i in range(MAX_HALVINGS):
            new = point.plus(found.step, 0.5**i)
            lower = passes.energy(new)
            if lower < value:
                break
        else:
            return point, frame, found, is_free
        frame = refined(frame, found.eliminated, is_free, eps)
        point, value = new, lower
    raise ValueError(NO_MODE.format("Newton's method still moves"))


def log_evidence(
    join: Callable,
    is_hyper: tuple[bool, ...],
    predictor: GroupedPredictor,
    shared: Array,
    groups: Array,
    roots: Array,
    rows: tuple[Array, Array],
    h: Array,
) -> Array:
    """Log density of hyperparameters h, with the groups integrated around their mode given h.

    `rows` are their slopes and curvatures by v, shapes (G, d) and (G, d, d), where the groups are
    ``groups + roots @ v``.
    """
    y = shared.at[jnp.asarray(np.flatnonzero(is_hyper))].set(h)
    slopes, blocks = rows

    def energy(v):
        prior = predictor.terms(join(y, groups + (roots @ v[..., None])[..., 0])).total()
        return jnp.sum(v * slopes) + 0.5 * jnp.einsum("cd,cde,ce->", v, blocks, v) - prior

    gradient = jax.grad(energy)
    v = jnp.zeros_like(groups)
    for _ in range(NUM_INNER):
        v = newton(gradient, v)[0]
    # beside the mode: densities written with y ** 2.0 have no third derivative at zero
    v = jax.lax.stop_gradient(v) + BESIDE
    precisions = derivatives(gradient, v)[1]
    # precisions are one at the start, and near zero far from it under a prior with heavy tails
    squares = precisions @ jnp.swapaxes(precisions, 1, 2) + SINGULAR**2 * jnp.eye(groups.shape[1])
    # the last step says how the mode changes with h
    return -energy(newton(gradient, v)[0]) - 0.25 * jnp.sum(jnp.linalg.slogdet(squares)[1])


def most_likely(
    passes: GroupPasses, point: Point, frame: Frame, rows: Arrow, is_hyper: np.ndarray
) -> tuple[Point, float, np.ndarray]:
    """Hyperparameters at the maximum of their log evidence, how far they moved, their curvature."""
    dtype = point.shared.dtype
    flags = tuple(bool(flag) for flag in is_hyper)
    roots, *of_rows = (
        jnp.asarray(each, dtype) for each in (frame.roots, rows.groups, rows.of_groups)
    )
    known = (flags, passes.predictor, *map(jnp.asarray, point), roots, tuple(of_rows))
    first = point.shared[is_hyper].astype(np.float64)

    def cost(h):
        value = -float(passes._log_evidence(*known, h.astype(dtype)))
        return value if np.isfinite(value) else np.inf

    # without derivatives: where groups have heavy tails the evidence has steps and hollows
    start = min(first, np.zeros_like(first), key=cost)
    h = scipy.optimize.minimize(cost, start, method="Powell", options=SEARCH).x
    hessian = np.asarray(on_host(passes._evidence_hessian(*known, h.astype(dtype))), np.float64)
    if not np.isfinite(hessian).all():
        raise ValueError(NOT_FINITE.format(dtype))
    shared = point.shared.copy()
    shared[is_hyper] = h
    root = inverse_root(-hessian, np.ones(h.size, bool), float(np.finfo(dtype).eps))
    way = np.linalg.norm(np.linalg.solve(root, h - first))
    return Point(shared, point.groups), float(way), -hessian


def find_anchor(
    passes: GroupPasses, shared: Array, groups: Array, *, find_mode: bool = True
) -> Anchor:
    """The anchor near a position; ValueError if there is none. Cost: about a dozen passes.

    With `find_mode` False it is the position itself.
    """
    point = Point(*on_host((shared, groups)))
    frame = first_frame(point.shared.size, *point.groups.shape)
    is_free: Any = None
    curvature = np.zeros((0, 0))
    if not find_mode:
        everything = np.ones(point.shared.size, bool)
        anchor = finished(passes, point, frame, ~everything, curvature)
        return anchor._replace(step=(0 * anchor.point.shared, 0 * anchor.point.groups))
    for _ in range(MAX_ROUNDS):
        point, frame, found, is_free = descend(passes, point, frame, is_free)
        is_hyper = ~is_free
        if not is_hyper.any():
            break
        eps = float(np.finfo(point.shared.dtype).eps)
        at_mode = refined(frame, found.eliminated, is_free, eps)
        # derivatives of the rows by v of that frame
        rotation = found.eliminated.inverse_roots
        blocks = np.einsum("cji,cjk,ckl->cil", rotation, found.rows.of_groups, rotation)
        slopes = np.einsum("cji,cj->ci", rotation, found.rows.groups)
        rows = found.rows._replace(groups=slopes, of_groups=blocks)
        point, way, curvature = most_likely(passes, point, at_mode, rows, is_hyper)
        if not way > NEAR:
            break
    point, frame, _, is_free = descend(passes, point, frame, is_free)
    return finished(passes, point, frame, ~is_free, curvature)


def finished(
    passes: GroupPasses,
    point: Point,
    frame: Frame,
    is_hyper: np.ndarray,
    curvature: np.ndarray,
) -> Anchor:
    """The anchor at a point, with the frame of its curvature.

    That of the hyperparameters is of their log evidence.
    """
    eps = float(np.finfo(point.shared.dtype).eps)
    found = look(passes, point, frame, ~is_hyper)
    more = np.zeros_like(found.eliminated.schur)
    if is_hyper.any():
        # hyperparameters are coordinates themselves in all frames so far
        block = np.ix_(is_hyper, is_hyper)
        more[block] = curvature - found.eliminated.schur[block]
    everything = np.ones(point.shared.size, bool)
    final = refined(frame, found.eliminated, everything, eps, more)
    return Anchor(point, final, found.step, found.distance)
