"""The structures of a metric: diagonal, dense, in blocks, by eigenvectors, composed of two."""

from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.metrics.factor import Factor, KeepsVariances
from blackjax_ext.precision import exact_products
from blackjax_ext.types import Function, select

D = TypeVar("D", bound="Dense")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Diagonal(KeepsVariances):
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

    def num_prior_draws(self, size: int) -> float:
        """5: a variance is known from few draws."""
        del size
        return 5.0

    def shrink(self, covariance: Array, weights: Array) -> "Diagonal":
        """See `Factor.shrink`; a coordinate whose variance is of no use stays."""
        blend = weights * covariance + 1 - weights
        usable = jnp.where(jnp.isfinite(blend) & (blend > 0), blend, 1.0)
        return Diagonal(self.inverse_sqrt * jnp.sqrt(usable))

    def balanced(self, covariance: Array, curvature: Array, num_draws: Array) -> "Diagonal":
        """See `Factor.balanced`."""
        return Diagonal(self.inverse_sqrt * balance(covariance, curvature, num_draws))

    def scaled(self, ratio: Array) -> "Diagonal":
        """See `Factor.scaled`."""
        return Diagonal(self.inverse_sqrt * ratio)

    def compose(self, inner: Factor) -> Factor:
        """See `Factor.compose`."""
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
        # jnp.diagonal gathers it by indices, which takes XLA two kernels
        return jnp.sum(covariance, axis=0, where=jnp.eye(len(covariance), dtype=bool))

    def num_prior_draws(self, size: int) -> float | Array:
        """D + 5."""
        return size + 5.0

    def shrink(self, covariance: Array, weights: Array) -> "Dense":
        """See `Factor.shrink`; with the mean weight, because the blend must be a metric."""
        weight, eye = jnp.mean(weights), jnp.eye(weights.size, dtype=weights.dtype)
        blend = weight * covariance + (1 - weight) * eye
        return if_finite(self.compose(triangular(jnp.linalg.cholesky(blend))), self)

    def balanced(self, covariance: Array, curvature: Array, num_draws: Array) -> "Dense":
        """See `Factor.balanced`; more of the identity is added the fewer draws there are."""
        scale = balance(jnp.diagonal(covariance), jnp.diagonal(curvature), num_draws)
        # of the identity, for as many draws as dimensions
        ridge = 0.1 * scale.size / num_draws * jnp.eye(scale.size, dtype=scale.dtype)
        mean = geometric_mean(
            covariance / scale[:, None] / scale + ridge, curvature * scale[:, None] * scale + ridge
        )
        old = Dense(self.inverse_sqrt, self.sqrt, self.log_determinant)
        return if_finite(self.compose(mean.scaled(scale)), old)

    def scaled(self, ratio: Array) -> "Dense":
        """See `Factor.scaled`."""
        return replace(
            self,
            inverse_sqrt=ratio[:, None] * self.inverse_sqrt,
            sqrt=self.sqrt / ratio,
            log_determinant=self.log_determinant - 2.0 * jnp.sum(jnp.log(ratio)),
        )

    @exact_products
    def through(self, function: Function, x: Array, ratio: Array) -> "Dense":
        """See `Factor.through`; by slopes between places a standard deviation to both sides.

        The function need not have derivatives: a model may lack those of one mode or the other.
        """
        axes = self.inverse_sqrt.T
        rise = jax.vmap(function)(x + axes) - jax.vmap(function)(x - axes)
        slopes = 0.5 * rise.T @ self.sqrt
        new = replace(
            self,
            inverse_sqrt=0.5 * rise.T,
            sqrt=self.sqrt @ jnp.linalg.inv(slopes),
            log_determinant=self.log_determinant - 2.0 * jnp.linalg.slogdet(slopes)[1],
        )
        return if_finite(new, self.scaled(ratio))

    @exact_products
    def compose(self, inner: Factor) -> "Dense":
        """See `Factor.compose`."""
        full = inner.dense(self.sqrt[0])
        return Dense(
            self.inverse_sqrt @ full.inverse_sqrt,
            full.sqrt @ self.sqrt,
            self.log_determinant + full.log_determinant,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks(Dense):
    """Dense metric without correlations between blocks of coordinates.

    It is kept as full matrices with zeros, so it costs what a dense one does; what it saves are
    draws: a warm-up has fewer covariances to learn.

    Attributes
    ----------
    labels
        Number of the block of each coordinate, shape (D,).
    """

    labels: Array

    @classmethod
    def of(cls, metric: Dense, labels: Array) -> "Blocks":
        """The blocks of the covariance of `metric`."""
        covariance = jnp.where(are_together(labels), metric.inverse(), 0.0)
        return cls._in_blocks(triangular(jnp.linalg.cholesky(covariance)), labels)

    @classmethod
    def _in_blocks(cls, metric: Dense, labels: Array) -> "Blocks":
        """`metric`, which is one of blocks, as such."""
        return cls(metric.inverse_sqrt, metric.sqrt, metric.log_determinant, labels)

    def through(self, function: Function, x: Array, ratio: Array) -> "Dense":
        """See `Factor.through`; the map would tie blocks together."""
        del function, x
        return self.scaled(ratio)

    def balanced(self, covariance: Array, curvature: Array, num_draws: Array) -> "Blocks":
        """See `Factor.balanced`; within the blocks."""
        is_together = are_together(self.labels)
        covariance, curvature = (
            jnp.where(is_together, each, 0.0) for each in (covariance, curvature)
        )
        return self._in_blocks(super().balanced(covariance, curvature, num_draws), self.labels)

    def num_prior_draws(self, size: int) -> Array:
        """The size of each coordinate's block and 5, shape (D,)."""
        del size
        return jnp.sum(are_together(self.labels), axis=1) + 5.0

    def shrink(self, covariance: Array, weights: Array) -> "Blocks":
        """See `Factor.shrink`; with the mean weight of each block."""
        is_together = are_together(self.labels)
        weight = is_together @ weights / jnp.sum(is_together, axis=1)
        eye = jnp.eye(weights.size, dtype=weights.dtype)
        # the weights of a block are equal, so the blend is symmetric
        blend = jnp.where(is_together, weight * covariance + (1 - weight) * eye, 0.0)
        new = self._in_blocks(self.compose(triangular(jnp.linalg.cholesky(blend))), self.labels)
        return if_finite(new, self)


def if_finite(new: D, old: D) -> D:
    """`new`, or `old` where its factors are not finite: no Cholesky factor was found."""
    is_finite = jnp.isfinite(new.inverse_sqrt).all() & jnp.isfinite(new.sqrt).all()
    return select(is_finite, new, old)


def are_together(labels: Array) -> Array:
    """Whether two coordinates are of one block, shape (D, D)."""
    return labels[:, None] == labels[None, :]


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
        """See `Factor.compose`."""
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


def triangular(cholesky: Array) -> Dense:
    """Dense factor from a lower triangular `cholesky` with ``G^{-1} = cholesky cholesky^T``."""
    identity = jnp.eye(cholesky.shape[0], dtype=cholesky.dtype)
    inverse = jax.scipy.linalg.solve_triangular(cholesky, identity, lower=True)
    return Dense(cholesky, inverse, -2.0 * jnp.sum(jnp.log(jnp.diagonal(cholesky))))


def balance(variances: Array, curvatures: Array, num_draws: Array) -> Array:
    r"""Sds :math:`(v / c)^{1/4}` by the variances of draws and of gradients; 1 if of no use.

    Each is the least in Fisher divergence of a diagonal metric. A chain that has moved along a part
    of a normal only gives the same: there the gradient is the distance over the variance.
    """
    is_usable = jnp.isfinite(variances) & (variances > 0)
    is_usable &= jnp.isfinite(curvatures) & (curvatures > 0)
    logs = jnp.log(jnp.where(is_usable, variances, 1.0))
    logs -= jnp.log(jnp.where(is_usable, curvatures, 1.0))
    # of five draws as much is believed as of what was known before
    return jnp.exp(0.25 * num_draws / (num_draws + 5.0) * logs)


def geometric_mean(covariance: Array, curvature: Array) -> Dense:
    r"""The metric whose inverse M is midway between S and :math:`C^{-1}`: ``M C M = S``."""
    values, vectors = jnp.linalg.eigh(curvature)
    root = jnp.sqrt(jnp.maximum(values, jnp.finfo(values.dtype).eps * values[-1]))
    half = (vectors * root) @ vectors.T
    squares, turned = jnp.linalg.eigh(half @ covariance @ half)
    squares = jnp.maximum(squares, jnp.finfo(values.dtype).eps * squares[-1])
    quarter = squares**0.25
    inverse_half = (vectors / root) @ vectors.T
    log_determinant = 2.0 * jnp.sum(jnp.log(root)) - 0.5 * jnp.sum(jnp.log(squares))
    sqrt = (turned.T / quarter[:, None]) @ half
    return Dense(inverse_half @ (turned * quarter), sqrt, log_determinant)
