"""Families of rows: a loss of the predictors, and bounds of its derivatives over a box."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.subsampling.intervals import Interval, Operand, around, magnitude

Number: TypeAlias = Array | float


class Ball(NamedTuple):
    """Values of one predictor within `radius` of `centre`."""

    centre: Array
    radius: Number

    @property
    def interval(self) -> Interval:
        """The values themselves."""
        return around(self.centre, self.radius)

    @property
    def change(self) -> Interval:
        """Differences of the values to the centre."""
        return around(jnp.zeros_like(self.centre), self.radius)


@dataclass(frozen=True)
class Kind:
    r"""The functions of a family, for one response. Hashable, so a static part of a program.

    The predictors :math:`\theta` are the parameters of the density on unconstrained scales (a mean,
    a log scale). Those that are free depend on the position; the others are known.

    Attributes
    ----------
    name
        What errors call it.
    predictors
        Names of the predictors in order; empty for a family that takes any number, all free.
    loss
        ``loss(theta, y, **data)``, minus the log density up to a constant, for the predictors of
        one response, shape (K,), and what else is known of it.
    sizes
        ``sizes(order, balls, y, **data)``, bounds of the derivatives of order 3 up to
        `highest` by the predictors in units of `unit`, over the box of the `balls`, one
        for each predictor: shape (K,) * order. None for a family with a `norm`.
    reach
        ``reach(theta, y, **data)``, for each predictor the change within which quadrature is
        accurate: a fraction of the distance to a singularity. None for one of each.
    unit
        ``unit(theta, **data)``, for each predictor what its changes are measured in, so that the
        third power of a scale, which no float may hold, is never taken.
    norm
        Bound :math:`M_3` of the third derivative everywhere, as a form in the Euclidean norm of the
        differences of the predictors to their mean, on which alone the loss depends.
    rounding
        ``rounding(theta)``, for each predictor what rounding may have changed it by beside a few
        eps of its size, in units of eps: a log scale is read as the logarithm of a scale.
    free
        Names of the predictors that depend on the position.
    highest
        The highest order of a derivative that has bounds, 3 or 4.
    guesses_reach
        Whether `reach` is a guess, so that the quadrature is to be checked.
    """

    name: str
    predictors: tuple[str, ...]
    loss: Callable[..., Array]
    sizes: Callable[..., Array] | None
    reach: Callable[..., tuple[Number, ...]] | None = None
    unit: Callable[..., tuple[Number, ...]] | None = None
    norm: float | None = None
    rounding: Callable[..., tuple[Number, ...]] | None = None
    free: tuple[str, ...] = ()
    highest: int = 3
    guesses_reach: bool = False

    def having(self, *free: str) -> "Kind":
        """The kind with these predictors free."""
        return replace(self, free=tuple(name for name in self.predictors if name in free))

    def theta(self, eta: Array, parameters: Mapping[str, Array]) -> Array:
        """All predictors of one response, shape (K,), from those that are free."""
        if not self.predictors:
            return eta
        free = dict(zip(self.free, eta, strict=True))
        known: Mapping[str, Any] = parameters
        return jnp.stack([free[n] if n in free else known[n] for n in self.predictors])

    def data(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Data of a response beside its predictors."""
        return {name: value for name, value in parameters.items() if name not in self.predictors}

    def call(self, eta: Array, y: Array, parameters: Mapping[str, Array]) -> Array:
        """Loss of one response, with its parameters by name."""
        return self.loss(self.theta(eta, parameters), y, **self.data(parameters))

    def of_free(self, values: tuple[Number, ...], like: Array) -> Array:
        """Values of the free predictors, among those of all predictors, shape (k,)."""
        chosen = [v for name, v in zip(self.predictors, values, strict=True) if name in self.free]
        return jnp.stack([jnp.asarray(value, like.dtype) for value in chosen])

    def reaches(self, eta: Array, y: Array, parameters: Mapping[str, Array]) -> Array:
        """Changes of the free predictors of one response within which quadrature is accurate."""
        if self.reach is None:
            return jnp.ones_like(eta)
        theta, data = self.theta(eta, parameters), self.data(parameters)
        reaches = self.reach(theta, y, **data)
        if not self.predictors:
            return jnp.broadcast_to(jnp.asarray(reaches[0], eta.dtype), eta.shape)
        return self.of_free(reaches, eta)

    def units(self, eta: Array, parameters: Mapping[str, Array]) -> Array:
        """Units of the free predictors of one response, shape (k,)."""
        if self.unit is None:
            return jnp.ones_like(eta)
        theta, data = self.theta(eta, parameters), self.data(parameters)
        return self.of_free(self.unit(theta, **data), eta)

    def roundings(self, eta: Array, parameters: Mapping[str, Array]) -> Array:
        """Rounding of the free predictors of one response in units of eps, shape (k,)."""
        if self.rounding is None:
            return jnp.zeros_like(eta)
        return self.of_free(self.rounding(self.theta(eta, parameters)), eta)

    def bounds(
        self, order: int, eta: Array, radius: Array, y: Array, parameters: Mapping[str, Array]
    ) -> Array:
        """Bounds of the derivatives by the free predictors, shape (k,) * order, in units.

        They hold where the free predictors, (k,), change by at most `radius`, (k,).
        """
        assert self.sizes is not None
        radii = dict(zip(self.free, radius, strict=True))
        theta = self.theta(eta, parameters)
        balls = tuple(
            Ball(centre, radii.get(name, 0.0))
            for name, centre in zip(self.predictors, theta, strict=True)
        )
        bounds = self.sizes(order, balls, y, **self.data(parameters))
        chosen = jnp.array([self.predictors.index(name) for name in self.free])
        for axis in range(order):
            bounds = jnp.take(bounds, chosen, axis=axis)
        return bounds


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Family:
    """A kind of response, with its known parameters.

    Attributes
    ----------
    kind
        Its functions.
    parameters
        Known parameters by name, each a number or an array with a value per row, shape (N,).
    """

    kind: Kind = field(metadata={"static": True})
    parameters: Mapping[str, Any]


def family(kind: Kind, always: str, /, **parameters: Any) -> Family:
    """A family with the predictor `always` free, and of the `parameters` those that are None."""
    free = [name for name, value in parameters.items() if value is None]
    known = {name: value for name, value in parameters.items() if value is not None}
    return Family(kind.having(always, *free), known)


def symmetric(size: int, entries: Mapping[str, Operand]) -> Array:
    """A symmetric array of magnitudes; `entries` by their sorted indices, as "001"; others zero."""
    order = len(next(iter(entries)))
    sizes = {index: magnitude(value) for index, value in entries.items()}
    zero = jnp.zeros_like(next(iter(sizes.values())))
    of_indices = [
        sizes.get("".join(map(str, sorted(index))), zero)
        for index in product(range(size), repeat=order)
    ]
    return jnp.stack(jnp.broadcast_arrays(*of_indices)).reshape((size,) * order)
