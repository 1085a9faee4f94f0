r"""An anchor for rows in groups: a mode, with hyperparameters where they are likely.

The joint density of centred groups and their scale need not have a mode: where the scale runs to
zero it has no bound. So coordinates that no row sees and on which curvatures of the prior depend
(*hyperparameters*: scales of the groups) are held while Newton's method finds the mode of all
others, with steps by the arrow (:mod:`blackjax_ext.subsampling.groups.arrowhead`). Means of normal
groups are among these others: with covariates that are not centred they are as good as determined
by the slopes. Then hyperparameters go to the maximum of

.. math::
    \log p(h, s) + \sum_c \log \int p(b_c \mid h)\, e^{-g_c^T b_c - \frac12 b_c^T R_c b_c}\, db_c,

their density with the groups integrated by Laplace's method, where the rows are their expansion to
second order: exactly for a normal prior. And so on, a few rounds. Of shared coordinates that rows
see, such as the effects of a second factor, log p(h, s) is the mean over draws around their mode:
at the mode itself the scale of that factor would run to zero.

A prior with kinks (Laplace) has modes that Newton's method does not find, and where few draws are.
Where it ends nowhere, it is tried again with the mean of the prior over the groups' own spread, as
the frame at hand knows it.

Laplace's method knows no kink, and little of heavy tails. Where it leads nowhere, hyperparameters
go where the log prior of draws of all coordinates around the mode is greatest, as in the EM
algorithm (Wei and Tanner 1990). Any anchor is exact; this one is where the chain will be.

Reference: G. C. G. Wei and M. A. Tanner 1990, A Monte Carlo implementation of the EM algorithm and
the poor man's data augmentation algorithms.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling.groups.arrowhead import (
    Arrow,
    Eliminated,
    Whitening,
    eliminate,
    identity_whitening,
    inverse_factor,
    refined,
)
from blackjax_ext.subsampling.groups.laplace_approximations import (
    gradient_and_blocks,
    laplace_approximation,
)
from blackjax_ext.subsampling.groups.passes import (
    plain_prior,
    prior_arrow,
    row_arrow,
    smoothed_prior,
)
from blackjax_ext.subsampling.groups.predictor import GroupedPredictor
from blackjax_ext.subsampling.mode import (
    MAX_HALVINGS,
    MAX_NEWTON_STEPS,
    NO_MODE,
    NOT_FINITE_ENERGY,
    RUNAWAY,
    in_double,
)
from blackjax_ext.subsampling.predictors import LinearPredictor, energy
from blackjax_ext.types import Function

__all__ = ["GroupPasses", "GroupedAnchor", "cast", "find_anchor"]

ANCHOR_TOLERANCE = (
    1e-4  # squared distance to the mode in standard deviations: an anchor need not be closer
)
WORST = 1e30  # of an objective that is not finite: infinities have no differences
MOST_MOVED = 20.0  # of a hyperparameter in a round: beyond, it runs away
NUM_DRAW_PAIRS = 8  # around the mode, with their opposites
MAX_TRIED = 128  # hyperparameters that may be means; beyond, none is
SLOPE_ROUNDING = 1e-3  # of a difference of slopes
UNCHANGED = 1e-3  # of a curvature, relative to the largest
LAST_ROUND_CHANGE_OF_EACH = 0.05  # the same of each coordinate, where steps lead no nearer
MAX_ROUNDS = 8  # of the mode given the hyperparameters, and of these
LAST_ROUND_CHANGE = (
    0.1  # standard deviations that hyperparameters move by in the last round, at most
)
SINGULAR = 0.1  # of a group's curvature where it was one: below, it says nothing of its spread
BESIDE = 1e-3  # standard deviations
NUM_INNER = 3  # Newton steps to the mode of the groups
# of the hyperparameters, to a fraction of their standard deviations
SEARCH = {"xtol": 0.02, "ftol": 1e-7, "maxiter": 10}


class GroupedPosition(NamedTuple):
    """A position on the host: shared coordinates (p,) and groups (G, d)."""

    shared: np.ndarray
    groups: np.ndarray

    def plus(self, step: tuple[np.ndarray, np.ndarray], factor: float = 1.0) -> "GroupedPosition":
        """The position after a part of a step."""
        return GroupedPosition(
            (self.shared + factor * step[0]).astype(self.shared.dtype),
            (self.groups + factor * step[1]).astype(self.groups.dtype),
        )


class GroupedAnchor(NamedTuple):
    """The point at which Newton's method ended, with the coordinates of its curvature.

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

    point: GroupedPosition
    frame: Whitening
    step: tuple[np.ndarray, np.ndarray]
    distance: float


