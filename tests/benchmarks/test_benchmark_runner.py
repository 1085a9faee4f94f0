"""The benchmarks' data and runner: where files are sought, and what an interrupted run keeps."""

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

pytest.importorskip("diffrax")
pytest.importorskip("flax")
pytest.importorskip("sklearn")

from numpyro.examples import datasets

from benchmarks.harness import data, kept_results, report, timing
from benchmarks.harness.report import ROOT, Report, Section

# --- data -----------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Folders of the command line, the environment and the default, each with one table."""
    found = {name: tmp_path / name for name in ("chosen", "variable", "default")}
    for i, folder in enumerate(found.values()):
        (folder / "swiss").mkdir(parents=True)
        np.savetxt(folder / "swiss" / "swiss.txt", np.full((2, 5), i))
    monkeypatch.setattr(data, "DEFAULT", found["default"])
    monkeypatch.delenv(data.VARIABLE, raising=False)
    yield found
    data.use(None)


def test_the_command_line_goes_before_the_environment_and_that_before_the_default(
    folders, monkeypatch
):
    assert data.swiss()[1][0] == 2
    monkeypatch.setenv(data.VARIABLE, str(folders["variable"]))
    assert data.swiss()[1][0] == 1
    data.use(folders["chosen"])
    assert data.swiss()[1][0] == 0
    data.use(None)
    assert data.swiss()[1][0] == 1


@pytest.mark.parametrize(
    ("named", "reason"), [(None, "default"), ("variable", data.VARIABLE), ("chosen", "--data-dir")]
)
def test_a_missing_file_is_named_with_its_place_and_publisher(folders, monkeypatch, named, reason):
    if named == "variable":
        monkeypatch.setenv(data.VARIABLE, str(folders[named]))
    elif named:
        data.use(folders[named])
    with pytest.raises(FileNotFoundError) as error:
        data.uci("heart")
    message = str(error.value)
    assert "uci/heart.dat is not in" in message
    assert f"{folders[named or 'default']}, the " in message
    assert reason in message
    assert "natixvi/Inne" in message


def test_mnist_is_downloaded_where_no_folder_is_named(folders, monkeypatch):
    x, y = np.full((3, 28, 28), 0.5), np.array([3, 1, 2], np.int8)

    def load(dataset, split, shuffle):
        assert (dataset, split, shuffle) == (datasets.MNIST, "test", False)
        return lambda: (1, np.arange(3)), lambda i, order: (x[order], y[order])

    monkeypatch.setattr(datasets, "load_dataset", load)
    pixels, labels = data.images("mnist", "t10k")
    assert pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels, x)
    np.testing.assert_array_equal(labels, [3, 1, 2])
    data.use(folders["chosen"])
    with pytest.raises(FileNotFoundError, match="pyro-ppl/datasets"):
        data.images("mnist", "t10k")


def test_mnist_without_network_is_a_missing_file(folders, monkeypatch):
    def load(*arguments, **options):
        raise URLError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(FileNotFoundError, match="images/mnist/train-images") as error:
        data.images("mnist", "train")
    assert isinstance(error.value.__cause__, URLError)


@pytest.mark.parametrize(
    ("load", "arguments", "publisher"),
    [
        (data.uci, ("australian",), "bdsul/grape"),
        (data.wine, (), "Mikhaylov-yv/Vino"),
        (data.california, (), "lapets/course-data-science"),
        (data.barro_colorado, (), "papamarkou/GAMCSampler.jl"),
        (data.images, ("fashion", "t10k"), "zalandoresearch/fashion-mnist"),
    ],
)
def test_every_set_has_a_publisher(folders, load, arguments, publisher):
    with pytest.raises(FileNotFoundError, match=publisher):
        load(*arguments)


# --- runner ---------------------------------------------------------------------------------------


