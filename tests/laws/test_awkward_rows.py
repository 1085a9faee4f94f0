"""Rows that users bring: each is right to the digits of float64, or raises by name.

The reference is the logistic posterior in double precision, by covariates that are centred there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
from numpyro.infer import MCMC

import blackjax_ext
from blackjax_ext import acceptance, families, potentials
from blackjax_ext.rows.compensated_sums import difference
from blackjax_ext.subsampling import expansion, thinning
from numpyro_fwd import AMAGOLD

RNG = np.random.default_rng(110)
NORMAL = RNG.normal(size=2_000)
# sds of the prior in units of the covariates: of the intercept, and of the slopes
WIDE, SLOPE = 1e4, 10.0


class Rows(NamedTuple):
    """A logistic regression.

    x
        Covariates, the first of them one, shape (N, D).
    y
        Zeros and ones, shape (N,).
    prior
        Standard deviations of the coefficients, shape (D,).
    """

    x: np.ndarray
    y: np.ndarray
    prior: np.ndarray


def rows(*covariates, num_rows=2_000, responses=None, scales=None, wide=WIDE):
    """Rows with these covariates and an intercept, their responses drawn by the first of them."""
    columns = [np.broadcast_to(each, (num_rows,)) for each in (1.0, *covariates)]
    is_whole = all(each.dtype.kind in "bi" for each in columns[1:])
    x = np.column_stack(columns).astype(np.int32 if is_whole else np.float32)
    if responses is None:
        first = x[:, 1].astype(float)
        spread = np.std(first)
        eta = (first - first.mean()) / (spread if spread > 0 else 1.0)
        responses = np.random.default_rng(111).random(num_rows) < scipy.special.expit(0.5 * eta)
    scales = np.ones(len(covariates)) if scales is None else np.asarray(scales)
    return Rows(x, np.asarray(responses, np.float32), np.append(wide, SLOPE / scales))


CASES = {
    "centred": lambda: rows(NORMAL),
    "mean_of_10_sds": lambda: rows(10 + NORMAL),
    "mean_of_1000_sds": lambda: rows(1000 + NORMAL),
    "scales_side_by_side": lambda: rows(1e-6 * NORMAL, 1e6 * NORMAL[::-1], scales=(1e-6, 1e6)),
    "one_row": lambda: rows(0.3, num_rows=1, responses=[1.0], wide=3.0),
    "equal_rows": lambda: rows(0.7, num_rows=60, responses=np.arange(60) % 3 == 0),
    "duplicated_rows": lambda: rows(np.repeat(NORMAL[:500], 4)),
    "integers": lambda: rows(RNG.integers(0, 5, 2_000)),
    "booleans": lambda: rows(RNG.random(2_000) < 0.3),
    "rare_events": lambda: rows(
        np.resize(NORMAL, 100_000), num_rows=100_000, responses=np.arange(100_000) % 1250 == 0
    ),
}


def posterior(case):
    """By its linear predictors, and by minibatches, in float32."""
    prior = jnp.asarray(case.prior, jnp.float32)

    def logprior(theta):
        return -0.5 * jnp.sum(jnp.square(theta / prior))

    def loglik(theta, row):
        eta = row[0] @ theta
        return row[1] * eta - jax.nn.softplus(eta)

    data = jnp.asarray(case.x), jnp.asarray(case.y)
    linear = potentials.linear_predictor(logprior, families.bernoulli(), data)
    return linear, potentials.minibatch(logprior, loglik, data, batch_size=1)


def exact(case, positions):
    """Energies of `positions`, shape (n, D), in double precision."""
    eta = positions @ case.x.astype(np.float64).T
    return np.sum(np.logaddexp(0, eta) - case.y * eta, axis=1) + 0.5 * np.sum(
        np.square(positions / case.prior), axis=1
    )


def laplace(case):
    """Mode and factor of the covariance there, in double precision on centred covariates."""
    x = case.x.astype(np.float64)
    spread = x[:, 1:].std(axis=0)
    center = np.eye(x.shape[1])
    center[0, 1:] = -x[:, 1:].mean(axis=0)
    center[:, 1:] /= np.where(spread > 0, spread, 1.0)
    z, prior, u = x @ center, center.T / case.prior**2, np.zeros(x.shape[1])
    for _ in range(50):
        p = scipy.special.expit(z @ u)
        hessian = (z * (p * (1 - p))[:, None]).T @ z + prior @ center
        slope = z.T @ (p - case.y) + prior @ center @ u
        step = np.linalg.solve(hessian, slope)
        u = u - step * min(1.0, 5.0 / np.linalg.norm(step))
    return center @ u, center @ np.linalg.cholesky(np.linalg.inv(hessian))


def points(case, anchor):
    """The anchor and places up to four standard deviations from it, as float32 has them."""
    factor = laplace(case)[1]
    w = np.random.default_rng(112).normal(size=(8, len(factor)))
    w *= np.linspace(0, 3, 8)[:, None] / np.maximum(np.linalg.norm(w, axis=1), 1e-9)[:, None]
    return jnp.asarray(np.asarray(anchor, np.float64) + w @ factor.T, jnp.float32)


@pytest.mark.parametrize("name", CASES)
def test_energies_are_right(name):
    """Of the expansion at the mode with its remainders, of the anchor's, and of all rows."""
    case = CASES[name]()
    linear, minibatch = posterior(case)
    expanded = potentials.expand(linear, jnp.zeros(case.x.shape[1]))
    mode, factor = laplace(case)
    off = np.linalg.solve(factor, np.asarray(expanded.position, np.float64) - mode)
    assert np.linalg.norm(off) < 0.1, "mode"
    xs = points(case, expanded.position)
    energies = exact(case, np.asarray(xs, np.float64))
    anchor = potentials.anchor_at(minibatch, expanded.position, 2)
    anchored = potentials.anchored(minibatch, anchor, 2).rows

    @jax.jit
    @jax.vmap
    def found(x):
        steps = jnp.stack([jnp.zeros_like(x), x - expanded.position])
        move = thinning.Move(steps, jnp.float32(1.0))
        change = thinning.change_of_all(expanded, move, jnp.array(True))
        of_rows = anchored.terms(x, jnp.arange(expanded.num_rows))
        known = -anchored.known(x) - jnp.sum(of_rows)
        return thinning.surrogate(expanded, x) + change, known, minibatch.potential(x)

    expansions, anchors, whole = found(xs)
    wanted = energies - energies[0]
    np.testing.assert_allclose(expansions - expansions[0], wanted, atol=0.01, err_msg="expansion")
    np.testing.assert_allclose(anchors - anchors[0], wanted, atol=0.01, err_msg="anchor")
    first = jax.tree.map(lambda leaf: leaf[0], whole)
    np.testing.assert_allclose(difference(whole, first), wanted, atol=0.02, err_msg="all rows")


