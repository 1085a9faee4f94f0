r"""Taylor coefficients of several variables as intervals over a box: interval Taylor arithmetic.

A jet of order M holds, for each multi-index :math:`\alpha` with :math:`|\alpha| \le M`, an interval
with the values of :math:`f_\alpha = \partial^\alpha f / \alpha!` at the centre c of a box, and one
with those over all of it. Sums and products of functions give jets by linearity and by
:math:`(fg)_\alpha = \sum_{\beta \le \alpha} f_\beta g_{\alpha-\beta}`. A function of one variable
gives :math:`(h \circ f)_\alpha = \sum_m h_m(f_0)\, [(f - f_0)^m]_\alpha`, where
:math:`h_m = h^{(m)} / m!` over the values of f and :math:`f - f_0` is the jet without its first
coefficient. At each point of the box these are identities between numbers, so done with
intervals they hold what the numbers are anywhere in it.

*Tightening.* Differences lose what their terms have in common. By Taylor's theorem with the
remainder of Lagrange, applied to :math:`f_\alpha` on the segment from c to any point c + h of the
box, which is convex, with :math:`p = M - |\alpha|`,

.. math::
    f_\alpha(c + h) = \sum_{|\beta| < p} \binom{\alpha + \beta}{\beta} f_{\alpha+\beta}(c) h^\beta
    + \sum_{|\beta| = p} \binom{\alpha + \beta}{\beta} f_{\alpha+\beta}(\xi) h^\beta.

So all values of :math:`f_\alpha` over the box are in what the right side gives with the intervals
at the centre for the first sum and over the box for the second, where :math:`h^\beta` is between
:math:`\pm r^\beta`, or zero and :math:`r^\beta` if all of :math:`\beta` is even. Each operation
ends with the intersection of both. What is left of the loss is of the order of
:math:`r^{M + 1 - |\alpha|}`.

*Rounding.* Sums of n terms are widened by what adding them in any order may take, (n + 8) eps of
the sum of their sizes; all else is rounded as in :mod:`blackjax_ext.subsampling.intervals`. What is
not a number is unbounded.

A jet has coefficients of those variables alone on which it depends: most steps of a density are
functions of one of its parameters.

References: R. E. Moore 1979, Methods and applications of interval analysis, chapter 3; M. Berz and
G. Hoffstätter 1998, Computation and application of Taylor polynomials with interval remainder
bounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product as product_of
from math import comb, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.subsampling.intervals import Interval, around, outward

HIGHEST = jax.lax.Precision.HIGHEST


@dataclass(frozen=True)
class Table:
    """Table of how coefficients are combined.

    Attributes
    ----------
    indices
        The multi-indices, by degree.
    product
        Of each pair of coefficients the one that its product is part of, shape (C, C, C).
    expansion
        Of each pair of a coefficient and a power of the change the factors in the expansions of the
        others, shape (C, C, C).
    degree
        Of each multi-index, shape (C,).
    """

    indices: tuple[tuple[int, ...], ...]
    product: np.ndarray
    expansion: np.ndarray
    degree: np.ndarray

    @cached_property
    def position(self) -> dict[tuple[int, ...], int]:
        """Place of a multi-index."""
        return {index: at for at, index in enumerate(self.indices)}


@cache
def index_table(size: int, order: int) -> Table:
    """The table for a number of variables and an order."""
    every = (a for a in product_of(range(order + 1), repeat=size) if sum(a) <= order)
    indices = tuple(sorted(every, key=lambda a: (sum(a), a[::-1])))
    at = {index: i for i, index in enumerate(indices)}
    product, expansion = np.zeros((2, *[len(indices)] * 3))
    for a, b in product_of(indices, repeat=2):
        both = tuple(i + j for i, j in zip(a, b, strict=True))
        if both in at:
            product[at[a], at[b], at[both]] = 1.0
            factor = prod(comb(i + j, j) for i, j in zip(a, b, strict=True))
            expansion[at[both], at[b], at[a]] = factor
    return Table(indices, product, expansion, np.array([sum(a) for a in indices]))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Jet:
    """Coefficients of a function of some of the variables of a box.

    Attributes
    ----------
    coefficients
        At the centre and over the box, shape (2, C, ...).
    over
        The variables on which it depends, in order.
    """

    coefficients: Interval
    over: tuple[int, ...] = field(metadata={"static": True})

    @property
    def values(self) -> Interval:
        """The first coefficients."""
        return Interval(self.coefficients.low[:, 0], self.coefficients.high[:, 0])

    def mapped(self, function: Callable[[Array], Array]) -> "Jet":
        """The jet with all of its coefficients mapped by `function`."""
        return Jet(jax.tree.map(function, self.coefficients), self.over)

    def __neg__(self) -> "Jet":
        """The numbers with the other sign."""
        return Jet(-self.coefficients, self.over)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Box:
    """A box of variables, and the arithmetic of functions on it.

    Attributes
    ----------
    centres, radii
        Of the variables.
    order
        M, the order of jets.
    """

    centres: tuple[Array, ...]
    radii: tuple[Array, ...]
    order: int = field(metadata={"static": True})

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the numbers."""
        return jnp.result_type(*self.centres)

    def below(self, order: int) -> "Box":
        """The box for jets of a lower order."""
        return Box(self.centres, self.radii, order)

    def table(self, over: tuple[int, ...]) -> Table:
        """How coefficients of some variables are combined."""
        return index_table(len(over), self.order)

    def powers(self, over: tuple[int, ...]) -> Interval:
        """Products of changes for each multi-index, shape (C,)."""
        low, high = [], []
        for index in self.table(over).indices:
            size = jnp.ones((), self.dtype)
            for j, power in zip(over, index, strict=True):
                for _ in range(power):
                    size = outward(size, size * self.radii[j]).high
            is_even = all(power % 2 == 0 for power in index)
            low.append(jnp.zeros_like(size) if is_even else -size)
            high.append(size)
        low[0] = high[0]
        return Interval(jnp.stack(low), jnp.stack(high))

    def variable(self, j: int) -> Jet:
        """The variable j."""
        first = around(self.centres[j], self.radii[j])
        centre, one = self.centres[j], jnp.ones((), self.dtype)
        rest = [jnp.zeros((), self.dtype)] * (self.order - 1)

        def end(value: Array) -> Array:
            rows = [jnp.stack([first, one, *rest][: self.order + 1]) for first in (centre, value)]
            return jnp.stack(rows)

        return Jet(Interval(end(first.low), end(first.high)), (j,))

    def constant(self, value: Interval) -> Jet:
        """A number that is known, in an interval of its own shape."""
        twice = jax.tree.map(lambda end: jnp.broadcast_to(end, (2, 1, *end.shape)), value)
        return Jet(twice, ())

    def lifted(self, a: Jet, over: tuple[int, ...]) -> Interval:
        """Coefficients of more variables, those of the others zero."""
        if a.over == over:
            return a.coefficients
        wide, narrow = self.table(over), self.table(a.over)
        places = [over.index(j) for j in a.over]
        targets = []
        for index in narrow.indices:
            full = [0] * len(over)
            for place, power in zip(places, index, strict=True):
                full[place] = power
            targets.append(wide.position[tuple(full)])
        shape = (2, len(wide.indices), *a.coefficients.low.shape[2:])
        embedded: Interval = jax.tree.map(
            lambda end: jnp.zeros(shape, self.dtype).at[:, np.array(targets)].set(end),
            a.coefficients,
        )
        return embedded

    def joined(self, a: Jet, b: Jet) -> tuple[tuple[int, ...], Interval, Interval]:
        """Coefficients of both in the variables of either."""
        over = tuple(sorted({*a.over, *b.over}))
        x, y = self.lifted(a, over), self.lifted(b, over)
        num = max(x.low.ndim, y.low.ndim)  # a program may combine an array and a number
        return over, with_axes(x, num), with_axes(y, num)

    def add(self, a: Jet, b: Jet) -> Jet:
        """Sums."""
        over, x, y = self.joined(a, b)
        return self.tightened(Jet(x + y, over))

    def multiply(self, a: Jet, b: Jet) -> Jet:
        """Products."""
        over, x, y = self.joined(a, b)
        if not (a.over and b.over):  # of numbers with each coefficient
            x, number = (x, b) if a.over else (y, a)
            return Jet(x * with_axes(number.coefficients, x.low.ndim), over)
        return self.tightened(Jet(combined(x, y, self.table(over).product), over))

    def composed(self, coefficients: Sequence[Interval], a: Jet) -> Jet:
        """A function of one variable by its Taylor coefficients over the values of `a`.

        By Horner's rule, in which a power of the change is no longer needed beyond the order that
        those to come leave.
        """
        *lower, highest = coefficients
        composed = Interval(highest.low[:, None], highest.high[:, None])
        change = jax.tree.map(lambda end: end.at[:, 0].set(0.0), a.coefficients)
        for order, lower_order in enumerate(reversed(lower), 1):
            table = index_table(len(a.over), order)
            num = len(table.indices)
            of_order = jax.tree.map(lambda end, num=num: end[:, :num], change)
            pairs = table.product[: composed.low.shape[1]]
            composed = with_first(combined(composed, of_order, pairs), lower_order)
        return self.tightened(Jet(composed, a.over))

    def tightened(self, a: Jet) -> Jet:
        """The intersection with the expansions at the centre."""
        whole = unbounded_if_nan(a.coefficients)
        if self.order == 0 or not a.over:
            return Jet(whole, a.over)
        table = self.table(a.over)
        shape = (-1, *[1] * (whole.low.ndim - 2))
        is_last = (table.degree == self.order).reshape(shape)
        term = jax.tree.map(lambda end: jnp.where(is_last, end[1], end[0])[None], whole)
        power = jax.tree.map(lambda end: end.reshape(1, *shape), self.powers(a.over))
        bound = unbounded_if_nan(combined(term, power, table.expansion))
        return Jet(
            Interval(whole.low.at[1].max(bound.low[0]), whole.high.at[1].min(bound.high[0])),
            a.over,
        )

    def derivative(self, a: Jet, j: int) -> Jet:
        """The jet of the derivative by variable j, of one order less."""
        lower = index_table(len(a.over), self.order - 1)
        if j not in a.over:
            return a.mapped(lambda end: jnp.zeros_like(end[:, : len(lower.indices)]))
        at = a.over.index(j)
        up = [(*i[:at], i[at] + 1, *i[at + 1 :]) for i in lower.indices]
        places = np.array([self.table(a.over).position[i] for i in up])
        factor = jnp.asarray([i[at] for i in up], self.dtype)
        factor = factor.reshape(-1, *[1] * (a.coefficients.low.ndim - 2))
        coefficients = jax.tree.map(lambda end: end[:, places], a.coefficients)
        return Jet(coefficients * Interval(factor, factor), a.over)

    def truncated(self, a: Jet, order: int) -> Jet:
        """The jet of a lower order."""
        num = len(index_table(len(a.over), order).indices)
        return a.mapped(lambda end: end[:, :num])

    def integrated(self, value: Interval, slopes: dict[int, Jet]) -> Jet:
        """The jet of a function by its values and its derivatives, by variable."""
        over, lower = tuple(sorted(slopes)), self.below(self.order - 1)
        lifted = {j: lower.lifted(jet, over) for j, jet in slopes.items()}
        table, parts = self.table(over), [jax.tree.map(lambda end: end[:, None], value)]
        for index in table.indices[1:]:
            at = next(i for i, power in enumerate(index) if power)
            place = lower.table(over).position[(*index[:at], index[at] - 1, *index[at + 1 :])]
            part = jax.tree.map(lambda end, p=place: end[:, p : p + 1], lifted[over[at]])
            share = jnp.asarray(1.0 / index[at], self.dtype)
            parts.append(part * Interval(share, share) if index[at] > 1 else part)
        joined = jax.tree.map(lambda *ends: jnp.concatenate(ends, axis=1), *parts)
        return self.tightened(Jet(joined, over))