class Script:
    """A script with a section of four units, of which the third fails at first."""

    def __init__(self, folder: Path):
        self.calls: list[int] = []
        self.fails = True
        self.output = folder / "results"
        self.report = Report("script", "Title", {"table": self.table}, cache=folder / "cache")

    def unit(self, i: int) -> dict:
        self.calls.append(i)
        if i == 2 and self.fails:
            raise KeyboardInterrupt
        return {"cells": (i, 0.1 * i), "draws": np.full(3, i, np.float32)}

    def table(self, quick: bool) -> Section:
        """Doubles."""
        found = [self.report.once(("unit", i), self.unit, i) for i in range(4)]
        rows = [[*each["cells"], float(each["draws"].sum())] for each in found]
        return Section("Table", "Text.", ["i", "tenth", "sum"], rows)

    def run(self, *flags: str) -> list[int]:
        """Units that a run measures."""
        self.calls = []
        self.report.main(["table", "--output", str(self.output), *flags])
        return self.calls

    def interrupt(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.run()
        assert self.calls == [0, 1, 2]
        self.fails = False

    @property
    def file(self) -> Path:
        return self.report.cache / "script" / "table.json"


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


def test_a_run_continues_where_it_was_interrupted(script, capsys):
    script.interrupt()
    assert not (script.output / "script.json").exists()
    assert script.run() == [2, 3]
    assert "unit, 1: cells: [1, 0.1], draws: array (3,) (from an interrupted run)" in (
        capsys.readouterr().out
    )
    results = json.loads((script.output / "script.json").read_text())
    assert results["sections"]["table"]["rows"] == [[i, 0.1 * i, 3.0 * i] for i in range(4)]
    assert not script.file.exists()
    assert script.run() == [0, 1, 2, 3]


def test_arrays_come_back_as_they_were(script):
    script.interrupt()
    kept = json.loads(script.file.read_text(), object_hook=kept_results.decode)["units"]
    draws = kept['["unit", 1]']["value"]["draws"]
    assert draws.dtype == np.float32
    np.testing.assert_array_equal(draws, [1, 1, 1])


@pytest.mark.parametrize("changed", ["versions", "sources", "precision"])
def test_units_of_other_versions_do_not_count(script, monkeypatch, changed, request):
    script.interrupt()
    if changed == "versions":
        monkeypatch.setattr(report, "machine", lambda: {"jax": "another"})
    elif changed == "sources":
        monkeypatch.setattr(kept_results, "source_digest", lambda: "another")
    else:
        request.getfixturevalue("x64")
    assert script.run() == [0, 1, 2, 3]


@pytest.mark.parametrize("file", ["smc.py", "harness/models.py", "amagold/network.py"])
def test_sources_are_those_of_all_folders(tmp_path, monkeypatch, file):
    path = tmp_path / "benchmarks" / file
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(kept_results, "ROOT", tmp_path)
    digests = set()
    for text in ("1", "2"):
        path.write_text(text)
        digests.add(kept_results.source_digest.__wrapped__())
    assert len(digests) == 2
    assert (ROOT / "benchmarks" / file).is_file()


def test_fresh_forgets_what_was_measured(script):
    script.interrupt()
    assert script.run("--fresh") == [0, 1, 2, 3]


def test_full_and_quick_runs_keep_apart(script):
    script.interrupt()
    assert script.run("--full") == [0, 1, 2, 3]
    assert script.run("--quick") == [0, 1, 2, 3]
    assert script.run() == [2, 3]


def test_units_need_names_of_their_own(script):
    script.report.sections["table"] = lambda quick: [
        script.report.once(("unit",), script.unit, i) for i in range(2)
    ]
    with pytest.raises(ValueError, match=r'two units of a section are called \["unit"\]'):
        script.run()


def test_long_sections_run_if_they_are_asked_for(script, capsys):
    script.fails, script.report.long = False, ("table",)
    for flags, num in (((), 0), (("--long",), 4), (("--quick",), 4), (("table",), 4)):
        script.calls = []
        script.report.main([*flags, "--output", str(script.output)])
        assert len(script.calls) == num
    assert "without ['table'], which take long" in capsys.readouterr().out


def test_a_result_that_json_does_not_know_is_refused(script):
    with pytest.raises(TypeError, match="a unit returns numbers"):
        script.report.once(("unit",), object)


def test_folder_that_is_none_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.run("--data-dir", "/nowhere")
    assert "/nowhere is not a folder" in capsys.readouterr().err


def test_a_section_tells_where_its_machine_differs_and_how_long_it_took(script):
    script.fails = False
    script.run()
    path = script.output / "script.json"
    results = json.loads(path.read_text())
    assert results["sections"]["table"]["machine"] == results["machine"]
    results["sections"]["table"] |= {"seconds": 240.0, "machine": {"jax": "0.1"}}
    page = script.report.page(results)
    assert "` in 4 minutes, with jax 0.1." in page


# --- pages ----------------------------------------------------------------------------------------

RESULTS = ROOT / "docs" / "results"
BENCHMARKS = ROOT / "benchmarks"


class Timed:
    """A report of two sections that measure until their time is over, on a clock of its own."""

    def __init__(self, monkeypatch, folder):
        self.now, self.folder, self.ends = 0.0, folder, {}
        monkeypatch.setattr(report.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(report, "machine", lambda: {"jax": "some"})
        sections = {name: lambda quick, name=name: self.measure(name) for name in ("one", "two")}
        self.report = Report(
            "timed", "Title", sections, cache=folder / "cache", shares={"one": 1.0, "two": 3.0}
        )

    def measure(self, name):
        while self.report.seconds_left() > 0 and self.now < 1_000:
            self.now += 1.0
        self.ends[name] = self.now
        if name == "one" and self.fails:
            raise ValueError("broken")
        return Section(name, "Text.", ["a"], [[1]])

    fails = False

    def main(self, *flags):
        self.report.main([*flags, "--output", str(self.folder)])
        return self.ends


def test_sections_share_the_seconds_that_are_given(monkeypatch, tmp_path):
    assert Timed(monkeypatch, tmp_path).main("--seconds", "100") == {"one": 25.0, "two": 100.0}
    assert Timed(monkeypatch, tmp_path).main("two", "--seconds", "100") == {"two": 100.0}
    assert Timed(monkeypatch, tmp_path).main() == {"one": 1_000.0, "two": 1_000.0}  # no limit


def test_a_section_that_fails_leaves_the_others_their_time(monkeypatch, tmp_path, capsys):
    timed = Timed(monkeypatch, tmp_path)
    timed.fails = True
    with pytest.raises(SystemExit, match="one"):
        timed.main("--seconds", "100")
    assert "broken" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "timed.json").read_text())["sections"]) == ["two"]
    with pytest.raises(ValueError, match="broken"):
        timed.main()


