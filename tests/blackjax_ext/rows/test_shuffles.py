"""Numbers from random words, and rows drawn by them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from blackjax_ext.rows import shuffles
from blackjax_ext.rows.shuffles import uniform_numbers, words_per_number

pytestmark = pytest.mark.long


def test_uniform_numbers_are_those_of_jax():
    """Of the same bits, in both precisions, and below one."""
    key, most = jax.random.key(0), np.full((2, 1), 2**32 - 1, np.uint32)
    words = jax.random.bits(key, (1, 1000), jnp.uint32)
    found = uniform_numbers(words, jnp.float32)
    np.testing.assert_array_equal(found, jax.random.uniform(key, (1, 1000))[0])
    assert words_per_number(jnp.float32) == 1 and uniform_numbers(most[:1], jnp.float32) < 1.0
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(key, (1000,), jnp.uint64))
        words = jnp.stack([(bits >> 32).astype(np.uint32), bits.astype(np.uint32)])
        found = uniform_numbers(words, jnp.float64)
        np.testing.assert_array_equal(found, jax.random.uniform(key, (1000,), jnp.float64))
        assert words_per_number(jnp.float64) == 2 and uniform_numbers(most, jnp.float64) < 1.0


@pytest.mark.parametrize(("size", "num"), [(1, 1), (9, 9), (40, 30), (40, 20), (100_000, 300)])
def test_distinct_rows_are_distinct(size, num):
    rows = np.asarray(shuffles.distinct(jax.random.key(5), size, num))
    assert rows.shape == (num,) == np.unique(rows).shape
    assert rows.min() >= 0 and rows.max() < size


@pytest.mark.statistical
def test_distinct_rows_are_every_tuple_alike():
    """Three of six in order, where a round repeats some of them with probability 4/9."""
    size, num, draws = 6, 3, 24_000
    draw = jax.jit(jax.vmap(lambda key: shuffles.distinct(key, size, num)))
    rows = np.asarray(draw(jax.random.split(jax.random.key(6), draws)))
    counts = np.bincount(rows @ size ** np.arange(num), minlength=size**num)
    counts = counts[counts > 0]
    assert counts.size == 120
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("size", [1, 7, 1000, 1_500_000_000])
def test_rows_with_replacement_are_uniform_and_independent(size):
    rows = np.asarray(shuffles.with_replacement(jax.random.key(7), size, 100_000))
    assert rows.min() >= 0 and rows.max() < size
    cells = min(size, 40)
    cell = rows.astype(np.int64) * cells // size
    pairs = np.zeros((cells, cells))
    np.add.at(pairs, (cell[:-1], cell[1:]), 1)
    for counts in (np.bincount(cell, minlength=cells), pairs.ravel()):
        of_size = np.diff(-(-np.arange(cells + 1) * size // cells)) / size
        share = of_size if counts.size == cells else np.outer(of_size, of_size).ravel()
        assert size == 1 or scipy.stats.chisquare(counts, counts.sum() * share).pvalue > 1e-4


@pytest.mark.parametrize("size", [1, 3, 1000, 2**16, 2**20 + 7, 2**31 - 1])
def test_words_are_scaled_to_the_last_bit(size):
    """Against whole numbers of any length, at the ends and where carries are."""
    words = np.random.default_rng(8).integers(0, 2**32, (2, 5000), np.uint64)
    words[:, :4] = [[0, 0, 2**32 - 1, 2**32 - 1], [0, 2**32 - 1, 0, 2**32 - 1]]
    multiple = np.array(
        [i * 2**64 // size for i in range(1, 1000)], object
    )  # the last fraction below a step, and the next
    words[:, 4:1003] = [multiple - 1 >> 32 & 2**32 - 1, multiple - 1 & 2**32 - 1]
    words[:, 1003:2002] = [multiple >> 32 & 2**32 - 1, multiple & 2**32 - 1]
    found = np.asarray(shuffles.times_fraction(jnp.asarray(words, jnp.uint32), size))
    whole = [((int(high) << 32) + int(low)) * size >> 64 for high, low in words.T]
    np.testing.assert_array_equal(found, whole)
