r"""A log density as a sum over rows, for what reads a few of them.

Up to a constant,

.. math::
    \log \pi(x) = k(x) + \sum_{i=1}^N \ell_i(x),

with a part :math:`k` that is known without the rows. At first these are the log prior and the log
likelihoods. With an expansion of the full data at an anchor, the sum of the rows' expansions is
known too, and :math:`\ell_i` shrinks to what the expansion of row `i` leaves: differences of
:math:`\ell_i` between two positions are then of the third order instead of the first, and a test
that estimates their sum from a few rows needs far fewer (the difference estimator of Quiroz et al.
2019; Cornish et al. 2019).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

__all__ = ["Rows", "change", "count_rows", "expanded", "gain"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """A log density, up to a constant, as a known part and a term for each row.

    known
        ``known(x)``, a scalar that is computed without the rows: at first the log prior.
    terms
        ``terms(x, indices)``, the terms of the rows with these indices, shape (n,): at first log
        likelihoods.
    num_rows
        N; indices are from 0 to N - 1.
    """

    known: Callable[[ArrayTree], Array]
    terms: Callable[[ArrayTree, Array], Array]
    num_rows: int = field(metadata={"static": True})


def change(rows: Rows, old: ArrayTree, new: ArrayTree, indices: Array) -> Array:
    """Differences of the terms of some rows from `old` to `new`, shape (n,). Cost: 2 n terms."""
    return rows.terms(new, indices) - rows.terms(old, indices)


def gain(rows: Rows, old: ArrayTree, new: ArrayTree) -> Array:
    """Difference of the known part from `old` to `new`."""
    return rows.known(new) - rows.known(old)


def expanded(rows: Rows, anchor: Any) -> Rows:
    r"""`rows` with the expansion of the full data at `anchor` taken out of the terms.

    With :math:`d = x - a`, :math:`T[f](d) = \nabla f(a)^T d + \frac12 d^T \nabla^2 f(a) d` and
    :math:`U = -k - \sum \ell_i`, the terms become :math:`\ell_i(x) - \ell_i(a) - T[\ell_i](d)` and
    the known part :math:`k(x) - k(a) - T[k](d) - T[U](d)`, which adds up to the same density. The
    second derivatives are left out of both if the anchor has no Hessian.

    Cost: a term is evaluated at two places, with two directional derivatives at the anchor.
    """
    return Rows(Partial(known, rows, anchor), Partial(remainders, rows, anchor), rows.num_rows)


def known(rows: Rows, anchor: Any, x: ArrayTree) -> Array:
    """What `rows` knows, its own expansion exchanged for that of the energy."""
    d = ravel_pytree(x)[0] - ravel_pytree(anchor.position)[0]
    energy = anchor.gradient @ d
    if anchor.hessian is not None:
        energy = energy + 0.5 * d @ (anchor.hessian @ d)
    return remainder(rows.known, anchor, x) - energy


def remainders(rows: Rows, anchor: Any, x: ArrayTree, indices: Array) -> Array:
    """What the expansions of some rows leave of their terms."""
    return remainder(partial(at, rows, indices), anchor, x)


def at(rows: Rows, indices: Array, x: ArrayTree) -> Array:
    """Terms as a function of the position."""
    return rows.terms(x, indices)


def remainder(function: Callable[[ArrayTree], Array], anchor: Any, x: ArrayTree) -> Array:
    """``function(x)`` less its expansion at the anchor, to the order that the anchor has."""
    a, unravel = ravel_pytree(anchor.position)
    d = ravel_pytree(x)[0] - a

    def along(s):
        return function(unravel(a + s * d))

    def slope(s):
        return jax.jvp(along, (s,), (one,))

    zero, one = d.dtype.type(0.0), d.dtype.type(1.0)
    if anchor.hessian is None:
        value, first = slope(zero)
        return function(x) - value - first
    (value, first), (_, second) = jax.jvp(slope, (zero,), (one,))
    return function(x) - value - first - 0.5 * second


def count_rows(data: ArrayTree) -> int:
    """Number of rows; ValueError for none or for arrays with different numbers of them."""
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(shapes) != 1 or shapes <= {(), (0,)}:
        found = sorted(jnp.shape(leaf) for leaf in jax.tree.leaves(data))
        raise ValueError(f"data must be arrays that lead with the same N > 0 rows; got {found}.")
    return shapes.pop()[0]
