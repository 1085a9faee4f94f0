"""Statistical tests are asked once more with other seeds, and others are not."""

import jax
import numpy as np

from tests import seeds

TESTS = """
import jax, numpy as np, pytest

def by_chance():
    assert jax.random.key_data(jax.random.key(3))[1] != 3, "unlucky"

def by_fault():
    assert jax.random.uniform(jax.random.key(3)) > 1.0

def test_plain(): by_chance()
@pytest.mark.statistical
def test_unlucky(tmp_path): by_chance()
@pytest.mark.statistical
def test_wrong(): by_fault()
"""


def test_other_seeds_are_other_numbers():
    with seeds.others(2):
        key, rng = jax.random.key(1), np.random.default_rng(1)
    assert (jax.random.key_data(key) != jax.random.key_data(jax.random.key(1))).any()
    assert rng.random() != np.random.default_rng(1).random()
    with seeds.others(0):
        assert jax.random.key is seeds.KEY


def test_only_statistical_tests_are_asked_again(pytester):
    pytester.makepyfile(TESTS)
    pytester.makeconftest("from tests.conftest import *")
    pytester.makeini("[pytest]\nmarkers = statistical\n full\n slow")
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(["*test_unlucky passed with new seeds alone: unlucky*"])
