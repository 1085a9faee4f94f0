"""A page of the reference for each public name, written before Sphinx looks for pages.

It links to the pages whose last line, "API: ...", has the name: its guides. A table of all names by
topic leads to these pages, which the sidebar does not list.
"""

import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent.parent
PAGES = DOCS / "api" / "names"
HEADING, NAMES = r"^# (.*)$", r"^API: (.*)$"
TABLE = "tables.inc"
# by the part of a package that a name comes from; what is not named here is the last
TOPICS = {
    "numpyro_fwd": {
        "Kernels": ("kernels",),
        "Networks, trained and sampled": ("partial_bayes",),
        "Runs, data and draws": (),
    },
    "blackjax_ext": {
        "Markov chains": ("mcmc", "metrics"),
        "Minibatches": ("sgmcmc", "subsampling", "potentials", "acceptance"),
        "Populations": ("smc",),
        "Warm-up": (),
    },
}
# classes whose methods are called
WITH_METHODS = {"BlackJAXKernel", "GOHSMC"}


def described(package: ModuleType, name: str) -> str:
    """What autodoc is asked for."""
    full, found = f"{package.__name__}.{name}", getattr(package, name)
    if inspect.ismodule(found):
        return f".. automodule:: {full}\n   :members:\n"
    if inspect.isclass(found):
        members = "   :members:\n" if name in WITH_METHODS else ""
        return f".. autoclass:: {full}\n   :show-inheritance:\n{members}"
    if inspect.isfunction(found):
        return f".. autofunction:: {full}\n"
    module = found.differentiable.__module__
    return (
        f".. autofunction:: {full}\n\n"
        ".. rubric:: How it works, and the functions underneath\n\n"
        f".. automodule:: {module}\n   :members:\n   :exclude-members: {name}\n"
    )


@functools.cache
def guides() -> dict[str, list[str]]:
    """Links to the guides of each name, as a page of the reference has them."""
    found: dict[str, list[str]] = {}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        title, last = (re.search(pattern, text, re.MULTILINE) for pattern in (HEADING, NAMES))
        for name in re.findall(r"`([\w.]+)`", last[1]) if last else ():
            link = f"[{title[1]}](../../{path.relative_to(DOCS).as_posix()})"
            found.setdefault(name, []).append(link)
    return found


def page(package: ModuleType, name: str) -> str:
    """The page of a name."""
    links = ", ".join(guides().get(f"{package.__name__}.{name}", ()))
    guide = f"Guide: {links}.\n\n" if links else ""
    return (
        f"---\norphan: true\n---\n\n# {name}\n\n"
        f"{guide}```{{eval-rst}}\n{described(package, name)}```\n"
    )


def part(package: ModuleType, name: str) -> str:
    """The part of a package that a name comes from."""
    found = getattr(package, name)
    found = getattr(found, "differentiable", found)
    module = found.__name__ if inspect.ismodule(found) else found.__module__
    return module.split(".")[1]


def says(package: ModuleType, name: str) -> str:
    """The first line of a docstring, as Markdown."""
    line = (inspect.getdoc(getattr(package, name)) or "").split("\n")[0]
    line = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", line.replace("``", "`"))
    return line.replace("|", "\\|")


def tables(package: ModuleType) -> str:
    """Public names by topic, each with the first line of its docstring."""
    topics = TOPICS[package.__name__]
    known = {each: topic for topic, parts in topics.items() for each in parts}
    *_, last = topics
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    for name in package.__all__:
        row = f"| [`{name}`](names/{package.__name__}.{name}.md) | {says(package, name)} |\n"
        found[known.get(part(package, name), last)].append(row)
    return "".join(
        f"### {topic}\n\n| name | what it is |\n|---|---|\n{''.join(rows)}\n"
        for topic, rows in found.items()
    )


def pages(package: ModuleType) -> dict[str, str]:
    """Pages of a package by their names."""
    return {f"{package.__name__}.{name}.md": page(package, name) for name in package.__all__}


def public_modules(package: ModuleType) -> dict[str, Any]:
    """Modules under their public names, which Python cannot import and autodoc asks for."""
    found = {name: getattr(package, name) for name in package.__all__}
    return {
        f"{package.__name__}.{name}": each for name, each in found.items() if inspect.ismodule(each)
    }


def write(app) -> None:
    """Write the pages that have changed, and remove those of names that are gone."""
    packages = [importlib.import_module(name) for name in ("blackjax_ext", "numpyro_fwd")]
    wanted = {name: text for package in packages for name, text in pages(package).items()}
    for package in packages:
        for name, module in public_modules(package).items():
            sys.modules.setdefault(name, module)
    PAGES.mkdir(parents=True, exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for package in packages:
        wanted[f"{package.__name__}.{TABLE}"] = tables(package)
    for name, text in wanted.items():
        path = PAGES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    """Write the pages when the builder starts."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
