r"""Families of any smooth density of few predictors, with bounds that are read from its program.

The program of the density is read on jets (:mod:`blackjax_ext.subsampling.taylor.reader`): what it
computes is followed with intervals of its Taylor coefficients over the box of a row, and the
derivatives of the outcome are bounded by their ends.

*Soundness.* Each operation on jets holds the coefficients of all points of the box
(:mod:`blackjax_ext.subsampling.taylor.jets`), those of its arguments being held: by induction over
the program those of the density are. Rounding is outwards throughout. What is not known is
unbounded, and a bound that is infinite has all rows read.

*Cost.* Of logits and of Poisson counts these bounds are those that families write by hand, to 1e-4.
But those are a line of code and take .05 microseconds a row, jets 3, with 2.6 s of compilation: the
set-up of 100,000 rows of 20 coefficients took 9.8 s of a processor for 6.1 of logits, 11.2 for 7.8
of counts, and as long with jets of order 3. So families keep their own.

*Looseness.* A difference of terms that are larger than it loses, the more so the wider the box. The
orders beyond the third that jets carry win most of it back where boxes are narrow, so it is lost
where there are few rows. A density whose terms have been arranged not to cancel has tighter bounds.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.families.kind import Ball, Family, Kind, Number, symmetric
from blackjax_ext.subsampling.intervals import Interval, magnitude
from blackjax_ext.subsampling.taylor.jets import Box, Jet
from blackjax_ext.subsampling.taylor.reader import derivatives_over
from blackjax_ext.types import Function, LogDensity

# most predictors that a density may have
MOST = 4


def smooth(logdensity_fn: LogDensity, predictors: Sequence[str], /, **known: Any) -> Family:
    r"""Any smooth density of few predictors, with bounds that are read from its program.

    For responses with a family of their own, prefer that: its bounds are tighter and take less
    time to find.

    Parameters
    ----------
    logdensity_fn
        ``logdensity_fn(y, **parameters)``, the log density of one response given its predictors and
        what else is known of it, by their names: scalars. It may consist of sums, products,
        quotients, powers, exp, log, log1p, expm1, logistic, softplus, tanh, sqrt, erf, lgamma and
        digamma, and choose between values by what is known of the response.
    predictors
        Names of at most four of them, on unconstrained scales (a mean, a log scale). Those that
        are not among `known` are free, in the order of `predict_fn`'s outcomes.
    known
        Known predictors and other parameters by name, each a number or one for each row.

    Returns
    -------
    The family. Cost of the bounds: some ten thousand operations per row and operation of the
    density, once for each expansion.

    Raises
    ------
    UnreadableError
        For a density with an operation of which no bounds are known here, such as one that is not
        smooth: a ValueError that names the primitive.
    ValueError
        For no predictors, too many, or none that is free.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from blackjax_ext import families
    >>> def gompertz(y, log_rate, log_concentration):
    ...     rate = jnp.exp(log_rate)
    ...     grown = jnp.exp(log_concentration) * jnp.expm1(rate * y)
    ...     return log_concentration + log_rate + rate * y - grown
    >>> families.smooth(gompertz, ["log_rate", "log_concentration"]).kind.free
    ('log_rate', 'log_concentration')
    >>> try:
    ...     families.smooth(lambda y, loc: -jnp.abs(y - loc), ["loc"])
    ... except ValueError as error:
    ...     print(str(error).split(":")[0])
    the primitive 'abs' in it
    """
    names = tuple(predictors)
    if not 1 <= len(names) <= MOST:
        raise ValueError(f"predictors must be one to {MOST} names; got {predictors!r}.")
    free = [name for name in names if name not in known]
    if not free:
        raise ValueError(f"one of the predictors {list(names)} must be free; all are known.")
    kind = smooth_kind("smooth", names, logdensity_fn).having(*free)
    check_readable(kind, known)
    return Family(kind, known)


def check_readable(kind: Kind, known: Iterable[str]) -> None:
    """Raise UnreadableError for an operation of which no bounds are known."""
    number = jax.ShapeDtypeStruct((), jnp.result_type(float))
    eta = jax.ShapeDtypeStruct((len(kind.free),), number.dtype)
    parameters = dict.fromkeys(known, number)
    jax.eval_shape(lambda *given: kind.bounds(3, *given), eta, eta, number, parameters)


@cache
def smooth_kind(
    name: str, predictors: tuple[str, ...], logdensity_fn: LogDensity, rounding: Any = None
) -> Kind:
    """The kind of ``logdensity_fn(y, **parameters)``; the same one for the same arguments."""

    def loss(theta: Any, y: Any, **data: Any) -> Any:
        return -logdensity_fn(y, **dict(zip(predictors, theta, strict=True)), **data)

    def jet(box: Box, theta: list[Number], free: Any, y: Any, data: dict[str, Any]) -> Jet:
        def of_free(variables: Any) -> Any:
            full = list(theta)
            for j, value in zip(free, variables, strict=True):
                full[j] = value
            return loss(full, y, **data)

        return derivatives_over(of_free, box)

    def sizes(order: int, balls: Any, y: Any, **data: Any) -> Any:
        box, free = box_of(balls)
        return sizes_of(
            order, jet(box, [ball.centre for ball in balls], free, y, data), free, balls
        )

    def reach(theta: Any, y: Any, **data: Any) -> tuple[Number, ...]:
        return tuple(reach_along(lambda t: loss(t, y, **data), theta, j) for j in range(len(theta)))

    ones = (1.0,) * len(predictors)
    rounding = rounding or (lambda theta: ones)
    return Kind(name, predictors, loss, sizes, reach, rounding=rounding, guesses_reach=True)


def order_for(size: int) -> int:
    """The order of the jets of so many predictors: the more there are, the more it costs."""
    return 5 if size <= 2 else 4


def box_of(balls: tuple[Ball, ...]) -> tuple[Box, tuple[int, ...]]:
    """The box of the balls, and which these are: not those of which it is known that they stay."""
    free = [j for j, ball in enumerate(balls) if isinstance(ball.radius, jax.Array) or ball.radius]
    dtype = jnp.result_type(*[ball.centre for ball in balls])
    centres = tuple(jnp.asarray(balls[j].centre, dtype) for j in free)
    radii = tuple(jnp.asarray(balls[j].radius, dtype) for j in free)
    return Box(centres, radii, order_for(len(free))), tuple(free)


def sizes_of(order: int, jet: Jet, free: tuple[int, ...], balls: tuple[Ball, ...]) -> Array:
    """Bounds of the derivatives of an order from a jet over some of the predictors."""
    full = Box(tuple(ball.centre for ball in balls), (), order_for(len(free)))
    over = tuple(free[j] for j in jet.over)
    table, entries = full.table(over), {}
    for index in combinations_with_replacement(over, order):
        power = tuple(index.count(j) for j in over)
        at = table.position[power]
        ends = Interval(jet.coefficients.low[1, at], jet.coefficients.high[1, at])
        size = magnitude(ends) * prod(map(factorial, power))
        entries["".join(map(str, index))] = jnp.where(jnp.isnan(size), jnp.inf, size)
    return symmetric(len(balls), entries)


def reach_along(loss: Function, theta: Array, j: int) -> Number:
    r"""A fraction of the distance to a singularity along predictor j, as derivatives tell it.

    Those of a function with a singularity at the distance r grow as :math:`m! r^{-m}`. So
    :math:`|f''/f^{(m)}|^{1/(m-2)}`, the least of it for m = 3, 4, 5, is r times 1/3, 0.29 and 0.26
    where coefficients fall geometrically, one for an exponential, and without limit for a
    parabola. Where f'' happens to be small it is small, and remainders are differences. Of products
    of predictors it knows nothing: the quadrature along a move is checked, too
    (:func:`blackjax_ext.subsampling.predictors.loss_remainder`).
    """
    box = Box((theta[j],), (jnp.zeros_like(theta[j]),), 5)
    coefficients = derivatives_over(
        lambda t: loss([*theta[:j], t[0], *theta[j + 1 :]]), box
    ).coefficients
    middle = 0.5 * (coefficients.low[0] + coefficients.high[0])
    middle = jnp.abs(jnp.pad(middle, (0, 6 - middle.size)))
    second, *rest = (middle[m] * factorial(m) for m in range(2, 6))
    ratios = [
        jnp.where(higher > 0, (second / jnp.where(higher > 0, higher, 1.0)) ** (1 / m), jnp.inf)
        for m, higher in enumerate(rest, 1)
    ]
    least = jnp.minimum(jnp.minimum(*ratios[:2]), ratios[2])
    return jnp.where(jnp.isnan(least), 0.0, least)
