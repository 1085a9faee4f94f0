r"""The expansion of rows in groups at an anchor: all that grows with N, done once.

In the coordinates of :mod:`blackjax_ext.subsampling.groups.arrowhead` a row of group c sees
:math:`w_c = (u, v_c)` of p + d coordinates, whatever the number of groups, and

.. math::
    |r_i(x)| \le \psi_i |w_c|^{k+1} \quad\text{where}\quad |w_c| \le R = \sqrt{p + d} + 4,

with the bounds of :mod:`blackjax_ext.subsampling.row_bounds`. One expansion of all rows in all D
coordinates would have :math:`|w|^{k+1} \approx D^{(k+1)/2}` in its place: at 2,000 groups a test
of it reads more than all rows. Expansions of the rows are kept by group, as an arrow, and each
group has an alias table of its own rows, which are kept in order of groups.

*Third order.* With a hundred rows in a group a predictor changes by a tenth, and what a quadratic
leaves of so many rows vetoes long moves. Where the family bounds fourth derivatives, the third ones
are kept too, k = 3: the remainders are ten times smaller, at the price of :math:`p^3 + G d p^2`
numbers.
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
from blackjax_ext.programs import compiled_soon
from blackjax_ext.subsampling.alias_table import build
from blackjax_ext.subsampling.expansion import (
    MARGIN,
    MIN_BOUND_SHARE,
    check_affine,
    check_constant_data,
)
from blackjax_ext.subsampling.groups.arrowhead import (
    Arrow,
    Cubic,
    Whitening,
    identity_whitening,
    worst_condition,
)
from blackjax_ext.subsampling.groups.mode import GroupedAnchor, GroupPasses, cast, find_anchor
from blackjax_ext.subsampling.groups.passes import group_bounds
from blackjax_ext.subsampling.groups.predictor import GroupedPredictor
from blackjax_ext.subsampling.mode import (
    MAX_LAST_CHANGE,
    MAX_ROUNDING,
    MAX_SPACING,
    NO_MODE,
    TOO_NARROW,
    UNRESOLVED,
    UnresolvedError,
)
from blackjax_ext.subsampling.row_bounds import BEYOND, radius_of

__all__ = ["GroupedExpansion", "expand_groups"]

MAX_CUBED = 64  # coordinates that a row sees, up to which third derivatives are kept


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
    cubic
        Third derivatives; None for an expansion of order 2.
    rows
        Numbers of the rows in order of their groups, shape (N,).
    first
        Where in this order each group begins, and N, shape (G + 1,).
    bound, threshold, alias
        psi_i and the groups' alias tables, in this order, shapes (N,); an alias counts from the
        first row of its group.
    steepness
        Root of the highest derivative's bound, of rows with one predictor, in this order; infinite
        for others, shape (N,).
    total
        Sums of the bounds of each group, shape (G,).
    radius
        R.
    """

    predictor: GroupedPredictor | None
    position: ArrayTree
    frame: Whitening
    arrow: Arrow
    cubic: Cubic | None
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
    def order(self) -> int:
        """Order of the expansion, 2 or 3."""
        return 2 if self.cubic is None else 3

    @property
    def num_groups(self) -> int:
        """G."""
        return self.total.shape[-1]

    @property
    def sizes(self) -> Array:
        """Rows of each group, shape (G,)."""
        return jnp.diff(self.first)

    def of(self, predictor: GroupedPredictor) -> "GroupedExpansion":
        """The expansion with its posterior."""
        return replace(self, predictor=predictor)

    def without_data(self) -> "GroupedExpansion":
        """The expansion without its posterior, to travel in a state."""
        return replace(self, predictor=None)

    def posterior(self) -> GroupedPredictor:
        """The posterior that is expanded."""
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

    def given_groups(self, v: Array) -> Callable[[Array], Array]:
        """The expansion of minus the log likelihood as a function of u, up to a constant."""
        slope = self.arrow.shared + jnp.einsum("cdp,cd->p", self.arrow.coupling, v)
        curvature = self.arrow.of_shared
        if self.cubic is None:
            return lambda u: slope @ u + 0.5 * u @ (curvature @ u)
        slope = slope + 0.5 * jnp.einsum("cdep,cd,ce->p", self.cubic.twice, v, v)
        curvature = curvature + jnp.einsum("cdpq,cd->pq", self.cubic.once, v)
        thirds = self.cubic.of_shared
        return lambda u: slope @ u + 0.5 * u @ ((curvature + (thirds @ u) / 3.0) @ u)

    def given_shared(self, u: Array) -> Callable[[Array], Array]:
        """The expansion for each group, (G, d) to (G,), as functions of v, up to constants."""
        slope = self.arrow.groups + self.arrow.coupling @ u
        curvature = self.arrow.of_groups
        if self.cubic is None:
            return lambda v: jnp.sum(v * slope, 1) + 0.5 * products(v, curvature)
        slope = slope + 0.5 * ((self.cubic.once @ u) @ u)
        curvature = curvature + self.cubic.twice @ u
        thirds = self.cubic.of_groups

        def energy(v: Array) -> Array:
            bent = curvature + jnp.einsum("cdef,cf->cde", thirds, v) / 3.0
            return jnp.sum(v * slope, 1) + 0.5 * products(v, bent)

        return energy

    def draw(self, rng_key: PRNGKey) -> ArrayTree:
        """A draw from the normal approximation at the anchor."""
        key_u, key_v = jax.random.split(rng_key)
        dtype, (num_groups, width, size) = self.frame.root.dtype, self.frame.shear.shape
        u = jax.random.normal(key_u, (size,), dtype)
        return self.position_of(u, jax.random.normal(key_v, (num_groups, width), dtype))