def cast(frame: Whitening, dtype: Any) -> Whitening:
    """A frame of the host for the device."""
    return Whitening(*(jnp.asarray(part, dtype) for part in frame))


class GroupPasses:
    """Passes over the rows of one posterior, compiled for it and forgotten with it.

    With `is_smoothed` the prior is its mean over the groups' own spread, where that is known.
    """

    is_smoothed = False

    def __init__(self, predictor: GroupedPredictor, say: Callable[[str], Any] | None):
        self.predictor, self._say, self._num = predictor, say, 0
        join = predictor.grouping.join
        self._rows = compiled_soon(lambda of, y, b, frame: row_arrow(of, join(y, b), frame))
        self._prior = compiled_soon(
            lambda of, y, b, frame, is_smoothed: prior_arrow(
                of, join(y, b), frame, is_smoothed=is_smoothed
            ),
            static_argnums=(4,),
        )
        self._energy = compiled_soon(lambda of, y, b: energy(without_prior(of), join(y, b)))
        self._prior_energy = compiled_soon(
            lambda of, y, b, frame, is_smoothed: (smoothed_prior if is_smoothed else plain_prior)(
                of, join(y, b), frame
            )(0.0 * y, 0.0 * b),
            static_argnums=(4,),
        )
        log_evidence_at, log_expected_at = partial(log_marginal, join), partial(log_expected, join)
        self._log_evidence, self._evidence_hessian = (
            compiled_soon(fn, static_argnums=0)
            for fn in (log_evidence_at, hessian_of(log_evidence_at))
        )
        self._log_expected, self._expected_hessian = (
            compiled_soon(fn, static_argnums=0)
            for fn in (log_expected_at, hessian_of(log_expected_at))
        )

    def announce(self, purpose: str) -> None:
        """Say that the rows are read once more."""
        self._num += 1
        if self._say is not None:
            num_rows = self.predictor.rows.num_rows
            self._say(f"reading {num_rows:,} rows, {purpose}, pass {self._num}")

    def energy(self, point: GroupedPosition) -> float:
        """Minus the log likelihood."""
        pair: Pair = self._energy(self.predictor, *point)
        return in_double(pair)

    def prior_energy(self, point: GroupedPosition, frame: Whitening) -> float:
        """Minus the log prior, or its mean over the groups' own spread if the frame knows it."""
        rounded, is_smoothed = cast(frame, point.shared.dtype), self.smooths(frame)
        return float(self._prior_energy(self.predictor, *point, rounded, is_smoothed))

    def smooths(self, frame: Whitening) -> bool:
        """Whether a mean is taken over the spread, which a first frame does not know."""
        return self.is_smoothed and not is_first(frame)

    def arrows(self, point: GroupedPosition, frame: Whitening) -> tuple[Arrow, Arrow, np.ndarray]:
        """Arrows of the rows and of the prior, and sizes of the rows' columns."""
        self.announce("looking for their mode")
        rounded = cast(frame, point.shared.dtype)
        rows, sizes = self._rows(self.predictor, *point, rounded)
        return in_double_precision(rows), self.prior(point, frame), on_host(sizes)

    def prior(self, point: GroupedPosition, frame: Whitening) -> Arrow:
        """Arrow of the prior alone, or of its mean over the groups' own spread."""
        rounded, is_smoothed = cast(frame, point.shared.dtype), self.smooths(frame)
        return in_double_precision(self._prior(self.predictor, *point, rounded, is_smoothed))


def without_prior(predictor: GroupedPredictor) -> LinearPredictor:
    """The rows alone."""
    return replace(predictor.rows, logprior=Partial(flat_logprior))


def flat_logprior(x: Any) -> Array:
    """The log prior zero."""
    del x
    return jnp.zeros(())


def is_first(frame: Whitening) -> bool:
    """Whether a frame is that of the coordinates themselves, which knows of no spread."""
    return not frame.shear.any() and bool((frame.roots == np.eye(frame.roots.shape[-1])).all())


def hessian_of(function: Function) -> Function:
    """Second derivatives of a function by the last of its arguments."""
    return lambda *known: jax.hessian(partial(function, *known[:-1]))(known[-1])


def in_double_precision(arrow: Arrow) -> Arrow:
    """An arrow on the host, in double precision."""
    return Arrow(*(np.asarray(part, np.float64) for part in on_host(tuple(arrow))))


def added(one: Arrow, other: Arrow) -> Arrow:
    """The sum of two arrows."""
    return Arrow(*(a + b for a, b in zip(one, other, strict=True)))


