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
from blackjax_ext.subsampling import passes, remainders, row_tests
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


def expansion(dtype=jnp.float32):
    """Its expansion away from the mode."""
    anchor = jnp.asarray(np.log(A / B) + 0.4, dtype)
    return potentials.expand(posterior(dtype), anchor, find_mode=False)


# counts of few expected events under gamma priors of the rates: bounds that hold near the anchor
EXPOSURE = RNG.gamma(0.7, 0.5, NUM_ROWS)
EVENTS = RNG.poisson(EXPOSURE * 1.5)
SHAPE = 1.5 + np.bincount(COORDINATE, EVENTS)
RATE = 1.0 + np.bincount(COORDINATE, EXPOSURE)

COUNTED = Target(
    name="log rates",
    logdensity=lambda x: jnp.sum(SHAPE * x - RATE * jnp.exp(x)),
    draw=lambda rng, n: np.log(rng.gamma(SHAPE, 1 / RATE, (n, 3))),
    uniforms=lambda x: scipy.stats.gamma.cdf(np.exp(x), SHAPE, scale=1 / RATE),
    covariance=np.diag(1 / SHAPE),
)


def counted(dtype=jnp.float32):
    """Its rows; the exposure is a predictor's offset."""
    covariates = np.column_stack([COVARIATES, np.log(EXPOSURE)]).astype(dtype)
    return potentials.linear_predictor(
        lambda x: jnp.sum(1.5 * x - jnp.exp(x)),
        families.poisson(),
        (covariates, EVENTS.astype(dtype)),
        predict_fn=lambda x, row: row[:3] @ x + row[3],
    )


# a normal mean and log scale with a normal inverse-gamma prior: predictors that rows share
MEASURED = RNG.normal(0.4, 1.3, 12)
PRIOR_SIZE, PRIOR_SHAPE, PRIOR_RATE = 1.0, 2.0, 1.5
SIZE_N = PRIOR_SIZE + MEASURED.size
MEAN_N = MEASURED.sum() / SIZE_N
SHAPE_N = PRIOR_SHAPE + 0.5 * MEASURED.size
RATE_N = PRIOR_RATE + 0.5 * (np.sum(MEASURED**2) - SIZE_N * MEAN_N**2)


def inverse_gamma_normal(x, mean, size, shape, rate):
    """Log density of a mean, normal given the scale, and a log scale."""
    precision = jnp.exp(-2 * x[1])
    spread = rate + 0.5 * size * jnp.square(x[0] - mean)
    return -(2 * shape + 1) * x[1] - spread * precision


def draw_scaled(rng, n):
    """Exact draws of mean and log scale."""
    variance = RATE_N / rng.gamma(SHAPE_N, size=n)
    mean = MEAN_N + np.sqrt(variance / SIZE_N) * rng.normal(size=n)
    return np.column_stack([mean, 0.5 * np.log(variance)])


def uniforms_scaled(x):
    """The variance by its law, and the mean by its own given the variance."""
    scale = np.exp(x[..., 1])
    of_mean = scipy.stats.norm.cdf((x[..., 0] - MEAN_N) / scale * np.sqrt(SIZE_N))
    of_scale = scipy.stats.gamma.cdf(RATE_N / scale**2, SHAPE_N)
    return np.stack([of_mean, of_scale], axis=-1)


SCALED = Target(
    name="mean and log scale",
    logdensity=lambda x: inverse_gamma_normal(x, MEAN_N, SIZE_N, SHAPE_N, RATE_N),
    draw=draw_scaled,
    uniforms=uniforms_scaled,
    covariance=np.diag([RATE_N / (SHAPE_N - 1) / SIZE_N, 0.25 / SHAPE_N]),
)


def scaled(dtype=jnp.float32):
    """Its rows, of two predictors each."""
    return potentials.linear_predictor(
        lambda x: inverse_gamma_normal(x, 0.0, PRIOR_SIZE, PRIOR_SHAPE, PRIOR_RATE),
        families.normal(),
        (np.zeros((MEASURED.size, 0), dtype), MEASURED.astype(dtype)),
        predict_fn=lambda x, row: x,
    )


# successes among trials whose probabilities vary, each row of one coordinate: by quadrature
TRIALS = RNG.integers(1, 6, NUM_ROWS)
PRECISION = 3.0
WON = RNG.binomial(TRIALS, RNG.beta(1.0, 2.0, NUM_ROWS))
GRID = np.linspace(-12.0, 12.0, 20_001)


def log_rising(a, k, gammaln):
    """Of the product of a, a + 1, ..., k factors."""
    return gammaln(a + k) - gammaln(a)


