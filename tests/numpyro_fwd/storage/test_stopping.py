"""When a run on disk ends."""

import itertools
import math
import time
import warnings

import arviz_stats
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import Until, sample_to
from numpyro_fwd.mcmc.convergence import Convergence, Worst, next_look
from numpyro_fwd.mcmc.progress import Progress, remaining, words_of
from tests.numpyro_fwd.storage import runs


def summary_of(path):
    posterior = runs.read(path).posterior.to_dataset()
    draws = [np.asarray(posterior[name].values, float) for name in ("slopes", "scale")]
    draws = [one for site in draws for one in np.moveaxis(site.reshape(*site.shape[:2], -1), 2, 0)]
    ess = [arviz_stats.ess(one, method="bulk") for one in draws]
    ess += [arviz_stats.ess(one, method="tail", prob=(0.05, 0.95)) for one in draws]
    return float(min(ess)), float(max(map(arviz_stats.rhat, draws)))


def least_by_numpyro(path):
    """The least bulk or tail ESS, of ranks by SciPy, and by NumPyro's sum of autocorrelations."""
    posterior = runs.read(path).posterior.to_dataset()
    found = []
    for name in ("slopes", "scale"):
        draws = np.asarray(posterior[name].values, float)
        for one in np.moveaxis(draws.reshape(*draws.shape[:2], -1), 2, 0):
            ranks = scipy.stats.rankdata(np.concatenate(np.array_split(one, 2, axis=1)))
            normal = scipy.stats.norm.ppf((ranks - 0.375) / (one.size + 0.25))
            sides = [one <= np.quantile(one, q) for q in (0.05, 0.95)]
            pairs = [np.concatenate(np.array_split(x.astype(float), 2, axis=1)) for x in sides]
            bulk = normal.reshape(2 * len(one), -1)
            found += [effective_sample_size(each) for each in (bulk, *pairs)]
    return float(min(found))


@pytest.mark.long
def test_by_draws_of_the_mcmc(tmp_path):
    stored = sample_to(tmp_path, runs.mcmc_of(), jax.random.key(0), *runs.data())
    assert (stored.num_draws, stored.reason) == (25, "max_draws")
    assert math.isnan(stored.worst.ess)


@pytest.mark.long
def test_by_integers_of_numpy(tmp_path):
    until = Until(max_draws=np.int64(7))
    assert runs.run(tmp_path, until=until, draws_per_write=np.int64(4)).num_draws == 7
    assert runs.run(tmp_path, 9, draws_per_write=4).num_draws == 9


@pytest.mark.long
def test_by_effective_draws_and_r_hat(tmp_path):
    """The estimate is that of all draws, as long as all are read."""
    until = Until(ess=100, r_hat=1.1, max_draws=20_000)

    def run(until):
        mcmc = runs.mcmc_of(num_warmup=300)
        return runs.run(tmp_path, mcmc=mcmc, until=until, draws_per_write=50)

    stored = run(until)
    ess, r_hat = summary_of(tmp_path)
    assert stored.reason == "goal" and stored.num_draws <= 1000
    # ArviZ adds a last autocorrelation of an even lag to Geyer's sum where it is positive
    assert ess * 0.999 < stored.worst.ess < ess * 1.02
    assert (stored.worst.ess, stored.worst.r_hat) == pytest.approx(
        (least_by_numpyro(tmp_path), r_hat), rel=1e-3
    )
    assert stored.worst.ess >= 100 and r_hat <= 1.1
    # again: nothing is left to do; a higher goal: it goes on
    assert run(until).num_draws == stored.num_draws
    more = run(Until(ess=300))
    assert more.num_draws > stored.num_draws and more.worst.ess >= 300


@pytest.mark.long
def test_max_draws_ends_it_before_the_goal(tmp_path):
    stored = runs.run(tmp_path, until=Until(ess=1e6, max_draws=30))
    assert (stored.num_draws, stored.reason) == (30, "max_draws")
    assert 0 < stored.worst.ess < 200 and stored.worst.parameter


@pytest.mark.long
def test_by_seconds(tmp_path):
    begun = time.monotonic()
    stored = runs.run(tmp_path, until=Until(seconds=0.5))
    assert stored.reason == "seconds" and stored.num_draws > 0
    # those of steps; with a file for ten draws most of the time is spent in writing
    assert 0.01 < stored.seconds <= time.monotonic() - begun


