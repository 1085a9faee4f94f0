r"""Open-horizon sequential Monte Carlo: train parameters while particles follow the posterior.

A model has parameters :math:`\psi`, which are optimized, and latents :math:`\theta`, which have a
posterior, say the weights of one layer of a network. Batches of data define the targets

.. math::
    \gamma_t(\theta) = \exp(-U(\psi_{t-1}, \theta, B_t)), \qquad
    U = -\log p(\theta) - \frac{N}{M} \log p(y_{B_t} | \theta, \psi_{t-1}),

and one step takes a weighted population from :math:`\gamma_{t-1}` to :math:`\gamma_t` (Algorithm 3
of the paper on partial Bayesian networks, GOHSMC):

1. resample if the effective sample size is below `ess_threshold` times the number of particles;
2. move each particle by an unadjusted proposal that follows the gradient of
   :math:`\gamma_t` (`guided`) or of :math:`\gamma_{t-1}` (`guided=False`), or by a random walk;
3. weigh (eq. 13)

   .. math::
       w_t = w_{t-1} \frac{\gamma_t(\theta_t)}{\gamma_{t-1}(\theta_{t-1})} \cdot
       \frac{\ell(m | \theta_t)}{\mathcal{N}(p)},

   the last fraction being that of :mod:`blackjax_ext.smc.l_kernels`, which asks nothing of the
   gradients that made the move. The denominator is the *previous* target, with the previous
   parameters on the previous batch: the state keeps its value, and evaluating it anew on
   :math:`B_t` would be wrong;
4. update :math:`\psi` by the optimizer with the gradient of the weighted potential,
   :math:`\sum_j W_j \nabla_\psi U(\psi_{t-1}, \theta_j, B_t)`: minus the gradient of the log
   evidence of the batch (eq. 12), consistent in the number of particles.

The first population are draws of :math:`\gamma_0 = p(\theta)`, the prior. The paper weighs them by
the likelihood of a batch first (eq. 14); the product of weights is the same.

For given :math:`\psi` and batches the weights are exact: :math:`\exp` of `log_evidence` has mean
:math:`\int \gamma_t`, for every proposal and for `guided=False` too. (The bootstrap weights of
Zhao et al., :math:`\gamma_t(\theta_t) / \gamma_{t-1}(\theta_t)`, presume a move that leaves
:math:`\gamma_{t-1}` invariant, which an unadjusted one does not.) What is not exact is the whole:
:math:`\psi` moves, batches differ, and the particles follow a posterior of the scaled batch.

Cost: K gradients per particle, for K = `num_integration_steps`, of which the one that closes the
move also is the gradient of :math:`\psi`; with `guided` one more per particle that is distinct
after resampling (`blackjax_ext.smc.offspring`). Memory: one gradient in :math:`\psi` per
particle.

What goes wrong: the scaled likelihood of a small batch changes so much from step to step that a few
particles take all weight, and nearly every step resamples. `ess` shows it; larger batches and
shorter steps help.

References: GOHSMC, the paper on gradient-based proposals for partial Bayesian networks; Z. Zhao et
al. 2024, Feynman-Kac training of partial Bayesian neural networks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.base import SamplingAlgorithm
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import (
    check_choice,
    check_count,
    check_particles,
    check_positive,
    check_scalar,
    check_share,
)
from blackjax_ext.mcmc.langevin import standard_normal
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.smc import sampler
from blackjax_ext.smc.l_kernels import LKernel, as_l_kernel
from blackjax_ext.smc.offspring import evaluate_distinct
from blackjax_ext.smc.proposals import PROPOSALS, Move, leapfrog, leapfrog_step
from blackjax_ext.smc.sampler import Population
from blackjax_ext.smc.training import (
    Evaluate,
    Evaluation,
    build_evaluators,
    check_optimizer,
    mean_energy,
    mean_loss,
    update_parameters,
)
from blackjax_ext.top_level import public
from blackjax_ext.types import Function, LogDensity


class OpenHorizonState(NamedTuple):
    """State of the population and of the optimizer.

    Attributes
    ----------
    position
        Particles: a pytree whose leaves lead with their number.
    params
        Parameters psi.
    opt_state
        State of the optimizer.
    local
        What the last step evaluated at the particles: log density of its target, and the gradient.
    log_weights
        Logarithms of the normalized weights.
    log_evidence
        Logarithm of the estimate of the integral of the last target.
    """

    position: ArrayTree
    params: ArrayTree
    opt_state: Any
    local: Evaluation
    log_weights: Array
    log_evidence: Array


class OpenHorizonInfo(NamedTuple):
    """Facts about one step.

    Attributes
    ----------
    loss
        Weighted mean of the potential energy, before the update of the parameters; NaN where no
        particle has a weight.
    ess
        Effective sample size after the step.
    is_resampled
        Whether the step resampled.
    acceptance_rate
        Share of the effective sample size that the move and the new target left.
    is_accepted
        Which particles moved to where they have a weight.
    is_divergent
        Whether the weight of any particle was not a number.
    num_divergent
        Of how many particles it was not.
    weight_power
        Power to which the factors of the weights were taken: 1 unless `weight_ess` asks for less.
    """

    loss: Array
    ess: Array
    is_resampled: Array
    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    num_divergent: Array
    weight_power: Array


def init(
    position: ArrayLikeTree,
    params: ArrayTree,
    logprior_fn: LogDensity,
    optimizer: optax.GradientTransformation,
) -> OpenHorizonState:
    """Make the first state from draws of the prior, whose normalized log density is needed."""
    position = check_particles(position)
    x, unravel = sampler.ravel(position)
    fn = jax.value_and_grad(lambda x: check_scalar(logprior_fn(unravel(x))))
    log_weights = jnp.full(x.shape[:1], -jnp.log(x.shape[0]), x.dtype)
    return OpenHorizonState(
        position,
        params,
        optimizer.init(params),
        Evaluation(*jax.jit(jax.vmap(fn))(x)),
        log_weights,
        jnp.zeros((), x.dtype),
    )


class Moves(NamedTuple):
    """How particles move: by leapfrog steps K along the gradient, or without it.

    If `is_guided` the first gradient is that on the new batch.
    """

    is_driven: bool
    is_guided: bool
    num_steps: int

    def drift(self, local: Evaluation) -> Array:
        """The gradient that a step follows."""
        return local.gradient if self.is_driven else jnp.zeros_like(local.gradient)

    def __call__(
        self,
        rng_key: PRNGKey,
        before: Population,
        evaluators: tuple[Evaluate, Evaluate],
        step_size: float,
        metric: Factor,
    ) -> Move:
        """K steps, the last of which also finds the gradient in the parameters."""
        evaluate, evaluate_both = evaluators
        x, local, ancestors = before.particles
        previous = local
        if self.is_guided:
            local = evaluate_distinct(evaluate, x, ancestors)
        momentum = standard_normal(rng_key, x.size, x.dtype).reshape(x.shape)
        functions, num_first = (evaluate, self.drift), self.num_steps - 1
        move = leapfrog(momentum, x, local, *functions, step_size, num_first, metric)
        move = leapfrog_step(move, evaluate_both, self.drift, step_size, metric)
        if self.is_driven:
            return move
        # a random walk does not use the gradient at its end, which is thus not computed
        return move._replace(local=move.local._replace(gradient=previous.gradient))


def build_kernel(
    proposal: str = "langevin",
    *,
    guided: bool | None = None,
    l_kernel: str | LKernel = "reversed",
    num_integration_steps: int = 1,
    ess_threshold: float = 0.5,
    weight_ess: float = 0.0,
) -> Callable[..., tuple[OpenHorizonState, OpenHorizonInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, potential_fn, optimizer, batch, step_size,
        inverse_mass_matrix=None) -> (state, info)``.
    """
    check_share("ess_threshold", ess_threshold)
    check_share("weight_ess", weight_ess)
    check_count("num_integration_steps", num_integration_steps)
    check_choice("proposal", proposal, PROPOSALS)
    weigh_back = as_l_kernel(l_kernel)
    is_driven = proposal == "langevin"
    if guided and not is_driven:
        raise ValueError(f"guided is for proposal='langevin', which has a gradient; got {guided}.")
    guided = is_driven if guided is None else guided
    move_on = Moves(is_driven, guided, num_integration_steps)

    def kernel(
        rng_key: PRNGKey,
        state: OpenHorizonState,
        potential_fn: Function,
        optimizer: optax.GradientTransformation,
        batch: Any,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix = None,
    ) -> tuple[OpenHorizonState, OpenHorizonInfo]:
        """Resample, move, weigh, update the parameters."""
        key_resample, key_move = jax.random.split(rng_key)
        x, unravel = sampler.ravel(state.position)
        metric = factorize(inverse_mass_matrix, x.shape[1])
        particles = x, state.local, jnp.arange(x.shape[0])
        population = Population(particles, state.log_weights, state.log_evidence)
        before, is_resampled = sampler.resample_below(key_resample, population, ess_threshold)
        evaluators = build_evaluators(potential_fn, state.params, batch, unravel)
        move = move_on(key_move, before, evaluators, step_size, metric)
        log_factors = move.local.logdensity - before.particles[1].logdensity
        log_factors += weigh_back(move, before.log_weights)
        local = move.local._replace(slope=None)
        kept_share = sampler.conditional_ess(before.log_weights, log_factors) / x.shape[0]
        power = jnp.ones(())
        if weight_ess:
            log_factors, power = sampler.softened(before.log_weights, log_factors, weight_ess)
        after = sampler.update_weights(
            before._replace(particles=(move.position, local)), log_factors
        )
        weights = jnp.where(jnp.isfinite(local.logdensity), jnp.exp(after.log_weights), 0.0)
        position = jax.vmap(unravel)(move.position)
        info = info_of(after, log_factors, weights, is_resampled, kept_share, power)
        trained = state.params, state.opt_state, info.loss
        energy = mean_energy(potential_fn, position, batch, weights)
        params, opt_state = update_parameters(
            optimizer, weights, move.local.slope, *trained, energy
        )
        return OpenHorizonState(position, params, opt_state, local, *after[1:]), info

    return kernel


