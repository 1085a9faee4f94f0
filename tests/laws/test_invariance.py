"""Chains that start in equilibrium stay there, while they move."""

import numpy as np
import pytest

from tests.laws import laws
from tests.laws.samplers import PAIRS
from tests.laws.targets import TARGETS


@pytest.mark.each
@pytest.mark.statistical
@pytest.mark.parametrize(("case", "target"), PAIRS)
def test_exact_starts_stay_exact(case, target, size):
    laws.power(laws.invariance(case, target, size))


@pytest.mark.statistical
def test_transform_is_uniform_on_exact_draws(size):
    for target in TARGETS.values():
        draws = target.draw(np.random.default_rng(22), size.num_chains)
        assert np.min(laws.uniformity(target.uniforms(laws.flat(draws)))) > laws.LEVEL
