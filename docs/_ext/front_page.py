"""The tables of README.md, from docs/index.md and the results: run it when they change.

Hosts of code show Markdown without Sphinx: numbers are filled in, and links to the results lead to
the file that holds the table. Addresses stand below a table, which keeps its lines short.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

import measured  # noqa: E402

README = DOCS.parent / "README.md"
BLOCK = re.compile(r"(<!-- README: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]])*)\]\(([\w./]+)(?:#([\w-]+))?\)")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def holder(page: str, anchor: str) -> str:
    """The file of docs/results, of those on a page, that has the heading of an anchor."""
    included = re.findall(r"results/(\w+\.md)", (DOCS / page).read_text(encoding="utf-8"))
    for name in included:
        text = (DOCS / "results" / name).read_text(encoding="utf-8")
        if anchor in map(slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)):
            return name
    raise LookupError(f"{page} has no heading for #{anchor}")


def address(page: str, anchor: str | None) -> str:
    """Where a link leads without Sphinx."""
    if anchor and page.startswith("measurements/"):
        return f"docs/results/{holder(page, anchor)}#{anchor}"
    return f"docs/{page}{'#' * bool(anchor)}{anchor or ''}"


def table(name: str) -> str:
    """A table as plain Markdown, with its addresses below."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    text = next(found[3] for found in BLOCK.finditer(index) if found[2] == name)
    addresses: list[str] = []

    def numbered(found: re.Match) -> str:
        text, page, anchor = found.groups()
        addresses.append(address(page, anchor))
        return f"[{text}][{name} {len(addresses)}]"

    short = LINK.sub(numbered, measured.plain_text(text)).strip()
    below = "\n".join(f"[{name} {i}]: {each}" for i, each in enumerate(addresses, 1))
    return f"\n{short}\n\n{below}\n\n" if below else f"\n{short}\n\n"


def readme() -> str:
    """README.md with the tables of today."""
    text = README.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: found[1] + table(found[2]) + found[4], text)


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
