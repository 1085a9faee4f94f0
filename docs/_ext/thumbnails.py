"""The last picture of each notebook, for the tutorial."""

import base64
import json
import re
from pathlib import Path

DOCS = Path(__file__).parent.parent
FOLDER = DOCS / "thumbnails"


def pictures(path: Path) -> list[bytes]:
    """Pictures that a notebook shows."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [each.get("data", {}) for cell in cells for each in cell.get("outputs", [])]
    return [base64.b64decode(data["image/png"]) for data in outputs if "image/png" in data]


def write(app) -> None:
    """Write those that have changed."""
    FOLDER.mkdir(exist_ok=True)
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        picture = pictures(path)[-1]
        target = FOLDER / f"{path.stem}.png"
        if not target.exists() or target.read_bytes() != picture:
            target.write_bytes(picture)


def show(app, page, source) -> None:
    """Put each into the tutorial above the link to its notebook, which hosts of code show alone."""
    if page == "tutorial":
        link = re.compile(r"^- \[(.*?)\]\((.*?(\w+)\.ipynb)\)", re.MULTILINE)
        picture = r"- ![The last picture of \1](thumbnails/\3.png){width=260px}\\\n  [\1](\2)"
        source[0] = link.sub(picture, source[0])


def setup(app):
    """Write them when the builder starts."""
    app.connect("builder-inited", write)
    app.connect("source-read", show)
    return {"parallel_read_safe": True}