def test_reports_whose_sections_do_not_stop_take_no_seconds(script, capsys):
    with pytest.raises(SystemExit):
        script.report.main(["--seconds", "5"])
    assert "do not stop by themselves" in capsys.readouterr().err


def report_of(name: str) -> Report:
    """That of a script, or of a folder."""
    module = f"{name}.sections" if (BENCHMARKS / name).is_dir() else name
    return importlib.import_module(f"benchmarks.{module}").REPORT


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_pages_are_those_of_their_files(path):
    script = report_of(path.stem)
    results = json.loads(path.read_text())
    assert set(results["sections"]) <= set(script.sections)
    assert path.with_suffix(".md").read_text() == script.page(results)


PICTURES = [
    (path.stem, name)
    for path in sorted(RESULTS.glob("*.json"))
    for name in report_of(path.stem).pictures
]


@pytest.mark.parametrize(("name", "section"), PICTURES, ids="-".join)
def test_pictures_are_drawn_from_the_files(name, section):
    sections = json.loads((RESULTS / f"{name}.json").read_text())["sections"]
    figure = report_of(name).pictures[section].draw(sections)
    assert all(len(ax.lines) + len(ax.patches) > 0 for ax in figure.axes)
    report.plt.close(figure)
    assert (RESULTS / f"{name}_{section}.png").is_file()


