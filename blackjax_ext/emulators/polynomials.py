r"""Outputs of a dear function as polynomials, fitted to values and derivatives.

With :math:`q = R (x - a)`, whitened coordinates of what the outputs depend on, an output (or its
logarithm, where the output is always positive) is a sum of monomials of :math:`q` with
coefficients by weighted least squares; the derivative along a coordinate is one more equation with
the weight of the value. A point has the weight :math:`\exp(-q^2 / 20)`: it counts less the farther
it is from where the posterior is.

A polynomial says nothing outside of the points that it was fitted to. From the radius :math:`r_0`
on that holds them, the outputs are those on the sphere, and the log density loses :math:`|q| -
r_0`, so that it falls even where the prior is flat.

Reference: S. Conrad et al. 2016 and A. Christen et al. use such local fits; here it is one fit.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

FALL = 0.05  # of a point's log weight by the square of its distance, as in the first trials
RIDGE = 1e-8  # of the coefficients, where equations are fewer than terms in some direction
HIGHEST = 4  # degree of a form
# terms have room for a multiple of so many: forms of the outbreak with 56, 61 and 126 are two
# programs in place of three, which take ten seconds each
ROOM = 64
MARGIN = 1.1  # radius of the polynomial, by that of the outermost point


ArrayLike: TypeAlias = Any  # of NumPy where it is fitted, of JAX where it is evaluated


class Points(NamedTuple):
    """Evaluations of a function of D coordinates, N in number, in NumPy's double precision.

    x
        Positions, (N, D).
    outputs
        Values, (N, M).
    jacobians
        Derivatives by the coordinates that outputs depend on, (N, M, p); None where there are none.
    """

    x: np.ndarray
    outputs: np.ndarray
    jacobians: Any = None

    def and_also(self, other: "Points") -> "Points":
        """These and others."""
        joined: Points = jax.tree.map(lambda a, b: np.concatenate([a, b]), self, other)
        return joined

    @property
    def num_equations(self) -> int:
        """Values and derivatives of an output."""
        slopes = self.jacobians
        return len(self.x) * (1 if slopes is None else 1 + slopes.shape[-1])

    def finite(self) -> "Points":
        """Those whose values and derivatives are finite."""
        is_finite = np.isfinite(self.outputs).all(1)
        if self.jacobians is not None:
            is_finite &= np.isfinite(self.jacobians).all((1, 2))
        kept: Points = jax.tree.map(lambda a: a[is_finite], self)
        return kept


class Form(NamedTuple):
    """The form of an emulator.

    degree
        Largest degree of its monomials.
    num_curved
        Coordinates, of the p, of which there are monomials of that degree; of the others there are
        those of one degree less.
    is_log
        Whether outputs that are positive at all points are emulated by their logarithms.
    """

    degree: int
    num_curved: int
    is_log: bool

    def num_terms(self, size: int) -> int:
        """Number of monomials of `size` coordinates."""
        lower = math.comb(size + self.degree - 1, self.degree - 1)
        return lower + math.comb(self.num_curved + self.degree - 1, self.degree)

    def terms(self, size: int) -> np.ndarray:
        """Factors of each monomial: indices into (1, q), shape (P, degree)."""
        lower = itertools.combinations_with_replacement(range(size + 1), self.degree - 1)
        top = range(1, self.num_curved + 1)
        highest = itertools.combinations_with_replacement(top, self.degree)
        all_terms = [(0, *term) for term in lower] + list(highest)
        return np.array(all_terms, np.int32).reshape(-1, self.degree)


class Emulator(NamedTuple):
    """Outputs as polynomials.

    active
        Indices of the coordinates of a position that outputs depend on, (p,).
    center, root
        a, (p,), and R, (p, p).
    terms
        Factors of each monomial, (P, degree).
    coefficients
        Of monomials and outputs, (P, M).
    is_log
        Which outputs are emulated by their logarithms, (M,).
    radius
        r_0 of the points.
    """

    active: ArrayLike
    center: ArrayLike
    root: ArrayLike
    terms: ArrayLike
    coefficients: ArrayLike
    is_log: ArrayLike
    radius: ArrayLike

    def cast(self, dtype: Any) -> "Emulator":
        """The emulator as arrays of JAX, its numbers of that type."""

        def cast(leaf: Any) -> Array:
            floats = jnp.issubdtype(leaf.dtype, jnp.floating)
            return jnp.asarray(leaf, dtype if floats else None)

        return Emulator(*map(cast, self))

    def distance(self, x: np.ndarray) -> np.ndarray:
        """How far positions, (N, D), are outside of the sphere that holds the points, (N,)."""
        q = (x[:, self.active] - self.center) @ self.root.T
        distance: np.ndarray = np.maximum(np.sqrt((q**2).sum(1)) - self.radius, 0.0)
        return distance

    def is_beyond(self, x: np.ndarray) -> np.ndarray:
        """Whether positions, (N, D), are outside of that sphere, (N,)."""
        return self.distance(x) > 0.0

    def at(self, x: Array) -> tuple[Array, Array]:
        """The outputs at `x`, (D,), and what the log density loses there."""
        q = self.root @ (x[self.active] - self.center)
        square = q @ q
        distance = jnp.sqrt(jnp.where(square > self.radius**2, square, self.radius**2))
        inside = q * (self.radius / distance)
        factors = jnp.concatenate([jnp.ones(1, q.dtype), inside])[self.terms]
        found = jnp.prod(factors, 1) @ self.coefficients
        return jnp.where(self.is_log, jnp.exp(jnp.where(self.is_log, found, 0.0)), found), (
            distance - self.radius
        )


def emulated_density(
    logdensity_of_outputs: Callable[[Array, Array], Array], emulator: Emulator
) -> Callable[[Array], Array]:
    """Log density with emulated outputs."""

    def logdensity(x: Array) -> Array:
        outputs, loss = emulator.at(x)
        return logdensity_of_outputs(x, outputs) - loss

    return logdensity


def form_of(size: int, num_equations: int, *, is_log: bool, degree: int = 3) -> Form:
    """The form of at most that degree of which there are half as many terms as equations."""
    for lower in range(degree, 1, -1):
        for num_curved in range(size, -1, -1):
            form = Form(lower, num_curved, is_log)
            if 1.5 * form.num_terms(size) <= num_equations:
                return form
    return Form(2, 0, is_log)


def linear(
    x: np.ndarray, outputs: np.ndarray, jacobian: np.ndarray, active: np.ndarray
) -> Emulator:
    """The expansion of first order at x, (D,), as an emulator without end.

    Of logarithms, where outputs are positive.
    """
    is_log = outputs > 0
    point = Points(x[None], outputs[None], jacobian[None])
    values, slopes = transformed(point, is_log)
    size = len(active)
    return Emulator(
        active,
        x[active],
        np.eye(size),
        np.arange(size + 1, dtype=np.int32)[:, None],
        np.concatenate([values, slopes[0].T]),
        is_log,
        np.array(1e6),
    )


def transformed(points: Points, is_log: np.ndarray) -> tuple[np.ndarray, Any]:
    """Outputs, or their logarithms, and their derivatives."""
    values, slopes = points.outputs, points.jacobians
    safe = np.where(is_log, values, 1.0)
    values = np.where(is_log, np.log(safe), values)
    if slopes is not None:
        slopes = np.where(is_log[:, None], slopes / safe[..., None], slopes)
    return values, slopes


def fitted(
    points: Points,
    mean: np.ndarray,
    covariance: np.ndarray,
    *,
    active: np.ndarray,
    form: Form,
    weights: np.ndarray | None = None,
) -> Emulator:
    """The emulator of a form, in coordinates in which a normal law is standard.

    Parameters
    ----------
    mean, covariance
        Of that law, of all D coordinates.
    weights
        Precision of each output, (M,), by which directions are ranked in which derivatives change.
    """
    is_log = np.asarray(form.is_log & (points.outputs > 0).all(0))
    center, spread = mean[active], covariance[np.ix_(active, active)]
    root = np.linalg.inv(np.linalg.cholesky(spread))
    values, slopes = transformed(points, is_log)
    if slopes is not None:
        slopes = slopes @ np.linalg.inv(root)
        if form.num_curved < len(active):
            rotation = changing_directions(slopes, weights)
            root, slopes = rotation.T @ root, slopes @ rotation
    q = (points.x[:, active] - center) @ root.T
    terms = form.terms(len(active))
    coefficients = least_squares(q, values, slopes, terms)
    radius = np.array(max(MARGIN * np.sqrt((q**2).sum(1).max()), 1.0))
    return Emulator(active, center, root, *alike(terms, coefficients), is_log, radius)


def alike(terms: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with factors of one and coefficients of zero, so that few shapes are compiled."""
    more, columns = -len(terms) % ROOM, HIGHEST - terms.shape[1]
    return np.pad(terms, ((0, more), (0, columns))), np.pad(coefficients, ((0, more), (0, 0)))


