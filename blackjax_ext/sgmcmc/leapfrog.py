r"""The time-symmetric stochastic leapfrog of AMAGOLD, with its energy accumulator.

In whitened coordinates :math:`\theta = L^{-1} x`, where the momentum is standard normal
(:math:`\sigma^2 = 1`), one step is (section 5 and lines 5 to 15 of Algorithm 2 of Zhang et al.)

.. math::
    \theta_t &= \theta + \tfrac12 \epsilon r \\
    r_* &= ((1 - \epsilon\beta) r - \epsilon \nabla\tilde{U}_t(\theta_t) + \eta_t)
           / (1 + \epsilon\beta), \qquad \eta_t \sim \mathcal{N}(0, 4 \epsilon\beta I) \\
    \rho_* &= \rho + \tfrac12 \epsilon \nabla\tilde{U}_t(\theta_t)^T (r + r_*) \\
    \theta_* &= \theta_t + \tfrac12 \epsilon r_*.

*Why the accumulator is the path's part of the acceptance ratio.* Write :math:`b = \epsilon\beta`,
:math:`g = \nabla\tilde{U}_t(\theta_t)`. The step from :math:`(\theta, r)` needs the noise
:math:`\eta = A + B` with :math:`A = r_* - r + \epsilon g` and :math:`B = b (r_* + r)`. With the
same random component, the step from :math:`(\theta_*, -r_*)` that comes back to
:math:`(\theta, -r)` passes the same :math:`\theta_t` and needs :math:`\eta' = A - B`. Both maps
from noise to momentum have the same Jacobian, so the ratio of the two densities is

.. math::
    \exp \frac{|\eta|^2 - |\eta'|^2}{8 b} = \exp \frac{A^T B}{2 b}
    = \exp\left[ \tfrac12 (|r_*|^2 - |r|^2) + \tfrac12 \epsilon g^T (r + r_*) \right],

where the kinetic energies cancel against those of :math:`\pi(\theta, r)` and the rest is the
increment of :math:`\rho`. Without friction the step is deterministic and keeps volume, and
:math:`\tfrac12 \epsilon g^T (r + r_*) = \tfrac12 (|r|^2 - |r_*|^2)` is the change of the kinetic
energy: the ratio is that of HMC.

Algorithm 3 of the paper is the same with :math:`v = \epsilon r`, :math:`b = \epsilon\beta`,
:math:`h = \epsilon^2`.

Reference: R. Zhang, A. F. Cooper and C. De Sa 2020, AMAGOLD: Amortized Metropolis Adjustment for
Efficient Stochastic Gradient MCMC.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_count
from blackjax_ext.mcmc.langevin import standard_normal
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.precision import inner
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.types import Unravel


class Phase(NamedTuple):
    """A point of a trajectory.

    Attributes
    ----------
    x
        Flat position, shape (D,).
    momentum
        r, in whitened coordinates, where it is standard normal; shape (D,).
    accumulator
        rho, the logarithm of the path's part of the acceptance ratio.
    """

    x: Array
    momentum: Array
    accumulator: Array


class TrajectoryInfo(NamedTuple):
    """Facts about one transition.

    Attributes
    ----------
    acceptance_rate
        Acceptance probability, or an estimate of it from the rows that were read. Without a test 1,
        or 0 where a divergent step was undone.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether the proposal was rejected, or undone, because something there was not finite.
    num_integration_steps
        T, the number of minibatch gradients.
    num_rows
        Rows that the acceptance test read; 0 without one, and for a potential that is no sum over
        rows.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    num_integration_steps: int
    num_rows: Array


def step(
    phase: Phase,
    gradient_fn: Callable[[Array], Array],
    noise: Array,
    metric: Factor,
    step_size: Array | float,
    friction: Array | float,
) -> Phase:
    """One step with the gradient of one random component and standard normal `noise`, (D,).

    Cost: one gradient. Followed by a flip of the momentum it is its own inverse in law.
    """
    r, b = phase.momentum, step_size * friction
    middle = phase.x + 0.5 * step_size * metric.inverse_sqrt_times(r)
    gradient = metric.inverse_sqrt_transpose_times(gradient_fn(middle))
    eta = 2.0 * jnp.sqrt(b) * noise
    momentum = ((1.0 - b) * r - step_size * gradient + eta) / (1.0 + b)
    accumulator = phase.accumulator + 0.5 * step_size * inner(gradient, r + momentum)
    x = middle + 0.5 * step_size * metric.inverse_sqrt_times(momentum)
    return Phase(x, momentum, accumulator)


