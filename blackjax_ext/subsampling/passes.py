"""Passes over all rows in chunks: their energy, their derivatives as arrows, those of the prior.

Sums keep their rounding errors.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import ROWS, num_blocks, shard_first_axis
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.arrowhead import Arrow, Whitening
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair, at_chunk
from blackjax_ext.subsampling.grouping import GroupedPredictor
from blackjax_ext.subsampling.predictors import LinearPredictor

MAX_CHUNK = 8192  # rows at once


class Largest(NamedTuple):
    """A term of which a pass keeps the largest of all chunks, not their sum; at least zero."""

    value: Array


def over_chunks(
    visit: Callable[[Array, Array], tuple[Any, Any]], num_rows: int, length: int
) -> tuple[Any, Any]:
    """``visit(indices, is_new) -> (terms, values)`` over all rows, `length` of a device at once.

    Terms are summed over the chunks as pairs, with their rounding errors, but for those that are
    :class:`Largest`; values, which lead with the rows of a chunk, are put together in order, in one
    array of all rows.
    """
    visit = jax.jit(visit)  # which is traced once, for its shapes and for its chunk
    blocks = num_blocks(num_rows)
    size = num_rows // blocks
    length = min(length, size)
    if blocks > 1:  # as many rows as there are would not be read by slices
        length = min(length, -(-size // 2))

    def body(carry: Any, i: Array) -> tuple[Any, None]:
        sums, kept = carry
        terms, values = at_chunk(visit, i, length, num_rows, blocks)
        first = jnp.minimum(i * length, size - length)
        put = partial(with_chunk, first=first, blocks=blocks)
        return (merged(sums, terms), jax.tree.map(put, kept, values)), None

    num_chunks = -(-size // length)
    at_once = length * blocks
    shapes, values = jax.eval_shape(visit, jnp.arange(at_once), jnp.ones(at_once, bool))
    kept = jax.tree.map(lambda v: jnp.zeros((blocks, size, *v.shape[1:]), v.dtype), values)
    kept = jax.tree.map(lambda v: shard_first_axis(v, ROWS), kept)
    first = jax.tree.map(empty_term, shapes, is_leaf=is_largest), kept
    sums, kept = jax.lax.scan(body, first, jnp.arange(num_chunks))[0]
    return sums, jax.tree.map(lambda v: v.reshape(num_rows, *v.shape[2:]), kept)


def with_chunk(all_rows: Array, some: Array, first: Array, blocks: int) -> Array:
    """Values of all rows of each block with those of a chunk of it, in the same memory."""
    some = some.reshape(blocks, -1, *some.shape[1:])
    return shard_first_axis(
        jax.lax.dynamic_update_slice_in_dim(all_rows, some, first, axis=1), ROWS
    )


def empty_term(term: Any) -> Any:
    """Zeros of the shape of a term, before the first chunk."""
    zero = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), term)
    return zero if is_largest(term) else as_pair(zero)


def merged(sums: Any, terms: Any) -> Any:
    """Terms of the chunks so far merged with those of one more."""

    def both(sum: Any, term: Any) -> Any:
        return Largest(jnp.maximum(*sum, *term)) if is_largest(sum) else add(sum, term)

    return jax.tree.map(both, sums, terms, is_leaf=lambda leaf: isinstance(leaf, (Pair, Largest)))


def is_largest(leaf: Any) -> bool:
    """Whether a leaf is a term of which the largest counts."""
    return isinstance(leaf, Largest)


def new_rows_only(is_new: Array, values: Array) -> Array:
    """`values` of rows, zero for those that have been counted."""
    return jnp.where(is_new.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


MAX_DESIGN_ENTRIES = 2**23  # in the designs of a chunk of rows
NUM_NODES = 16  # along each axis of a group, of a mean over its spread


@jax.jit
@exact_products
def energy(posterior: LinearPredictor, position: ArrayTree) -> Pair:
    """Potential energy, prior included. Cost: N rows."""
    return add(row_energy(posterior, position), -posterior.logprior(position))


@exact_products
def row_energy(posterior: LinearPredictor, position: ArrayTree) -> Pair:
    """Minus the log likelihood of all rows, up to a constant."""

    def visit(indices: Array, is_new: Array) -> tuple[Any, Any]:
        eta, rows = posterior.read(position, indices)
        return jnp.sum(new_rows_only(is_new, jax.vmap(posterior.loss)(eta, rows))), ()

    length = min(MAX_CHUNK, posterior.num_rows)
    rows: Pair = over_chunks(visit, posterior.num_rows, length)[0]
    return rows


class Design(NamedTuple):
    """Jacobians A of some rows, (n, K, p + d), with what `LinearPredictor.read` gives of them."""

    matrix: Array
    eta: Any
    rows: Any


def directions(predictor: GroupedPredictor, frame: Whitening) -> ArrayTree:
    """Tangents along each coordinate of u, and of v of all groups at once, leading with p + d.

    A row sees one group: its derivative along the latter is that by its own group.
    """
    grouping = predictor.grouping
    size, width = grouping.size, grouping.width
    dtype = frame.root.dtype
    none = jnp.zeros((width, size), dtype)

    shared = jax.vmap(grouping.join)(frame.root.T, jnp.moveaxis(frame.shear, -1, 0))
    groups = jax.vmap(grouping.join)(none, jnp.moveaxis(frame.roots, -1, 0))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), shared, groups)


def designs(
    predictor: GroupedPredictor, position: ArrayTree, frame: Whitening, indices: Array
) -> Design:
    """Some rows with their Jacobians by u and v of their own group, shape (n, K, p + d)."""
    if not predictor.has_groups:
        matrix = jacobians(predictor, position, indices) @ frame.root
        return Design(matrix, *predictor.rows.read(position, indices))
    eta, push, rows = jax.linearize(
        lambda x: predictor.rows.read(x, indices), position, has_aux=True
    )
    pushed = jax.vmap(push)(directions(predictor, frame))
    num_tangents = predictor.grouping.size + predictor.grouping.width
    flat = [leaf.reshape(num_tangents, indices.shape[0], -1) for leaf in pushed]
    return Design(jnp.moveaxis(jnp.concatenate(flat, axis=-1), 0, -1), eta, rows)


def jacobians(predictor: GroupedPredictor, position: ArrayTree, indices: Array) -> Array:
    """Jacobians of the predictors of some rows by all coordinates, shape (n, K, D).

    By K reverse passes each: where an index is beyond the end they are zero, and values are not.
    """
    x, unravel = ravel_pytree(position)

    def predictors(x: Array, i: Array) -> Array:
        return ravel_pytree(predictor.rows.read(unravel(x), i[None])[0])[0]

    matrix: Array = jax.vmap(lambda i: jax.jacrev(predictors)(x, i))(indices)
    return matrix


def chunk_length(predictor: GroupedPredictor, position: ArrayTree) -> int:
    """Number of rows that a pass reads at once."""
    eta, _ = jax.eval_shape(predictor.rows.read, position, jnp.zeros(1, int))
    grouping = predictor.grouping
    entries = sum(e.size for e in eta) * (grouping.size + grouping.width)
    most: int = max(MAX_DESIGN_ENTRIES // entries, 64)
    return min(most, MAX_CHUNK, predictor.rows.num_rows)


def row_derivatives(posterior: LinearPredictor, eta: Any, row: Any) -> tuple[Array, Array]:
    """First and second derivatives of the loss of one row by its predictors, (K,) and (K, K)."""
    flat, unravel = ravel_pytree(eta)

    def loss(flat: Array) -> Array:
        return posterior.loss(unravel(flat), row)

    return jax.grad(loss)(flat), jax.hessian(loss)(flat)


def sums_of(
    predictor: GroupedPredictor, design: Design, level: Array, is_new: Array
) -> tuple[Array, ...]:
    """Slopes and curvatures of some rows, as the fields of an :class:`Arrow`."""
    grouping = predictor.grouping
    size, num_groups = grouping.size, grouping.num_groups
    slopes, curvatures = jax.vmap(partial(row_derivatives, predictor.rows))(design.eta, design.rows)
    slopes, curvatures = new_rows_only(is_new, slopes), new_rows_only(is_new, curvatures)
    gradient = jnp.einsum("nk,nkd->nd", slopes, design.matrix)
    curved = jnp.einsum("nkl,nld->nkd", curvatures, design.matrix)
    of_shared, of_groups = design.matrix[..., :size], design.matrix[..., size:]
    num_items = of_shared.shape[0] * of_shared.shape[1]  # -1 is no shape where nothing is shared
    flat = of_shared.reshape(num_items, size)

    def by_group(values: Array) -> Array:
        return jax.ops.segment_sum(values, level, num_groups)

    return (
        gradient[:, :size].sum(0),
        by_group(gradient[:, size:]),
        flat.T @ curved[..., :size].reshape(num_items, size),
        by_group(jnp.einsum("nkd,nkp->ndp", of_groups, curved[..., :size])),
        by_group(jnp.einsum("nkd,nke->nde", of_groups, curved[..., size:])),
    )


def cubes_of(
    predictor: GroupedPredictor, design: Design, level: Array, is_new: Array
) -> tuple[Array, ...]:
    """Third derivatives of some rows, as the fields of a :class:`Cubic`."""
    size, num_groups = predictor.grouping.size, predictor.grouping.num_groups

    def third(eta: Any, row: Any) -> Array:
        flat, unravel = ravel_pytree(eta)
        by_second = jax.jacfwd(jax.hessian(lambda e: predictor.rows.loss(unravel(e), row)))
        cube: Array = by_second(flat)
        return cube

    # a weight of zero may multiply what has overflowed
    cubes = new_rows_only(is_new, jax.vmap(third)(design.eta, design.rows))
    of_shared, of_groups = design.matrix[..., :size], design.matrix[..., size:]
    by_shared = jnp.einsum("nklm,nmp->nklp", cubes, of_shared)
    by_groups = jnp.einsum("nklm,nme->nkle", cubes, of_groups)
    twice_shared = jnp.einsum("nklp,nlq->nkpq", by_shared, of_shared)
    twice_groups = jnp.einsum("nkle,nlf->nkef", by_groups, of_groups)

    def by_group(values: Array) -> Array:
        return jax.ops.segment_sum(values, level, num_groups)

    num_items = math.prod(of_shared.shape[:2])  # -1 fails where nothing is shared
    by_twice = of_shared.reshape(num_items, size).T @ twice_shared.reshape(num_items, size * size)
    return (
        by_twice.reshape([size] * 3),
        by_group(jnp.einsum("nkd,nkpq->ndpq", of_groups, twice_shared)),
        by_group(jnp.einsum("nkef,nkp->nefp", twice_groups, of_shared)),
        by_group(jnp.einsum("nkef,nkd->nefd", twice_groups, of_groups)),
    )


@exact_products
def row_arrow(
    predictor: GroupedPredictor, position: ArrayTree, frame: Whitening
) -> tuple[Arrow, Array]:
    """Derivatives of minus the log likelihood at u = v = 0, and the size of each column, (p + d,).

    Cost: a pass of N K (p + d) tangents and N K (p + d)^2 products.
    """

    def visit(indices: Array, is_new: Array) -> tuple[Any, Any]:
        design = designs(predictor, position, frame, indices)
        sums = sums_of(predictor, design, predictor.level_of(indices), is_new)
        return (*sums, jnp.max(jnp.abs(design.matrix), axis=(0, 1))), ()

    sums, _ = over_chunks(visit, predictor.rows.num_rows, chunk_length(predictor, position))
    *arrow, sizes = (total.value() for total in sums)
    return Arrow(*arrow), sizes


def plain_prior(
    predictor: GroupedPredictor, position: ArrayTree, frame: Whitening
) -> Callable[[Array, Array], Array]:
    """Minus the log prior as a function of u and v."""
    grouping = predictor.grouping
    y, b = grouping.split(position)

    def energy(u: Array, v: Array) -> Array:
        steps = frame.steps(u, v)
        return -predictor.terms(grouping.join(y + steps[0], b + steps[1])).total()

    return energy


def smoothed_prior(
    predictor: GroupedPredictor, position: ArrayTree, frame: Whitening
) -> Callable[[Array, Array], Array]:
    """The mean of that over the groups' own spread, which is one in v.

    It is taken along each axis, and is exact for quadratic functions. So kinks and spikes of a
    prior count as what they are to draws. Cost: 16 d + 1 evaluations.
    """
    plain = plain_prior(predictor, position, frame)
    points = nodes(predictor.grouping.width, frame.roots.dtype)

    def energy(u: Array, v: Array) -> Array:
        centre = plain(u, v)
        return centre + jnp.sum(jax.lax.map(lambda way: plain(u, v + way) - centre, points)) / (
            NUM_NODES
        )

    return energy


def nodes(width: int, dtype: jnp.dtype) -> Array:
    """Quantiles of a normal law along each axis, of variance one, shape (16 d, d)."""
    quantiles = scipy.stats.norm.ppf((np.arange(NUM_NODES) + 0.5) / NUM_NODES)
    quantiles /= np.sqrt(np.mean(quantiles**2))
    along = quantiles[None, :, None] * np.eye(width)[:, None]
    return jnp.asarray(along.reshape(NUM_NODES * width, width), dtype)


@exact_products
def prior_arrow(
    predictor: GroupedPredictor, position: ArrayTree, frame: Whitening, *, is_smoothed: bool
) -> Arrow:
    """Derivatives of minus the log prior at u = v = 0, or of its mean over the groups' own spread.

    Cost: p + d products with its Hessian, or p + 1 at each of 16 d points.
    """
    grouping = predictor.grouping
    size, width, num_groups = grouping.size, grouping.width, grouping.num_groups
    dtype = frame.roots.dtype
    origin = jnp.zeros(size, dtype), jnp.zeros((num_groups, width), dtype)
    plain = jax.grad(plain_prior(predictor, position, frame), (0, 1))
    gradient = plain
    if is_smoothed:
        gradient = jax.grad(smoothed_prior(predictor, position, frame), (0, 1))

    def along(du: Array, dv: Array) -> Any:
        return jax.jvp(gradient, origin, (du, dv))[1]

    shared, groups = gradient(*origin)
    none = jnp.zeros((size, num_groups, width), dtype)
    of_shared, coupling = jax.vmap(along)(jnp.eye(size, dtype=dtype), none)
    if is_smoothed:
        # the mean of second derivatives by Stein's identity: a kink has none of its own
        points = nodes(width, dtype)
        slopes = jax.lax.map(lambda way: plain(origin[0], origin[1] + way)[1], points)
        blocks = jnp.einsum("kcd,ke->cde", slopes, points) / NUM_NODES
        blocks = 0.5 * (blocks + jnp.swapaxes(blocks, 1, 2))
    else:
        units = jnp.broadcast_to(jnp.eye(width, dtype=dtype)[:, None], (width, *origin[1].shape))
        blocks = jax.vmap(along)(jnp.zeros((width, size), dtype), units)[1]
        blocks = jnp.moveaxis(blocks, 0, -1)
    return Arrow(shared, groups, of_shared, jnp.moveaxis(coupling, 0, -1), blocks)