def changing_directions(slopes: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Directions, (p, p), the ones along which derivatives change most first."""
    changes = slopes - slopes.mean(0)
    if weights is not None:
        changes = changes * np.sqrt(weights)[:, None]
    changes = changes.reshape(-1, changes.shape[-1])
    return np.linalg.eigh(changes.T @ changes)[1][:, ::-1]


def least_squares(
    q: np.ndarray, values: np.ndarray, slopes: np.ndarray | None, terms: np.ndarray
) -> np.ndarray:
    """Coefficients, (P, M), by values, (N, M), and derivatives along q, (N, M, p)."""
    size = q.shape[1]
    factors = np.concatenate([np.ones((len(q), 1)), q], 1)[:, terms]  # (N, P, degree)
    weights = np.exp(-0.5 * FALL * (q**2).sum(1))
    rows, aims = [factors.prod(-1) * weights[:, None]], [values * weights[:, None]]
    if slopes is not None:
        derivatives = np.zeros((len(q), size, len(terms)))
        for k in range(terms.shape[1]):
            others = np.delete(factors, k, -1).prod(-1)
            for j in range(size):
                derivatives[:, j] += others * (terms[:, k] == j + 1)
        rows.append((derivatives * weights[:, None, None]).reshape(-1, len(terms)))
        aims.append(
            (slopes * weights[:, None, None]).transpose(0, 2, 1).reshape(-1, values.shape[1])
        )
    a, b = np.concatenate(rows), np.concatenate(aims)
    scale = np.sqrt((a**2).sum(0)) + 1e-300
    a = a / scale
    gram = a.T @ a + RIDGE * np.eye(len(terms))
    solved: np.ndarray = np.linalg.solve(gram, a.T @ b) / scale[:, None]
    return solved
