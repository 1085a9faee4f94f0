"""The laws as plain functions: they raise AssertionError on a sampler that breaks them.

The same functions judge the samplers and the planted bugs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

from tests.laws.samplers import CASES
from tests.laws.targets import TARGETS


class Size(NamedTuple):
    """Chains that start in equilibrium, and steps of each."""

    num_chains: int
    num_steps: int


SMALL = Size(20_000, 8)
FULL = Size(200_000, 20)
LONG = Size(10_000, 20)  # where as many chains as in FULL would take 34 GB, or an hour

# About 1,100 p-values are computed, ten in a test. Where one is smaller, other seeds decide on all
# of that test: a correct battery needs them once in 90 times, and fails once in a million.
LEVEL = 1e-5


class Outcome(NamedTuple):
    """Chains before and after, as rows of uniforms, and how they moved."""

    start: np.ndarray
    end: np.ndarray
    acceptance: float
    moved: float


def simulate(case: str, target: str, size: Size) -> Outcome:
    """Run the sampler from exact draws of the target."""
    target, case = TARGETS[target], CASES[case]
    sampler = case.build(target)
    num_chains = int(case.share * size.num_chains)
    starts = target.draw(np.random.default_rng(20), num_chains)
    starts = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), starts)

    def chain(start, rng_key):
        key_init, key_steps = jax.random.split(rng_key)
        state = sampler.init(start, key_init) if case.keyed else sampler.init(start)

        def one_step(state, key):
            state, info = sampler.step(key, state)
            return state, info.acceptance_rate

        keys = jax.random.split(key_steps, size.num_steps)
        state, acceptance = jax.lax.scan(one_step, state, keys)
        return state.position, jnp.mean(acceptance)

    keys = jax.random.split(jax.random.key(21), num_chains)
    ends, acceptance = jax.jit(jax.vmap(chain))(starts, keys)
    start, end = flat(starts), flat(ends)
    moved = np.mean(np.any(start != end, axis=1))
    # a broken sampler may leave the range of floats; the law of invariance says so
    with np.errstate(all="ignore"):
        uniforms = target.uniforms(start), target.uniforms(end)
    return Outcome(*uniforms, float(np.mean(acceptance)), float(moved))


def flat(batch) -> np.ndarray:
    """Rows of a batch of pytrees, in double precision."""
    return np.asarray(jax.vmap(lambda x: ravel_pytree(x)[0])(batch), np.float64)


def uniformity(u: np.ndarray) -> np.ndarray:
    """Kolmogorov-Smirnov p-values of rows of what should be independent uniforms.

    Each coordinate; the differences of neighbours on the circle, which see dependence; and the
    length of the vector of normal scores, which sees a common change of scale.
    """
    columns = [*u.T, *(np.diff(u, axis=1) % 1.0).T]
    # uniforms that are 0 or 1 after rounding have infinite scores: the far tail of chi-squared
    length = np.sum(scipy.stats.norm.ppf(u) ** 2, axis=1)
    columns.append(scipy.stats.chi2.cdf(length, u.shape[1]))
    return np.array([scipy.stats.kstest(column, "uniform").pvalue for column in columns])


def changes(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """P-values of paired tests that no mean has changed: sharp where chains remember the start.

    The means are those of each coordinate, of its square about the middle, and of the length of
    the vector of normal scores.
    """

    def features(u):
        scores = scipy.stats.norm.ppf(np.clip(u, 1e-9, 1 - 1e-9))
        return np.column_stack([u, (u - 0.5) ** 2, np.sum(scores**2, axis=1)])

    difference = features(end) - features(start)
    error = np.std(difference, axis=0) / np.sqrt(len(difference))
    return 2.0 * scipy.stats.norm.sf(np.abs(np.mean(difference, axis=0)) / error)


def power(outcome: Outcome) -> None:
    """Raise unless the chains moved enough for a bug in the acceptance to show."""
    assert 0.3 < outcome.acceptance < 0.8, f"power: acceptance is {outcome.acceptance:.3f}"
    assert outcome.moved > 0.8, f"movement: {outcome.moved:.3f} of the chains moved"
    pairs = zip(outcome.start.T, outcome.end.T, strict=True)
    correlation = max(np.corrcoef(start, end)[0, 1] for start, end in pairs)
    assert correlation < 0.95, f"movement: correlation with the start is {correlation:.3f}"


def invariance(case: str, target: str, size: Size) -> Outcome:
    """Raise unless chains that start in equilibrium are still there; return what happened."""
    outcome = simulate(case, target, size)
    assert not np.isnan(outcome.end).any(), f"invariance: {case} on {target} makes NaN"
    smallest = min(*uniformity(outcome.end), *changes(outcome.start, outcome.end))
    assert smallest > LEVEL, f"invariance: {case} on {target} has p = {smallest:.2g}"
    return outcome
