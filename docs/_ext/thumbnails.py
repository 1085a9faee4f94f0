"""The last picture of each notebook, for the gallery."""

import base64
import json
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


def setup(app):
    """Write them when the builder starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
