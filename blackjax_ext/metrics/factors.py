"""Factors of metrics: from what a user gives, from a precision, from a spectrum."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax import Array

from blackjax_ext.checks import check_positive
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.metrics.structures import (
    IDENTITY,
    Dense,
    Diagonal,
    Spectral,
    triangular,
)
from blackjax_ext.precision import exact_products

InverseMassMatrix: TypeAlias = Array | Factor | LowRankInverseMassMatrix | None


def factorize(inverse_mass_matrix: InverseMassMatrix, size: int | None = None) -> Factor:
    """Factor of the metric whose inverse is `inverse_mass_matrix`.

    Parameters
    ----------
    inverse_mass_matrix
        None (identity), variances of shape (D,), or (1,) for the same in all dimensions, a
        covariance of shape (D, D), what BlackJAX's low-rank adaptation finds, or a factor, which is
        returned as it is: who steps many times factorizes once.
    size
        D, if it is known: a metric of another size raises ValueError.

    Returns
    -------
    A :class:`Factor`. Cost: O(D), or D^3/3 for a covariance.
    """
    if inverse_mass_matrix is None:
        return IDENTITY
    factor, shape = as_factor(inverse_mass_matrix)
    if shape == (1,) and size != 1 and isinstance(factor, Diagonal):
        return Diagonal(jnp.asarray(factor.inverse_sqrt)[0])
    if size is not None and not factor.fits(size):
        raise ValueError(
            f"inverse_mass_matrix must fit a position of {size} dimensions; got shape {shape}."
        )
    return factor


def as_factor(
    inverse_mass_matrix: Array | Factor | LowRankInverseMassMatrix,
) -> tuple[Factor, tuple[int, ...]]:
    """The factor of variances or of a covariance, and their shape."""
    if isinstance(inverse_mass_matrix, LowRankInverseMassMatrix):
        inverse_mass_matrix = LowRank(*inverse_mass_matrix)
    if isinstance(inverse_mass_matrix, Factor):
        return inverse_mass_matrix, jnp.shape(jax.tree.leaves(inverse_mass_matrix)[0])
    if callable(inverse_mass_matrix) or isinstance(inverse_mass_matrix, tuple):
        raise TypeError(
            "inverse_mass_matrix must be an array, a factor or what BlackJAX's low-rank adaptation "
            f"finds; got {type(inverse_mass_matrix).__name__}."
        )
    covariance = jnp.asarray(inverse_mass_matrix)
    if covariance.ndim not in (1, 2) or len(set(covariance.shape)) != 1:
        raise ValueError(
            "inverse_mass_matrix must be None, of shape (D,) or of shape (D, D); "
            f"got shape {covariance.shape}."
        )
    if covariance.ndim == 2:
        return triangular(cholesky(covariance)), covariance.shape
    check_positive("inverse_mass_matrix", covariance)
    return Diagonal(jnp.sqrt(covariance)), covariance.shape


def cholesky(covariance: Array) -> Array:
    """Lower triangular factor; ValueError for a matrix that is seen not to be a covariance."""
    factor: Array = jnp.linalg.cholesky(covariance)
    if not isinstance(covariance, jax.core.Tracer):
        if not jnp.allclose(covariance, covariance.T) or not jnp.isfinite(factor).all():
            raise ValueError(
                f"inverse_mass_matrix must be symmetric and positive definite; got\n{covariance}"
            )
    return factor


def from_precision(precision: Array) -> Factor:
    """Factor of the metric `precision`, of shape (D,) or (D, D); NaN unless positive definite.

    With ``precision = C C^T`` the square root is ``C^T``: one Cholesky and one triangular inverse.
    The matrix is scaled to a unit diagonal first, and gets as much on the diagonal as rounding may
    have taken: far out, an information matrix is singular to the digits of float32.
    """
    if precision.ndim == 1:
        return Diagonal(jnp.where(precision > 0, precision, jnp.nan) ** -0.5)
    size = precision.shape[0]
    diagonal = jnp.diagonal(precision)
    scale = jnp.where(diagonal > 0, diagonal, jnp.nan) ** 0.5
    ridge = 2 * size * jnp.finfo(precision.dtype).eps * jnp.eye(size, dtype=precision.dtype)
    root = triangular(jnp.linalg.cholesky(precision / scale[:, None] / scale + ridge))
    return Dense(
        root.sqrt.T / scale[:, None],
        root.inverse_sqrt.T * scale,
        2.0 * jnp.sum(jnp.log(scale)) - root.log_determinant,
    )


def spectral(curvature: Array, spectrum: Callable[[Array], Array]) -> Factor:
    """Metric with the eigenvectors of `curvature` and `spectrum` of its eigenvalues.

    Parameters
    ----------
    curvature
        Symmetric matrix of shape (K, K), usually minus a Hessian. For K = 1 no eigenvalue problem
        is solved.
    spectrum
        Elementwise function with positive values.
    """
    if curvature.shape[0] == 1:
        return Diagonal(spectrum(curvature[0, 0]) ** -0.5)
    return from_eigen(spectrum, *jnp.linalg.eigh(curvature))


def from_eigen(spectrum: Callable[[Array], Array], eigenvalues: Array, vectors: Array) -> Spectral:
    """Metric with `spectrum` of the `eigenvalues` on the columns of `vectors`."""
    return Spectral(vectors, spectrum(eigenvalues) ** 0.5)


def absolute(curvature: Array, floor: float) -> Factor:
    """Metric ``|curvature|`` with eigenvalues no smaller than `floor` > 0; see :func:`spectral`."""
    return spectral(curvature, lambda values: jnp.maximum(jnp.abs(values), floor))


class ScaledEigen(NamedTuple):
    """Eigenvalues and vectors of ``S A S``, the symmetric matrix A scaled to a unit diagonal.

    scale
        Diagonal of S, shape (D,).
    values
        Eigenvalues, ascending, shape (D,).
    vectors
        Eigenvectors in columns, shape (D, D).
    """

    scale: Any
    values: Any
    vectors: Any

    def absolute(self, floor: float) -> Dense:
        """The metric ``|A|``: absolute values of the eigenvalues, none below `floor`."""
        xp = np if isinstance(self.values, np.ndarray) else jnp
        root = xp.maximum(xp.abs(self.values), floor) ** 0.5
        return Dense(
            self.scale[:, None] * self.vectors / root,
            root[:, None] * self.vectors.T / self.scale,
            2.0 * xp.sum(xp.log(root / self.scale)),
        )


def scaled_eigen(matrix: Any) -> ScaledEigen:
    """Spectrum of a symmetric matrix in coordinates that give it a unit diagonal.

    In the digits of float32 the eigenvalues of a regression on unscaled covariates would drown in
    rounding. A matrix of numpy is taken apart on the host in its own precision. Cost: D^3.
    """
    xp = np if isinstance(matrix, np.ndarray) else jnp
    size = xp.abs(xp.diagonal(matrix))
    scale = xp.where(size > 0, size, 1.0) ** -0.5
    return ScaledEigen(scale, *xp.linalg.eigh(scale[:, None] * matrix * scale))


@exact_products
def rank_one(factor: Dense, a: Array, c: Array, delta: Array) -> Dense:
    r"""Factor of the metric with the inverse :math:`a (R R^T + c\, \delta \delta^T)` in O(D^2).

    With :math:`u = R^{-1} \delta` that is :math:`a R (I + c\, u u^T) R^T`, and
    :math:`(I + \beta u u^T)^2 = I + c\, u u^T` for :math:`\beta = c / (1 + \sqrt{1 + c |u|^2})`. So
    :math:`R` becomes :math:`\sqrt{a} (R + \beta \delta u^T)`: products and sums of arrays, where a
    triangular factor would need a loop over its columns.
    """
    u = factor.sqrt_times(delta)
    growth = jnp.sqrt(1.0 + c * (u @ u))
    beta, root = c / (1.0 + growth), jnp.sqrt(a)
    inverse_sqrt = root * (factor.inverse_sqrt + beta * jnp.outer(delta, u))
    sqrt = (factor.sqrt - beta / growth * jnp.outer(u, u @ factor.sqrt)) / root
    log_determinant = factor.log_determinant - delta.size * jnp.log(a) - 2.0 * jnp.log(growth)
    return Dense(inverse_sqrt, sqrt, log_determinant)


def check_metric(metric: Factor) -> None:
    """Raise ValueError for a metric that is seen not to be finite; traced ones are let through."""
    leaves = jax.tree.leaves(metric)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return
    if not all(map(is_finite, leaves)):
        raise ValueError(
            "the metric must be finite, symmetric and positive definite at the start; got one that "
            f"is not, with the factor\n{leaves[0]}\nStart where the Hessian or the information is "
            "finite, or give another metric_fn."
        )


def is_finite(leaf: Array) -> bool:
    """Whether all entries are; by NumPy, which compiles nothing, unless others hold some."""
    is_here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    return bool((np if is_here else jnp).isfinite(leaf).all())
