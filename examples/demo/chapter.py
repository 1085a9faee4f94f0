"""What a chapter of the demonstration hands back, and its table as text."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Results(NamedTuple):
    """Table and picture of a chapter.

    `reading` says what the columns are, `caption` what the picture shows, `conclusion` what came
    out, and `code` is the model with the line that changes from NUTS to ours (:func:`code_of`).
    """

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    reading: str
    figure: Any
    caption: str
    conclusion: str
    code: str


class Chapter(NamedTuple):
    """A chapter with its title, the question that it asks, and the file of its picture."""

    title: str
    question: str
    picture: Path
    results: Results


def code_of(before: str, after: str, *functions: Callable) -> str:
    """Source of the functions of a model, and the line that changes, marked by minus and plus."""
    sources = [textwrap.dedent(inspect.getsource(function)).strip() for function in functions]
    return "\n\n\n".join([*sources, f"- {before}\n+ {after}"])


def text_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Aligned columns: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
        for cells in (header, *rows)
    ]
    rule = "-" * len(lines[0])
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
