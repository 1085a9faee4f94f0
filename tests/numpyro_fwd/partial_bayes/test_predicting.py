"""Predictions of new rows: draws, means, quantiles and log scores, in batches."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy.stats import norm

from numpyro_fwd import GOHSMC

pytestmark = pytest.mark.long

SCALE = 0.3


def grouped(x, group, y=None, num_groups=3):
    """A line, a level for each group (a plate of latents), rows in a plate that subsamples."""
    slope = numpyro.param("slope", 1.0)
    with numpyro.plate("groups", num_groups):
        level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0], subsample_size=None if y is None else 8) as rows:
        mean = slope * x[rows] + level[group[rows]]
        numpyro.sample("y", dist.Normal(mean, SCALE), obs=None if y is None else y[rows])


def data(num=40, seed=0):
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=num).astype(np.float32), rng.integers(0, 3, num)
    y = np.float32(2.0 * x + group + SCALE * rng.normal(size=num))
    return jnp.asarray(x), jnp.asarray(group), jnp.asarray(y)


@pytest.fixture(scope="module")
def trained():
    smc = GOHSMC(grouped, optax.adam(0.05), num_particles=20, step_size=0.05)
    result = smc.run(jax.random.key(0), 300, *data(), progress_bar=False)
    uneven = jax.nn.log_softmax(jnp.linspace(-2.0, 2.0, 20))
    return smc, result._replace(log_weights=uneven)


def means(result, x, group):
    """Of every particle at every row."""
    return result.params["slope"] * x + result.particles["level"][:, group]


def test_moments_quantiles_and_scores_are_those_of_the_mixture(trained):
    smc, result = trained
    x, group, y = data(30, seed=1)
    found = smc.predict(
        *(jax.random.key(1), result, x, group, y), num_samples=4000, quantiles=(0.1, 0.8)
    )
    mean, weights = np.asarray(means(result, x, group)), np.exp(result.log_weights)
    density = weights @ norm.pdf(y, mean, SCALE)
    np.testing.assert_allclose(found.log_score["y"], np.log(density), rtol=1e-3, atol=1e-3)
    assert found.draws["y"].shape == (4000, 30)
    spread = np.sqrt(weights @ (mean**2 + SCALE**2) - (weights @ mean) ** 2)
    assert np.max(np.abs(found.mean["y"] - weights @ mean) / spread) < 5 / np.sqrt(4000)
    for level, quantile in zip((0.1, 0.8), found.quantiles["y"], strict=True):
        share = weights @ norm.cdf(quantile, mean, SCALE)
        assert np.max(np.abs(share - level)) < 5 * np.sqrt(level * (1 - level) / 4000)


def test_batches_are_the_same_predictions(trained):
    """Scores do not depend on them; draws follow the same particles."""
    smc, result = trained
    new = data(25, seed=2)
    key = jax.random.key(3)
    whole = smc.predict(key, result, *new, num_samples=500)
    parts = smc.predict(key, result, *new, num_samples=500, rows_at_once=8)
    np.testing.assert_allclose(parts.log_score["y"], whole.log_score["y"], rtol=1e-5, atol=1e-6)
    assert parts.draws["y"].shape == (500, 25) and parts.quantiles["y"].shape == (3, 25)
    np.testing.assert_allclose(parts.mean["y"], whole.mean["y"], atol=6 * SCALE / np.sqrt(500))
    # other draws of the noise in other batches
    first = parts.draws["y"][:, 0] - parts.mean["y"][0]
    last = parts.draws["y"][:, 8] - parts.mean["y"][8]
    assert abs(np.corrcoef(first, last)[0, 1]) < 0.9


def test_without_observations_there_is_no_score(trained):
    smc, result = trained
    x, group, y = data(12, seed=4)
    key = jax.random.key(5)
    without = smc.predict(key, result, x, group, rows_at_once=5)
    assert without.log_score is None and without.draws["y"].shape == (20, 12)
    # observations do not enter the predictions
    given = smc.predict(key, result, x, group, y, rows_at_once=5)
    np.testing.assert_array_equal(given.draws["y"], without.draws["y"])


def with_events_and_factors(x, y=None):
    shift = numpyro.param("shift", 0.5)
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.factor("more", -(shift**2))
    with numpyro.plate("rows", len(x)):
        mean = shift + x[:, None] * b
        numpyro.sample("y", dist.Normal(mean, 1).to_event(1), obs=y)


def test_events_stay_together_and_factors_are_not_predicted():
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    y = np.float32(np.stack([x, -x], axis=1))
    smc = GOHSMC(with_events_and_factors, optax.sgd(0.01), num_particles=6)
    result = smc.run(jax.random.key(0), 3, x, y, progress_bar=False)
    found = smc.predict(jax.random.key(1), result, x, y, rows_at_once=3)
    assert set(found.draws) == set(found.log_score) == {"y"}
    assert found.draws["y"].shape == (6, 7, 2) and found.log_score["y"].shape == (7,)
    assert isinstance(found.mean["y"], np.ndarray)


def summed(x, y=None):
    shift = numpyro.param("shift", 0.5)
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(shift + b * x.sum(), 1), obs=y)


def test_what_is_not_row_by_row_is_predicted_at_once():
    x = np.ones(6, np.float32)
    smc = GOHSMC(summed, optax.sgd(0.01), num_particles=6)
    result = smc.run(jax.random.key(0), 3, x, np.float32(1.0), progress_bar=False)
    assert smc.predict(jax.random.key(1), result, x).draws["y"].shape == (6,)
    with pytest.raises(ValueError, match=r"site 'y' has no axis along the rows.*rows_at_once=None"):
        smc.predict(jax.random.key(1), result, x, rows_at_once=3)


def centred(x, y=None):
    shift = numpyro.param("shift", 0.5)
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(shift + b + 2.0 * (x - x.mean()), 1), obs=y)


def test_rows_that_change_with_each_other_are_predicted_at_once():
    """The mean of a few rows is not that of all."""
    x = np.arange(8, dtype=np.float32)
    smc = GOHSMC(centred, optax.sgd(0.01), num_particles=6)
    result = smc.run(jax.random.key(0), 3, x, x, progress_bar=False)
    assert smc.predict(jax.random.key(1), result, x, x).draws["y"].shape == (6, 8)
    with pytest.raises(ValueError, match=r"at site 'y' changes with the other rows.*rows_at_once"):
        smc.predict(jax.random.key(1), result, x, x, rows_at_once=3)


def with_hidden_values(y, is_known):
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    with numpyro.plate("rows", len(y)), numpyro.handlers.mask(mask=is_known):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_values_behind_a_mask_are_not_scored():
    """They are as if they were not there: in the loss, and in the score, which is unknown."""
    y = np.array([0.3, np.nan, 1.9, np.nan, np.nan, 1.2], np.float32)
    is_known = np.isfinite(y)
    some, every = (y, is_known), (y[is_known], np.ones(3, bool))
    smc = GOHSMC(with_hidden_values, optax.adam(0.01), num_particles=10, step_size=0.1)
    ends = [
        smc.run(jax.random.key(0), 5, *args, progress_bar=False, validation=args)
        for args in (some, every)
    ]
    np.testing.assert_allclose(*(end.validation_losses for end in ends), rtol=1e-5)
    scores = smc.predict(jax.random.key(1), ends[0], *some).log_score["y"]
    np.testing.assert_array_equal(np.isfinite(scores), is_known)
    np.testing.assert_allclose(-np.nanmean(scores), ends[0].validation_losses[-1], rtol=1e-5)


def with_hidden_events(y, is_known):
    numpyro.param("scale", 1.0)
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    law = dist.Normal(mean, 1.0).expand(y.shape).mask(is_known).to_event(1)
    numpyro.sample("y", law, obs=y)


def test_an_event_of_which_some_is_known_is_scored():
    y = np.array([[0.3, 0.0], [0.0, 0.0]], np.float32)
    is_known = np.array([[True, False], [False, False]])
    smc = GOHSMC(with_hidden_events, optax.sgd(0.0), num_particles=4, step_size=0.1)
    result = smc.run(jax.random.key(0), 2, y, is_known, progress_bar=False)
    scores = smc.predict(jax.random.key(1), result, y, is_known).log_score["y"]
    np.testing.assert_array_equal(np.isfinite(scores), [True, False])


@pytest.mark.parametrize("part", ["params", "particles"])
def test_a_training_that_diverged_predicts_nothing(trained, part):
    smc, result = trained
    values = getattr(result, part)
    lost = result._replace(**{part: jax.tree.map(lambda leaf: jnp.nan * leaf, values)})
    for predict in (smc.predictive, smc.predict):
        with pytest.raises(ValueError, match=f"site '{next(iter(values))}' are not finite.*rate"):
            predict(jax.random.key(0), lost, *data()[:2])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"quantiles": (0.5, 1.5)}, ValueError, "quantiles must be between 0 and 1; got 1.5"),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1; got 0"),
        ({"rows_at_once": 2.5}, TypeError, "rows_at_once must be a whole number"),
    ],
)
def test_wrong_arguments(trained, arguments, error, message):
    smc, result = trained
    with pytest.raises(error, match=message):
        smc.predict(jax.random.key(0), result, *data(), **arguments)
