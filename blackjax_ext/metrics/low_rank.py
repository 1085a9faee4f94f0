"""A diagonal metric with a few directions of its own: what many dimensions can afford."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from blackjax.adaptation.metric_estimators import fisher_score_low_rank
from jax import Array

from blackjax_ext.metrics.factor import Factor, KeepsVariances
from blackjax_ext.metrics.structures import Dense, Diagonal
from blackjax_ext.types import select


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRank(KeepsVariances):
    r"""Metric with :math:`G^{-1} = S (I + U (\Lambda - I) U^T) S`, S diagonal, in O(D k) a product.

    :math:`R = S (I + U (\Lambda^{1/2} - I) U^T)`. It is what BlackJAX calls a
    ``LowRankInverseMassMatrix``.

    Attributes
    ----------
    scale
        Diagonal of S, shape (D,).
    vectors
        U, orthonormal columns, shape (D, k); columns of zeros have eigenvalues of 1.
    values
        Eigenvalues, the diagonal of :math:`\Lambda`, positive, shape (k,).
    """

    learns_from_rows: ClassVar[bool] = True

    scale: Array
    vectors: Array
    values: Array

    @classmethod
    def of(cls, scale: Array, rank: int) -> "LowRank":
        """The diagonal metric of standard deviations `scale`, with room for `rank` vectors."""
        vectors = jnp.eye(scale.size, rank, dtype=scale.dtype)
        return cls(scale, vectors, jnp.ones(rank, scale.dtype))

    def _stretched(self, v: Array, by: Array) -> Array:
        """``(I + U (by - I) U^T) v``; leading axes of `v` are batches."""
        return v + ((v @ self.vectors) * (by - 1.0)) @ self.vectors.T

    def inverse_sqrt_times(self, z: Array) -> Array:
        """``R z``; leading axes of `z` are batches."""
        return self.scale * self._stretched(z, jnp.sqrt(self.values))

    def inverse_sqrt_transpose_times(self, g: Array) -> Array:
        """``R^T g``."""
        return self._stretched(self.scale * g, jnp.sqrt(self.values))

    def sqrt_times(self, r: Array) -> Array:
        """``R^{-1} r``."""
        return self._stretched(r / self.scale, 1.0 / jnp.sqrt(self.values))

    def inverse_times(self, v: Array) -> Array:
        """``G^{-1} v``."""
        return self.scale * self._stretched(self.scale * v, self.values)

    def times(self, v: Array) -> Array:
        """``G v``."""
        return self._stretched(v / self.scale, 1.0 / self.values) / self.scale

    def log_det(self, size: int) -> Array:
        """``log |G|``."""
        del size
        return -2.0 * jnp.sum(jnp.log(self.scale)) - jnp.sum(jnp.log(self.values))

    def root(self) -> Array:
        """``R``, shape (D, D)."""
        return self.inverse_sqrt_times(jnp.eye(self.scale.size, dtype=self.scale.dtype)).T

    def inverse(self) -> Array:
        """``G^{-1}``, shape (D, D)."""
        return self.inverse_times(jnp.eye(self.scale.size, dtype=self.scale.dtype))

    def precision(self, size: int) -> Array:
        """``G``, shape (D, D)."""
        return self.times(jnp.eye(size, dtype=self.scale.dtype))

    def fits(self, size: int) -> bool:
        """Whether it is a metric of `size` dimensions."""
        return jnp.shape(self.scale) == (size,)

    def at(self, like: Array) -> "LowRank":
        """The same."""
        del like
        return self

    def dense(self, like: Array) -> Dense:
        """The same with full matrices."""
        eye = jnp.eye(like.size, dtype=self.scale.dtype)
        return Dense(self.root(), self.sqrt_times(eye).T, self.log_det(like.size))

    def diagonal(self) -> Diagonal:
        """The diagonal metric with the same marginal standard deviations."""
        return Diagonal(self.scale * jnp.sqrt(1.0 + self.vectors**2 @ (self.values - 1.0)))

    def of_rows(self, draws: Array, gradients: Array, num_rows: Array) -> "LowRank":
        """See `Factor.of_rows`.

        By BlackJAX's ``fisher_score_low_rank``, after Algorithm 1 of nutpie. Where they are of no
        use this metric stays.
        """
        num_rows = jnp.clip(num_rows, 1, len(draws))
        # rows that are not there yet are filled up with those that are
        rows = jnp.arange(len(draws)) % num_rows
        # of the identity beside whitened covariances
        found = fisher_score_low_rank(
            draws[rows], gradients[rows], self.values.size, gamma=1e-3 * len(draws)
        )
        new = LowRank(found.sigma, found.U, found.lam)
        is_usable = jnp.isfinite(new.vectors).all() & (new.scale > 0).all() & (num_rows > 1)
        is_usable &= jnp.isfinite(new.values).all() & (new.values > 0).all()
        # a coordinate that never moved has no scale
        is_usable &= jnp.all(jnp.var(draws[rows], axis=0) > 0)
        return select(is_usable, new, self)

    def compose(self, inner: Factor) -> Dense:
        """See `Factor.compose`."""
        return self.dense(self.scale).compose(inner)

    def scaled(self, ratio: Array) -> "LowRank":
        """See `Factor.scaled`."""
        return replace(self, scale=self.scale * ratio)
