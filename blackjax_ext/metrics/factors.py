r"""Factors of the metrics that shape a Langevin proposal.

A factor represents a positive definite metric ``G`` through ``R = G^{-1/2}`` (any matrix with
``R R^T = G^{-1}``) and ``R^{-1}``. It is a pytree, so it travels in a state. The preconditioner
that BlackJAX calls ``inverse_mass_matrix``, an estimate of the posterior covariance, is ``G^{-1}``.

A structure is a class: what the samplers and the warm-up ask of a metric are its methods. A new one
(an arrow, a low rank plus a diagonal) is a subclass of :class:`Factor` here, and nothing else
changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.checks import check_positive

__all__ = [
    "IDENTITY",
    "Composed",
    "Dense",
    "Diagonal",
    "Factor",
    "InverseMassMatrix",
    "ScaledEigen",
    "Spectral",
    "absolute",
    "factorize",
    "from_eigen",
    "from_precision",
    "rank_one",
    "scaled_eigen",
    "spectral",
    "triangular",
]


class Factor:
    """A metric ``G`` by ``R`` with ``R R^T = G^{-1}``; each structure is a subclass.

    The first group of methods is what a sampler needs, the second what the warm-up needs too.
    """

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``; leading axes of `z` are batches."""
        raise self._lacks("R z")

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        raise self._lacks("R^T g")

    def sqrt_times(self, r: Array) -> Array:
        """``R^{-1} r``."""
        raise self._lacks("R^{-1} r")

    def inverse_times(self, v: Array) -> Array:
        """``G^{-1} v``."""
        return self.inverse_sqrt_times(self.inverse_sqrt_transpose_times(v))

    def times(self, v: Array) -> Array:
        """``G v``."""
        raise self._lacks("G v")

    def log_det(self, size: int) -> Array:
        """``log |G|`` in `size` dimensions."""
        raise self._lacks("log |G|")

    def root(self) -> Array:
        """``R``, shape (D, D), or its diagonal if that is all there is."""
        raise self._lacks("R")

    def inverse(self) -> Array:
        """``G^{-1}``, shape (D, D), or its diagonal if that is all there is."""
        raise self._lacks("G^{-1}")

    def precision(self, size: int) -> Array:
        """``G``, shape (D, D), or its diagonal (D,) if that is all there is."""
        raise self._lacks("G")

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions."""
        raise self._lacks("a size")

    def at(self, like: Array) -> "Factor":
        """The same for positions as flat and of the dtype as `like`, (D,)."""
        raise self._lacks("arrays")

    def dense(self, like: Array) -> "Dense":
        """The same with full matrices, for positions as flat and of the dtype as `like`, (D,)."""
        raise self._lacks("matrices")

    def diagonal(self) -> "Diagonal":
        """The diagonal metric with the same marginal standard deviations."""
        raise self._lacks("marginal standard deviations")

    def products(self, z: Array) -> Array:
        """Sum over the rows of `z`, (n, D), of ``z z^T``, as much of it as the structure keeps."""
        raise self._lacks("second moments")

    def covariance(self, products: Array, mean: Array) -> Array:
        """Mean products about `mean` instead of the origin."""
        raise self._lacks("second moments")

    def variances(self, covariance: Array) -> Array:
        """Diagonal of what :meth:`covariance` returns, shape (D,)."""
        raise self._lacks("second moments")

    def num_prior_draws(self, size: int) -> float:
        """How many effective draws the metric before a window counts for."""
        raise self._lacks("second moments")

    def shrink(self, covariance: Array, weights: Array) -> "Factor":
        """The metric with the whitened inverse ``w S + (1 - w) I``, in the coordinates of x.

        `covariance` is S, what draws that this metric whitens have for covariance, and `weights`
        are w for each coordinate, shape (D,). Where S is of no use this metric stays.
        """
        raise self._lacks("second moments")

    def compose(self, inner: "Factor") -> "Factor":
        """The metric with ``R = R_self R_inner``: `inner` in the coordinates that this whitens."""
        raise self._lacks("products")

    def _lacks(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not know {what}.")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Diagonal(Factor):
    """Metric with ``R = diag(inverse_sqrt)``.

    Attributes
    ----------
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

    def times(self, v: Array) -> Array:
        """``G v``."""
        return v / jnp.square(self.inverse_sqrt)

    def log_det(self, size: int) -> Array:
        """``log |G|`` in `size` dimensions."""
        logs = jnp.log(self.inverse_sqrt)
        return -2.0 * (size * logs if logs.ndim == 0 else jnp.sum(logs))

    def root(self) -> Array:
        """Diagonal of ``R``."""
        return jnp.asarray(self.inverse_sqrt)

    def inverse(self) -> Array:
        """Diagonal of ``G^{-1}``."""
        return jnp.square(self.inverse_sqrt)

    def precision(self, size: int) -> Array:
        """Diagonal of ``G``, shape (D,)."""
        return jnp.broadcast_to(jnp.asarray(self.inverse_sqrt) ** -2.0, (size,))

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions: a scalar is one of any."""
        return jnp.shape(self.inverse_sqrt) in ((), (size,))

    def at(self, like: Array) -> "Diagonal":
        """The same with a standard deviation for each coordinate of `like`, (D,)."""
        return Diagonal(jnp.broadcast_to(self.inverse_sqrt, like.shape).astype(like.dtype))

    def dense(self, like: Array) -> "Dense":
        """The same with full matrices."""
        return triangular(jnp.diag(self.at(like).inverse_sqrt))

    def diagonal(self) -> "Diagonal":
        """The same."""
        return self

    def products(self, z: Array) -> Array:
        """Sums of squares, shape (D,)."""
        return jnp.sum(z**2, axis=0)

    def covariance(self, products: Array, mean: Array) -> Array:
        """Variances, shape (D,)."""
        return products - mean**2

    def variances(self, covariance: Array) -> Array:
        """The same."""
        return covariance

    def num_prior_draws(self, size: int) -> float:
        """5: a variance is known from few draws."""
        del size
        return 5.0

    def shrink(self, covariance: Array, weights: Array) -> "Diagonal":
        """See :meth:`Factor.shrink`; a coordinate whose variance is of no use stays."""
        blend = weights * covariance + 1 - weights
        usable = jnp.where(jnp.isfinite(blend) & (blend > 0), blend, 1.0)
        return Diagonal(self.inverse_sqrt * jnp.sqrt(usable))

    def compose(self, inner: Factor) -> Factor:
        """See :meth:`Factor.compose`."""
        if isinstance(inner, Diagonal):
            return Diagonal(self.inverse_sqrt * inner.inverse_sqrt)
        assert isinstance(inner, (Dense, Spectral))
        return self.dense(inner.inverse_sqrt[0]).compose(inner)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense(Factor):
    """Metric with a full factor ``R``.

    Attributes
    ----------
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

    def times(self, v: Array) -> Array:
        """``G v``."""
        return (v @ self.sqrt.T) @ self.sqrt

    def log_det(self, size: int) -> Array:
        """``log |G|``."""
        del size
        return self.log_determinant

    def root(self) -> Array:
        """``R``."""
        return self.inverse_sqrt

    def inverse(self) -> Array:
        """``G^{-1}``."""
        return self.inverse_sqrt @ self.inverse_sqrt.T

    def precision(self, size: int) -> Array:
        """``G``."""
        del size
        return self.sqrt.T @ self.sqrt

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions."""
        return jnp.shape(self.inverse_sqrt) == (size, size)

    def at(self, like: Array) -> "Dense":
        """The same."""
        del like
        return self

    def dense(self, like: Array) -> "Dense":
        """The same."""
        del like
        return self

    def diagonal(self) -> Diagonal:
        """The diagonal metric with the same marginal standard deviations."""
        return Diagonal(jnp.linalg.norm(self.inverse_sqrt, axis=-1))

    def products(self, z: Array) -> Array:
        """Sums of products, shape (D, D)."""
        return z.T @ z

    def covariance(self, products: Array, mean: Array) -> Array:
        """Covariance, shape (D, D)."""
        return products - jnp.outer(mean, mean)

    def variances(self, covariance: Array) -> Array:
        """Diagonal of the covariance."""
        return jnp.diagonal(covariance)

    def num_prior_draws(self, size: int) -> float:
        """D + 5."""
        return size + 5.0

    def shrink(self, covariance: Array, weights: Array) -> "Dense":
        """See :meth:`Factor.shrink`; with the mean weight, because the blend must be a metric."""
        weight, eye = jnp.mean(weights), jnp.eye(weights.size, dtype=weights.dtype)
        blend = weight * covariance + (1 - weight) * eye
        new = self.compose(triangular(jnp.linalg.cholesky(blend)))
        is_finite = jnp.isfinite(new.inverse_sqrt).all() & jnp.isfinite(new.sqrt).all()
        return jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), new, self)

    def compose(self, inner: Factor) -> "Dense":
        """See :meth:`Factor.compose`."""
        full = inner.dense(self.sqrt[0])
        return Dense(
            self.inverse_sqrt @ full.inverse_sqrt,
            full.sqrt @ self.sqrt,
            self.log_determinant + full.log_determinant,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Spectral(Factor):
    """Metric by its eigenvectors ``Q``: ``R = Q diag(1 / scale)``, half the memory of a dense one.

    Attributes
    ----------
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

    def times(self, v: Array) -> Array:
        """``G v``."""
        return (jnp.square(self.scale) * (v @ self.vectors)) @ self.vectors.T

    def log_det(self, size: int) -> Array:
        """``log |G|``."""
        del size
        return 2.0 * jnp.sum(jnp.log(self.scale))

    def root(self) -> Array:
        """``R``."""
        return self.inverse_sqrt

    def inverse(self) -> Array:
        """``G^{-1}``."""
        return self.inverse_sqrt @ self.inverse_sqrt.T

    def precision(self, size: int) -> Array:
        """``G``."""
        del size
        return self.sqrt.T @ self.sqrt

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions."""
        return jnp.shape(self.vectors) == (size, size)

    def at(self, like: Array) -> "Dense":
        """The same with full matrices, which can be adapted."""
        return self.dense(like)

    def dense(self, like: Array) -> "Dense":
        """The same with full matrices."""
        return Dense(self.inverse_sqrt, self.sqrt, self.log_det(like.size))

    def diagonal(self) -> Diagonal:
        """The diagonal metric with the same marginal standard deviations."""
        return self.dense(self.scale).diagonal()

    def compose(self, inner: Factor) -> Dense:
        """See :meth:`Factor.compose`."""
        return self.dense(self.scale).compose(inner)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Composed(Factor):
    """Metric with ``R = L C``, without ``R^{-1}``: what a step in a constant metric needs.

    Attributes
    ----------
    outer
        Factor with ``L``.
    inverse_sqrt
        ``C``, shape (D, D), or its diagonal (D,).
    """

    outer: Factor
    inverse_sqrt: Array

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``."""
        inner = self.inverse_sqrt @ z if self.inverse_sqrt.ndim == 2 else self.inverse_sqrt * z
        return self.outer.inverse_sqrt_times(inner)

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        g = self.outer.inverse_sqrt_transpose_times(g)
        return g @ self.inverse_sqrt if self.inverse_sqrt.ndim == 2 else self.inverse_sqrt * g

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions."""
        return self.outer.fits(size)


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
    A :class:`Factor`. Cost: O(D), or D^3/3 for a covariance.
    """
    if inverse_mass_matrix is None:
        return IDENTITY
    factor, shape = as_factor(inverse_mass_matrix)
    if size is not None and not factor.fits(size):
        raise ValueError(
            f"inverse_mass_matrix must fit a position of {size} dimensions; got shape {shape}."
        )
    return factor


def as_factor(inverse_mass_matrix: Array | Factor) -> tuple[Factor, tuple[int, ...]]:
    """The factor of variances or of a covariance, and their shape."""
    if isinstance(inverse_mass_matrix, Factor):
        return inverse_mass_matrix, jnp.shape(jax.tree.leaves(inverse_mass_matrix)[0])
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
