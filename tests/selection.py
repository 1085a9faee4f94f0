"""Which tests are short: those of ``make test``. ``make test-all`` runs the others too.

Chosen by rule:

* Of a test with several parameters, as many cases as show every value of every parameter.
* None that is marked slow: it takes more than about twenty seconds.
* None of the benchmarks: they measure, and nothing that a user imports depends on them.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby

import pytest

__all__ = ["cover", "short"]


def short(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `items`, in their order, that are short."""
    found: list[pytest.Item] = []
    quick = [item for item in items if not is_long(item)]
    for _, cases in groupby(quick, key=lambda item: item.nodeid.split("[")[0]):
        each = list(cases)
        found += [each[i] for i in cover([values(item) for item in each])]
    return found


def is_long(item: pytest.Item) -> bool:
    """Whether a test is slow, at full size, or of the benchmarks."""
    marks = [item.get_closest_marker(name) for name in ("slow", "full")]
    return any(marks) or item.nodeid.startswith("tests/benchmarks/")


def values(item: pytest.Item) -> dict[str, Hashable]:
    """The values of a test's parameters, by their names."""
    call = getattr(item, "callspec", None)
    return {} if call is None else {name: key_of(value) for name, value in call.params.items()}


def key_of(value: object) -> Hashable:
    """What tells a value of a parameter from others."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def cover(cases: Sequence[dict[str, Hashable]]) -> list[int]:
    """Places of cases that show each value of each parameter, the ones with most new ones first.

    Cases without parameters, or with one, are all shown.

    Examples
    --------
    >>> cases = [{"kernel": k, "metric": m} for k in "abc" for m in (1, 2)]
    >>> [tuple(cases[i].values()) for i in cover(cases)]
    [('a', 1), ('b', 2), ('c', 1)]
    """
    if any(len(case) < 2 for case in cases):
        return list(range(len(cases)))
    unseen = [set(case.items()) for case in cases]
    chosen = []
    while any(unseen):
        best = max(range(len(cases)), key=lambda i: len(unseen[i]))
        chosen.append(best)
        shown = set(cases[best].items())
        unseen = [left - shown for left in unseen]
    return sorted(chosen)
