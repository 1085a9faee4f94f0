"""Factors of the metrics that shape a Langevin proposal.

A factor represents a positive definite metric ``G`` through ``R = G^{-1/2}`` (any matrix with
``R R^T = G^{-1}``) and ``R^{-1}``. It is a pytree, so it travels in a state. The preconditioner
that BlackJAX calls ``inverse_mass_matrix``, an estimate of the posterior covariance, is ``G^{-1}``.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.checks import check_positive

__all__ = [
    "IDENTITY",
    "Composed",
    "Dense",
    "Diagonal",
    "Factor",
    "InverseMassMatrix",
    "Spectral",
    "absolute",
    "dense",
    "factorize",
    "from_precision",
    "rank_one",
    "spectral",
    "triangular",
]


class Diagonal(NamedTuple):
    """Metric with ``R = diag(inverse_sqrt)``.

    inverse_sqrt
        Standard deviations: a scalar, which serves every coordinate, or shape (D,).
    """

    inverse_sqrt: Array | float

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``."""
        return self.inverse_sqrt * z

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        return self.inverse_sqrt * g

    def sqrt_times(self, r: Array) -> Array:
        """``R^{-1} r``."""
        return r / self.inverse_sqrt

    def log_det(self, size: int) -> Array:
        """``log |G|`` in `size` dimensions."""
        logs = jnp.log(self.inverse_sqrt)
        return -2.0 * (size * logs if logs.ndim == 0 else jnp.sum(logs))

    def inverse(self) -> Array:
        """Diagonal of ``G^{-1}``."""
        return jnp.square(self.inverse_sqrt)

    def times(self, v: Array) -> Array:
        """``G v``."""
        return v / jnp.square(self.inverse_sqrt)


class Dense(NamedTuple):
    """Metric with a full factor ``R``.

    inverse_sqrt
        ``R``, shape (D, D).
    sqrt
        ``R^{-1}``, shape (D, D): a product with it is cheaper than a solve on every device.
    log_determinant
        ``log |G|``: whoever makes a factor knows it, and to find it later would cost D^3.
    """

    inverse_sqrt: Array
    sqrt: Array
    log_determinant: Array

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``; leading axes of `z` are batches."""
        return z @ self.inverse_sqrt.T

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        return g @ self.inverse_sqrt

    def sqrt_times(self, r: Array) -> Array:
        """``R^{-1} r``."""
        return r @ self.sqrt.T

    def log_det(self, size: int) -> Array:
        """``log |G|``."""
        del size
        return self.log_determinant

    def inverse(self) -> Array:
        """``G^{-1}``."""
        return self.inverse_sqrt @ self.inverse_sqrt.T

    def times(self, v: Array) -> Array:
        """``G v``."""
        return (v @ self.sqrt.T) @ self.sqrt


class Spectral(NamedTuple):
    """Metric by its eigenvectors ``Q``: ``R = Q diag(1 / scale)``, half the memory of a dense one.

    vectors
        ``Q``, orthogonal, eigenvectors in columns, shape (D, D).
    scale
        Square roots of the eigenvalues, shape (D,).
    """

    vectors: Array
    scale: Array

    @property
    def inverse_sqrt(self) -> Array:
        """``R``, shape (D, D)."""
        return self.vectors / self.scale[..., None, :]

    @property
    def sqrt(self) -> Array:
        """``R^{-1}``, shape (D, D)."""
        return self.scale[..., None] * jnp.swapaxes(self.vectors, -1, -2)

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``; leading axes of `z` are batches."""
        return (z / self.scale) @ self.vectors.T

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        return (g @ self.vectors) / self.scale

    def sqrt_times(self, r: Array) -> Array:
        """``R^{-1} r``."""
        return (r @ self.vectors) * self.scale

    def log_det(self, size: int) -> Array:
        """``log |G|``."""
        del size
        return 2.0 * jnp.sum(jnp.log(self.scale))

    def inverse(self) -> Array:
        """``G^{-1}``."""
        return self.inverse_sqrt @ self.inverse_sqrt.T

    def times(self, v: Array) -> Array:
        """``G v``."""
        return (jnp.square(self.scale) * (v @ self.vectors)) @ self.vectors.T


