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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import check_positive
from blackjax_ext.rows.compensated_sums import Pair, as_pair
from blackjax_ext.types import Function, LogDensity

Batch: TypeAlias = Any


class StochasticPotential(NamedTuple):
    """A potential energy and how its gradient is estimated.

    Attributes
    ----------
    potential
        ``potential(x)``, the exact energy U: minus the log density up to a constant, a scalar or a
        `Pair` of a scalar and what its rounding left.
    draw
        ``draw(rng_key) -> batch``, the random component of one gradient.
    stochastic_grad
        ``stochastic_grad(x, batch)``, a pytree like the position.
    num_rows
        N, rows that the energy reads; 0 where it is no sum over rows.
    """

    potential: Callable[[ArrayTree], Array | Pair]
    draw: Callable[[PRNGKey], Batch]
    stochastic_grad: Callable[[ArrayTree, Batch], ArrayTree]
    num_rows: int = 0


def full_batch(logdensity_fn: LogDensity) -> StochasticPotential:
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


def gaussian_noise(logdensity_fn: LogDensity, scale: float) -> StochasticPotential:
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
    energy = Partial(partial(negative_logdensity, logdensity_fn))
    return StochasticPotential(
        energy, Partial(key_as_batch), Partial(partial(noisy_gradient, scale), energy)
    )


def negative_logdensity(logdensity_fn: LogDensity, x: ArrayTree) -> Array:
    """Potential energy at `x` of a log density."""
    return -logdensity_fn(x)


def key_as_batch(rng_key: PRNGKey) -> PRNGKey:
    """The key as the random component: noise is drawn with it where its shape is known."""
    return rng_key


def noisy_gradient(scale: float, energy: Function, x: ArrayTree, rng_key: PRNGKey) -> ArrayTree:
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


def full_gradient(energy: Function, x: ArrayTree) -> ArrayTree:
    """Gradient of the exact energy: a full pass over the data, in chunks."""
    return jax.grad(lambda x: as_pair(energy(x)).value())(x)


def exact(potential: StochasticPotential) -> StochasticPotential:
    """`potential` with its exact gradient, a full pass over the data, for its estimate."""
    energy = as_partial(potential.potential)
    gradient = Partial(partial(noisy_gradient, 0.0), energy)
    return StochasticPotential(energy, Partial(key_as_batch), gradient, potential.num_rows)


def as_partial(function: Function) -> Partial:
    """`function` as a pytree, whose leaves are the arrays bound to it."""
    return function if isinstance(function, Partial) else Partial(function)


def check_potential(potential: StochasticPotential) -> StochasticPotential:
    """Return `potential`; raise TypeError unless it begins with three functions."""
    is_potential = isinstance(potential, StochasticPotential)
    if not is_potential or not all(callable(function) for function in potential[:3]):
        raise TypeError(
            "potential must be a StochasticPotential of three functions, such as those that "
            "blackjax_ext.potentials.minibatch and full_batch make; "
            f"got {type(potential).__name__}."
        )
    return potential


def check_fits(anchor: ArrayTree, position: ArrayTree) -> None:
    """Raise ValueError unless both are pytrees of the same structure and shapes."""
    shapes, wanted = (jax.tree.map(jnp.shape, tree) for tree in (anchor, position))
    if shapes != wanted:
        raise ValueError(f"anchor must fit the position, of shapes {wanted}; got {shapes}.")
