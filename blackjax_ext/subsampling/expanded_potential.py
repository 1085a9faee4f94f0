"""The potential of an expanded posterior: its gradient reads a minibatch, its energy all rows."""

from functools import partial

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import check_count
from blackjax_ext.rows.control_variates import check_fits
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.passes import energy
from blackjax_ext.subsampling.remainders import steps_to


def expanded_minibatch(expansion: Expansion, batch_size: int) -> StochasticPotential:
    r"""Energy of an expanded posterior, with the control variate that its expansion is.

    .. math::
        \hat{g}(x; \zeta) = \nabla S(x)
        + \frac{N}{B} \sum_{i \in \zeta} A_i^T \left[ \nabla\phi_i(\eta_i)
        - \nabla\phi_i(a_i) - \nabla^2\phi_i(a_i)\, t_i \right],

    the gradient of `control_variate` with two reads of each row instead of three gradients.
    Notation of :mod:`blackjax_ext.subsampling.predictors`.

    Parameters
    ----------
    expansion
        Of `expand`.
    batch_size
        B, from 1 to N; 0 leaves the sum out, which is exact too: then S alone drives the
        trajectory.

    Returns
    -------
    A potential. Cost: B rows and D^2 for a gradient, N rows for an energy, in chunks.

    Raises
    ------
    ValueError, TypeError
        For something that is no expansion, or a batch size that is not a whole number from 0 to N.
    """
    if not isinstance(expansion, Expansion) or expansion.has_groups or expansion.predictor is None:
        raise TypeError(f"expansion must be one that expand makes; got {expansion!r}.")
    if batch_size != 0:
        check_count("batch_size", batch_size, most=expansion.num_rows, of="rows of the data")
    draw = Partial(partial(draw_indices, expansion.num_rows, batch_size))
    energy_fn = Partial(energy, expansion.posterior)
    gradient = Partial(expanded_gradient, expansion)
    return StochasticPotential(energy_fn, draw, gradient, expansion.num_rows)


def draw_indices(num_rows: int, batch_size: int, rng_key: PRNGKey) -> Array:
    """Rows by their numbers, drawn with replacement."""
    return with_replacement(rng_key, num_rows, batch_size)


def expanded_gradient(expansion: Expansion, x: ArrayTree, indices: Array) -> ArrayTree:
    """Gradient of the surrogate energy, corrected by the rows of a minibatch."""
    posterior = expansion.posterior
    a, unravel = ravel_pytree(expansion.position)
    check_fits(expansion.position, x)
    (d,), (u, _) = steps_to(expansion, x), expansion.coordinates(x)
    slope = expansion.arrow.shared + expansion.arrow.of_shared @ u
    of_prior = ravel_pytree(jax.grad(posterior.logprior)(x))[0]
    gradient = slope @ expansion.frame.root_inverse - of_prior
    if not indices.size:
        return unravel(gradient)
    eta, changes, rows = jax.linearize(
        lambda x: posterior.read(unravel(x), indices), a, has_aux=True
    )

    def excess(eta: ArrayTree, t: ArrayTree, row: ArrayTree) -> ArrayTree:
        slope = partial(jax.grad(posterior.loss), row=row)
        moved = slope(jax.tree.map(jnp.add, eta, t))
        here, bend = jax.jvp(slope, (eta,), (t,))
        return jax.tree.map(lambda a, b, c: a - b - c, moved, here, bend)

    excesses = jax.vmap(excess)(eta, changes(d), rows)
    (rest,) = jax.linear_transpose(changes, d)(excesses)
    return unravel(gradient + expansion.num_rows / indices.size * rest)