def products(v: Array, blocks: Array) -> Array:
    """Quadratic forms of small blocks (G, d, d), shape (G,)."""
    return jnp.einsum("cd,cde,ce->c", v, blocks, v)


def expand_groups(
    predictor: GroupedPredictor,
    start: ArrayLikeTree,
    *,
    order: int | None = None,
    find_mode: bool = True,
    say: Callable[[str], Any] | None = None,
) -> GroupedExpansion:
    r"""Expand rows in groups at a mode, and bound what the expansion leaves.

    Parameters
    ----------
    predictor
        Of :func:`blackjax_ext.potentials.grouped_predictor`.
    start
        Where the search for the anchor begins: a position.
    order
        2 or 3; None for 3 where the family has bounds of fourth derivatives and p + d is 64 at
        most, and 2 elsewhere.
    find_mode
        False to expand at `start` itself. Any anchor is exact; far from the mode, tests read more.
    say
        Called with a few words before each pass over the rows, such as ``print``.

    Returns
    -------
    The expansion. Cost: about a dozen passes of :math:`N K (p + d)^2` products. Memory: a chunk of
    rows, 20 bytes for each row, and :math:`G (p + d) d` numbers, for order 3 :math:`G (p + d)^2 d`.

    Raises
    ------
    ValueError, TypeError
        For a start that is empty or not floating, an order that is not available, predictors that
        are not affine or see more than one group, no mode with the hyperparameters held, a
        posterior so correlated that floats do not resolve it.
    """
    start = check_position(start)
    order = order_of(predictor, order)
    passes = GroupPasses(predictor, say)
    shared, groups = predictor.grouping.split(start)
    try:
        return expanded_at(passes, shared, groups, order, find_mode=find_mode)
    except ValueError as error:
        if not find_mode:
            raise
        passes.is_smoothed = True
        try:
            return expanded_at(passes, shared, groups, order, find_mode=True)
        except ValueError:
            raise error from None


def expanded_at(
    passes: GroupPasses, shared: Array, groups: Array, order: int, *, find_mode: bool
) -> GroupedExpansion:
    """The expansion at the anchor that is found from a place."""
    anchor = find_anchor(passes, shared, groups, find_mode=find_mode)
    check_digits(anchor)
    return expansion_at(passes, anchor, order)


def order_of(predictor: GroupedPredictor, order: int | None) -> int:
    """The order of the expansion; ValueError for one that is not available."""
    coordinates = predictor.grouping.size + predictor.grouping.width
    lacking = [kind.name for kind in predictor.rows.kinds if kind.highest < 4]
    if order is None:
        return 2 if lacking or coordinates > MAX_CUBED else 3
    if order not in (2, 3):
        raise ValueError(f"order must be 2, 3 or None; got {order!r}.")
    if order == 3 and lacking:
        raise ValueError(
            f"order must be 2 or None for the family {lacking[0]}, which has no bounds of fourth "
            "derivatives; got 3."
        )
    return order


def expansion_at(passes: GroupPasses, anchor: GroupedAnchor, order: int) -> GroupedExpansion:
    """The expansion at an anchor."""
    predictor, (shared, groups) = passes.predictor, anchor.point
    dtype = shared.dtype
    position = predictor.grouping.join(jnp.asarray(shared), jnp.asarray(groups))
    frame = cast(anchor.frame, dtype)
    size = shared.size + groups.shape[1]
    radius = math.inf if math.isinf(radius_of(predictor.rows, 1)) else math.sqrt(size) + BEYOND
    passes.announce("bounding them")
    plain = cast(identity_whitening(shared.size, *groups.shape), dtype)
    bounds = compiled_soon(group_bounds, static_argnums=(5, 6))
    row_bounds = bounds(predictor, position, frame, plain, anchor.step, radius, order)
    check_constant_data(row_bounds.not_known)
    check_affine(row_bounds.not_affine)
    if not float(on_host(row_bounds.change)) < MAX_LAST_CHANGE:
        raise ValueError(NO_MODE.format("Newton's method still moves"))
    psi, level = on_host((row_bounds.psi, predictor.level))
    tables = tables_of(psi, level, groups.shape[0], MARGIN[dtype])
    rows, first, bound, threshold, alias, total = map(jnp.asarray, tables)
    return GroupedExpansion(
        predictor.without_levels(),
        position,
        frame,
        row_bounds.arrow,
        row_bounds.cubic,
        rows,
        first,
        bound.astype(dtype),
        threshold,
        alias,
        row_bounds.steepness[rows],
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
    for c in np.flatnonzero(np.diff(first)).tolist():
        part = slice(first[c], first[c + 1])
        own = psi[rows[part]].astype(np.float64)
        if not own.any():
            continue
        if not np.isfinite(own).all():  # a group that is read whole
            total[c] = np.inf
            continue
        table = build(own + MIN_BOUND_SHARE * own.mean())
        probability = table.probability
        total[c] = (1.0 + margin) * np.max(own / probability)
        bound[part] = total[c] * probability
        threshold[part], alias[part] = table.threshold, table.alias
    return rows, first, bound, threshold, alias, total


def check_digits(anchor: GroupedAnchor) -> None:
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
