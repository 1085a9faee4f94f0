r"""How langevin_smc moves its particles at a temperature: unadjusted with a weight, or Metropolis.

A move takes particles that represent :math:`\gamma = p(x) \ell(x)^\lambda` and returns particles
that represent it once their weights are multiplied by the factors it also returns.
"""

import inspect
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.checks import check_choice, check_count
from blackjax_ext.factoring import density_in_parts
from blackjax_ext.mcmc.derivatives import differentiation_of
from blackjax_ext.mcmc.langevin import standard_normal
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix
from blackjax_ext.smc import mixtures
from blackjax_ext.smc.l_kernels import LKernel, as_l_kernel
from blackjax_ext.smc.proposals import PROPOSALS, GradientMode, leapfrog
from blackjax_ext.smc.sampler import conditional_ess, guard
from blackjax_ext.smc.tempered import PriorAndLikelihood, Tempered, variances

SET_BY_THE_MOVE = ("logdensity_fn", "step_size", "inverse_mass_matrix")


class Moved(NamedTuple):
    """Outcome of a move.

    Attributes
    ----------
    position
        Where the particles are, flat, shape (N, D).
    local
        What was evaluated there.
    log_factors
        What the weights are to be multiplied by, shape (N,).
    acceptance_rate
        Shape (N,): Metropolis' probability, or the share of the effective sample size that an
        unadjusted move keeps. Both say whether the step size is right.
    is_accepted
        Whether the particle moved, shape (N,).
    is_divergent
        Whether the density is not a number where it would have moved, shape (N,).
    """

    position: Array
    local: PriorAndLikelihood
    log_factors: Array
    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array


class MoveFn(Protocol):
    """A move, and by which kind of differentiation its target is to take gradients."""

    differentiation: GradientMode

    def __call__(
        self,
        rng_key: PRNGKey,
        position: Array,
        local: PriorAndLikelihood,
        target: Tempered,
        step_size: Array | float,
        metric: Factor,
        log_weights: Array,
    ) -> Moved:
        """Move the particles."""


class Unadjusted:
    r"""Langevin, Hamiltonian or random-walk proposals that are weighted, never rejected.

    The weight is :math:`\gamma(x') \ell(m | x') / (\gamma(x) \mathcal{N}(p))` of
    :mod:`blackjax_ext.smc.l_kernels`. Cost: `num_integration_steps` gradients per particle.

    Parameters
    ----------
    proposal
        "langevin" or "random_walk".
    l_kernel
        "reversed", "random_walk", "gaussian", or a function of (move, log_weights).
    num_integration_steps
        Leapfrog steps K; more than one make it unadjusted Hamiltonian Monte Carlo.
    differentiation
        "reverse", the default, or "forward" for D JVPs that share one evaluation. A random walk
        takes no gradients.
    """

    def __init__(
        self,
        proposal: str = "langevin",
        l_kernel: str | LKernel = "reversed",
        num_integration_steps: int = 1,
        differentiation: GradientMode | None = None,
    ):
        check_choice("proposal", proposal, PROPOSALS)
        is_walk = proposal == "random_walk"
        if is_walk and differentiation not in (None, "none"):
            raise ValueError(
                "differentiation is for proposals with a gradient, which proposal='random_walk' "
                f"does not take: leave it out; got {differentiation!r}."
            )
        if differentiation is None:
            differentiation = "none" if is_walk else "reverse"
        check_choice("differentiation", differentiation, ("reverse", "forward", "none"))
        check_count("num_integration_steps", num_integration_steps)
        self.l_kernel = as_l_kernel(l_kernel)
        self.num_integration_steps = num_integration_steps
        self.differentiation = differentiation

    def __call__(
        self,
        rng_key: PRNGKey,
        position: Array,
        local: PriorAndLikelihood,
        target: Tempered,
        step_size: Array | float,
        metric: Factor,
        log_weights: Array,
    ) -> Moved:
        """K leapfrog steps and their weight."""
        momentum = standard_normal(rng_key, position.size, position.dtype).reshape(position.shape)
        functions = (target.evaluate, target.gradient)
        move = leapfrog(
            momentum, position, local, *functions, step_size, self.num_integration_steps, metric
        )
        log_factors = target.log_ratio(local, move.local) + self.l_kernel(move, log_weights)
        is_lost = jnp.isnan(log_factors) | jnp.isposinf(log_factors)
        kept = conditional_ess(log_weights, log_factors) / position.shape[0]
        rate = jnp.full_like(log_factors, kept)
        return Moved(move.position, move.local, guard(log_factors), rate, ~is_lost, is_lost)


def parameters_of(algorithm: Any) -> set[str]:
    """Names of the keywords that an algorithm of this package or of BlackJAX takes."""
    function = getattr(algorithm, "differentiable", algorithm)
    return set(inspect.signature(function).parameters)


def check_parameters(algorithm: Any, parameters: dict[str, Any]) -> None:
    """Raise for keywords that the move sets, and for those that the algorithm does not take."""
    taken = sorted({*SET_BY_THE_MOVE} & {*parameters})
    if taken:
        raise ValueError(f"parameters must leave out {taken}, which the sampler gives the move.")
    known = parameters_of(algorithm)
    unknown = sorted({*parameters} - known)
    if unknown and "kwargs" not in known:
        free = sorted(known - {*SET_BY_THE_MOVE})
        raise TypeError(f"parameters {unknown} are unknown to the algorithm, which takes {free}.")


