r"""An anchor for rows in groups: a mode, with hyperparameters where they are likely.

The joint density of centred groups and their scale need not have a mode: where the scale runs to
zero it has no bound. So coordinates that no row sees and on which curvatures of the prior depend
(*hyperparameters*: scales of the groups) are held while Newton's method finds the mode of all
others, with steps by the arrow (:mod:`blackjax_ext.rows.arrowhead`). Means of normal
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
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.rows.arrowhead import Arrow, Whitening, inverse_factor
from blackjax_ext.rows.newton import (
    RUNAWAY,
    TOLERANCES,
    Energy,
    HostPosition,
    Stationary,
    check_resolution,
    descend,
    newton_step,
)
from blackjax_ext.subsampling.grouping import GroupedPredictor
from blackjax_ext.subsampling.mode import (
    NOT_FINITE_ENERGY,
    ExpansionPoint,
    RowPasses,
)
from blackjax_ext.types import Function


def gradient_and_blocks(gradient: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
    """A gradient at v, shape (G, d), and its derivatives by the own group, shape (G, d, d).

    Of an energy that is a sum over the groups. Cost: d + 1 gradients.
    """
    width = v.shape[1]
    units = jnp.broadcast_to(jnp.eye(width, dtype=v.dtype)[:, None], (width, *v.shape))
    g, push = jax.linearize(gradient, v)
    return g, jnp.moveaxis(jax.vmap(push)(units), 0, -1)


def laplace_approximation(gradient: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
    """Mean and lower Cholesky factor of the precision of the normal densities that fit at v.

    Where an energy is not convex, or is flat as beside a kink, the precision is one: that of the
    anchor, in its coordinates.
    """
    g, blocks = gradient_and_blocks(gradient, v)
    factor = jnp.linalg.cholesky(blocks)
    # root of a precision in coordinates of the anchor: below, it is no precision
    is_curved = jnp.all(jnp.diagonal(factor, axis1=1, axis2=2) > 1e-3, axis=1)  # not if NaN
    is_fine = jnp.all(jnp.isfinite(factor), axis=(1, 2)) & is_curved
    factor = jnp.where(is_fine[:, None, None], factor, jnp.eye(v.shape[1], dtype=v.dtype))
    step = solved(factor, solved(factor, g), is_transposed=True)
    return jnp.where(jnp.isfinite(step), v - step, v), factor


def solved(factor: Array, x: Array, *, is_transposed: bool = False) -> Array:
    """Triangular systems of small lower factors (G, d, d), or of their transposes, for x (G, d)."""
    width = x.shape[1]
    order = range(width)[::-1] if is_transposed else range(width)
    solution: dict[int, Array] = {}
    for i in order:
        entries = factor[:, :, i] if is_transposed else factor[:, i]
        rest = sum((entries[:, j] * solution[j] for j in solution), jnp.zeros_like(x[:, 0]))
        solution[i] = (x[:, i] - rest) / factor[:, i, i]
    return jnp.stack([solution[i] for i in range(width)], axis=1)


WORST = 1e30  # of an objective that is not finite: infinities have no differences
# of the hyperparameters, to a fraction of their standard deviations
SEARCH = {"xtol": 0.02, "ftol": 1e-7, "maxiter": 10}


class GroupPasses(RowPasses):
    """Passes over rows in groups, and what hyperparameters are chosen by."""

    tolerance = TOLERANCES.anchor
    follows = True

    def __init__(self, predictor: GroupedPredictor, say: Callable[[str], Any] | None):
        super().__init__(predictor, say)
        join = predictor.grouping.join
        objectives = partial(log_marginal, join), partial(log_expected, join)
        self.objectives = [
            tuple(compiled_soon(fn, static_argnums=0) for fn in (value, hessian_of(value)))
            for value in objectives
        ]

    def in_frame(self, energy: Energy, point: HostPosition, frame: Whitening) -> Energy:
        """The energy, with the mean of the prior over the groups' own spread in a frame."""
        if not self.smooths(frame):
            return energy
        prior = self._prior_energy(*self._arguments(point, frame))
        return energy._replace(prior=float(on_host(prior)))

    def floor(self, frame: Whitening) -> float:
        """Least eigenvalue of a group.

        Far from a kink a prior has no curvature but rounding, and a group's only row next to none:
        its inverse would be no spread, and steps by it end nowhere. It was one a step before.
        """
        return TOLERANCES.singular if self.smooths(frame) else 0.0

    def goes_round(self, point: HostPosition, distance: float, last: float) -> bool:
        """Whether steps go round and round, as beside kinks."""
        nearly = TOLERANCES.coordinate * (point.shared.size + point.groups.size)
        return self.is_smoothed and 0.5 * last < distance < nearly

    def first_free(self, point: HostPosition, sizes: np.ndarray) -> np.ndarray:
        """Which shared coordinates are moved: those that rows see, and means, shape (p,).

        On a mean depends neither its own curvature of the prior, nor those of the groups and of
        what rows see.
        """
        super().first_free(point, sizes)
        is_free = self.is_seen.copy()
        others = np.flatnonzero(~is_free)
        # hyperparameters that may be means; beyond, none is
        if others.size > 128:
            return is_free
        here = self.prior(point, point.frame())
        for j in map(int, others):
            moved = point.shared.copy()
            moved[j] += 1.0
            ahead = self.prior(HostPosition(moved, point.groups), point.frame())
            is_free[j] = is_mean(here, ahead, j, self.is_seen)
        return is_free


