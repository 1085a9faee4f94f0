"""Laws of sequential Monte Carlo as plain functions: they raise AssertionError when broken."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import blackjax_ext
from blackjax_ext import metrics
from blackjax_ext.mcmc import langevin
from blackjax_ext.smc import l_kernels, langevin_smc, sampler, tempered
from blackjax_ext.smc.proposals import leapfrog, value_and_gradient

TEMPERATURES = (0.2, 0.6, 1.0)
NUM_RUNS = 20_000
MAX_DEVIATION = 0.02  # in units of Z: what a bias must exceed by five times to be seen
CORRELATED = np.array([[1.5, 0.4], [0.4, 0.7]])


def logprior(x):
    """Two correlated normals: a prior that is not the start of any symmetry."""
    return norm.logpdf(x[0]) + norm.logpdf(x[1], 0.5 * x[0], 0.8)


def loglikelihood(x):
    """Skewed: counts with rates exp(x), and a slope that couples them."""
    return 2.0 * x[0] - jnp.exp(x[0]) - 0.7 * jnp.exp(0.8 * x[1] - 0.5 * x[0]) + 0.3


def draw_prior(rng_key, num):
    """Draws of the prior, shape (num, 2)."""
    z = jax.random.normal(rng_key, (num, 2))
    return jnp.stack([z[:, 0], 0.5 * z[:, 0] + 0.8 * z[:, 1]], axis=1)


@cache
def integrals() -> np.ndarray:
    """Integrals of the functions over prior times likelihood, by quadrature."""
    with jax.enable_x64(True):
        axis = jnp.linspace(-9.0, 9.0, 1201)
        grid = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        density = jnp.exp(jax.vmap(lambda x: logprior(x) + loglikelihood(x))(grid))
        return np.asarray(density @ functions(grid) * (axis[1] - axis[0]) ** 2)


def functions(x):
    """Functions whose integrals a population estimates, shape (N, 5)."""
    return jnp.concatenate([jnp.ones_like(x[:, :1]), x, x**2], axis=1)


def from_draws(particles, log_weights):
    """Population of independent draws with importance weights, not normalized, of shape (N,)."""
    zeros = jnp.zeros_like(log_weights)
    uniform = zeros - jnp.log(log_weights.shape[0])
    population = sampler.Population(particles, uniform, jnp.sum(zeros))
    return sampler.update_weights(population, log_weights)


def metropolis(name: str, **parameters) -> dict:
    """Arguments for a Metropolis move."""
    algorithm = getattr(blackjax_ext, name)
    return {"move": blackjax_ext.moves.Metropolis(algorithm, **parameters), "step_size": 0.8}


# arguments of langevin_smc; so few particles that a bias of the order 1/N would show
CASES: dict[str, dict] = {
    "langevin_reversed": {"step_size": 0.5},
    "langevin_random_walk": {"step_size": 0.4, "l_kernel": "random_walk"},
    "langevin_dense": {"step_size": 0.5, "inverse_mass_matrix": CORRELATED},
    "langevin_forward": {"step_size": 0.5, "differentiation": "forward"},
    "random_walk": {"step_size": 0.3, "proposal": "random_walk"},
    "hmc_reversed": {"step_size": 0.3, "num_integration_steps": 4},
    "hmc_random_walk": {
        "step_size": 0.25,
        "num_integration_steps": 3,
        "l_kernel": "random_walk",
    },
    "two_moves": {"step_size": 0.4, "num_moves": 2},
    "never_resampled": {"step_size": 0.3, "ess_threshold": 0.0},
    "always_resampled": {"step_size": 0.5, "ess_threshold": 1.0},
    "metropolis_mala": metropolis("mala"),
    "metropolis_hp_mala": metropolis("hp_mala", floor=0.3),
}
# biased: the law is that the bias falls
GAUSSIAN = {
    "langevin_gaussian": {"step_size": 0.5, "l_kernel": "gaussian"},
    "hmc_gaussian": {"step_size": 0.3, "num_integration_steps": 3, "l_kernel": "gaussian"},
}


class Outcome(NamedTuple):
    """Many runs: errors of the integrals in units of Z (R, 5), and what happened."""

    errors: np.ndarray
    num_resampled: np.ndarray
    acceptance: float


@cache
def simulate(name: str, num_runs: int = NUM_RUNS, num_particles: int = 8) -> Outcome:
    """Run a case along the ladder of temperatures, many times."""
    arguments = {"ess_threshold": 0.7} | (CASES | GAUSSIAN)[name]
    smc = blackjax_ext.langevin_smc(logprior, loglikelihood, **arguments)

    def run(rng_key):
        key_prior, *keys = jax.random.split(rng_key, 1 + len(TEMPERATURES))
        state = smc.init(draw_prior(key_prior, num_particles))
        state, infos = jax.lax.scan(
            lambda state, pair: smc.step(pair[0], state, pair[1]),
            state,
            (jnp.stack(keys), jnp.array(TEMPERATURES)),
        )
        estimate = jnp.exp(state.log_weights + state.log_evidence) @ functions(state.position)
        return estimate, infos.num_resampled, infos.acceptance_rate[-1]

    keys = jax.random.split(jax.random.key(11), 8 * num_runs // num_particles)
    estimates, resampled, acceptance = jax.jit(jax.vmap(run))(keys)
    errors = (np.asarray(estimates, np.float64) - integrals()) / integrals()[0]
    return Outcome(errors, np.asarray(resampled), float(np.mean(acceptance)))


def evidence_is_unbiased(name: str, num_particles: int = 8) -> None:
    """The population's estimates of Z and of four moments times Z have the right means."""
    outcome = simulate(name, num_particles=num_particles)
    deviation = outcome.errors.std(0) / np.sqrt(len(outcome.errors))
    score = outcome.errors.mean(0) / deviation
    assert np.all(np.abs(score) < 5.0), f"evidence: {name} is off by {score} deviations"
    assert np.all(deviation < MAX_DEVIATION), f"evidence: {name} has no power: {deviation}"
    assert outcome.acceptance > 0.2, f"evidence: {name} keeps {outcome.acceptance}"


