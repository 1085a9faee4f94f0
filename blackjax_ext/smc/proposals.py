r"""Proposals that move a particle by integrating Hamilton's equations, without accepting.

Draw :math:`p \sim \mathcal{N}(0, I)` and take K leapfrog steps of a log density :math:`f`, in the
coordinates that ``inverse_mass_matrix`` :math:`= L L^T` whitens:

.. math::
    p_{1/2} = p + \frac{\epsilon}{2} \nabla f(x), \qquad x' = x + \epsilon p_{1/2}, \qquad
    p' = p_{1/2} + \frac{\epsilon}{2} \nabla f(x').

- K = 1 is the unadjusted Langevin proposal
  :math:`x' = x + \frac{\epsilon^2}{2} \nabla f(x) + \epsilon p` (eq. 7 of the paper on partial
  networks), at the price of one gradient, that at :math:`x'`: the one at x is known.
- K > 1 is unadjusted Hamiltonian Monte Carlo, K gradients.
- Without gradients, K = 1 is the random walk :math:`x' = x + \epsilon p`.

Each step is a chain of shears :math:`(x, p) \mapsto (x, p + a(x))` and
:math:`(x, p) \mapsto (x + \epsilon p, p)`. Hence :math:`(x, p) \mapsto (x', p')` is one to one with
Jacobian 1, and so is :math:`(x, p) \mapsto (x', p_{1/2})`, whatever :math:`f` is. That is all the
backward kernels of :mod:`blackjax_ext.smc.l_kernels` need.

References: R. Neal 2011, MCMC using Hamiltonian dynamics.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.mcmc import tangents
from blackjax_ext.metrics.factor import Factor

ValueAndGradient: TypeAlias = Callable[[Array], tuple[Array, Array]]
GradientMode: TypeAlias = Literal["reverse", "forward", "none"]
PROPOSALS = ("langevin", "random_walk")


class Move(NamedTuple):
    """Moves of N particles.

    Attributes
    ----------
    position
        Where they end, flat, shape (N, D).
    local
        What was evaluated there.
    start
        Momentum p that was drawn, shape (N, D).
    half
        Momentum :math:`p_{1/2}` of the last step: it led to the end, whose gradient it lacks.
    end
        Momentum p' after the last half-kick.
    """

    position: Array
    local: Any
    start: Array
    half: Array
    end: Array


def value_and_gradient(
    function: Callable[[Array], Array], differentiation: GradientMode
) -> ValueAndGradient:
    """``x (D,) -> (value, gradient)``: one reverse pass, or D JVPs that share one evaluation.

    With "none" the gradient is zero and nothing is differentiated.
    """

    def forward(x: Array) -> tuple[Array, Array]:
        return tangents.slopes(function, x, jnp.eye(x.size, dtype=x.dtype))

    def none(x: Array) -> tuple[Array, Array]:
        return function(x), jnp.zeros_like(x)

    return {"reverse": jax.value_and_grad(function), "forward": forward, "none": none}[
        differentiation
    ]


def leapfrog_step(
    move: Move,
    evaluate: Callable[[Array], Any],
    gradient: Callable[[Any], Array],
    step_size: Array | float,
    metric: Factor,
) -> Move:
    """One more step of `move`; what `evaluate` returns may have another form than before."""

    def kick(momentum: Array, local: Any) -> Array:
        return momentum + 0.5 * step_size * metric.inverse_sqrt_transpose_times(gradient(local))

    half = kick(move.end, move.local)
    position = move.position + step_size * metric.inverse_sqrt_times(half)
    local = evaluate(position)
    return Move(position, local, move.start, half, kick(half, local))


def leapfrog(
    momentum: Array,
    position: Array,
    local: Any,
    evaluate: Callable[[Array], Any],
    gradient: Callable[[Any], Array],
    step_size: Array | float,
    num_integration_steps: int,
    metric: Factor,
) -> Move:
    """Integrate N particles.

    Parameters
    ----------
    momentum
        Standard normal, shape (N, D).
    position
        Flat, shape (N, D).
    local
        ``evaluate(position)``, which is known.
    evaluate
        Everything that is needed at positions, evaluated once at each.
    gradient
        Gradient of the log density that drives the move, (N, D), from what was evaluated.
    step_size
        epsilon.
    num_integration_steps
        K; 0 leaves the particles where they are.
    metric
        Factor of the metric that whitens.
    """

    def step(_: Array, move: Move) -> Move:
        return leapfrog_step(move, evaluate, gradient, step_size, metric)

    start = Move(position, local, momentum, momentum, momentum)
    end: Move = jax.lax.fori_loop(0, num_integration_steps, step, start)
    return end