class NewtonStep(NamedTuple):
    """Derivatives at a point, with Newton's step.

    rows
        Arrow of the rows, by the coordinates of `frame`.
    eliminated
        The arrow of rows and prior together, without the groups.
    step, distance
        As of :class:`GroupedAnchor`.
    is_free
        Which shared coordinates it moves, shape (p,).
    """

    rows: Arrow
    eliminated: Eliminated
    step: tuple[np.ndarray, np.ndarray]
    distance: float
    is_free: np.ndarray


def look(
    passes: GroupPasses, point: GroupedPosition, frame: Whitening, is_free: np.ndarray | None
) -> NewtonStep:
    """Derivatives and Newton's step of the free shared coordinates and all groups.

    None for `is_free` frees those that the rows see, and means.
    """
    eps = float(np.finfo(point.shared.dtype).eps)
    rows, prior, sizes = passes.arrows(point, frame)
    arrow = added(rows, prior)
    if not all(np.isfinite(part).all() for part in arrow):
        raise ValueError(NOT_FINITE_ENERGY.format(point.shared.dtype))
    is_free = first_free(passes, point, sizes) if is_free is None else is_free
    # far from a kink a prior has no curvature but rounding, and a group's only row next to none:
    # its inverse would be no spread, and steps by it end nowhere. It was one a step before
    eliminated = eliminate(arrow, eps, SINGULAR if passes.smooths(frame) else 0.0)
    both = is_free & is_free[:, None]
    root = np.where(both, inverse_factor(eliminated.schur, is_free, eps), 0.0)
    slope = root.T @ eliminated.slope
    u = -root @ slope
    v = -eliminated.solved(arrow.groups + np.einsum("cdp,p->cd", arrow.coupling, u))
    within = np.einsum("cd,cd->", arrow.groups, eliminated.solved(arrow.groups))
    step = frame.steps(u, v)
    return NewtonStep(rows, eliminated, step, float(slope @ slope + within), is_free)


def first_free(passes: GroupPasses, point: GroupedPosition, sizes: np.ndarray) -> np.ndarray:
    """Which shared coordinates Newton's method moves: those that rows see, and means, shape (p,).

    On a mean depends neither its own curvature of the prior, nor those of the groups and of what
    rows see.
    """
    is_seen = sizes[: point.shared.size] > 0
    is_free = is_seen.copy()
    others = np.flatnonzero(~is_free)
    if others.size > MAX_TRIED:
        return is_free
    frame = identity_whitening(point.shared.size, *point.groups.shape)
    here = passes.prior(point, frame)
    for j in map(int, others):
        moved = point.shared.copy()
        moved[j] += 1.0
        ahead = passes.prior(GroupedPosition(moved, point.groups), frame)
        parts = zip(*(curvatures_by(arrow, j, is_seen) for arrow in (here, ahead)), strict=True)
        # where groups have kinks, slopes change and curvatures do not
        by_slope, curvature = ahead.shared[j] - here.shared[j], here.of_shared[j, j]
        is_smooth = abs(by_slope - curvature) <= SLOPE_ROUNDING * (
            abs(curvature) + abs(here.shared[j])
        )
        is_free[j] = is_smooth and all(is_unchanged(*both) for both in parts)
    return is_free


def curvatures_by(arrow: Arrow, j: int, is_seen: np.ndarray) -> tuple[np.ndarray, ...]:
    """Second derivatives that do not depend on the shared coordinate j if that is a mean."""
    seen = arrow.of_shared[np.ix_(is_seen, is_seen)]
    return arrow.of_groups, arrow.coupling[..., j], arrow.of_shared[j, j], seen


def is_unchanged(here: np.ndarray, ahead: np.ndarray) -> bool:
    """Whether curvatures are the same but for rounding."""
    off, size = np.max(np.abs(ahead - here), initial=0.0), np.max(np.abs(here), initial=0.0)
    return bool(off <= UNCHANGED * size)


def descend(
    passes: GroupPasses, point: GroupedPosition, frame: Whitening, is_free: np.ndarray | None
) -> tuple[GroupedPosition, Whitening, NewtonStep, np.ndarray]:
    """Newton's method with the hyperparameters held; also which shared coordinates are free."""
    eps = float(np.finfo(point.shared.dtype).eps)
    of_rows, before = passes.energy(point), np.inf
    nearly = LAST_ROUND_CHANGE_OF_EACH * (point.shared.size + point.groups.size)
    for _ in range(MAX_NEWTON_STEPS):
        step = look(passes, point, frame, is_free)
        is_free = step.is_free
        # beside kinks the steps go round and round
        is_round = passes.is_smoothed and 0.5 * before < step.distance < nearly
        if step.distance < ANCHOR_TOLERANCE or is_round:
            return point, frame, step, is_free
        value = of_rows + passes.prior_energy(point, frame)
        for i in range(MAX_HALVINGS):
            new = point.plus(step.step, 0.5**i)
            lower = passes.energy(new)
            if -np.inf < lower + passes.prior_energy(new, frame) < value:
                break
        else:
            return point, frame, step, is_free
        frame = refined(frame, step.eliminated, is_free, eps)
        point, of_rows, before = new, lower, step.distance
    raise ValueError(NO_MODE.format("Newton's method still moves"))