def is_mean(here: Arrow, ahead: Arrow, j: int, is_seen: np.ndarray) -> bool:
    """Whether the shared coordinate j is a mean, by arrows of the prior where it is one larger."""
    parts = zip(*(curvatures_by(arrow, j, is_seen) for arrow in (here, ahead)), strict=True)
    # where groups have kinks, slopes change and curvatures do not
    by_slope, curvature = ahead.shared[j] - here.shared[j], here.of_shared[j, j]
    is_smooth = abs(by_slope - curvature) <= TOLERANCES.slope * (
        abs(curvature) + abs(here.shared[j])
    )
    return bool(is_smooth) and all(is_unchanged(*both) for both in parts)


def hessian_of(function: Function) -> Function:
    """Second derivatives of a function by the last of its arguments."""
    return lambda *known: jax.hessian(partial(function, *known[:-1]))(known[-1])


def curvatures_by(arrow: Arrow, j: int, is_seen: np.ndarray) -> tuple[np.ndarray, ...]:
    """Second derivatives that do not depend on the shared coordinate j if that is a mean."""
    seen = arrow.of_shared[np.ix_(is_seen, is_seen)]
    return arrow.of_groups, arrow.coupling[..., j], arrow.of_shared[j, j], seen


def is_unchanged(here: np.ndarray, ahead: np.ndarray) -> bool:
    """Whether curvatures are the same but for rounding."""
    off, size = np.max(np.abs(ahead - here), initial=0.0), np.max(np.abs(here), initial=0.0)
    return bool(off <= TOLERANCES.unchanged * size)


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
    # Newton steps to the mode of the groups
    for _ in range(3):
        v = laplace_approximation(gradient, v)[0]
    # beside the mode, by a thousandth of an sd: densities written with y ** 2.0 have no third
    # derivative at zero
    v = jax.lax.stop_gradient(v) + 1e-3
    precisions = gradient_and_blocks(gradient, v)[1]
    # precisions are one at the start, and near zero far from it under a prior with heavy tails
    squares = precisions @ jnp.swapaxes(precisions, 1, 2) + TOLERANCES.singular**2 * jnp.eye(
        groups.shape[1]
    )
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
    # around the mode, with their opposites
    noise = [
        (rng.normal(size=is_free.size) * is_free, rng.normal(size=(num_groups, width)))
        for _ in range(8)
    ]
    shared, groups = map(np.stack, zip(*(frame.steps(*each) for each in noise), strict=True))
    both = (np.concatenate([each, -each]) for each in (shared, groups))
    of_shared, of_groups = (jnp.asarray(each, dtype) for each in both)
    return of_shared, of_groups


