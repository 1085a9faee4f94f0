"""Special cases in which one sampler is another one, or a textbook formula."""

from unittest import mock

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from blackjax.mcmc import diffusions

import blackjax_ext
from blackjax_ext import metrics, schedules
from tests.laws import steps
from tests.laws.laws import LEVEL
from tests.laws.samplers import CASES, information
from tests.laws.targets import FUNNEL

START = np.array([0.4, -0.7, 1.1, 0.3])
COVARIANCE = FUNNEL.covariance
FLOOR = 0.3
hessian = jax.jit(jax.hessian(FUNNEL.logdensity))

# each of these is MALA in a metric: (algorithm, arguments, covariance of the proposal at x)
FULL_FRAMES = {
    "fmala": ("fmala", {}, lambda x: np.eye(4)),
    "fmala_sphere": ("fmala", {"tangents": "sphere"}, lambda x: np.eye(4)),
    "fmala_fresh": ("fmala", {"persistent_tangent": False}, lambda x: np.eye(4)),
    "line": ("line_fmala", {}, lambda x: np.eye(4)),
    "line_sphere": ("line_fmala", {"tangents": "sphere"}, lambda x: np.eye(4)),
    "pc_line": (
        "pc_line_fmala",
        {"curvature_floor": FLOOR},
        lambda x: absolute_inverse(hessian(x)),
    ),
}


def absolute_inverse(matrix, floor=FLOOR):
    """Inverse of a symmetric matrix with the absolute values of its eigenvalues, floored."""
    eigenvalues, eigenvectors = np.linalg.eigh(np.asarray(matrix))
    return eigenvectors / np.maximum(np.abs(eigenvalues), floor) @ eigenvectors.T


def preconditioned_absolute_inverse(x):
    """The same in coordinates whitened by the preconditioner, brought back."""
    root = np.linalg.cholesky(COVARIANCE)
    return root @ absolute_inverse(root.T @ np.asarray(hessian(x)) @ root) @ root.T


def proposals(algorithm, arguments, step_size=0.6, metric=None, num_proposals=500):
    """Proposals from one point of the funnel and their log ratios."""
    make = getattr(blackjax_ext, algorithm)
    sampler = make(FUNNEL.logdensity, step_size, metric, **arguments)
    state = sampler.init(jnp.asarray(START), jax.random.key(3))
    return steps.proposals(sampler, state, num_proposals)


def full_frame_is_langevin(algorithm, arguments, covariance_fn, metric=None):
    """With all tangents: the Langevin proposal of the metric, and its log ratio, by scipy."""
    is_langevin(algorithm, arguments | {"num_tangents": 4}, covariance_fn, metric)


def is_langevin(algorithm, arguments, covariance_fn, metric=None, step_size=0.6):
    """The proposals are Langevin's in the metric, and so is their log ratio, by scipy."""
    ends, log_ratios = proposals(algorithm, arguments, step_size, metric)
    log_ratio, noise = steps.gaussian_langevin(FUNNEL.logdensity, step_size, covariance_fn)
    expected = [log_ratio(START, end) for end in ends[:50]]
    np.testing.assert_allclose(log_ratios[:50], expected, rtol=1e-8, atol=1e-8)
    scores = np.array([noise(START, end) for end in ends])
    p = scipy.stats.kstest(scores.ravel(), "norm").pvalue
    assert p > LEVEL, f"the noise of the proposal is not standard normal: p = {p:.2g}"


