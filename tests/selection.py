"""Which tests are short: those of ``make test``. ``make test-rest`` runs the long ones.

What is neither runs with ``--full-laws`` alone. A mark says it where the test stands:

* ``long``: the test, or the case that has the mark, is left to ``make test-rest``. So is what is
  ``slow``, and all of ``tests/benchmarks``.
* ``full``: it is left to ``--full-laws``.
* ``first``: the first one of the cases of a test; the others are put off once more, from short to
  long, and from long to full.
* ``each``: so are as many cases as show every value of every parameter.

What has no mark is short. Short are: planted bugs; for every sampler the law that exact draws stay
exact, and one case of the other laws; the examples of docstrings; and what costs next to nothing.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable

import pytest

__all__ = ["full", "short"]

LONG = "slow", "long"


def short(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of `items` that are short."""
    return first(item for item in items if not is_long(item))


def full(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of `items` that run with --full-laws alone."""
    marked = {item for item in items if item.get_closest_marker("full")}
    long = [item for item in items if is_long(item) and item not in marked]
    return marked | (set(long) - first(long))


def is_long(item: pytest.Item) -> bool:
    """Whether no case of a test is short."""
    marked = any(map(item.get_closest_marker, (*LONG, "full")))
    return marked or "benchmarks" in item.path.parts


def first(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those cases that show what no case before them does."""
    seen: dict[str, set[Hashable]] = defaultdict(set)
    found = set()
    for item in items:
        test = item.nodeid.split("[")[0]
        new = shown(item) - seen[test]
        if new:
            found.add(item)
            seen[test] |= new
    return found


def shown(item: pytest.Item) -> set[Hashable]:
    """What a case shows, for the sake of which it is not put off."""
    if item.get_closest_marker("first"):
        return {"a case"}
    if item.get_closest_marker("each"):
        return {(name, str(value)) for name, value in item.callspec.params.items()}
    return {item.nodeid}
