r"""Metrics that depend on the position, and the factors that represent them.

A metric function is called as ``metric_fn(logdensity_fn, position)`` and returns a metric at that
position, as a factor or a matrix (D, D) in the order of ``ravel_pytree``. The samplers work in
coordinates whitened by `inverse_mass_matrix` :math:`= L L^T`, where a metric :math:`M` of the
position is :math:`L^T M L`; there the floors and :math:`\alpha` of the Hessian metrics are
measured, so they do not depend on the units of the parameters.

With :math:`A = -\nabla^2 \log \pi = Q \Lambda Q^T` in those coordinates:

=====================  ===============================================================
`clipped_hessian`      :math:`Q \max(\Lambda, \delta) Q^T`
`absolute_hessian`     :math:`Q \max(|\Lambda|, \delta) Q^T`
`softabs_hessian`      :math:`Q \Lambda \coth(\alpha \Lambda) Q^T` (Betancourt 2013)
`diagonal_hessian`     :math:`\max(|\mathrm{diag} A|, \delta)`, without eigenvalues
`fisher`               a user's Fisher information; Cholesky, without eigenvalues
=====================  ===============================================================

Where eigenvalues coincide the derivative of an eigenvector would divide by zero. That of
:math:`Q f(\Lambda) Q^T` is :math:`Q (J \circ Q^T dA\, Q) Q^T` with the divided differences
:math:`J_{ab} = (f(\lambda_a) - f(\lambda_b)) / (\lambda_a - \lambda_b)` (Daleckii and Krein).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_positive, check_scalar
from blackjax_ext.factoring import along_each, in_parts
from blackjax_ext.metrics import factors
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import from_precision
from blackjax_ext.metrics.structures import IDENTITY, Diagonal
from blackjax_ext.precision import exact_products
from blackjax_ext.types import LogDensity, Unravel


def above(floor: float, values: Array) -> Array:
    """Values, none below `floor`."""
    return jnp.maximum(values, floor)


def absolute_above(floor: float, values: Array) -> Array:
    """Absolute values, none below `floor`."""
    return jnp.maximum(jnp.abs(values), floor)


def softabs(alpha: float, values: Array) -> Array:
    """``x coth(alpha x)``, by its series about 0."""
    scaled = alpha * values
    is_small = jnp.abs(scaled) < 0.01
    series = (1.0 + scaled**2 / 3.0) / alpha
    return jnp.where(is_small, series, values / jnp.tanh(jnp.where(is_small, 1.0, scaled)))


def divided_differences(function: Callable[[Array], Array], values: Array) -> Array:
    """``(f(a) - f(b)) / (a - b)`` for all pairs of `values`; the derivative where they coincide."""
    a, b = values[:, None], values[None, :]
    gap = a - b
    middle = 0.5 * (a + b)
    closeness = jnp.finfo(values.dtype).eps ** 0.5 * (1.0 + jnp.abs(middle))
    is_close = jnp.abs(gap) < closeness
    slope = jax.jvp(function, (middle,), (jnp.ones_like(middle),))[1]
    return jnp.where(is_close, slope, (function(a) - function(b)) / jnp.where(is_close, 1.0, gap))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def matrix_function(function: Callable[[Array], Array], matrix: Array) -> Array:
    """``Q f(Lambda) Q^T`` of a symmetric matrix."""
    vectors: Array
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)) @ vectors.T


@matrix_function.defjvp
def matrix_function_jvp(
    function: Callable[[Array], Array], primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """Daleckii and Krein's formula."""
    (matrix,), (tangent,) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    inner = divided_differences(function, values) * (vectors.T @ tangent @ vectors)
    return (vectors * function(values)) @ vectors.T, vectors @ inner @ vectors.T


Flat: TypeAlias = Callable[[Array], Array]
MetricFn: TypeAlias = Callable[[LogDensity, ArrayTree], Factor | Array]


