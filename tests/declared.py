"""What is written from the declarations of samplers: ``make declared`` after a new one.

An algorithm is declared by ``@top_level(init, build_kernel)`` or ``@public`` in its file, a named
kernel by a class with an `algorithm`, a configuration by a case of tests/laws/samplers.py. Exports
of the packages and the table of docs/kernels.md follow; tests/fixed_seeds.py and other lists of the
tests ask here.
"""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import blackjax_ext
import numpyro_fwd
from blackjax_ext.top_level import Algorithm
from numpyro_fwd.kernels.named import NamedKernel, parameters_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kernels.md"
ROOMS = ("mcmc", "sgmcmc", "smc", "subsampling")
START = "<!-- written by make declared, to the end of the page -->\n"
HEAD = """
| kernel | a step | derivatives | `target_accept_prob` | options of its own |
|---|---|---|---|---|
"""


def modules(package: str, folder: str) -> list[Any]:
    """Modules of a folder of a package."""
    paths = sorted((ROOT / package / folder).glob("[a-z]*.py"))
    return [importlib.import_module(f"{package}.{folder}.{path.stem}") for path in paths]


def algorithms() -> dict[str, Algorithm]:
    """Algorithms of `blackjax_ext` by their names."""
    return {
        name: found
        for room in ROOMS
        for module in modules("blackjax_ext", room)
        for name, found in vars(module).items()
        if isinstance(found, Algorithm) and found.differentiable.__module__ == module.__name__
    }


def kernels() -> dict[str, type[NamedKernel]]:
    """Kernels that are declared by an algorithm, by their names."""
    return {
        name: found
        for module in modules("numpyro_fwd", "kernels")
        for name, found in vars(module).items()
        if inspect.isclass(found)
        and issubclass(found, NamedKernel)
        and hasattr(found, "algorithm")
        and found.__module__ == module.__name__
    }


def exports(package: Any) -> str:
    """The ``__init__.py`` of a package with the names of what is declared, as ruff sorts them."""
    declared = {
        **{name: each.differentiable.__module__ for name, each in algorithms().items()},
        **{name: each.__module__ for name, each in kernels().items()},
    }
    text = Path(package.__file__).read_text(encoding="utf-8")
    before, rest = text.split("if TYPE_CHECKING:\n")
    block, after = rest.split("\n\n", 1)
    lines = {*block.splitlines()} | {
        f"    from {module} import {name} as {name}"
        for name, module in declared.items()
        if module.startswith(f"{package.__name__}.")
    }
    block = "\n".join(sorted(lines, key=place))
    return f"{before}if TYPE_CHECKING:\n{block}\n\n{after}"


def place(line: str) -> tuple[str, int, str]:
    """Where an import stands: by module, then constants, classes and others by name."""
    _, module, _, name, *_ = line.split()
    return module, 0 if name.isupper() else 1 if name[0].isupper() else 2, name


def row(name: str, kernel: type[NamedKernel]) -> str:
    """A kernel as a line of the table, from its docstring and its declaration."""
    text = " ".join((inspect.getdoc(kernel) or "").split("\n\nParameters")[0].split())
    sentences = [each.rstrip(".") for each in re.split(r"(?<=[a-z)])\. ", text)]
    step = next((each for each in sentences if re.search(" per step| of a step", each)), "")
    target = kernel.best_accept_prob
    if callable(target):
        target = re.search(r"`target_accept_prob` is (.*?) by default", text)[1]
    options = ", ".join(f"`{option}`" for option in parameters_of(kernel))
    section = re.compile(rf"^## {name}$", re.MULTILINE)
    guides = sorted((PAGE.parent / "algorithms").glob("*.md"))
    guide = next((path for path in guides if section.search(path.read_text())), None)
    title = f"[`{name}`](algorithms/{guide.name}#{name.lower()})" if guide else f"`{name}`"
    return f"| {title} | {step} | {kernel.differentiation} | {target} | {options} |\n"


def without_page() -> list[str]:
    """Full names of what is declared and has no page of its own, whose guide is this table."""
    others = [path for path in PAGE.parent.rglob("*.md") if path != PAGE]
    ends = re.findall(r"^API: (.*)$", "\n".join(path.read_text() for path in others), re.MULTILINE)
    names = [f"numpyro_fwd.{name}" for name in kernels()]
    names += [f"blackjax_ext.{name}" for name in algorithms()]
    return [f"`{name}`" for name in names if f"`{name}`" not in "\n".join(ends)]


def page() -> str:
    """The page of all kernels with the table of today."""
    before, _ = PAGE.read_text(encoding="utf-8").split(START)
    table = HEAD + "".join(row(*each) for each in kernels().items())
    names = without_page()
    end = f"\nAPI: {', '.join(names)}.\n" if names else ""
    return f"{before}{START}{table}{end}"


WRITTEN = {
    Path(blackjax_ext.__file__): lambda: exports(blackjax_ext),
    Path(numpyro_fwd.__file__): lambda: exports(numpyro_fwd),
    PAGE: page,
}

if __name__ == "__main__":
    for path, write in WRITTEN.items():
        path.write_text(write(), encoding="utf-8")
    # in a process that imports the new names
    subprocess.run([sys.executable, "-m", "tests.fixed_seeds", "--new"], check=True, cwd=ROOT)
