"""Chains that start in equilibrium stay there, while they move."""

import numpy as np
import pytest

from tests.laws import laws
from tests.laws.samplers import CASES, PAIRS
from tests.laws.targets import TARGETS

NAMES, ALGORITHMS = [*CASES], [case.algorithm for case in CASES.values()]


def marks_of(case, target):
    """The first case of a sampler has every target, each of the others two; at full size all."""
    place = NAMES.index(case)
    is_first = ALGORITHMS.index(ALGORITHMS[place]) == place
    is_taken = is_first or (place + [*TARGETS].index(target)) % 2 == 0
    return () if is_taken else pytest.mark.full


@pytest.mark.each
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("case", "target"), [pytest.param(*pair, marks=marks_of(*pair)) for pair in PAIRS]
)
def test_exact_starts_stay_exact(case, target, size):
    laws.power(laws.invariance(case, target, size))


@pytest.mark.statistical
def test_transform_is_uniform_on_exact_draws(size):
    for target in TARGETS.values():
        draws = target.draw(np.random.default_rng(22), size.num_chains)
        assert np.min(laws.uniformity(target.uniforms(laws.flat(draws)))) > laws.LEVEL