def gaussian_bias_falls(name: str) -> None:
    """The fitted kernel's evidence is off by less the more particles there are, soon by little."""
    errors = [simulate(name, 10_000, num_particles=num).errors[:, 0] for num in (50, 200)]
    biases = [np.abs(error.mean()) for error in errors]
    deviations = [error.std() / np.sqrt(len(error)) for error in errors]
    assert biases[1] < min(biases[0] / 3, 0.05), f"evidence: {name} has biases {biases}"
    assert max(deviations) < MAX_DEVIATION, f"evidence: {name} has no power: {deviations}"


def move_of(key, step_size=0.6, num_integration_steps=1, num=5):
    """Moves of a few particles on prior times likelihood, with both ends evaluated."""

    def target(x):
        return logprior(x) + loglikelihood(x)

    evaluate = jax.vmap(value_and_gradient(target, "reverse"))
    key_position, key_momentum = jax.random.split(key)
    x = jax.random.normal(key_position, (num, 2))
    momentum = jax.random.normal(key_momentum, (num, 2))
    start, metric = evaluate(x), metrics.factorize(CORRELATED)
    arguments = (evaluate, lambda local: local[1], step_size, num_integration_steps, metric)
    return x, start, metric, arguments, leapfrog(momentum, x, start, *arguments)


def reversed_is_the_langevin_ratio() -> None:
    """One step with the reversed kernel weighs as Metropolis-Hastings would accept."""
    step_size = 0.6
    x, start, metric, _, move = move_of(jax.random.key(3), step_size)
    log_weights = move.local[0] - start[0] + l_kernels.reversed(move, jnp.zeros(5))

    def ratio(x, start, y, end):
        def point(value, gradient):
            whitened = metric.inverse_sqrt_transpose_times(gradient)
            return langevin.Point(value, whitened, metrics.IDENTITY)

        r = metric.sqrt_times(y - x)
        return langevin.log_ratio(r, point(*start), point(*end), step_size)

    expected = jax.vmap(ratio)(x, start, move.position, move.local)
    np.testing.assert_allclose(log_weights, expected, rtol=1e-9, atol=1e-9)


