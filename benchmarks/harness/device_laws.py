"""Every kernel on a device, from draws of the posterior itself: where do chains go from there?

The cases are those of tests/laws, whose targets have exact draws and independent uniforms. Steps of
many chains at once, in single precision and with the device's products of matrices.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from tests.laws import groups, laws, minibatch, samplers, smc, subsampled, targets

__all__ = ["LEVEL", "Law", "chosen_laws"]

LEVEL = laws.LEVEL
STEPS = 8
# a kernel each, once with a matrix as its metric where it takes one
OF_DENSITIES = (
    "mala_dense",
    "fmala_dense",
    "auto_mala_dense",
    "smmala_dense",
    "random_walk_dense",
    "line_dense",
    "pc_fmala_dense",
    "pc_line_dense",
    "hp_mala",
    "mmala",
    "alsmmala",
    "amsmmala",
)
OF_MINIBATCHES = ("second_order", "fresh_dense")
SUBSAMPLED = ("weights", "counted")


class Law(NamedTuple):
    """A law of one kernel: its name, and the acceptance, share that moved, p-value and z-score."""

    name: str
    find: Callable[[], list[float]]


def facts(outcome: laws.Outcome) -> list[float]:
    """Acceptance, share of chains that moved, smallest p-value, and largest z-score of a change.

    The p-value is of the ends' distribution; the z-score of means and squares that must not change.
    """
    if np.isnan(outcome.end).any():
        return [outcome.acceptance, outcome.moved, 0.0, np.inf]
    changed = laws.changes(outcome.start, outcome.end)
    smallest = min(*laws.uniformity(outcome.end), *changed)
    score = scipy.stats.norm.isf(min(changed) / 2.0)
    return [outcome.acceptance, outcome.moved, float(smallest), float(score)]


def of_density(case: str, target: str, num_chains: int) -> list[float]:
    """A kernel on a log density."""
    share = samplers.CASES[case].share
    return facts(laws.simulate(case, target, laws.Size(round(num_chains / share), STEPS)))


def of_table(simulate: Callable, case: Any, num_chains: int) -> list[float]:
    """A kernel of another table."""
    return facts(simulate(case, laws.Size(num_chains, STEPS)))


def of_particles(name: str, num_runs: int) -> list[float]:
    """Evidence and moments of LangevinSMC, eight particles a run."""
    outcome = smc.simulate(name, num_runs)
    deviation = outcome.errors.std(0) / np.sqrt(len(outcome.errors))
    score = float(np.max(np.abs(outcome.errors.mean(0) / deviation)))
    p = 2.0 * scipy.stats.norm.sf(score) * len(deviation)
    return [outcome.acceptance, 1.0, float(min(p, 1.0)), score]


def chosen_laws(num_chains: int, *, is_quick: bool) -> list[Law]:
    """The laws in the order of what is asked first; a few if quick."""
    target = targets.LOG_GAMMA.name
    found = [
        Law(f"{case}, {target}", partial(of_density, case, target, num_chains))
        for case in (OF_DENSITIES[:2] if is_quick else OF_DENSITIES)
    ]
    if is_quick:
        return found
    tables = (
        ("amagold, subsampled", minibatch.simulate, subsampled.CASES, SUBSAMPLED),
        ("group_sweeps", groups.simulate, groups.CASES, ("mixed",)),
        ("amagold, full", minibatch.simulate, minibatch.CASES, OF_MINIBATCHES),
        ("l2mc", minibatch.simulate, minibatch.CASES, ("l2mc",)),
    )
    for kernel, simulate, cases, names in tables:
        found += [
            Law(f"{kernel}: {name}", partial(of_table, simulate, cases[name], num_chains))
            for name in names
        ]
    found.append(Law("langevin_smc", partial(of_particles, "langevin_dense", num_chains)))
    normal = targets.NORMAL.name
    return found + [
        Law(f"{case}, {normal}", partial(of_density, case, normal, num_chains))
        for case in ("mala_dense", "smmala_dense", "fmala_dense")
    ]
