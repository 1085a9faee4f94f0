r"""Posteriors whose rows depend on the position through linear predictors alone.

.. math::
    U(x) = -\log p(x) + \sum_{i=1}^N \phi_i(\eta_i(x)), \qquad \eta_i(x) = A_i x + b_i \in
    \mathbb{R}^K,

with any prior and rows of a family of :mod:`blackjax_ext.families`: linear, logistic,
count, duration, ordinal and robust regression with whatever scales and shapes are sampled, and
multilevel ones among them.

*Expansion.* At an anchor :math:`a`, with :math:`d = x - a = L w` and :math:`t_i = A_i d`, a row is
its expansion of order k = 2, or 3 for groups, and a remainder,

.. math::
    r_i(x) = \phi_i(\eta_i) - \phi_i(a_i) - \nabla\phi_i(a_i)^T t_i
    - \tfrac12 t_i^T \nabla^2\phi_i(a_i) t_i \;[ - \dots ], \qquad |r_i(x)| \le \psi_i |w|^{k+1},

where :math:`a_i = \eta_i(a)`, with the bounds :math:`\psi_i` of
:mod:`blackjax_ext.subsampling.row_bounds`. The columns of :math:`L` are the Cholesky factor of the
covariance that the curvature at the anchor implies, of the coordinates that the rows see: then
:math:`|w|^2` is about their number. Summed over the rows, the expansions are one gradient and one
Hessian. The prior is never expanded.

*Remainders in single precision.* A remainder of 1e-8 cannot be had as a difference of numbers near
one. Within the reach of its family it is the integral :math:`\int_0^1 \frac{(1-s)^k}{k!}
\frac{d^{k+1}}{ds^{k+1}} \phi_i(a_i + s t_i)\, ds` by a Gauss-Legendre rule of five points, and the
difference beyond, where it is large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import count_rows
from blackjax_ext.precision import exact_products
from blackjax_ext.subsampling.families import Family, Kind
from blackjax_ext.types import Function, LogDensity

LEGENDRE_NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)
LEGENDRE_NODES, WEIGHTS = 0.5 + 0.5 * LEGENDRE_NODES, 0.5 * WEIGHTS  # on (0, 1)
THREE = LEGENDRE_NODES[[0, 2, 4]]
# values at all nodes from those at three of them, by the parabola through these
PARABOLA = np.zeros((5, 5))
PARABOLA[:, [0, 2, 4]] = np.vander(LEGENDRE_NODES, 3) @ np.linalg.inv(np.vander(THREE, 3))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearPredictor:
    """A posterior of the kind above; see :func:`linear_predictor`.

    Attributes
    ----------
    logprior
        Log density of everything that is not a row: pytree to scalar.
    read
        ``read(x, indices) -> (eta, rows)``. Both are tuples with an entry for each of `kinds`:
        predictors, affine in x, of shape (n, m, k) for m responses in a row that have k predictors
        each; and what their losses need, a `Responses`.
    kinds
        Families of the responses.
    num_rows
        Number of rows, N.
    """

    logprior: Callable[[ArrayTree], Array]
    read: Callable[[ArrayTree, Array], tuple[Any, Any]]
    kinds: tuple[Kind, ...] = field(metadata={"static": True})
    num_rows: int = field(metadata={"static": True})

    def loss(self, eta: Any, row: Any) -> Array:
        """Minus the log likelihood of one row up to a constant."""
        terms = [
            jnp.sum(part.weight * jax.vmap(kind.call)(e, part.y, part.parameters))
            for kind, e, part in zip(self.kinds, eta, row, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def rounding(self, eta: Any, row: Any) -> Array:
        """Rounding of the predictors of one row, flat, in units of eps; of families where known."""
        parts = zip(self.kinds, eta, row, strict=True)
        of = [jax.vmap(kind.roundings)(e, part.parameters).ravel() for kind, e, part in parts]
        return jnp.concatenate(of)

    def reach(self, eta: Any, row: Any) -> Array:
        """Changes of the predictors of one row, flat, within which quadrature is accurate."""
        parts = zip(self.kinds, eta, row, strict=True)
        of = [jax.vmap(kind.reaches)(e, r.y, r.parameters).ravel() for kind, e, r in parts]
        return jnp.concatenate(of)


class Responses(NamedTuple):
    """Responses of one kind, of rows that have m of them.

    Attributes
    ----------
    y
        Values, shape (n, m).
    parameters
        Known parameters of the family by name, shapes (n, m).
    weight
        What their log likelihoods are multiplied by, shape (n, m).
    """

    y: Array
    parameters: dict[str, Array]
    weight: Array


def linear_predictor(
    logprior_fn: LogDensity,
    family: Family,
    data: tuple[ArrayLikeTree, ArrayLikeTree],
    *,
    predict_fn: Function = lambda x, row: row @ x,
) -> LinearPredictor:
    r"""A posterior whose rows depend on the position through linear predictors.

    Parameters
    ----------
    logprior_fn
        Log density of the prior: pytree to scalar. It is never expanded or left out.
    family
        Of :mod:`blackjax_ext.families`: the law of a response given its predictor.
    data
        Covariates, a pytree of arrays, and responses, an array; all lead with the N rows.
    predict_fn
        ``predict_fn(x, row)``, the predictors of a row of the covariates: a scalar, or shape (k,)
        for the k that the family leaves free (of a categorical response, its logits). They must be
        affine in x, which `expand` checks.

    Returns
    -------
    The posterior, to be expanded with :func:`blackjax_ext.potentials.expand`.

    Raises
    ------
    ValueError, TypeError
        For data without rows or with different numbers of rows, a family that is none, parameters
        of a family that are neither one number nor one per row.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import acceptance, families, potentials
    >>> x = jax.random.normal(jax.random.key(0), (20_000, 3))
    >>> y = jax.random.bernoulli(jax.random.key(1), jax.nn.sigmoid(x[:, 0])).astype(jnp.float32)
    >>> posterior = potentials.linear_predictor(
    ...     lambda theta: -0.5 * jnp.sum(theta**2), families.bernoulli(), (x, y)
    ... )
    >>> expansion = potentials.expand(posterior, jnp.zeros(3))
    >>> amagold = blackjax_ext.amagold(
    ...     potentials.expanded_minibatch(expansion, batch_size=0),
    ...     0.5,
    ...     expansion.metric,
    ...     num_integration_steps=4,
    ...     friction=0.0,
    ...     acceptance=acceptance.subsampled(expansion),
    ... )
    >>> state = amagold.init(expansion.position)
    >>> state, info = jax.jit(amagold.step)(jax.random.key(2), state)
    >>> bool(info.acceptance_rate > 0.9), int(info.num_rows) < 100
    (True, True)
    """
    if not isinstance(family, Family):
        raise TypeError(
            "family must be one that blackjax_ext.families makes, such as bernoulli(); "
            f"got {type(family).__name__}."
        )
    covariates, responses = jax.tree.map(jnp.asarray, data)
    num_rows = count_rows(data)
    parameters = jax.tree.map(jnp.asarray, dict(family.parameters))
    for name, value in parameters.items():
        if value.shape not in ((), (num_rows,)):
            raise ValueError(
                f"{name} of the family must be one number or one for each of the {num_rows} rows; "
                f"got shape {value.shape}."
            )
    read = Partial(
        partial(read_data, predict_fn, len(family.kind.free)), covariates, responses, parameters
    )
    return LinearPredictor(Partial(logprior_fn), read, (family.kind,), num_rows)


@exact_products
def read_data(
    predict_fn: Function,
    num_free: int,
    covariates: ArrayTree,
    responses: Array,
    parameters: dict[str, Array],
    x: ArrayTree,
    indices: Array,
) -> tuple[Any, Any]:
    """Predictors and responses of some rows of arrays."""
    rows = jax.tree.map(lambda a: a[indices], covariates)
    eta = jax.vmap(lambda row: jnp.atleast_1d(predict_fn(x, row)))(rows)
    if eta.ndim != 2 or num_free not in (0, eta.shape[1]):
        raise ValueError(
            f"predict_fn must return the {num_free or 'K'} predictors that the family leaves free, "
            f"in one axis; got shape {eta.shape[1:]}."
        )
    of_rows = {
        name: (value[indices] if value.ndim else jnp.broadcast_to(value, indices.shape))[:, None]
        for name, value in parameters.items()
    }
    weight = jnp.ones((*indices.shape, 1), eta.dtype)
    return (eta[:, None],), (Responses(responses[indices][:, None], of_rows, weight),)


def loss_remainder(posterior: LinearPredictor, order: int, eta: Any, t: Any, row: Any) -> Array:
    """Loss of a row less its expansion of order `order` at the predictors `eta`.

    `t` is the change of the predictors. Cost: a dozen evaluations of the loss.
    """

    def along(s: Array) -> tuple[Array, ...]:
        return (posterior.loss(jax.tree.map(lambda e, c: e + s * c, eta, t), row),)

    upto: AlongLine = along  # all derivatives along t, up to the order of the expansion
    for _ in range(order):
        upto = with_derivative(upto)
    dtype = jnp.result_type(*jax.tree.leaves(t))
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    (far,) = along(one)
    for power, known in enumerate(upto(zero)):
        far = far - known / math.factorial(power)
    weights = jnp.asarray(WEIGHTS * (1 - LEGENDRE_NODES) ** order / math.factorial(order), dtype)
    is_near = jnp.all(jnp.abs(ravel_pytree(t)[0]) <= posterior.reach(eta, row))
    values = jax.vmap(lambda s: with_derivative(upto)(s)[-1])(jnp.asarray(LEGENDRE_NODES, dtype))
    if any(kind.guesses_reach for kind in posterior.kinds):
        is_near = is_near & is_resolved(weights, values)
    return jnp.where(is_near, weights @ values, far)


def is_resolved(weights: Array, values: Array) -> Array:
    """Whether a parabola through three of the values has nearly their integral.

    A reach that is found along each predictor says nothing of a product of two.
    """
    off = jnp.abs(weights @ (values - jnp.asarray(PARABOLA, values.dtype) @ values))
    # how far a parabola may be off for the rule to be trusted: of the integral of sizes, or in all
    return off <= jnp.maximum(0.01 * (weights @ jnp.abs(values)), 1e-5)


AlongLine: TypeAlias = Callable[[Array], tuple[Array, ...]]


def with_derivative(function: AlongLine) -> AlongLine:
    """A function's values, and the derivative of the last of them."""

    def both(s: Array) -> tuple[Array, ...]:
        values, slopes = jax.jvp(function, (s,), (jnp.ones_like(s),))
        return (*values, slopes[-1])

    return both
