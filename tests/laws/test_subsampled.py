"""The subsampled acceptance test is exact, and planted bugs are found."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.subsampling import (
    expansion,
    passes,
    remainders,
    row_bounds,
    row_tests,
    thinning,
)
from tests.laws import laws, subsampled
from tests.laws.subsampled import CASES


@pytest.fixture(autouse=True)
def no_full_pass(monkeypatch):
    """Only events decide, however many there are, unless a test says otherwise."""
    monkeypatch.setattr(remainders, "MAX_PASSES", math.inf)


FULL_ONLY = pytest.mark.full


@pytest.mark.first
@pytest.mark.statistical
@pytest.mark.parametrize(
    "name",
    [
        "minibatches",
        "expansion_alone",
        "counted",
        "scaled",
        pytest.param("varied", marks=FULL_ONLY),
        pytest.param("both_branches", marks=FULL_ONLY),
    ],
)
def test_exact_starts_stay_exact(name, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES[name].max_passes)
    laws.power(subsampled.invariance(CASES[name], FEWER.get(name, subsampled.SIZE)))


# densities that are read by their program, which is dear
FEWER = {"varied": laws.Size(2_000, 6)}
FEWER_IN_FULL = {"varied": laws.LONG}


@pytest.mark.statistical
@FULL_ONLY
@pytest.mark.parametrize("name", CASES)
def test_exact_starts_stay_exact_in_the_long_run(name, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES[name].max_passes)
    laws.power(subsampled.invariance(CASES[name], FEWER_IN_FULL.get(name, laws.FULL)))


@pytest.mark.long
def test_acceptance_by_weights_is_that_of_their_law():
    subsampled.acceptance_by_weights()


@pytest.mark.long
def test_acceptance_by_weights_over_many_pieces(monkeypatch):
    monkeypatch.setattr(thinning, "PIECE", 2.0)
    monkeypatch.setattr(thinning, "LANES", 2)
    subsampled.acceptance_by_weights()


@pytest.mark.long
def test_rows_are_read_only_where_the_first_stage_accepts():
    expanded = subsampled.expansion()
    old, new = (jnp.asarray(x, jnp.float32) for x in subsampled.PAIRS[2][:2])
    energy = row_tests.surrogate(expanded, old)

    def read(rho):
        keys = jax.random.split(jax.random.key(3), 50)
        test = lambda key: row_tests.thinning_test(key, expanded, old, energy, new, rho)  # noqa: E731
        return jax.vmap(test)(keys).num_rows

    assert np.all(read(-1e4) == 0) and np.any(read(1e4) > 0)


def test_rate_tells_more_than_the_verdict():
    expanded = subsampled.expansion()
    old, new = (jnp.asarray(x, jnp.float32) for x in subsampled.PAIRS[2][:2])
    energy = row_tests.surrogate(expanded, old)
    decide = row_tests.thinning_test
    # the first stage accepts
    test = jax.jit(jax.vmap(lambda key: decide(key, expanded, old, energy, new, 1e4)))
    found = test(jax.random.split(jax.random.key(3), 1_000))
    assert found.num_rows.mean() > 3
    assert found.acceptance_rate.std() < 0.5 * found.is_accepted.std()


@pytest.mark.long
def test_tight_bound_is_enough():
    subsampled.tight_bound_is_enough()


@pytest.mark.first
@pytest.mark.parametrize("name", ["scaled", "counted"])
def test_acceptance_is_by_weights_within_the_bounds_and_that_of_all_rows_beyond(name):
    subsampled.acceptance_is_local(name)


@pytest.mark.first
@pytest.mark.parametrize("name", ["counted", "scaled", "varied"])
def test_bounds_hold_up_to_the_radius(name):
    subsampled.bounds_hold_up_to_the_radius(name)


@pytest.mark.long
def test_energy_is_kept_in_float32():
    subsampled.energy_is_kept()


def test_far_moves_read_all_rows(monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", 1e-9)
    expanded = subsampled.expansion()
    decide = jax.jit(lambda *arguments: row_tests.thinning_test(*arguments))
    for pair in subsampled.PAIRS:
        old, new = (jnp.asarray(x, jnp.float32) for x in (pair.old, pair.new))
        energy = row_tests.surrogate(expanded, old)
        found = decide(jax.random.key(0), expanded, old, energy, new, pair.rho)
        log_ratio = subsampled.logdensity(new) - subsampled.logdensity(old) + pair.rho
        assert found.num_rows == subsampled.NUM_ROWS
        np.testing.assert_allclose(found.acceptance_rate, min(1, math.exp(log_ratio)), rtol=1e-4)


@pytest.mark.long
def test_vmap_is_loop(x64):
    expanded = subsampled.expansion(jnp.float64)
    old, new = (jnp.asarray(x) for x in subsampled.PAIRS[0][:2])
    energy = row_tests.surrogate(expanded, old)

    def one(key):
        return row_tests.thinning_test(key, expanded, old, energy, new, 0.7)

    keys = jax.random.split(jax.random.key(1), 20)
    together, alone = jax.jit(jax.vmap(one))(keys), jax.jit(one)
    for i, key in enumerate(keys):
        for a, b in zip(jax.tree.map(lambda x, i=i: x[i], together), alone(key), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_nothing_finite_is_needed_to_reject():
    expanded = subsampled.expansion()
    old, new = jnp.zeros(3), jnp.array([jnp.nan, 0.0, 0.0])
    energy = row_tests.surrogate(expanded, old)
    decide = jax.jit(lambda *arguments: row_tests.thinning_test(*arguments))
    found = decide(jax.random.key(0), expanded, old, energy, new, 1.0)
    assert found.is_divergent and not found.is_accepted and found.num_rows == 0
    huge = jnp.full(3, 1e30)
    found = decide(jax.random.key(0), expanded, old, energy, huge, 1.0)
    assert not found.is_accepted


TRUE_THIN, TRUE_SURROGATE, TRUE_REMAINDER = (
    row_tests.thin,
    row_tests.surrogate,
    remainders.loss_remainder,
)
TRUE_WEIGH = thinning.weigh_events
TRUE_TABLE, TRUE_CHANGE = expansion.table_of, remainders.change_of_all
TRUE_REACHES, TRUE_SIZES = row_tests.reaches_of, row_bounds.scaled_and_sizes


def thin_with_a_cap(key, expanded, steps, reaches, *arguments, **options):
    """No more than about four events."""
    capped = replace(expanded, totals=jnp.minimum(expanded.totals, 4.0 / reaches.reach))
    return TRUE_THIN(key, capped, steps, reaches, *arguments, **options)


def thin_without_a_weight(*arguments, **options):
    """Events are counted and weigh nothing."""
    events = TRUE_THIN(*arguments, **options)
    return events._replace(value=jnp.zeros_like(events.value))


def weigh_all_events(events, seen, is_joint):
    """Events are weighed as if all of the rates c counted."""
    return TRUE_WEIGH(events, seen._replace(uniform=jnp.zeros_like(seen.uniform)), is_joint)


def weigh_losses_alone(events, seen, is_joint):
    """Rows whose energy falls are left out."""
    return TRUE_WEIGH(events, seen._replace(change=jnp.maximum(seen.change, 0.0)), is_joint)


def weigh_the_last_round(events, seen, is_joint):
    """What rounds before have said is forgotten."""
    return TRUE_WEIGH(events._replace(value=jnp.zeros_like(events.value)), seen, is_joint)


def table_with_bounds_too_small(psi, margin):
    """A tenth is missing from every bound."""
    psi *= 0.9
    return TRUE_TABLE(psi, margin)


def table_of_uniform_rows(psi, margin):
    """Rows are drawn uniformly against bounds that are not uniform."""
    total, _ = TRUE_TABLE(psi, margin)
    return total, TRUE_TABLE(np.ones_like(psi), margin)[1]


def surrogate_without_prior(expanded, x):
    """The prior is left out."""
    return TRUE_SURROGATE(expanded, x) + expanded.posterior.logprior(x)


def remainder_of_order_one(posterior, order, eta, t, row):
    """What the rows weigh is not what the expansion leaves."""
    return TRUE_REMAINDER(posterior, 1, eta, t, row)


def reach_of_the_new_end(expanded, ends):
    """The bound forgets where the move began."""
    reach = ends.new ** (0.5 * (expanded.order + 1))
    return TRUE_REACHES(expanded, ends)._replace(reach=reach)


def near_everywhere(expanded, ends):
    """The radius is ignored."""
    return TRUE_REACHES(replace(expanded, radius=jnp.inf), ends)


def near_if_the_new_end_is(expanded, ends):
    """Which rule holds depends on the direction of a move."""
    return TRUE_REACHES(expanded, ends._replace(old=ends.new))


def sizes_of_a_small_box(kind, order, radius, *arguments):
    """The box over which derivatives are bounded is a tenth too small."""
    return TRUE_SIZES(kind, order, 0.9 * radius, *arguments)


# the module where a bug is planted, its name there, the bug, and the law that must notice
MUTATIONS = {
    "cap_on_the_count": (row_tests, "thin", thin_with_a_cap, "weights"),
    "bound_too_small": (expansion, "table_of", table_with_bounds_too_small, "bound"),
    "uniform_rows": (expansion, "table_of", table_of_uniform_rows, "weights of many"),
    "prior_left_out": (row_tests, "surrogate", surrogate_without_prior, "weights"),
    "wrong_order": (remainders, "loss_remainder", remainder_of_order_one, "weights"),
    "one_sided_bound": (row_tests, "reaches_of", reach_of_the_new_end, "weights"),
    "radius_ignored": (row_tests, "reaches_of", near_everywhere, "local"),
    "one_sided_radius": (row_tests, "reaches_of", near_if_the_new_end_is, "local"),
    "box_too_small": (row_bounds, "scaled_and_sizes", sizes_of_a_small_box, "radius"),
}
LAWS = {
    "weights": partial(subsampled.acceptance_by_weights, 4_000),
    "weights of many": partial(subsampled.acceptance_by_weights, 80_000),
    "bound": subsampled.tight_bound_is_enough,
    "local": partial(subsampled.acceptance_is_local, "counted", 400),
    "radius": partial(subsampled.bounds_hold_up_to_the_radius, "counted"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=FULL_ONLY if name == "one_sided_bound" else ())
        for name in MUTATIONS
    ],
)
def test_planted_bug_is_found(name, monkeypatch):
    module, attribute, bug, law = MUTATIONS[name]
    monkeypatch.setattr(module, attribute, bug)
    with pytest.raises(AssertionError, match=law.split()[0]):
        LAWS[law]()


@pytest.mark.parametrize("bug", [weigh_all_events, weigh_losses_alone, weigh_the_last_round])
def test_planted_bug_of_the_weights_is_found(bug, monkeypatch):
    monkeypatch.setattr(thinning, "LANES", 4)
    monkeypatch.setattr(row_tests, "WEIGHTS", thinning.EventRule(0.0, bug))
    with pytest.raises(AssertionError, match="weights"):
        subsampled.acceptance_by_weights()


def test_planted_bug_of_the_weights_breaks_invariance(monkeypatch):
    monkeypatch.setattr(row_tests, "thin", thin_without_a_weight)
    with pytest.raises(AssertionError, match="invariance"):
        subsampled.invariance(CASES["counted"])


def test_data_are_arguments_of_a_program():
    expanded = subsampled.expansion()
    old = jnp.zeros(3)
    program = jax.make_jaxpr(row_tests.thinning_test)(
        jax.random.key(0), expanded, old, jnp.zeros(()), old + 0.1, 0.0
    )
    shapes = {jnp.shape(const) for const in program.consts}
    assert not any(subsampled.NUM_ROWS in shape for shape in shapes)
    assert passes.MAX_CHUNK >= subsampled.NUM_ROWS