def random_walk_kernel_is_the_random_walk() -> None:
    """The literal kernel's density is that of N(x; x', eps^2 L L^T) over the proposal's."""
    x, start, metric, _, move = move_of(jax.random.key(4))
    z = metric.sqrt_times(x - move.position) / 0.6
    drift = 0.5 * 0.6**2 * metric.inverse_sqrt_transpose_times(start[1])
    p = (metric.sqrt_times(move.position - x) - drift) / 0.6
    expected = 0.5 * jnp.sum(p**2 - z**2, axis=1)
    found = l_kernels.random_walk_kernel(move, jnp.zeros(5))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def leapfrog_is_reversible(num_integration_steps: int = 4) -> None:
    """From the end with minus its momentum, the way leads back to the start."""
    x, _, _, arguments, move = move_of(jax.random.key(5), 0.3, num_integration_steps)
    evaluate = arguments[0]
    back = leapfrog(-move.end, move.position, evaluate(move.position), *arguments)
    np.testing.assert_allclose(back.position, x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(-back.end, move.start, rtol=1e-9, atol=1e-9)


def gaussian_is_right_for_a_normal() -> None:
    """Where p' given x' is normal, a large population finds that law."""
    keys = jax.random.split(jax.random.key(6), 3)
    x = jax.random.normal(keys[0], (50_000, 2)) @ np.linalg.cholesky(CORRELATED).T + 1.0
    slope, scale = np.array([[0.5, -0.2], [0.1, 0.8]]), np.array([0.6, 1.4])
    end = 0.3 + (x - 1.0) @ slope + scale * jax.random.normal(keys[1], x.shape)
    start = jax.random.normal(keys[2], x.shape)
    move = l_kernels.Move(x, None, start, end, end)
    found = l_kernels.gaussian(move, jnp.zeros(x.shape[0]))
    logpdf = norm.logpdf(end, 0.3 + (x - 1.0) @ slope, scale) - norm.logpdf(start)
    error = found - jnp.sum(logpdf, axis=1)
    assert float(jnp.sqrt(jnp.mean(error**2))) < 0.04


def weights_accumulate() -> None:
    """Weighing twice is weighing by the product; the evidence is its mean."""
    a, b = jax.random.normal(jax.random.key(7), (2, 6))
    zeros = jnp.zeros(6)
    found = sampler.update_weights(from_draws(zeros, a), b)
    np.testing.assert_allclose(found.log_weights, jax.nn.log_softmax(a + b), rtol=1e-9)
    expected = jax.nn.logsumexp(a + b) - jnp.log(6)
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-9)


SPREADS = (1e3, 1e6, 1e9, 1e12, 1e15)  # of the log likelihood, in multiples of half a chi^2


