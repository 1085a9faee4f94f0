"""The table of README.md, from docs/which_sampler.md and the results: run it when they change.

Hosts of code show Markdown without Sphinx: numbers are filled in, links to pages with roles are
left out, and links to the results lead to the file that holds the table.
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
LINK = re.compile(r"\[((?:[^\[\]])*)\]\(([\w./]+)(#[\w-]+)?\)")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def files_of_anchors() -> dict[str, str]:
    """The page of results that has a heading, the first where several do, by its anchor."""
    pages = re.findall(r"results/(\w+\.md)", (DOCS / "results.md").read_text(encoding="utf-8"))
    return {
        f"#{slug(heading)}": name
        for name in reversed(pages)
        for heading in re.findall(
            r"^#+ (.*)$", (DOCS / "results" / name).read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def link(found: re.Match) -> str:
    """A link as it works without Sphinx, or its text."""
    text, page, anchor = found.groups()
    if page != "results.md":
        return text
    return f"[{text}](docs/results/{files_of_anchors()[anchor]}{anchor})"


def table() -> str:
    """The table as plain Markdown."""
    text = (DOCS / "which_sampler.md").read_text(encoding="utf-8")
    return LINK.sub(link, measured.fill(text))


def readme() -> str:
    """README.md with the table of today."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
