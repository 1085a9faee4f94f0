r"""Potential energies with minibatch gradients.

The exact samplers of this package need three functions of a target with energy :math:`U`: the
energy itself, a draw of a random component :math:`\zeta`, and a gradient :math:`\nabla
\tilde{U}(x; \zeta)`. Exactness asks nothing of the gradient but that it is a function of the
position and of :math:`\zeta`, and that the components of one trajectory are independent (or
exchangeable) and drawn without a look at the chain. It need not even be unbiased: a bad gradient
costs acceptance.

A :class:`StochasticPotential` is a pytree whose leaves are the data. Given to a jitted function as
an argument, it does not bring its data into the program as constants.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.mcmc.checks import check_position, check_positive
from blackjax_ext.sgmcmc.expansion import Expansion, expand
from blackjax_ext.sgmcmc.linear_predictors import LinearPredictor, energy, linear_predictor
from blackjax_ext.sgmcmc.rows import Rows, count_rows, expanded
from blackjax_ext.sgmcmc.sums import Pair, add, as_pair, over_rows

__all__ = [
    "Anchor",
    "Expansion",
    "LinearPredictor",
    "Pair",
    "Rows",
    "StochasticPotential",
    "anchor_at",
    "anchored",
    "check_potential",
    "control_variate",
    "energy",
    "energy_at",
    "exact",
    "expand",
    "expanded_minibatch",
    "full_batch",
    "gaussian_noise",
    "linear_predictor",
    "minibatch",
]

Batch: TypeAlias = Any
MAX_DENSE = 1000  # beyond, a Hessian is a product with the full data instead of a matrix


class StochasticPotential(NamedTuple):
    """A potential energy and how its gradient is estimated.

    potential
        ``potential(x)``, the exact energy U: minus the log density up to a constant, a scalar or a
        :class:`Pair` of a scalar and what its rounding left.
    draw
        ``draw(rng_key) -> batch``, the random component of one gradient.
    stochastic_grad
        ``stochastic_grad(x, batch)``, a pytree like the position.
    rows
        The same energy row by row, for acceptance tests that do not read all of them; None where
        there are no rows.
    """

    potential: Callable[[ArrayTree], Array | Pair]
    draw: Callable[[PRNGKey], Batch]
    stochastic_grad: Callable[[ArrayTree, Batch], ArrayTree]
    rows: Rows | None = None


def minibatch(
    logprior_fn: Callable,
    loglikelihood_fn: Callable,
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
    check_size("batch_size", batch_size, num_rows)
    if chunk_size is not None:
        check_size("chunk_size", chunk_size)
    functions = (logprior_fn, loglikelihood_fn)
    terms = Partial(partial(row_terms, loglikelihood_fn), data)
    return StochasticPotential(
        Partial(partial(posterior_energy, functions, num_rows, chunk_size), data),
        Partial(partial(draw_rows, num_rows, batch_size), data),
        Partial(partial(minibatch_gradient, functions, num_rows)),
        Rows(Partial(logprior_fn), terms, num_rows),
    )


def row_terms(loglikelihood_fn: Callable, data: ArrayTree, x: ArrayTree, indices: Array) -> Array:
    """Log likelihoods of the rows with these indices."""
    rows = jax.tree.map(lambda a: a[indices], data)
    return jax.vmap(loglikelihood_fn, (None, 0))(x, rows)


def posterior_energy(
    functions: tuple[Callable, Callable],
    num_rows: int,
    chunk_size: int | None,
    data: ArrayTree,
    x: ArrayTree,
) -> Pair:
    """Minus log prior and minus log likelihood of all rows."""
    logprior_fn, loglikelihood_fn = functions

    def values_at(indices):
        return -row_terms(loglikelihood_fn, data, x, indices)

    prior = -logprior_fn(x)
    return add(over_rows(values_at, num_rows, chunk_size, prior.dtype), prior)


def draw_rows(num_rows: int, batch_size: int, data: ArrayTree, rng_key: PRNGKey) -> ArrayTree:
    """Rows drawn with replacement: a draw without would cost a permutation of all of them."""
    indices = jax.random.randint(rng_key, (batch_size,), 0, num_rows)
    return jax.tree.map(lambda a: a[indices], data)


def minibatch_gradient(
    functions: tuple[Callable, Callable], num_rows: int, x: ArrayTree, batch: ArrayTree
) -> ArrayTree:
    """Gradient of the energy with the likelihood of the batch counted N/B times."""
    logprior_fn, loglikelihood_fn = functions

    def energy(x):
        values = jax.vmap(loglikelihood_fn, (None, 0))(x, batch)
        return -logprior_fn(x) - (num_rows / values.shape[0]) * jnp.sum(values)

    return jax.grad(energy)(x)


def full_batch(logdensity_fn: Callable) -> StochasticPotential:
    """Energy of a log density, with its exact gradient.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import potentials
    >>> potential = potentials.full_batch(lambda x: -0.5 * x**2)
    >>> float(potential.stochastic_grad(jnp.array(3.0), potential.draw(jax.random.key(0))))
    3.0
    """
    return gaussian_noise(logdensity_fn, 0.0)


def gaussian_noise(logdensity_fn: Callable, scale: float) -> StochasticPotential:
    r"""Energy of a log density, its gradient with noise :math:`\mathcal{N}(0, s^2 I)`.

    This is how the paper simulates minibatches on targets that have no data.

    Parameters
    ----------
    logdensity_fn
        Log density: pytree to scalar.
    scale
        s, at least zero.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import potentials
    >>> potential = potentials.gaussian_noise(lambda x: -0.5 * x**2, 1.0)
    >>> potential.stochastic_grad(jnp.array(3.0), potential.draw(jax.random.key(0))).shape
    ()
    """
    if scale != 0:
        check_positive("scale", scale)
    energy = Partial(partial(negative, logdensity_fn))
    return StochasticPotential(
        energy, Partial(the_key), Partial(partial(noisy_gradient, scale), energy)
    )


def negative(logdensity_fn: Callable, x: ArrayTree) -> Array:
    """Potential energy of a log density."""
    return -logdensity_fn(x)


def the_key(rng_key: PRNGKey) -> PRNGKey:
    """A component that is drawn where the gradient is evaluated, whose shape it needs."""
    return rng_key


def noisy_gradient(scale: float, energy: Callable, x: ArrayTree, rng_key: PRNGKey) -> ArrayTree:
    """Exact gradient with noise of standard deviation `scale`."""
    gradient, unravel = ravel_pytree(full_gradient(energy, x))
    if scale:
        gradient += scale * jax.random.normal(rng_key, gradient.shape, gradient.dtype)
    return unravel(gradient)


def energy_at(potential: StochasticPotential, x: ArrayTree) -> Pair:
    """Exact energy as a pair; TypeError unless it is a scalar."""
    energy = as_pair(potential.potential(x))
    if jnp.shape(energy.high) != ():
        raise TypeError(
            f"potential must return a scalar; got an array of shape {jnp.shape(energy.high)}."
        )
    return energy


def full_gradient(energy: Callable, x: ArrayTree) -> ArrayTree:
    """Gradient of the exact energy: a full pass over the data, in chunks."""
    return jax.grad(lambda x: as_pair(energy(x)).value())(x)


def exact(potential: StochasticPotential) -> StochasticPotential:
    """`potential` with its exact gradient, a full pass over the data, for its estimate."""
    energy = as_partial(potential.potential)
    gradient = Partial(partial(noisy_gradient, 0.0), energy)
    return StochasticPotential(energy, Partial(the_key), gradient, potential.rows)


class Anchor(NamedTuple):
    """What a control variate knows of the full data: it must not depend on the chain.

    position
        Where the energy is expanded, a pytree like the position; near the mode, for a small noise.
    gradient
        Gradient of the energy there, shape (D,).
    hessian
        Hessian of the energy there, shape (D, D); None for a control variate of first order, and
        beyond 1000 dimensions.
    """

    position: ArrayTree
    gradient: Array
    hessian: Array | None


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
        1 or 2.

    Returns
    -------
    A potential with the same energy, whose `rows` too have the expansion taken out
    (:func:`blackjax_ext.sgmcmc.rows.expanded`). Cost: at once, one full gradient, and D more of
    them for a Hessian; then two minibatch gradients for one, or three with order 2.

    Raises
    ------
    ValueError, TypeError
        For an order that is not 1 or 2, an anchor that is empty, not floating or not finite, or
        that does not fit the position (when a gradient is taken).

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
    return anchored(potential, anchor_at(potential, anchor, order), order)


def anchor_at(potential: StochasticPotential, position: ArrayTree, order: int) -> Anchor:
    """Gradient, and Hessian if `order` is 2, of the full energy at `position`."""
    x, unravel = ravel_pytree(position)

    def gradient(x):
        return ravel_pytree(full_gradient(potential.potential, unravel(x)))[0]

    if order == 1 or x.size > MAX_DENSE:
        return Anchor(position, gradient(x), None)
    rows = jax.lax.map(
        lambda direction: jax.jvp(gradient, (x,), (direction,))[1],
        jnp.eye(x.size, dtype=x.dtype),
        batch_size=16,
    )
    return Anchor(position, gradient(x), 0.5 * (rows + rows.T))


def anchored(potential: StochasticPotential, anchor: Anchor, order: int) -> StochasticPotential:
    """`potential` with the control variate of a known anchor; see :func:`control_variate`."""
    parts = (as_partial(potential.potential), as_partial(potential.stochastic_grad))
    gradient = Partial(partial(anchored_gradient, order), *parts, anchor)
    rows = None if potential.rows is None else expanded(potential.rows, anchor)
    return potential._replace(stochastic_grad=gradient, rows=rows)


def as_partial(function: Callable) -> Partial:
    """`function` as a pytree, whose leaves are the arrays bound to it."""
    return function if isinstance(function, Partial) else Partial(function)


def anchored_gradient(
    order: int, energy: Callable, gradient: Callable, anchor: Anchor, x: ArrayTree, batch: Batch
) -> ArrayTree:
    """The estimate at `x`, its expansion at the anchor exchanged for that of the full energy."""
    check_fits(anchor.position, x)
    flat, unravel = ravel_pytree(x)
    a = ravel_pytree(anchor.position)[0]
    d = flat - a

    def estimate(x):
        return ravel_pytree(gradient(unravel(x), batch))[0]

    if order == 1:
        return unravel(estimate(flat) - estimate(a) + anchor.gradient)
    if anchor.hessian is None:
        full = jax.jvp(lambda x: ravel_pytree(full_gradient(energy, unravel(x)))[0], (a,), (d,))[1]
    else:
        full = anchor.hessian @ d
    at_anchor, slope = jax.jvp(estimate, (a,), (d,))
    return unravel(estimate(flat) - at_anchor - slope + anchor.gradient + full)


def check_fits(anchor: ArrayTree, position: ArrayTree) -> None:
    """Raise ValueError unless both are pytrees of the same structure and shapes."""
    shapes, wanted = (jax.tree.map(jnp.shape, tree) for tree in (anchor, position))
    if shapes != wanted:
        raise ValueError(f"anchor must fit the position, of shapes {wanted}; got {shapes}.")


def expanded_minibatch(expansion: Expansion, batch_size: int) -> StochasticPotential:
    r"""Energy of an expanded posterior, with the control variate that its expansion is.

    .. math::
        \hat{g}(x; \zeta) = \nabla S(x)
        + \frac{N}{B} \sum_{i \in \zeta} A_i^T \left[ \nabla\phi_i(\eta_i)
        - \nabla\phi_i(a_i) - \nabla^2\phi_i(a_i)\, t_i \right],

    the gradient of :func:`control_variate` with two reads of each row instead of three gradients;
    the second derivatives for order 2 alone. Notation of
    :mod:`blackjax_ext.sgmcmc.linear_predictors`.

    Parameters
    ----------
    expansion
        Of :func:`expand`.
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
    if not isinstance(expansion, Expansion) or expansion.posterior is None:
        raise TypeError(f"expansion must be one that expand makes; got {expansion!r}.")
    if batch_size != 0:
        check_size("batch_size", batch_size, expansion.num_rows)
    draw = Partial(partial(draw_indices, expansion.num_rows, batch_size))
    energy_fn = Partial(energy, expansion.posterior)
    return StochasticPotential(energy_fn, draw, Partial(expanded_gradient, expansion))


