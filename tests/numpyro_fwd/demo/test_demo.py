"""The demonstration runs from the command line, writes its files and prints its tables."""

import re
import subprocess
import sys

import arviz as az
import numpy as np
import pytest
from numpyro.handlers import seed
from numpyro.infer.util import log_density

from numpyro_fwd import AMAGOLD
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.demo import command, sampling

SAMPLERS = [sampler.__name__ for sampler in sampling.QUICK_SAMPLERS]
COLUMNS = {
    "sampler", "accept", "min-ESS", "ESS/s", "R-hat", "mean-error", "sd-ratio", "steps", "seconds",
    "compile",
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder the quick demonstration ran in, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "numpyro_fwd", "--quick", "--seed", "1"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.mark.slow
def test_writes_pictures_and_draws(ran):
    folder, _ = ran
    pictures = {"regression_traces.png", "funnel_traces.png", "funnel_scatter.png"}
    draws = {f"{target}_{name}.nc" for target in ("regression", "funnel") for name in SAMPLERS}
    assert {path.name for path in (folder / "demo").iterdir()} == pictures | draws
    for name in pictures:
        header = (folder / "demo" / name).read_bytes()
        assert header.startswith(b"\x89PNG") and len(header) > 20_000


@pytest.mark.slow
def test_draws_can_be_read(ran):
    idata = az.from_netcdf(str(ran[0] / "demo" / "regression_FMALA.nc"))
    assert idata.posterior["weights"].shape[::2] == (sampling.NUM_CHAINS, 30)
    assert "worst perimeter" in idata.posterior["covariate"]
    assert np.isfinite(idata.posterior["weights"]).all()


@pytest.mark.slow
def test_prints_a_table_per_target(ran):
    printed = ran[1].stdout
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


@pytest.mark.slow
def test_no_warnings_are_shown(ran):
    assert "Warning" not in ran[1].stderr + ran[1].stdout


def test_missing_extra_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(command, "EXTRA", ("matplotlib", "no_such_module"))
    with pytest.raises(SystemExit, match=r"needs no_such_module: pip install numpyro-fwd\[demo\]"):
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
