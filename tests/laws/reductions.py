"""Special cases in which one sampler is another one, or a textbook formula."""

from unittest import mock

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from blackjax.mcmc import diffusions

import blackjax_ext
from tests.laws import steps
from tests.laws.laws import LEVEL
from tests.laws.samplers import ROWS
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
    step_size = 0.6
    all_tangents = arguments | {"num_tangents": 4}
    ends, log_ratios = proposals(algorithm, all_tangents, step_size, metric)
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


def preconditioner_is_whitening(row, diagonal=False):
    """A preconditioner L L^T on x is the identity on L^-1 x."""
    covariance = np.diag(np.diag(COVARIANCE)) if diagonal else COVARIANCE
    root = jnp.asarray(np.linalg.cholesky(covariance))
    metric = jnp.diag(covariance) if diagonal else jnp.asarray(covariance)
    on_x = ROWS[row].on(FUNNEL.logdensity, 0.7, metric)
    on_theta = ROWS[row].on(lambda theta: FUNNEL.logdensity(root @ theta), 0.7)
    start = np.linalg.solve(root, START)
    same_chain((on_x, START), (on_theta, start), ROWS[row].keyed, lambda theta: theta @ root.T)


def unit_curvature_is_no_curvature(curved, plain, arguments):
    """On a normal target with unit covariance the curvature along any tangent is one."""

    def logdensity(x):
        return -0.5 * jnp.sum((x - 1.0) ** 2)

    make_curved, make_plain = getattr(blackjax_ext, curved), getattr(blackjax_ext, plain)
    samplers = make_curved(logdensity, 1.4, **arguments), make_plain(logdensity, 1.4, **arguments)
    same_chain((samplers[0], START), (samplers[1], START))
