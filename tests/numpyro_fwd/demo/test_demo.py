"""The demonstration runs from the command line, writes its files and prints its tables."""

import base64
import re
import subprocess
import sys

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
import xarray
from numpyro.handlers import seed
from numpyro.infer.util import log_density

import numpyro_fwd
from numpyro_fwd import AMAGOLD, LangevinSMC
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.demo import command, report, sampling
from numpyro_fwd.demo.chapter import Chapter, code_of
from numpyro_fwd.demo.chapters import CHAPTERS, two_modes

SAMPLERS = [sampler.__name__ for sampler in sampling.QUICK_SAMPLERS]
COLUMNS = {
    "sampler", "accept", "min-ESS", "ESS/s", "R-hat", "mean-error", "sd-ratio", "steps", "seconds",
    "compile",
}  # fmt: skip


FINITE = re.compile(r"^-?[\d,]*\.?\d+( ± \d+\.\d+)?$")


def run_in(folder, *arguments):
    """What a demonstration with small sizes printed."""
    done = subprocess.run(
        [sys.executable, "-m", "numpyro_fwd", "--quick", "--seed", "1", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder the chapters were worked through in, and what was printed."""
    return run_in(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def toured(tmp_path_factory):
    """Folder the tour ran in, and what it printed."""
    return run_in(tmp_path_factory.mktemp("tour"), "--all")


def page_of(ran) -> str:
    """The report."""
    return (ran[0] / "demo" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_report_has_five_chapters_and_their_pictures(ran):
    page = page_of(ran)
    assert len(re.findall("<section ", page)) == len(CHAPTERS) == 5
    for module in CHAPTERS:
        assert f"{module.NAME}</h2>" in page
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 5 == page.count("<details>")
    for picture in map(base64.b64decode, pictures):
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert not re.findall(r'(src|href)="(?!data:|#)', page)  # nothing from elsewhere


@pytest.mark.slow
def test_tables_have_finite_numbers(ran):
    tables = re.findall(r"<table>.*?</table>", page_of(ran), flags=re.DOTALL)
    assert len(tables) == 5
    for table in tables:
        rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("</tr>")]
        rows = [cells for cells in rows if cells]
        assert len(rows) >= 2 and any(cells[0].startswith("NUTS") for cells in rows)
        assert all(len(cells) == len(re.findall("<th ", table)) for cells in rows)
        for cell in (cell for cells in rows for cell in cells[1:]):
            assert cell in ("", "none", "fails") or FINITE.match(cell), cell


@pytest.mark.slow
def test_chapters_keep_their_draws(ran):
    names = re.findall(r"<code>(\w+\.nc)</code>", page_of(ran))
    assert {name[0] for name in names} == set("12345")
    for name in names:
        posterior = xarray.open_datatree(str(ran[0] / "demo" / name)).posterior
        assert all(np.isfinite(values).all() for values in posterior.values())


@pytest.mark.slow
def test_says_what_it_is_doing(ran):
    for i, module in enumerate(CHAPTERS, 1):
        assert f"{i}/5 {module.NAME} ..." in ran[1].stdout
    assert len(re.findall(r"^\d+ s, picture: ", ran[1].stdout, flags=re.MULTILINE)) == 5
    assert "Reverse-mode differentiation" in ran[1].stdout


@pytest.mark.slow
def test_particles_find_the_evidence(ran):
    found = re.search(r"^LangevinSMC +(-[\d.]+) ± ([\d.]+)", ran[1].stdout, flags=re.MULTILINE)
    assert abs(float(found[1]) - two_modes.log_evidence()) < 5 * float(found[2])


@pytest.mark.slow
def test_no_warnings_are_shown(ran):
    assert "Warning" not in ran[1].stderr + ran[1].stdout


@pytest.mark.slow
def test_tour_writes_pictures_and_draws(toured):
    folder, _ = toured
    pictures = {"regression_traces.png", "funnel_traces.png", "funnel_scatter.png"}
    draws = {f"{target}_{name}.nc" for target in ("regression", "funnel") for name in SAMPLERS}
    assert {path.name for path in (folder / "demo").iterdir()} == pictures | draws
    for name in pictures:
        header = (folder / "demo" / name).read_bytes()
        assert header.startswith(b"\x89PNG") and len(header) > 20_000


@pytest.mark.slow
def test_draws_of_the_tour_can_be_read(toured):
    idata = xarray.open_datatree(str(toured[0] / "demo" / "regression_FMALA.nc"))
    assert idata.posterior["weights"].shape[::2] == (sampling.NUM_CHAINS, 30)
    assert "worst perimeter" in idata.posterior["covariate"]
    assert np.isfinite(idata.posterior["weights"]).all()


@pytest.mark.slow
def test_tour_prints_a_table_per_target(toured):
    printed = toured[1].stdout
    headers = [line.split() for line in printed.splitlines() if line.startswith("sampler ")]
    assert len(headers) == 2 and all(set(header) == COLUMNS for header in headers)
    for name in SAMPLERS:
        rows = re.findall(rf"^{name} .*", printed, flags=re.MULTILINE)
        assert len(rows) == 2
        for cells in map(str.split, rows):
            assert 0.05 < float(cells[1]) < 1.0
            assert float(cells[2]) > 1.0
    fmala = re.search(r"^FMALA .*", printed, flags=re.MULTILINE)[0].split()
    assert float(fmala[headers[0].index("mean-error")]) < 0.6
    networks = re.findall(r"^(GOHSMC|OHSMC|SGSMC) +-?\d", printed, flags=re.MULTILINE)
    assert networks == ["GOHSMC", "OHSMC", "SGSMC"]


def test_missing_extra_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(command, "EXTRA", ("matplotlib", "no_such_module"))
    with pytest.raises(SystemExit, match="needs no_such_module: install with the extra demo"):
        command.main(["--quick"])


def test_nested_spans_of_time_count_once():
    assert sampling.covered([(2.0, 3.0), (0.0, 1.0), (0.25, 0.5), (2.5, 4.0)]) == 3.0
    assert sampling.covered([]) == 0.0


def test_minibatches_are_of_the_same_posterior():
    regression, funnel = sampling.logistic_regression(), sampling.funnel()
    assert AMAGOLD in [sampler for sampler, _ in sampling.budgets(regression, quick=False)]
    assert AMAGOLD not in [sampler for sampler, _ in sampling.budgets(funnel, quick=False)]
    values = {"intercept": np.float32(0.3), "weights": np.linspace(-1.0, 1.0, 30)}
    densities = [
        log_density(model, regression.data, {}, values)[0]
        for model in (regression.model, FullView(regression.minibatch_model))
    ]
    np.testing.assert_allclose(*densities, rtol=1e-5)
    with seed(rng_seed=0):
        part = log_density(regression.minibatch_model, regression.data, {}, values)[0]
    assert abs(part - densities[0]) > 1.0  # it does read a part of the rows


def test_tour_has_every_kernel():
    base = numpyro_fwd.BlackJAXKernel
    kernels = {
        each
        for each in map(vars(numpyro_fwd).get, numpyro_fwd.__all__)
        if isinstance(each, type) and issubclass(each, base) and each is not base
    }
    missing = kernels - set(sampling.SAMPLERS)
    assert not missing and LangevinSMC in sampling.SAMPLERS


def test_particles_are_shown_in_groups():
    run = sampling.run(small_regression(), LangevinSMC, sampling.Budget(2, 1, 1), jax.random.key(0))
    assert run.idata.posterior["mean"].shape == (sampling.NUM_CHAINS, 500)
    # draws that do not depend on each other have about as many effective ones
    assert 0 < run.ess <= 1.1 * sampling.NUM_PARTICLES and 0 < run.acceptance < 1


def small_regression() -> sampling.Target:
    """A mean of three values."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return sampling.Target("mean", "A mean", model, (np.ones(3),), False, {}, None)


def test_cells_and_titles_are_escaped(tmp_path):
    (tmp_path / "a.png").write_bytes(b"picture")
    chapter = Chapter("a < b", "q", ("", "x"), [("<i>", "1.0")], "a.png", "c", "r", "s")
    code = code_of("run(a < b)", "run(b)", page_of)
    report.write(tmp_path / "report.html", [chapter._replace(code=code)], "facts")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "a &lt; b" in page and "<td>&lt;i&gt;</td>" in page
    assert base64.b64encode(b"picture").decode() in page
    assert "def page_of(ran)" in page and "- run(a &lt; b)\n+ run(b)" in page
    assert page.index("</a>: s</li>") < page.index("<section")  # what came out stands on top


def test_evidence_in_closed_form():
    grid = np.linspace(-8.0, 8.0, 4001)
    prior = scipy.stats.norm(0, two_modes.SCALE).pdf(grid)
    peaks = [
        np.trapezoid(prior * scipy.stats.norm(at, two_modes.MODE_WIDTH).pdf(grid), grid)
        for at in (two_modes.PLACE, -two_modes.PLACE)
    ]
    powers = [peak**two_modes.SIZE for peak in peaks]
    np.testing.assert_allclose(
        np.log(np.dot(two_modes.MODE_SHARES, powers)), two_modes.log_evidence()
    )
    wide = np.linspace(-5, 5, 4001)
    np.testing.assert_allclose(np.trapezoid(two_modes.density(wide), wide), 1.0, rtol=1e-6)
