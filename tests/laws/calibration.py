"""Simulation-based calibration of the NumPyro kernels (Talts et al. 2018).

Parameters are drawn from the prior, data given them, and draws of the posterior given the data: the
rank of a parameter among its draws is then uniform. This goes through all of a kernel, its start,
its warm-up and its steps, on data that change. Ranks are held against bands of their empirical
distribution that hold everywhere at once (Säilynoja, Bürkner and Vehtari 2022).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from scipy.stats import binom

from numpyro_fwd import (
    ALSMMALA,
    AMAGOLD,
    AMSMMALA,
    FMALA,
    HPMALA,
    L2MC,
    MALA,
    MMALA,
    PCFMALA,
    SMMALA,
    AutoMALA,
    LangevinSMC,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
)
from tests import declared

NUM_ROWS, BATCH = 30, 10
X = np.random.default_rng(70).normal(size=(NUM_ROWS, 2))
GROUP = np.arange(NUM_ROWS) % 5
NUM_WARMUP = 300
NUM_RANKS = 50  # 0 to 49, of 49 draws
RANKS = np.arange(NUM_RANKS - 1)  # at most the last is every one
# of a coordinate's bands: of a hundred that are looked at, one in fifty times one leaves them
LEVEL = 1.0 - 2e-4


def rows(batch: int | None) -> Any:
    """The plate of the rows, all of them or a minibatch."""
    return numpyro.plate("rows", NUM_ROWS, subsample_size=batch)


def normal(y, batch=None):
    """A mean of two slopes, and a scale."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(-0.5, 0.5))
    with rows(batch) as r:
        numpyro.sample("y", dist.Normal(jnp.asarray(X)[r] @ b, s), obs=y[r])


def logistic(y, batch=None):
    """Two slopes and an intercept."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1))
    with rows(batch) as r:
        numpyro.sample("y", dist.Bernoulli(logits=jnp.asarray(X)[r] @ b + a), obs=y[r])


def counts(y, batch=None):
    """Rates of five groups, whose logarithms are normal: non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.LogNormal(-1.0, 0.5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([5]).to_event(1))
    with rows(batch) as r:
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + tau * z[jnp.asarray(GROUP)[r]])), obs=y[r])


class Simulated(NamedTuple):
    """Parameters of the prior, unconstrained, and data given them."""

    z: dict[str, np.ndarray]
    y: np.ndarray


def simulate_normal(rng: np.random.Generator) -> Simulated:
    """Of :func:`normal`."""
    b, log_s = rng.normal(size=2), -0.5 + 0.5 * rng.normal()
    return Simulated({"b": b, "s": log_s}, X @ b + np.exp(log_s) * rng.normal(size=NUM_ROWS))


def simulate_logistic(rng: np.random.Generator) -> Simulated:
    """Of :func:`logistic`."""
    b, a = rng.normal(size=2), rng.normal()
    y = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-X @ b - a))
    return Simulated({"a": a, "b": b}, y.astype(float))


def simulate_counts(rng: np.random.Generator) -> Simulated:
    """Of :func:`counts`."""
    mu, log_tau, z = rng.normal(), -1.0 + 0.5 * rng.normal(), rng.normal(size=5)
    y = rng.poisson(np.exp(mu + np.exp(log_tau) * z[GROUP]))
    return Simulated({"mu": mu, "tau": log_tau, "z": z}, y.astype(float))


MODELS: dict[str, tuple[Callable, Callable]] = {
    "normal": (normal, simulate_normal),
    "logistic": (logistic, simulate_logistic),
    "counts": (counts, simulate_counts),
}


class Case(NamedTuple):
    """A kernel with its options.

    thin
        Steps from one draw that counts to the next, after which little of it is left.
    batch
        Rows of a minibatch; None for all rows.
    models
        Those that it can sample.
    is_looped
        Whether its start must know the data.
    """

    kernel: Callable
    options: dict[str, Any]
    thin: int
    batch: int | None = None
    models: tuple[str, ...] = tuple(MODELS)
    is_looped: bool = False


CASES = {
    "RandomWalk": Case(RandomWalk, {}, 60),
    "MALA": Case(MALA, {}, 20),
    "FMALA": Case(FMALA, {"num_tangents": 3}, 40),
    "LineFMALA": Case(LineFMALA, {"num_tangents": 3}, 60),
    "PCFMALA": Case(PCFMALA, {}, 60),
    "PCLineFMALA": Case(PCLineFMALA, {}, 60),
    "HPMALA": Case(HPMALA, {}, 20),
    "SMMALA": Case(SMMALA, {}, 20),
    "MMALA": Case(MMALA, {}, 20),
    "ALSMMALA": Case(ALSMMALA, {}, 30),
    "AMSMMALA": Case(AMSMMALA, {}, 60),
    "AutoMALA": Case(AutoMALA, {}, 30),
    "L2MC": Case(L2MC, {}, 15, BATCH),
    "AMAGOLD": Case(AMAGOLD, {}, 20, BATCH, is_looped=True),
    "AMAGOLD, subsampled": Case(
        AMAGOLD, {"acceptance": "subsampled"}, 15, BATCH, ("normal", "logistic"), True
    ),
}
CASES |= {
    name: Case(each, {}, 60) for name, each in declared.kernels().items() if name not in CASES
}


