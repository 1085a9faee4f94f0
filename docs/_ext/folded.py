"""Tables of the results are folded, and the machine that measured them is one line.

Pages of results link to the files that hold the tables, as hosts of code show them; documentation
has the tables in place of the links.
"""

import re

from docutils import nodes

FOLDER = "measurements/"
LINK = re.compile(r"^- \[.*\]\((\.\./results/\w+\.md)\)$", re.MULTILINE)
TABLES = r"```{include} \1\n:heading-offset: 1\n:relative-images:\n```\n"


def include(app, page, source) -> None:
    """Put the tables in place of the links to them."""
    if page.startswith(FOLDER):
        text = source[0].replace("\nTables:\n", "\nClick on a table to open it.\n")
        source[0] = LINK.sub(TABLES, text)


def cells(row: nodes.row) -> list[str]:
    """What stands in a row."""
    return [entry.astext() for entry in row.findall(nodes.entry)]


def machine(rows: list[list[str]]) -> nodes.paragraph:
    """Facts of a machine in one line."""
    facts = ", ".join(f"{name} {value}" for name, value in rows[1:])
    return nodes.paragraph("", f"Machine: {facts}.")


def fold(app, doctree: nodes.document) -> None:
    """Put each table of a page of results into an element that opens by a click."""
    if not app.env.docname.startswith(FOLDER):
        return
    for table in list(doctree.findall(nodes.table)):
        rows = [cells(row) for row in table.findall(nodes.row)]
        place = table.parent.index(table)
        if rows[0][0] == "machine":
            table.parent[place] = machine(rows)
            continue
        what = "What was aimed at" if rows[0][-1] == "met" else "Table"
        summary = f"<details><summary>{what}, {len(rows) - 1} lines</summary>"
        # raw nodes without classes, for which writers would open an element of their own
        table.parent.insert(place + 1, nodes.raw("", "</details>", format="html"))
        table.parent.insert(place, nodes.raw("", summary, format="html"))


def setup(app):
    """Include before a page is read, and fold when it has been."""
    app.connect("source-read", include)
    app.connect("doctree-read", fold)
    return {"parallel_read_safe": True}
