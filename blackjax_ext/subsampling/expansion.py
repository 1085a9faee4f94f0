r"""The expansion of rows at an anchor: all that grows with N, done once.

Notation is that of :mod:`blackjax_ext.subsampling.predictors`. The anchor is a mode, found by
Newton's method; the rows are summed there to a gradient and a Hessian, and each row's remainder is
bounded. In the coordinates of :mod:`blackjax_ext.rows.arrowhead` a row of group c sees
:math:`w_c = (u, v_c)` of p + d coordinates, whatever the number of groups, and

.. math::
    |r_i(x)| \le \psi_i |w_c|^{k+1} \quad\text{where}\quad |w_c| \le R = \sqrt{P + d} + 4,

with the bounds of :mod:`blackjax_ext.subsampling.row_bounds`, P of the p coordinates being those
that rows see. Rows without groups are the case G = 1, d = 0, where :math:`w = u`. What a step needs
of the expansion later costs :math:`p^2 + G d (p + d)`, or the rows that it reads.

*Groups.* One expansion of all rows in all D coordinates would have
:math:`|w|^{k+1} \approx D^{(k+1)/2}`: at 2,000 groups a test of it reads more than all rows.
Expansions of the rows are kept by group, as an arrow, and each group has an alias table of its own
rows, which are kept in order of groups.

*Third order.* With a hundred rows in a group a predictor changes by a tenth, and what a quadratic
leaves of so many rows vetoes long moves. Where the family bounds fourth derivatives, the third ones
are kept too, k = 3: the remainders are ten times smaller, at the price of :math:`p^3 + G d p^2`
numbers.

*Precision.* Gradient and Hessian are kept in whitened coordinates, summed from the whitened rows in
the pass that bounds them. With uncentred covariates :math:`g^T d` and :math:`\tfrac12 d^T H d` are
small differences of large numbers: in float32, at a mean of 1000 standard deviations, the latter is
off by more than itself. In w the curvature of the posterior is the identity and nothing cancels;
what is left is the rounding of w itself. :func:`blackjax_ext.rows.newton.check_resolution`
says up to where that is enough, and raises beyond.

The tables draw rows with probabilities :math:`\hat{p}_i` that float32 can represent. So the bounds
that are kept are :math:`\Psi \hat{p}_i`, with :math:`\Psi` large enough that none of them is below
its :math:`\psi_i`: rounding costs a thousandth of the rows, not exactness.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import check_position
from blackjax_ext.meshes import blocks_over_rows, on_host
from blackjax_ext.metrics.structures import Dense
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.rows.arrowhead import (
    Arrow,
    Cubic,
    Whitening,
    cast,
)
from blackjax_ext.rows.newton import HostPosition, in_dtype
from blackjax_ext.subsampling.alias_table import AliasTable, blocks, columns, realized
from blackjax_ext.subsampling.grouped_mode import GroupPasses, find_anchor
from blackjax_ext.subsampling.grouping import GroupedPredictor
from blackjax_ext.subsampling.mode import (
    ExpansionPoint,
    RowPasses,
    anchor_without_groups,
    check_rest,
)
from blackjax_ext.subsampling.predictors import LinearPredictor
from blackjax_ext.subsampling.row_bounds import radius_of, row_bounds

# what rounding may take from a bound
MARGIN = {jnp.dtype("float32"): 1e-4, jnp.dtype("float64"): 1e-10}
# rows whose probabilities are kept at once: all columns of the table are read for each such part
MIN_PART, MAX_PARTS = 2**18, 16
NOT_AFFINE = (
    "predict_fn must be affine in the position, as in row @ theta, and index nothing beyond its "
    "end: the predictor of row {} changes by more than its Jacobian says. Where it is affine, "
    "its terms are so large that they leave rounding: centre the covariates. "
    "acceptance.full_pass() does not need this."
)
NOT_KNOWN = (
    "what the loss of a row needs besides its predictors (parameters, weight and response) must "
    "not depend on the position; it does in row {}."
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Expansion:
    """Expansion of the rows at an anchor, with bounds of what it leaves.

    predictor
        What is expanded; None while it travels without its data.
    position
        The anchor, a pytree.
    frame
        Coordinates u and v around it, in which the curvature of the posterior is the identity.
    metric
        Factor of that curvature, as `inverse_mass_matrix` of a sampler; None for groups.
    arrow
        Derivatives of minus the log likelihood of all rows by u and v.
    cubic
        Third derivatives; None for an expansion of order 2.
    rows
        Numbers of the rows in order of their groups, shape (N,); None without groups.
    first
        Where in this order each group begins, and N, shape (G + 1,); None without groups.
    bound, threshold, alias
        psi_i and the groups' alias tables, in this order, shapes (N,); an alias counts from the
        first row of its group.
    steepness
        Root of the highest derivative's bound, of rows with one predictor, in this order; infinite
        for others, shape (N,). None without groups.
    totals
        Sums of the bounds of each group, shape (G,).
    radius
        R: the bounds hold up to this norm of w.
    order
        k: 2, or for groups 2 or 3.
    num_seen
        P: rows see the first of the shared coordinates u.
    """

    predictor: GroupedPredictor | None
    position: ArrayTree
    frame: Whitening
    metric: Dense | None
    arrow: Arrow
    cubic: Cubic | None
    rows: Array | None
    first: Array | None
    bound: Array
    threshold: Array
    alias: Array
    steepness: Array | None
    totals: Array
    radius: Array
    order: int = field(metadata={"static": True})
    num_seen: int = field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """N."""
        return self.bound.shape[-1]

    @property
    def num_groups(self) -> int:
        """G."""
        return self.totals.shape[-1]

    @property
    def has_groups(self) -> bool:
        """Whether rows see coefficients of a group."""
        return self.first is not None

    @property
    def total(self) -> Array:
        """Psi, the sum of the bounds."""
        return jnp.sum(self.totals, axis=-1)

    @property
    def sizes(self) -> Array:
        """Rows of each group, shape (G,)."""
        return jnp.array([self.num_rows]) if self.first is None else jnp.diff(self.first)

    @property
    def table(self) -> AliasTable:
        """The table of rows without groups."""
        return AliasTable(self.threshold, self.alias)

    @property
    def whitener(self) -> Array:
        """Takes x - a to w, shape (P, D), of rows without groups."""
        root_inverse: Array = self.frame.root_inverse
        return root_inverse[: self.num_seen]

    def of(self, posterior: LinearPredictor | GroupedPredictor) -> "Expansion":
        """The expansion with its posterior."""
        if isinstance(posterior, LinearPredictor):
            posterior = GroupedPredictor.without_groups(posterior, self.position)
        return replace(self, predictor=posterior)

    def without_data(self) -> "Expansion":
        """The expansion without its posterior, to travel in a state."""
        return replace(self, predictor=None)

    @property
    def grouped(self) -> GroupedPredictor:
        """The posterior that is expanded."""
        assert self.predictor is not None
        return self.predictor

    @property
    def posterior(self) -> LinearPredictor:
        """Prior, predictors and responses."""
        return self.grouped.rows

    @exact_products
    def coordinates(self, x: ArrayTree) -> tuple[Array, Array]:
        """u, shape (p,), and v, shape (G, d), of a position."""
        split = self.grouped.grouping.split
        (y, b), (y0, b0) = split(x), split(self.position)
        return self.frame.coordinates(y - y0, b - b0)

    def position_of(self, u: Array, v: Array) -> ArrayTree:
        """The position with these coordinates."""
        grouping = self.grouped.grouping
        y0, b0 = grouping.split(self.position)
        dy, db = self.frame.steps(u, v)
        return grouping.join(y0 + dy, b0 + db)

    def given_groups(self, v: Array) -> Callable[[Array], Array]:
        """The expansion of minus the log likelihood as a function of u, up to a constant."""
        slope, curvature = self.arrow.shared, self.arrow.of_shared
        if self.has_groups:
            slope = slope + jnp.einsum("cdp,cd->p", self.arrow.coupling, v)
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


def expand(
    posterior: LinearPredictor,
    start: ArrayLikeTree,
    *,
    find_mode: bool = True,
    say: Callable[[str], None] | None = None,
    place: Callable[[np.ndarray], Any] = blocks_over_rows,
) -> Expansion:
    r"""Expand the rows of a posterior at its mode, and bound what the expansion leaves.

    Parameters
    ----------
    posterior
        Of :func:`blackjax_ext.potentials.linear_predictor`.
    start
        Where the search for the mode begins: a pytree like the position.
    find_mode
        False to expand at `start` itself. Any anchor is exact; far from the mode, tests read more.
    say
        Called with a few words before each pass over the rows, such as ``print``.
    place
        Takes bound, threshold and alias of all rows from the host, one after the other, to where
        chains index them with the numbers of rows: by default to the devices.

    Returns
    -------
    The expansion, of which a test reads of the order of :math:`P^3 / \sqrt N` rows. Cost: per step
    of Newton's method (about ten) a pass of :math:`N K D^2` products over the rows, then one more
    for the bounds. Memory: a chunk of rows, and 12 bytes for each of
    all rows (16 in double precision), which a mesh with an axis "rows" divides
    (``blackjax_ext.meshes``).

    Raises
    ------
    ValueError, TypeError
        For a start that is empty or not floating, predictors that are not affine, a position
        without a proper mode (no curvature there, or none within 60 steps: separable data without a
        prior), a posterior so correlated that floats do not resolve it (uncentred covariates;
        :func:`blackjax_ext.rows.newton.check_resolution`).
    """
    position = check_position(start)
    predictor = GroupedPredictor.without_groups(posterior, position)
    passes = RowPasses(predictor, say)
    anchor = anchor_without_groups(passes, position_of(predictor, position), find_mode=find_mode)
    return expansion_at(passes, anchor, 2, place)


def position_of(predictor: GroupedPredictor, x: ArrayTree) -> HostPosition:
    """A position on the host."""
    return HostPosition(*predictor.grouping.split(on_host(x), np))


def expand_groups(
    predictor: GroupedPredictor,
    start: ArrayLikeTree,
    *,
    order: int | None = None,
    find_mode: bool = True,
    say: Callable[[str], Any] | None = None,
) -> Expansion:
    r"""Expand rows in groups at a mode, and bound what the expansion leaves.

    Parameters
    ----------
    predictor
        Of :func:`blackjax_ext.potentials.grouped_predictor`.
    start, find_mode, say
        As for :func:`expand`.
    order
        2 or 3; None for 3 where the family has bounds of fourth derivatives and p + d is 64 at
        most, and 2 elsewhere.

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
    passes, point = GroupPasses(predictor, say), position_of(predictor, start)

    def attempt() -> Expansion:
        anchor = find_anchor(passes, point, find_mode=find_mode)
        return expansion_at(passes, anchor, order, jnp.asarray)

    try:
        return attempt()
    except ValueError as error:
        if not find_mode:
            raise
        passes.is_smoothed = True
        try:
            return attempt()
        except ValueError:
            raise error from None


