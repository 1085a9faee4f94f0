"""docs/kernels.md recommends no kernel for a class of posteriors where two others are ahead."""

import re
import sys

import numpy as np
import pytest

from tests import pages

sys.path.insert(0, str(pages.DOCS / "_ext"))

import measured

PAGE = (pages.DOCS / "kernels.md").read_text(encoding="utf-8")
USE = re.compile(r"^\| \[?`([^|]*?)`[^|]*\|[^|]*\| (.*) \|$", re.MULTILINE)
# what is said of a kernel that is not recommended
COMPARED = ("for comparison", "approximate")
CURVED = ("schools_centred", "funnel", "banana", "horseshoe", "radon", "baseball")
SMOOTH = ("kidscore", "robust", "linear", "gp", "trees", "breast_cancer", "hidden_markov")
FORWARD = ("RandomWalk", "FMALA", "LineFMALA", "PCFMALA", "PCLineFMALA")  # without reverse mode
CLASSES = {
    "AutoNUTS": (CURVED, None),
    "AutoMALA": (CURVED, None),
    "MALA": (SMOOTH, None),
    "RandomWalk": (SMOOTH, FORWARD),
    "FMALA": (SMOOTH, FORWARD),
}
# whose rivals are not on the leaderboard
ELSEWHERE = {"AMAGOLD", 'AMAGOLD(..., acceptance="subsampled")', "Emulated", "LangevinSMC"}


def yields(posterior):
    """Effective draws per evaluation of each sampler, none where chains do not agree."""
    table = measured.section_of("leaderboard", posterior)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return {
        row["sampler"]: row["ESS"] / row["evaluations"] * (row["R-hat"] <= 1.01) for row in rows
    }


def ahead_of(kernel, tables):
    """What agrees on as many posteriors, and has more effective draws in the median."""
    names = set.intersection(*map(set, tables))
    found = {name: np.array([table[name] for table in tables]) for name in names}

    def is_ahead(name):
        agrees, needed = (np.sum(found[each] > 0) for each in (name, kernel))
        return agrees >= needed and np.median(found[name]) > np.median(found[kernel])

    return {name for name in names if is_ahead(name)}


def recommended():
    """Kernels of the first table of docs/kernels.md, without those that are compared only."""
    table = PAGE.split("| kernel |")[1].split("\n\n")[0]
    rows = USE.findall(table)
    assert len(rows) == table.count("\n") - 1, rows
    return {name for name, use in rows if not any(word in use for word in COMPARED)}


def test_every_recommendation_has_a_table():
    assert recommended() == CLASSES.keys() | ELSEWHERE


@pytest.mark.parametrize("kernel", CLASSES)
def test_at_most_one_other_is_ahead(kernel):
    posteriors, rivals = CLASSES[kernel]
    tables = [yields(each) for each in posteriors]
    if rivals:
        tables = [{name: table[name] for name in rivals} for table in tables]
    assert len(ahead_of(kernel, tables)) <= 1, ahead_of(kernel, tables)


def test_a_recommendation_of_the_worst_fails():
    tables = [yields(each) for each in SMOOTH]
    assert {"MALA", "AutoMALA", "AutoNUTS"} <= ahead_of("NUTS", tables)
    assert len(ahead_of("PCLineFMALA", [yields(each) for each in CURVED])) > 1
