"""The energy of a posterior as a sum over rows, with gradients from rows drawn at random."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.checks import check_count, count_rows
from blackjax_ext.rows.compensated_sums import Pair, add, over_rows
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.types import LogDensity

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
