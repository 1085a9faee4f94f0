"""The demonstration runs from the command line, prints its tables and writes its page."""

import base64
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("matplotlib")  # comes with an extra, as ArviZ does
pytest.importorskip("arviz_stats")
pytest.importorskip("diffrax")

from examples.demo import __main__ as command
from examples.demo import chains, chapter, epidemic, funnel, many_rows, page, two_modes

ROOT = Path(__file__).parents[2]
FINITE = re.compile(r"^-?[\d,]*\.?\d+( ± \d+\.\d+)?$")


# all chapters take eight minutes
ALL = pytest.param((1, 2, 3, 4, 5), id="all", marks=pytest.mark.full)


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """Chapters, the page of a demonstration with small sizes, and what was printed."""
    folder = tmp_path_factory.mktemp("demo")
    arguments = ["--quick", "--seed", "1", "--out", str(folder)]
    if len(request.param) == 1:
        arguments += ["--chapter", str(*request.param)]
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr + done.stdout
    return request.param, (folder / "report.html").read_text(encoding="utf-8"), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ran", [(4,), ALL], indirect=True)
def test_page_has_chapters_and_their_pictures(ran):
    numbers, text, printed = ran
    titles = re.findall(r"<h2>\d\. (.*?)</h2>", text)
    assert len(titles) == len(numbers) == text.count("<details>")
    found = zip(numbers, titles, strict=True)
    assert all(f"{i}/5 {title}. ..." in printed for i, title in found)
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == len(numbers)
    for picture in map(base64.b64decode, pictures):
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert not re.findall(r'(src|href)="(?!data:|#)', text)  # nothing from elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("ran", [(4,), ALL], indirect=True)
def test_tables_have_finite_numbers(ran):
    tables = re.findall(r"<table>.*?</table>", ran[1], flags=re.DOTALL)
    assert len(tables) == len(ran[0])
    for table in tables:
        rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("</tr>")]
        rows = [cells for cells in rows if cells]
        assert len(rows) >= 2 and any(cells[0].startswith("NUTS") for cells in rows)
        assert all(len(cells) == len(re.findall("<th ", table)) for cells in rows)
        for cell in (cell for cells in rows for cell in cells[1:]):
            assert cell in ("", "none", "fails") or FINITE.match(cell), cell


@pytest.mark.parametrize("ran", [ALL], indirect=True)
def test_chapters_find_what_is_known(ran):
    assert "Reverse-mode differentiation" in ran[2]
    days = re.findall(r"^(?:Emulated|random walk) +([\d.]+) +([\d.]+)", ran[2], flags=re.MULTILINE)
    (ours, _), (walk, sd) = [map(float, cells) for cells in days]
    assert abs(ours - walk) < 0.5 * sd
    found = re.search(r"^LangevinSMC +(-[\d.]+) ± ([\d.]+)", ran[2], flags=re.MULTILINE)
    assert abs(float(found[1]) - two_modes.log_evidence()) < 5 * float(found[2])


def test_missing_extra_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(command, "EXTRA", ("matplotlib", "no_such_module"))
    with pytest.raises(SystemExit, match="no_such_module: install with the extras demo and ode"):
        command.main(["--quick"])


def test_nested_spans_of_time_count_once():
    assert chains.covered([(2.0, 3.0), (0.0, 1.0), (0.25, 0.5), (2.5, 4.0)]) == 3.0
    assert chains.covered([]) == 0.0


def test_cells_and_titles_are_escaped(tmp_path):
    (tmp_path / "a.png").write_bytes(b"picture")
    code = chapter.code_of("run(a < b)", "run(b)", epidemic.model)
    results = chapter.Results(("", "x"), [("<i>", "1.0")], "r", None, "c", "s", code)
    one = chapter.Chapter("a < b", "q", tmp_path / "a.png", results)
    page.write(tmp_path / "report.html", [one], "facts")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "a &lt; b" in text and "<td>&lt;i&gt;</td>" in text
    assert base64.b64encode(b"picture").decode() in text
    assert "def model(counts)" in text and "- run(a &lt; b)\n+ run(b)" in text
    assert text.index("</a>: s</li>") < text.index("<section")  # what came out stands on top


def test_evidence_in_closed_form():
    grid = np.linspace(-8.0, 8.0, 4001)
    prior = scipy.stats.norm(0, two_modes.SCALE).pdf(grid)
    evidence = sum(
        share
        * np.trapezoid(prior * scipy.stats.norm(at, two_modes.WIDTH).pdf(grid), grid)
        ** two_modes.SIZE
        for at, share in two_modes.SHARES.items()
    )
    np.testing.assert_allclose(np.log(evidence), two_modes.log_evidence())
    np.testing.assert_allclose(np.trapezoid(two_modes.density(grid), grid), 1.0, rtol=1e-6)


def test_density_on_a_grid():
    # theta and mu of the eight schools integrated out: y is normal given tau
    tau = np.exp(funnel.LOG_TAU_GRID[[3000, 4500]])
    likelihood = [
        scipy.stats.multivariate_normal(
            np.zeros(8), np.diag(funnel.ERRORS**2 + each**2) + 25 * np.ones((8, 8))
        ).pdf(funnel.EFFECTS)
        for each in tau
    ]
    expected = likelihood * scipy.stats.halfcauchy(scale=5).pdf(tau) * tau
    found = funnel.density_of_log_tau()[[3000, 4500]]
    np.testing.assert_allclose(found[1] / found[0], expected[1] / expected[0], rtol=1e-8)


def test_the_mode_of_many_rows_is_where_the_gradient_vanishes():
    x, y = map(np.asarray, many_rows.simulated(500, seed=0))
    mode, sd = many_rows.at_mode(x, y)
    gradient = x.T.astype(float) @ (y - 1 / (1 + np.exp(-x @ mode))) - mode
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)
    assert np.all((0 < sd) & (sd < 1))
