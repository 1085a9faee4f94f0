"""Numbers of docs/results in the prose: one that is not that of its reference fails the build.

On a page, ::

    53<!-- = regressions > groups > logistic > rows per sweep -->

is the cell of `docs/results/regressions.json`, section `groups`, in the row that has a cell
"logistic" and the column "rows per sweep", with two significant digits. Hosts of code show the
number, and documentation where it comes from, too. ``python docs/_ext/measured.py`` writes the
numbers of today into all pages; of a new reference "0" may stand in the page before. In full:

- ``file > section > row > column``; a row that takes several cells to tell is ``cell & cell``, a
  cell of a certain column ``column = cell``; ``least`` and ``greatest``, alone or ``least & cell``,
  choose by the column, and ``checks`` with what is compared is a line of the section's ratios.
  ``column / column`` is the ratio of two cells of the row. Cells without a number are not chosen.
- ``reference ÷ reference`` is a ratio; either may be a number. Of "1.2 ± 0.3" the mean counts.
- ``...; 3`` are three significant digits, ``...; %`` percent, ``...; text`` the cell as it stands,
  ``...; low`` and ``...; high`` the ends of a cell "0.1 to 0.3".
- ``file > section > date; text`` is the day on which a section was measured.

Documentation has a line at the end of each page with numbers: between which days they were
measured, and whether defaults have changed since, by the list on docs/results.md.
"""

import contextlib
import functools
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
RESULTS = DOCS / "results"
PAGES = sorted(
    path
    for path in (*DOCS.rglob("*.md"), *(DOCS.parent / "notebooks").glob("*.ipynb"))
    if "_build" not in path.parts
)
MARK = re.compile(r"<!-- = (.*?) -->")
TABLES = re.compile(r"\.\./results/(\w+)\.md")
SECTION = re.compile(r"(?:^|÷ )\s*(\w+) > (\w+) > ")
CHANGE = re.compile(r"^- From (\d{4}-\d\d-\d\d) on", re.MULTILINE)
NUMBER = r"(?:nan|inf|\d{4}-\d\d-\d\d|-?\d[\d.,]*(?:e[+-]?\d+)?)"


class MissingNumberError(LookupError):
    """A reference that names no cell, or several."""


@functools.cache
def results(name: str) -> dict[str, Any]:
    """Sections of a file."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise MissingNumberError(f"docs/results has no {name}.json")
    return json.loads(path.read_text(encoding="utf-8"))["sections"]


def plain(cell: Any) -> str:
    """A cell as it is written in a reference."""
    if isinstance(cell, bool | str):
        return str(cell).replace("`", "").strip()
    return f"{cell:,.0f}" if float(cell).is_integer() else f"{cell:g}"


def only(found: list, what: str, choices: list[str]) -> Any:
    """The one that was found."""
    if len(found) != 1:
        raise MissingNumberError(f"{len(found)} times {what}; there are {sorted(set(choices))}")
    return found[0]


def has(cells: list[str], columns: list[str], wanted: str) -> bool:
    """Whether a row has a cell, in a certain column if it is named."""
    column, _, value = wanted.partition(" = ")
    if column in columns:
        return cells[columns.index(column)] == value
    return wanted in cells


def section_of(name: str, section: str) -> dict[str, Any]:
    """A section of a file."""
    sections = results(name)
    if section not in sections:
        raise MissingNumberError(f"{name}.json has no section {section}, only {sorted(sections)}")
    return sections[section]


def cell(reference: str) -> Any:
    """What a reference ``file > section > row > column`` names."""
    parts = [part.strip() for part in reference.split(" > ")]
    if len(parts) == 3 and parts[2] == "date":
        return section_of(*parts[:2])["date"]
    if len(parts) != 4:
        raise MissingNumberError(f"{reference!r} is not file > section > row > column")
    name, section, row, column = parts
    table = section_of(name, section)
    if row == "checks":
        checks = [(plain(what), value) for what, value, _ in table["checks"]]
        found = [value for what, value in checks if what == column]
        return only(found, f"the ratio {column!r}", [what for what, _ in checks])
    columns = [each.replace("`", "") for each in table["columns"]]

    def value(cells: list) -> Any:
        names = column.split(" / ") if column not in columns else [column]
        found = [cells[only(places(name, columns), repr(name), columns)] for name in names]
        if len(found) == 1:
            return found[0]
        parts = numbers(found, reference)
        return functools.reduce(operator.truediv, parts) if len(parts) == len(found) else "-"

    wanted = [each.strip() for each in row.split(" & ")]
    rows = [[plain(each) for each in cells] for cells in table["rows"]]
    extreme = {"least": min, "greatest": max}.get(wanted[0])
    wanted = wanted[1:] if extreme else wanted
    found = [i for i, cells in enumerate(rows) if all(has(cells, columns, each) for each in wanted)]
    if extreme and found:
        values = numbers([value(table["rows"][i]) for i in found], reference)
        return extreme(values) if values else "-"
    choices = [" & ".join(cells[:3]) for cells in rows]
    return value(table["rows"][only(found, f"the row {row!r} in {name} > {section}", choices)])


def places(name: str, columns: list[str]) -> list[int]:
    """Where a column is."""
    return [i for i, each in enumerate(columns) if each == name]


def numbers(values: Iterable[Any], reference: str) -> list[float]:
    """Those of the values that are numbers."""
    found = []
    for value in values:
        with contextlib.suppress(MissingNumberError):
            found.append(as_number(value, reference))
    return found


def as_number(value: Any, reference: str) -> float:
    """A cell as a number."""
    try:
        return float(value.split(" ± ")[0] if isinstance(value, str) else value)
    except ValueError:
        raise MissingNumberError(f"{reference!r} is {value!r}, no number") from None


def operand(text: str) -> float:
    """A number, or the one that a reference names."""
    try:
        return float(text)
    except ValueError:
        return as_number(cell(text), text)


def significant(value: float, digits: int) -> str:
    """A number with that many significant digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:,.{decimals}f}"