def test_pictures_are_drawn_without_measuring(script):
    def draw(sections):
        rows = report.rows_of(sections, "table")
        figure, ax = report.plt.subplots()
        ax.plot([row["i"] for row in rows], [row["sum"] for row in rows])
        assert report.rows_of(sections, "not measured") == []
        return figure

    script.fails = False
    script.report.pictures["table"] = report.Picture("Sums", draw)
    script.run()
    picture = script.output / "script_table.png"
    assert (
        "Text.\n\n![Sums](script_table.png)\n\n| i |" in (script.output / "script.md").read_text()
    )
    picture.unlink()
    assert script.run("--draw") == [] and picture.is_file()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_quoted_commands_run_what_is_there(path):
    for name, section in json.loads(path.read_text())["sections"].items():
        python, script, *sections = shlex.split(section["command"])
        assert (python, script) == ("python", report_of(path.stem).script)
        assert (ROOT / script).exists() and name in sections


# --- command lines --------------------------------------------------------------------------------

MODULES = sorted(path.relative_to(ROOT) for path in BENCHMARKS.rglob("*.py"))


class Unread(list):
    """Arguments that no benchmark may look at; jax goes through them, for the keys of its cache."""

    def refuse(self, *arguments):
        reader = sys._getframe(1).f_code.co_filename
        if reader == __file__ or Path(reader).is_relative_to(BENCHMARKS):
            raise AssertionError("sys.argv is read at import")
        return iter(())

    __contains__ = __getitem__ = __iter__ = __len__ = refuse


def test_arguments_that_are_read_are_refused():
    with pytest.raises(AssertionError, match=r"sys\.argv is read"):
        list(Unread())


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_an_import_reads_no_command_line_and_moves_to_no_core(path, monkeypatch):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)  # what it imports may read what it wants
    monkeypatch.setattr(sys, "argv", Unread())
    monkeypatch.setattr(timing, "on_one_core", Unread().refuse)
    spec = importlib.util.spec_from_file_location("imported", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "imported", module)
    spec.loader.exec_module(module)


def test_the_makefile_names_what_is_there():
    text = (ROOT / "Makefile").read_text()
    named = re.search(r"^BENCHMARKS = (.*)$", text, re.MULTILINE).group(1).replace("-", "_").split()
    folders = {path.parent.name for path in BENCHMARKS.glob("*/__main__.py")}
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - {"__init__"}
    assert {*named, "gpu"} == folders | scripts  # gpu needs an accelerator


@pytest.mark.parametrize("script", [["-m", "benchmarks.amagold"], [str(BENCHMARKS / "amagold")]])
def test_a_folder_runs_like_a_script(script, tmp_path):
    is_module = script[0] == "-m"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, *script, "nothing"],
        cwd=ROOT if is_module else tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    assert "unknown sections ['nothing']; choose from ['rows_1e5'" in found.stderr


@pytest.mark.parametrize(("names", "pins"), [(["memory"], False), (["synthetic"], True)])
def test_only_sections_that_need_all_cores_get_them(names, pins, monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "on_one_core", lambda: calls.append("core"))
    monkeypatch.setattr(Report, "main", lambda report, arguments: calls.append(arguments))
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.import_module("benchmarks.amagold.__main__").main(names)
    assert calls == ["core"] * pins + [names]


@pytest.mark.parametrize("name", ["amagold", "below_one_pass"])
def test_a_process_moves_to_one_core_before_jax_has_threads(name):
    """What a script imports until then starts no thread of jax, which would stay on all cores."""
    text = f"""
import runpy, sys
from jax._src import xla_bridge
from benchmarks.harness import timing

def on_one_core():
    assert not xla_bridge.backends_are_initialized() and "blackjax" not in sys.modules
    print("moved")
    sys.exit()

timing.on_one_core = on_one_core
runpy.run_module("benchmarks.{name}", run_name="__main__", alter_sys=True)
"""
    found = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "moved\n"
