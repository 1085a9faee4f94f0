"""What jax asks of a sampler: batching, compilation, dtypes, keys, bad numbers, resuming."""

import pytest

from tests.laws import jax_contracts
from tests.laws.samplers import CASES

# the preconditioner changes none of these, nor does the choice among metrics of one kind
VARIANTS = {"smmala_softabs", "smmala_diagonal", "hp_mala", "mmala_fisher", "alsmmala_diagonal"}
PLAIN = [name for name, case in CASES.items() if not case.dense and name not in VARIANTS]
every_case = pytest.mark.parametrize("case", PLAIN)


@pytest.mark.long
@every_case
def test_vmap_is_loop(case, x64):
    jax_contracts.vmap_is_loop(case)


@pytest.mark.first
@every_case
def test_compiles_once(case, dtype):
    jax_contracts.compiles_once(case, dtype)


@pytest.mark.first
@every_case
def test_keeps_dtype(case, dtype):
    jax_contracts.keeps_dtype(case, dtype)


@pytest.mark.long
@every_case
def test_uses_keys_once(case):
    jax_contracts.uses_keys_once(case)


@pytest.mark.first
@every_case
def test_rejects_a_density_that_turns_nan(case):
    jax_contracts.rejects_nan(case, is_nan_at_start=False)


@pytest.mark.first
@every_case
def test_stays_at_a_nan_start(case):
    jax_contracts.rejects_nan(case, is_nan_at_start=True)


@pytest.mark.first
@every_case
def test_escapes_from_minus_infinity(case):
    jax_contracts.escapes(case)


@pytest.mark.first
@every_case
def test_resumes_bit_for_bit(case):
    jax_contracts.resumes(case)


@pytest.mark.long
@every_case
def test_takes_any_pytree(case, x64):
    jax_contracts.takes_any_pytree(case)