def spread_out(spread: float, offset: float, dtype) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Uneven weights of 1,000 particles, log likelihoods, and those two as longdouble, stacked."""
    rng = np.random.default_rng(16)
    log_weights = jax.nn.log_softmax(jnp.asarray(0.3 * rng.normal(size=1000), dtype))
    loglikelihood = jnp.asarray(offset * spread - 0.5 * spread * rng.chisquare(3, 1000), dtype)
    loglikelihood = loglikelihood.at[7].set(-jnp.inf).at[8].set(jnp.nan)
    exact = np.stack([np.asarray(log_weights), np.asarray(loglikelihood)]).astype(np.longdouble)
    exact[1, 7:9] = -np.inf
    return log_weights, loglikelihood, exact


def exact_ess(log_weights: np.ndarray, log_factors: np.ndarray) -> float:
    """Conditional effective sample size, in long double, by its definition."""
    weights, factors = np.exp(log_weights), np.exp(log_factors - log_factors.max())
    return float(1000 * (weights @ factors) ** 2 / (weights @ factors**2))


def conditional_ess_keeps_its_digits(spread: float, offset: float, dtype) -> None:
    """Whatever the spread and the magnitude of the factors; then 1 particle is left of 1,000."""
    log_weights, loglikelihood, exact = spread_out(spread, offset, dtype)
    rtol = 1e-4 if loglikelihood.dtype == jnp.float32 else 1e-10
    for power in (0.0, 1e-3 / spread, 1.0 / spread, 1.0):
        factors = jnp.asarray(power, dtype) * jnp.nan_to_num(loglikelihood, nan=-jnp.inf)
        factors = jnp.where(jnp.isnan(factors), -jnp.inf, factors)
        found = sampler.conditional_ess(log_weights, factors)
        truth = exact_ess(exact[0], np.asarray(factors).astype(np.longdouble))
        np.testing.assert_allclose(found, truth, rtol=rtol, err_msg=f"power {power}")


def next_temperature_leaves_its_share(spread: float, offset: float, dtype) -> None:
    """At the temperature that is found the conditional effective sample size is the goal."""
    log_weights, loglikelihood, exact = spread_out(spread, offset, dtype)
    start = jnp.zeros((), dtype)
    found = tempered.next_temperature(start, log_weights, loglikelihood, 0.7)
    share = exact_ess(exact[0], np.longdouble(found) * exact[1]) / 1000
    np.testing.assert_allclose(share, 0.7, atol=1e-3)


def weights_keep_their_digits(spread: float, offset: float, dtype) -> None:
    """Weights and evidence after one temperature, against long double."""
    log_weights, loglikelihood, exact = spread_out(spread, offset, dtype)
    increment = tempered.next_temperature(jnp.zeros((), dtype), log_weights, loglikelihood, 0.7)
    population = sampler.Population(jnp.zeros(1000, dtype), log_weights, jnp.zeros((), dtype))
    found = langevin_smc.reweigh(population, increment, loglikelihood)
    log_factors = np.longdouble(increment) * exact[1]
    peak = log_factors.max()
    total = np.log(np.sum(np.exp(exact[0] + log_factors - peak)))
    eps = float(jnp.finfo(dtype).eps)
    expected = np.exp(exact[0] + log_factors - peak - total).astype(float)
    np.testing.assert_allclose(np.exp(found.log_weights), expected, rtol=300 * eps)
    np.testing.assert_allclose(found.log_evidence, float(peak + total), rtol=4 * eps, atol=20 * eps)


def great_factors_keep_the_weights(factor: float, dtype) -> None:
    """Equal factors leave the weights as they were, however large they are."""
    log_weights = jax.nn.log_softmax(jnp.linspace(-3.0, 2.0, 10, dtype=dtype))
    population = sampler.Population(jnp.zeros(10, dtype), log_weights, jnp.zeros((), dtype))
    found = sampler.update_weights(population, jnp.full_like(log_weights, factor))
    np.testing.assert_allclose(found.log_weights, log_weights, atol=1e-5)
    np.testing.assert_allclose(found.log_evidence, factor, rtol=1e-6)


def annealed_evidence(precision: float, dtype) -> None:
    """A normal likelihood of that precision, from a standard normal prior: evidence and spread."""

    def prior(x):
        return jnp.sum(norm.logpdf(x))

    def likelihood(x):
        return -0.5 * precision * jnp.sum(x**2)

    smc = blackjax_ext.langevin_smc(
        prior,
        likelihood,
        step_size=1.0,
        inverse_mass_matrix="particles",
        move=blackjax_ext.moves.Metropolis(blackjax_ext.mala),
        num_moves=2,
        tempering_ess=0.7,
    )
    state = smc.init(jax.random.normal(jax.random.key(0), (2000, 2), dtype))
    state, schedule = jax.jit(lambda s: blackjax_ext.anneal(jax.random.key(1), smc, s))(state)
    assert float(state.temperature) == 1.0 and schedule.num_temperatures < 100
    truth = -np.log1p(precision)
    assert abs(float(state.log_evidence) - truth) < 0.3, f"{state.log_evidence} for {truth}"
    variance = float(jnp.exp(state.log_weights) @ jnp.sum(state.position**2, axis=1)) / 2
    np.testing.assert_allclose(variance * (1 + precision), 1.0, atol=0.25)


@cache
def annealings(num_particles: int = 500, num_runs: int = 200, step_size: float = 0.7):
    """Independent annealings to a normal posterior: errors of the log evidence, and the states.

    Moves are too short to forget where a particle came from: its family matters.
    """
    smc = blackjax_ext.langevin_smc(
        lambda x: jnp.sum(norm.logpdf(x)),
        lambda x: jnp.sum(norm.logpdf(2.0, x, 0.3)),
        step_size=step_size,
        inverse_mass_matrix="particles",
        move=blackjax_ext.moves.Metropolis(blackjax_ext.mala),
        tempering_ess=0.7,
    )

    def run(rng_key):
        key_prior, key_run = jax.random.split(rng_key)
        state = smc.init(jax.random.normal(key_prior, (num_particles, 3)))
        return blackjax_ext.anneal(key_run, smc, state, max_steps=20)

    state, schedule = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(12), num_runs))
    errors = np.asarray(state.log_evidence) - 3 * float(norm.logpdf(2.0, 0.0, 1.09**0.5))
    return errors, state, schedule


def evidence_error_covers() -> None:
    """The standard error of one run is the spread over runs, and covers as one should."""
    errors, state, _ = annealings()
    claimed = np.sqrt(np.asarray(state.variance))
    ratio = np.sqrt(np.mean(claimed**2)) / errors.std(ddof=1)
    assert 0.8 < ratio < 1.25, f"standard error: {ratio} of the spread"
    cover = [np.mean(np.abs(errors) < times * claimed) for times in (1.0, 2.0)]
    # of 200 runs, three binomial deviations about 68 and 95 percent
    assert 0.58 < cover[0] < 0.78 and cover[1] > 0.90, f"standard error: covers {cover}"


def concentration_counts_families() -> None:
    """Unresampled it is the sum of squared weights; then that of the families' weights."""
    log_weights = jax.nn.log_softmax(jax.random.normal(jax.random.key(17), (6,)))
    found = sampler.concentration(log_weights, jnp.arange(6), 6)
    np.testing.assert_allclose(1.0 / found, sampler.effective_sample_size(log_weights), rtol=1e-6)
    weights, families = np.exp(log_weights), np.array([4, 4, 1, 4, 0, 1])
    sums = [weights[families == k].sum() for k in range(6)]
    found = sampler.concentration(log_weights, jnp.asarray(families), 6)
    np.testing.assert_allclose(found, np.sum(np.square(sums)), rtol=1e-6)


