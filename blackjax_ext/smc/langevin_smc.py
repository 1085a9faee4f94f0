r"""Sequential Monte Carlo on a fixed posterior, from prior draws, with gradient-based moves.

The targets are :math:`\gamma_\lambda(x) = p(x) \ell(x)^\lambda` for temperatures
:math:`0 = \lambda_0 < \lambda_1 < \dots = 1`. One step takes a population at :math:`\lambda` to one
at :math:`\lambda'`:

1. *Temper.* :math:`\lambda'` is the largest temperature at which the conditional effective sample
   size of :math:`\ell(x_j)^{\lambda' - \lambda}` is `tempering_ess` times N.
2. *Weigh* by those factors: the particles now represent :math:`\gamma_{\lambda'}`.
3. `num_moves` times: *resample* if the effective sample size is below `ess_threshold` times N, then
   *move*, and weigh by :math:`\gamma_{\lambda'}(x')\, \ell(m | x') / (\gamma_{\lambda'}(x)
   \mathcal{N}(p))` (:mod:`blackjax_ext.smc.l_kernels`), or by 1 for a Metropolis move.

Steps 2 and 3 together multiply the weight by the paper's (6),

.. math::
    \frac{\gamma_{\lambda'}(x)}{\gamma_\lambda(x)} \cdot
    \frac{\gamma_{\lambda'}(x') L(x | x')}{\gamma_{\lambda'}(x) q(x' | x)}
    = \frac{\gamma_{\lambda'}(x') L(x | x')}{\gamma_\lambda(x) q(x' | x)},

but the first fraction is known before the move, and resampling by it sends only particles that
count. With given temperatures the estimate of the evidence is unbiased; temperatures, step sizes
and metrics that are chosen by looking at the particles bias it by O(1/N).

Cost of a step: `num_moves` moves, of `num_integration_steps` gradients of prior and likelihood per
particle each; nothing is evaluated twice at the same point. Memory: two gradients per particle.

Digits: weights are made of differences from the greatest log likelihood, and temperatures are found
on a logarithmic scale, so that a log likelihood may spread over 1e15 among the draws of the prior,
in single precision too. A log likelihood of more than about 4e6 *at the posterior* has no digits
left for differences of 0.5 in single precision: take double precision then, or leave out constants.

What goes wrong: an unadjusted move with too long a step spoils the weights. `acceptance_rate` is
then low, and the population collapses to a few particles. The estimate stays unbiased and becomes
useless. Take a shorter step, a metric, or a Metropolis move. Where the likelihood is zero on a
region, unadjusted moves bias the evidence (:mod:`blackjax_ext.smc.l_kernels`); Metropolis does not.

References: P. Del Moral, A. Doucet and A. Jasra 2006, Sequential Monte Carlo samplers; Algorithm 2
of the paper on partial Bayesian networks; A. Buchholz, N. Chopin and P. Jacob 2021, Adaptive tuning
of Hamiltonian Monte Carlo within sequential Monte Carlo.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import (
    check_count,
    check_particles,
    check_positive,
    check_share,
)
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix
from blackjax_ext.smc import sampler
from blackjax_ext.smc.l_kernels import LKernel
from blackjax_ext.smc.moves import Moved, MoveFn, Unadjusted
from blackjax_ext.smc.proposals import GradientMode
from blackjax_ext.smc.sampler import Population
from blackjax_ext.smc.tempered import (
    PriorAndLikelihood,
    Tempered,
    metric_option,
    next_temperature,
    population_metric,
    tempered,
    tempered_loglikelihood,
)
from blackjax_ext.top_level import public
from blackjax_ext.types import LogDensity


class LangevinSMCState(NamedTuple):
    """State of the population.

    Attributes
    ----------
    position
        Particles: a pytree whose leaves lead with N.
    local
        Log prior, log likelihood and their gradients there.
    temperature
        Power of the likelihood that the population represents.
    log_weights
        Logarithms of the normalized weights, shape (N,).
    log_evidence
        Logarithm of the estimate of the integral of prior times tempered likelihood.
    variance
        Estimate of the variance of that estimate over its square: its root is the standard error of
        `log_evidence` where that is small (:mod:`blackjax_ext.smc.sampler`).
    ancestors
        Which draw of the prior each particle descends from, shape (N,).
    """

    position: ArrayTree
    local: PriorAndLikelihood
    temperature: Array
    log_weights: Array
    log_evidence: Array
    variance: Array
    ancestors: Array


class LangevinSMCInfo(NamedTuple):
    """Facts about one step.

    Attributes
    ----------
    acceptance_rate
        Mean over particles and moves of Metropolis' probability, or of the share of the effective
        sample size that an unadjusted move kept.
    is_accepted
        Which particles the last move moved, shape (N,).
    is_divergent
        Whether any of the moves proposed a place where the density is not a number, same shape: it
        is rejected, or the particle loses its weight.
    num_divergent
        How often that happened, plus the number of particles at which the likelihood was not a
        number before the step.
    ess
        Effective sample size at the new temperature, before any resampling and any move.
    num_resampled
        How often the step resampled.
    least_ess
        Least effective sample size within the step: at the new temperature and after each move,
        before any resampling. Where it is near 1, one particle is the ancestor of all.
    genealogical_ess
        Effective number of draws of the prior that the particles descend from, after the step:
        ``1 / sum_k G_k^2``, G_k being the weight of the descendants of draw k.
    remembered
        Correlation over the particles of the log likelihood after the moves with that before them:
        0 where the moves forget where the particles were.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    num_divergent: Array
    ess: Array
    num_resampled: Array
    least_ess: Array
    genealogical_ess: Array
    remembered: Array


