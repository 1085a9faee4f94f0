"""Whether trajectories along an expansion are told from those that miss a tail."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from blackjax_ext import families, potentials
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling import remainders
from blackjax_ext.subsampling.expansion import surrogate
from blackjax_ext.subsampling.passes import energy
from blackjax_ext.subsampling.remainders import loss_remainders
from numpyro_fwd import AMAGOLD

pytestmark = pytest.mark.long


def logprior(z):
    return -0.5 * jnp.sum(z**2) / 25


def expansion_of(num_rows, num_events, size=2, seed=0):
    """Of a logistic regression with so many events."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, size - 1))])
    y = (np.arange(num_rows) < num_events).astype(float)
    rows = potentials.linear_predictor(
        logprior, families.bernoulli(), (jnp.asarray(x), jnp.asarray(y))
    )
    return potentials.expand(rows, jnp.zeros(size))


def test_gap_is_that_of_the_energies(x64):
    """At the worst of the places that are looked at, and at none of them greater."""
    expansion = expansion_of(300, 1, size=1)

    def above(w):
        x = expansion.position + expansion.metric.inverse_sqrt_times(jnp.array([w]))
        exact: Pair = energy(expansion.posterior, x)
        return surrogate(expansion, x) - exact.value()

    wanted = max(above(4.0), above(-4.0)) - above(0.0)
    np.testing.assert_allclose(
        remainders.tail_gap(jax.random.key(0), expansion), wanted, rtol=1e-6, atol=1e-8
    )
    assert wanted > remainders.MAX_GAP


def test_rows_that_are_drawn_tell_the_same(x64, monkeypatch):
    expansion = expansion_of(20_000, 3)
    found = remainders.tail_gap(jax.random.key(0), expansion)
    monkeypatch.setattr(remainders, "NUM_ROWS_COMPARED", 20_000)
    exact = remainders.tail_gap(jax.random.key(0), expansion)
    assert exact > remainders.MAX_GAP
    assert exact - 1.0 < found < exact + 0.2


@pytest.mark.parametrize("seed", [0, 2])
def test_no_direction_has_a_much_greater_gap(x64, seed):
    """Along coordinates alone half of it may be missed: those of rows are looked at too."""
    rng = np.random.default_rng(seed)
    x, y = jnp.asarray(rng.normal(size=(8, 3))), jnp.asarray(3.0 * rng.standard_t(1.0, size=8))
    rows = potentials.linear_predictor(logprior, families.student_t(df=2.0, scale=1.0), (x, y))
    expansion = potentials.expand(rows, jnp.zeros(3))
    ends = jax.random.normal(jax.random.key(1), (2_000, 3))
    ends = remainders.DISTANCE * ends / jnp.linalg.norm(ends, axis=1, keepdims=True)
    steps = jax.vmap(expansion.metric.inverse_sqrt_times)(ends)
    gaps = -jnp.sum(loss_remainders(expansion, steps, jnp.arange(8)), axis=1)
    assert remainders.tail_gap(jax.random.key(0), expansion) > 0.8 * jnp.max(gaps)


def test_a_normal_likelihood_is_not_looked_at():
    x = jax.random.normal(jax.random.key(0), (50, 2))
    rows = potentials.linear_predictor(logprior, families.normal(1.0), (x, x[:, 0]))
    assert not remainders.may_differ(potentials.expand(rows, jnp.zeros(2)))


def logistic(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    numpyro.deterministic("first", slope[0])
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def said(y, acceptance="subsampled"):
    """Warnings of tails at the start of a run."""
    x = np.random.default_rng(1).normal(size=(len(y), 3)).astype(np.float32)
    x[:, 0] = 1.0
    kernel = AMAGOLD(logistic, acceptance=acceptance)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel.init(jax.random.key(0), 100, None, (x, jnp.asarray(y, jnp.float32)), {})
    return [str(each.message) for each in caught if "heavier tails" in str(each.message)]


@pytest.mark.parametrize("num_events", [1, 2])
def test_rare_events_warn(num_events):
    y = np.arange(1_000) < num_events
    assert len(said(y)) == 1 and 'acceptance="full"' in said(y)[0]
    assert not said(y, "full")


def test_common_events_do_not_warn():
    assert not said(np.random.default_rng(2).random(1_000) < 0.4)


def test_starts_that_are_traced_warn_too():
    """Those of parallel chains are."""
    x = np.ones((1_000, 1), np.float32)
    y = (np.arange(1_000) < 1).astype(np.float32)
    kernel = AMAGOLD(logistic, acceptance="subsampled")

    def first(rng_key):
        return kernel.init(rng_key, 100, None, (x, y), {}).z

    with pytest.warns(UserWarning, match="heavier tails"):
        jax.eval_shape(first, jax.random.key(0))