class Around(NamedTuple):
    """A mode with the hyperparameters held, as what is maximized over these knows it.

    predictor
        The posterior.
    shared, groups
        The mode.
    roots
        M of the frame there, where the groups are ``groups + roots @ v``.
    rows
        Slopes and curvatures of the rows by v, shapes (G, d) and (G, d, d).
    ways
        Those of :func:`draws_around`.
    """

    predictor: GroupedPredictor
    shared: Array
    groups: Array
    roots: Array
    rows: tuple[Array, Array]
    ways: tuple[Array, Array]


@exact_products
def log_marginal(join: Function, is_hyper: tuple[bool, ...], around: Around, h: Array) -> Array:
    """Log density of hyperparameters h, with the groups integrated around their mode given h."""
    predictor, shared, groups, roots, (slopes, blocks), ways = around
    y = with_hyper(is_hyper, shared, h)

    def energy(v: Array) -> Array:
        prior = predictor.terms(join(y, groups + (roots @ v[..., None])[..., 0])).total()
        return jnp.sum(v * slopes) + 0.5 * jnp.einsum("cd,cde,ce->", v, blocks, v) - prior

    def of_shared(way: Array) -> Array:
        return predictor.terms(join(y + way, groups)).shared

    gradient = jax.grad(energy)
    v = jnp.zeros_like(groups)
    for _ in range(NUM_INNER):
        v = laplace_approximation(gradient, v)[0]
    # beside the mode: densities written with y ** 2.0 have no third derivative at zero
    v = jax.lax.stop_gradient(v) + BESIDE
    precisions = gradient_and_blocks(gradient, v)[1]
    # precisions are one at the start, and near zero far from it under a prior with heavy tails
    squares = precisions @ jnp.swapaxes(precisions, 1, 2) + SINGULAR**2 * jnp.eye(groups.shape[1])
    # the last step says how the mode changes with h
    at_mode = -energy(laplace_approximation(gradient, v)[0]) - 0.25 * jnp.sum(
        jnp.linalg.slogdet(squares)[1]
    )
    return at_mode + jnp.mean(jax.vmap(of_shared)(ways[0])) - of_shared(jnp.zeros_like(y))


@exact_products
def log_expected(join: Function, is_hyper: tuple[bool, ...], around: Around, h: Array) -> Array:
    """Log prior of hyperparameters h and draws of all else, in the mean."""
    y, terms = with_hyper(is_hyper, around.shared, h), around.predictor.terms
    values: Function = jax.vmap(
        lambda *way: terms(join(y + way[0], around.groups + way[1])).total()
    )
    return jnp.mean(values(*around.ways))


def with_hyper(is_hyper: tuple[bool, ...], shared: Array, h: Array) -> Array:
    """Shared coordinates with other hyperparameters."""
    return shared.at[jnp.asarray(np.flatnonzero(is_hyper))].set(h)


def draws_around(frame: Whitening, is_free: np.ndarray, dtype: Any) -> tuple[Array, Array]:
    """Ways of y and b from a mode to draws around it, and opposite ones; shapes (K, ...)."""
    num_groups, width, _ = frame.shear.shape
    rng = np.random.default_rng(0)
    noise = [
        (rng.normal(size=is_free.size) * is_free, rng.normal(size=(num_groups, width)))
        for _ in range(NUM_DRAW_PAIRS)
    ]
    shared, groups = map(np.stack, zip(*(frame.steps(*each) for each in noise), strict=True))
    both = (np.concatenate([each, -each]) for each in (shared, groups))
    of_shared, of_groups = (jnp.asarray(each, dtype) for each in both)
    return of_shared, of_groups


class Hyper(NamedTuple):
    """Hyperparameters at the maximum of an objective.

    h
        Their values.
    way
        How far they moved, in standard deviations.
    curvature
        Minus the second derivatives of the objective.
    """

    h: np.ndarray
    way: float
    curvature: np.ndarray


