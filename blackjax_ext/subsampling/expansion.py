r"""The expansion of a posterior of linear predictors at its mode: all that grows with N, done once.

Notation and bounds are those of :mod:`blackjax_ext.subsampling.predictors` and
:mod:`blackjax_ext.subsampling.row_bounds`. :func:`expand` finds the mode by Newton's method, sums
gradient and Hessian of the rows there, bounds each row's remainder by :math:`\psi_i |w|^{k+1}`
where :math:`|w| \le R`, and makes the alias table that draws rows in proportion to
:math:`\psi_i`. Each is a pass over the rows in chunks. What a step needs of it later costs
:math:`D^2`, or the rows that it reads.

*Precision.* Gradient and Hessian are kept in whitened coordinates, :math:`L^T g` and
:math:`L^T H L`, summed from the rows :math:`A_i L` in the pass that bounds them. With uncentred
covariates :math:`g^T d` and :math:`\tfrac12 d^T H d` are small differences of large numbers: in
float32, at a mean of 1000 standard deviations, the latter is off by more than itself. In
:math:`w` the curvature of the posterior is the identity and nothing cancels; what is left is the
rounding of w itself. :func:`blackjax_ext.subsampling.mode.check_resolution` says up to where that
is enough, and raises beyond.

The table draws rows with probabilities :math:`\hat{p}_i` that float32 can represent. So the bounds
that are kept are :math:`\Psi \hat{p}_i`, with :math:`\Psi` large enough that none of them is below
its :math:`\psi_i`: rounding costs a thousandth of the rows, not exactness.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_position
from blackjax_ext.meshes import blocks_over_rows, on_host
from blackjax_ext.metrics import Dense
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.subsampling.alias_table import AliasTable, blocks, columns, realized
from blackjax_ext.subsampling.mode import (
    PosteriorPasses,
    check_curvature,
    check_rest,
    in_dtype,
    posterior_mode,
    resolved,
)
from blackjax_ext.subsampling.predictors import LinearPredictor
from blackjax_ext.subsampling.row_bounds import radius_of, row_bounds

__all__ = ["Expansion", "expand", "surrogate", "whitened"]

# smallest share of the mean bound that a row has in the alias table, whose steps are 2^-23
MIN_BOUND_SHARE = 1e-3
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

    posterior
        What is expanded; None while it travels without its data.
    position
        The anchor a, a pytree like the position.
    slope, curvature
        Derivatives of minus the log likelihood of all rows there by w, shapes (P,) and (P, P).
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
    radius
        R: the bounds hold up to this norm of w.
    order
        k, 1 or 2.
    """

    posterior: LinearPredictor | None
    position: ArrayTree
    slope: Array
    curvature: Array
    whitener: Array
    metric: Dense
    bound: Array
    threshold: Array
    alias: Array
    total: Array
    radius: Array
    order: int = field(metadata={"static": True})

    @property
    def table(self) -> AliasTable:
        """The table, for :func:`blackjax_ext.subsampling.alias_table.draw`."""
        return AliasTable(self.threshold, self.alias)

    @property
    def gradient(self) -> Array:
        """Gradient of minus the log likelihood of all rows at the anchor, shape (D,)."""
        return self.slope @ self.whitener

    @property
    def hessian(self) -> Array:
        """Its Hessian there, shape (D, D)."""
        return self.whitener.T @ self.curvature @ self.whitener

    @property
    def num_rows(self) -> int:
        """N."""
        return self.bound.shape[-1]

    def of(self, posterior: LinearPredictor) -> "Expansion":
        """The expansion with its posterior."""
        return replace(self, posterior=posterior)

    def without_data(self) -> "Expansion":
        """The expansion without its posterior, to travel in a state."""
        return replace(self, posterior=None)