class Metropolis:
    """A Metropolis kernel: it leaves the target invariant, so the weights stay as they are.

    Cost: one `init`, one step, and one evaluation of prior and likelihood per particle.

    Parameters
    ----------
    algorithm
        ``blackjax_ext.hp_mala``, ``blackjax_ext.mala``, ``blackjax.hmc``, ...: called with the
        tempered log density, `step_size` and `inverse_mass_matrix`. A metric made of its Hessian
        knows the temperature.
    parameters
        Further keywords of the algorithm.
    """

    differentiation: GradientMode = "none"

    def __init__(self, algorithm: Any, **parameters: Any):
        if not (callable(algorithm) and hasattr(algorithm, "build_kernel")):
            raise TypeError(
                "algorithm must have init and build_kernel, as blackjax_ext.mala does; "
                f"got {algorithm!r}."
            )
        check_parameters(algorithm, parameters)
        self.algorithm = partial(algorithm, **parameters)
        self.takes_factors = algorithm.build_kernel.__module__.startswith("blackjax_ext.")

    def __call__(
        self,
        rng_key: PRNGKey,
        position: Array,
        local: PriorAndLikelihood,
        target: Tempered,
        step_size: Array | float,
        metric: Factor,
        log_weights: Array,
    ) -> Moved:
        """One Metropolis step of each particle."""
        given: InverseMassMatrix = metric
        if not self.takes_factors:  # other packages take arrays only
            covariance = metric.inverse()
            given = covariance if jnp.ndim(covariance) else jnp.full(position.shape[1:], covariance)
        # an algorithm does not say what it takes: a product with a gradient is a JVP, too
        first = target.unravel(position[0])
        mode = differentiation_of(target.logdensity_fn, first, "reverse") or "forward"
        logdensity_fn = density_in_parts(target.logdensity_fn, mode)
        sampler = self.algorithm(logdensity_fn, step_size=step_size, inverse_mass_matrix=given)

        def step(rng_key: PRNGKey, x: Array) -> tuple[Array, Array, Array, Array]:
            key_init, key_step = jax.random.split(rng_key)
            state = sampler.init(target.unravel(x), key_init)
            state, info = sampler.step(key_step, state)
            flat = jax.flatten_util.ravel_pytree(state.position)[0]
            # where a step adapts itself, that of the step which it was given
            rate = jnp.nan_to_num(getattr(info, "first_rate", info.acceptance_rate))
            return flat, rate, info.is_accepted, jnp.any(info.is_divergent)

        keys = jax.random.split(rng_key, position.shape[0])
        position, rate, is_accepted, is_divergent = jax.vmap(step)(keys, position)
        local = target.evaluate(position)
        zeros = jnp.zeros_like(log_weights)
        return Moved(position, local, zeros, rate, is_accepted, is_divergent)


class WithJumps:
    r"""A move, and after it an independent proposal that can jump between clusters of particles.

    The proposal q is a normal mixture fitted to the particles (:mod:`blackjax_ext.smc.mixtures`):
    every second particle jumps by the fit to the others. It is accepted with the probability of
    Metropolis and Hastings, :math:`\gamma(x') q(x) / (\gamma(x) q(x'))`, so weights stay as they
    are. Between modes that local moves do not connect it moves mass to where it belongs, as long
    as some particle is left in each of them.

    Like a metric of the particles, a proposal fitted to them biases the evidence by O(1/N). Cost,
    besides that of the move: one evaluation of prior and likelihood per particle, and the fit.

    Parameters
    ----------
    move
        The move that comes first, and whose acceptance rate is that of both.
    num_clusters
        Components of the mixture: take more than there may be modes.
    """

    def __init__(self, move: MoveFn, num_clusters: int = 8):
        check_count("num_clusters", num_clusters)
        self.move = move
        self.num_clusters = num_clusters
        self.differentiation = move.differentiation

    def __call__(
        self,
        rng_key: PRNGKey,
        position: Array,
        local: PriorAndLikelihood,
        target: Tempered,
        step_size: Array | float,
        metric: Factor,
        log_weights: Array,
    ) -> Moved:
        """Move the particles, then let them jump."""
        key_move, key_jump = jax.random.split(rng_key)
        arguments = (target, step_size, metric, log_weights)
        moved = self.move(key_move, position, local, *arguments)
        if position.shape[0] < 2:  # nothing to fit to
            return moved
        return self.jump(key_jump, moved, target, guard(log_weights + moved.log_factors))

    def jump(self, rng_key: PRNGKey, moved: Moved, target: Tempered, log_weights: Array) -> Moved:
        """One independent Metropolis step of each particle."""
        key_even, key_odd, key_accept = jax.random.split(rng_key, 3)
        x = moved.position
        scale = jnp.sqrt(variances(x, log_weights))

        def propose(rng_key: PRNGKey, start: int) -> tuple[Array, Array]:
            """Proposals for every second particle, by a fit to the others."""
            key_fit, key_draw = jax.random.split(rng_key)
            others = slice(1 - start, None, 2)
            q = mixtures.fit(key_fit, x[others], log_weights[others], scale, self.num_clusters)
            old = x[start::2]
            new = q.sample(key_draw, old.shape[0])
            return new, q.logpdf(old) - q.logpdf(new)

        # even places first; then each back to its own
        place = jnp.argsort(jnp.argsort(jnp.arange(x.shape[0]) % 2, stable=True))
        halves = zip(propose(key_even, 0), propose(key_odd, 1), strict=True)
        y, log_ratio = (jnp.concatenate(pair)[place] for pair in halves)
        end = target.evaluate(y)
        log_ratio += target.log_ratio(moved.local, end)
        uniform = jax.random.uniform(key_accept, log_ratio.shape, log_ratio.dtype)
        is_jump = jnp.log(uniform) < log_ratio

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(is_jump.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        position, local = jax.tree.map(chosen, (y, end), (x, moved.local))
        return moved._replace(
            position=position, local=local, is_accepted=moved.is_accepted | is_jump
        )