def varying(x, expit, gammaln):
    """Log density of each row by its log odds, up to a constant."""
    above, below = PRECISION * expit(x), PRECISION * expit(-x)
    return log_rising(above, WON, gammaln) + log_rising(below, TRIALS - WON, gammaln)


def quantiles():
    """Distribution functions of the three coordinates on the grid."""
    rows = varying(GRID[:, None], scipy.special.expit, scipy.special.gammaln)
    log = rows @ COVARIATES + scipy.stats.logistic.logpdf(GRID)[:, None]
    steps = np.exp(log - log.max(axis=0))
    found = np.cumsum(0.5 * (steps[1:] + steps[:-1]), axis=0)
    found = np.concatenate([np.zeros((1, 3)), found])
    return found / found[-1]


CDF = quantiles()
VARYING_MEDIAN = np.array([np.interp(0.5, CDF[:, j], GRID) for j in range(3)])
VARYING = Target(
    name="varying log odds",
    logdensity=lambda x: (
        jnp.sum(varying(x[COORDINATE], jax.nn.sigmoid, jax.scipy.special.gammaln))
        + jnp.sum(jax.scipy.stats.logistic.logpdf(x))
    ),
    draw=lambda rng, n: np.stack(
        [np.interp(rng.uniform(size=n), CDF[:, j], GRID) for j in range(3)], axis=1
    ),
    uniforms=lambda x: np.stack([np.interp(x[..., j], GRID, CDF[:, j]) for j in range(3)], axis=-1),
    covariance=np.diag(np.full(3, 0.5)),
)


def varied(dtype=jnp.float32):
    """Its rows."""
    return potentials.linear_predictor(
        lambda x: jnp.sum(jax.scipy.stats.logistic.logpdf(x)),
        families.beta_binomial(TRIALS.astype(dtype), PRECISION),
        (COVARIATES.astype(dtype), WON.astype(dtype)),
    )


POSTERIORS = {"counted": counted, "scaled": scaled, "varied": varied}
STARTS = {
    "counted": np.log(SHAPE / RATE) + 0.3,
    "scaled": np.array([MEAN_N + 0.1, 0.3]),
    "varied": VARYING_MEDIAN + 0.2,
}


# share of a bound that some row reaches: all of it with one predictor; with two, in no direction
# at once; by jets, in a box as wide as 24 rows make it, not all either
REACHED = {"counted": 0.8, "scaled": 0.2, "varied": 0.6}


def local(name, dtype=jnp.float32):
    """The expansion of one of these away from its mode."""
    start = jnp.asarray(STARTS[name], dtype)
    return potentials.expand(POSTERIORS[name](dtype), start, find_mode=False)


class Case(NamedTuple):
    """One configuration of AMAGOLD with the subsampled test.

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
    local
        The name of a posterior whose bounds hold near the anchor; None for the binomial rows.
    """

    batch_size: int
    step_size: float
    arguments: dict[str, Any]
    max_passes: float
    target: Target = TARGET
    local: str | None = None

    def build(self):
        """Make the sampler."""
        expanded = local(self.local) if self.local else expansion()
        return blackjax_ext.amagold(
            potentials.expanded_minibatch(expanded, self.batch_size),
            self.step_size,
            expanded.metric,
            acceptance=acceptance.subsampled(expanded),
            **self.arguments,
        )


