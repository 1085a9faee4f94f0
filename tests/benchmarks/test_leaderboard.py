"""The leaderboard: its posteriors have references, its rows are the worst of the seeds."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("diffrax")
pytest.importorskip("sklearn")

from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.util import initialize_model, log_density

import numpyro_fwd
from benchmarks import leaderboard
from benchmarks.harness import data, models
from benchmarks.harness.board_posteriors import HITS, NILE, POSTERIORS, PUBLISHED, lynx_hare_rk4
from benchmarks.harness.hierarchies import NOISE

HAVE_DATA = (data.folder() / "swiss" / "swiss.txt").exists()


MADE = json.loads(leaderboard.REFERENCE.read_text())
UNKNOWN = {
    name
    for name, posterior in POSTERIORS.items()
    if not (posterior.exact or name in MADE or name in PUBLISHED)
}


def test_what_has_no_reference_is_not_measured():
    sections = json.loads(leaderboard.RESULTS.read_text())["sections"]
    assert UNKNOWN.isdisjoint(sections)


@pytest.mark.first
@pytest.mark.parametrize("name", POSTERIORS)
def test_a_reference_names_the_sites_and_is_finite(name):
    if name in ("swiss", "trees", "negative_binomial") and not HAVE_DATA:
        pytest.skip("needs the data folder")
    if name in UNKNOWN:
        pytest.skip("has no reference yet, and is not measured")
    truth = leaderboard.reference(name)
    assert truth
    for mean, sd in truth.values():
        assert np.isfinite(mean).all() and (sd > 0).all()
    if name in PUBLISHED:
        return
    model, arguments = POSTERIORS[name].make()
    info = initialize_model(jax.random.key(0), model, model_args=arguments, validate_grad=False)
    z = {site: value[None, None] for site, value in info.param_info.z.items()}
    shapes = {site: x.shape[2:] for site, x in leaderboard.quantities(name, z).items()}
    assert {site: np.shape(mean) for site, (mean, _) in truth.items()}.items() <= shapes.items()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_port_takes_traced_arguments(name):
    """As samplers give them here, though ports may compute from data with NumPy."""
    model, arguments = POSTERIORS[name].make()
    info = initialize_model(
        jax.random.key(0), model, model_args=arguments, dynamic_args=True, validate_grad=False
    )
    energy = jax.eval_shape(
        lambda given: info.potential_fn(*given)(info.param_info.z), tuple(arguments)
    )
    assert energy.shape == ()


def test_references_have_converged():
    for name, found in MADE.items():
        assert found["rhat"] < 1.005 and found["ess"] > 2000, name


def test_there_are_forty_posteriors_and_their_data_are_whole():
    assert len(POSTERIORS) >= 40
    assert len(NILE.split()) == 100
    assert (len(HITS), sum(HITS)) == (18, 215)


def test_fixed_steps_solve_the_equation_as_adaptive_ones_do():
    arguments = data.lynx_hare()
    params = {
        "theta": jnp.array([0.55, 0.028, 0.80, 0.024]),
        "z_init": jnp.array([34.0, 5.9]),
        "sigma": jnp.array([0.25, 0.25]),
    }
    found = log_density(lynx_hare_rk4, arguments, {}, params)[0]
    expected = log_density(models.lynx_hare, arguments, {}, params)[0]
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_errors_of_exact_draws_are_small_and_of_shifted_ones_are_seen():
    draws = {"w": 3 * np.random.default_rng(0).normal(size=(4, 5000))}
    found = leaderboard.judged("funnel", draws)
    assert max(found["mean"], found["sd"]) < 0.03 and found["rhat"] < 1.01
    shifted = leaderboard.judged("funnel", {"w": draws["w"] + 3})
    assert abs(shifted["mean"] - 1) < 0.03
    stuck = leaderboard.judged("funnel", {"w": np.ones((4, 100))})
    assert stuck["rhat"] == np.inf or stuck["ess"] <= 4 * 100
    broken = leaderboard.judged("funnel", {"w": np.full((4, 100), np.nan)})
    assert broken["mean"] == broken["rhat"] == np.inf and broken["ess"] == 0


def test_a_row_is_the_worst_of_the_seeds():
    run = {"rhat": 1.0, "ess": 50.0, "mean": 0.1, "sd": 0.2, "evaluations": 10.0, "seconds": 5.0}
    other = {**run, "rhat": 1.2, "ess": 9.0, "mean": 0.3, "seconds": 1.0}
    third = {**run, "seconds": 3.0}
    found = leaderboard.row("MALA", {"steps": 7, "runs": [run, other, third]})
    assert found == ["MALA", 7, 10.0, 1.2, 0.3, 0.2, 9.0, 5.0, 2.0]
    assert np.isnan(leaderboard.row("MALA", {"failed": "why"})[1:]).all()


def test_shares_of_the_ranking():
    def row(rhat, error):
        return ["MALA", 10, 100.0, rhat, error, 0.1, 50.0, 2.0, 1.0]

    cells = {"a": row(1.0, 0.05), "b": row(1.0, 0.5), "c": row(1.5, 0.05), "d": row(np.nan, np.nan)}
    tables = {name: {"MALA": found} for name, found in cells.items()}
    found = leaderboard.ranked("MALA", tables)
    assert found[:5] == ["MALA", 4, 0.25, 0.5, 0.25]
    assert found[6:] == [500.0, 2.0, 1.0]
    assert leaderboard.ranked("NUTS", tables) == ["NUTS", 0]
    leaderboard.plt.close(leaderboard.picture(tables, ["MALA", "NUTS"]))


def rows_of(**errors):
    """Rows of samplers with 50 effective draws of 100 evaluations."""
    return {n: [n, 10, 100.0, 1.0, error, 0.1, 50.0, 2.0, 1.0] for n, error in errors.items()}


def test_rankings_compare_like_with_like(monkeypatch):
    small = rows_of(**dict.fromkeys(leaderboard.SAMPLERS, 0.05))
    tables = {"a": small, "b": rows_of(NUTS=0.5, AutoNUTS=0.05), "c": rows_of(NUTS=0.05)}
    tables["b"]["AutoNUTS"][6] = 200.0
    tables["a"]["NUTS dense"][6] = 25.0
    tables["b"]["AutoNUTS"][8] = 3.0
    monkeypatch.setattr(leaderboard, "kept_tables", lambda: tables)
    found = {r[0]: r[1] for r in leaderboard.ranking(True).rows}
    assert found == dict.fromkeys(leaderboard.SAMPLERS, 1)
    assert {r[0]: r[1] for r in leaderboard.ranking_large(True).rows} == {"NUTS": 2, "AutoNUTS": 1}
    few, dense, many, both = leaderboard.auto_nuts(True).rows
    assert few[1:] == [1, 1, 1, 1, 1.0, 1.0, 0, 0, 1.0]
    assert dense[1:] == [1, 1, 1, 1, 2.0, 2.0, 0, 0, 1.0]
    assert many[1:] == [1, 1, 0, 1, 4.0, 4.0, 0, 1, 3.0]
    assert both[1:] == [2, 2, 1, 2, 2.5, 1.0, 0, 1, 2.0]
    assert [r[0] for r in leaderboard.pairs(True).rows] == ["a", "b"]


def test_a_sampler_that_failed_is_no_better():
    failed = leaderboard.row("AutoNUTS", {"failed": "why"})
    pair = {
        "AutoNUTS": leaderboard.facts(failed),
        "NUTS": leaderboard.facts(rows_of(NUTS=0.05)["NUTS"]),
    }
    assert leaderboard.compared_pairs([pair])[:5] == [1, 0, 1, 0, 0.0]


def test_many_dimensions_have_few_samplers():
    assert set(leaderboard.samplers_for(10)) == set(leaderboard.SAMPLERS)
    assert not set(leaderboard.samplers_for(50)) & set(leaderboard.WITH_HESSIANS)
    assert leaderboard.samplers_for(100) == list(leaderboard.ON_LARGE)
    assert "NUTS dense" not in leaderboard.samplers_for(1000)


def test_draws_that_are_kept_are_evenly_spaced():
    model, arguments = POSTERIORS["banana"].make()
    found = [
        leaderboard.of_numpyro(numpyro_fwd.RandomWalk(model), arguments, (20, 40), 1.0, every)(0)
        for every in (1, 4)
    ]
    np.testing.assert_array_equal(found[1][0]["a"], found[0][0]["a"][:, 3::4])
    assert found[0][1] == found[1][1] == 60


IN_BOTH_FORMS = [
    *("catches", "growth", "rare_events", "visits", "counties", "crossed", "mark_recapture"),
    *("disease_map", "horseshoe_200", "process_500"),
]


@pytest.mark.first
@pytest.mark.parametrize("name", IN_BOTH_FORMS)
def test_both_forms_are_one_posterior(name):
    """Their densities differ by what the change from noise to effects adds."""
    model, arguments = POSTERIORS[name].make()
    easier = POSTERIORS[name].easier
    info = initialize_model(jax.random.key(1), easier, model_args=arguments, validate_grad=False)
    z = jax.tree.map(lambda x: 0.3 * x, info.param_info.z)
    sites = info.postprocess_fn(z)
    noise = {n: sites[n] for n in sites if n.endswith(NOISE)}
    assert noise
    of_noise = {*noise, *(n.removesuffix(NOISE) for n in noise)}
    others = {n: sites[n] for n in sites if n not in of_noise}

    def effects(noise):
        substituted = handlers.substitute(easier, data=others | noise)
        trace = handlers.trace(handlers.seed(substituted, 0)).get_trace(*arguments)
        return {n.removesuffix(NOISE): trace[n.removesuffix(NOISE)]["value"] for n in noise}

    flat, unravel = ravel_pytree(noise)
    jacobian = jax.jacfwd(lambda x: ravel_pytree(effects(unravel(x)))[0])(flat)
    added = jnp.linalg.slogdet(jacobian)[1]
    expected = log_density(model, arguments, {}, others | effects(noise))[0] + added
    found = log_density(easier, arguments, {}, others | noise)[0]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_rows_that_are_not_chosen_are_kept(tmp_path, monkeypatch):
    old = [[name, *[1.0] * 8] for name in ("NUTS", "MALA", "FMALA")]
    kept = tmp_path / "leaderboard.json"
    kept.write_text(json.dumps({"sections": {"banana": {"rows": old}}}))
    monkeypatch.setattr(leaderboard, "RESULTS", kept)
    monkeypatch.setattr(leaderboard, "CHOSEN", ["MALA"])
    new = {"steps": 3, "runs": [dict.fromkeys(("rhat", "ess", "mean", "sd"), 2.0)]}
    new["runs"][0] |= {"evaluations": 2.0, "seconds": 2.0}
    monkeypatch.setattr(leaderboard, "measure", lambda *arguments: new)
    rows = {row[0]: row for row in leaderboard.table("banana", False).rows}
    assert rows["NUTS"] == old[0] and rows["FMALA"] == old[2] and rows["MALA"][1] == 3


@pytest.mark.first
@pytest.mark.parametrize("label", ["NUTS", "ChEES-HMC", "adjusted MCLMC", "MALA"])
def test_samplers_find_a_short_posterior(label, monkeypatch):
    monkeypatch.setattr(leaderboard, "WARMUP", 300)
    monkeypatch.setattr(leaderboard, "DRAWS", 300)
    found = leaderboard.measure("autoregression", label, 4000.0, True)
    [run] = found["runs"]
    assert run["mean"] < 0.4 and run["rhat"] < 1.1 and run["evaluations"] >= 600
