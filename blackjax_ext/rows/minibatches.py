"""The energy of a posterior as a sum over rows, with gradients from rows drawn at random.

Their noise is less with a control variate: a gradient less its expansion at a fixed anchor.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import check_count, check_position, count_rows
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.compensated_sums import Pair, add, over_rows
from blackjax_ext.rows.potentials import (
    Batch,
    StochasticPotential,
    as_partial,
    check_fits,
    full_gradient,
)
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.types import Function, LogDensity

RowLogLikelihood: TypeAlias = Callable[[ArrayTree, ArrayTree], Array]


def minibatch(
    logprior_fn: LogDensity,
    loglikelihood_fn: RowLogLikelihood,
    data: ArrayLikeTree,
    batch_size: int,
    *,
    chunk_size: int | None = None,
) -> StochasticPotential:
    r"""Energy of a posterior, with gradients from rows drawn with replacement.

    .. math::
        U(x) = -\log p(x) - \sum_{i=1}^N \log p(d_i | x), \qquad
        \tilde{U}(x; \zeta) = -\log p(x) - \frac{N}{B} \sum_{i \in \zeta} \log p(d_i | x).

    Parameters
    ----------
    logprior_fn
        Log density of the prior: pytree to scalar.
    loglikelihood_fn
        ``loglikelihood_fn(x, row)`` for one row of `data`, as in ``blackjax.sgmcmc``.
    data
        Pytree of arrays that lead with the N rows.
    batch_size
        B, from 1 to N.
    chunk_size
        Rows evaluated at once by the energy, which bounds its memory; None for as many as have
        their intermediate results in 32 MiB.

    Returns
    -------
    A potential. Cost: B rows and their gradients for a gradient, N rows for an energy.

    Raises
    ------
    ValueError, TypeError
        For data without rows or with different numbers of rows, a batch or chunk size that is not a
        whole number in its range.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import potentials
    >>> y = jnp.linspace(-1.0, 3.0, 1000)
    >>> potential = potentials.minibatch(
    ...     lambda x: -0.5 * x**2, lambda x, y: -0.5 * (y - x) ** 2, y, batch_size=100
    ... )
    >>> batch = potential.draw(jax.random.key(0))
    >>> batch.shape, potential.stochastic_grad(jnp.array(0.5), batch).shape
    ((100,), ())
    """
    data = jax.tree.map(jnp.asarray, data)
    num_rows = count_rows(data)
    check_count("batch_size", batch_size, most=num_rows, of="rows of the data")
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    functions = (logprior_fn, loglikelihood_fn)
    return StochasticPotential(
        Partial(partial(posterior_energy, functions, num_rows, chunk_size), data),
        Partial(partial(draw_rows, num_rows, batch_size), data),
        Partial(partial(minibatch_gradient, functions, num_rows)),
        num_rows,
    )


def row_loglikelihoods(
    loglikelihood_fn: RowLogLikelihood, data: ArrayTree, x: ArrayTree, indices: Array
) -> Array:
    """Log likelihoods of the rows with these indices, shape (n,)."""
    rows = jax.tree.map(lambda a: a[indices], data)
    values: Array = jax.vmap(loglikelihood_fn, (None, 0))(x, rows)
    return values


def posterior_energy(
    functions: tuple[LogDensity, RowLogLikelihood],
    num_rows: int,
    chunk_size: int | None,
    data: ArrayTree,
    x: ArrayTree,
) -> Pair:
    """Minus the log prior and the log likelihoods of all rows, as a pair."""
    logprior_fn, loglikelihood_fn = functions

    def values_at(indices: Array) -> Array:
        return -row_loglikelihoods(loglikelihood_fn, data, x, indices)

    prior = -logprior_fn(x)
    return add(over_rows(values_at, num_rows, chunk_size, prior.dtype), prior)


def draw_rows(num_rows: int, batch_size: int, data: ArrayTree, rng_key: PRNGKey) -> ArrayTree:
    """Rows drawn with replacement: without it a permutation of all rows would have to be drawn."""
    indices = with_replacement(rng_key, num_rows, batch_size)
    return jax.tree.map(lambda a: a[indices], data)


def minibatch_gradient(
    functions: tuple[LogDensity, RowLogLikelihood], num_rows: int, x: ArrayTree, batch: ArrayTree
) -> ArrayTree:
    """Gradient of the energy with the likelihood of the batch counted N/B times."""
    logprior_fn, loglikelihood_fn = functions

    def energy(x: ArrayTree) -> Array:
        values = jax.vmap(loglikelihood_fn, (None, 0))(x, batch)
        return -logprior_fn(x) - (num_rows / values.shape[0]) * jnp.sum(values)

    return jax.grad(energy)(x)


MAX_DENSE = 1000  # dimensions up to which a Hessian is taken


class Anchor(NamedTuple):
    """Summary of the full data for a control variate, which must not depend on the chain.

    Attributes
    ----------
    position
        Where the energy is expanded, a pytree like the position; near the mode, for a small noise.
    gradient
        Gradient of the energy there, shape (D,), by the coordinates ``w = whitener (x - a)``.
    hessian
        Hessian of the energy there, shape (D, D), by w; None for a control variate of first order.
    whitener
        Shape (D, D), or None where w is x - a. With coordinates that are strongly correlated, as by
        covariates that are not centred, a Hessian by x has no digits left in float32: its quadratic
        form is a small difference of large numbers. By w it is near the identity.
    """

    position: ArrayTree
    gradient: Array
    hessian: Array | None
    whitener: Array | None = None

    def coordinates(self, d: Array) -> Array:
        """Whitened coordinates of ``d = x - a``."""
        return d if self.whitener is None else self.whitener @ d

    def by_position(self, slope: Array) -> Array:
        """A gradient by x of a gradient by w."""
        return slope if self.whitener is None else slope @ self.whitener


def control_variate(
    potential: StochasticPotential, anchor: ArrayLikeTree, *, order: int = 1
) -> StochasticPotential:
    r"""`potential` with the noise of its gradient reduced by its expansion at an anchor.

    With the anchor :math:`a` and :math:`d = x - a`,

    .. math::
        \hat{g}(x; \zeta) = \nabla\tilde{U}(x; \zeta)
        - \left[ \nabla\tilde{U}(a; \zeta) + \nabla^2\tilde{U}(a; \zeta)\, d \right]
        + \left[ \nabla U(a) + \nabla^2 U(a)\, d \right],

    the second derivatives for `order` 2 alone. The noise is then of the order of :math:`|d|` or
    :math:`|d|^2`, not of the scatter of the rows: at a million rows the plain estimate has an
    acceptance of zero, this one of nearly one (Baker et al. 2019 for SGLD, where it removes noise
    but not bias; here the result is exact with any anchor).

    Parameters
    ----------
    potential
        Potential to improve.
    anchor
        Fixed position, near the mode. One that follows the chain makes the chain biased.
    order
        1, or up to 1000 dimensions 2.

    Returns
    -------
    A potential with the same energy. Cost: at once, one full gradient, and D more of them for a
    Hessian; then two minibatch gradients for one, or three with order 2.

    Raises
    ------
    ValueError, TypeError
        For an order that is not 1 or 2, or 2 in too many dimensions, an anchor that is empty, not
        floating or not finite, or that does not fit the position (when a gradient is taken).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import potentials
    >>> y = jnp.linspace(-1.0, 3.0, 1000)
    >>> plain = potentials.minibatch(
    ...     lambda x: -0.5 * x**2, lambda x, y: -0.5 * (y - x) ** 2, y, batch_size=10
    ... )
    >>> potential = potentials.control_variate(plain, jnp.array(1.0))
    >>> gradient = potential.stochastic_grad(jnp.array(0.5), potential.draw(jax.random.key(0)))
    >>> bool(abs(gradient - (0.5 + 1000 * (0.5 - 1.0))) < 0.01)  # no noise: the rows are quadratic
    True
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; got {order!r}.")
    anchor = check_position(anchor)
    for path, leaf in jax.tree_util.tree_leaves_with_path(anchor):
        if not isinstance(leaf, jax.core.Tracer) and not np.isfinite(leaf).all():
            name = f"anchor{jax.tree_util.keystr(path)}"
            raise ValueError(f"{name} must be finite; got {leaf}.")
    return anchored(potential, anchor_at(potential, anchor, order))