def ranks(case: Case, model: str, num_replicates: int, seed: int = 0) -> np.ndarray:
    """Rank of each coordinate among its draws, shape (num_replicates, D), from 0 to 49.

    Cost: the start, 300 steps of warm-up and 49 times `thin` more for each replicate. All of them
    are one program, as parallel chains are, but for kernels that must know the data at the start.
    """
    function, simulate = MODELS[model]
    kernel = case.kernel(lambda y: function(y, case.batch), **case.options)
    rng = np.random.default_rng([seed, 71])
    found = [simulate(rng) for _ in range(num_replicates)]
    y = jnp.asarray(np.stack([each.y for each in found]), jnp.float32)
    keys = jax.random.split(jax.random.key(seed), num_replicates)

    def begin(key, y):
        return kernel.init(key, NUM_WARMUP, None, (y,), {})

    def draws(state, y):
        def step(state, _):
            return kernel.sample(state, (y,), {}), None

        def draw(state, _):
            state, _ = jax.lax.scan(step, state, length=case.thin)
            return state, ravel_pytree(state.z)[0]

        state, _ = jax.lax.scan(step, state, length=NUM_WARMUP)
        return jax.lax.scan(draw, state, length=NUM_RANKS - 1)[1]

    if case.is_looped:
        draws = jax.jit(draws)
        drawn = np.stack([draws(begin(key, one), one) for key, one in zip(keys, y, strict=True)])
    else:
        drawn = jax.jit(jax.vmap(lambda key, y: draws(begin(key, y), y)))(keys, y)
    truth = np.stack([ravel_pytree(each.z)[0] for each in found])
    return np.sum(np.asarray(drawn) < truth[:, None], axis=1)


def ranks_of_particles(model: str, num_replicates: int, seed: int = 0) -> np.ndarray:
    """The same of LangevinSMC: every eighth of 392 particles is a draw."""
    function, simulate = MODELS[model]
    kernel, rng = LangevinSMC(function), np.random.default_rng([seed, 72])
    num = 8 * (NUM_RANKS - 1)
    found = []
    for key in jax.random.split(jax.random.key(seed), num_replicates):
        z, y = simulate(rng)
        y = jnp.asarray(y, jnp.float32)
        state = kernel.init(jax.random.split(key, num), 0, None, (y,), {})
        # copies lie side by side
        draws = jax.vmap(lambda z: ravel_pytree(z)[0])(state.z)[:: num // (NUM_RANKS - 1)]
        found.append(np.sum(np.asarray(draws) < ravel_pytree(z)[0], axis=0))
    return np.array(found)


@cache
def bands(num_replicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Between which the share of ranks up to each one is, at all of them at once.

    They are pointwise quantiles, of the narrowest level at which `probability_inside` is LEVEL.
    """
    at = (RANKS + 1) / NUM_RANKS
    wide, narrow = 0.0, 1.0 - LEVEL  # of the level outside
    for _ in range(40):
        outside = (wide + narrow) / 2
        low, high = binom.interval(1 - outside, num_replicates, at)
        is_enough = probability_inside(num_replicates, at, low, high) >= LEVEL
        wide, narrow = (outside, narrow) if is_enough else (wide, outside)
    low, high = binom.interval(1 - wide, num_replicates, at)
    return low / num_replicates, high / num_replicates


def probability_inside(n: int, at: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Probability that of `n` uniforms so many are up to each of `at`: their number is a chain."""
    counts, probability, before = np.zeros(1), np.ones(1), 0.0
    for share, least, most in zip(at, low, high, strict=True):
        new = np.arange(least, most + 1)
        step = binom.pmf(new[:, None] - counts, n - counts, (share - before) / (1 - before))
        counts, probability, before = new, step @ probability, share
    return float(probability.sum())


def assert_uniform(found: np.ndarray) -> None:
    """Raise unless the ranks of each coordinate lie within the bands."""
    low, high = bands(len(found))
    for k, column in enumerate(found.T):
        share = np.mean(column[:, None] <= RANKS, axis=0)
        is_off = (share < low - 1e-9) | (share > high + 1e-9)
        assert not is_off.any(), (
            f"calibration: of coordinate {k} the share {share[is_off][0]:.2f} of the ranks is at "
            f"most {np.argmax(is_off)}, which is not within {low[is_off][0]:.2f} to "
            f"{high[is_off][0]:.2f}"
        )
