"""Which tests are short: those of ``make test``. ``make test-rest`` runs the others.

They are chosen by rule, from what runs have recorded of each (`tests/recording.py`), of all tests
and then of the short ones alone, where a test pays for what it shared with those that are left out:

* Of each law its cheapest case, unless that takes more than nine seconds of the processor, and
  among those below half a second, and those that exact draws stay exact below four, as many as show
  every value of every parameter, those that show most a second first; every planted bug once.
* Every example of docstrings and pages.
* All tests that cost less than a quarter of a second.
* Of the others below eight tenths the cheapest that together run every line of the packages that
  any of them runs.
* The tests that find the planted bugs of `tests/test_rooms.py` where no cheap one does.
* Tests that are newer than the record.

Of these the first cases of laws that take more than six seconds in the second run are left out, and
what else takes more than eight tenths there, but for examples, planted bugs and those of the rooms.

But for the examples none is marked slow, and none is of the benchmarks: they measure, and nothing
that a user imports depends on them. ``left_out.txt`` names all that is left out. ``make selection``
records and chooses anew, with Python 3.12 or later.
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

__all__ = ["choose", "cover", "read", "short"]

LEFT_OUT = Path(__file__).parent / "left_out.txt"
# seconds of the processor
CHEAP, DEAR, LAW, FIRST_OF_LAW, OF_EXACTNESS = 0.25, 0.8, 0.5, 9.0, 4.0
FIRST_ALONE = 6.0
# of bugs of rooms
FINDERS = {
    "tests/laws/test_subsampled.py::test_acceptance_is_the_product_within_the_bounds_and_that_of_all_rows"
    "_beyond[scaled]",
    "tests/numpyro_fwd/bridge/test_log_terms.py::test_a_minibatch_is_scaled_to_all_rows",
    "tests/blackjax_ext/sgmcmc/test_acceptance.py::test_a_step_says_how_many_rows_its_test_has_read",
    "tests/numpyro_fwd/kernels/test_base.py::test_acceptance_is_averaged_over_the_draws",
    "tests/numpyro_fwd/test_compilation.py::test_programs_are_kept_in_the_directory",
    "tests/numpyro_fwd/test_densities.py::test_the_jacobian_is_that_of_the_density",
}


def short(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of `items` that are short."""
    left_out = set(LEFT_OUT.read_text().split("\n"))

    def is_left_out(item):
        file, name = item.nodeid.split("::")[0], name_of(item)
        is_known = not left_out.isdisjoint((item.nodeid, name, file))
        return not is_example(item) and (is_long(item) or is_known)

    return {item for item in items if not is_left_out(item)}


def choose(items: Sequence[pytest.Item], records: dict[str, dict[str, Any]]) -> None:
    """Write down which of all `items` are left out, by the records of their costs and lines."""
    seconds = {name: record["seconds"] for name, record in records.items()}
    able = [item for item in items if not is_long(item)]
    laws = [item for item in able if is_law(item)]

    def below(limit, items=able):
        return [item for item in items if seconds.get(item.nodeid, 0.0) < limit]

    kept = {item.nodeid for item in items if is_example(item)}
    kept |= {item.nodeid for item in able} - records.keys()
    kept |= FINDERS | shown([item for item in laws if is_planted(item)], seconds)
    always = set(kept)
    kept |= shown(below(LAW, laws), seconds)
    kept |= shown(below(OF_EXACTNESS, filter(is_of_exactness, laws)), seconds)
    kept |= (first := once(below(FIRST_OF_LAW, laws), seconds))
    known = {item.nodeid: records[item.nodeid] for item in below(DEAR) if item.nodeid in records}
    kept |= {name for name, record in known.items() if record["seconds"] < CHEAP}
    kept |= cheapest(known, kept & records.keys(), records)
    alone = {name: record.get("alone", 0.0) for name, record in records.items()}
    dear = {name for name in kept & alone.keys() if alone[name] > DEAR}
    kept -= dear - always - {name for name in first if alone.get(name, 0.0) < FIRST_ALONE}
    LEFT_OUT.write_text("\n".join(abridged([item.nodeid for item in items], kept)) + "\n")
    total = sum(alone[name] or seconds[name] for name in kept & seconds.keys())
    print(f"{len(kept)} tests are short, of {len(items)}: {total / 60:.1f} processor minutes.")


def once(items: Iterable[pytest.Item], seconds: dict[str, float]) -> set[str]:
    """Of each test its cheapest case."""
    cases = defaultdict(list)
    for item in items:
        cases[name_of(item)].append(item.nodeid)
    return {min(names, key=lambda name: seconds.get(name, 0.0)) for names in cases.values()}