def ancestors_are_followed() -> None:
    """Particles that cannot move stay on the draw of the prior that they descend from."""
    smc = blackjax_ext.langevin_smc(logprior, loglikelihood, step_size=1e-6, ess_threshold=1.0)
    start = draw_prior(jax.random.key(18), 50)
    state, infos = jax.lax.scan(
        lambda state, pair: smc.step(pair[0], state, pair[1]),
        smc.init(start),
        (jax.random.split(jax.random.key(19), 3), jnp.array(TEMPERATURES)),
    )
    num = len(np.unique(state.ancestors))
    assert num < 40, f"{num} of 50 ancestors are left"
    np.testing.assert_allclose(state.position, start[state.ancestors], atol=1e-3)
    weights = np.bincount(state.ancestors, np.exp(state.log_weights))
    np.testing.assert_allclose(infos.genealogical_ess[-1], 1.0 / np.sum(weights**2), rtol=1e-4)


def schedule_tells_what_happened() -> None:
    """Temperatures rise to 1, each at its share of the conditional effective sample size."""
    _, state, schedule = annealings()
    num = np.asarray(schedule.num_temperatures)
    for i in range(20):
        seen = int(num[i])
        temperature = np.asarray(schedule.temperature[i])
        is_over = temperature[seen - 1] == 1.0 and np.all(np.isnan(temperature[seen:]))
        assert is_over and np.all(np.diff(temperature[:seen]) > 0), f"schedule: {temperature}"
        ess = np.asarray(schedule.ess[i, :seen])
        np.testing.assert_allclose(ess[0], 0.7 * 500, rtol=0.01)
        assert np.all(ess > 0.3 * 500) and np.all(schedule.least_ess[i, :seen] <= ess), ess
        np.testing.assert_allclose(schedule.log_evidence[i, seen - 1], state.log_evidence[i])


