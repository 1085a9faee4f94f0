"""Which tests are short: those of ``make test``. ``make test-all`` runs the others too.

Chosen by rule:

* Of the tests of a file that share their parameters, as many cases as show every test and every
  value of every parameter; of planted bugs all.
* None that is marked slow: it takes more than about twenty seconds.
* None of the benchmarks: they measure, and nothing that a user imports depends on them.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

__all__ = ["cover", "short"]


def short(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of `items` that are short."""
    found = set()
    families = defaultdict(list)
    for item in items:
        if not is_long(item):
            families[family_of(item)].append(item)
    for cases in families.values():
        found |= {cases[i] for i in cover([values(item) for item in cases])}
    return found


def name_of(item: pytest.Item) -> str:
    """The name of a test without those of its parameters."""
    return item.nodeid.split("[")[0]


def family_of(item: pytest.Item) -> Hashable:
    """What the tests have in common of which some are chosen."""
    names = tuple(values(item))[1:]
    is_alone = not names or "planted" in name_of(item)
    return item.nodeid if is_alone else (item.nodeid.split("::")[0], names)


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


def cover(cases: Sequence[dict[str, Hashable]]) -> list[int]:
    """Places of cases that show each value of each parameter, the ones with most new ones first.

    Examples
    --------
    >>> cases = [{"kernel": k, "metric": m} for k in "abc" for m in (1, 2)]
    >>> [tuple(cases[i].values()) for i in cover(cases)]
    [('a', 1), ('b', 2), ('c', 1)]
    """
    unseen = [set(case.items()) for case in cases]
    chosen = []
    while any(unseen):
        best = max(range(len(cases)), key=lambda i: len(unseen[i]))
        chosen.append(best)
        shown = set(cases[best].items())
        unseen = [left - shown for left in unseen]
    return sorted(chosen)
