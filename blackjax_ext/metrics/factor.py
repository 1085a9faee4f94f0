r"""What the samplers and the warm-up ask of a metric.

A factor represents a positive definite metric ``G`` through ``R = G^{-1/2}`` (any matrix with
``R R^T = G^{-1}``) and ``R^{-1}``. It is a pytree, so it travels in a state. The preconditioner
that BlackJAX calls ``inverse_mass_matrix``, an estimate of the posterior covariance, is ``G^{-1}``.

A structure is a class. A new one (an arrow, a low rank plus a diagonal) is a subclass of
:class:`Factor`, and nothing else changes.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from blackjax_ext.types import Function


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

    def dense(self, like: Array) -> Any:
        """The same as a `Dense`, for positions as flat and of the dtype as `like`, (D,)."""
        raise self._lacks("matrices")

    def diagonal(self) -> Any:
        """The `Diagonal` metric with the same marginal standard deviations."""
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

    def num_prior_draws(self, size: int) -> float | Array:
        """How many effective draws the metric before a window counts for, (D,) if that varies."""
        raise self._lacks("second moments")

    def shrink(self, covariance: Array, weights: Array) -> "Factor":
        """The metric with the whitened inverse ``w S + (1 - w) I``, in the coordinates of x.

        `covariance` is S, what draws that this metric whitens have for covariance, and `weights`
        are w for each coordinate, shape (D,). Where S is of no use this metric stays.
        """
        raise self._lacks("second moments")

    def balanced(self, covariance: Array, curvature: Array, num_draws: Array) -> "Factor":
        r"""The metric whose whitened inverse is the geometric mean of S and :math:`C^{-1}`.

        `covariance` is S, of draws that this metric whitens, and `curvature` is C, of their
        whitened gradients ``R^T g``; what comes of it has the least Fisher divergence. Where they
        are of no use this metric stays.
        """
        raise self._lacks("second moments of gradients")

    # whether it is learned from draws and gradients as they are, not from their second moments
    learns_from_rows: ClassVar[bool] = False

    def of_rows(self, draws: Array, gradients: Array, num_rows: Array) -> "Factor":
        """The metric of least Fisher divergence for the first `num_rows` rows, both (N, D)."""
        raise self._lacks("rows")

    def compose(self, inner: "Factor") -> "Factor":
        """The metric with ``R = R_self R_inner``: `inner` in the coordinates that this whitens."""
        raise self._lacks("products")

    def scaled(self, ratio: Array) -> "Factor":
        """The metric in coordinates that are `ratio`, (D,), times as long."""
        raise self._lacks("other coordinates")

    def through(self, function: Function, x: Array, ratio: Array) -> "Factor":
        """The metric in coordinates ``function(x)``, for draws about `x`, (D,).

        `ratio`, (D,), is by how much each coordinate is longer: most structures keep no more.
        """
        del function, x
        return self.scaled(ratio)

    def _lacks(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not know {what}.")


class KeepsVariances(Factor):
    """What keeps of second moments the variances alone."""

    def products(self, z: Array) -> Array:
        """Sums of squares, shape (D,)."""
        return jnp.sum(z**2, axis=0)

    def covariance(self, products: Array, mean: Array) -> Array:
        """Variances, shape (D,)."""
        return products - mean**2

    def variances(self, covariance: Array) -> Array:
        """The same."""
        return covariance
