"""What the set-up of the subsampled test takes for each row: what it keeps, and little else."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import families
from blackjax_ext.rows import arrowhead
from blackjax_ext.subsampling import alias_table, expansion, grouping, predictors, row_bounds

pytestmark = pytest.mark.long

NUM_ROWS = 1_000_000
KEPT = 12  # bound, threshold and alias of a row, in bytes


def bytes_a_row(act):
    """Bytes of NumPy at the highest while `act` runs, for each of the rows."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        act()
        return (tracemalloc.get_traced_memory()[1] - before) / NUM_ROWS
    finally:
        tracemalloc.stop()


def small_blocks(monkeypatch):
    """Blocks that are as small beside a million rows as the usual ones beside a hundred million."""
    monkeypatch.setattr(alias_table, "BLOCK_SIZE", 2**13)
    monkeypatch.setattr(expansion, "MIN_PART", 2**15)
    monkeypatch.setattr(expansion, "MAX_PARTS", 64)


def table_of_bounds():
    """As `expand` makes it, with its copy of the bounds."""
    psi = np.random.default_rng(0).lognormal(size=NUM_ROWS).astype(np.float32)
    return bytes_a_row(lambda: expansion.table_of(np.array(psi), 1e-4))


def test_bounds_and_alias_table_are_made_in_the_memory_that_they_keep(monkeypatch):
    small_blocks(monkeypatch)
    assert KEPT <= table_of_bounds() < KEPT + 3


def test_a_million_rows_take_little_more_than_they_keep():
    assert table_of_bounds() < KEPT + 16


def test_probabilities_of_all_rows_at_once_are_noticed(monkeypatch):
    monkeypatch.setattr(alias_table, "BLOCK_SIZE", 2**13)
    monkeypatch.setattr(expansion, "MIN_PART", NUM_ROWS)
    assert table_of_bounds() > KEPT + 7


def memory_of_a_pass(num_rows):
    """Bytes of the program that bounds the rows, but for its arguments."""
    rows = predictors.linear_predictor(
        lambda theta: -0.5 * jnp.sum(theta**2),
        families.bernoulli(),
        (jnp.ones((num_rows, 3), jnp.float32), jnp.ones(num_rows, jnp.float32)),
    )
    at, nothing = jnp.zeros(3, jnp.float32), jnp.zeros((1, 0), jnp.float32)
    predictor = grouping.GroupedPredictor.without_groups(rows, at)
    frame = arrowhead.cast(arrowhead.identity_whitening(3, 1, 0), jnp.float32)
    program = jax.jit(row_bounds.row_bounds, static_argnums=(5, 6))
    with jax.enable_x64(False):
        lowered = program.lower(predictor, at, frame, frame, (at, nothing), 5.0, 2)
    found = lowered.compile().memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of XLA's program for processors")
def test_a_pass_keeps_a_number_of_each_row():
    few, many = 100_000, 400_000
    grown = (memory_of_a_pass(many) - memory_of_a_pass(few)) / (many - few)
    assert grown < 9  # the bound, and its place in the loop


def test_a_table_by_blocks_is_that_of_all_at_once(monkeypatch):
    rng = np.random.default_rng(4)
    for weights in (rng.random(999), rng.pareto(0.5, 2000), (rng.random(3000) < 0.1) + 1e-3):
        whole = probabilities_of(weights, 2**20)
        for block in (7, 64, 1000):
            monkeypatch.setattr(alias_table, "BLOCK_SIZE", block)
            some = probabilities_of(weights, block)
            np.testing.assert_allclose(some, whole, rtol=1e-6, atol=1e-6 / weights.size)


def probabilities_of(weights, part):
    """Probabilities of a table, some of them at a time."""
    table = alias_table.columns(weights)
    parts = alias_table.blocks(weights.size, part)
    return np.concatenate([alias_table.realized(*table, each) for each in parts])