def draw_indices(num_rows: int, batch_size: int, rng_key: PRNGKey) -> Array:
    """Rows by their numbers, drawn with replacement."""
    return jax.random.randint(rng_key, (batch_size,), 0, num_rows)


def expanded_gradient(expansion: Expansion, x: ArrayTree, indices: Array) -> ArrayTree:
    """Gradient of the surrogate energy, corrected by the rows of a minibatch."""
    posterior = expansion.posterior
    assert posterior is not None
    a, unravel = ravel_pytree(expansion.position)
    check_fits(expansion.position, x)
    d = ravel_pytree(x)[0] - a
    gradient = expansion.gradient - ravel_pytree(jax.grad(posterior.logprior)(x))[0]
    if expansion.order == 2:
        gradient = gradient + expansion.hessian @ d
    if not indices.size:
        return unravel(gradient)
    eta, changes, rows = jax.linearize(
        lambda x: posterior.read(unravel(x), indices), a, has_aux=True
    )

    def excess(eta, t, row):
        slope = partial(jax.grad(posterior.loss), row=row)
        there = slope(jax.tree.map(jnp.add, eta, t))
        if expansion.order == 1:
            return jax.tree.map(jnp.subtract, there, slope(eta))
        here, bend = jax.jvp(slope, (eta,), (t,))
        return jax.tree.map(lambda a, b, c: a - b - c, there, here, bend)

    excesses = jax.vmap(excess)(eta, changes(d), rows)
    (rest,) = jax.linear_transpose(changes, d)(excesses)
    return unravel(gradient + expansion.num_rows / indices.size * rest)


def check_potential(potential: StochasticPotential) -> StochasticPotential:
    """Return `potential`; raise TypeError unless it is three functions, and rows if any."""
    is_potential = isinstance(potential, StochasticPotential)
    if not is_potential or not all(callable(function) for function in potential[:3]):
        raise TypeError(
            "potential must be a StochasticPotential of three functions, such as those that "
            "blackjax_ext.potentials.minibatch and full_batch make; "
            f"got {type(potential).__name__}."
        )
    return potential


def check_size(name: str, value: int, most: int | None = None) -> None:
    """Raise unless `value` is a whole number from 1 to `most`."""
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number, not traced; got {value!r}.") from error
    if value < 1 or (most is not None and value > most):
        limit = "at least 1" if most is None else f"from 1 to the {most} rows of the data"
        raise ValueError(f"{name} must be {limit}; got {value}.")
