"""Control variates: a gradient less its expansion at a fixed anchor."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import check_position
from blackjax_ext.metrics.factors import scaled_eigen
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.potentials import Batch, StochasticPotential, as_partial, full_gradient
from blackjax_ext.types import Function

MAX_DENSE = 1000  # beyond, a Hessian is a product with the full data instead of a matrix


class Anchor(NamedTuple):
    """Summary of the full data for a control variate, which must not depend on the chain.

    Attributes
    ----------
    position
        Where the energy is expanded, a pytree like the position; near the mode, for a small noise.
    gradient
        Gradient of the energy there, shape (D,), by the coordinates ``w = whitener (x - a)``.
    hessian
        Hessian of the energy there, shape (D, D), by w; None for a control variate of first order,
        and beyond 1000 dimensions.
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
        1 or 2.

    Returns
    -------
    A potential with the same energy. Cost: at once, one full gradient, and D more of them for a
    Hessian; then two minibatch gradients for one, or three with order 2.

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


@exact_products
def anchor_at(potential: StochasticPotential, position: ArrayTree, order: int) -> Anchor:
    """Gradient, and Hessian if `order` is 2, of the full energy at `position`."""
    x, unravel = ravel_pytree(position)

    def gradient(x: Array) -> Array:
        return ravel_pytree(full_gradient(potential.potential, unravel(x)))[0]

    if order == 1 or x.size > MAX_DENSE:
        return Anchor(position, gradient(x), None)

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


def anchored(potential: StochasticPotential, anchor: Anchor, order: int) -> StochasticPotential:
    """`potential` with the control variate of a known anchor; see :func:`control_variate`."""
    parts = (as_partial(potential.potential), as_partial(potential.stochastic_grad))
    gradient = Partial(partial(anchored_gradient, order), *parts, anchor)
    return potential._replace(stochastic_grad=gradient)


def anchored_gradient(
    order: int, energy: Function, gradient: Function, anchor: Anchor, x: ArrayTree, batch: Batch
) -> ArrayTree:
    """Gradient estimate at `x`, its expansion at the anchor replaced by that of the full energy."""
    check_fits(anchor.position, x)
    flat, unravel = ravel_pytree(x)
    a = ravel_pytree(anchor.position)[0]
    d = flat - a

    def estimate(x: Array) -> Array:
        return ravel_pytree(gradient(unravel(x), batch))[0]

    if order == 1:
        return unravel(estimate(flat) - estimate(a) + anchor.by_position(anchor.gradient))
    known = anchor.by_position(anchor.gradient)
    if anchor.hessian is None:
        full = jax.jvp(lambda x: ravel_pytree(full_gradient(energy, unravel(x)))[0], (a,), (d,))[1]
    else:
        full = anchor.by_position(anchor.hessian @ anchor.coordinates(d))
    at_anchor, slope = jax.jvp(estimate, (a,), (d,))
    return unravel(estimate(flat) - at_anchor - slope + known + full)


def check_fits(anchor: ArrayTree, position: ArrayTree) -> None:
    """Raise ValueError unless both are pytrees of the same structure and shapes."""
    shapes, wanted = (jax.tree.map(jnp.shape, tree) for tree in (anchor, position))
    if shapes != wanted:
        raise ValueError(f"anchor must fit the position, of shapes {wanted}; got {shapes}.")