class Composed(NamedTuple):
    """Metric with ``R = L C``, without ``R^{-1}``: what a step in a constant metric needs.

    outer
        Factor with ``L``.
    inverse_sqrt
        ``C``, shape (D, D), or its diagonal (D,).
    """

    outer: Diagonal | Dense | Spectral
    inverse_sqrt: Array

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``."""
        inner = self.inverse_sqrt @ z if self.inverse_sqrt.ndim == 2 else self.inverse_sqrt * z
        return self.outer.inverse_sqrt_times(inner)

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        g = self.outer.inverse_sqrt_transpose_times(g)
        return g @ self.inverse_sqrt if self.inverse_sqrt.ndim == 2 else self.inverse_sqrt * g


Factor: TypeAlias = Diagonal | Dense | Spectral
# a Python float has no dtype of its own: float32 positions stay float32 under x64
IDENTITY = Diagonal(1.0)
InverseMassMatrix: TypeAlias = Array | Factor | None


def factorize(inverse_mass_matrix: InverseMassMatrix, size: int | None = None) -> Factor:
    """Factor of the metric whose inverse is `inverse_mass_matrix`.

    Parameters
    ----------
    inverse_mass_matrix
        None (identity), variances of shape (D,), a covariance of shape (D, D), or a factor, which
        is returned as it is: who steps many times factorizes once.
    size
        D, if it is known: a metric of another size raises ValueError.

    Returns
    -------
    A :class:`Diagonal` or :class:`Dense` factor. Cost: O(D), or D^3/3 for a covariance.
    """
    if inverse_mass_matrix is None:
        return IDENTITY
    factor: Factor
    if isinstance(inverse_mass_matrix, (Diagonal, Dense, Spectral, Composed)):
        factor, shape = inverse_mass_matrix, jnp.shape(inverse_mass_matrix.inverse_sqrt)
    else:
        covariance = jnp.asarray(inverse_mass_matrix)
        shape = covariance.shape
        if len(shape) not in (1, 2) or len(set(shape)) != 1:
            raise ValueError(
                "inverse_mass_matrix must be None, of shape (D,) or of shape (D, D); "
                f"got shape {shape}."
            )
        if len(shape) == 1:
            check_positive("inverse_mass_matrix", covariance)
            factor = Diagonal(jnp.sqrt(covariance))
        else:
            factor = triangular(cholesky(covariance))
    if size is not None and shape not in ((), (size,), (size, size)):
        raise ValueError(
            f"inverse_mass_matrix must fit a position of {size} dimensions; got shape {shape}."
        )
    return factor


def cholesky(covariance: Array) -> Array:
    """Lower triangular factor; ValueError for a matrix that is seen not to be a covariance."""
    factor = jnp.linalg.cholesky(covariance)
    if not isinstance(covariance, jax.core.Tracer):
        if not jnp.allclose(covariance, covariance.T) or not jnp.isfinite(factor).all():
            raise ValueError(
                f"inverse_mass_matrix must be symmetric and positive definite; got\n{covariance}"
            )
    return factor


def triangular(cholesky: Array) -> Dense:
    """Dense factor from a lower triangular `cholesky` with ``G^{-1} = cholesky cholesky^T``."""
    identity = jnp.eye(cholesky.shape[0], dtype=cholesky.dtype)
    inverse = jax.scipy.linalg.solve_triangular(cholesky, identity, lower=True)
    return Dense(cholesky, inverse, -2.0 * jnp.sum(jnp.log(jnp.diagonal(cholesky))))


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


def dense(factor: Factor, like: Array) -> Dense:
    """`factor` with full matrices, for positions as flat and of the dtype as `like`, (D,)."""
    if isinstance(factor, Dense):
        return factor
    if isinstance(factor, Spectral):
        return Dense(factor.inverse_sqrt, factor.sqrt, factor.log_det(like.size))
    scales = jnp.broadcast_to(factor.inverse_sqrt, like.shape).astype(like.dtype)
    return triangular(jnp.diag(scales))


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