class Local(NamedTuple):
    r"""What a second-order sampler needs to know at a position.

    logdensity
        Log density.
    gradient
        Its gradient, a pytree like the position.
    metric
        Factor of the metric in whitened coordinates.
    divergence
        :math:`\sum_j \partial_j (G^{-1})_{ij}` in whitened coordinates, shape (D,); None unless
        it was asked for.
    """

    logdensity: Array
    gradient: ArrayTree
    metric: Factor
    divergence: Array | None = None


@dataclass(frozen=True)
class HessianMetric:
    """Metric made of the eigenvalues, or of the diagonal, of minus the Hessian."""

    spectrum: Callable[[Array], Array]
    is_diagonal: bool = False

    def __call__(self, logdensity_fn: LogDensity, position: ArrayLikeTree) -> Factor:
        """Metric at `position`: D Hessian-vector products, one eigenvalue problem."""
        return self.evaluate(logdensity_fn, position, IDENTITY).metric

    def evaluate(
        self,
        logdensity_fn: LogDensity,
        position: ArrayLikeTree,
        preconditioner: Factor,
        *,
        divergence: bool = False,
    ) -> Local:
        """Log density, gradient and metric: D Hessian-vector products that share one gradient."""
        x, unravel = ravel_pytree(position)
        flat_fn = flat(logdensity_fn, unravel)
        value, gradient, curvature = whitened_curvature(flat_fn, x, preconditioner)
        eigenvalues, vectors = jnp.diagonal(curvature), jnp.eye(x.size, dtype=x.dtype)
        metric: Factor = Diagonal(self.spectrum(eigenvalues) ** -0.5)
        if not self.is_diagonal and x.size > 1:
            eigenvalues, vectors = jnp.linalg.eigh(curvature)
            metric = factors.from_eigen(self.spectrum, eigenvalues, vectors)
        local = Local(value, unravel(gradient), metric)
        if not divergence:
            return local
        return local._replace(
            divergence=self._divergence(flat_fn, x, preconditioner, eigenvalues, vectors)
        )

    def _divergence(
        self, flat_fn: Flat, x: Array, preconditioner: Factor, eigenvalues: Array, vectors: Array
    ) -> Array:
        r"""Divergence of the inverse metric from D gradients of second derivatives along lines.

        It is :math:`Q c` with :math:`c_a = \sum_b J_{ab}\, q_a^T t_b`, :math:`t_b = \nabla (q_b^T A
        q_b)` and the J of :math:`1 / f`. The derivative of every entry would take D^2 of them.
        """

        def third(direction: Array) -> Array:
            return -preconditioner.inverse_sqrt_transpose_times(
                jax.grad(lambda y: second_derivative(flat_fn, y, direction))(x)
            )

        directions = preconditioner.inverse_sqrt_times(vectors.T)
        thirds = jax.vmap(partial(in_parts, third))(directions)  # rows t_b
        slopes = divided_differences(lambda values: 1.0 / self.spectrum(values), eigenvalues)
        if self.is_diagonal:
            slopes = jnp.diag(jnp.diagonal(slopes))
        return vectors @ jnp.sum(slopes * (vectors.T @ thirds.T), axis=1)

    def matrix(self, logdensity_fn: LogDensity, position: ArrayLikeTree) -> Array:
        """Metric as a matrix (D, D) whose derivative is finite where eigenvalues coincide."""
        x, unravel = ravel_pytree(position)
        curvature = -jax.hessian(flat(logdensity_fn, unravel))(x)
        if self.is_diagonal or x.size == 1:
            return jnp.diag(self.spectrum(jnp.diagonal(curvature)))
        return matrix_function(self.spectrum, 0.5 * (curvature + curvature.T))


