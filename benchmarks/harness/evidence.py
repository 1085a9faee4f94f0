"""Models of which the log evidence is known, and samplers that estimate it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from blackjax.smc import resampling
from scipy.special import gammaln
from scipy.stats import multivariate_normal, norm

import blackjax_ext
from numpyro_fwd import LangevinSMC
from numpyro_fwd.bridge.priors import draw_prior, split_logdensity
from numpyro_fwd.kernels.smc import share_to_keep

__all__ = [
    "PROBLEMS",
    "Counted",
    "Problem",
    "moving",
    "nested",
    "ours",
    "persistent",
    "tempered",
    "tempering",
]

# of ours per particle and temperature: three moves of AutoMALA, with eight gradients on average as
# `benchmarks/smc.py algorithms` counts them, and two values after each
EVALUATIONS = 14
NUM_MOVES = 3
MAX_ITERATIONS = 200


class Problem(NamedTuple):
    """A model without arguments, its log evidence, its dimensions, and the least posterior sd."""

    model: Callable
    truth: float
    size: int
    scale: float


def regression(size: int, seed: int = 0) -> Problem:
    """The first `size` of 30 coefficients: nested models of one table of 50 rows."""
    rng = np.random.default_rng(seed)
    x, slopes = rng.normal(size=(50, 30)), rng.normal(size=30)
    y = x @ (slopes * (np.arange(30) < 10)) + rng.normal(size=50)
    x = x[:, :size]
    truth = multivariate_normal.logpdf(y, np.zeros(50), 25.0 * x @ x.T + np.eye(50))
    scale = np.sqrt(np.diag(np.linalg.inv(x.T @ x + np.eye(size) / 25.0)).min())

    def model():
        w = numpyro.sample("w", dist.Normal(0, 5).expand([size]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.asarray(x) @ w, 1.0), obs=jnp.asarray(y))

    return Problem(model, float(truth), size, float(scale))


def mixture(size: int, narrow: float) -> Problem:
    """Two modes with sds `narrow` and 1 at -2 and 2 in each of `size` dimensions, prior sd 3."""
    share, prior = 0.36, 3.0
    places = ((-2.0, narrow, share), (2.0, 1.0, 1.0 - share))

    def log_mass(place, scale):
        return size * norm.logpdf(place, 0.0, np.hypot(prior, scale))

    def model():
        x = numpyro.sample("x", dist.Normal(0, prior).expand([size]).to_event(1))
        terms = [
            np.log(part) - log_mass(place, scale) + dist.Normal(place, scale).log_prob(x).sum()
            for place, scale, part in places
        ]
        numpyro.factor("modes", jnp.logaddexp(*terms))

    return Problem(model, 0.0, size, narrow)


EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools() -> Problem:
    """Not centred; mu ~ N(0, 5), tau ~ half-Cauchy(5)."""
    mu, tau = np.linspace(-30, 30, 1201), np.tan(np.linspace(0, np.pi / 2, 2002)[1:-1]) * 5.0
    scale = np.hypot(tau[:, None, None], ERRORS)
    log_density = norm.logpdf(EFFECTS, mu[None, :, None], scale).sum(-1) + norm.logpdf(mu, 0, 5)
    # the angle of tau is uniform under its prior
    truth = np.log(np.mean(np.trapezoid(np.exp(log_density), mu, axis=1)))

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + tau * z, ERRORS), obs=EFFECTS)

    return Problem(model, float(truth), 10, 0.9)


def dirichlet() -> Problem:
    """Shares of six categories with 60 counts."""
    counts, prior = np.array([3, 20, 0, 7, 25, 5]), np.ones(6)
    truth = gammaln(prior.sum()) - gammaln((prior + counts).sum())
    truth += np.sum(gammaln(prior + counts) - gammaln(prior))

    def model():
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.asarray(prior)))
        numpyro.factor("counts", jnp.sum(jnp.asarray(counts) * jnp.log(shares)))

    return Problem(model, float(truth), 5, 0.2)


def constrained() -> Problem:
    """Three normals of which the first must exceed 1.5, which 7 percent of the prior draws do."""
    axis = np.linspace(1.5, 10.0, 100_001)
    first = np.trapezoid(norm.pdf(axis) * norm.pdf(2.0, axis, 0.5), axis)
    truth = np.log(first) + 2 * norm.logpdf(1.0, 0.0, np.sqrt(1.25))

    def model():
        x = numpyro.sample("x", dist.Normal(0, 1).expand([3]).to_event(1))
        likelihood = dist.Normal(x, 0.5).log_prob(jnp.array([2.0, 1.0, 1.0])).sum()
        numpyro.factor("y", jnp.where(x[0] > 1.5, likelihood, -jnp.inf))

    return Problem(model, float(truth), 3, 0.3)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{f"regression, D = {size}": partial(regression, size) for size in (1, 3, 10, 30)},
    **{f"equal modes, D = {size}": partial(mixture, size, 1.0) for size in (2, 10, 20)},
    **{f"unequal modes, D = {size}": partial(mixture, size, 0.5) for size in (2, 5, 10, 20)},
    "eight schools": eight_schools,
    "Dirichlet": dirichlet,
    "hard constraint": constrained,
}


@cache
def kernel_of(problem: Problem) -> LangevinSMC:
    """The kernel with its defaults, whose annealing is compiled once."""
    return LangevinSMC(problem.model)


def ours(problem: Problem, num_particles: int, seed: int) -> dict[str, Any]:
    """`LangevinSMC` from its defaults."""
    return annealed(kernel_of(problem), NUM_MOVES, num_particles, seed)


def tempering(num_moves: int, tempering_ess: float | None) -> Callable:
    """`LangevinSMC` with so many moves and so much kept at a temperature; arguments as `ours`."""

    @cache
    def kernel(problem: Problem) -> LangevinSMC:
        return LangevinSMC(problem.model, num_moves=num_moves, tempering_ess=tempering_ess)

    def run(problem: Problem, num_particles: int, seed: int) -> dict[str, Any]:
        return annealed(kernel(problem), num_moves, num_particles, seed)

    return run


def annealed(kernel: LangevinSMC, num_moves: int, num_particles: int, seed: int) -> dict[str, Any]:
    """What a run says that makes so many moves at each temperature."""
    keys = jax.random.split(jax.random.key(seed), num_particles)
    state = kernel.init(keys, 0, None, (), {})
    num = int(state.num_temperatures[0])
    return {
        "value": float(state.inner.log_evidence),
        "error": float(state.log_evidence_error[0]),
        "evaluations": EVALUATIONS * num_moves // NUM_MOVES * num * num_particles,
        "ancestors": float(state.genealogical_ess[0]),
    }


class Counted:
    """An algorithm of blackjax_ext that counts the gradients of its particles.

    Those that a particle needs, and not those that it makes while others go on.
    """

    def __init__(self, algorithm: Any):
        self.algorithm, self.build_kernel = algorithm, algorithm.build_kernel
        self.num_gradients = 0

    def count(self, numbers: np.ndarray) -> np.ndarray:
        """Add them up; zeros, for the program to wait for."""
        self.num_gradients += int(numbers.sum())
        return np.zeros(numbers.shape, np.float32)

    def __call__(self, logdensity_fn: Callable, **parameters: Any) -> Any:
        """The algorithm on a density: its states cost a gradient, its steps one for each trial."""
        sampler = self.algorithm(logdensity_fn, **parameters)

        def step(rng_key, state):
            state, info = sampler.step(rng_key, state)
            # an outcome of the step, or the compiler would count one step for all
            is_made = ~(info.acceptance_rate > 1)
            numbers = is_made * (1 + getattr(info, "num_evaluations", 1))
            zero = jax.pure_callback(
                self.count,
                jax.ShapeDtypeStruct((), jnp.float32),
                numbers,
                vmap_method="expand_dims",
            )
            return state, info._replace(is_divergent=info.is_divergent | (zero > 0))

        return sampler._replace(step=step)


@cache
def counted(problem: Problem, name: str, num_moves: int) -> tuple[LangevinSMC, Counted]:
    """The kernel with moves of the algorithm of that name, which are counted."""
    algorithm = Counted(getattr(blackjax_ext, name))
    return LangevinSMC(problem.model, algorithm=algorithm, num_moves=num_moves), algorithm


def moving(
    name: str, num_moves: int, problem: Problem, num_particles: int, seed: int
) -> dict[str, float]:
    """`LangevinSMC` with so many moves of an algorithm, and their gradients."""
    kernel, algorithm = counted(problem, name, num_moves)
    before = algorithm.num_gradients
    keys = jax.random.split(jax.random.key(seed), num_particles)
    state = jax.block_until_ready(kernel.init(keys, 0, None, (), {}))
    return {
        "value": float(state.inner.log_evidence),
        "gradients": algorithm.num_gradients - before,
        "ancestors": float(state.genealogical_ess[0]),
    }


@cache
def peer(problem: Problem, num_particles: int, name: str) -> Callable:
    """A compiled run of BlackJAX's sampler: log evidence, and how many temperatures it took."""
    logprior, loglikelihood = split_logdensity(problem.model, (), {})
    # its MALA has epsilon^2 / 2, and one step for all dimensions
    step = 0.5 * (1.2 * problem.scale / problem.size ** (1 / 6)) ** 2
    shared = (blackjax.mala.build_kernel(), blackjax.mala.init, {"step_size": jnp.array([step])})
    if name == "tempered":
        share = share_to_keep(num_particles)
        smc = blackjax.adaptive_tempered_smc(
            *(logprior, loglikelihood, *shared, resampling.systematic, share),
            num_mcmc_steps=EVALUATIONS,
        )
    else:
        smc = blackjax.adaptive_persistent_sampling_smc(
            *(logprior, loglikelihood, MAX_ITERATIONS, *shared, resampling.systematic, 3.0),
            num_mcmc_steps=EVALUATIONS,
        )

    def step_on(carry):
        state, i, total, rng_key = carry
        rng_key, key_step = jax.random.split(rng_key)
        state, info = smc.step(key_step, state)
        total = state.log_Z if name == "persistent" else total + info.log_likelihood_increment
        return state, i + 1, total, rng_key

    def goes_on(carry):
        return (carry[0].tempering_param < 1) & (carry[1] < MAX_ITERATIONS)

    @jax.jit
    def run(z, rng_key):
        state = smc.init(z)
        total = jnp.zeros((), jax.tree.leaves(z)[0].dtype)
        _, num, total, _ = jax.lax.while_loop(goes_on, step_on, (state, 0, total, rng_key))
        return total, num

    return run


