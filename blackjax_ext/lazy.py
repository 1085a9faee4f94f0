"""Public names of a package that are imported when they are first used.

Who imports one sampler does not wait for all others. The names stand once, as the imports that a
type checker reads.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Its public names are those of the imports under ``if TYPE_CHECKING:`` in its ``__init__.py``.

    Examples
    --------
    >>> import blackjax_ext
    >>> "mala" in dir(blackjax_ext)
    True
    """
    homes = homes_of(package)

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        if module != package and hasattr(importlib.import_module(module), original):
            return getattr(sys.modules[module], original)
        return importlib.import_module(f"{module}.{original}")

    return getter, lambda: sorted(homes), sorted(homes)


def homes_of(package: str) -> dict[str, tuple[str, str]]:
    """Module and name there of each public name."""
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]  # of a module with source
    blocks = [
        node.body
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        for alias in node.names
    }
