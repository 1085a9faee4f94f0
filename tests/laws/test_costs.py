"""What a step evaluates, and that it is done by forward mode alone."""

import jax
import jax.numpy as jnp
import pytest

from tests.laws import costs
from tests.laws.samplers import PAIR, ROWS
from tests.laws.targets import LOOP

PAIRED = [name for name, row in ROWS.items() if PAIR.items() <= row.arguments.items()]
FORWARD_ONLY = [name for name, row in ROWS.items() if row.forward_only]
REVERSE_MODE = sorted(set(ROWS) - set(FORWARD_ONLY))


@pytest.mark.parametrize("row", ROWS)
def test_costs_what_it_says(row):
    costs.costs_what_it_says(row)


@pytest.mark.parametrize("row", PAIRED)
def test_tangents_share_the_primal(row):
    costs.shares_the_primal(row)


def test_reverse_mode_fails_on_the_loop():
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(LOOP.logdensity)(jnp.zeros(3))


@pytest.mark.parametrize("row", FORWARD_ONLY)
def test_samples_without_reverse_mode(row):
    costs.samples_without_reverse_mode(row)


@pytest.mark.parametrize("row", REVERSE_MODE)
def test_calls_reverse_mode(row):
    costs.calls_reverse_mode(row)