def shown(items: Iterable[pytest.Item], seconds: dict[str, float]) -> set[str]:
    """Of tests of a file that share their parameters, cases that show all."""
    families = defaultdict(list)
    for item in items:
        families[family_of(item)].append(item)
    found = set()
    for cases in families.values():
        names = [item.nodeid for item in cases]
        costs = [max(seconds.get(name, 0.0), CHEAP) for name in names]
        found |= {names[i] for i in cover([values(item) for item in cases], costs)}
    return found


def cheapest(
    known: dict[str, dict[str, Any]], kept: set[str], records: dict[str, dict[str, Any]]
) -> set[str]:
    """Names of tests that run what no test of `kept` does, those with most lines a second first."""
    lines = {name: set(record["lines"]) for name, record in known.items()}
    seen = set().union(*(records[name]["lines"] for name in kept))
    unseen = set().union(*lines.values()) - seen
    chosen = set()
    while unseen:
        lines = {name: new & unseen for name, new in lines.items() if new & unseen}
        best = max(lines, key=lambda name: len(lines[name]) / known[name]["seconds"])
        chosen.add(best)
        unseen -= lines[best]
    return chosen


def abridged(names: list[str], kept: set[str]) -> list[str]:
    """Names that are not kept: of files and functions where no case is."""
    found = []
    for file, of_file in groupby(sorted(names), lambda name: name.split("::")[0]):
        in_file = list(of_file)
        if kept.isdisjoint(in_file):
            found.append(file)
            continue
        for function, group in groupby(in_file, lambda name: name.split("[")[0]):
            cases = list(group)
            is_whole = kept.isdisjoint(cases)
            found += [function] if is_whole else [name for name in cases if name not in kept]
    return found


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of runs by the names of tests, with what the short ones cost "alone"."""
    texts = [path.read_text() for path in sorted(folder.glob("*.jsonl"))]
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    found = {record["test"]: record for record in records if not record.get("short")}
    for record in records:
        if record.get("short"):
            found.setdefault(record["test"], record)["alone"] = record["seconds"]
    return found


def is_law(item: pytest.Item) -> bool:
    """Whether a test is a law, or plants a bug."""
    return item.nodeid.startswith("tests/laws/") or is_planted(item)


def is_of_exactness(item: pytest.Item) -> bool:
    """Whether a test is the law of a sampler, that exact draws stay exact."""
    return name_of(item).endswith("test_invariance.py::test_exact_starts_stay_exact")


def is_planted(item: pytest.Item) -> bool:
    """Whether a test plants bugs."""
    return "planted" in name_of(item)


def name_of(item: pytest.Item) -> str:
    """The name of a test without those of its parameters."""
    return item.nodeid.split("[")[0]


def family_of(item: pytest.Item) -> Hashable:
    """What the tests have in common of which some are chosen."""
    names = tuple(values(item))[1:]
    return (item.nodeid.split("::")[0], names) if names else item.nodeid


def is_example(item: pytest.Item) -> bool:
    """Whether a test runs what documents show."""
    endings = "in_docstrings", "example_of_a_kernel_runs", "examples_of_the_readme_run"
    return "test_docs_pages" in item.nodeid or name_of(item).endswith(endings)


def is_long(item: pytest.Item) -> bool:
    """Whether a test is slow, at full size, or of the benchmarks."""
    marks = [item.get_closest_marker(name) for name in ("slow", "full")]
    return any(marks) or item.nodeid.startswith("tests/benchmarks/")


def values(item: pytest.Item) -> dict[str, Hashable]:
    """The name of a test and the values of its parameters, by their names."""
    call = getattr(item, "callspec", None)
    given = {} if call is None else call.params
    return {"test": name_of(item)} | {name: key_of(value) for name, value in given.items()}


def key_of(value: object) -> Hashable:
    """What tells a value of a parameter from others."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def cover(cases: Sequence[dict[str, Hashable]], costs: Sequence[float]) -> list[int]:
    """Places of cases that show each value of each parameter, those with most new a second first.

    Examples
    --------
    >>> cases = [{"kernel": k, "metric": m} for k in "abc" for m in (1, 2)]
    >>> [tuple(cases[i].values()) for i in cover(cases, [1, 1, 1, 1, 9, 1])]
    [('a', 1), ('b', 2), ('c', 2)]
    """
    unseen = [set(case.items()) for case in cases]
    chosen = []
    while any(unseen):
        best = max(range(len(cases)), key=lambda i: len(unseen[i]) / costs[i])
        chosen.append(best)
        seen = set(cases[best].items())
        unseen = [left - seen for left in unseen]
    return sorted(chosen)