CASES = {
    "minibatches": Case(3, 1.1, minibatch.FRESH, np.inf),
    # what AMAGOLD of NumPyro does: no row but those of the test
    "expansion_alone": Case(0, 1.1, minibatch.FRESH, np.inf),
    # a third of the moves read all rows
    "both_branches": Case(0, 1.2, minibatch.PERSISTENT, 0.5),
    "counted": Case(3, 0.9, minibatch.FRESH, 2.0, COUNTED, "counted"),
    "scaled": Case(0, 0.8, minibatch.PERSISTENT, 2.0, SCALED, "scaled"),
    "varied": Case(3, 1.0, minibatch.FRESH, 2.0, VARYING, "varied"),
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


def parts(expanded, pair: Pair) -> tuple[float, np.ndarray]:
    """Log ratio of what is known without the rows, and changes of remainders, in double."""
    x, a = np.stack([pair.old, pair.new]), np.asarray(expanded.position, np.float64)
    eta, base = x @ COVARIATES.T, a @ COVARIATES.T
    s = scipy.special.expit(base)

    def loss(eta):
        return COUNTS * np.logaddexp(0, eta) - SUCCESSES * eta

    taylor = loss(base) + (COUNTS * s - SUCCESSES) * (eta - base)
    taylor = taylor + 0.5 * COUNTS * s * (1 - s) * (eta - base) ** 2
    prior = PRIOR_A * np.logaddexp(0, -x) + PRIOR_B * np.logaddexp(0, x)
    known = prior.sum(axis=1) + taylor.sum(axis=1)
    return float(known[0] - known[1] + pair.rho), np.diff(loss(eta) - taylor, axis=0)[0]


def rates(expanded, key, ends, rho, num_repeats: int) -> tuple[float, float]:
    """How often the test accepts a move in single precision, and the mean of its rates."""
    old, new = (jnp.asarray(x, jnp.float32) for x in ends)

    @jax.jit
    def decide(expanded, keys, old, new, rho):
        energy = row_tests.surrogate(expanded, old)
        test = lambda key: row_tests.thinning_test(key, expanded, old, energy, new, rho)  # noqa: E731
        found = jax.vmap(test)(keys)
        return found.is_accepted.mean(), found.acceptance_rate.mean()

    keys = jax.random.split(key, num_repeats)
    return tuple(map(float, decide(expanded, keys, old, new, jnp.float32(rho))))


def rate_of_weights(expanded, ends, known: float, changes, num: int) -> tuple[float, float]:
    """Mean and its standard error of the rate that the law of the weights has, simulated."""
    ends = [jnp.asarray(x, jnp.float32) for x in ends]
    both = row_tests.MoveEnds.of(expanded, *map(expanded.coordinates, ends))
    c = np.asarray(expanded.bound, np.float64)
    c = c * float(row_tests.reaches_of(expanded, both).reach[0])
    phi = c + np.minimum(changes, 0.0)
    counts = np.random.default_rng(14).poisson(phi, (num, phi.size))
    logs = counts @ (np.log(phi - changes) - np.log(phi))
    rate = np.exp(min(0.0, known)) * np.exp(np.minimum(logs, 0.0))
    return float(rate.mean()), float(rate.std() / np.sqrt(rate.size))


def acceptance_by_weights(num_repeats: int = 20_000) -> None:
    """The test accepts as often as its law says, simulated in double precision.

    And moves there and back keep the ratio of the posterior: what the law is for.
    """
    expanded = expansion()

    def simulated(pair: Pair) -> tuple[float, float]:
        return rate_of_weights(expanded, pair[:2], *parts(expanded, pair), 4 * num_repeats)

    for i, pair in enumerate(PAIRS):
        found = rates(expanded, jax.random.key(i), pair[:2], pair.rho, num_repeats)
        expected, error = simulated(pair)
        spread = np.hypot(np.sqrt(expected * (1 - expected) / num_repeats), error) + 1e-6
        for rate in found:  # 1e-5 two-sided
            off = (rate - expected) / spread
            assert abs(off) < 4.4, f"weights: {rate:.4f} for {expected:.4f} at the pair {i}"
        back, other = simulated(Pair(pair.new, pair.old, -pair.rho))
        target = np.exp(float(logdensity(pair.new) - logdensity(pair.old)) + pair.rho)
        off = expected / back / target - 1
        limit = 4.4 * np.hypot(error / expected, other / back) + 1e-3
        assert abs(off) < limit, f"weights: ratio off by {off:.3f} at the pair {i}"


def loss_remainders_of_all(expanded, steps):
    """Remainders of all rows."""
    return remainders.loss_remainders(expanded, steps, jnp.arange(expanded.num_rows))


def local_ends(expanded):
    """Whitened ends of moves: near the anchor, at the end of the bounds, and beyond."""
    rng = np.random.default_rng(12)
    for near, far in [(0.3, 0.5), (0.5, 0.3), (0.2, 0.7), (0.3, 1.2), (1.2, 0.3)]:
        ends = rng.normal(size=(2, expanded.whitener.shape[0]))
        ends[1] = 0.5 * ends[0] + ends[1]
        size = float(expanded.radius) * np.array([near, far])
        yield ends * (size / np.linalg.norm(ends, axis=1))[:, None]


def acceptance_is_local(name: str, num_repeats: int = 4_000) -> None:
    """Within the bounds the test accepts by weights, beyond by all rows together."""
    with jax.enable_x64(True):
        exact = local(name, jnp.float64)
        remainders = jax.jit(lambda steps: loss_remainders_of_all(exact, steps))
        surrogate = jax.jit(lambda x: row_tests.surrogate(exact, x))
    single = local(name)
    for i, ends in enumerate(local_ends(single)):
        with jax.enable_x64(True):
            steps = np.linalg.solve(np.asarray(exact.whitener), ends.T).T
            old, new = jnp.asarray(exact.position) + jnp.asarray(steps)
            rows = np.asarray(remainders(jnp.asarray(steps)))
            known = [float(surrogate(x)) for x in (old, new)]
        changes = rows[1] - rows[0]
        is_far = np.max(np.linalg.norm(ends, axis=1)) > float(single.radius)
        # where the sum of all rows decides, it is accepted with a probability of exp(-1/2)
        rho = known[1] - known[0] + is_far * (changes.sum() - 0.5)
        log_ratio, ends = known[0] - known[1] + rho, (np.asarray(old), np.asarray(new))
        expected, error = float(np.exp(min(0.0, log_ratio - changes.sum()))), 0.0
        if not is_far:
            expected, error = rate_of_weights(single, ends, log_ratio, changes, 4 * num_repeats)
        spread = np.hypot(np.sqrt(expected * (1 - expected) / num_repeats), error) + 1e-3
        for rate in rates(single, jax.random.key(i), ends, rho, num_repeats):
            off = (rate - expected) / spread
            assert abs(off) < 4.4, f"local: {rate:.4f} for {expected:.4f} at the pair {i}"


# of the bounds: all but rounding by rows with one predictor whose bounds have a closed form, less
# where interval arithmetic finds them, and with two predictors, by no direction at once
REACHED = {"counted": 0.8, "varied": 0.6, "scaled": 0.2}


def bounds_hold_up_to_the_radius(name: str, num_directions: int = 300) -> None:
    """No row within the radius has a third derivative above six times its bound."""
    expanded = local(name)
    posterior, indices = expanded.grouped, jnp.arange(expanded.num_rows)
    root = jnp.linalg.inv(expanded.whitener)
    rng = np.random.default_rng(13)
    matrix = passes.designs(posterior, expanded.position, expanded.frame, indices).matrix
    along = np.asarray(matrix)[:, 0]  # where the first predictor of a row changes most
    w = np.concatenate([rng.normal(size=(num_directions, root.shape[0])), along, -along])
    w *= 0.999 * float(expanded.radius) / np.linalg.norm(w, axis=1, keepdims=True)

    @jax.jit
    @jax.vmap
    def thirds(w):
        def loss(s):
            x = expanded.position + root @ (w + s * w / expanded.radius)
            return jax.vmap(posterior.rows.loss)(*posterior.rows.read(x, indices))

        third = jax.jacfwd(jax.jacfwd(jax.jacfwd(loss)))
        return jnp.abs(third(jnp.zeros(()))) / (6 * expanded.bound)

    worst = np.max(np.asarray(thirds(jnp.asarray(w, jnp.float32))))
    assert worst <= 1.001, f"radius: a derivative is {worst:.3f} of its bound"
    assert worst > REACHED[name], f"radius: {worst:.3f}"


def tight_bound_is_enough(num_repeats: int = 20_000) -> None:
    """Where a row's remainder is as large as its bound, it rejects as often as it should.

    The energy of every row rises, no weight is above one, and their mean is the product of factors.

    At 1/2 - 1/(2 sqrt 3) the third derivative of the logistic loss is greatest, and flat.
    """
    anchor = float(scipy.special.logit(0.5 - 0.5 / np.sqrt(3.0)))
    count, t = 240.0, 0.5  # within the radius
    data = (jnp.ones((2, 1)), jnp.full(2, count / 2))
    rows = potentials.linear_predictor(lambda x: 0.0 * x[0], families.binomial(count), data)
    expanded = potentials.expand(rows, jnp.array([anchor]), find_mode=False)
    old, new = jnp.array([anchor]), jnp.array([anchor + t])
    s = scipy.special.expit(anchor)
    softplus = np.logaddexp(0, anchor + t) - np.logaddexp(0, anchor)
    expected = np.exp(-2 * count * (softplus - s * t - 0.5 * s * (1 - s) * t**2))

    found, _ = rates(expanded, jax.random.key(9), (old, new), 1e4, num_repeats)
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
    steps = row_tests.steps_to(expanded, *ends)
    change = remainders.change_of_all(expanded, steps, jnp.array(True))
    known = [row_tests.surrogate(expanded, end) for end in ends]
    found = float(known[1] - known[0] + change)
    wide, theta = x.astype(np.float64), np.asarray(ends, np.float64)
    eta = wide @ theta.T
    loss = np.logaddexp(0, eta) - y[:, None] * eta
    exact = np.sum(loss[:, 1] - loss[:, 0]) + 0.5 * (theta[1] @ theta[1] - theta[0] @ theta[0])
    assert expanded.arrow.shared.dtype == jnp.float32
    assert abs(found - exact) < 0.01, f"precision: off by {abs(found - exact):.2g}"
