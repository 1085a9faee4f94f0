"""Effective sample sizes, R-hats and rank tests of the benchmarks."""

import jax
import numpy as np
import pytest

pytest.importorskip("arviz_stats")

import arviz_base
import arviz_stats

from benchmarks import priors
from benchmarks.harness import diagnostics
from benchmarks.harness import priors as structures


def chains(correlation=0.0, num_draws=1_000, seed=0):
    """Autoregressions, (4, num_draws, 2)."""
    noise = np.random.default_rng(seed).normal(size=(4, num_draws, 2))
    x = noise.copy()
    for i in range(1, num_draws):
        x[:, i] = correlation * x[:, i - 1] + (1 - correlation**2) ** 0.5 * noise[:, i]
    return x


@pytest.mark.parametrize("method", ["bulk", "tail", "mean"])
def test_sizes_are_those_of_arviz(method):
    x = np.exp(chains(0.5))
    prob = (0.05, 0.95) if method == "tail" else None  # Stan's, not those of arviz_stats
    data = arviz_base.convert_to_dataset({"x": x})
    truth = arviz_stats.ess(data, method=method, prob=prob)["x"].values
    np.testing.assert_allclose(diagnostics.ess_of(x, method), truth)
    assert diagnostics.least_ess({"x": x, "none": x[..., :0]}, method) == truth.min()


def test_rhats_are_those_of_arviz():
    x = chains() * np.array([1.0, 1.0, 1.0, 3.0])[:, None, None]  # chains of other scales
    truth = arviz_stats.rhat(arviz_base.convert_to_dataset({"x": x}))["x"].values
    np.testing.assert_allclose(diagnostics.rhat_of(x), truth)
    assert diagnostics.worst_rhat({"x": x}) == truth.max() > 1.05


def test_one_chain_counts_as_its_halves():
    x = chains()[:1]
    n = x.shape[1] // 2
    np.testing.assert_allclose(
        diagnostics.rhat_of(x), diagnostics.rhat_of(np.concatenate([x[:, :n], x[:, n : 2 * n]]))
    )
    drift = np.linspace(0.0, 3.0, x.shape[1])[None, :, None]
    assert diagnostics.worst_rhat(x) < 1.05 < diagnostics.worst_rhat(x + drift)


def test_what_is_not_a_number_is_worth_nothing():
    x = chains()
    x[0, 0, 1] = np.nan
    assert diagnostics.least_ess(x) == 0.0
    assert diagnostics.worst_rhat(x) == np.inf


def test_antithetic_draws_are_worth_their_squares():
    x = chains(-0.9)
    assert diagnostics.least_ess(x) > 4_000
    assert diagnostics.least_ess_of_squares(x) < 1_500


def test_scores_of_right_draws_are_small_and_find_a_scale_that_is_off():
    exact = structures.forward_draws(structures.STRUCTURES["groups"], 14_000, jax.random.key(0))
    draws = {name: x[10_000:].reshape(4, 1_000, *x.shape[1:]) for name, x in exact.items()}
    exact = {name: x[:10_000] for name, x in exact.items()}
    z = priors.z_scores(draws, exact)
    assert z.size == 5 * (6 + 6 + 2)
    wrong = priors.z_scores({**draws, "tau": 1.2 * draws["tau"]}, exact)
    assert np.abs(z).max() < 4 < np.abs(wrong).max()


def test_padded_effects_have_a_law_of_their_own():
    draws = structures.forward_draws(structures.PADDED, 4_000, jax.random.key(0))["theta"]
    np.testing.assert_allclose(draws[:, ~structures.KEPT].std(0), 1.0, atol=0.1)