def maximized(value: Function, hessian: Function, first: np.ndarray, dtype: Any) -> Hyper | None:
    """The maximum of an objective near `first`; None where it leads nowhere."""

    def cost(h: np.ndarray) -> float:
        value_lost = -float(value(h.astype(dtype)))
        return value_lost if np.isfinite(value_lost) else WORST

    # without derivatives: where groups have heavy tails the evidence has steps and hollows
    start = min(first, np.zeros_like(first), key=cost)
    maximum = scipy.optimize.minimize(cost, start, method="Powell", options=SEARCH)
    h = maximum.x
    if not maximum.fun < WORST:
        return None
    curvature = -np.asarray(on_host(hessian(h.astype(dtype))), np.float64)
    if not np.isfinite(curvature).all() or np.max(np.abs(h - start)) > MOST_MOVED:
        return None
    root = inverse_factor(curvature, np.ones(h.size, bool), float(np.finfo(dtype).eps))
    return Hyper(h, float(np.linalg.norm(np.linalg.solve(root, h - first))), curvature)


def most_likely(
    passes: GroupPasses, point: GroupedPosition, frame: Whitening, newton: NewtonStep
) -> Hyper:
    """Hyperparameters at the maximum of their log evidence, or of the mean log prior of draws.

    `frame` is that of the curvature at the point, `newton` are the derivatives by the one before.
    """
    dtype = point.shared.dtype
    # derivatives of the rows by v of the new frame
    rotation = newton.eliminated.inverse_roots
    blocks = np.einsum("cji,cjk,ckl->cil", rotation, newton.rows.of_groups, rotation)
    slopes = np.einsum("cji,cj->ci", rotation, newton.rows.groups)
    roots, slopes, blocks = (jnp.asarray(array, dtype) for array in (frame.roots, slopes, blocks))
    around = Around(
        passes.predictor,
        jnp.asarray(point.shared),
        jnp.asarray(point.groups),
        roots,
        (slopes, blocks),
        draws_around(frame, newton.is_free, dtype),
    )
    known = tuple(not flag for flag in newton.is_free.tolist()), around
    first = point.shared[~newton.is_free].astype(np.float64)
    for value, hessian in (
        (passes._log_evidence, passes._evidence_hessian),
        (passes._log_expected, passes._expected_hessian),
    ):
        best = maximized(partial(value, *known), partial(hessian, *known), first, dtype)
        if best is not None:
            return best
    raise ValueError(NOT_FINITE_ENERGY.format(dtype) + RUNAWAY)


def find_anchor(
    passes: GroupPasses, shared: Array, groups: Array, *, find_mode: bool = True
) -> GroupedAnchor:
    """The anchor near a position; ValueError if there is none. Cost: about a dozen passes.

    With `find_mode` False it is the position itself.
    """
    point = GroupedPosition(*on_host((shared, groups)))
    frame = identity_whitening(point.shared.size, *point.groups.shape)
    is_free: Any = None
    curvature = np.zeros((0, 0))
    if not find_mode:
        everything = np.ones(point.shared.size, bool)
        anchor = finished(passes, point, frame, ~everything, curvature)
        return anchor._replace(step=(0 * anchor.point.shared, 0 * anchor.point.groups))
    for _ in range(MAX_ROUNDS):
        point, frame, last_step, is_free = descend(passes, point, frame, is_free)
        if is_free.all():
            break
        eps = float(np.finfo(point.shared.dtype).eps)
        at_mode = refined(frame, last_step.eliminated, is_free, eps)
        h, way, curvature = most_likely(passes, point, at_mode, last_step)
        y = point.shared.copy()
        y[~is_free] = h
        point = GroupedPosition(y, point.groups)
        if not way > LAST_ROUND_CHANGE:
            break
    point, frame, _, is_free = descend(passes, point, frame, is_free)
    return finished(passes, point, frame, ~is_free, curvature)


def finished(
    passes: GroupPasses,
    point: GroupedPosition,
    frame: Whitening,
    is_hyper: np.ndarray,
    curvature: np.ndarray,
) -> GroupedAnchor:
    """The anchor at a point, with the frame of its curvature.

    That of the hyperparameters is of their log evidence.
    """
    eps = float(np.finfo(point.shared.dtype).eps)
    last_step = look(passes, point, frame, ~is_hyper)
    more = np.zeros_like(last_step.eliminated.schur)
    if is_hyper.any():
        # hyperparameters are coordinates themselves in all frames so far
        block = np.ix_(is_hyper, is_hyper)
        more[block] = curvature - last_step.eliminated.schur[block]
    everything = np.ones(point.shared.size, bool)
    final = refined(frame, last_step.eliminated, everything, eps, more)
    return GroupedAnchor(point, final, last_step.step, last_step.distance)