def softened_factors_leave_their_share() -> None:
    """Uneven factors are taken to the power that leaves the share; even ones are as they were."""
    keys = jax.random.split(jax.random.key(22), 2)
    log_weights = jax.nn.log_softmax(jax.random.normal(keys[0], (200,)))
    log_factors = (30.0 * jax.random.normal(keys[1], (200,)) - 1e4).at[3].set(-jnp.inf)
    found, power = sampler.softened(log_weights, log_factors, 0.8)
    share = float(sampler.conditional_ess(log_weights, found)) / 200
    assert abs(share - 0.8) < 1e-3 and 0.0 < power < 0.2, f"softened: share {share}, power {power}"
    np.testing.assert_allclose(found[:3], power * log_factors[:3], rtol=1e-5)
    assert np.isneginf(found[3])
    for factors, kept in ((0.1 * found, 0.5), (log_factors, 0.0)):
        same, power = sampler.softened(log_weights, factors, kept)
        np.testing.assert_allclose(same, factors, rtol=1e-6)
        assert power == 1.0, f"softened: power {power}"


NARROW, WIDE, SHARE = (-3.0, 0.4), (3.0, 1.0), 0.3  # means and scales of two modes, and a share


def logdensity_of_modes(x):
    """Two normals in two dimensions, normalized."""
    terms = [jnp.sum(norm.logpdf(x, *mode)) for mode in (NARROW, WIDE)]
    return jnp.logaddexp(jnp.log(SHARE) + terms[0], jnp.log(1.0 - SHARE) + terms[1])


def draws_of_modes(rng_key, num, share):
    """Draws with a share in the narrow mode that is or is not the right one."""
    key_mode, key_noise = jax.random.split(rng_key)
    is_narrow = jax.random.uniform(key_mode, (num, 1)) < share
    (m1, s1), (m2, s2) = NARROW, WIDE
    noise = jax.random.normal(key_noise, (num, 2))
    return jnp.where(is_narrow, m1 + s1 * noise, m2 + s2 * noise)


def after_jumps(share: float, num: int, num_jumps: int):
    """Particles before and after some jumps at temperature 1, the prior being flat."""
    move = blackjax_ext.moves.WithJumps(blackjax_ext.moves.Metropolis(blackjax_ext.mala))
    start = draws_of_modes(jax.random.key(20), num, share)
    one = jnp.ones(())
    target = tempered.tempered(lambda x: 0.0 * x[0], logdensity_of_modes, one, lambda x: x, "none")
    weights = jnp.full(num, -jnp.log(num))

    def step(carry, rng_key):
        x, local = carry
        moved = move(rng_key, x, local, target, 0.3, metrics.IDENTITY, weights)
        return (moved.position, moved.local), None

    keys = jax.random.split(jax.random.key(21), num_jumps)
    run = jax.jit(lambda x: jax.lax.scan(step, (x, target.evaluate(x)), keys)[0])
    x, local = run(start)
    np.testing.assert_allclose(
        local.loglikelihood, jax.vmap(logdensity_of_modes)(x), rtol=1e-4, atol=1e-4
    )
    return np.asarray(start), np.asarray(x)