def end(text: str, which: str) -> str:
    """One end of a range."""
    ends = text.split(" to ")
    if len(ends) != 2:
        raise MissingNumberError(f"{text!r} is no range")
    return ends[which == "high"]


def number(text: str) -> str:
    """What stands for a reference on the page."""
    reference, _, form = (part.strip() for part in " ".join(text.split()).partition(";"))
    if form in ("text", "low", "high"):
        found = str(cell(reference))
        return found if form == "text" else end(found, form)
    first, *others = [operand(part.strip()) for part in reference.split(" ÷ ")]
    value = functools.reduce(lambda quotient, divisor: quotient / divisor, others, first)
    if form == "%":
        return f"{significant(100 * value, 2)} %"
    if form and not form.isdigit():
        raise MissingNumberError(f"{form!r} is neither a number of digits nor %, text, low or high")
    return significant(value, int(form or 2))


def replaced(text: str, form: Callable[[str, str, str], str]) -> str:
    """Markdown with what `form` makes of a number: as it is shown, that of today, its reference."""
    *pairs, rest = MARK.split(text)
    found = []
    for before, reference in zip(pairs[::2], pairs[1::2], strict=True):
        today = number(reference)
        pattern = f"(?:{NUMBER} to )?{NUMBER}" if " to " in today else f"{NUMBER}(?: %)?"
        shown = (re.search(f"(?:{pattern})?$", before) or [""])[0]
        found += [before.removesuffix(shown), form(shown, today, reference)]
    return "".join([*found, rest])


def plain_text(text: str) -> str:
    """Markdown with the numbers of today and without references."""
    return replaced(text, lambda shown, today, reference: today)


def rewritten(text: str) -> str:
    """Markdown with the numbers of today."""
    return replaced(text, lambda shown, today, reference: f"{today}<!-- = {reference} -->")


def checked(text: str) -> str:
    """Markdown with roles for numbers; MissingNumberError if one is not that of its reference."""

    def form(shown: str, today: str, reference: str) -> str:
        if shown != today:
            raise MissingNumberError(f"{shown!r} is {today!r} today: {reference}")
        return f"{{measured}}`{reference}`"

    return replaced(text, form)


def days(references: Iterable[str]) -> list[str]:
    """On which days the sections of references were measured."""
    found = {pair for each in references for pair in SECTION.findall(each)}
    return sorted({section_of(*pair)["date"] for pair in found})


def days_of_page(text: str) -> list[str]:
    """Those of the numbers on a page, and of the tables that it holds."""
    tables = [
        section["date"] for name in TABLES.findall(text) for section in results(name).values()
    ]
    return sorted({*days(MARK.findall(text)), *tables})


def newest_change() -> str:
    """The day of the newest change of defaults that docs/results.md has."""
    return max(CHANGE.findall((DOCS / "results.md").read_text(encoding="utf-8")))


def dated(text: str, page: str) -> str:
    """A page with a line at its end: when its numbers were measured."""
    found = days_of_page(text)
    if not found:
        return text
    when = f"on {found[0]}" if len(found) == 1 else f"from {found[0]} to {found[-1]}"
    changes = f"[some defaults have changed]({'../' * page.count('/')}results.md#changed-defaults)"
    since = f"; since {found[0]} {changes}" if found[0] < newest_change() else ""
    return f"{text.rstrip()}\n\n*Numbers on this page were measured {when}{since}.*\n"


def read(app, page, source):
    """Check a page that Sphinx has read, and let it tell where and when numbers were measured."""
    from sphinx.errors import ExtensionError

    try:
        source[0] = checked(dated(source[0], page))
    except MissingNumberError as error:
        raise ExtensionError(f"{page}: {error}") from error


def role(name, rawtext, text, lineno, inliner, options=None, content=None):
    """A number that tells, under the pointer, where it comes from."""
    from docutils import nodes
    from sphinx.errors import ExtensionError

    try:
        shown = number(text)
    except MissingNumberError as error:
        document = inliner.document.current_source
        raise ExtensionError(f"{document}, line {lineno}: {rawtext}: {error}") from error
    for name, _ in SECTION.findall(text):
        inliner.document.settings.env.note_dependency(str(RESULTS / f"{name}.json"))
    where = f"docs/results: {text}, measured on {' and '.join(days([text]))}"
    return [nodes.abbreviation(shown, shown, explanation=where)], []


def setup(app):
    """Add the role, which pages have when they are read."""
    app.add_role("measured", role)
    app.connect("source-read", read)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for path in PAGES if len(sys.argv) == 1 else map(Path, sys.argv[1:]):
        old = path.read_text(encoding="utf-8")
        path.write_text(rewritten(old), encoding="utf-8")