def combined(a: Interval, b: Interval, weight: np.ndarray) -> Interval:
    """Sums over pairs of coefficients (n, C, ...) and (n, C', ...) with weights (C, C', C'')."""
    ends = [x[:, :, None] * y[:, None] for x in (a.low, a.high) for y in (b.low, b.high)]
    low = jnp.minimum(jnp.minimum(*ends[:2]), jnp.minimum(*ends[2:]))
    high = jnp.maximum(jnp.maximum(*ends[:2]), jnp.maximum(*ends[2:]))
    size, info = jnp.maximum(jnp.abs(low), jnp.abs(high)), jnp.finfo(low.dtype)
    factor = jnp.asarray(weight, low.dtype)

    def sums(terms: Array) -> Array:
        return jnp.einsum("nab...,abc->nc...", terms, factor, precision=HIGHEST)

    num = int(np.max(np.sum(weight > 0, axis=(0, 1))))
    slack = (num + 8) * (info.eps * sums(size) + float(weight.max()) * info.tiny)
    return Interval(sums(low) - slack, sums(high) + slack)


def with_axes(a: Interval, num: int) -> Interval:
    """The interval with so many axes."""
    wider: Interval = jax.tree.map(lambda end: end.reshape(*end.shape, *[1] * (num - end.ndim)), a)
    return wider


def with_first(a: Interval, value: Interval) -> Interval:
    """Coefficients with a number added to the first."""
    first = Interval(a.low[:, 0], a.high[:, 0]) + value
    return Interval(a.low.at[:, 0].set(first.low), a.high.at[:, 0].set(first.high))


def unbounded_if_nan(a: Interval) -> Interval:
    """The interval, unbounded where rounding or a domain has left NaN."""
    is_lost = jnp.isnan(a.low) | jnp.isnan(a.high)
    return Interval(jnp.where(is_lost, -jnp.inf, a.low), jnp.where(is_lost, jnp.inf, a.high))
