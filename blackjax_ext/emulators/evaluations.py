"""Evaluations of a dear function, by a few programs and counted."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.emulators.polynomials import Emulator, Points
from blackjax_ext.mcmc.derivatives import differentiation_of
from blackjax_ext.types import Function

Slopes: TypeAlias = Literal["forward", "reverse", "differences"]

AT_ONCE = 16  # rows of the arrays that a program fills, however many of them are asked for


class Dear(NamedTuple):
    """A log density that goes through outputs of a dear function.

    outputs_fn
        From a position, (D,), to the outputs, (M,).
    logdensity_fn
        From a position and the outputs to the log density.
    """

    outputs_fn: Callable[[Array], Array]
    logdensity_fn: Callable[[Array, Array], Array]


def slopes_of(dear: Dear, x: Array) -> Slopes:
    """How the outputs of a dear function can be differentiated at positions like x, (D,)."""
    found = differentiation_of(lambda x: jnp.sum(dear.outputs_fn(x)), x, "none")
    if found in ("forward", "reverse"):
        return "forward"
    return "reverse" if found == "gradients" else "differences"


class Evaluations:
    """Evaluations of a :class:`Dear` density, and how many there were.

    Parameters
    ----------
    program
        ``program(function)`` is ``function(dear, *arguments)`` as a compiled function of the
        arguments.
    active
        Coordinates that outputs depend on.
    slopes
        How the outputs are differentiated: forward or reverse mode, or by differences, for which
        there is no derivative.
    dtype
        Of positions.
    """

    def __init__(self, program: Function, active: np.ndarray, slopes: Slopes, dtype: Any):
        self.program = program
        self.active = active
        self.slopes = slopes
        self.dtype = dtype
        self.programs: dict[Any, Function] = {}
        self.num_solves = 0
        self.num_jvps = 0
        self.num_failed = 0

    def run(self, function: Function, *arguments: Any) -> Any:
        """``function(dear, *arguments)``, compiled once for each shape."""
        if function not in self.programs:
            self.programs[function] = self.program(function)
        cast = jax.tree.map(self._cast, arguments)
        return self.programs[function](*cast)

    def _cast(self, leaf: Any) -> Any:
        is_real = isinstance(leaf, (float, np.ndarray)) and np.issubdtype(
            np.asarray(leaf).dtype, np.floating
        )
        return jnp.asarray(leaf, self.dtype) if is_real else leaf

    def cast(self, emulator: Emulator) -> Emulator:
        """An emulator as arrays of JAX."""
        return emulator.cast(self.dtype)

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Outputs at x, (N, D): N solves."""
        (found,) = self._filled(evaluated, x)
        return self._counted(x, found)

    def with_jacobians(self, x: np.ndarray, width: float = 1e-3) -> Points:
        """Outputs and derivatives at x, (N, D): N solves and N p JVPs, or (p + 1) N solves."""
        if self.slopes == "differences":
            return self._differenced(x, width)
        function = by_jvps if self.slopes == "forward" else by_vjps
        outputs, jacobians = self._filled(function, x)
        outputs = self._counted(x, outputs)
        each = len(self.active) if self.slopes == "forward" else outputs.shape[1]
        self.num_jvps += len(x) * each
        return Points(x, outputs, jacobians)

    def logdensities(self, x: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Log densities at x with these outputs, (N,): no solve."""
        return np.asarray(self.run(densities_at, x, outputs), float)

    def _differenced(self, x: np.ndarray, width: float) -> Points:
        shifted = np.repeat(x[:, None], len(self.active) + 1, 1)
        for j, i in enumerate(self.active):
            shifted[:, j + 1, i] += width
        found = self.outputs(shifted.reshape(-1, x.shape[1]))
        found = found.reshape(len(x), len(self.active) + 1, -1)
        slopes = (found[:, 1:] - found[:, :1]) / width
        return Points(x, found[:, 0], slopes.transpose(0, 2, 1))

    def _filled(self, function: Function, x: np.ndarray) -> list[np.ndarray]:
        parts = []
        for first in range(0, len(x), AT_ONCE):
            part = x[first : first + AT_ONCE]
            padded = np.concatenate([part, np.repeat(part[:1], AT_ONCE - len(part), 0)])
            found = self.run(function, padded, len(part), jnp.asarray(self.active))
            parts.append([np.asarray(each, float)[: len(part)] for each in found])
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def _counted(self, x: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Outputs, no numbers where the density has none: there a solver has failed."""
        is_fine = np.isfinite(outputs).all(1) & np.isfinite(self.logdensities(x, outputs))
        self.num_solves += len(outputs)
        self.num_failed += int((~is_fine).sum())
        return np.where(is_fine[:, None], outputs, np.nan)


def each_of(function: Function, x: Array, count: Array) -> list[Array]:
    """``function(x[i])`` for the first `count` of its rows, one after the other; zeros beyond."""
    shapes = jax.eval_shape(function, x[0])
    empty = [jnp.zeros((len(x), *shape.shape), shape.dtype) for shape in shapes]

    def body(i: Array, filled: list[Array]) -> list[Array]:
        return [a.at[i].set(b) for a, b in zip(filled, function(x[i]), strict=True)]

    filled: list[Array] = jax.lax.fori_loop(0, count, body, empty)
    return filled


def evaluated(dear: Dear, x: Array, count: Array, active: Array) -> list[Array]:
    """Outputs."""
    del active
    return each_of(lambda x: [dear.outputs_fn(x)], x, count)


def by_jvps(dear: Dear, x: Array, count: Array, active: Array) -> list[Array]:
    """Outputs and Jacobians in forward mode; all columns share the evaluation."""

    def one(x: Array) -> list[Array]:
        along = jnp.zeros((len(active), len(x)), x.dtype).at[jnp.arange(len(active)), active].set(1)
        push: Function = lambda v: jax.jvp(dear.outputs_fn, (x,), (v,))  # noqa: E731
        return list(jax.vmap(push, out_axes=(None, -1))(along))

    return each_of(one, x, count)


def by_vjps(dear: Dear, x: Array, count: Array, active: Array) -> list[Array]:
    """Outputs and Jacobians in reverse mode."""

    def one(x: Array) -> list[Array]:
        outputs, pull = jax.vjp(dear.outputs_fn, x)
        (rows,) = jax.vmap(pull)(jnp.eye(len(outputs), dtype=outputs.dtype))
        return [outputs, rows[:, active]]

    return each_of(one, x, count)


def densities_at(dear: Dear, x: Array, outputs: Array) -> Array:
    """Log densities."""
    return jax.vmap(dear.logdensity_fn)(x, outputs)
