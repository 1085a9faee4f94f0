"""A chapter of the demonstration, its code, and its table as text."""

import inspect
import textwrap
from pathlib import Path
from typing import NamedTuple

from blackjax_ext.types import Function

__all__ = ["Chapter", "Setting", "code_of", "text_table"]


class Setting(NamedTuple):
    """Folder to write to, seed, and whether sizes are small (for a test, not for a reader)."""

    out: Path
    seed: int
    quick: bool


class Chapter(NamedTuple):
    """A reason to use this package: question, table, picture and what they say.

    `reading` says what the columns are, `conclusion` what came out, `files` names the draws, and
    `code` is the model with the line that changes from NUTS to ours (:func:`code_of`).
    """

    title: str
    question: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    picture: str
    caption: str
    reading: str
    conclusion: str
    files: tuple[str, ...] = ()
    code: str = ""


def code_of(before: str, after: str, *functions: Function) -> str:
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
