r"""The expansion of rows in groups at an anchor: all that grows with N, done once.

In the coordinates of :mod:`blackjax_ext.subsampling.groups.frames` a row of group c sees
:math:`w_c = (u, v_c)` of p + d coordinates, whatever the number of groups, and

.. math::
    |r_i(x)| \le \psi_i |w_c|^3 \quad\text{where}\quad |w_c| \le R = \sqrt{p + d} + 4,

with the bounds of :mod:`blackjax_ext.subsampling.row_bounds`. One expansion of all rows in all D
coordinates would have :math:`|w|^3 \approx D^{3/2}` in its place: at 2,000 groups a test of it
reads more than all rows. Expansions of the rows are kept by group, as an arrow, and each group has
an alias table of its own rows, which are kept in order of groups.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import check_position
from blackjax_ext.meshes import on_host
from blackjax_ext.subsampling.alias_table import build
from blackjax_ext.subsampling.expansion import FLOOR, MARGIN, check_affine, check_known
from blackjax_ext.subsampling.groups.frames import Arrow, Frame, first_frame, worst_condition
from blackjax_ext.subsampling.groups.mode import Anchor, GroupPasses, cast, find_anchor
from blackjax_ext.subsampling.groups.passes import group_bounds
from blackjax_ext.subsampling.groups.predictor import GroupedPredictor
from blackjax_ext.subsampling.mode import (
    MAX_CHANGE,
    MAX_ROUNDING,
    MAX_SPACING,
    NO_MODE,
    TOO_NARROW,
    UNRESOLVED,
    UnresolvedError,
)
from blackjax_ext.subsampling.row_bounds import BEYOND, power, radius_of

__all__ = ["GroupedExpansion", "expand_groups"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedExpansion:
    """Expansion of the rows at an anchor, with bounds of what it leaves.

    predictor
        What is expanded; None while it travels without its data.
    position
        The anchor.
    frame
        Coordinates u and v around it.
    arrow
        Derivatives of minus the log likelihood of all rows by them.
    rows
        Numbers of the rows in order of their groups, shape (N,).
    first
        Where in this order each group begins, and N, shape (G + 1,).
    bound, threshold, alias
        psi_i and the groups' alias tables, in this order, shapes (N,); an alias counts from the
        first row of its group.
    steepness
        Root of the third derivative's bound, of rows with one predictor, in this order, shape (N,);
        infinite for others.
    total
        Sums of the bounds of each group, shape (G,).
    radius
        R.
    """

    predictor: GroupedPredictor | None
    position: ArrayTree
    frame: Frame
    arrow: Arrow
    rows: Array
    first: Array
    bound: Array
    threshold: Array
    alias: Array
    steepness: Array
    total: Array
    radius: Array

    @property
    def num_rows(self) -> int:
        """N."""
        return self.rows.shape[-1]

    @property
    def num_groups(self) -> int:
        """G."""
        return self.total.shape[-1]

    @property
    def sizes(self) -> Array:
        """Rows of each group, shape (G,)."""
        return jnp.diff(self.first)

    def of(self, predictor: GroupedPredictor) -> "GroupedExpansion":
        """The same with its posterior."""
        return replace(self, predictor=predictor)

    def without_data(self) -> "GroupedExpansion":
        """The same without its posterior, to travel in a state."""
        return replace(self, predictor=None)

    def posterior(self) -> GroupedPredictor:
        """What is expanded."""
        assert self.predictor is not None
        return self.predictor

    def coordinates(self, x: ArrayTree) -> tuple[Array, Array]:
        """u, shape (p,), and v, shape (G, d), of a position."""
        split = self.posterior().grouping.split
        (y, b), (y0, b0) = split(x), split(self.position)
        return self.frame.coordinates(y - y0, b - b0)

    def position_of(self, u: Array, v: Array) -> ArrayTree:
        """The position with these coordinates."""
        grouping = self.posterior().grouping
        y0, b0 = grouping.split(self.position)
        dy, db = self.frame.steps(u, v)
        return grouping.join(y0 + dy, b0 + db)

    def draw(self, rng_key: PRNGKey) -> ArrayTree:
        """A draw from the normal approximation at the anchor."""
        key_u, key_v = jax.random.split(rng_key)
        dtype, (num_groups, width, size) = self.frame.root.dtype, self.frame.shear.shape
        u = jax.random.normal(key_u, (size,), dtype)
        return self.position_of(u, jax.random.normal(key_v, (num_groups, width), dtype))


def expand_groups(
    predictor: GroupedPredictor,
    start: ArrayLikeTree,
    *,
    find_mode: bool = True,
    say: Callable[[str], Any] | None = None,
) -> GroupedExpansion:
    r"""Expand rows in groups at a mode, to second order, and bound what the expansion leaves.

    Parameters
    ----------
    predictor
        Of :func:`blackjax_ext.potentials.grouped_predictor`.
    start
        Where the search for the anchor begins: a position.
    find_mode
        False to expand at `start` itself. Any anchor is exact; far from the mode, tests read more.
    say
        Called with a few words before each pass over the rows, such as ``print``.

    Returns
    -------
    The expansion. Cost: about a dozen passes of :math:`N K (p + d)^2` products. Memory: a chunk of
    rows, 20 bytes for each row, and :math:`G (p + d) d` numbers.

    Raises
    ------
    ValueError, TypeError
        For a start that is empty or not floating, predictors that are not affine or see more than
        one group, no mode with the hyperparameters held, a posterior so correlated that floats do
        not resolve it.
    """
    start = check_position(start)
    passes = GroupPasses(predictor, say)
    shared, groups = predictor.grouping.split(start)
    anchor = find_anchor(passes, shared, groups, find_mode=find_mode)
    check_digits(anchor)
    return bounded(passes, anchor)


def bounded(passes: GroupPasses, anchor: Anchor) -> GroupedExpansion:
    """The expansion at an anchor."""
    predictor, (shared, groups) = passes.predictor, anchor.point
    dtype = shared.dtype
    position = predictor.grouping.join(jnp.asarray(shared), jnp.asarray(groups))
    frame = cast(anchor.frame, dtype)
    size = shared.size + groups.shape[1]
    radius = math.inf if math.isinf(radius_of(predictor.rows, 1)) else math.sqrt(size) + BEYOND
    passes.announce("bounding them")
    plain = cast(first_frame(shared.size, *groups.shape), dtype)
    bounds = jax.jit(group_bounds, static_argnums=(5,))
    found = bounds(predictor, position, frame, plain, anchor.step, radius)
    check_known(found.has_changed)
    check_affine(found.deviation)
    if not float(jnp.max(found.change)) < MAX_CHANGE:
        raise ValueError(NO_MODE.format("Newton's method still moves"))
    tables = tables_of(power(found, 2), on_host(predictor.level), groups.shape[0], MARGIN[dtype])
    rows, first, bound, threshold, alias, total = map(jnp.asarray, tables)
    return GroupedExpansion(
        predictor.without_levels(),
        position,
        frame,
        found.arrow,
        rows,
        first,
        bound.astype(dtype),
        threshold,
        alias,
        found.steepness[rows],
        total.astype(dtype),
        jnp.asarray(radius, dtype),
    )


def tables_of(
    psi: np.ndarray, level: np.ndarray, num_groups: int, margin: float
) -> tuple[np.ndarray, ...]:
    """Rows in order, firsts, bounds, thresholds, aliases and totals, of bounds `psi` of all rows.

    Bounds that are kept are those that the tables implement, none below its own.
    """
    rows = np.argsort(level, kind="stable").astype(np.int32)
    first = np.searchsorted(level[rows], np.arange(num_groups + 1)).astype(np.int32)
    bound, total = np.zeros(psi.size), np.zeros(num_groups)
    threshold, alias = np.ones(psi.size, np.float32), np.zeros(psi.size, np.int32)
    for c in np.flatnonzero(np.diff(first)):
        part = slice(first[c], first[c + 1])
        own = psi[rows[part]]
        if not own.any():
            continue
        if not np.isfinite(own).all():  # a group that is read whole
            total[c] = np.inf
            continue
        table = build(own + FLOOR * own.mean())
        total[c] = (1.0 + margin) * np.max(own / table.probability)
        bound[part] = total[c] * np.asarray(table.probability)
        threshold[part], alias[part] = table.threshold, table.alias
    return rows, first, bound, threshold, alias, total


def check_digits(anchor: Anchor) -> None:
    """Raise ValueError if floats do not resolve the posterior around an anchor.

    As :func:`blackjax_ext.subsampling.mode.check_resolution`, of what is shared with a group.
    """
    (shared, groups), frame = anchor.point, anchor.frame
    eps = float(np.finfo(shared.dtype).eps)
    condition = worst_condition(frame)
    if not condition <= MAX_ROUNDING / eps:
        more, most = eps / float(np.finfo(np.float64).eps), MAX_ROUNDING / eps
        raise UnresolvedError(UNRESOLVED.format(condition, most, shared.dtype, more))
    of_shared = np.abs(frame.root_inverse) @ np.abs(shared.astype(np.float64))
    of_groups = np.einsum("cij,cj->ci", np.abs(frame.roots_inverse), np.abs(groups))
    spacing = eps * max(float(np.linalg.norm(of_shared)), float(of_groups.max(initial=0.0)))
    if not spacing <= MAX_SPACING:
        raise UnresolvedError(TOO_NARROW.format(shared.dtype, spacing, MAX_SPACING))
