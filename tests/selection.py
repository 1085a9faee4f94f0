"""Which tests are short: those of ``make test``. ``make test-rest`` runs the others.

A mark says it where the test stands:

* ``long``: the test, or the case that has the mark, is left to ``make test-rest``. So is what is
  ``slow`` or ``full``, and all of ``tests/benchmarks``.
* ``first``: of the cases of a test the first one is short.
* ``each``: as many cases are short as show every value of every parameter.

What has no mark is short. Short are: planted bugs; for every sampler the law that exact draws stay
exact, and one case of the other laws; the examples of docstrings; and what costs next to nothing.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable

import pytest

__all__ = ["short"]

LONG = "slow", "full", "long"


def short(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of `items` that are short."""
    seen: dict[str, set[Hashable]] = defaultdict(set)
    found = set()
    for item in items:
        if any(map(item.get_closest_marker, LONG)) or "benchmarks" in item.path.parts:
            continue
        test = item.nodeid.split("[")[0]
        new = shown(item) - seen[test]
        if new:
            found.add(item)
            seen[test] |= new
    return found


def shown(item: pytest.Item) -> set[Hashable]:
    """What a case shows, for the sake of which it is short."""
    if item.get_closest_marker("first"):
        return {"a case"}
    if item.get_closest_marker("each"):
        return {(name, str(value)) for name, value in item.callspec.params.items()}
    return {item.nodeid}
