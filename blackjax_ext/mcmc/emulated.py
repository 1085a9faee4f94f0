r"""Trajectories on an emulator of the density, tested by one evaluation of the density itself.

:math:`\tilde\pi` emulates the target :math:`\pi` and costs next to nothing. A step is one of two:

- With probability :math:`1 - \rho`, K Hamiltonian trajectories on :math:`\tilde\pi`, each accepted
  or rejected on it, lead from :math:`x` to :math:`y`, which is then accepted with probability

  .. math::
      \min\left(1, \frac{\pi(y)\, \tilde\pi(x)}{\pi(x)\, \tilde\pi(y)}\right).

  A trajectory with its test is reversible with respect to :math:`\tilde\pi`, with a step that is
  drawn for each of them, too, and so are K in a row: :math:`\tilde\pi(x) Q(x, y) = \tilde\pi(y)
  Q(y, x)`. So :math:`\pi(x) Q(x, y) / (\pi(y) Q(y, x))` is the ratio above turned over, and the
  step is reversible with respect to :math:`\pi`, whatever the emulator is, as long as it stays the
  same.
- With probability :math:`\rho`, a random walk, :math:`y = x + 2.38\, D^{-1/2} L z`, accepted with
  probability :math:`\min(1, \pi(y) / \pi(x))`: where the emulator has less mass than the target, a
  chain that follows it alone would stay for long.

Which of the two does not depend on :math:`x`, so their mixture leaves :math:`\pi` invariant, too.

Cost: one evaluation of the density per step, no derivative of it; :math:`K (T + 1)` gradients of
the emulator with trajectories of T steps.

References: J. A. Christen and C. Fox 2005 (delayed acceptance); C. E. Rasmussen 2003 (Hamiltonian
trajectories on an emulator); G. O. Roberts, A. Gelman and W. R. Gilks 1997 (the walk's step).
"""

from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.checks import check_count, check_position, check_scalar, check_share
from blackjax_ext.mcmc import langevin
from blackjax_ext.mcmc.langevin import standard_normal
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.top_level import top_level
from blackjax_ext.types import LogDensity

JITTER = 0.25  # sd of the logarithm of a step, as blackjax's examples of HMC have it
WALK = 2.38  # step of the best random walk on a normal target, times the root of D


class EmulatedState(NamedTuple):
    """State of a chain.

    position
        Pytree of arrays.
    logdensity
        Log density at the position.
    emulator_logdensity
        That of the emulator.
    logdensity_grad
        Always None: the density is not differentiated.
    """

    position: ArrayTree
    logdensity: Array
    emulator_logdensity: Array
    logdensity_grad: None = None


class EmulatedInfo(NamedTuple):
    """Facts about one transition.

    acceptance_rate
        Acceptance probability by the density.
    is_accepted
        Whether the chain moved to the proposal.
    is_divergent
        Whether the density of the proposal was not finite, as where a solver fails.
    emulator_acceptance_rate
        Mean acceptance probability of the trajectories, by the emulator.
    is_walk
        Whether the step was one of the random walk.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    emulator_acceptance_rate: Array
    is_walk: Array


def init(
    position: ArrayLikeTree,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    *,
    emulator_fn: LogDensity,
) -> EmulatedState:
    """Make the first state: one evaluation. No key is needed; one is accepted and not used."""
    del rng_key
    position = check_position(position)
    logdensity = check_scalar(logdensity_fn(position))
    emulated = jnp.asarray(emulator_fn(position), logdensity.dtype)
    return EmulatedState(position, logdensity, emulated)


def emulator_ratio(end: Array, start: Array) -> Array:
    r"""Logarithm of :math:`\tilde\pi(y) / \tilde\pi(x)`, by which trajectories prefer y to x."""
    return end - start


def build_kernel() -> Callable[..., tuple[EmulatedState, EmulatedInfo]]:
    """Build the transition kernel."""
    hamiltonian = blackjax.hmc.build_kernel()

    def kernel(
        rng_key: PRNGKey,
        state: EmulatedState,
        logdensity_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
        *,
        emulator_fn: LogDensity,
        num_trajectories: int = 8,
        num_integration_steps: int = 8,
        walk_probability: float = 0.02,
    ) -> tuple[EmulatedState, EmulatedInfo]:
        """One step: one evaluation."""
        key_kind, key_walk, key_trajectories, key_accept = jax.random.split(rng_key, 4)
        x, unravel = ravel_pytree(state.position)
        metric = factorize(inverse_mass_matrix, x.size)

        def moved(q: Array) -> ArrayTree:
            return unravel(x + metric.inverse_sqrt_times(q))

        def emulated(q: Array) -> Array:
            return jnp.asarray(emulator_fn(moved(q)), x.dtype)

        def trajectory(start: HMCState, key: PRNGKey) -> tuple[HMCState, Array]:
            key_step, key_move = jax.random.split(key)
            factor = jnp.exp(JITTER * jax.random.normal(key_step, (), x.dtype))
            lengths = factor * step_size, jnp.ones_like(x), num_integration_steps
            end, info = hamiltonian(key_move, start, emulated, *lengths)
            return end, info.acceptance_rate

        start = blackjax.hmc.init(jnp.zeros_like(x), emulated)
        keys = jax.random.split(key_trajectories, num_trajectories)
        end, rates = jax.lax.scan(trajectory, start, keys)
        is_walk = jax.random.bernoulli(key_kind, walk_probability)
        walk = WALK * x.size**-0.5 * standard_normal(key_walk, x.size, x.dtype)
        position = moved(jnp.where(is_walk, walk, end.position))

        logdensity = logdensity_fn(position)
        of_emulator = jnp.asarray(emulator_fn(position), logdensity.dtype)
        ratio = emulator_ratio(of_emulator, state.emulator_logdensity)
        proposed = jnp.where(is_walk, 0.0, ratio)
        log_ratio = logdensity - state.logdensity - proposed
        proposal = EmulatedState(position, logdensity, of_emulator)
        new, rate, is_accepted, is_divergent = langevin.accept(
            key_accept, log_ratio, logdensity, proposal, state
        )
        of_emulator = jnp.mean(jnp.nan_to_num(rates))
        return new, EmulatedInfo(rate, is_accepted, is_divergent, of_emulator, is_walk)

    return kernel


@top_level(init, build_kernel)
def emulated(num_trajectories: int, num_integration_steps: int, walk_probability: float) -> None:
    """Hamiltonian trajectories on an emulator, tested by one evaluation of the density a draw.

    Parameters
    ----------
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar. It is not differentiated.
    step_size
        epsilon > 0 of the leapfrog steps, in units of the posterior's scale as given by
        `inverse_mass_matrix`; each trajectory has its own, longer or shorter by a quarter.
    emulator_fn
        Log density that emulates it, up to a constant: pytree to scalar, differentiable. Any one
        is exact that stays the same; :func:`blackjax_ext.emulate` makes one.
    num_trajectories
        K >= 1, trajectories on the emulator between two evaluations of the density.
    num_integration_steps
        T >= 1, leapfrog steps of a trajectory.
    walk_probability
        rho in [0, 1], probability of a step of a random walk.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import emulated
    >>> sampler = emulated(
    ...     lambda x: -jnp.sum(jnp.cosh(x)), 0.3, emulator_fn=lambda x: -0.5 * jnp.sum(x**2)
    ... )
    >>> state = sampler.init(jnp.zeros(3))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(1), state)
    >>> bool(info.acceptance_rate <= 1)
    True
    """
    check_count("num_trajectories", num_trajectories)
    check_count("num_integration_steps", num_integration_steps)
    check_share("walk_probability", walk_probability)