def init(
    position: ArrayLikeTree,
    logprior_fn: LogDensity,
    loglikelihood_fn: LogDensity,
    rng_key: PRNGKey | None = None,
    *,
    differentiation: GradientMode = "reverse",
) -> LangevinSMCState:
    """Make the first state from N draws of the prior. A key is accepted and not used."""
    del rng_key
    position = check_particles(position)
    x, unravel = sampler.ravel(position)
    zero = jnp.zeros((), x.dtype)
    local = tempered(logprior_fn, loglikelihood_fn, zero, unravel, differentiation).evaluate(x)
    log_weights = jnp.full(x.shape[:1], -jnp.log(x.shape[0]), x.dtype)
    return LangevinSMCState(
        position, local, zero, log_weights, zero, zero, jnp.arange(x.shape[0], dtype=jnp.int32)
    )


class Rounds(NamedTuple):
    """Moves of a step at its temperature: options of :func:`blackjax_ext.langevin_smc`."""

    move: MoveFn
    num_moves: int
    ess_threshold: float

    def __call__(
        self,
        rng_key: PRNGKey,
        population: Population,
        target: Tempered,
        step_size: Array | float,
        metric: Factor,
        num: int,
    ) -> tuple[Population, Any]:
        """The moves one after the other, and what each did.

        The particles descend from `num` draws of the prior.
        """

        def once(population: Population, rng_key: PRNGKey) -> tuple[Population, Any]:
            key_resample, key_move = jax.random.split(rng_key)
            population, is_resampled = sampler.resample_below(
                key_resample, population, self.ess_threshold
            )
            x, local, ancestors, earlier = population.particles
            before = sampler.concentration(population.log_weights, ancestors, num)
            moved = self.move(key_move, x, local, target, step_size, metric, population.log_weights)
            particles = moved.position, moved.local, ancestors, earlier
            population = population._replace(particles=particles)
            population = sampler.update_weights(population, moved.log_factors)
            after = sampler.concentration(population.log_weights, ancestors, num)
            ess = sampler.effective_sample_size(population.log_weights)
            return population, (moved, is_resampled, ess, after - before)

        keys = jax.random.split(rng_key, self.num_moves)
        moved: tuple[Population, Any] = jax.lax.scan(once, population, keys)
        return moved


