"""The Python code on the pages of docs/, executed as it stands there.

What it prints is compared with the output that the page shows below it: words as they are, numbers
as far as chains on another processor agree.
"""

import ast
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
VERSIONS = "Outputs are of JAX 0.10.2 and NumPyro 0.22.0 on a CPU."
TOKEN = re.compile(r"[A-Za-z_]\w*\[\d+\]|[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|\w+|[^\s\w]")
PUNCTUATION = frozenset("[](){},.:;'")
# of a number, in shares of it and beside that; and of sizes of effective samples, which another
# processor may have ten times as large where a sampler fails, as NUTS on centred schools
WITHIN, BESIDE, OF_SIZES, FROM_SIZE = 0.5, 0.3, 0.95, 20.0
FAILURES = 30.0  # beside, in lines that count divergences or failed solves


class Block(NamedTuple):
    """A block of code: its page, the number of its first line there, its text and its output."""

    page: Path
    line: int
    text: str
    output: str = ""

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
        """Execute it, and compare what it prints; errors name the page and the line."""
        tree = ast.increment_lineno(ast.parse(self.text), self.line - 1)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, str(self.page), "exec"), namespace)
        sys.stdout.write(printed.getvalue())
        if self.output:
            check_output(f"{self.page}:{self.line}", self.output, printed.getvalue())
        return namespace


def tokens(text: str) -> list[str]:
    """Words and numbers."""
    return [token for token in TOKEN.findall(text) if token not in PUNCTUATION]


def number(token: str) -> float | None:
    """The number that a token is, if it is one."""
    try:
        return float(token)
    except ValueError:
        return None


def is_same(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and about the same numbers."""
    pairs = list(zip(tokens(shown), tokens(printed), strict=False))
    if len(pairs) != max(len(tokens(shown)), len(tokens(printed))):
        return False
    is_count = "Number of divergences" in shown or " failed)" in shown
    beside = FAILURES if is_count else BESIDE
    for a, b in pairs:
        x, y = number(a), number(b)
        if x is None or y is None:
            if a != b:
                return False
        else:
            size = max(abs(x), abs(y))
            if abs(x - y) > (OF_SIZES if size > FROM_SIZE else WITHIN) * size + beside:
                return False
    return True


def check_output(where: str, shown: str, printed: str) -> None:
    """Each line of `shown` is in `printed`, in order; "..." stands for any, warnings for none."""
    rest = [line for line in printed.splitlines() if line.strip()]
    is_warning = is_open = False
    for line in shown.splitlines():
        is_warning = bool(line.strip()) and (is_warning or "Warning: " in line)
        if is_warning or not line.strip():
            continue
        if line.strip() == "...":
            is_open = True
            continue
        places = range(len(rest)) if is_open else range(min(len(rest), 1))
        place = next((i for i in places if is_same(line, rest[i])), None)
        found = "\n".join(rest[:3])
        assert place is not None, f"{where} shows\n{line}\nand printed\n{found}"
        rest, is_open = rest[place + 1 :], False
    assert not rest or is_open, f"{where} printed, and does not show,\n" + "\n".join(rest)


def blocks(page: str) -> Iterator[Block]:
    """Blocks of Python on a page."""
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(path, text.count("\n", 0, found.start(1)) + 1, found[1], found[2] or "")


def define(block: Block) -> ModuleType:
    """Make the module that a block defines, so that later blocks can import it."""
    *parents, _ = block.module.split(".")
    for i in range(len(parents)):
        package = sys.modules.setdefault(name := ".".join(parents[: i + 1]), ModuleType(name))
        package.__path__ = []
    module = sys.modules.setdefault(block.module, ModuleType(block.module))
    block.run(vars(module))
    return module
