r"""Bounds of what the expansion of a row leaves, and all else that one pass tells of the rows.

By Taylor's theorem a remainder of order k is :math:`\frac1{(k+1)!} D^{k+1} \phi_i[t_i, \dots]` at a
place between :math:`a_i` and :math:`a_i + t_i`. The bound must hold where :math:`|w| \le R` alone:
beyond, :mod:`blackjax_ext.subsampling.row_tests` reads all rows. There a predictor j changes by
:math:`|t_{ij}| \le \rho_{ij} R` with :math:`\rho_{ij} = |A_{ij} L|`, a box, over which the family
of the row bounds its derivatives, :math:`T_{ijlm} \ge |\partial_j \partial_l \partial_m \phi_i|`:

.. math::
    |r_i(x)| \le \psi_i |w|^3, \qquad
    \psi_i = \tfrac16 \sum_{jlm} T_{ijlm}\, \rho_{ij} \rho_{il} \rho_{im},

and with one index more for order 3. A mean and a log scale have no common unit, and none is needed:
derivatives are measured in units :math:`u_j` of the predictors and :math:`\rho_{ij} / u_j` has
none, so nothing overflows or underflows where a scale is 1e-13 or 4e12.
:math:`R = \sqrt P + 4`: a normal posterior of P coordinates is beyond with a probability below
:math:`10^{-6}`.

*One predictor each.* Of responses with one free predictor, rows may hold many. The sum of
:math:`T_j |t_j|^m` over them is at most :math:`|S t|^m`, where S multiplies each by
:math:`T_j^{1/m}`: so :math:`\psi_i = \|S_i A_i L\|^m / m!` with the operator norm. Logits of
classes have bounds in the norm of their differences, and join these.

*Norm.* For K = 1 the norm is exact. For more, :math:`\|B\|^2 \le \|(B B^T)^2\|_F^{1/2}`, at most
:math:`K^{1/8}` too large, and without an eigenvalue problem per row.

Only a loss that is a polynomial of the order of the expansion has the bound zero.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.precision import exact_products
from blackjax_ext.rows.arrowhead import Arrow, Cubic, Whitening
from blackjax_ext.subsampling.families import Kind
from blackjax_ext.subsampling.grouping import GroupedPredictor
from blackjax_ext.subsampling.passes import (
    MAX_DESIGN_ENTRIES,
    Largest,
    chunk_length,
    cubes_of,
    designs,
    jacobians,
    over_chunks,
    sums_of,
)
from blackjax_ext.subsampling.predictors import LinearPredictor, Responses


def radius_of(posterior: LinearPredictor, size: int) -> float:
    """R for P whitened coordinates; infinite where all bounds hold everywhere.

    Else they hold up to four standard deviations beyond the root of the dimension.
    """
    is_global = all(kind.norm is not None for kind in posterior.kinds)
    return math.inf if is_global else math.sqrt(size) + 4.0


def norms(matrices: Array) -> Array:
    """Upper bounds of the operator norms of `matrices`, shape (n, K, P); exact for K = 1."""
    # scaled first, because the square of a small number is zero in float32
    most = jnp.max(jnp.abs(matrices), axis=(1, 2), initial=0.0)
    unit = matrices / jnp.where(most > 0, most, 1.0)[:, None, None]
    size = jnp.sqrt(jnp.sum(jnp.square(unit), axis=(1, 2)))
    if matrices.shape[1] == 1:
        return most * size
    unit = unit / jnp.where(size > 0, size, 1.0)[:, None, None]
    gram = unit @ jnp.swapaxes(unit, 1, 2)
    return most * size * jnp.sqrt(jnp.linalg.norm(gram @ gram, axis=(1, 2))) ** 0.5


class Parts(NamedTuple):
    """Parts of the bound of a row's change along some tangents.

    :math:`S A`, the tangents of responses that are bounded together, shape (m, P), the sum over the
    others, and whether any bound is other than zero.
    """

    curved: Array
    total: Array
    is_curved: Array


def parts_of(
    posterior: LinearPredictor, order: int, radius: float, eta: Any, tangents: Array, row: Any
) -> Parts:
    """Parts of one row, for `tangents` of its predictors, shape (K, P), in the shape of `eta`.

    Bounds are of derivatives of the given order, over the box of all changes that combinations of
    the tangents with coefficients of norm `radius` make.
    """
    unravel = ravel_pytree(eta)[1]
    by_kind = jax.vmap(unravel, 1, -1)(tangents)
    curved, totals, flags = [], [jnp.zeros((), tangents.dtype)], [jnp.array(False)]
    for kind, e, t, part in zip(posterior.kinds, eta, by_kind, row, strict=True):
        scaled, sizes = scaled_and_sizes(kind, order, radius, e, t, part)
        has_size = jnp.any(sizes > 0, axis=tuple(range(1, sizes.ndim)))
        flags.append(jnp.any(has_size & jnp.any(t != 0, axis=(1, 2))))
        if sizes.ndim == 1:
            rows = sizes[:, None, None] ** (1 / order) * scaled
            curved.append(rows.reshape(-1, rows.shape[-1]))
        else:
            lengths = jnp.linalg.norm(scaled, axis=-1)
            totals.append(jnp.sum(jax.vmap(contracted)(sizes, lengths)))
    nothing = jnp.zeros((0, tangents.shape[1]), tangents.dtype)
    return Parts(
        jnp.concatenate([nothing, *curved]), jnp.sum(jnp.stack(totals)), jnp.any(jnp.stack(flags))
    )


def scaled_and_sizes(
    kind: Kind, order: int, radius: float, eta: Array, tangents: Array, part: Responses
) -> tuple[Array, Array]:
    """Tangents (m, k, P) in the units of the bounds, and bounds: (m,) for one, or (m, k, k, ...).

    Of one kind in one row.
    """
    weight = jnp.abs(part.weight)
    if kind.norm is not None:  # of the third derivative, which is the highest that is bounded
        centred = tangents - jnp.mean(tangents, axis=1, keepdims=True)
        return centred, weight * kind.norm
    lengths = 1.001 * jnp.linalg.norm(tangents, axis=-1)  # what rounding may add to a distance
    sizes = jax.vmap(partial(kind.bounds, order))(eta, radius * lengths, part.y, part.parameters)
    units = jax.vmap(kind.units)(eta, part.parameters)
    weight = weight.reshape(-1, *[1] * order)
    sizes = jnp.where(weight > 0, weight * sizes, 0.0)  # a bound may have overflowed
    if eta.shape[1] == 1:
        sizes = sizes.reshape(-1)
    return tangents / units[..., None], sizes


def felt(posterior: LinearPredictor, eta: Any, change: Array) -> Array:
    """A change of one row's predictors as its losses see it, flat, in the shape of `eta`.

    Logits of classes may all move together, as far as a prior lets them.
    """
    moves = ravel_pytree(eta)[1](change)
    seen = [
        move if kind.norm is None else move - jnp.mean(move, axis=1, keepdims=True)
        for kind, move in zip(posterior.kinds, moves, strict=True)
    ]
    return jnp.concatenate([change.ravel() for change in seen])


def contracted(sizes: Array, lengths: Array) -> Array:
    """The sum of `sizes`, shape (k, k, ...), times a length for each index."""
    for _ in range(sizes.ndim):
        sizes = sizes @ lengths
    return sizes


def has_changed(old: Any, new: Any) -> Any:
    """For each array of what losses need of some rows, whether it differs in a row, shape (n,).

    What differs by rounding alone does not: two programs need not round alike.
    """

    def differs(old: Any, new: Any) -> Array:
        old, new = (
            jnp.asarray(values, float).reshape(values.shape[0], -1) for values in (old, new)
        )
        is_same = jnp.isclose(new, old, rtol=64 * jnp.finfo(old.dtype).eps, atol=0.0)
        # infinite or not a number at both ends
        return jnp.any(~(is_same | (jnp.isnan(new) & jnp.isnan(old))), axis=1)

    return jax.tree.map(differs, old, new)


def steepness(matrix: Array, reach: Array, total: Array) -> Array:
    """Bounds of the steepness of rows with one predictor, shape (n,); infinite for others.

    `reach` is the norm of a row's tangents by it.
    """
    length = jnp.linalg.norm(matrix[:, 0], axis=-1)
    if matrix.shape[1] != 1:
        return jnp.full_like(reach, jnp.inf)
    is_known = (reach > 0) & (total == 0)
    return jnp.where(is_known, reach / jnp.where(is_known, length, 1.0), jnp.inf)


class RowBounds(NamedTuple):
    """Bounds of the rows at the anchor, from one pass over them.

    Attributes
    ----------
    arrow
        Derivatives of all rows by u and v.
    cubic
        Their third derivatives; None if they are not expanded to order 3.
    not_affine
        First row with a predictor that is not affine, -1 if all are: one that deviates from its
        expansion by more than rounding explains, on steps of several lengths and directions.
    not_known
        First row of which what its loss needs beside its predictors changes on these steps, or -1.
    change
        Largest change of a predictor on a given step, as far as its loss sees it, in units of the
        reach of their family.
    psi
        The bounds, shape (N,).
    steepness
        Root of order k + 1 of the bound of the derivative of that order of a row with one
        predictor, for expansions of order k, shape (N,); infinite for others. None without groups.
    """

    arrow: Arrow
    cubic: Cubic | None
    not_affine: Array
    not_known: Array
    change: Array
    psi: Array
    steepness: Array | None


@exact_products
def row_bounds(
    predictor: GroupedPredictor,
    position: ArrayTree,
    frame: Whitening,
    plain: Whitening,
    step: tuple[Array, Array],
    radius: float,
    order: int,
) -> RowBounds:
    """Sums, bounds, deviations, and the way of all rows on a `step` of y and b. Cost: a pass.

    `plain` is the frame of the coordinates themselves, `order` that of the expansion.
    """
    grouping, rows_of = predictor.grouping, predictor.rows
    y, b = grouping.split(position)
    tried = steps_tried(frame, y, b)
    eps = jnp.finfo(y.dtype).eps

    def visit(indices: Array, is_new: Array) -> tuple[Any, Any]:
        level = predictor.level_of(indices)
        design = designs(predictor, position, frame, indices)
        matrix = (
            designs(predictor, position, plain, indices).matrix
            if predictor.has_groups
            else jacobians(predictor, position, indices)
        )
        of_rows = jax.vmap(partial(parts_of, rows_of, order + 1, radius))
        parts = of_rows(design.eta, design.matrix, design.rows)
        base = jax.vmap(lambda e: ravel_pytree(e)[0])(design.eta)
        product = partial(seen_product, predictor.has_groups, level)

        def deviation(step: tuple[Array, Array]) -> tuple[Array, Array]:
            moved, moved_rows = rows_of.read(grouping.join(y + step[0], b + step[1]), indices)
            here, there = (jax.vmap(rows_of.rounding)(e, design.rows) for e in (design.eta, moved))
            changed = jnp.stack(jax.tree.leaves(has_changed(design.rows, moved_rows)))
            moved = jax.vmap(lambda e: ravel_pytree(e)[0])(moved)
            far = jnp.abs(y) + jnp.abs(step[0]), jnp.abs(b) + jnp.abs(step[1])
            size = here + there + jnp.abs(base) + product(jnp.abs(matrix), *far)
            off = jnp.abs(moved - base - product(matrix, *step))
            # what has overflowed tells nothing: exp(predictor), far from where the rows are
            off = jnp.where(jnp.isfinite(base) & ~jnp.isfinite(moved), 0.0, off)
            off = jnp.max(off / jnp.maximum(size, jnp.finfo(y.dtype).tiny), axis=1)
            return off / (100 * matrix.shape[-1] ** 0.5 * eps), jnp.any(changed, axis=0)

        deviations, changed = jax.lax.map(deviation, tried)
        change = jax.vmap(partial(felt, rows_of))(design.eta, product(matrix, *step))
        change = jnp.abs(change) / jax.vmap(rows_of.reach)(design.eta, design.rows)
        sums = [sums_of(predictor, design, level, is_new)]
        if order == 3:
            sums.append(cubes_of(predictor, design, level, is_new))
        worst = RowMaxima.of(rows_of.num_rows, indices, deviations, changed, jnp.max(change))
        values = [remainder_bounds(*parts, order)]
        if predictor.has_groups:
            values.append(steepness(design.matrix, norms(parts.curved), parts.total))
        return (tuple(sums), worst), tuple(values)

    length = chunk_length(predictor, position)
    if order == 3:  # a row has the square of its coordinates
        length = max(min(length, MAX_DESIGN_ENTRIES // (grouping.size + grouping.width) ** 2), 1)
    (sums, worst), (psi, *steep) = over_chunks(visit, rows_of.num_rows, length)
    arrow, *cubic = ([total.value() for total in part] for part in sums)
    not_affine, not_known, change = worst.rows(rows_of.num_rows)
    third = Cubic(*cubic[0]) if cubic else None
    return RowBounds(Arrow(*arrow), third, not_affine, not_known, change, psi, *(steep or [None]))


def seen_product(has_groups: bool, level: Array, matrix: Array, dy: Array, db: Array) -> Array:
    """Product with the coordinates that each row sees, shape (n, K)."""
    of_shared: Array = matrix[..., : dy.size] @ dy
    if not has_groups:
        return of_shared
    return of_shared + jnp.einsum("nkd,nd->nk", matrix[..., dy.size :], db[level])


def steps_tried(frame: Whitening, y: Array, b: Array) -> tuple[Array, Array]:
    """Steps of y and b on which predictors must be affine, of several lengths and directions."""
    rng = np.random.default_rng(0)
    noise = [jnp.asarray(rng.normal(size=(2, *part.shape)), y.dtype) for part in (y, b)]
    whitened = jax.vmap(frame.steps)(*noise)
    of_shared, of_groups = (
        jnp.concatenate([w, n, -10.0 * n[:1]]) for w, n in zip(whitened, noise, strict=True)
    )
    return of_shared, of_groups


class RowMaxima(NamedTuple):
    """Maxima over the rows of a pass, as terms of it, for what :class:`RowBounds` says.

    Of its first two: numbers of rows from the first one on that is not as it must be.
    """

    not_affine: Largest
    not_known: Largest
    change: Largest

    @classmethod
    def of(
        cls, num_rows: int, indices: Array, deviations: Array, changed: Array, change: Array
    ) -> "RowMaxima":
        """Maxima of a chunk, with deviations and changes on some steps, shapes (steps, n)."""
        left = num_rows - indices
        # not if NaN either
        is_affine = jnp.max(deviations, axis=0) < 1.0
        return cls(
            Largest(jnp.max(jnp.where(is_affine, 0, left))),
            Largest(jnp.max(jnp.where(jnp.any(changed, axis=0), left, 0))),
            Largest(change),
        )

    def rows(self, num_rows: int) -> tuple[Array, Array, Array]:
        """First rows, -1 if there is none, and the change."""
        first = [jnp.where(n.value > 0, num_rows - n.value, -1) for n in self[:2]]
        return first[0], first[1], self.change.value


def remainder_bounds(curved: Array, total: Array, is_curved: Array, order: int) -> Array:
    """Bounds psi of some rows, of their ``Parts``, shape (n,).

    A bound of zero says that the remainder is zero: of a polynomial of the order of the expansion,
    of a weight of zero, or of a row that does not see the position. What is less than floats hold
    is rounded up, and what is more is infinite.
    """
    psi = (norms(curved) ** (order + 1) + total) / math.factorial(order + 1)
    psi = jnp.where(jnp.isnan(psi), jnp.inf, psi)
    return jnp.where(is_curved, jnp.maximum(psi, 1e-30), psi)