@pytest.mark.parametrize("name", ["mean_of_1000_sds", "one_row"])
def test_batches_of_all_rows(name):
    case = CASES[name]()
    expanded = potentials.expand(posterior(case)[0], jnp.zeros(case.x.shape[1]))
    potential = potentials.expanded_minibatch(expanded, len(case.y))
    sampler = blackjax_ext.amagold(
        potential, 0.3, expanded.metric, acceptance=acceptance.subsampled(expanded)
    )
    state = sampler.init(expanded.position)
    _, info = jax.jit(sampler.step)(jax.random.key(0), state)
    assert np.isfinite(info.acceptance_rate) and not info.is_divergent


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_covariates_far_from_centred_raise(mean):
    case = rows(mean + NORMAL)
    with pytest.raises(ValueError, match=r"centre the covariates: the condition number .* float32"):
        potentials.expand(posterior(case)[0], jnp.zeros(2))


def regression(x, y):
    """For NumPyro."""
    intercept = numpyro.sample("intercept", dist.Normal(0, WIDE))
    slope = numpyro.sample("slope", dist.Normal(0, SLOPE))
    with numpyro.plate("rows", len(y), subsample_size=20) as batch:
        numpyro.sample("y", dist.BernoulliLogits(intercept + slope * x[batch]), obs=y[batch])


@pytest.mark.slow
@pytest.mark.parametrize("test", ["subsampled", "full"], ids=["few_rows", "all_rows"])
def test_kernels_sample_uncentred_covariates(test):
    """From a start at zero: mean and sd of the slope are those of the posterior."""
    case = rows(np.resize(1000 + NORMAL, 20_000), num_rows=20_000)
    kernel = AMAGOLD(regression, acceptance=test, num_integration_steps=4)
    mcmc = MCMC(
        kernel,
        num_warmup=50,
        num_samples=100,
        num_chains=20,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = {name: jnp.zeros(20) for name in ("intercept", "slope")}
    mcmc.run(jax.random.key(113), jnp.asarray(case.x[:, 1]), jnp.asarray(case.y), init_params=start)
    slopes = np.asarray(mcmc.get_samples()["slope"], np.float64)
    mode, factor = laplace(case)
    sd = np.linalg.norm(factor[1])
    assert abs(slopes.mean() - mode[1]) < 0.15 * sd
    assert abs(slopes.std() / sd - 1) < 0.12


def test_expansion_by_float32_hessian_is_found(monkeypatch):
    """A planted bug: the quadratic form in the coordinates of the position, as it once was."""

    def by_position(expanded, x):
        d, _ = thinning.whitened(expanded, x)
        quadratic = 0.5 * d @ (expanded.hessian @ d)
        return expanded.gradient @ d + quadratic - expanded.posterior.logprior(x)

    monkeypatch.setattr(thinning, "surrogate", by_position)
    jax.clear_caches()
    with pytest.raises(AssertionError, match="expansion"):
        test_energies_are_right("mean_of_1000_sds")
    assert expansion.surrogate is not by_position