def build_kernel(
    move: MoveFn | None = None,
    *,
    num_moves: int = 1,
    ess_threshold: float = 0.5,
    tempering_ess: float = 0.8,
) -> Callable[..., tuple[LangevinSMCState, LangevinSMCInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, logprior_fn, loglikelihood_fn, step_size,
        inverse_mass_matrix=None, *, temperature=None) -> (state, info)``. `temperature` is the next
        one; if it is None the effective sample size chooses.
    """
    check_share("ess_threshold", ess_threshold)
    check_share("tempering_ess", tempering_ess)
    check_count("num_moves", num_moves)
    if tempering_ess in (0, 1):
        raise ValueError(f"tempering_ess must be strictly between 0 and 1; got {tempering_ess}.")
    move = Unadjusted() if move is None else move
    rounds = Rounds(move, num_moves, ess_threshold)

    def kernel(
        rng_key: PRNGKey,
        state: LangevinSMCState,
        logprior_fn: LogDensity,
        loglikelihood_fn: LogDensity,
        step_size: float,
        inverse_mass_matrix: InverseMassMatrix | str = None,
        *,
        temperature: Array | float | None = None,
    ) -> tuple[LangevinSMCState, LangevinSMCInfo]:
        """One temperature, `num_moves` moves."""
        x, unravel = sampler.ravel(state.position)
        loglikelihood = state.local.loglikelihood
        if temperature is None:
            temperature = next_temperature(
                state.temperature, state.log_weights, loglikelihood, tempering_ess
            )
        temperature = jnp.asarray(temperature, x.dtype)
        num, ancestors = x.shape[0], state.ancestors
        # resampled with the particles: where each of them was before it moved
        particles = x, state.local, ancestors, loglikelihood
        population = Population(particles, state.log_weights, state.log_evidence)
        before = sampler.concentration(population.log_weights, ancestors, num)
        population = reweigh(population, temperature - state.temperature, loglikelihood)
        gain = sampler.concentration(population.log_weights, ancestors, num) - before
        ess = sampler.effective_sample_size(population.log_weights)
        target = tempered(logprior_fn, loglikelihood_fn, temperature, unravel, move.differentiation)
        metric = population_metric(inverse_mass_matrix, x, population.log_weights)
        population, (moved, is_resampled, later, gains) = rounds(
            rng_key, population, target, step_size, metric, num
        )
        x, local, ancestors, earlier = population.particles
        remembered = sampler.correlation(population.log_weights, earlier, local.loglikelihood)
        variance = state.variance + gain + jnp.sum(gains)
        new_state = LangevinSMCState(
            jax.vmap(unravel)(x), local, temperature, *population[1:], variance, ancestors
        )
        info = info_of_moves(new_state, moved, is_resampled, later, loglikelihood, ess, remembered)
        return new_state, info

    return kernel


@public(init, build_kernel)
def langevin_smc(
    logprior_fn: LogDensity,
    loglikelihood_fn: LogDensity,
    *,
    step_size: float,
    inverse_mass_matrix: InverseMassMatrix | str = None,
    proposal: str | None = None,
    l_kernel: str | LKernel | None = None,
    num_integration_steps: int | None = None,
    differentiation: GradientMode | None = None,
    move: MoveFn | None = None,
    num_moves: int = 1,
    ess_threshold: float = 0.5,
    tempering_ess: float = 0.8,
) -> SamplingAlgorithm:
    """Tempered sequential Monte Carlo with unadjusted Langevin or Metropolis moves.

    Parameters
    ----------
    logprior_fn
        Log density of the prior, normalized if the evidence is to be that of the model.
    loglikelihood_fn
        Log likelihood of all data.
    step_size
        epsilon > 0: drift epsilon^2/2, noise epsilon.
    inverse_mass_matrix
        Estimate of the posterior covariance: None, shape (D,), shape (D, D), or a factor. With
        "particles" the weighted variances of the particles at each new temperature;
        with "covariance" their covariance, if there are at least ten for each of its D (D + 1) / 2
        numbers. Along correlated coordinates that is what moves need: without, a population may
        shrink to the neighbourhood of one ancestor, which no effective sample size shows.
    proposal
        "langevin", the default, or "random_walk".
    l_kernel
        Backward kernel: "reversed", the default, "random_walk", "gaussian" (biased for small
        populations), or a function of (move, log_weights).
    num_integration_steps
        Leapfrog steps of a move, 1 by default; more make it unadjusted Hamiltonian Monte Carlo.
    differentiation
        "reverse", the default, or "forward" for densities without reverse mode.
    move
        In place of the four above: ``moves.Metropolis(blackjax_ext.hp_mala, floor=0.1)``, or a
        function like it.
    num_moves
        Moves per temperature.
    ess_threshold
        Resample below this share of the particles; 0 never, 1 (almost) always.
    tempering_ess
        Share of the conditional effective sample size that a temperature may leave.

    Returns
    -------
    A ``SamplingAlgorithm`` with ``init(position)``, position being N prior draws,
    and ``step(rng_key, state, temperature=None)``; ``blackjax_ext.anneal`` goes to temperature 1.

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive, shares outside [0, 1], counts below 1, an unknown
        proposal or backward kernel, an argument that `move` replaces, leaves without a common axis
        of particles.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from jax.scipy.stats import norm
    >>> smc = blackjax_ext.langevin_smc(
    ...     lambda x: norm.logpdf(x), lambda x: norm.logpdf(1.0, x, 0.5), step_size=0.4
    ... )
    >>> state = smc.init(jax.random.normal(jax.random.key(0), (2_000,)))
    >>> state, schedule = blackjax_ext.anneal(jax.random.key(1), smc, state)
    >>> bool(abs(state.log_evidence - norm.logpdf(1.0, 0.0, 1.25**0.5)) < 0.1)
    True
    """
    check_positive("step_size", step_size)
    metric = metric_option(inverse_mass_matrix)
    given = {
        "proposal": proposal,
        "l_kernel": l_kernel,
        "num_integration_steps": num_integration_steps,
        "differentiation": differentiation,
    }
    move = unadjusted_or(move, {name: value for name, value in given.items() if value is not None})
    kernel = build_kernel(
        move,
        num_moves=num_moves,
        ess_threshold=ess_threshold,
        tempering_ess=tempering_ess,
    )
    densities = (logprior_fn, loglikelihood_fn)

    def init_fn(position: ArrayLikeTree, rng_key: PRNGKey | None = None) -> LangevinSMCState:
        return init(position, *densities, rng_key, differentiation=move.differentiation)

    def step_fn(
        rng_key: PRNGKey, state: LangevinSMCState, temperature: Array | float | None = None
    ) -> tuple[LangevinSMCState, LangevinSMCInfo]:
        return kernel(rng_key, state, *densities, step_size, metric, temperature=temperature)

    return SamplingAlgorithm(init_fn, step_fn)


def info_of_moves(
    state: LangevinSMCState,
    moved: Moved,
    is_resampled: Array,
    later: Array,
    loglikelihood: Array,
    ess: Array,
    remembered: Array,
) -> LangevinSMCInfo:
    """Info of a step; `moved`, `is_resampled` and `later`, sizes after them, lead with moves."""
    size = state.log_weights.shape[0]
    return LangevinSMCInfo(
        jnp.mean(moved.acceptance_rate),
        moved.is_accepted[-1],
        jnp.any(moved.is_divergent, axis=0),
        jnp.sum(moved.is_divergent) + jnp.sum(jnp.isnan(loglikelihood)),
        ess,
        jnp.sum(is_resampled),
        jnp.minimum(ess, jnp.min(later)),
        1.0 / sampler.concentration(state.log_weights, state.ancestors, size),
        remembered,
    )


def reweigh(population: Population, increment: Array, loglikelihood: Array) -> Population:
    """`population` weighed by the likelihood to the power of `increment`."""
    _, peak = sampler.shifted_log_factors(population.log_weights, loglikelihood)
    population = sampler.update_weights(
        population, tempered_loglikelihood(increment, loglikelihood - peak)
    )
    return population._replace(log_evidence=population.log_evidence + increment * peak)


def unadjusted_or(move: MoveFn | None, arguments: dict[str, Any]) -> MoveFn:
    """`move`, or the unadjusted one with these arguments; ValueError if both are given."""
    if move is None:
        return Unadjusted(**arguments)
    if not (callable(move) and hasattr(move, "differentiation")):
        raise TypeError(
            "move must be one of blackjax_ext.moves, or a function with the attribute "
            f"differentiation; got {move!r}."
        )
    if arguments:
        raise ValueError(f"move replaces {sorted(arguments)}: leave them out, or leave out move.")
    return move
