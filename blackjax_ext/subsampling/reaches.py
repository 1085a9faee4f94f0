r"""Bounds of how much the remainders of rows may change on a move, and where none is worth while.

Two bounds of the change of a remainder hold, with the notation of
:mod:`blackjax_ext.subsampling.predictors`, and q is the less of them:
:math:`|r_i(x_*) - r_i(x)| \le \psi_i q`. Each remainder is bounded by itself,
:math:`|w|^{k+1} + |w_*|^{k+1}`. And along the line from w to :math:`w_*`, where
:math:`|\nabla r_i \cdot t| \le \frac{M_i}{k!} |t_i|^k |t|`, the change is at most
:math:`(k+1) \psi_i |w_* - w| \int_0^1 |w_s|^k ds`, which is small for short moves:

.. math::
    q_2 = |w_* - w| \left( |w|^2 + w \cdot w_* + |w_*|^2 \right),

which is symmetric in the ends of the move. Of order 3, with the inequality of Cauchy and Schwarz
for the way, :math:`q_3 = 4 |w_* - w| \int_0^1 |w_s|^3 ds` where :math:`\int |w_s|^3 \le
(\int |w_s|^2 \int |w_s|^4)^{1/2}`. Rows of group c have a reach :math:`q_c` of their own, of
:math:`w_c` and :math:`w_c^*`; rows without groups are one group.

*Far from the anchor* bounds do not hold, where an end has :math:`|w| > R`, or more events than
rows would come, :math:`\Psi q > N`. (The way between two ends is within R if they are.) There all
rows of the group are read once.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.subsampling.expansion import Expansion

MAX_PASSES = 1.0  # expected events, in passes over the rows, beyond which all rows are read


class MoveEnds(NamedTuple):
    """Ends of a move, as the rows of each group see them, shapes (G,).

    Squared lengths of w, the product of both w, and the squared length of the move.
    """

    old: Array
    new: Array
    inner: Array
    step: Array

    @classmethod
    def of(
        cls, expansion: Expansion, old: tuple[Array, Array], new: tuple[Array, Array]
    ) -> "MoveEnds":
        """Those of a move between coordinates u (p,) and v (G, d)."""
        (u, v), (new_u, new_v) = ((u[: expansion.num_seen], v) for u, v in (old, new))

        def product(a: Array, b: Array, c: Array, d: Array) -> Array:
            return a @ b + jnp.sum(c * d, axis=1)

        du, dv = new_u - u, new_v - v  # the difference of squares has no digits
        return cls(
            product(u, u, v, v),
            product(new_u, new_u, new_v, new_v),
            product(u, new_u, v, new_v),
            product(du, du, dv, dv),
        )


class Reaches(NamedTuple):
    """Reach of a move in each group, and whether all of its rows are read, shapes (G,).

    With the reach q the remainder of row i changes by at most psi_i q.
    """

    reach: Array
    is_far: Array


def reaches_of(expansion: Expansion, ends: MoveEnds) -> Reaches:
    """Reaches of a move, and whether bounds hold on its way and are worth their rows."""
    old, new, inner, step = ends
    length, order = jnp.sqrt(step), expansion.order
    between = old + inner + new
    apart = old ** (0.5 * (order + 1)) + new ** (0.5 * (order + 1))
    if order == 2:
        way = length * between
    else:
        fourth = 0.2 * (old**2 + new**2 + inner * (old + new)) + (2.0 * inner**2 + old * new) / 15.0
        way = 4.0 * length * jnp.sqrt(jnp.maximum(between / 3.0 * fourth, 0.0))
    q = jnp.minimum(apart, way)
    is_cheap = expansion.totals * q <= MAX_PASSES * expansion.sizes  # not if NaN
    is_within = jnp.maximum(old, new) <= expansion.radius**2
    return Reaches(q, ~(is_cheap & is_within) & (expansion.totals > 0))


def expected_rows(rng_key: PRNGKey, expansion: Expansion, num_moves: int = 256) -> Array:
    r"""Rows that a test reads on average, of moves between independent draws around the mode.

    Parameters
    ----------
    rng_key
        Key of the draws.
    expansion
        Of :func:`blackjax_ext.potentials.expand`, or of `expand_groups`: then of moves of what is
        shared, given the groups.
    num_moves
        Number of pairs of draws.

    Returns
    -------
    The mean of :math:`\min(\Psi q, N)`, a scalar; the draws are those of the normal approximation.
    A trajectory of length 2 is about as long. No row is read.

    Examples
    --------
    >>> import jax
    >>> from blackjax_ext import families, potentials
    >>> x = jax.random.normal(jax.random.key(0), (100_000, 3))
    >>> y = jax.random.bernoulli(jax.random.key(1), jax.nn.sigmoid(x[:, 0]))
    >>> rows = potentials.linear_predictor(lambda z: -z @ z, families.bernoulli(), (x, y))
    >>> expansion = potentials.expand(rows, x[0])
    >>> bool(potentials.expected_rows(jax.random.key(2), expansion) < 1)
    True
    """
    num_groups, width, size = expansion.frame.shear.shape
    dtype = expansion.frame.root.dtype

    def rows_of(key: PRNGKey) -> Array:
        key_u, key_v = jax.random.split(key)
        old, new = jax.random.normal(key_u, (2, size), dtype)
        v = jax.random.normal(key_v, (num_groups, width), dtype)
        reaches = reaches_of(expansion, MoveEnds.of(expansion, (old, v), (new, v)))
        events = expansion.totals * reaches.reach
        return jnp.sum(jnp.where(reaches.is_far, expansion.sizes.astype(dtype), events))

    return jnp.mean(jax.lax.map(rows_of, jax.random.split(rng_key, num_moves)))


def change_bounds(expansion: Expansion, changes: Any, at: Array) -> Array:
    r"""Bounds of changes of remainders that cost no loss, shape (n,), of rows `at` these places.

    It is the bound :math:`\psi_i q` with the change of the row's own predictor in the place of
    :math:`\rho_i |w_c|`, `changes` being those on both steps: rows with one predictor have it, it
    is infinite for others.
    """
    assert expansion.steepness is not None
    steepness = expansion.steepness[at]
    old, new = (leaf.reshape(at.size, -1)[:, 0] for leaf in jax.tree.leaves(changes)[0])
    old, new, order = steepness * old, steepness * new, expansion.order
    # the integral of |t|^k along the way
    apart = (jnp.abs(old) ** (order + 1) + jnp.abs(new) ** (order + 1)) / math.factorial(order + 1)
    if order == 2:
        way = (old * old + old * new + new * new) / 6.0
    else:
        way = jnp.abs(old + new) * (old * old + new * new) / 24.0
    q = jnp.where(old * new < 0, apart, jnp.minimum(apart, jnp.abs(new - old) * way))
    return jnp.where(jnp.isfinite(steepness), 1.001 * q, jnp.inf)  # of a bound, for rounding
