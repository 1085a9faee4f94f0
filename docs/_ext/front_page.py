"""The table of README.md, from docs/index.md and the results: run it when they change.

Hosts of code show Markdown without Sphinx: numbers are filled in, and links to the results lead to
the file that holds the table.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

import measured  # noqa: E402

README = DOCS.parent / "README.md"
START = "<!-- written by docs/_ext/front_page.py -->\n"
END = "<!-- end -->\n"
TABLE = "<!-- the table of README.md -->\n"
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


def link(found: re.Match) -> str:
    """A link as it works without Sphinx, or its text."""
    text, page, anchor = found.groups()
    if not page.startswith("measurements/"):
        return f"[{text}](docs/{page}{'#' * bool(anchor)}{anchor or ''})"
    return f"[{text}](docs/results/{holder(page, anchor)}#{anchor})"


def table() -> str:
    """The table as plain Markdown."""
    text = (DOCS / "index.md").read_text(encoding="utf-8").split(TABLE)[1].split(END)[0]
    return LINK.sub(link, measured.plain_text(text)).strip() + "\n"


def readme() -> str:
    """README.md with the table of today."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
