"""Tables of the results are folded, and the machine that measured them is one line."""

from docutils import nodes

FOLDER = "measurements/"


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
    """Fold when a page has been read."""
    app.connect("doctree-read", fold)
    return {"parallel_read_safe": True}