def expand(
    posterior: LinearPredictor,
    start: ArrayLikeTree,
    *,
    order: int = 2,
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
    order
        Order of the expansion, 2 or 1. With 2 a test reads of the order of
        :math:`P^3 / \sqrt N` rows, with 1 of the order of :math:`P^2`.
    find_mode
        False to expand at `start` itself. Any anchor is exact; far from the mode, tests read more.
    say
        Called with a few words before each pass over the rows, such as ``print``.
    place
        Takes bound, threshold and alias of all rows from the host, one after the other, to where
        chains index them with the numbers of rows: by default to the devices.

    Returns
    -------
    The expansion. Cost: per step of Newton's method (about ten) a pass of :math:`N K D^2` products
    over the rows, then one more for the bounds. Memory: a chunk of rows, and 12 bytes for each of
    all rows (16 in double precision), which a mesh with an axis "rows" divides
    (``blackjax_ext.meshes``).

    Raises
    ------
    ValueError, TypeError
        For an order that is not 1 or 2, a start that is empty or not floating, predictors that are
        not affine, a position without a proper mode (no curvature there, or none within 60 steps:
        separable data without a prior), a posterior so correlated that floats do not resolve it
        (uncentred covariates; :func:`blackjax_ext.subsampling.mode.check_resolution`).
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; got {order!r}.")
    x, unravel = ravel_pytree(check_position(start))
    passes = PosteriorPasses(posterior, unravel, say)
    stationary = posterior_mode(passes, x) if find_mode else resolved(passes.derivatives, x)
    position, dtype = unravel(jnp.asarray(stationary.x)), stationary.x.dtype
    metric = check_curvature(stationary)
    whitener, scale = whitening(metric, passes.is_seen, dtype)
    step = stationary.step if find_mode else np.zeros_like(stationary.step)
    passes.announce("bounding them")
    bounds = compiled_soon(partial(row_bounds, order=order), runs_once=True)
    rows = bounds(posterior, position, scale, in_dtype(metric, dtype), step)
    check_rest(stationary, float(on_host(rows.change)))
    check_constant_data(rows.not_known)
    check_affine(rows.not_affine)
    slope, curvature, psi = rows.slope, rows.curvature, np.array(on_host(rows.psi))
    del rows  # the other copy of the bounds
    psi, table = table_of(psi, MARGIN[dtype])
    radius = radius_of(posterior, whitener.shape[0]) if psi.any() else math.inf
    total = psi.sum(dtype=np.float64)
    # one after the other, so that only one of them is there twice
    of_rows = [psi, *table]
    del psi, table
    bound, threshold, alias = (place(of_rows.pop(0)) for _ in range(3))
    return Expansion(
        posterior,
        position,
        slope,
        curvature,
        whitener,
        in_dtype(metric, dtype),
        bound,
        threshold,
        alias,
        jnp.asarray(total, dtype),
        jnp.asarray(radius, dtype),
        order,
    )


def whitening(metric: Dense, is_seen: np.ndarray, dtype: Any) -> tuple[Array, Array]:
    """Maps x - a to w and w to the seen coordinates of x - a, shapes (P, D) and (D, P).

    The first is the inverse of the second as it is rounded.
    """
    seen = np.flatnonzero(is_seen)
    if not seen.size:
        raise ValueError("predict_fn must depend on the position; its Jacobian is zero everywhere.")
    half = np.asarray(metric.inverse_sqrt)[seen]
    # the factor of a covariance by orthogonal steps alone, which square no condition number
    upper = np.linalg.qr(half.T)[1]
    root = np.asarray(upper.T * np.sign(np.diagonal(upper)), dtype).astype(np.float64)
    whitener, scale = np.zeros((seen.size, is_seen.size)), np.zeros((is_seen.size, seen.size))
    whitener[:, seen], scale[seen] = np.linalg.inv(root), root
    return jnp.asarray(whitener, dtype), jnp.asarray(scale, dtype)


def check_affine(row: Array) -> None:
    """Raise ValueError if there is a first row whose predictor is not affine in the position."""
    if (first := int(on_host(row))) >= 0:
        raise ValueError(NOT_AFFINE.format(first))


def check_constant_data(row: Array) -> None:
    """Raise ValueError if what a loss needs beside its predictors changes, in a first row."""
    if (first := int(on_host(row))) >= 0:
        raise ValueError(NOT_KNOWN.format(first))


def table_of(psi: np.ndarray, margin: float) -> tuple[np.ndarray, AliasTable]:
    """Alias table for bounds `psi`, shape (N,), and the bounds that it implements, none below.

    They take the place of `psi`: with the table that is 12 bytes a row, and a few megabytes.
    """
    if not psi.any():  # polynomials of the order of the expansion: no row is ever drawn
        return psi, columns(np.ones_like(psi))
    if not np.isfinite(psi).all():  # more than floats hold: no move is cheap, all rows are read
        psi[:] = np.inf
        return psi, columns(np.ones_like(psi))
    table = columns(psi, MIN_BOUND_SHARE * psi.mean(dtype=np.float64))
    parts = list(blocks(psi.size, max(MIN_PART, psi.size // MAX_PARTS)))
    total = (1.0 + margin) * max(np.max(psi[part] / realized(*table, part)) for part in parts)
    for part in parts:
        psi[part] = total * realized(*table, part)
    return psi, table


@exact_products
def whitened(expansion: Expansion, x: ArrayTree) -> tuple[Array, Array]:
    """``x - a``, shape (D,), and w, shape (P,)."""
    d = ravel_pytree(x)[0] - ravel_pytree(expansion.position)[0]
    return d, expansion.whitener @ d


@exact_products
def surrogate(expansion: Expansion, x: ArrayTree) -> Array:
    """Energy with the exact prior and the expansion of the rows, in whitened coordinates.

    Cost: D^2.
    """
    assert expansion.posterior is not None
    _, w = whitened(expansion, x)
    rows = expansion.slope @ w
    if expansion.order == 2:
        rows = rows + 0.5 * w @ (expansion.curvature @ w)
    return rows - expansion.posterior.logprior(x)