def jumps_keep_the_target() -> None:
    """Draws of the target stay draws of it, while most of them jump."""
    start, x = after_jumps(SHARE, 20_001, 4)
    is_narrow = x.sum(1) < 0
    is_moved = np.mean(is_narrow != (start.sum(1) < 0))
    assert is_moved > 0.25, f"jumps: {is_moved} changed their mode"
    deviation = np.sqrt(SHARE * (1 - SHARE) / len(x))
    score = (np.mean(is_narrow) - SHARE) / deviation
    width = x[is_narrow].std(0) / NARROW[1]
    assert abs(score) < 5.0 and np.all(np.abs(width - 1) < 0.04), f"jumps: {score}, {width}"


def jumps_find_the_shares() -> None:
    """Particles that begin with the wrong share in a mode end with the right one."""
    _, x = after_jumps(0.02, 2_000, 12)
    share = np.mean(x.sum(1) < 0)
    assert abs(share - SHARE) < 0.06, f"jumps: share {share}"


def resampling_keeps_expectations() -> None:
    """Over many keys each particle is drawn N times its weight; then all weigh the same."""
    log_weights = jnp.log(jnp.array([0.05, 0.3, 0.0, 0.15, 0.5]))
    population = from_draws(jnp.eye(5), log_weights)

    def draw(rng_key):
        found = sampler.resample(rng_key, population)
        return jnp.exp(found.log_weights + found.log_evidence) @ found.particles

    found = jax.vmap(draw)(jax.random.split(jax.random.key(10), 20_000))
    deviation = found.std(0) / np.sqrt(len(found)) + 1e-6
    score = (found.mean(0) - jnp.exp(log_weights) / 5) / deviation
    assert np.all(np.abs(score) < 5.0), f"resampling is off by {score} deviations"


def last(rng_key, weights, num):
    """What a scheme returns for a uniform above the rounded sum of the weights."""
    return jnp.full(num, weights.size - 1)


def never_picks_a_weightless_particle(scheme: Callable, dtype) -> None:
    """All weights zero but one, wherever that one is; and NaN weights count as zero."""
    num = 1000
    for alive in (0, 1, 517, num - 1):
        log_weights = jnp.full(num, -jnp.inf, dtype).at[alive].set(-3.0)
        log_weights = log_weights.at[(alive + 1) % num].set(jnp.nan)
        population = from_draws(jnp.arange(num), log_weights)
        for seed in range(3):
            with mock.patch.object(sampler, "systematic", scheme):
                found = sampler.resample(jax.random.key(seed), population)
            assert np.all(found.particles == alive), f"picked {np.unique(found.particles)}"
            np.testing.assert_allclose(found.log_weights, -np.log(num), rtol=1e-6)
            np.testing.assert_allclose(found.log_evidence, -3.0 - np.log(num), rtol=1e-6)


def counts_nan_particles() -> None:
    """Particles that turn NaN lose their weight and are counted; the rest is as without them."""

    def broken(x):
        return jnp.where(x[0] > 0.8, jnp.nan, loglikelihood(x))

    smc = blackjax_ext.langevin_smc(logprior, broken, step_size=0.3, ess_threshold=0.0)
    state = smc.init(draw_prior(jax.random.key(8), 400))
    is_nan = np.asarray(state.position[:, 0] > 0.8)
    new_state, info = smc.step(jax.random.key(9), state, 0.5)
    is_lost = is_nan | np.asarray(new_state.position[:, 0] > 0.8)
    is_lost |= np.isnan(np.asarray(new_state.position)).any(axis=1)
    weights = np.exp(new_state.log_weights)
    np.testing.assert_array_equal(weights[is_lost], 0.0)
    assert np.all(weights[~is_lost] > 0) and abs(weights.sum() - 1) < 1e-5
    assert np.isfinite(new_state.log_evidence)
    assert int(info.num_divergent) >= is_nan.sum() > 50, "NaN particles are not counted"
