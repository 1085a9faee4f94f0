"""The Python code on the pages of docs/, executed as it stands there."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: its page, the number of its first line there, and its text."""

    page: Path
    line: int
    text: str

    @property
    def name(self) -> str:
        """The name of a test."""
        return f"{self.page.stem}:{self.line}"

    @property
    def module(self) -> str | None:
        """The module it defines, if its first line is a comment with the name of a file."""
        found = re.match(r"# (\S+)\.py\n", self.text)
        return found and found[1].replace("/", ".").removesuffix(".__init__")

    def run(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """Execute it; errors name the page and the line."""
        tree = ast.increment_lineno(ast.parse(self.text), self.line - 1)
        exec(compile(tree, str(self.page), "exec"), namespace)
        return namespace


def blocks(page: str) -> Iterator[Block]:
    """Blocks of Python on a page."""
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(path, text.count("\n", 0, found.start(1)) + 1, found[1])


def define(block: Block) -> ModuleType:
    """Make the module that a block defines, so that later blocks can import it."""
    *parents, _ = block.module.split(".")
    for i in range(len(parents)):
        package = sys.modules.setdefault(name := ".".join(parents[: i + 1]), ModuleType(name))
        package.__path__ = []
    module = sys.modules.setdefault(block.module, ModuleType(block.module))
    block.run(vars(module))
    return module