def full_frame_is_blackjax_mala(algorithm, arguments):
    """With all tangents: the acceptance probability that blackjax.mala computes for the move."""
    step_size = 1.0
    ends, log_ratios = proposals(algorithm, arguments | {"num_tangents": 4}, step_size)
    gradient = jax.grad(FUNNEL.logdensity)(START)
    noises = (ends[:50] - START - 0.5 * step_size**2 * gradient) / step_size
    reference = blackjax.mala(FUNNEL.logdensity, 0.5 * step_size**2)
    state = reference.init(jnp.asarray(START))

    def acceptance(noise):
        with mock.patch.object(diffusions, "generate_gaussian_noise", lambda *args: noise):
            return reference.step(jax.random.key(0), state)[1].acceptance_rate

    expected = jax.jit(jax.vmap(acceptance))(noises)
    found = np.minimum(1.0, np.exp(log_ratios[:50]))
    assert np.ptp(found) > 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def same_chain(first, second, key=True, transform=lambda x: x, num_steps=40):
    """Two samplers on the same keys make the same positions, up to rounding and a `transform`."""
    chains = []
    for sampler, start in (first, second):
        state = sampler.init(jnp.asarray(start), jax.random.key(4) if key else None)
        chains.append(steps.run(sampler, state, num_steps))
    (a, a_info), (b, b_info) = chains
    assert 0.1 < np.mean(a_info.is_accepted) < 1.0
    np.testing.assert_allclose(a_info.acceptance_rate, b_info.acceptance_rate, atol=1e-7)
    np.testing.assert_allclose(a.position, transform(b.position), rtol=1e-7, atol=1e-7)


def mala_is_blackjax_mala(step_size=0.6):
    """With the same keys, blackjax.mala with epsilon^2 / 2 makes the same chain."""
    ours = blackjax_ext.mala(FUNNEL.logdensity, step_size)
    theirs = blackjax.mala(FUNNEL.logdensity, 0.5 * step_size**2)
    without_key = theirs._replace(init=lambda position, rng_key: theirs.init(position))
    same_chain((ours, START), (without_key, START))


def random_walk_is_blackjax_random_walk(step_size=0.5):
    """With the same keys, BlackJAX's additive-step random walk makes the same chain."""

    def normal_step(key, position):
        return step_size * jax.random.normal(key, position.shape, position.dtype)

    ours = blackjax_ext.random_walk(FUNNEL.logdensity, step_size)
    theirs = blackjax.additive_step_random_walk(FUNNEL.logdensity, normal_step)
    without_key = theirs._replace(init=lambda position, rng_key: theirs.init(position))
    same_chain((ours, START), (without_key, START))


def preconditioner_is_whitening(case, diagonal=False):
    """A preconditioner L L^T on x is the identity on L^-1 x."""
    covariance = np.diag(np.diag(COVARIANCE)) if diagonal else COVARIANCE
    root = jnp.asarray(np.linalg.cholesky(covariance))
    metric = jnp.diag(covariance) if diagonal else jnp.asarray(covariance)
    on_x = CASES[case].on(FUNNEL.logdensity, 0.7, metric)
    on_theta = CASES[case].on(lambda theta: FUNNEL.logdensity(root @ theta), 0.7)
    start = np.linalg.solve(root, START)
    same_chain((on_x, START), (on_theta, start), CASES[case].keyed, lambda theta: theta @ root.T)


def unit_curvature_is_no_curvature(curved, plain, arguments):
    """On a normal target with unit covariance the curvature along any tangent is one."""

    def logdensity(x):
        return -0.5 * jnp.sum((x - 1.0) ** 2)

    make_curved, make_plain = getattr(blackjax_ext, curved), getattr(blackjax_ext, plain)
    samplers = make_curved(logdensity, 1.4, **arguments), make_plain(logdensity, 1.4, **arguments)
    same_chain((samplers[0], START), (samplers[1], START))


def floored_inverse(matrix, floor=FLOOR):
    """Inverse of a symmetric matrix with eigenvalues no smaller than a floor."""
    eigenvalues, eigenvectors = np.linalg.eigh(np.asarray(matrix))
    return eigenvectors / np.maximum(eigenvalues, floor) @ eigenvectors.T


def softabs_inverse(matrix, alpha=2.0):
    """Inverse of the SoftAbs of a symmetric matrix."""
    eigenvalues, eigenvectors = np.linalg.eigh(np.asarray(matrix))
    return eigenvectors * np.tanh(alpha * eigenvalues) / eigenvalues @ eigenvectors.T


