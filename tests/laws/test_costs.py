"""What a step evaluates, and that it is done by forward mode alone."""

import jax
import jax.numpy as jnp
import pytest

from tests.laws import costs
from tests.laws.samplers import CASES, PAIR
from tests.laws.targets import LOOP

PAIRED = [name for name, case in CASES.items() if PAIR.items() <= case.arguments.items()]
FORWARD_ONLY = [name for name, case in CASES.items() if case.forward_only]
REVERSE_MODE = sorted(set(CASES) - set(FORWARD_ONLY))


@pytest.mark.parametrize("case", CASES)
def test_costs_what_it_says(case):
    costs.costs_what_it_says(case)


@pytest.mark.parametrize("case", PAIRED)
def test_tangents_share_the_primal(case):
    costs.shares_the_primal(case)


# the second order keeps twice as much of a layer; two evaluations must not keep twice as much again
@pytest.mark.first
@pytest.mark.parametrize(
    ("case", "limit"), [("fmala", 0.15), ("line", 0.15), ("pc_fmala", 0.25), ("pc_line", 0.25)]
)
def test_saves_memory(case, limit):
    costs.saves_memory(case, limit)


def test_reverse_mode_fails_on_the_loop():
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(LOOP.logdensity)(jnp.zeros(3))


@pytest.mark.first
@pytest.mark.parametrize("case", FORWARD_ONLY)
def test_samples_without_reverse_mode(case):
    costs.samples_without_reverse_mode(case)


@pytest.mark.parametrize("case", REVERSE_MODE)
def test_calls_reverse_mode(case):
    costs.calls_reverse_mode(case)