@public(init, build_kernel)
def open_horizon_smc(
    potential_fn: Function,
    optimizer: optax.GradientTransformation,
    *,
    step_size: float,
    inverse_mass_matrix: InverseMassMatrix = None,
    proposal: str = "langevin",
    guided: bool | None = None,
    l_kernel: str | LKernel = "reversed",
    num_integration_steps: int = 1,
    ess_threshold: float = 0.5,
    weight_ess: float = 0.0,
) -> SamplingAlgorithm:
    """Open-horizon sequential Monte Carlo (GOHSMC): parameters trained, latents sampled.

    Parameters
    ----------
    potential_fn
        ``potential_fn(params, position, batch)`` for one particle: minus the log prior and the log
        likelihood of the batch, scaled to all data.
    optimizer
        An optax transformation for the parameters.
    step_size
        epsilon > 0 of the proposal: drift epsilon^2/2, noise epsilon.
    inverse_mass_matrix
        Covariance to propose with: None, shape (D,), shape (D, D), or a factor.
    proposal
        "langevin", or "random_walk" (OHSMC, with exact weights).
    guided
        Whether the gradient at the start is that of the new target, at the price of evaluating it;
        the default for "langevin", and not for "random_walk".
    l_kernel
        "reversed", "random_walk" (eq. 10 to the letter), "gaussian", or a function.
    num_integration_steps
        Leapfrog steps K of a move.
    ess_threshold
        Resample below this share of the particles.
    weight_ess
        Share of the conditional effective sample size that a step may leave: factors of the weights
        that leave less are taken to a smaller power. 0, the published weights, takes them as they
        are; with any other share the weights are no longer exact for the batches.

    Returns
    -------
    A ``SamplingAlgorithm`` with ``init(position, params, logprior_fn)`` and
    ``step(rng_key, state, batch)``.

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive, an unknown proposal or backward kernel, an optimizer
        that is not of optax, a share outside [0, 1], a count below 1, or no particles.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, optax, blackjax_ext
    >>> def potential(shift, x, y):  # y ~ N(shift + x, 1), x ~ N(0, 1)
    ...     return 0.5 * x**2 + 0.5 * jnp.sum((y - shift - x) ** 2)
    >>> smc = blackjax_ext.open_horizon_smc(potential, optax.adam(0.1), step_size=0.3)
    >>> prior = lambda x: jax.scipy.stats.norm.logpdf(x)
    >>> state = smc.init(jax.random.normal(jax.random.key(0), (500,)), jnp.zeros(()), prior)
    >>> step = jax.jit(smc.step)
    >>> for key in jax.random.split(jax.random.key(1), 200):
    ...     state, info = step(key, state, jnp.array([2.5, 3.5]))
    >>> bool(abs(state.params - 3.0) < 0.3)
    True
    """
    check_positive("step_size", step_size)
    check_optimizer("optimizer", optimizer)
    kernel = build_kernel(
        proposal,
        guided=guided,
        l_kernel=l_kernel,
        num_integration_steps=num_integration_steps,
        ess_threshold=ess_threshold,
        weight_ess=weight_ess,
    )
    metric = factorize(inverse_mass_matrix)

    def step_fn(
        rng_key: PRNGKey, state: OpenHorizonState, batch: Any
    ) -> tuple[OpenHorizonState, OpenHorizonInfo]:
        return kernel(rng_key, state, potential_fn, optimizer, batch, step_size, metric)

    return SamplingAlgorithm(partial(init, optimizer=optimizer), step_fn)


def info_of(
    after: Population,
    log_factors: Array,
    weights: Array,
    is_resampled: Array,
    kept_share: Array,
    power: Array,
) -> OpenHorizonInfo:
    """Info of a step, from the population after it."""
    logdensity = after.particles[1].logdensity
    is_lost = jnp.isnan(log_factors) | jnp.isposinf(log_factors)
    return OpenHorizonInfo(
        mean_loss(weights, logdensity),
        sampler.effective_sample_size(after.log_weights),
        is_resampled,
        kept_share,
        weights > 0,
        jnp.any(is_lost),
        jnp.sum(is_lost),
        power,
    )
