"""The table of families on algorithms/subsampled.md, from the code: run it when that changes.

What is a predictor, which derivatives have bounds and where these hold is asked of the families
themselves; by how much bounds may exceed what they bound, of the tests that search them.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

DOCS = Path(__file__).parent.parent
sys.path.insert(0, str(DOCS.parent))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from blackjax_ext.subsampling.families.kind import Ball, Kind  # noqa: E402
from numpyro_fwd.subsampling.likelihoods import READINGS  # noqa: E402
from tests.blackjax_ext.subsampling.test_families import CASES, SIZES  # noqa: E402

PAGE = DOCS / "algorithms" / "subsampled.md"
START = "<!-- written by docs/_ext/families_table.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = """\
| NumPyro | family | predictors | bounds of derivatives | where they hold | looseness |
|---|---|---|---|---|---|
"""
ORDERS = {3: "third", 4: "third, fourth"}
WIDE = 1e3  # half the side of a box in which a bound that holds everywhere is still small
LARGE = 10.0  # and one that does not is not
# three classes, and two cutpoints
SHAPES = SimpleNamespace(cutpoints=np.zeros(2))


def kinds() -> dict[Kind, list[str]]:
    """The families that models are read by, each with the names of its distributions."""
    found: dict[Kind, list[str]] = {}
    for distribution, reading in READINGS.items():
        found.setdefault(reading.kind(SHAPES), []).append(distribution.__name__)
    return found


def case_of(kind: Kind) -> str | None:
    """The case of the tests that searches the bounds of a family."""
    return next((name for name, case in CASES.items() if case.family.kind.name == kind.name), None)


def greatest(name: str) -> float:
    """Bound of a third derivative over a box that is as good as everything."""
    case, size = CASES[name], SIZES[name]
    y = jnp.asarray(case.response(0.5, np.zeros(size)), float)
    balls = tuple(Ball(jnp.zeros(()), WIDE) for _ in range(size))
    data = case.family.kind.data(case.family.parameters)
    return float(np.max(np.asarray(case.family.kind.sizes(3, balls, y, **data))))


def where(kind: Kind, name: str | None) -> str:
    """Everywhere, or in a box of each row."""
    if kind.norm is not None:
        return f"everywhere: {kind.norm:.3g}, in differences of the logits"
    assert name is not None, kind.name
    if greatest(name) < LARGE:
        return "everywhere, and tighter in the box of each row"
    return "in the box of each row"


def row(kind: Kind, distributions: list[str]) -> str:
    """A family as a line of the table."""
    name = case_of(kind)
    predictors = ", ".join(each.replace("_", " ") for each in kind.predictors) or "K logits"
    loose = f"{CASES[name].looseness:g}" if name else "not measured"
    cells = [
        ", ".join(f"`{each}`" for each in sorted(distributions)),
        f"`families.{kind.name}`",
        predictors,
        ORDERS[kind.highest],
        where(kind, name),
        loose,
    ]
    return "| " + " | ".join(cells) + " |\n"


def table() -> str:
    """The table of today."""
    found = sorted(kinds().items(), key=lambda item: min(item[1]))
    return HEAD + "".join(row(*each) for each in found)


def page() -> str:
    """The page with the table of today."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