def order_of(predictor: GroupedPredictor, order: int | None) -> int:
    """The order of the expansion; ValueError for one that is not available."""
    coordinates = predictor.grouping.size + predictor.grouping.width
    lacking = [kind.name for kind in predictor.rows.kinds if kind.highest < 4]
    if order is None:
        # coordinates that a row sees, up to which third derivatives are kept
        return 2 if lacking or coordinates > 64 else 3
    if order not in (2, 3):
        raise ValueError(f"order must be 2, 3 or None; got {order!r}.")
    if order == 3 and lacking:
        raise ValueError(
            f"order must be 2 or None for the family {lacking[0]}, which has no bounds of fourth "
            "derivatives; got 3."
        )
    return order


def expansion_at(
    passes: RowPasses, anchor: ExpansionPoint, order: int, place: Callable[[np.ndarray], Any]
) -> Expansion:
    """The expansion at an anchor, with bounds and tables where they are placed."""
    predictor, (shared, groups) = passes.predictor, anchor.point
    position = jax.device_put(predictor.grouping.join(shared, groups, np))
    dtype = shared.dtype
    frame = jax.device_put(cast(anchor.frame, dtype))
    size = anchor.num_seen + groups.shape[1]
    passes.announce("bounding them")
    bounds = compiled_soon(row_bounds, static_argnums=(5, 6), runs_once=True)
    radius = radius_of(predictor.rows, size)
    plain = cast(anchor.point.frame(), dtype)
    rows = bounds(predictor, position, frame, plain, anchor.step, radius, order)
    check_rest(anchor, float(on_host(rows.change)))
    for first_row, message in ((rows.not_known, NOT_KNOWN), (rows.not_affine, NOT_AFFINE)):
        if (row := int(on_host(first_row))) >= 0:
            raise ValueError(message.format(row))
    arrow, cubic, steepness = rows.arrow, rows.cubic, rows.steepness
    psi = np.array(on_host(rows.psi))
    del rows  # the other copy of the bounds
    number = first = None
    if predictor.has_groups:
        level = on_host(predictor.level)
        number = np.argsort(level, kind="stable").astype(np.int32)
        first = np.searchsorted(level[number], np.arange(len(groups) + 1)).astype(np.int32)
        psi = psi[number].astype(np.float64)
    parts = [(0, psi.size)] if first is None else list(pairwise(first))
    totals, table = tables_of(psi, parts, MARGIN[dtype])
    # one after the other, so that only one of them is there twice
    of_rows = [psi.astype(dtype, copy=False), *table]
    del psi, table
    bound, threshold, alias = (place(of_rows.pop(0)) for _ in range(3))
    return Expansion(
        predictor.without_levels(),
        position,
        frame,
        None if anchor.metric is None else in_dtype(anchor.metric, dtype),
        arrow,
        cubic,
        None if number is None else jax.device_put(number),
        None if first is None else jax.device_put(first),
        bound,
        threshold,
        alias,
        None if steepness is None else steepness[number],
        jax.device_put(totals.astype(dtype)),
        jax.device_put(dtype.type(radius if totals.any() else math.inf)),
        order,
        anchor.num_seen,
    )


