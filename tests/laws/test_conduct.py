"""Laws of conduct under jax: batching, compilation, dtypes, keys, bad numbers, resuming."""

import pytest

from tests.laws import conduct
from tests.laws.samplers import ROWS

# the preconditioner changes none of these, nor does the choice among metrics of one kind
VARIANTS = {"smmala_softabs", "smmala_diagonal", "hp_mala", "mmala_fisher", "alsmmala_diagonal"}
PLAIN = [name for name, row in ROWS.items() if not row.dense and name not in VARIANTS]
every_row = pytest.mark.parametrize("row", PLAIN)


@every_row
def test_vmap_is_loop(row, x64):
    conduct.vmap_is_loop(row)


@every_row
def test_compiles_once(row, dtype):
    conduct.compiles_once(row, dtype)


@every_row
def test_keeps_dtype(row, dtype):
    conduct.keeps_dtype(row, dtype)


@every_row
def test_uses_keys_once(row):
    conduct.uses_keys_once(row)


@every_row
def test_rejects_a_density_that_turns_nan(row):
    conduct.rejects_nan(row, is_nan_at_start=False)


@every_row
def test_stays_at_a_nan_start(row):
    conduct.rejects_nan(row, is_nan_at_start=True)


@every_row
def test_escapes_from_minus_infinity(row):
    conduct.escapes(row)


@every_row
def test_resumes_bit_for_bit(row):
    conduct.resumes(row)


@every_row
def test_takes_any_pytree(row, x64):
    conduct.takes_any_pytree(row)
