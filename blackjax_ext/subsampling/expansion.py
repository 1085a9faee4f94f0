r"""The expansion of a posterior of linear predictors at its mode: all that grows with N, done once.

Notation and bounds are those of :mod:`blackjax_ext.subsampling.predictors`. :func:`expand` finds
the mode by Newton's method, sums gradient and Hessian of the rows there, bounds each row's
remainder by :math:`\psi_i |w|^{k+1}`, and makes the alias table that draws rows in proportion to
:math:`\psi_i`. Each is a pass over the rows in chunks. What a step needs of it later costs
:math:`D^2`, or the rows that it reads.

The table draws rows with probabilities :math:`\hat{p}_i` that float32 can represent. So the bounds
that are kept are :math:`\Psi \hat{p}_i`, with :math:`\Psi` large enough that none of them is below
its :math:`\psi_i`: rounding costs a thousandth of the rows, not exactness.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position
from blackjax_ext.metrics.factors import Dense
from blackjax_ext.subsampling.alias_table import AliasTable, build
from blackjax_ext.subsampling.mode import check_curvature, posterior_mode
from blackjax_ext.subsampling.predictors import (
    LinearPredictor,
    chunk_length,
    derivatives,
    designs,
    over_chunks,
)

__all__ = ["Expansion", "expand", "surrogate", "whitened"]

# smallest share of the mean bound that a row has in the alias table, whose steps are 2^-23
FLOOR = 1e-3
# what rounding may take from a bound
MARGIN = {jnp.dtype("float32"): 1e-4, jnp.dtype("float64"): 1e-10}
NOT_AFFINE = (
    "predict_fn must be affine in the position, as in row @ theta: the predictor of row {} changes "
    "by more than its Jacobian says. acceptance.full_pass() does without."
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Expansion:
    """Expansion of the rows at an anchor, with bounds of what it leaves.

    posterior
        What is expanded; None while it travels without its data.
    position
        The anchor a, a pytree like the position.
    gradient, hessian
        Derivatives of minus the log likelihood of all rows there, shapes (D,) and (D, D).
    whitener
        Takes x - a to w, shape (P, D), of the P coordinates that the rows see.
    metric
        Factor of the posterior's curvature at the anchor, as `inverse_mass_matrix` of a sampler.
    bound
        psi_i, shape (N,).
    threshold, alias
        Alias table that draws rows in proportion to their bounds, shapes (N,).
    total
        Psi, the sum of the bounds.
    order
        k, 1 or 2.
    """

    posterior: LinearPredictor | None
    position: ArrayTree
    gradient: Array
    hessian: Array
    whitener: Array
    metric: Dense
    bound: Array
    threshold: Array
    alias: Array
    total: Array
    order: int = field(metadata={"static": True})

    @property
    def table(self) -> AliasTable:
        """The table, for :func:`blackjax_ext.subsampling.alias_table.draw`."""
        return AliasTable(self.threshold, self.alias, self.bound)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.bound.shape[-1]

    def of(self, posterior: LinearPredictor) -> "Expansion":
        """The same with its posterior."""
        return replace(self, posterior=posterior)

    def without_data(self) -> "Expansion":
        """The same without its posterior, to travel in a state."""
        return replace(self, posterior=None)


def expand(
    posterior: LinearPredictor, start: ArrayLikeTree, *, order: int = 2, find_mode: bool = True
) -> Expansion:
    r"""Expand the rows of a posterior at its mode, and bound what the expansion leaves.

    Parameters
    ----------
    posterior
        Of :func:`blackjax_ext.potentials.linear_predictor`.
    start
        Where the search for the mode begins: a pytree like the position.
    order
        Order of the expansion, 2 or 1. With 2 a test reads of the order of
        :math:`P^3 / \sqrt N` rows, with 1 of the order of :math:`P^2`.
    find_mode
        False to expand at `start` itself. Any anchor is exact; far from the mode, tests read more.

    Returns
    -------
    The expansion. Cost: per step of Newton's method (about ten) a pass of :math:`N K D^2` products
    over the rows, then one more for the bounds. Memory: a chunk of rows, and 12 bytes for each.

    Raises
    ------
    ValueError, TypeError
        For an order that is not 1 or 2, a start that is empty or not floating, predictors that are
        not affine, a position without a proper mode (no curvature there, or none within 60 steps:
        separable data without a prior).
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; got {order!r}.")
    position = check_position(start)
    if find_mode:
        position = posterior_mode(posterior, position)
    found = derivatives(posterior, position)
    metric = check_curvature(found)
    whitener, scale = whitening(metric, np.asarray(found.is_seen))
    bounds, deviation = row_bounds(posterior, position, scale, metric, order=order)
    check_affine(deviation)
    dtype = found.gradient.dtype
    bound, table = table_of(np.asarray(bounds, np.float64), MARGIN[dtype])
    return Expansion(
        posterior,
        position,
        found.gradient,
        found.hessian,
        whitener,
        metric,
        jnp.asarray(bound, dtype),
        jnp.asarray(table.threshold),
        jnp.asarray(table.alias),
        jnp.asarray(bound.sum(), dtype),
        order,
    )


