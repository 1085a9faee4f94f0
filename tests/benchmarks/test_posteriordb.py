"""posteriordb: data and references are the published ones, tables say what runs found."""

import hashlib
import inspect
import json

import jax
import numpy as np
import pytest

pytest.importorskip("diffrax")
pytest.importorskip("sklearn")

from numpyro.infer.util import initialize_model

from benchmarks import posteriordb as script
from benchmarks.harness import posteriordb
from benchmarks.harness.posteriordb import fetched, ports
from benchmarks.harness.posteriordb.runs import worth_of

HERE = ports.HERE
DENSITIES = json.loads((HERE / "density.json").read_text())
SOLVED = ("lotka_volterra", "one_comp_mm_elim_abs", "sir", "soil_incubation")  # by a solver


def test_data_are_the_published_ones():
    sums = json.loads((HERE / "checksums.json").read_text())
    here = {path.name: path.read_bytes() for path in (HERE / "data").glob("*.zip")}
    assert len(here) > 80
    for name, content in here.items():
        assert hashlib.sha256(content).hexdigest() == sums[name], name
        assert len(content) <= fetched.SMALL


@pytest.mark.parametrize("name", posteriordb.PORTS)
def test_a_port_names_data_of_stans_program(name):
    try:
        data = ports.data_of(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert set(inspect.signature(posteriordb.PORTS[name]).parameters) <= set(data)


def test_densities_are_those_of_stan():
    """The largest deviation over eight points."""
    assert set(DENSITIES) == set(posteriordb.PORTS)
    for name, deviation in DENSITIES.items():
        is_solved = name.split("-", 1)[1] in SOLVED
        assert 0 <= deviation < (1e-5 if is_solved else 1e-9), name


@pytest.mark.parametrize(
    "name", ["eight_schools-eight_schools_noncentered", "hmm_example-hmm_example", "arK-arK"]
)
def test_a_reference_has_the_sites_of_the_port(name):
    model, reference = posteriordb.model_of(name), posteriordb.reference_of(name)
    info = initialize_model(jax.random.key(0), model, validate_grad=False)
    assert np.isfinite(info.potential_fn(info.param_info.z))
    sites = info.postprocess_fn(info.param_info.z)
    for site, (mean, sd) in reference.items():
        assert sites[site].shape == mean.shape == sd.shape
        assert (sd > 0).all()


def test_posteriors_without_data_say_how_they_are_fetched(monkeypatch):
    monkeypatch.setattr(ports, "FETCHED", HERE / "none")
    with pytest.raises(FileNotFoundError, match="fetched CLONE"):
        ports.data_of("prostate-logistic_regression_rhs")
    with pytest.raises(ValueError, match="two ports"):
        ports.port("arK-arK")(lambda y: None)


def test_halves_are_fixed():
    halves = script.HALVES
    assert set(halves["looked_at"]).isdisjoint(halves["held_out"])
    assert len(halves["held_out"]) > 60
    assert posteriordb.is_held_out("dogs-dogs")
    assert not posteriordb.is_held_out("arK-arK")


def test_worth_is_that_of_the_worst_entry_that_moves():
    rng = np.random.default_rng(0)
    x, still = rng.normal(size=(4, 500, 2)), np.ones((4, 500, 1))
    slow = np.repeat(rng.normal(size=(4, 50)), 10, axis=1)
    found = {"draws": {"x": np.concatenate([x, still], -1), "slow": slow, "seen": slow + 9}}
    reference = {"x": (np.array([0.5, 0, 1]), np.ones(3)), "seen": (np.array(9.0), np.array(1.0))}
    found |= {"gradients": 10.0, "in warm-up": 5.0, "diverging": 0}
    worth = worth_of(found, {"x", "slow"}, reference)
    assert 50 < worth["bulk"] < 400
    assert worth_of(found, {"x"}, None)["bulk"] > 1_000
    assert 0.4 < worth["error"] < 0.6
    found["draws"]["seen"][0, 0] = np.nan
    assert worth_of(found, {"x"}, reference)["error"] == np.inf


def run(bulk, rhat=1.0, error=0.0):
    return {
        **{"bulk": bulk, "tail": bulk / 2, "rhat": rhat, "gradients": 1_000.0, "in warm-up": 250.0},
        **{"diverging": 0, "error": error, "error of sd": 0.0, "seconds": 2.0},
    }


def test_tables_say_what_runs_found(monkeypatch, tmp_path):
    monkeypatch.setattr(script, "RUNS", tmp_path / "runs.json")
    ours, theirs = script.HALVES["looked_at"][:2]
    for name, runs in ((ours, [run(300.0), run(100.0)]), (theirs, [run(10.0, 1.2, 0.3)])):
        script.keep(name, 3, "AutoNUTS", {"runs": runs})
        script.keep(name, 3, "NUTS", {"runs": [run(50.0, error=0.3)]})
    script.keep(theirs, 3, "nutpie", {"failed": "why"})
    assert script.kept()[theirs]["nutpie"] == {"failed": "why"}
    rows = {tuple(row[:2]): row[2:] for row in script.medians(True).rows}
    assert set(rows) == {("looked at", "NUTS"), ("all", "NUTS")}
    number, seeds, right, of_other, misleading, other_misleads, ratio, least, *_ = rows[
        "all", "NUTS"
    ]
    assert seeds == 1
    assert (number, right, of_other, misleading, other_misleads) == (2, 1, 0, 0, 2)
    assert ratio == pytest.approx((4 + 0.2) / 2)
    assert least == pytest.approx(0.2)
    for other, bulk in ((ours, 400.0), (theirs, 25.0)):
        script.keep(other, 3, "NUTS, dense", {"runs": [run(bulk)]})
    rows = {tuple(row[:2]): row[2:] for row in script.medians(True).rows}
    assert rows["all", script.BEST_NUTS][7] == pytest.approx(0.2)  # 10 of 50, and 200 of 400
    found = {row[0]: row for row in script.by_posterior("looked_at", True).rows}
    assert found[ours][2:4] == [200.0, 50.0] and found[theirs][5] == "-"
    assert not script.by_posterior("held_out", True).rows
    script.plt.close(script.drawn({}))
