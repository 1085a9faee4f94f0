r"""The mode of a posterior whose density goes through outputs of a dear function.

At :math:`x_0` the outputs are replaced by their expansion of first order (of their logarithms,
where they are positive), and the posterior with these outputs is maximized in balls around
:math:`x_0` of several sizes, :math:`\log \tilde\pi(x) - \lambda |x - x_0|^2 / 2`; this costs no
evaluation. The best of the candidates by the density itself is the next :math:`x_0`. For normal
noise that is the method of Levenberg and Marquardt, with the prior as it is and scales of the noise
that go with the residuals. The curvature at the end is that of Gauss and Newton.

Cost of a turn: an evaluation for each candidate, and one Jacobian.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import Emulator, emulated_density, linear
from blackjax_ext.types import LogDensity

BALLS = (0.01, 1.0, 100.0)  # candidates of a turn, in units of its lambda
FIRST, LEAST, MOST = 1.0, 1e-6, 1e8  # lambda; unconstrained coordinates are of the order of one
MAX_TURNS = 25
GAIN = 0.05  # nats of a turn after which another one is not worth its solves
NEAR = 1.0  # of a known mode, in its standard deviations (the mean over coordinates)
NEWTON_STEPS = 12  # on the expansion, which costs nothing
LENGTHS = (1.0, 0.3, 0.1, 0.01)  # of a step on the expansion


class Mode(NamedTuple):
    """Where a path ended.

    x
        Position, (D,).
    logdensity
        There.
    outputs, jacobian
        There, (M,) and (M, p).
    covariance
        By the curvature of Gauss and Newton, (D, D).
    """

    x: np.ndarray
    logdensity: float
    outputs: np.ndarray
    jacobian: np.ndarray
    covariance: np.ndarray

    @property
    def log_mass(self) -> float:
        """Logarithm of the mass around it, by the normal law there, up to a constant."""
        return self.logdensity + 0.5 * float(np.linalg.slogdet(self.covariance)[1])

    def holds(self, x: np.ndarray) -> bool:
        """Whether x is so near that a path from there ends here."""
        return bool(self.distances(x) < NEAR)

    def distances(self, x: np.ndarray) -> np.ndarray:
        """Of positions, (..., D), in standard deviations: the root of the mean over coordinates."""
        away = x - self.x
        along = np.linalg.solve(self.covariance, away[..., None])[..., 0]
        distances: np.ndarray = np.sqrt((away * along).mean(-1))
        return distances


def find_mode(evaluations: Evaluations, x: np.ndarray, known: Sequence[Mode] = ()) -> Mode | None:
    """Where the path from x, (D,), ends; None if the log density or a derivative is not finite.

    A path that comes near a `known` mode ends there.
    """
    point = evaluations.with_jacobians(x[None])
    value = evaluations.logdensities(x[None], point.outputs)[0]
    if not (np.isfinite(value) and np.isfinite(point.jacobians).all()):
        return None
    radius = FIRST
    for _ in range(MAX_TURNS):
        expansion = linear(x, point.outputs[0], point.jacobians[0], evaluations.active)
        balls = radius * np.array(BALLS)
        candidates = evaluations.run(maximized, evaluations.cast(expansion), x, balls)
        candidates = np.asarray(candidates, float)
        outputs = evaluations.outputs(candidates)
        values = evaluations.logdensities(candidates, outputs)
        best = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
        if not values[best] > value:
            radius *= BALLS[-1]
            if radius > MOST:
                break
            continue
        there = evaluations.with_jacobians(candidates[best][None])
        if not np.isfinite(there.jacobians).all():
            radius *= BALLS[-1]
            continue
        gain, x, value, point = values[best] - value, candidates[best], values[best], there
        radius = max(balls[best], LEAST)
        if joined := next((mode for mode in known if mode.holds(x)), None):
            return joined
        if gain < GAIN:
            break
    place = x, point.outputs[0], point.jacobians[0]
    return Mode(x, float(value), *place[1:], normal_around(evaluations, *place))


def maximized(dear: Dear, expansion: Emulator, x: Array, balls: Array) -> Array:
    """Maxima of the density with expanded outputs in balls around x, (len(balls), D)."""
    logdensity = emulated_density(dear.logdensity_fn, expansion)

    def within(ball: Array) -> Array:
        def aim(y: Array) -> Array:
            return logdensity(y) - 0.5 * ball * jnp.sum((y - x) ** 2)

        def step(y: Array, _: Any) -> tuple[Array, None]:
            direction = newton_direction(aim, y)
            lengths = jnp.array((0.0, *LENGTHS), y.dtype)
            ends = y + lengths[:, None] * direction
            values = jax.vmap(aim)(ends)
            return ends[jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))], None

        end: Array = jax.lax.scan(step, x, None, NEWTON_STEPS)[0]
        return end

    ends: Array = jax.lax.map(within, balls)
    return ends


def newton_direction(aim: LogDensity, y: Array) -> Array:
    """Newton's step with the absolute values of the curvatures."""
    gradient, hessian = jax.grad(aim)(y), jax.hessian(aim)(y)
    values, vectors = jnp.linalg.eigh(-hessian)
    floor = 1e-6 * jnp.max(jnp.abs(values)) + 1e-12
    step = vectors @ ((vectors.T @ gradient) / jnp.maximum(jnp.abs(values), floor))
    return jnp.where(jnp.isfinite(step).all(), step, 0.0)


def normal_around(
    evaluations: Evaluations, x: np.ndarray, outputs: np.ndarray, jacobian: np.ndarray
) -> np.ndarray:
    """Covariance at x by the curvature of Gauss and Newton, (D, D)."""
    expansion = evaluations.cast(linear(x, outputs, jacobian, evaluations.active))
    precision = -np.nan_to_num(np.asarray(evaluations.run(curvature, expansion, x), float))
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    values = np.maximum(np.abs(values), 1e-3)  # no coordinate is wider than thirty of its units
    covariance: np.ndarray = (vectors / values) @ vectors.T
    return covariance


def curvature(dear: Dear, expansion: Emulator, x: Array) -> Array:
    """Hessian of the log density with expanded outputs."""
    hessian: Array = jax.hessian(emulated_density(dear.logdensity_fn, expansion))(x)
    return hessian
