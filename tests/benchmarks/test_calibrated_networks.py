"""Scores of what networks say of new rows, where they are known."""

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("sklearn")

from benchmarks.harness import calibrated_networks as calibrated


def case(is_regression):
    return calibrated.Case(None, None, None, is_regression)


def found(outputs, scale=1.0):
    """What equally weighted members say of the rows."""
    num = len(outputs)
    return calibrated.Found(np.full(num, scale), outputs, np.full(num, -np.log(num)))


def test_honest_normal_predictions_are_calibrated_and_narrow_ones_are_not():
    rng = np.random.default_rng(0)
    mean = rng.normal(size=20_000)
    y = mean + 0.5 * rng.normal(size=mean.size)
    nll, error = calibrated.scores(case(True), found(np.stack([mean, mean]), 0.5), y)
    assert abs(nll - (0.5 + np.log(0.5 * np.sqrt(2 * np.pi)))) < 0.02
    assert error < 0.01
    worse, error = calibrated.scores(case(True), found(mean[None], 0.1), y)
    assert worse > nll + 1 and error > 0.2


def test_probabilities_are_those_of_the_mixture():
    y = np.array([1.0, 1.0, 0.0, 1.0])
    logits = np.log(np.array([[0.5 / 0.5] * 4, [1.0 / 1e-12] * 4]))  # one half, and one
    nll, error = calibrated.scores(case(False), found(logits), y)
    np.testing.assert_allclose(nll, -(3 * np.log(0.75) + np.log(0.25)) / 4, rtol=1e-6)
    np.testing.assert_allclose(error, 0.0, atol=1e-9)


@pytest.mark.parametrize("is_regression", [True, False])
def test_labels_are_not_standardized(is_regression):
    x = np.random.default_rng(1).normal(size=(200, 3))
    source = calibrated.Source(lambda: (x, x[:, 0] > 1), is_regression, 10, 1)
    task = calibrated.task_of(source, 0)
    labels = set(np.unique(np.concatenate([part.y for part in task[:3]])))
    assert len(labels) == 2 and (labels == {0.0, 1.0}) == (not is_regression)
    assert [len(part.y) for part in task[:3]] == [120, 60, 20]