# each of these is a Langevin proposal in a metric: (algorithm, arguments, covariance at x)
METRICS = {
    "hp_mala": ("hp_mala", {"floor": FLOOR}, lambda x: floored_inverse(-hessian(x))),
    "absolute": (
        "smmala",
        {"metric_fn": metrics.absolute_hessian(FLOOR)},
        lambda x: absolute_inverse(hessian(x)),
    ),
    "softabs": (
        "smmala",
        {"metric_fn": metrics.softabs_hessian(2.0)},
        lambda x: softabs_inverse(-hessian(x)),
    ),
    "diagonal": (
        "smmala",
        {"metric_fn": metrics.diagonal_hessian(FLOOR)},
        lambda x: np.diag(1 / np.maximum(np.abs(np.diag(hessian(x))), FLOOR)),
    ),
    "fisher": (
        "smmala",
        {"metric_fn": metrics.fisher(information)},
        lambda x: np.linalg.inv(information(jnp.asarray(x))),
    ),
    "plain_function": (
        "smmala",
        {"metric_fn": lambda logdensity_fn, x: jnp.diag(1.0 + x**2)},
        lambda x: np.diag(1 / (1.0 + np.asarray(x) ** 2)),
    ),
}


def metric_is_langevin(name, dense=False):
    """The Langevin proposal in the metric, and its log ratio, by scipy."""
    algorithm, arguments, covariance_fn = METRICS[name]
    if not dense:
        return is_langevin(algorithm, arguments, covariance_fn)
    assert name == "hp_mala"
    root = np.linalg.cholesky(COVARIANCE)

    def whitened_inverse(x):
        return root @ floored_inverse(-root.T @ np.asarray(hessian(x)) @ root) @ root.T

    return is_langevin(algorithm, arguments, whitened_inverse, jnp.asarray(COVARIANCE))


def curved_is_langevin(metric_fn, step_size=0.6):
    """MMALA's log ratio, with the divergence of the inverse metric from its derivative by jax."""

    def covariance_fn(x):
        return jnp.linalg.inv(metric_fn.matrix(FUNNEL.logdensity, x))

    @jax.jit
    def moments(x):
        divergence = jnp.einsum("ijj->i", jax.jacfwd(covariance_fn)(x))
        covariance = covariance_fn(x)
        drift = covariance @ jax.grad(FUNNEL.logdensity)(x) + divergence
        return x + 0.5 * step_size**2 * drift, step_size**2 * covariance

    def log_ratio(x, y):
        forward = scipy.stats.multivariate_normal.logpdf(y, *moments(x))
        backward = scipy.stats.multivariate_normal.logpdf(x, *moments(y))
        return float(FUNNEL.logdensity(y) - FUNNEL.logdensity(x)) + backward - forward

    ends, log_ratios = proposals("mmala", {"metric_fn": metric_fn}, step_size)
    expected = [log_ratio(START, end) for end in ends[:50]]
    np.testing.assert_allclose(log_ratios[:50], expected, rtol=1e-8, atol=1e-8)
    mean, covariance = moments(START)
    scores = np.linalg.solve(np.linalg.cholesky(covariance), (ends - mean).T)
    p = scipy.stats.kstest(scores.ravel(), "norm").pvalue
    assert p > LEVEL, f"the noise of the proposal is not standard normal: p = {p:.2g}"


def infinite_floor_is_mala(floor=1e12, step_size=0.6):
    """HP-MALA with a floor above every eigenvalue and epsilon sqrt(floor) is MALA with epsilon."""
    is_langevin(
        "hp_mala", {"floor": floor}, lambda x: np.eye(4) / floor, step_size=step_size * floor**0.5
    )


def never_refreshed_is_mala(step_size=0.6):
    """Without SMMALA steps, ALSMMALA is MALA preconditioned by the inverse of the cached metric."""
    never = {"schedule": lambda i: 0.0 * jnp.asarray(i, float)}
    covariance = np.linalg.inv(information(jnp.asarray(START)))
    fisher = {"metric_fn": metrics.fisher(information)}
    is_langevin("alsmmala", never | fisher, lambda x: covariance, step_size=step_size)


def always_refreshed_is_smmala(algorithm):
    """With SMMALA steps alone, the scheduled samplers make SMMALA's proposals."""
    always = {"schedule": schedules.geometric(1.0), "metric_fn": metrics.fisher(information)}
    covariance_fn = METRICS["fisher"][2]
    is_langevin(algorithm, always, covariance_fn)
