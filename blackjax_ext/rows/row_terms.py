r"""A log density as a sum over rows, for tests that read a few of them.

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

import jax
from blackjax.types import ArrayTree
from jax import Array

__all__ = ["Rows", "change", "gain"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """A log density, up to a constant, as a known part and a term for each row.

    Attributes
    ----------
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