def whitening(metric: Dense, is_seen: np.ndarray) -> tuple[Array, Array]:
    """Maps x - a to w and w to the seen coordinates of x - a, shapes (P, D) and (D, P)."""
    seen = np.flatnonzero(is_seen)
    if not seen.size:
        raise ValueError("predict_fn must depend on the position; its Jacobian is zero everywhere.")
    covariance = np.asarray(metric.inverse(), np.float64)[np.ix_(seen, seen)]
    root = np.linalg.cholesky(0.5 * (covariance + covariance.T))
    whitener, scale = np.zeros((seen.size, is_seen.size)), np.zeros((is_seen.size, seen.size))
    whitener[:, seen], scale[seen] = np.linalg.inv(root), root
    dtype = metric.sqrt.dtype
    return jnp.asarray(whitener, dtype), jnp.asarray(scale, dtype)


def norms(matrices: Array) -> Array:
    """Upper bounds of the operator norms of `matrices`, shape (n, K, P); exact for K = 1."""
    size = jnp.sqrt(jnp.sum(jnp.square(matrices), axis=(1, 2)))
    if matrices.shape[1] == 1:
        return size
    # scaled first, because the fourth power of a small number is zero in float32
    unit = matrices / jnp.where(size > 0, size, 1.0)[:, None, None]
    gram = unit @ jnp.swapaxes(unit, 1, 2)
    return size * jnp.sqrt(jnp.linalg.norm(gram @ gram, axis=(1, 2))) ** 0.5


@partial(jax.jit, static_argnames="order")
def row_bounds(
    posterior: LinearPredictor, position: ArrayTree, scale: Array, metric: Dense, *, order: int
) -> tuple[Array, Array]:
    """Bounds psi of all rows, shape (N,), and how far their predictors are from affine, (N,).

    The latter is the largest deviation of a predictor from its expansion, in units of what rounding
    explains, over steps of several lengths and directions.
    """
    x, unravel = ravel_pytree(position)
    keys = jax.random.split(jax.random.key(0))
    noise = jax.random.normal(keys[0], (2, x.size), x.dtype)
    steps = jnp.concatenate([metric.inverse_sqrt_times(noise), noise, -10.0 * noise[:1]])

    def visit(indices, is_new):
        del is_new
        matrix, eta, rows = designs(posterior, position, indices)
        most = jax.vmap(partial(posterior.bound, order))(rows)
        psi = most * norms(matrix @ scale) ** (order + 1) / math.factorial(order + 1)
        base = jax.vmap(lambda e: ravel_pytree(e)[0])(eta)

        def deviation(step):
            moved = posterior.read(unravel(x + step), indices)[0]
            moved = jax.vmap(lambda e: ravel_pytree(e)[0])(moved)
            size = jnp.abs(base) + jnp.abs(matrix) @ (jnp.abs(x) + jnp.abs(step))
            off = jnp.abs(moved - base - matrix @ step)
            return jnp.max(off / jnp.maximum(size, jnp.finfo(x.dtype).tiny), axis=1)

        deviations = jnp.max(jax.lax.map(deviation, steps), axis=0)
        return (), (psi, deviations)

    length = chunk_length(posterior, position)
    psi, deviations = over_chunks(visit, posterior.num_rows, length)[1]
    return psi, deviations / (100 * x.size**0.5 * jnp.finfo(x.dtype).eps)


def check_affine(deviation: Array) -> None:
    """Raise ValueError if a predictor is not affine in the position."""
    is_affine = np.asarray(deviation) < 1.0  # not if NaN
    if not is_affine.all():
        raise ValueError(NOT_AFFINE.format(int(np.argmin(is_affine))))


def table_of(psi: np.ndarray, margin: float) -> tuple[np.ndarray, AliasTable]:
    """Alias table for bounds `psi`, shape (N,), and the bounds that it implements, none below."""
    if not psi.any():  # polynomials of the order of the expansion: no row is ever drawn
        return np.zeros_like(psi), build(np.ones_like(psi))
    table = build(psi + FLOOR * psi.mean())
    total = (1.0 + margin) * np.max(psi / table.probability)
    return total * np.asarray(table.probability), table


def whitened(expansion: Expansion, x: ArrayTree) -> tuple[Array, Array]:
    """``x - a``, shape (D,), and w, shape (P,)."""
    d = ravel_pytree(x)[0] - ravel_pytree(expansion.position)[0]
    return d, expansion.whitener @ d


def surrogate(expansion: Expansion, x: ArrayTree) -> Array:
    """Energy with the exact prior and the expansion of the rows. Cost: D^2."""
    assert expansion.posterior is not None
    d, _ = whitened(expansion, x)
    rows = expansion.gradient @ d
    if expansion.order == 2:
        rows = rows + 0.5 * d @ (expansion.hessian @ d)
    return rows - expansion.posterior.logprior(x)