@pytest.mark.long
def test_an_interrupted_run_ends_at_the_same_draw(tmp_path):
    until = Until(ess=100)
    whole = runs.run(tmp_path / "whole", until=until)
    runs.run(tmp_path / "pieces", whole.num_draws // 2 + 3)
    pieces = runs.run(tmp_path / "pieces", until=until)
    assert pieces[1:4] == whole[1:4]
    runs.assert_same(tmp_path / "whole", tmp_path / "pieces")


class Draws:
    """Draws (C, n, ...) by site, as a store."""

    def __init__(self, **draws):
        self.draws = draws
        self.num_read = 0

    def read(self, name, num_draws, most):
        found = self.draws[name][:, 0 : num_draws : -(-num_draws // most)]
        self.num_read = max(self.num_read, found.shape[1])
        return found


def autoregressive(rng, num_draws, correlation):
    noise = rng.normal(size=(4, num_draws))
    draws = np.empty_like(noise)
    draws[:, 0] = noise[:, 0]
    for i in range(1, num_draws):
        draws[:, i] = correlation * draws[:, i - 1] + math.sqrt(1 - correlation**2) * noise[:, i]
    return draws


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
def test_the_estimate_reads_few_draws_and_is_not_too_high(correlation):
    draws = autoregressive(np.random.default_rng(0), 40_000, correlation)
    full = min(
        arviz_stats.ess(draws, method="bulk"),
        arviz_stats.ess(draws, method="tail", prob=(0.05, 0.95)),
    )
    goal = 500.0
    store = Draws(x=draws)
    found = Convergence(store, ["x"], Until(ess=goal), 4).all(40_000)
    assert store.num_read <= 1000
    assert found.ess <= 1.15 * full
    # enough for the goal, wherever there is enough in all
    assert found.ess >= 0.6 * min(full, 4000)


def test_the_worst_parameter_is_named():
    rng = np.random.default_rng(1)
    good = rng.normal(size=(4, 500, 2, 2))
    good[:, :, 1, 0] = autoregressive(rng, 500, 0.95)
    constant = np.ones((4, 500))
    store = Draws(good=good, constant=constant)
    convergence = Convergence(store, ["constant", "good"], Until(ess=1000, r_hat=1.01), 4)
    assert convergence.all(500).parameter == "good[1, 0]"
    is_reached, worst = convergence.is_reached(500)
    assert not is_reached and worst.parameter == "good[1, 0]"
    assert convergence.names[0] == "good"  # first at the next look
    store.draws["good"][0, 3, 0, 1] = np.nan
    assert math.isnan(convergence.all(500).ess)
    assert not convergence.is_reached(500)[0]


def test_chains_that_stand_still_elsewhere_do_not_agree():
    draws = np.repeat(np.arange(4.0)[:, None], 100, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        is_reached, _ = Convergence(Draws(x=draws), ["x"], Until(r_hat=1.1), 4).is_reached(100)
    assert not is_reached


def test_the_goal_is_looked_at_more_rarely_as_draws_grow():
    looks = [n for n in range(1, 10_001) if next_look(n - 1) == n]
    assert looks[:4] == [100, 120, 144, 172] and len(looks) < 50
    assert all(b <= 1.2 * a for a, b in itertools.pairwise(looks))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"max_draws": 0}, ValueError, "max_draws must be 1 or more; got 0"),
        ({"max_draws": 1e6}, TypeError, "max_draws must be an integer; got 1000000.0"),
        ({"ess": -1}, ValueError, "ess must be finite and above 0; got -1"),
        ({"r_hat": 1.0}, ValueError, "r_hat must be finite and above 1; got 1.0"),
        ({"seconds": math.nan}, ValueError, "seconds must be finite and above 0; got nan"),
        ({"seconds": "an hour"}, TypeError, "seconds must be a number; got 'an hour'"),
    ],
)
def test_bad_goals(options, error, message):
    with pytest.raises(error, match=message):
        Until(**options)


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.long
def test_progress_shows_draws_ess_r_hat_rate_and_time(tmp_path, capfd, monkeypatch):
    mcmc = runs.mcmc_of()
    mcmc.progress_bar = True  # MCMC turns it off in workers of pytest
    runs.run(tmp_path, mcmc=mcmc, until=Until(ess=1e5, max_draws=60))
    shown = capfd.readouterr().err
    for words in (
        "MALA: looking for",
        "warmup",
        "sample",
        "100/100",
        "it/s",
        "0 divergences, 60 draws",
        "ESS ",
        "R-hat 1.",
        "to the goal",
    ):
        assert words in shown, shown


@pytest.mark.long
def test_no_progress_without_a_bar(tmp_path, capfd):
    runs.run(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_time_to_the_goal():
    def said(num_draws, *worst):  # 100 draws in ten seconds
        progress = Progress("sample", 0, num_draws, {}, 0, 1.0, Worst(*worst), 10.0)
        return remaining(progress, Until(ess=1000, r_hat=1.01), 0)

    assert said(100, 500.0, 1.005, "x") == ["00:10 to the goal"]
    assert said(100, 500.0, 1.05, "x") == ["00:40 to the goal"]
    assert said(0) == []


def test_ess_of_some_of_the_draws_is_a_lower_bound():
    """In the words too: of more draws than are read there are more effective ones."""
    rng = np.random.default_rng(0)

    class Drawn:
        def read(self, name, num_draws, most):
            return rng.normal(size=(2, min(num_draws, most)))

    for num_draws, words in ((1_000, "ESS "), (1_001, "ESS over ")):
        worst = Convergence(Drawn(), ["z", "w"], Until(), 2).all(num_draws)
        progress = Progress("sample", num_draws, num_draws, {}, 0, 1.0, worst, 1.0)
        assert f"{words}{worst.ess:,.0f} ({worst.parameter})" in words_of(progress)


# --- notices --------------------------------------------------------------------------------------


@pytest.mark.long
def test_warnings_of_kernels_are_heard(tmp_path):
    """A chain that does not move says so, as it does in MCMC.run."""

    def model():
        numpyro.sample("z", dist.Normal(0, 1))

    kernel = numpyro_fwd.MALA(model, step_size=1e4, adapt_step_size=False, warm_start=False)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=400, progress_bar=False)
    with pytest.warns(UserWarning, match="has stuck|has not moved|stood still"):
        sample_to(tmp_path, mcmc, jax.random.key(0))
