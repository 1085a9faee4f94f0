"""Sweeps over rows in groups are exact, and planted bugs are found."""

import math

import jax.numpy as jnp
import pytest

from blackjax_ext.subsampling import (
    expansion,
    group_sweeps,
    remainders,
    row_tests,
    thinning,
)
from tests.laws import groups, laws
from tests.laws.groups import CASES

FULL_ONLY = pytest.mark.full


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """A handful of rows in a round: time is cut into pieces, and chains do not wait for others."""
    monkeypatch.setattr(thinning, "GROUP_LANES", 16)
    monkeypatch.setattr(thinning, "GROUP_PIECE", 11.0)
    monkeypatch.setattr(thinning, "MAX_ROWS_EVALUATED", 2)
    monkeypatch.setattr(remainders, "ROW_CHUNK", 16)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize("name", ["third order, events", "mixed", "events", "whole", "third order"])
def test_exact_starts_stay_exact(name, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES[name].max_passes)
    laws.power(groups.invariance(CASES[name]))


@pytest.mark.first
@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize("name", ["mixed", "third order"])
def test_exact_starts_stay_exact_where_rows_are_a_stage_of_their_own(name, monkeypatch):
    """As those of groups of many rows are."""
    monkeypatch.setattr(group_sweeps, "FEW_ROWS", 0)
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES[name].max_passes)
    laws.power(groups.invariance(CASES[name]))


@pytest.mark.first
@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "width"), [(n, 1 + 2 * (i % 2)) for i, n in enumerate(groups.TAILS)]
)
def test_tails_of_groups_are_visited(name, width):
    groups.tails_are_visited(name, width)


@pytest.mark.statistical
@FULL_ONLY
@pytest.mark.parametrize("name", CASES)
def test_exact_starts_stay_exact_in_the_long_run(name, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES[name].max_passes)
    laws.power(groups.invariance(CASES[name], laws.LONG))


