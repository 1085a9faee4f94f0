"""Tables of measurements: a section each, kept as JSON and written as a page of the docs."""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import shlex
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import data
from benchmarks.harness.kept_results import ROOT, Units

__all__ = ["ROOT", "Picture", "Report", "Section", "by_name", "plus_minus", "rows_of"]


@dataclasses.dataclass
class Section:
    """A table of the results page, with what it was expected to show.

    `checks` holds tuples of what is compared, its value, and its upper limit. What follows it is
    filled in by :class:`Report`.
    """

    title: str
    text: str
    columns: list[str]
    rows: list[list[Any]]
    checks: list[tuple[str, float, float]] = dataclasses.field(default_factory=list)
    date: str = ""
    command: str = ""
    seconds: float = 0.0
    machine: dict[str, str] = dataclasses.field(default_factory=dict)


class Picture(NamedTuple):
    """What a section has found, drawn from the JSON file alone and shown above its table.

    says
        For readers who do not see it.
    draw
        Takes the sections of the file by name, of which some may not have been measured.
    """

    says: str
    draw: Callable[[dict[str, dict]], Figure]


def rows_of(sections: dict[str, dict], name: str) -> list[dict[str, Any]]:
    """Rows of a section by column, none where it has not been measured."""
    if name not in sections:
        return []
    columns = sections[name]["columns"]
    return [dict(zip(columns, row, strict=True)) for row in sections[name]["rows"]]


def machine() -> dict[str, str]:
    """Processor, number of cores and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    packages = ("jax", "jaxlib", "numpyro", "blackjax", "diffrax", "arviz-stats")
    device = jax.devices()[0]
    kind = "" if device.platform == "cpu" else f", {device.device_kind}"
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": str(os.cpu_count()),
        "backend": device.platform + kind,
        "python": platform.python_version(),
        **{name: found for name in packages if (found := version_of(name))},
    }


def version_of(package: str) -> str | None:
    """Version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cell(value: Any) -> str:
    """A number with three or four significant digits."""
    if isinstance(value, bool | str):
        return str(value)
    is_large = isinstance(value, int) or abs(value) >= 1000
    return f"{value:,.0f}" if is_large else f"{value:#.4g}".rstrip(".")