@dataclass(frozen=True)
class InformationMetric:
    """Metric given by a function of (logdensity_fn, position)."""

    metric_fn: MetricFn

    def __call__(self, logdensity_fn: LogDensity, position: ArrayLikeTree) -> Factor:
        """Metric at `position`: one call of the function, one Cholesky."""
        return from_precision(self._whitened(logdensity_fn, position, IDENTITY))

    def evaluate(
        self,
        logdensity_fn: LogDensity,
        position: ArrayLikeTree,
        preconditioner: Factor,
        *,
        divergence: bool = False,
    ) -> Local:
        """Log density, gradient and metric: one gradient, one call of the function."""
        value, gradient = jax.value_and_grad(logdensity_fn)(position)
        metric = from_precision(self._whitened(logdensity_fn, position, preconditioner))
        local = Local(value, gradient, metric)
        if not divergence:
            return local
        x, unravel = ravel_pytree(position)

        def whitened(y: Array) -> Array:
            return square(self._whitened(logdensity_fn, unravel(y), preconditioner))

        # d G^{-1} = -G^{-1} dG G^{-1}: one JVP of the function along each axis
        def term(pair: tuple[Array, Array]) -> Any:
            axis, direction = pair
            column = metric.inverse_times(axis)
            return jax.jvp(lambda y: whitened(y) @ column, (x,), (direction,))[1]

        axes = jnp.eye(x.size, dtype=x.dtype)
        directions = preconditioner.inverse_sqrt_times(axes)
        total = jnp.sum(jax.lax.map(term, (axes, directions)), axis=0)
        return local._replace(divergence=-metric.inverse_times(total))

    def matrix(self, logdensity_fn: LogDensity, position: ArrayLikeTree) -> Array:
        """Metric as a matrix (D, D)."""
        return square(self._whitened(logdensity_fn, position, IDENTITY))

    def _whitened(
        self, logdensity_fn: LogDensity, position: ArrayTree, preconditioner: Factor
    ) -> Array:
        """``L^T M L``, of shape (D,) if M and L are diagonal."""
        size = ravel_pytree(position)[0].size
        matrix = precision_matrix(self.metric_fn(logdensity_fn, position), size)
        if matrix.ndim == 1 and isinstance(preconditioner, Diagonal):
            return matrix * jnp.square(preconditioner.inverse_sqrt)
        # rounded factors would lose what is definite where M is nearly singular
        times = exact_products(preconditioner.inverse_sqrt_transpose_times)
        return times(times(square(matrix)).T)


Metric: TypeAlias = HessianMetric | InformationMetric


def as_metric(metric_fn: MetricFn) -> Metric:
    """`metric_fn` as it is if it shares evaluations with the gradient, else that of a function."""
    if isinstance(metric_fn, Metric):
        return metric_fn
    if not callable(metric_fn):
        raise TypeError(
            "metric_fn must be a function of (logdensity_fn, position), such as "
            f"metrics.softabs_hessian(1.0); got {metric_fn!r}."
        )
    return InformationMetric(metric_fn)


def clipped_hessian(floor: float = 0.1) -> HessianMetric:
    """Minus the Hessian with eigenvalues no smaller than `floor` > 0 (HP-MALA's metric).

    Negative curvature counts as `floor`: where the density is convex the proposal is as wide as
    the floor allows. Cost: D Hessian-vector products, one eigenvalue problem.

    >>> import jax.numpy as jnp
    >>> from blackjax_ext import metrics
    >>> metric = metrics.clipped_hessian(0.5)(lambda x: -(x[0]**2) + x[1]**2, jnp.ones(2))
    >>> [round(float(variance), 6) for variance in jnp.diagonal(metric.inverse())]
    [0.5, 2.0]
    """
    check_positive("floor", floor)
    return HessianMetric(partial(above, floor))


def absolute_hessian(floor: float = 0.1) -> HessianMetric:
    """Minus the Hessian with absolute eigenvalues, none below `floor` > 0.

    Cost: D Hessian-vector products, one eigenvalue problem.
    """
    check_positive("floor", floor)
    return HessianMetric(partial(absolute_above, floor))


def softabs_hessian(alpha: float = 10.0) -> HessianMetric:
    r"""Minus the Hessian with eigenvalues :math:`\lambda \coth(\alpha \lambda)` (Betancourt 2013).

    A smooth :math:`|\lambda|` with floor :math:`1 / \alpha`, alpha > 0. Cost: D Hessian-vector
    products, one eigenvalue problem.
    """
    check_positive("alpha", alpha)
    return HessianMetric(partial(softabs, alpha))