def by_peer(name: str, problem: Problem, num_particles: int, seed: int) -> dict[str, Any]:
    """BlackJAX's sampler of that name, with as many evaluations per particle and temperature."""
    key_prior, key_run = jax.random.split(jax.random.key(seed))
    z = draw_prior(key_prior, problem.model, (), {}, num_particles)
    value, num = peer(problem, num_particles, name)(z, key_run)
    evaluations = EVALUATIONS * int(num) * num_particles
    return {"value": float(value), "error": np.nan, "evaluations": evaluations, "ancestors": np.nan}


tempered, persistent = partial(by_peer, "tempered"), partial(by_peer, "persistent")


LEFT = -5.0  # log share of the evidence in the live points where a nested sampler stops
PILOT = 50  # live points of a run that tells how many evaluations one of them costs


@cache
def nest(problem: Problem, num_live: int) -> Callable:
    """A compiled run of BlackJAX's nested slice sampler: log evidence, and evaluations."""
    logprior, loglikelihood = split_logdensity(problem.model, (), {})
    smc = blackjax.nss(
        *(logprior, loglikelihood, max(5, 2 * problem.size)), num_delete=max(1, num_live // 10)
    )

    def goes_on(carry):
        integrator = carry[0].integrator
        return integrator.logZ_live - integrator.logZ > LEFT

    def step_on(carry):
        state, num, rng_key = carry
        rng_key, key_step = jax.random.split(rng_key)
        state, info = smc.step(key_step, state)
        slices = info.update_info
        # the place where it begins, both ends of the bracket, and what widens and narrows it
        new = jnp.sum(slices.num_expansions + slices.num_shrink + 3)
        return state, num + new, rng_key

    @jax.jit
    def run(z, rng_key):
        state = smc.init(z)
        state, num, _ = jax.lax.while_loop(goes_on, step_on, (state, num_live, rng_key))
        return jnp.logaddexp(state.integrator.logZ, state.integrator.logZ_live), num

    return run


def nested_run(problem: Problem, num_live: int, seed: int) -> dict[str, Any]:
    """One run from draws of the prior."""
    key_prior, key_run = jax.random.split(jax.random.key(seed))
    z = draw_prior(key_prior, problem.model, (), {}, num_live)
    value, num = nest(problem, num_live)(z, key_run)
    return {"value": float(value), "error": np.nan, "evaluations": int(num), "ancestors": np.nan}


@cache
def size_of_nest(problem: Problem, num_particles: int) -> int:
    """Live points that take about the evaluations of `LangevinSMC`, 0.9 kept at a temperature."""
    wanted = tempering(NUM_MOVES, 0.9)(problem, num_particles, 0)["evaluations"]
    return max(PILOT, round(PILOT * wanted / nested_run(problem, PILOT, 0)["evaluations"]))


def nested(problem: Problem, num_particles: int, seed: int) -> dict[str, Any]:
    """BlackJAX's nested slice sampler with as many evaluations in all."""
    return nested_run(problem, size_of_nest(problem, num_particles), seed)