class Hyper(NamedTuple):
    """Hyperparameters at a maximum, how many sds they moved, and minus its second derivatives."""

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
    if not (np.isfinite(curvature).all() and np.max(np.abs(h - start)) <= TOLERANCES.runaway):
        return None
    root = inverse_factor(curvature, np.ones(h.size, bool), float(np.finfo(dtype).eps))
    return Hyper(h, float(np.linalg.norm(np.linalg.solve(root, h - first))), curvature)


def most_likely(passes: GroupPasses, mode: Stationary) -> Hyper:
    """Hyperparameters at the maximum of their log evidence, or of the mean log prior of draws."""
    assert mode.eliminated is not None
    dtype, frame = mode.x.dtype, mode.refined()
    # derivatives of the rows by v of the frame of the mode
    rotation, rows = mode.eliminated.inverse_roots, mode.derivatives.rows
    blocks = np.einsum("cji,cjk,ckl->cil", rotation, rows.of_groups, rotation)
    slopes = np.einsum("cji,cj->ci", rotation, rows.groups)
    roots, slopes, blocks = (jnp.asarray(array, dtype) for array in (frame.roots, slopes, blocks))
    around = Around(
        passes.predictor,
        jnp.asarray(mode.point.shared),
        jnp.asarray(mode.point.groups),
        roots,
        (slopes, blocks),
        draws_around(frame, mode.is_free, dtype),
    )
    known = tuple(not flag for flag in mode.is_free.tolist()), around
    first = mode.x[~mode.is_free].astype(np.float64)
    for value, hessian in passes.objectives:
        best = maximized(partial(value, *known), partial(hessian, *known), first, dtype)
        if best is not None:
            return best
    raise ValueError(NOT_FINITE_ENERGY.format(dtype) + RUNAWAY)


def find_anchor(
    passes: GroupPasses, point: HostPosition, *, find_mode: bool = True
) -> ExpansionPoint:
    """The anchor near a position; ValueError if there is none. Cost: about a dozen passes.

    With `find_mode` False it is the position itself.
    """
    curvature = np.zeros((0, 0))
    if not find_mode:
        everything = np.ones(point.shared.size, bool)
        anchor = anchor_at(passes, point, point.frame(), ~everything, curvature)
        return anchor._replace(step=(0 * point.shared, 0 * point.groups))
    mode = known_finite(descend(passes, point, point.frame()))
    # of the mode given the hyperparameters, and of these
    for _ in range(8):
        is_last, point = True, mode.point
        if not mode.is_free.all():
            h, way, curvature = most_likely(passes, mode)
            shared = mode.x.copy()
            shared[~mode.is_free] = h
            point, is_last = HostPosition(shared, mode.point.groups), not way > TOLERANCES.round
        # once more from a mode, too: where steps went round beside kinks, others lead nearer
        mode = known_finite(descend(passes, point, mode.frame, mode.is_free))
        if is_last:
            break
    return anchor_at(passes, mode.point, mode.frame, ~mode.is_free, curvature)


def known_finite(mode: Stationary) -> Stationary:
    """The place itself; ValueError if a derivative is not finite there."""
    if mode.eliminated is None:
        raise ValueError(NOT_FINITE_ENERGY.format(mode.x.dtype))
    return mode


def anchor_at(
    passes: GroupPasses,
    point: HostPosition,
    frame: Whitening,
    is_hyper: np.ndarray,
    curvature: np.ndarray,
) -> ExpansionPoint:
    """The anchor at a point, with the frame of its curvature.

    That of the hyperparameters is of their log evidence. ValueError if floats do not resolve it.
    """
    last = known_finite(newton_step(passes, point, frame, ~is_hyper))
    assert last.eliminated is not None
    more = np.zeros_like(last.eliminated.schur)
    if is_hyper.any():
        # hyperparameters are coordinates themselves in all frames so far
        block = np.ix_(is_hyper, is_hyper)
        more[block] = curvature - last.eliminated.schur[block]
    everything = np.ones(point.shared.size, bool)
    frame = last.refined(more, everything).rounded(point.shared.dtype)
    check_resolution(point, frame)
    return ExpansionPoint(point, frame, last.step, point.shared.size)