@exact_products
def anchor_at(potential: StochasticPotential, position: ArrayTree, order: int) -> Anchor:
    """Gradient, and Hessian if `order` is 2, of the full energy at `position`."""
    x, unravel = ravel_pytree(position)

    def gradient(x: Array) -> Array:
        return ravel_pytree(full_gradient(potential.potential, unravel(x)))[0]

    if order == 1:
        return Anchor(position, gradient(x), None)
    if x.size > MAX_DENSE:
        raise ValueError(
            f"order must be 1 beyond {MAX_DENSE} dimensions; got {order} for {x.size}."
        )

    def hessian(root: Array) -> Array:
        """Hessian by the coordinates of a root: the columns of ``root^T H root``."""
        rows: Array = jax.lax.map(
            lambda direction: jax.jvp(gradient, (x,), (direction,))[1] @ root, root.T, batch_size=16
        )
        return 0.5 * (rows + rows.T)

    coarse = hessian(jnp.eye(x.size, dtype=x.dtype))
    metric = scaled_eigen(coarse).absolute(x.size * float(jnp.finfo(x.dtype).eps))
    root = metric.inverse_sqrt
    return Anchor(position, gradient(x) @ root, hessian(root), metric.sqrt)


def anchored(potential: StochasticPotential, anchor: Anchor) -> StochasticPotential:
    """`potential` with the control variate of a known anchor; see :func:`control_variate`."""
    gradient = Partial(anchored_gradient, as_partial(potential.stochastic_grad), anchor)
    return potential._replace(stochastic_grad=gradient)


def anchored_gradient(gradient: Function, anchor: Anchor, x: ArrayTree, batch: Batch) -> ArrayTree:
    """Gradient estimate at `x`, its expansion at the anchor replaced by that of the full energy."""
    check_fits(anchor.position, x)
    flat, unravel = ravel_pytree(x)
    a = ravel_pytree(anchor.position)[0]
    d = flat - a

    def estimate(x: Array) -> Array:
        return ravel_pytree(gradient(unravel(x), batch))[0]

    known = anchor.by_position(anchor.gradient)
    if anchor.hessian is None:
        return unravel(estimate(flat) - estimate(a) + known)
    full = anchor.by_position(anchor.hessian @ anchor.coordinates(d))
    at_anchor, slope = jax.jvp(estimate, (a,), (d,))
    return unravel(estimate(flat) - at_anchor - slope + known + full)