@pytest.mark.first
@pytest.mark.parametrize(
    ("order", "is_joint", "max_passes"),
    [(2, False, math.inf), (3, True, math.inf), (2, True, 1.5), (3, False, 1.5)],
)
def test_rows_decide_by_their_factors(order, is_joint, max_passes, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", max_passes)
    groups.rows_decide_by_factors(order, is_joint=is_joint)


@pytest.mark.parametrize("order", [2, 3])
def test_energy_is_kept(order):
    groups.energy_is_kept(order)


@pytest.mark.parametrize("order", [2, 3])
def test_expected_rows_are_those_that_are_read(order, monkeypatch):
    monkeypatch.setattr(remainders, "MAX_PASSES", 2.0)
    groups.expected_rows_are_those_that_are_read(order)


@pytest.mark.parametrize("order", [2, 3])
def test_changes_stay_below_their_bounds(order, x64):
    groups.changes_stay_below_their_bounds(order)


TRUE_REACHES, TRUE_CHANGES = row_tests.reaches_of, row_tests.changes_of
TRUE_THIN, TRUE_SOLVED = row_tests.thin, group_sweeps.solved
TRUE_PROPOSED = group_sweeps.proposed
TRUE_LIKELY = thinning.first_likely
TRUE_DRAW, TRUE_MOST, TRUE_TABLES = (
    thinning.draw_event_rows,
    thinning.change_bounds,
    expansion.tables_of,
)


def rows_of_another_group(words, expanded, rates):
    """Each group reads the rows of the next."""
    drawn = TRUE_DRAW(words, expanded, rates)
    return drawn._replace(at=(drawn.at + 9) % expanded.num_rows)


def tables_too_small(psi, *arguments):
    """Bounds are far too small: of all rows together they are loose."""
    psi *= 0.001
    return TRUE_TABLES(psi, *arguments)


def likely_vetoes_missed(expanded, found, at):
    """What settles most events is too small."""
    return 0.02 * TRUE_MOST(expanded, found, at)


def up_to_the_next_likely(times, is_likely):
    """Time goes on from the last event before a likely one that is left, which is drawn anew."""
    place, is_event, _ = TRUE_LIKELY(times, is_likely)
    is_done = jnp.cumsum(is_likely) <= thinning.MAX_ROWS_EVALUATED
    return place, is_event, times[jnp.sum(is_done) - 1]


def reaches_of_the_new_end(expanded, ends):
    """Which groups are read whole depends on the direction of a move."""
    return TRUE_REACHES(expanded, ends)._replace(is_far=ends.new > ends.old)


def changes_forgotten(*arguments):
    """Groups that are read whole have no say."""
    sums, num_rows = TRUE_CHANGES(*arguments)
    return 0.0 * sums, num_rows


def thin_without_a_veto(*arguments, **options):
    """Events are counted and do nothing."""
    events = TRUE_THIN(*arguments, **options)
    return events._replace(is_ended=jnp.zeros_like(events.is_ended))


def proposal_is_its_own_way_back(factor, x, *, is_transposed=False):
    """The factor of a proposal is not that of its density."""
    return TRUE_SOLVED(0.8 * factor if is_transposed else factor, x, is_transposed=is_transposed)


def proposed_by_a_normal(rng_key, z):
    """Heavy tails are taken for those of a normal."""
    found = TRUE_PROPOSED(rng_key, z)
    return found._replace(log_ratio=0.5 * (group_sweeps.squares(found.z) - group_sweeps.squares(z)))


def proposed_at_one_scale(rng_key, z):
    """The scale of a heavy move does not follow from where it begins."""
    from_there = TRUE_PROPOSED(rng_key, jnp.zeros_like(z))
    found = TRUE_PROPOSED(rng_key, z)
    return found._replace(z=jnp.where(found.is_heavy[:, None], z + from_there.z, found.z))


# the module where a bug is planted, its name there, and the bug
OF_ROWS = {
    "another_group": (thinning, "draw_event_rows", rows_of_another_group),
    "bound_too_small": (expansion, "tables_of", tables_too_small),
    "likely_vetoes_missed": (thinning, "change_bounds", likely_vetoes_missed),
    "changes_forgotten": (row_tests, "changes_of", changes_forgotten),
    "up_to_the_next": (thinning, "first_likely", up_to_the_next_likely),
    "one_sided_far": (row_tests, "reaches_of", reaches_of_the_new_end),
    "no_veto": (row_tests, "thin", thin_without_a_veto),
}
OF_SWEEPS = {
    "wrong_proposal": (group_sweeps, "solved", proposal_is_its_own_way_back),
    "tails_of_a_normal": (group_sweeps, "proposed", proposed_by_a_normal),
    "one_scale": (group_sweeps, "proposed", proposed_at_one_scale),
}


@pytest.mark.parametrize(("name", "order"), [(name, 2 + i % 2) for i, name in enumerate(OF_ROWS)])
def test_planted_bug_of_the_rows_is_found(name, order, monkeypatch):
    module, attribute, bug = OF_ROWS[name]
    is_far = name in ("changes_forgotten", "one_sided_far")
    monkeypatch.setattr(remainders, "MAX_PASSES", 1.5 if is_far else math.inf)
    monkeypatch.setattr(module, attribute, bug)
    with pytest.raises(AssertionError):
        groups.rows_decide_by_factors(order, is_joint=False)


@pytest.mark.parametrize("name", OF_SWEEPS)
def test_planted_bug_of_the_sweep_breaks_invariance(name, monkeypatch):
    module, attribute, bug = OF_SWEEPS[name]
    monkeypatch.setattr(remainders, "MAX_PASSES", CASES["whole"].max_passes)
    monkeypatch.setattr(module, attribute, bug)
    with pytest.raises(AssertionError, match="invariance"):
        groups.invariance(CASES["whole"])


def reach_of_a_shorter_way(expanded, ends):
    """A twentieth of it: bounds over the whole box are that loose."""
    reaches = TRUE_REACHES(expanded, ends)
    return reaches._replace(reach=0.05 * reaches.reach)


def test_planted_bug_misses_tails(monkeypatch):
    monkeypatch.setattr(group_sweeps, "HEAVY_SHARE", 0.0)
    with pytest.raises(AssertionError, match="tail"):
        groups.tails_are_visited("t", 1)


BOUNDS = {
    "reaches_of": (row_tests, reach_of_a_shorter_way),
    "change_bounds": (remainders, lambda *known: 0.1 * TRUE_MOST(*known)),
}


@pytest.mark.parametrize(("name", "order"), [(name, 2 + i % 2) for i, name in enumerate(BOUNDS)])
def test_planted_bug_of_the_bounds_is_found(name, order, x64, monkeypatch):
    module, bug = BOUNDS[name]
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(AssertionError, match="bound"):
        groups.changes_stay_below_their_bounds(order)