def propose(
    key_momentum: PRNGKey,
    key_path: PRNGKey,
    state: Any,
    step_fn: Callable[..., Phase],
    potential: StochasticPotential,
    step_size: Array | float,
    inverse_mass_matrix: InverseMassMatrix,
    *,
    num_integration_steps: int,
    friction: Array | float,
    resample_momentum: bool,
) -> tuple[Phase, Phase, Callable[[Array], ArrayTree]]:
    """Both ends of a trajectory from a state with a position and a momentum, and the unraveller.

    `step_fn` is :func:`step`, or another with its signature.
    """
    x, unravel = ravel_pytree(state.position)
    metric = factorize(inverse_mass_matrix, x.size)
    r = first_momentum(key_momentum, x) if resample_momentum else state.momentum
    start = Phase(x, r, jnp.zeros((), x.dtype))
    move = partial(step_fn, metric=metric, step_size=step_size, friction=friction)
    is_noisy = isinstance(friction, jax.Array) or bool(friction)
    end = trajectory(
        key_path, start, move, potential, unravel, num_integration_steps, is_noisy=is_noisy
    )
    return start, end, unravel


def trajectory(
    rng_key: PRNGKey,
    phase: Phase,
    step_fn: Callable[..., Phase],
    potential: StochasticPotential,
    unravel: Unravel,
    num_integration_steps: int,
    *,
    is_noisy: bool = True,
) -> Phase:
    """`num_integration_steps` times ``step_fn(phase, gradient_fn, noise)``.

    Each step has its own random component and its own noise, all drawn at once where they are few;
    zeros for the noise where `is_noisy` is False.
    """

    def draw(key: PRNGKey) -> tuple[Array, Any]:
        key_noise, key_batch = jax.random.split(key)
        if not is_noisy:
            return jnp.zeros_like(phase.x), potential.draw(key_batch)
        noise = standard_normal(key_noise, phase.x.size, phase.x.dtype)
        return noise, potential.draw(key_batch)

    keys = jax.random.split(rng_key, num_integration_steps)
    drawn = jax.eval_shape(draw, jax.ShapeDtypeStruct(keys.shape[1:], keys.dtype))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(drawn))
    # a trajectory with fewer random numbers draws them before it starts
    is_few = num_integration_steps * numbers <= 2**16

    def body(phase: Phase, drawn: Any) -> tuple[Phase, None]:
        noise, batch = drawn if is_few else draw(drawn)
        return step_fn(phase, gradient_estimator(potential, batch, unravel), noise), None

    return jax.lax.scan(body, phase, jax.vmap(draw)(keys) if is_few else keys)[0]


def gradient_estimator(
    potential: StochasticPotential, batch: Any, unravel: Unravel
) -> Callable[[Array], Array]:
    """Gradient of one random component as a function of flat positions."""
    return lambda x: ravel_pytree(potential.stochastic_grad(unravel(x), batch))[0]


def first_momentum(rng_key: PRNGKey | None, x: Array) -> Array:
    """Momentum of a new chain in whitened coordinates: standard normal, or zero without a key."""
    if rng_key is None:
        return jnp.zeros_like(x)
    return standard_normal(rng_key, x.size, x.dtype)


def check_friction(
    friction: Array | float, num_integration_steps: int, resample_momentum: bool = True
) -> None:
    """Raise unless there is a step, friction is at least zero, and something moves the momentum."""
    check_count("num_integration_steps", num_integration_steps)
    if isinstance(friction, jax.core.Tracer):
        return
    if np.ndim(friction) or not (np.isfinite(friction) and friction >= 0):
        raise ValueError(f"friction must be one finite number, at least 0; got {friction}.")
    if not resample_momentum and friction == 0:
        raise ValueError(
            "friction must be positive with resample_momentum=False: nothing else would refresh "
            "the momentum; got 0."
        )
