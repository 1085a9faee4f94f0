"""Laws of the acceptance test that reads a few rows.

The posterior has exact draws: binomial rows that each see one coordinate, with counts of a fraction
of a trial, and a beta prior of the probabilities as strong as they are. In the log odds it is
skewed. The anchor is off the mode, the bounds are loose, and most rows are read many times.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

import blackjax_ext
from blackjax_ext import acceptance, families, potentials
from blackjax_ext.subsampling import thinning
from tests.laws import minibatch
from tests.laws.laws import Outcome, Size
from tests.laws.targets import Target

SIZE = Size(6_000, 6)
NUM_ROWS = 24
RNG = np.random.default_rng(70)
COUNTS = RNG.gamma(0.4, 1.5, NUM_ROWS) + 0.02
SUCCESSES = COUNTS * RNG.beta(0.3, 0.5, NUM_ROWS)
COORDINATE = np.arange(NUM_ROWS) % 3
COVARIATES = np.eye(3)[COORDINATE]
PRIOR_A, PRIOR_B = np.array([1.2, 2.0, 3.0]), np.array([3.0, 1.5, 1.0])
A = PRIOR_A + np.bincount(COORDINATE, SUCCESSES)
B = PRIOR_B + np.bincount(COORDINATE, COUNTS - SUCCESSES)


def logprior(x):
    """Beta densities of the probabilities, in their log odds."""
    prior_a, prior_b = jnp.asarray(PRIOR_A, x.dtype), jnp.asarray(PRIOR_B, x.dtype)
    return jnp.sum(-prior_a * jax.nn.softplus(-x) - prior_b * jax.nn.softplus(x))


def logdensity(x):
    """The posterior itself."""
    return jnp.sum(-A * jax.nn.softplus(-x) - B * jax.nn.softplus(x))


TARGET = Target(
    name="log odds",
    logdensity=logdensity,
    draw=lambda rng, n: scipy.special.logit(rng.beta(A, B, (n, 3))),
    uniforms=lambda x: scipy.stats.beta.cdf(scipy.special.expit(x), A, B),
    covariance=np.diag(1 / A + 1 / B),
)


def posterior(dtype=jnp.float32):
    """The posterior by its linear predictors."""
    covariates, successes, counts = (
        jnp.asarray(each, dtype) for each in (COVARIATES, SUCCESSES, COUNTS)
    )
    return potentials.linear_predictor(logprior, families.binomial(counts), (covariates, successes))


def expansion(order, dtype=jnp.float32):
    """Its expansion away from the mode."""
    anchor = jnp.asarray(np.log(A / B) + 0.4, dtype)
    return potentials.expand(posterior(dtype), anchor, order=order, find_mode=False)


class Case(NamedTuple):
    """One configuration of AMAGOLD with the subsampled test.

    order
        Of the expansion.
    batch_size
        Rows of a gradient.
    step_size
        One with an acceptance rate near one half.
    arguments
        Keyword arguments.
    max_passes
        Expected events, in passes, beyond which all rows are read.
    target
        What it samples.
    """

    order: int
    batch_size: int
    step_size: float
    arguments: dict[str, Any]
    max_passes: float
    target: Target = TARGET

    def build(self):
        """Make the sampler."""
        expanded = expansion(self.order)
        return blackjax_ext.amagold(
            potentials.expanded_minibatch(expanded, self.batch_size),
            self.step_size,
            expanded.metric,
            acceptance=acceptance.subsampled(expanded),
            **self.arguments,
        )


CASES = {
    "second_order": Case(2, 3, 1.1, minibatch.FRESH, np.inf),
    "first_order": Case(1, 0, 0.5, minibatch.PERSISTENT, np.inf),
    # a third of the moves read all rows
    "both_branches": Case(2, 0, 1.2, minibatch.PERSISTENT, 0.5),
}


def invariance(case: Case, size: Size = SIZE) -> Outcome:
    """Position and momentum stay in equilibrium."""
    return minibatch.invariance(case, size)


class Pair(NamedTuple):
    """A move, and what the test should do with it."""

    old: np.ndarray
    new: np.ndarray
    rho: float


PAIRS = [
    Pair(np.array([-1.5, 0.3, 1.0]), np.array([-0.5, 0.9, 0.2]), 0.7),
    Pair(np.array([-0.5, 0.9, 0.2]), np.array([-1.5, 0.3, 1.0]), -0.7),
    Pair(np.array([1.0, -1.5, 2.5]), np.array([-2.5, 2.0, -0.5]), 2.0),
    Pair(np.array([-2.5, 2.0, -0.5]), np.array([1.0, -1.5, 2.5]), 9.0),
]


def probability(expanded, pair: Pair) -> float:
    """Acceptance probability by its definition, row by row in double precision."""
    x, a = np.stack([pair.old, pair.new]), np.asarray(expanded.position, np.float64)
    eta, base = x @ COVARIATES.T, a @ COVARIATES.T
    s = scipy.special.expit(base)

    def loss(eta):
        return COUNTS * np.logaddexp(0, eta) - SUCCESSES * eta

    taylor = loss(base) + (COUNTS * s - SUCCESSES) * (eta - base)
    if expanded.order == 2:
        taylor = taylor + 0.5 * COUNTS * s * (1 - s) * (eta - base) ** 2
    prior = PRIOR_A * np.logaddexp(0, -x) + PRIOR_B * np.logaddexp(0, x)
    known = prior.sum(axis=1) + taylor.sum(axis=1)
    rows = np.diff(loss(eta) - taylor, axis=0)[0]
    return float(np.exp(min(0.0, known[0] - known[1] + pair.rho) - np.maximum(rows, 0).sum()))


def acceptance_is_the_product(order: int = 2, num_repeats: int = 10_000) -> None:
    """The test accepts as often as the product of its factors says, for moves near and far."""
    expanded = expansion(order)

    @jax.jit
    def rates(expanded, key, old, new, rho):
        energy = thinning.surrogate(expanded, old)

        def one(key):
            return thinning.decide(key, expanded, old, energy, new, rho)

        found = jax.vmap(one)(jax.random.split(key, num_repeats))
        return found.is_accepted.mean(), found.acceptance_rate.mean()

    for i, pair in enumerate(PAIRS):
        ends = (jnp.asarray(x, jnp.float32) for x in (pair.old, pair.new))
        found = rates(expanded, jax.random.key(i), *ends, jnp.float32(pair.rho))
        expected = probability(expanded, pair)
        spread = np.sqrt(expected * (1 - expected) / num_repeats) + 1e-9
        for rate in found:  # 1e-5 two-sided
            off = (float(rate) - expected) / spread
            assert abs(off) < 4.4, f"product: {rate:.4f} for {expected:.4f} at the pair {i}"


def tight_bound_is_enough(num_repeats: int = 20_000) -> None:
    """Where a row's remainder is as large as its bound, the veto is as frequent as it should be.

    At 1/2 - 1/(2 sqrt 3) the third derivative of the logistic loss is greatest, and flat.
    """
    anchor = float(scipy.special.logit(0.5 - 0.5 / np.sqrt(3.0)))
    count, t = 2000.0, 0.3
    data = (jnp.ones((2, 1)), jnp.full(2, count / 2))
    rows = potentials.linear_predictor(lambda x: 0.0 * x[0], families.binomial(count), data)
    expanded = potentials.expand(rows, jnp.array([anchor]), find_mode=False)
    old, new = jnp.array([anchor]), jnp.array([anchor + t])
    s = scipy.special.expit(anchor)
    softplus = np.logaddexp(0, anchor + t) - np.logaddexp(0, anchor)
    expected = np.exp(-2 * count * (softplus - s * t - 0.5 * s * (1 - s) * t**2))

    @jax.jit
    def rate(expanded, keys):
        energy = thinning.surrogate(expanded, old)
        return jax.vmap(
            lambda key: thinning.decide(key, expanded, old, energy, new, jnp.float32(1e4))
        )(keys).is_accepted.mean()

    found = float(rate(expanded, jax.random.split(jax.random.key(9), num_repeats)))
    off = (found - expected) / np.sqrt(expected * (1 - expected) / num_repeats)
    assert abs(off) < 4.4, f"bound: {found:.4f} for {expected:.4f}"
    assert 0.05 < expected < 0.95


def energy_is_kept(num_rows: int = 1_000_000) -> None:
    """In float32, expansion and remainders of a million rows add up to the energy, to 0.01."""
    rng = np.random.default_rng(71)
    x = rng.normal(size=(num_rows, 2)).astype(np.float32)
    y = (rng.random(num_rows) < scipy.special.expit(x @ [0.7, -0.4])).astype(np.float32)
    rows = potentials.linear_predictor(
        lambda theta: -0.5 * jnp.sum(theta**2), families.bernoulli(), (x, y)
    )
    expanded = potentials.expand(rows, jnp.zeros(2))
    noise = np.array([[1.5, -1.0], [-0.7, 2.0]])
    ends = expanded.position + expanded.metric.inverse_sqrt_times(jnp.asarray(noise, jnp.float32))
    a = expanded.position
    move = thinning.Move(ends - a, jnp.float32(1.0))
    change = thinning.change_of_all(expanded, move, jnp.array(True))
    known = [thinning.surrogate(expanded, end) for end in ends]
    found = float(known[1] - known[0] + change)
    wide, theta = x.astype(np.float64), np.asarray(ends, np.float64)
    eta = wide @ theta.T
    loss = np.logaddexp(0, eta) - y[:, None] * eta
    exact = np.sum(loss[:, 1] - loss[:, 0]) + 0.5 * (theta[1] @ theta[1] - theta[0] @ theta[0])
    assert expanded.gradient.dtype == jnp.float32
    assert abs(found - exact) < 0.01, f"precision: off by {abs(found - exact):.2g}"
