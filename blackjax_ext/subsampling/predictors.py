r"""Posteriors whose rows depend on the position through linear predictors alone.

.. math::
    U(x) = -\log p(x) + \sum_{i=1}^N \phi_i(\eta_i(x)), \qquad \eta_i(x) = A_i x + b_i \in
    \mathbb{R}^K,

with any prior and rows of a family of :mod:`blackjax_ext.families`: linear, logistic,
count, duration, ordinal and robust regression with whatever scales and shapes are sampled, and
multilevel ones among them.

*Expansion.* At an anchor :math:`a`, with :math:`d = x - a = L w` and :math:`t_i = A_i d`, a row is
its expansion of order k = 1 or 2 and a remainder,

.. math::
    r_i(x) = \phi_i(\eta_i) - \phi_i(a_i) - \nabla\phi_i(a_i)^T t_i
    \;[ - \tfrac12 t_i^T \nabla^2\phi_i(a_i) t_i ], \qquad |r_i(x)| \le \psi_i |w|^{k+1},

where :math:`a_i = \eta_i(a)`, with the bounds :math:`\psi_i` of
:mod:`blackjax_ext.subsampling.row_bounds`. The columns of :math:`L` are the Cholesky factor of the
covariance that the curvature at the anchor implies, of the coordinates that the rows see: then
:math:`|w|^2` is about their number. Summed over the rows, the expansions are one gradient and one
Hessian. The prior is never expanded.

*Remainders in single precision.* A remainder of 1e-8 cannot be had as a difference of numbers near
one. Within the reach of its family it is the integral :math:`\int_0^1 \frac{(1-s)^k}{k!}
\frac{d^{k+1}}{ds^{k+1}} \phi_i(a_i + s t_i)\, ds` by a Gauss-Legendre rule of five points, and the
difference beyond, where it is large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import count_rows
from blackjax_ext.meshes import ROWS, num_blocks, shard_first_axis
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.compensated_sums import Pair, add, as_pair
from blackjax_ext.rows.consecutive import at_chunk
from blackjax_ext.subsampling.families import Family, Kind
from blackjax_ext.types import Function, LogDensity

__all__ = [
    "Derivatives",
    "Design",
    "Largest",
    "LinearPredictor",
    "Responses",
    "designs",
    "energy",
    "has_changed",
    "jacobians",
    "linear_predictor",
    "loss_remainder",
    "over_chunks",
    "whitened_derivatives",
]

MAX_DESIGN_ENTRIES = 2**23  # in the designs of a chunk of rows
MAX_CHUNK = 8192
LEGENDRE_NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)
LEGENDRE_NODES, WEIGHTS = 0.5 + 0.5 * LEGENDRE_NODES, 0.5 * WEIGHTS  # on (0, 1)
THREE = LEGENDRE_NODES[[0, 2, 4]]
# values at all nodes from those at three of them, by the parabola through these
PARABOLA = np.zeros((5, 5))
PARABOLA[:, [0, 2, 4]] = np.vander(LEGENDRE_NODES, 3) @ np.linalg.inv(np.vander(THREE, 3))
# how far a parabola may be off for the rule to be trusted: of the integral of sizes, or in all
OFF, OFF_IN_ALL = 0.01, 1e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearPredictor:
    """A posterior of the kind above; see :func:`linear_predictor`.

    Attributes
    ----------
    logprior
        Log density of everything that is not a row: pytree to scalar.
    read
        ``read(x, indices) -> (eta, rows)``. Both are tuples with an entry for each of `kinds`:
        predictors, affine in x, of shape (n, m, k) for m responses in a row that have k predictors
        each; and what their losses need, a `Responses`.
    kinds
        Families of the responses.
    num_rows
        Number of rows, N.
    """

    logprior: Callable[[ArrayTree], Array]
    read: Callable[[ArrayTree, Array], tuple[Any, Any]]
    kinds: tuple[Kind, ...] = field(metadata={"static": True})
    num_rows: int = field(metadata={"static": True})

    def loss(self, eta: Any, row: Any) -> Array:
        """Minus the log likelihood of one row up to a constant."""
        terms = [
            jnp.sum(part.weight * jax.vmap(kind.call)(e, part.y, part.parameters))
            for kind, e, part in zip(self.kinds, eta, row, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def rounding(self, eta: Any, row: Any) -> Array:
        """Rounding of the predictors of one row, flat, in units of eps; of families where known."""
        roundings = [
            jax.vmap(kind.roundings)(e, part.parameters).ravel()
            for kind, e, part in zip(self.kinds, eta, row, strict=True)
        ]
        return jnp.concatenate(roundings)

    def reach(self, eta: Any, row: Any) -> Array:
        """Changes of the predictors of one row, flat, within which quadrature is accurate."""
        reaches = [
            jax.vmap(kind.reaches)(e, part.y, part.parameters).ravel()
            for kind, e, part in zip(self.kinds, eta, row, strict=True)
        ]
        return jnp.concatenate(reaches)


class Responses(NamedTuple):
    """Responses of one kind, of rows that have m of them.

    Attributes
    ----------
    y
        Values, shape (n, m).
    parameters
        Known parameters of the family by name, shapes (n, m).
    weight
        What their log likelihoods are multiplied by, shape (n, m).
    """

    y: Array
    parameters: dict[str, Array]
    weight: Array


def linear_predictor(
    logprior_fn: LogDensity,
    family: Family,
    data: tuple[ArrayLikeTree, ArrayLikeTree],
    *,
    predict_fn: Function = lambda x, row: row @ x,
) -> LinearPredictor:
    r"""A posterior whose rows depend on the position through linear predictors.

    Parameters
    ----------
    logprior_fn
        Log density of the prior: pytree to scalar. It is never expanded or left out.
    family
        Of :mod:`blackjax_ext.families`: the law of a response given its predictor.
    data
        Covariates, a pytree of arrays, and responses, an array; all lead with the N rows.
    predict_fn
        ``predict_fn(x, row)``, the predictors of a row of the covariates: a scalar, or shape (k,)
        for the k that the family leaves free (of a categorical response, its logits). They must be
        affine in x, which `expand` checks.

    Returns
    -------
    The posterior, to be expanded with :func:`blackjax_ext.potentials.expand`.

    Raises
    ------
    ValueError, TypeError
        For data without rows or with different numbers of rows, a family that is none, parameters
        of a family that are neither one number nor one per row.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import acceptance, families, potentials
    >>> x = jax.random.normal(jax.random.key(0), (20_000, 3))
    >>> y = jax.random.bernoulli(jax.random.key(1), jax.nn.sigmoid(x[:, 0])).astype(jnp.float32)
    >>> posterior = potentials.linear_predictor(
    ...     lambda theta: -0.5 * jnp.sum(theta**2), families.bernoulli(), (x, y)
    ... )
    >>> expansion = potentials.expand(posterior, jnp.zeros(3))
    >>> amagold = blackjax_ext.amagold(
    ...     potentials.expanded_minibatch(expansion, batch_size=0),
    ...     0.5,
    ...     expansion.metric,
    ...     num_integration_steps=4,
    ...     friction=0.0,
    ...     acceptance=acceptance.subsampled(expansion),
    ... )
    >>> state = amagold.init(expansion.position)
    >>> state, info = jax.jit(amagold.step)(jax.random.key(2), state)
    >>> bool(info.acceptance_rate > 0.9), int(info.num_rows) < 100
    (True, True)
    """
    if not isinstance(family, Family):
        raise TypeError(
            "family must be one that blackjax_ext.families makes, such as bernoulli(); "
            f"got {type(family).__name__}."
        )
    covariates, responses = jax.tree.map(jnp.asarray, data)
    num_rows = count_rows(data)
    parameters = jax.tree.map(jnp.asarray, dict(family.parameters))
    for name, value in parameters.items():
        if value.shape not in ((), (num_rows,)):
            raise ValueError(
                f"{name} of the family must be one number or one for each of the {num_rows} rows; "
                f"got shape {value.shape}."
            )
    read = Partial(
        partial(read_data, predict_fn, len(family.kind.free)), covariates, responses, parameters
    )
    return LinearPredictor(Partial(logprior_fn), read, (family.kind,), num_rows)


@exact_products
def read_data(
    predict_fn: Function,
    num_free: int,
    covariates: ArrayTree,
    responses: Array,
    parameters: dict[str, Array],
    x: ArrayTree,
    indices: Array,
) -> tuple[Any, Any]:
    """Predictors and responses of some rows of arrays."""
    rows = jax.tree.map(lambda a: a[indices], covariates)
    eta = jax.vmap(lambda row: jnp.atleast_1d(predict_fn(x, row)))(rows)
    if eta.ndim != 2 or num_free not in (0, eta.shape[1]):
        raise ValueError(
            f"predict_fn must return the {num_free or 'K'} predictors that the family leaves free, "
            f"in one axis; got shape {eta.shape[1:]}."
        )
    of_rows = {
        name: (value[indices] if value.ndim else jnp.broadcast_to(value, indices.shape))[:, None]
        for name, value in parameters.items()
    }
    weight = jnp.ones((*indices.shape, 1), eta.dtype)
    return (eta[:, None],), (Responses(responses[indices][:, None], of_rows, weight),)


def loss_remainder(posterior: LinearPredictor, order: int, eta: Any, t: Any, row: Any) -> Array:
    """Loss of a row less its expansion of order `order` at the predictors `eta`.

    `t` is the change of the predictors. Cost: a dozen evaluations of the loss.
    """

    def along(s: Array) -> tuple[Array, ...]:
        return (posterior.loss(jax.tree.map(lambda e, c: e + s * c, eta, t), row),)

    upto: AlongLine = along  # all derivatives along t, up to the order of the expansion
    for _ in range(order):
        upto = with_derivative(upto)
    dtype = jnp.result_type(*jax.tree.leaves(t))
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    (far,) = along(one)
    for power, known in enumerate(upto(zero)):
        far = far - known / math.factorial(power)
    weights = jnp.asarray(WEIGHTS * (1 - LEGENDRE_NODES) ** order / math.factorial(order), dtype)
    is_near = jnp.all(jnp.abs(ravel_pytree(t)[0]) <= posterior.reach(eta, row))
    values = jax.vmap(lambda s: with_derivative(upto)(s)[-1])(jnp.asarray(LEGENDRE_NODES, dtype))
    if any(kind.guesses_reach for kind in posterior.kinds):
        is_near = is_near & is_resolved(weights, values)
    return jnp.where(is_near, weights @ values, far)


def is_resolved(weights: Array, values: Array) -> Array:
    """Whether a parabola through three of the values has nearly their integral.

    A reach that is found along each predictor says nothing of a product of two.
    """
    off = jnp.abs(weights @ (values - jnp.asarray(PARABOLA, values.dtype) @ values))
    return off <= jnp.maximum(OFF * (weights @ jnp.abs(values)), OFF_IN_ALL)


AlongLine: TypeAlias = Callable[[Array], tuple[Array, ...]]


def with_derivative(function: AlongLine) -> AlongLine:
    """A function's values, and the derivative of the last of them."""

    def both(s: Array) -> tuple[Array, ...]:
        values, slopes = jax.jvp(function, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return both


class Design(NamedTuple):
    """Rows with their Jacobians.

    Attributes
    ----------
    matrix
        A, shape (n, K, D).
    eta
        Predictors, as `LinearPredictor.read` gives them.
    rows
        Responses, as it gives them.
    """

    matrix: Array
    eta: Any
    rows: Any


def jacobians(posterior: LinearPredictor, position: ArrayTree, indices: Array) -> Array:
    """Jacobians of the predictors of some rows, shape (n, K, D), by K reverse passes each."""
    x, unravel = ravel_pytree(position)

    def predictors(x: Array, i: Array) -> Array:
        eta = posterior.read(unravel(x), i[None])[0]
        return ravel_pytree(eta)[0]

    matrix: Array = jax.vmap(lambda i: jax.jacrev(predictors)(x, i))(indices)
    return matrix


def designs(posterior: LinearPredictor, position: ArrayTree, indices: Array) -> Design:
    """Some rows at `position` with the Jacobians of their predictors."""
    return Design(jacobians(posterior, position, indices), *posterior.read(position, indices))


def chunk_length(posterior: LinearPredictor, position: ArrayTree) -> int:
    """Rows at once in a pass that takes their Jacobians."""
    eta, _ = jax.eval_shape(posterior.read, position, jnp.zeros(1, int))
    entries = sum(e.size for e in eta) * ravel_pytree(position)[0].size
    most: int = max(MAX_DESIGN_ENTRIES // entries, 64)
    return min(most, MAX_CHUNK, posterior.num_rows)


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

    return jax.tree.map(both, sums, terms, is_leaf=lambda leaf: is_pair(leaf) or is_largest(leaf))


def is_largest(leaf: Any) -> bool:
    """Whether a leaf is a term of which the largest counts."""
    return isinstance(leaf, Largest)


def is_pair(leaf: Any) -> bool:
    """Whether a leaf is a number with what its rounding left."""
    return isinstance(leaf, Pair)


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


def new_rows_only(is_new: Array, values: Array) -> Array:
    """`values` of rows, zero for those that have been counted."""
    return jnp.where(is_new.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


@jax.jit
@exact_products
def energy(posterior: LinearPredictor, position: ArrayTree) -> Pair:
    """Potential energy, prior included. Cost: N rows."""

    def visit(indices: Array, is_new: Array) -> tuple[Any, Any]:
        eta, rows = posterior.read(position, indices)
        return jnp.sum(new_rows_only(is_new, jax.vmap(posterior.loss)(eta, rows))), ()

    length = min(MAX_CHUNK, posterior.num_rows)
    rows = over_chunks(visit, posterior.num_rows, length)[0]
    return add(rows, -posterior.logprior(position))


class Derivatives(NamedTuple):
    """Derivatives of the energy at a position, by the coordinates u of ``x + R u``.

    Attributes
    ----------
    gradient
        Gradient of the energy of the rows alone, shape (D,).
    hessian
        Their Hessian, shape (D, D).
    prior_gradient
        Gradient of minus the log prior, shape (D,).
    prior_hessian
        Its Hessian, shape (D, D).
    is_seen
        Whether the predictors of any row depend on a coordinate of x, shape (D,).
    """

    gradient: Array
    hessian: Array
    prior_gradient: Array
    prior_hessian: Array
    is_seen: Array


def row_derivatives(posterior: LinearPredictor, eta: Any, row: Any) -> tuple[Array, Array]:
    """First and second derivatives of the loss of one row by its predictors, (K,) and (K, K)."""
    flat, unravel = ravel_pytree(eta)

    def loss(flat: Array) -> Array:
        return posterior.loss(unravel(flat), row)

    return jax.grad(loss)(flat), jax.hessian(loss)(flat)


def summed_derivatives(
    posterior: LinearPredictor, matrix: Array, eta: Any, rows: Any, is_new: Array
) -> tuple[Array, Array]:
    """Gradient and Hessian of some rows by u, of which `matrix` (n, K, P) is their Jacobian."""
    slopes, curvatures = jax.vmap(partial(row_derivatives, posterior))(eta, rows)
    gradient = jnp.einsum("nk,nkd->d", new_rows_only(is_new, slopes), matrix)
    curved = jnp.einsum("nkl,nld->nkd", new_rows_only(is_new, curvatures), matrix)
    size = matrix.shape[-1]
    return gradient, matrix.reshape(-1, size).T @ curved.reshape(-1, size)


@exact_products
def whitened_derivatives(
    posterior: LinearPredictor, position: ArrayTree, root: Array
) -> Derivatives:
    """First and second derivatives at u = 0, by the coordinates of a root R, shape (D, D).

    Cost: a pass over N rows, of N K D (K + 2 D) products.
    """
    x, unravel = ravel_pytree(position)

    def visit(indices: Array, is_new: Array) -> tuple[Any, Any]:
        matrix, eta, rows = designs(posterior, position, indices)
        sums = summed_derivatives(posterior, matrix @ root, eta, rows, is_new)
        return (*sums, jnp.max(jnp.abs(matrix), axis=(0, 1))), ()

    length = chunk_length(posterior, position)
    sums = over_chunks(visit, posterior.num_rows, length)[0]
    gradient, hessian, size = (sum.value() for sum in sums)

    def prior(u: Array) -> Array:
        return -posterior.logprior(unravel(x + root @ u))

    zero = jnp.zeros_like(x)
    prior_hessian = jax.hessian(prior)(zero)
    return Derivatives(gradient, hessian, jax.grad(prior)(zero), prior_hessian, size > 0)
