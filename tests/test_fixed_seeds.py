"""A seed gives what it gave before."""

import json

import numpy as np
import pytest

from tests import fixed_seeds

pytestmark = pytest.mark.long

KEPT = json.loads(fixed_seeds.PATH.read_text())


# the published weights of a random walk collapse, and say so
@pytest.mark.filterwarnings("ignore:the effective sample size fell")
@pytest.mark.parametrize("name", fixed_seeds.MAKERS)
def test_draws_are_those_of_before(name):
    assert name in KEPT, "the draws of a new sampler are added by make declared"
    np.testing.assert_allclose(fixed_seeds.found(name), KEPT[name], rtol=1e-5, atol=1e-7)