def tables_of(
    psi: np.ndarray, parts: list[tuple[int, int]], margin: float
) -> tuple[np.ndarray, AliasTable]:
    """Sums of the bounds of groups and their alias tables, of bounds `psi` of all rows in order.

    `parts` are the first row of each group, and the one after its last. Bounds that the tables
    imply take the place of `psi`.
    """
    totals = np.zeros(len(parts))
    if len(parts) == 1:  # no copy of a table of all rows
        totals[0], table = table_of(psi, margin)
        return totals, table
    table = AliasTable(np.ones(psi.size, np.float32), np.zeros(psi.size, np.int32))
    for c, part in enumerate(slice(*ends) for ends in parts):
        if psi[part].size:
            totals[c], own = table_of(psi[part], margin)
            table.threshold[part], table.alias[part] = own
    return totals, table


def table_of(psi: np.ndarray, margin: float) -> tuple[float, AliasTable]:
    """Alias table for bounds `psi`, shape (N,), and the bounds that it implements, none below.

    They take the place of `psi`: with the table that is 12 bytes a row, and a few megabytes.
    """
    if not psi.any():  # polynomials of the order of the expansion: no row is ever drawn
        return 0.0, columns(np.ones_like(psi))
    if not np.isfinite(psi).all():  # more than floats hold: no move is cheap, all rows are read
        psi[:] = np.inf
        return np.inf, columns(np.ones_like(psi))
    # smallest share of the mean bound that a row has in the alias table, whose steps are 2^-23
    table = columns(psi, 1e-3 * psi.mean(dtype=np.float64))
    parts = list(blocks(psi.size, max(MIN_PART, psi.size // MAX_PARTS)))
    total = (1.0 + margin) * max(np.max(psi[part] / realized(*table, part)) for part in parts)
    for part in parts:
        psi[part] = total * realized(*table, part)
    return psi.sum(dtype=np.float64), table


@exact_products
def surrogate(expansion: Expansion, x: ArrayTree) -> Array:
    """Energy with the exact prior and the expansion of the rows, in whitened coordinates.

    Cost: p^2 + G d (p + d), and a log prior.
    """
    u, v = expansion.coordinates(x)
    rows = expansion.given_groups(v)(u)
    if expansion.has_groups:
        rows = rows + jnp.sum(expansion.given_shared(jnp.zeros_like(u))(v))
    return rows - expansion.posterior.logprior(x)