def plus_minus(values: np.ndarray, digits: int = 4) -> str:
    """Mean and, if there are several, standard deviation over chains or seeds."""
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def markdown_table(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def duration(seconds: float) -> str:
    """In seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def origin(section: Section, current: dict[str, str]) -> str:
    """When, how and how long a section was measured, and where that differs from `current`."""
    took = f" in {duration(section.seconds)}" if section.seconds else ""
    others = [f"{k} {v}" for k, v in section.machine.items() if current.get(k) != v]
    where = f", with {', '.join(others)}" if others else ""
    return f"Measured on {section.date} by `{section.command}`{took}{where}."


def section_page(section: Section, current: dict[str, str], picture: str = "") -> str:
    """A section as Markdown: picture and table first, then what was expected of it."""
    table = markdown_table(section.columns, section.rows)
    parts = [f"## {section.title}", section.text, *([picture] if picture else []), table]
    if section.checks:
        rows = [
            [what, value, limit, "yes" if value <= limit else "**no**"]
            for what, value, limit in section.checks
        ]
        parts.append(markdown_table(["ratio", "measured", "at most", "met"], rows))
    parts.append(origin(section, current))
    return "\n\n".join(parts)


def by_name(*sections: Callable[[bool], Section]) -> dict[str, Callable[[bool], Section]]:
    """Sections under the names of their functions."""
    return {section.__name__: section for section in sections}


@dataclasses.dataclass
class Report:
    """A script's sections, and the runner of its command line.

    name
        Name of the script, and of the files in docs/results.
    title
        Title of the page.
    sections
        Functions that measure; each takes whether sizes are small.
    long
        Sections that run only if they are named, or with ``--long``.
    is_full
        Whether the command line asked for the sizes of the paper, where they are larger.
    cache
        Folder of what an interrupted run has measured.
    pictures
        Those that are drawn from the file, by the section that shows them.
    shares
        Shares of the seconds that the command line gives, of sections that ask `seconds_left`;
        none for reports whose sections do not.
    """

    name: str
    title: str
    sections: dict[str, Callable[[bool], Section]]
    long: tuple[str, ...] = ()
    is_full: bool = False
    cache: Path = ROOT / ".cache" / "bench"
    pictures: dict[str, Picture] = dataclasses.field(default_factory=dict)
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    _until: float = dataclasses.field(default=math.inf, init=False)
    _units: Units | None = dataclasses.field(default=None, init=False)
    _output: Path | None = dataclasses.field(default=None, init=False)

    @property
    def script(self) -> str:
        """What runs it, from the root: a file, or the folder of one whose sections have files."""
        folder = f"benchmarks/{self.name}"
        return folder if (ROOT / folder).is_dir() else f"{folder}.py"

    def once(self, key: tuple, function: Callable, *arguments: Any) -> Any:
        """``function(*arguments)``, or what an interrupted run has found it to be.

        `key` names this unit of the section: it must tell it from all others, and hold every
        argument that matters. The result is what JSON makes of it, tuples are lists; arrays stay
        arrays. A line with key and result is printed.
        """
        units = Units(None, {}) if self._units is None else self._units
        return units.once(key, function, *arguments)

    def seconds_left(self) -> float:
        """Seconds that are left of those the command line gives the section that runs."""
        return self._until - time.monotonic()

    def picture(self, figure: Figure, name: str) -> None:
        """Put a picture beside the page of results, if one is written, and close it."""
        if self._output is not None:
            self._output.mkdir(parents=True, exist_ok=True)
            figure.savefig(self._output / name, dpi=80)
        plt.close(figure)

    def shown(self, section: str) -> str:
        """The picture of a section as Markdown."""
        if section not in self.pictures:
            return ""
        return f"![{self.pictures[section].says}]({self.name}_{section}.png)"

    def draw(self, folder: Path) -> None:
        """Draw the pictures of what is in the JSON file of `folder`, and write the page."""
        results = json.loads((folder / f"{self.name}.json").read_text())
        for name, picture in self.pictures.items():
            if name in results["sections"]:
                figure = picture.draw(results["sections"])
                figure.savefig(folder / f"{self.name}_{name}.png", dpi=80)
                plt.close(figure)
        (folder / f"{self.name}.md").write_text(self.page(results))

    def page(self, results: dict) -> str:
        """The whole page from what is in the JSON file."""
        facts = [[name, value] for name, value in results["machine"].items()]
        sections = [
            section_page(Section(**results["sections"][name]), results["machine"], self.shown(name))
            for name in self.sections
            if name in results["sections"]
        ]
        return (
            "\n\n".join([f"# {self.title}", markdown_table(["machine", ""], facts), *sections])
            + "\n"
        )

    def save(self, folder: Path, new: dict[str, Section]) -> None:
        """Put the sections in the JSON file of `folder` and write the page."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        results = json.loads(path.read_text()) if path.exists() else {"sections": {}}
        results["machine"] = machine()
        results["sections"] |= {name: dataclasses.asdict(section) for name, section in new.items()}
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False, default=float) + "\n")
        self.draw(folder)

    def parse(self, arguments: list[str] | None) -> argparse.Namespace:
        """Arguments of the command line."""
        parser = argparse.ArgumentParser(description=self.title)
        names = list(self.sections)
        parser.add_argument("sections", nargs="*", help=f"which of {names}")
        parser.add_argument(
            "--long", action="store_true", help=f"with {list(self.long)}, if no section is named"
        )
        parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
        parser.add_argument("--full", action="store_true", help="sizes of the paper where larger")
        parser.add_argument(
            "--draw", action="store_true", help="draw what has been measured, and measure nothing"
        )
        parser.add_argument(
            "--fresh", action="store_true", help="forget what an interrupted run has measured"
        )
        parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
        parser.add_argument(
            "--data-dir", type=Path, help=f"folder of the data (else ${data.VARIABLE})"
        )
        parser.add_argument(
            "--seconds", type=float, help="most of all sections, which leave out what is beyond"
        )
        options = parser.parse_args(arguments)
        if options.seconds is not None and not self.shares:
            parser.error("--seconds: the sections of this report do not stop by themselves")
        if unknown := sorted(set(options.sections) - set(names)):
            parser.error(f"unknown sections {unknown}; choose from {names}")
        if options.data_dir is not None and not options.data_dir.is_dir():
            parser.error(f"--data-dir: {options.data_dir} is not a folder")
        return options

    def main(self, arguments: list[str] | None = None) -> None:
        """Run the sections that are named, print them, and write the page."""
        options = self.parse(arguments)
        if options.draw:
            self.draw(options.output)
            return
        data.use(options.data_dir)
        self.is_full = options.full
        names, failed = self.chosen(options), []
        end = time.monotonic() + (options.seconds or math.inf)
        for at, name in enumerate(names):
            print(f"{name}: {self.sections[name].__doc__}", flush=True)
            self._until = self.end_of(names[at:], end)
            try:
                section = self.measure(name, options)
            except Exception:
                if options.seconds is None:
                    raise
                traceback.print_exc()  # where time is lent, the others are worth more
                failed.append(name)
                continue
            print("\n" + section_page(section, machine()) + "\n", flush=True)
            if not options.quick:
                self.save(options.output, {name: section})
                self.units_of(name, options).forget()
            jax.clear_caches()  # programs hold the data that they were made for
        if failed:
            raise SystemExit(f"these sections failed: {failed}")

    def end_of(self, names: list[str], end: float) -> float:
        """When the first of the sections ends, if all of them end at `end`."""
        shares = [self.shares.get(name, 1.0) for name in names]
        now = time.monotonic()
        return now + (end - now) * shares[0] / sum(shares)

    def chosen(self, options: argparse.Namespace) -> list[str]:
        """Sections to run: those named, or all but the long ones."""
        is_all = options.long or options.quick
        left_out = set() if options.sections or is_all else set(self.long)
        if left_out:
            print(f"without {sorted(left_out)}, which take long: name them, or --long", flush=True)
        return options.sections or [name for name in self.sections if name not in left_out]

    def units_of(self, name: str, options: argparse.Namespace) -> Units:
        """Units of a section; quick ones are kept nowhere, and full ones apart from the others."""
        file = f"{name}-full.json" if options.full else f"{name}.json"
        return Units(None if options.quick else self.cache / self.name / file, machine())

    def measure(self, name: str, options: argparse.Namespace) -> Section:
        """A section, with what an interrupted run has left of it."""
        units = self.units_of(name, options)
        if options.fresh:
            units.forget()
        self._units, self._output = units, None if options.quick else options.output
        start = time.perf_counter()
        try:
            section = self.sections[name](options.quick)
        finally:
            self._units, self._output = None, None
        section.date = datetime.date.today().isoformat()
        flags = ["--full"] if options.full else []
        section.command = shlex.join(["python", self.script, name, *flags])
        section.seconds = round(time.perf_counter() - start + units.seconds, 1)
        section.machine = machine()
        return section