def diagonal_hessian(floor: float = 0.1) -> HessianMetric:
    """Absolute diagonal of minus the Hessian, no smaller than `floor` > 0.

    Cost: D Hessian-vector products.
    """
    check_positive("floor", floor)
    return HessianMetric(partial(absolute_above, floor), is_diagonal=True)


def fisher(fn: Callable[[ArrayTree], Array]) -> InformationMetric:
    """A user's Fisher information.

    Parameters
    ----------
    fn
        ``fn(position)`` returns the expected information plus the precision of the prior, symmetric
        and positive definite, of shape (D, D) in the order of ``ravel_pytree``, or (D,) if it is
        diagonal. Where it is not, the proposal is rejected and counted as divergent.
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of the position; got {fn!r}.")
    return InformationMetric(partial(ignore_logdensity, fn))


def mass_matrix(metric_fn: MetricFn, logdensity_fn: LogDensity) -> Callable[[ArrayTree], Array]:
    """`metric_fn` as the `mass_matrix` of ``blackjax.rmhmc``.

    >>> import blackjax, jax, jax.numpy as jnp
    >>> from blackjax_ext import metrics
    >>> logdensity_fn = lambda x: -0.5 * jnp.sum(x**2) - 0.25 * x[0]**4
    >>> mass_matrix = metrics.mass_matrix(metrics.softabs_hessian(1.0), logdensity_fn)
    >>> rmhmc = blackjax.rmhmc(logdensity_fn, 0.3, mass_matrix, num_integration_steps=3)
    >>> state, info = jax.jit(rmhmc.step)(jax.random.key(0), rmhmc.init(jnp.ones(2)))
    >>> bool(info.acceptance_rate > 0.5)
    True
    """
    return partial(as_metric(metric_fn).matrix, logdensity_fn)


def ignore_logdensity(
    fn: Callable[[ArrayTree], Array], logdensity_fn: LogDensity, position: ArrayTree
) -> Array:
    """``fn(position)``."""
    del logdensity_fn
    return fn(position)


def flat(logdensity_fn: LogDensity, unravel: Unravel) -> Flat:
    """`logdensity_fn` of a flat position."""
    return lambda x: check_scalar(logdensity_fn(unravel(x)))


def whitened_curvature(
    flat_fn: Flat, x: Array, preconditioner: Factor
) -> tuple[Array, Array, Array]:
    """Log density, gradient (D,) and ``L^T A L`` (D, D)."""
    directions = preconditioner.inverse_sqrt_times(jnp.eye(x.size, dtype=x.dtype))
    along = partial(along_each, jax.value_and_grad(flat_fn))
    (value, gradient), (_, rows) = in_parts(along, x, directions)
    rows = preconditioner.inverse_sqrt_transpose_times(rows)
    return value, gradient, -0.5 * (rows + rows.T)


def second_derivative(flat_fn: Flat, x: Array, direction: Array) -> Array:
    """Second derivative along `direction`."""

    def slope(fn: Flat) -> Flat:
        return lambda y: jax.jvp(fn, (y,), (direction,))[1]

    return slope(slope(flat_fn))(x)


def square(precision: Array) -> Array:
    """A matrix (D, D), of itself or of its diagonal."""
    return jnp.diag(precision) if precision.ndim == 1 else precision


def precision_matrix(metric: Factor | Array, size: int) -> Array:
    """What a metric function returned as a matrix (D, D) or (D,), NaN if it is not symmetric."""
    if isinstance(metric, Factor):
        metric = metric.precision(size)
    matrix = jnp.asarray(metric)
    if matrix.shape not in ((size,), (size, size)):
        raise ValueError(
            f"metric_fn must return a metric of shape ({size}, {size}) or ({size},) for a position "
            f"of {size} dimensions; got shape {matrix.shape}."
        )
    if matrix.ndim == 1:
        return matrix
    tolerance = 1e3 * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(matrix))
    is_symmetric = jnp.max(jnp.abs(matrix - matrix.T)) <= tolerance
    return jnp.where(is_symmetric, 0.5 * (matrix + matrix.T), jnp.nan)
