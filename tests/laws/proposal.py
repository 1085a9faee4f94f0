"""Laws of the Gaussian Langevin proposal: algebra, quadrature, scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from blackjax_ext import metrics
from blackjax_ext.mcmc import langevin
from tests.laws.laws import LEVEL


def make_factor(kind: str, size: int, rng) -> metrics.Factor:
    """Draw a metric factor of one kind."""
    square = rng.normal(size=(size, size))
    match kind:
        case "identity":
            return metrics.IDENTITY
        case "scalar":
            return metrics.Diagonal(jnp.asarray(rng.uniform(0.3, 2.0)))
        case "diagonal":
            return metrics.factorize(jnp.asarray(rng.uniform(0.2, 3.0, size)))
        case "dense":
            return metrics.factorize(jnp.asarray(square @ square.T + 0.2 * np.eye(size)))
        case "clipped":
            return metrics.absolute(jnp.asarray(square + square.T), 0.3)


def make_point(kind: str, size: int, rng) -> langevin.Point:
    """Draw one end of a move."""
    value, gradient = jnp.asarray(rng.normal()), jnp.asarray(rng.normal(size=size))
    return langevin.Point(value, gradient, make_factor(kind, size, rng))


def residual_inverts_increment(seed, size, step_size, kind):
    """The noise is recovered from the increment it makes."""
    rng = np.random.default_rng(seed)
    point, noise = make_point(kind, size, rng), rng.normal(size=size)
    r = langevin.increment(jnp.asarray(noise), point, step_size)
    found = langevin.residual(r, point, step_size)
    scale = 1.0 + float(jnp.max(jnp.abs(point.metric.sqrt_times(r)))) / step_size
    np.testing.assert_allclose(found, noise, atol=1e-9 * scale, err_msg="residual")


def antisymmetry(seed, size, step_size, start_kind, end_kind):
    """The log ratio of the reverse move is minus that of the move."""
    rng = np.random.default_rng(seed)
    start, end = make_point(start_kind, size, rng), make_point(end_kind, size, rng)
    r = langevin.increment(jnp.asarray(rng.normal(size=size)), start, step_size)
    there = float(langevin.log_ratio(r, start, end, step_size))
    back = float(langevin.log_ratio(-r, end, start, step_size))
    assert abs(there + back) < 1e-9 * (1 + abs(there)), f"antisymmetry: {there} and {back}"


def log_ratio_is_made_of_densities(seed, size, step_size, start_kind, end_kind):
    """The log ratio is that of target times proposal densities, computed by scipy."""
    rng = np.random.default_rng(seed)
    start, end = make_point(start_kind, size, rng), make_point(end_kind, size, rng)
    r = langevin.increment(jnp.asarray(rng.normal(size=size)), start, step_size)

    def logpdf(increment, point):
        root = np.asarray(point.metric.inverse_sqrt) * np.eye(size)
        if np.ndim(point.metric.inverse_sqrt) == 2:
            root = np.asarray(point.metric.inverse_sqrt)
        covariance = root @ root.T
        mean = 0.5 * step_size**2 * covariance @ point.gradient
        return scipy.stats.multivariate_normal.logpdf(increment, mean, step_size**2 * covariance)

    expected = end.logdensity - start.logdensity + logpdf(-r, end) - logpdf(r, start)
    found = langevin.log_ratio(r, start, end, step_size)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7, err_msg="log ratio")
    np.testing.assert_allclose(
        proposal_logpdf(r, start, step_size), logpdf(r, start), rtol=1e-7, atol=1e-7
    )


def proposal_logpdf(increment, point, step_size):
    """Log density of the move from `point`, by the residual of the package."""
    z = langevin.residual(increment, point, step_size)
    normalizer = z.size * (jnp.log(step_size) + 0.5 * jnp.log(2.0 * jnp.pi))
    return -0.5 * z @ z - normalizer + 0.5 * point.metric.log_det(z.size)


def density_integrates_to_one(kind, size, step_size):
    """Trapezoidal quadrature of the density over a box of ten standard deviations."""
    point = make_point(kind, size, np.random.default_rng(7))
    root = point.metric.inverse_sqrt_times(jnp.eye(size))
    center = langevin.increment(jnp.zeros(size), point, step_size)
    reach = 10.0 * step_size * float(jnp.linalg.norm(root, 2))
    axis = jnp.linspace(-reach, reach, 401)
    grid = jnp.stack(jnp.meshgrid(*[axis] * size), axis=-1).reshape(-1, size) + center
    values = jax.vmap(lambda r: proposal_logpdf(r, point, step_size))(grid)
    total = float(jnp.sum(jnp.exp(values)) * (axis[1] - axis[0]) ** size)
    assert abs(total - 1.0) < 1e-6, f"quadrature: the density integrates to {total}"


def density_has_the_moments_of_the_increments(kind, step_size):
    """Increments have uniform p-values under the density's own mean and covariance."""
    rng = np.random.default_rng(8)
    point = make_point(kind, 2, rng)
    noise = jnp.asarray(rng.normal(size=(5_000, 2)))
    r = jax.vmap(lambda z: langevin.increment(z, point, step_size))(noise)
    logpdf = jax.vmap(lambda r: proposal_logpdf(r, point, step_size))(r)
    mode = proposal_logpdf(langevin.increment(jnp.zeros(2), point, step_size), point, step_size)
    # twice the drop below the mode of a 2-D normal density is chi-squared with 2 degrees
    p = scipy.stats.kstest(2.0 * np.asarray(mode - logpdf), scipy.stats.chi2(2).cdf).pvalue
    assert p > LEVEL, f"increments do not follow the density: p = {p:.2g}"
