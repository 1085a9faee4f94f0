"""The warm-up: a start by Newton's path, windows, covariances, step size, and that it ends."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import numpyro_fwd
from blackjax_ext.adaptation import half_turns, newton_path, start, windows
from blackjax_ext.adaptation.algorithm import StepInfo
from blackjax_ext.metrics import Dense, Diagonal, factorize
from numpyro_fwd import FMALA

NAMES = ("RandomWalk", "MALA", "FMALA", "LineFMALA", "PCFMALA", "PCLineFMALA")
FORWARD_ONLY = tuple(name for name in NAMES if name != "MALA")
MODES = ("forward", "reverse")
COVARIANCE = np.array([[4.0, 1.8, 0.0], [1.8, 1.0, -0.2], [0.0, -0.2, 0.25]])

both_metrics = pytest.mark.parametrize("dense", [True, False])


# --- windows and shrinkage ------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [7, 15, 31])
def test_a_doubled_trajectory_turns_with_the_step_size_of_a_warm_up(num_steps):
    """Of unit normals, whose coordinates go around together: by the sum of momenta along it."""

    def turns(step_size, n):
        return np.sin(n * step_size) < 0

    steps = np.linspace(0.05, 0.8, 2_000, dtype=np.float32)
    found = np.asarray(half_turns.off_resonance(jnp.asarray(steps)))
    is_lost = ~turns(steps, num_steps) & ~turns(steps, 2 * num_steps + 1) & (steps > 3 / num_steps)
    is_lost &= steps * num_steps < np.pi
    if num_steps < 31:  # of 31 there are few
        assert is_lost.sum() > 10
    assert (turns(found, num_steps) | turns(found, 2 * num_steps + 1))[is_lost].all()
    assert (found >= steps).all() and (found <= 1.1 * steps).all()
    assert (found == steps).mean() > 0.9


def test_a_longer_step_is_just_above_half_a_turn():
    """Of 3, 7, 15 or 31 steps, and no step is shortened or lengthened more than is tried."""
    steps = np.linspace(0.02, 1.2, 5_000, dtype=np.float32)
    found = np.asarray(half_turns.longer(jnp.asarray(steps)))
    is_longer = found > steps
    assert 0.4 < is_longer.mean() < 0.8
    half_turn = np.pi / found[is_longer]
    assert np.isin(np.round(half_turn * half_turns.BEYOND), half_turns.TURNS).all()
    assert (np.floor(half_turn) < np.round(half_turn * half_turns.BEYOND)).all()
    assert (found <= half_turns.LONGEST * steps * (1 + 1e-6)).all() and (found >= steps).all()


def tried_step_size(fate, num_steps=400, step_size=0.8, target=0.85, num_gradients=3):
    """Step sizes of a warm-up that reject as the target says at `step_size`.

    `fate` says, of a step of half a turn and its number, how often it is rejected and whether it
    diverges; it takes `num_gradients`, others 7.
    """
    metric = factorize(None, 2).at(jnp.zeros(2))
    state = windows.init(jnp.full(4, step_size), metric, jnp.zeros((4, 2)), num_steps=num_steps)
    state = state._replace(trial=half_turns.no_trial(state.step_size))

    @jax.jit
    def advance(state, i, rates, is_divergent, gradients):
        adapted = windows.update_step(state, rates, target, i == num_steps - 1)
        info = StepInfo(rates, is_divergent, jnp.full(4, gradients), jnp.zeros(4), is_divergent)
        return half_turns.tried(state, adapted, i, info, target)

    used = [step_size]
    for i in range(num_steps):
        rejected, diverges, gradients = (1 - target) * (used[-1] / step_size) ** 2, False, 7
        if abs(used[-1] - EDGE) < 1e-5:
            rejected, diverges, gradients = *fate(i), num_gradients
        rates = np.full(4, max(1 - rejected, 0.0), np.float32)
        is_divergent = np.array([diverges, False, False, False])
        state = advance(state, i, rates, is_divergent, gradients)
        used.append(float(state.step_size[0]))
    if num_steps == 400:  # thirty steps of four chains
        np.testing.assert_array_equal(state.trial.num_steps, 120)
        last = num_gradients if abs(used[-2] - EDGE) < 1e-5 else 7
        np.testing.assert_array_equal(state.trial.num_gradients, 120 * last)
    return np.array(used)


EDGE = half_turns.BEYOND * np.pi / 3


def test_a_longer_step_is_kept_unless_it_rejects_or_loses_too_much():
    """Of warm-ups in which steps of .8 are accepted as the target says."""

    def is_tried(found):
        return (np.abs(found[370:-1] - EDGE) < 1e-5).all()

    kept = tried_step_size(lambda i: (0.3, False))
    assert is_tried(kept) and abs(kept[-1] - EDGE) < 1e-5
    assert (np.abs(kept[:369] - EDGE) > 1e-5).all()
    rare = tried_step_size(lambda i: (0.3, i == 380))
    assert is_tried(rare) and abs(rare[-1] - EDGE) < 1e-5
    for fate in (lambda i: (0.4, False), lambda i: (0.3, i % 5 == 0)):
        found = tried_step_size(fate)
        assert is_tried(found) and 0.7 < found[-1] < 0.9
    # trajectories that do not turn after three steps
    for num_gradients in (4, 7):
        found = tried_step_size(lambda i: (0.3, False), num_gradients=num_gradients)
        assert is_tried(found) and 0.7 < found[-1] < 0.9
    # who asks for fewer rejections gets fewer
    found = tried_step_size(lambda i: (0.2, False), target=0.95)
    assert is_tried(found) and 0.7 < found[-1] < 0.9
    # too far away, and too short a warm-up
    for given in ({"step_size": 0.5}, {"num_steps": 15}):
        found = tried_step_size(lambda i: (0.3, False), **given)
        assert (np.abs(found - EDGE) > 1e-5).all()


def test_a_warm_up_ends_with_steps_of_half_a_turn():
    """Of ten unit normals, whose step size at the target is about .8: three gradients a draw."""

    def model():
        numpyro.sample("x", dist.Normal(0, 1).expand([10]).to_event(1))

    mcmc = MCMC(
        numpyro_fwd.AutoNUTS(model, adapt_mass_matrix=False),
        num_warmup=200,
        num_samples=100,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), extra_fields=("num_steps", "adapt_state.step_size"))
    found = mcmc.get_extra_fields()
    np.testing.assert_allclose(found["adapt_state.step_size"], EDGE, rtol=1e-5)
    assert found["num_steps"].mean() < 3.2


@pytest.mark.long
def test_trajectories_in_130_dimensions_turn():
    """The step size is .43 by itself; of BlackJAX's NUTS trajectories have up to 500 steps then."""

    def model():
        numpyro.sample("x", dist.Normal(0, 1).expand([130]).to_event(1))

    mcmc = MCMC(
        numpyro_fwd.AutoNUTS(model, target_accept_prob=0.857, adapt_mass_matrix=False),
        num_warmup=300,
        num_samples=100,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), extra_fields=("num_steps",))
    assert mcmc.get_extra_fields()["num_steps"].mean() < 18


@pytest.mark.parametrize("num_warmup", [0, 1, 19])
def test_short_warmup_has_no_window(num_warmup):
    assert windows.ends(num_warmup).size == 0


@pytest.mark.parametrize("num_warmup", [20, 21, 100, 999, 2000])
def test_windows_grow_and_leave_the_last_to_the_step_size(num_warmup):
    ends = windows.ends(num_warmup)
    lengths = np.diff([-1, *ends])
    assert (lengths > 0).all() and (np.diff(lengths) > 0).all()
    assert 0.1 * num_warmup <= num_warmup - 1 - ends[-1] <= 0.2 * num_warmup


def test_windows_are_those_of_the_documentation():
    np.testing.assert_array_equal(windows.ends(1000), [49, 149, 399, 849])


def test_shrinkage_trusts_independent_draws():
    """Jumps of independent draws have twice the variance; slow chains hardly jump."""
    weight = windows.shrinkage(jnp.ones(3), jnp.array([2.0, 0.02, 0.0]), 1000.0, 5.0)
    effective = 1000 * 0.01 / 1.99
    np.testing.assert_allclose(weight, [1000 / 1005, effective / (effective + 5), 0], rtol=1e-3)


@pytest.mark.parametrize("variance", [0.0, jnp.nan, jnp.inf])
def test_shrinkage_is_a_weight_whatever_the_variance(variance):
    weight = windows.shrinkage(jnp.array([variance]), jnp.zeros(1), 10.0, 5.0)
    assert 0 <= weight[0] <= 1


# --- the metric of a window -----------------------------------------------------------------------


def window(draws, metric):
    """Adaptation state after a window of `draws`, shape (draw, chain, D), seen through `metric`."""
    draws = jnp.asarray(draws, float)
    state = windows.init(jnp.ones(draws.shape[1]), metric, draws[0], num_steps=len(draws))
    for x in draws[1:]:
        state = windows.update_moments(state, x)
    return windows.update_metric(state, draws[-1])


def normals(num_draws, num_chains, seed=0):
    noise = np.random.default_rng(seed).normal(size=(num_draws, num_chains, 3))
    return 5 + noise @ np.linalg.cholesky(COVARIANCE).T


@pytest.mark.long
@pytest.mark.parametrize(("dense", "scale"), [(True, 0.1), (False, 1.0), (True, 30.0)])
def test_recovers_a_covariance(dense, scale, x64):
    """Whatever metric the draws are seen through."""
    old = scale * jnp.eye(3) if dense else jnp.full(3, scale)
    found = window(normals(1500, 4), factorize(old)).metric
    assert isinstance(found, Dense if dense else Diagonal)
    truth = COVARIANCE if dense else np.diag(COVARIANCE)
    sd = np.diag(COVARIANCE) ** 0.5
    error = (found.inverse() - truth) / (np.outer(sd, sd) if dense else sd**2)
    assert np.abs(error).max() < 0.1 + (0.2 if scale > 1 else 0)
    if dense:
        np.testing.assert_allclose(found.sqrt @ found.inverse_sqrt, np.eye(3), atol=1e-10)


@pytest.mark.long
@both_metrics
def test_a_chain_that_hardly_moved_changes_little(dense, x64):
    """A slow drift has draws, and next to no effective ones."""
    drift = np.linspace(0, 1e-3, 200)[:, None, None] * np.ones(3)
    old = jnp.eye(3) if dense else jnp.ones(3)
    metric = window(drift, factorize(old)).metric
    np.testing.assert_allclose(metric.inverse(), old, atol=0.05)


@pytest.mark.long
@both_metrics
def test_a_chain_that_never_moved_changes_nothing(dense):
    old = factorize(jnp.eye(3) if dense else jnp.ones(3))
    new = window(np.zeros((50, 2, 3)), old).metric
    np.testing.assert_allclose(new.inverse(), old.inverse(), rtol=1e-6)


@pytest.mark.long
@both_metrics
def test_covariance_is_pooled_over_chains(dense, x64):
    """Few draws of many chains are worth many draws of one."""
    old = factorize(jnp.eye(3) if dense else jnp.ones(3))
    draws = normals(20, 200)
    pooled = window(draws, old).metric.inverse()
    truth = COVARIANCE if dense else np.diag(COVARIANCE)
    sd = np.diag(COVARIANCE) ** 0.5
    assert (np.abs(pooled - truth) / (np.outer(sd, sd) if dense else sd**2)).max() < 0.1
    # chains in different places: the spread between them counts
    apart = draws + 100 * np.sign(np.arange(200) - 99.5)[:, None]
    assert (np.diag(window(apart, factorize(jnp.eye(3))).metric.inverse()) > 100).all()


@pytest.mark.long
@both_metrics
def test_a_bad_window_leaves_the_metric(dense):
    draws = normals(50, 2)
    draws[20] = np.nan
    old = factorize(jnp.eye(3) if dense else jnp.ones(3))
    np.testing.assert_array_equal(window(draws, old).metric.inverse(), old.inverse())


@pytest.mark.parametrize("log_step", [-1000.0, 1000.0])
def test_step_size_stays_representable(log_step, dtype):
    step_size = windows.representable(jnp.array(log_step, dtype))
    assert step_size > 0 and jnp.isfinite(step_size) and step_size.dtype == dtype
    assert jnp.isfinite(1 / step_size) and jnp.isfinite(step_size * 10)


# --- a warm-up, and its end -----------------------------------------------------------------------

SD = np.array([30.0, 1.0, 0.1])
FIELDS = ("adapt_state.step_size", "adapt_state.inverse_mass_matrix", "accept_prob")


def normal():
    numpyro.sample("x", dist.Normal(0, jnp.asarray(SD)).to_event(1))


def fields_of(kernel, num_warmup, num_samples, num_chains=4, **kwargs):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.key(0), extra_fields=FIELDS, collect_warmup=True, **kwargs)
    warmup = mcmc.get_extra_fields(group_by_chain=True)
    mcmc.run(jax.random.key(1), extra_fields=FIELDS)
    return warmup, mcmc.get_extra_fields(group_by_chain=True)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(("name", "dense_mass"), [*zip(NAMES, 3 * [True, False], strict=True)])
def test_warmup_adapts_and_ends(name, dense_mass):
    """No help by the warm start: metric and step size are found on the way, and then frozen."""
    kernel = getattr(numpyro_fwd, name)(normal, dense_mass=dense_mass, warm_start=False)
    warmup, after = fields_of(kernel, 4000, 1500)
    steps, inverses = (np.asarray(after[field]) for field in FIELDS[:2])
    # frozen, bit by bit, at what the warm-up ended with, and the same for all chains
    assert (steps == np.asarray(warmup[FIELDS[0]])[0, -1]).all()
    assert (inverses == np.asarray(warmup[FIELDS[1]])[0, -1]).all()
    # renewed where the windows end and nowhere else
    inverses = np.asarray(warmup[FIELDS[1]])[0]
    changed = np.flatnonzero((np.diff(inverses, axis=0) != 0).reshape(len(inverses) - 1, -1).any(1))
    assert set(changed + 1) <= set(windows.ends(4000)) and changed.size >= 2
    diagonal = np.diagonal(inverses[-1]) if dense_mass else inverses[-1]
    assert (np.abs(np.log(diagonal**0.5 / SD)) < 0.5).all()
    target = kernel._goal(SD.size)
    np.testing.assert_allclose(after["accept_prob"].mean(), target, atol=0.1)


@pytest.mark.long
def test_nothing_to_adapt():
    kernel = FMALA(normal, step_size=0.25, adapt_step_size=False, adapt_mass_matrix=False)
    for fields in fields_of(kernel, 30, 10):
        assert (fields["adapt_state.step_size"] == 0.25).all()
        assert (fields["adapt_state.inverse_mass_matrix"] == 1).all()


@pytest.mark.long
def test_step_size_given_survives_an_adapted_metric():
    kernel = FMALA(normal, step_size=0.3, adapt_step_size=False)
    _, after = fields_of(kernel, 40, 10)
    assert (after["adapt_state.step_size"] == jnp.float32(0.3)).all()
    assert (after["adapt_state.inverse_mass_matrix"] != 1).all()


# --- the start ------------------------------------------------------------------------------------

rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
EIGENVALUES = np.array([1e-3, 1e-1, 10.0, 1e3])  # variances, condition number 1e6
ILL = rotation * EIGENVALUES @ rotation.T
ILL_MEAN = np.array([3.0, -1.0, 2.0, 5.0])


def ill_conditioned(x):
    root = jnp.asarray((rotation / EIGENVALUES**0.5).T, x.dtype)
    return -0.5 * jnp.sum((root @ (x - jnp.asarray(ILL_MEAN, x.dtype))) ** 2)


def funnel(x):
    """Neal's funnel: the mode has w far below zero, the mass |w| < 9."""
    w, rest = x[0], x[1:]
    return -0.5 * (w / 3) ** 2 - 0.5 * jnp.sum(rest**2) * jnp.exp(-w) - 0.5 * rest.size * w


def find_all(logdensity_fn, x, mode="forward", seed=0):
    key = jax.random.key(seed)
    found = jax.jit(lambda x: start.find_starts(key, logdensity_fn, x, mode))(x)
    np.testing.assert_allclose(found.first_values, jax.vmap(logdensity_fn)(x), rtol=1e-5)
    return found.x, found.metric


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_start_on_a_normal(mode, dtype):
    x = 10 * jax.random.normal(jax.random.key(1), (4, 4), dtype)
    draws, metric = find_all(ill_conditioned, x, mode)
    assert draws.dtype == metric.sqrt.dtype == dtype
    # in coordinates where the normal is standard
    root = (rotation / EIGENVALUES**0.5).T
    whitened = root @ np.asarray(metric.inverse(), np.float64) @ root.T
    rounding = 0.05 if dtype == jnp.float32 else 1e-4
    np.testing.assert_allclose(whitened, np.eye(4), atol=rounding)
    assert (np.linalg.norm((draws - ILL_MEAN) @ root.T, axis=1) < 5).all()
    assert np.ptp(draws @ root.T, axis=0).min() > 0.01  # draws, not the mode


def followed(noise, logdensity_fn, x, mode):
    """Newton's paths from x, (P, D), where they end."""
    model_fn = partial(newton_path.newton_model, logdensity_fn, mode)
    before = newton_path.no_approximation(x[0], 16, newton_path.identity(x[0]))
    arguments = model_fn, jax.vmap(logdensity_fn), noise, newton_path.first_paths(x), before
    return newton_path.follow_paths(*arguments, max_steps=60)[1]


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_start_finds_the_mean_of_a_normal(mode):
    x = 10 * jax.random.normal(jax.random.key(1), (4,))
    noise = jax.random.normal(jax.random.key(0), (1, 16, 4))
    find = jax.jit(lambda x: followed(noise, ill_conditioned, x, mode))
    path = jax.tree.map(lambda leaf: leaf[0], find(x[None]))
    found = path.best
    np.testing.assert_allclose(path.first_value, ill_conditioned(x), rtol=1e-5)
    np.testing.assert_array_equal(path.from_best.mean, found.mean)
    root = (rotation / EIGENVALUES**0.5).T
    assert np.linalg.norm(root @ (found.mean - ILL_MEAN)) < 0.2
    log_evidence = 2 * np.log(2 * np.pi) + 0.5 * np.log(EIGENVALUES).sum()
    np.testing.assert_allclose(found.evidence + 2 * np.log(2 * np.pi), log_evidence, atol=0.2)


def skewed(x):
    """Gumbel coordinates of four scales, whose paths take from a few to tens of steps."""
    z = x / jnp.array([0.5, 1.0, 2.0, 4.0], x.dtype)
    return -jnp.sum(z + jnp.exp(-z))


@pytest.mark.long
def test_paths_in_one_loop_are_those_of_each(x64):
    """One that has ended stays where it is while others are followed."""
    x = jnp.concatenate([jnp.zeros((1, 4)), 3 * jax.random.normal(jax.random.key(1), (5, 4))])
    noise = jax.random.normal(jax.random.key(0), (6, 16, 4))
    find = jax.jit(lambda noise, x: followed(noise, skewed, x, "reverse"))

    def facts(path):
        return path.x, path.best.mean, path.first_value, path.best.log_weights

    together = facts(find(noise, x))
    for i in range(6):
        alone = facts(find(noise[i : i + 1], x[i : i + 1]))
        for these, those in zip(together, alone, strict=True):
            np.testing.assert_allclose(these[i], those[0], rtol=1e-6, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "seed"), [("forward", 0), ("reverse", 1), ("reverse", 2)])
def test_start_on_a_funnel_is_in_the_bulk(mode, seed):
    x = jax.random.uniform(jax.random.key(seed), (8, 10), minval=-2, maxval=2)
    draws, _ = find_all(funnel, x, mode, seed)
    assert (jnp.abs(draws[:, 0]) < 9).all()
    assert np.isfinite(jax.vmap(funnel)(draws)).all()


class Sharing(NamedTuple):
    """Normal effects of one scale, each seen once with an error of 1: their mode has no scale.

    The density, and mean and sd of the logarithm of the scale.
    """

    logdensity_fn: Callable
    mean: float
    sd: float


def sharing(size, scale, place=0):
    """`size` dimensions, that of the scale in `place`; `scale` is the true one."""
    y = np.random.default_rng(size).normal(size=size - 1) * np.hypot(scale, 1.0)

    def logdensity(x):
        log_scale, effects = x[place], jnp.delete(x, place)
        prior = -0.5 * jnp.exp(2 * log_scale) + log_scale - (size - 1) * log_scale
        squares = jnp.sum((effects * jnp.exp(-log_scale)) ** 2) + jnp.sum((y - effects) ** 2)
        return prior - 0.5 * squares

    grid = np.linspace(-8.0, 3.0, 4_000)
    variance = np.exp(2 * grid) + 1.0
    log_p = -0.5 * np.sum(y**2) / variance - 0.5 * y.size * np.log(variance)
    log_p += grid - 0.5 * np.exp(2 * grid)
    weights = np.exp(log_p - log_p.max())
    mean = np.average(grid, weights=weights)
    return Sharing(logdensity, mean, np.average((grid - mean) ** 2, weights=weights) ** 0.5)


def distance_of_starts(target, place, size, mode, seed):
    """Of the logarithm of the scale from its mean, in sds, at the starts of four chains."""
    x = jax.random.uniform(jax.random.key(seed), (4, size), minval=-2, maxval=2)
    draws, _ = find_all(target.logdensity_fn, x, mode, seed)
    return (draws[:, place] - target.mean) / target.sd


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "scale", "place", "mode"),
    [
        (65, 2.0, 64, "reverse"),
        (66, 2.0, 0, "forward"),
        (130, 0.5, 0, "reverse"),
        (131, 2.0, 70, "reverse"),
        (300, 2.0, 299, "reverse"),
    ],
)
def test_starts_in_many_dimensions_are_at_the_mass(size, scale, place, mode):
    """The paths to the mode, where effects have no scale, leave the mass by up to 60 sds."""
    target = sharing(size, scale, place)
    for seed in range(2):
        assert (np.abs(distance_of_starts(target, place, size, mode, seed)) < 6).all()


@pytest.mark.long
def test_starts_on_paths_to_the_mode_are_found_out(monkeypatch):
    monkeypatch.setattr(newton_path, "averaged_over_pair", lambda *arguments: arguments[-1])
    assert (distance_of_starts(sharing(131, 2.0, 70), 70, 131, "reverse", 0) < -10).all()


def test_a_pair_of_draws_has_the_slope_of_a_normal_at_its_middle(x64):
    """Nothing changes where the two are the same."""
    slope = lambda x: -jnp.linalg.solve(COVARIANCE, x)  # noqa: E731
    x, noise = jnp.array([3.0, -1.0, 2.0]), jax.random.normal(jax.random.key(0), (16, 3))
    model = newton_path.LocalModel(slope(x), factorize(COVARIANCE, 3).at(x))
    found = newton_path.averaged_over_pair(slope, x, noise, model)
    np.testing.assert_allclose(found.gradient, model.gradient, rtol=1e-10)
    np.testing.assert_allclose(found.pair.sum(axis=0), 0.0, atol=1e-12)
    assert (found.pair != 0).all()


@pytest.mark.parametrize("steepness", [jnp.inf, 1e9])
def test_a_pair_of_draws_that_tells_nothing_is_left(steepness):
    """Beside a ledge, where a slope is infinite or no guide."""
    slope = lambda x: jnp.where(jnp.abs(x) > 0.1, steepness, -x)  # noqa: E731
    x = jnp.full(3, 0.05)
    noise = jax.random.normal(jax.random.key(0), (16, 3))
    model = newton_path.LocalModel(slope(x), newton_path.identity(x))
    found = newton_path.averaged_over_pair(slope, x, noise, model)
    np.testing.assert_array_equal(found.gradient, model.gradient)
    np.testing.assert_array_equal(found.pair, 0.0)


HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])


def players(x):
    """Binomials of 45 whose shares are Beta(m k, (1 - m) k): in truth no evidence at large k.

    The joint density of k and the shares has no bound, and at k = 1e16 the terms of 1e17 that
    cancel in single precision leave whatever they please.
    """
    m, k, p = jax.nn.sigmoid(x[0]), 1 + jnp.exp(x[1]), jax.nn.sigmoid(x[2:])
    law = dist.Beta(m * k, (1 - m) * k)
    prior = -1.5 * jnp.log(k) + x[1] - jnp.log(k) + jnp.log(m * (1 - m))
    terms = law.log_prob(p) + jnp.log(p * (1 - p)) + HITS * jnp.log(p) + (45 - HITS) * jnp.log1p(-p)
    return prior + jnp.sum(terms)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_no_evidence(seed):
    x = jax.random.uniform(jax.random.key(seed), (4, 20), jnp.float32, -2, 2)
    draws, _ = find_all(players, x, "reverse", seed)
    assert (jnp.abs(draws[:, 1]) < 12).all()


@pytest.mark.long
def test_forward_and_reverse_agree(x64):
    for x in jax.random.normal(jax.random.key(1), (4, 5)):
        forward, reverse = (newton_path.curvature(funnel, x, mode) for mode in MODES)
        np.testing.assert_allclose(forward[0], reverse[0], rtol=1e-9)
        np.testing.assert_allclose(forward[1].inverse(), reverse[1].inverse(), rtol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_curvature_is_the_absolute_hessian(mode, x64):
    def saddle(x):
        return -0.5 * (4 * x[0] ** 2 - 9 * x[1] ** 2) + x[0]

    gradient, metric = newton_path.curvature(saddle, jnp.zeros(2), mode)
    np.testing.assert_allclose(gradient, [1, 0], atol=1e-12)
    np.testing.assert_allclose(metric.inverse(), np.diag([1 / 4, 1 / 9]), atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_hessian_that_is_not_finite(mode):
    """Far out in float32 it overflows where the gradient does not: follow the gradient."""

    def steep(x):
        return -jnp.sum(1e22 * (1e9 * x) ** 2)

    gradient, metric = newton_path.curvature(steep, jnp.array([1e-6, 2e-6]), mode)
    assert np.isfinite(gradient).all() and not np.isfinite(jax.hessian(steep)(gradient)).all()
    step = metric.inverse_sqrt_times(metric.inverse_sqrt_transpose_times(gradient))
    np.testing.assert_allclose(step, [-0.5, -1.0], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_start_at_a_bad_point_stays_finite(mode):
    x = jnp.ones((2, 2))
    draws, metric = find_all(lambda x: -jnp.inf + jnp.sum(x), x, mode)
    np.testing.assert_array_equal(draws, x)
    assert np.isfinite(metric.inverse()).all()


@pytest.mark.long
def test_poor_modes_are_left():
    """A chain whose path ends at a mode of no weight starts at the other one."""

    def two_modes(x):
        near = -0.5 * jnp.sum((x - 3) ** 2)
        return jnp.logaddexp(near, -0.5 * jnp.sum((x + 30) ** 2) - 100)

    draws, _ = find_all(two_modes, jnp.array([[2.0, 2.0], [-31.0, -29.0]]))
    assert (jnp.abs(draws - 3) < 6).all()


@pytest.mark.long
def test_diagonal_has_the_marginal_sds(x64):
    metric = factorize(jnp.asarray(COVARIANCE)).diagonal()
    np.testing.assert_allclose(metric.inverse(), np.diag(COVARIANCE))


# --- forward mode all the way ---------------------------------------------------------------------


def looping():
    """A model on which reverse mode raises wherever it is tried."""
    x = numpyro.sample("x", dist.Normal(0, 1).expand([2]))
    scale = jax.lax.while_loop(lambda s: s.sum() < 10, lambda s: 2 * s, 1 + x**2)
    numpyro.factor("loop", -jnp.sum(x**2) * jnp.minimum(scale, 1).sum())


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "dense_mass"), [(name, i % 2 == 0) for i, name in enumerate(FORWARD_ONLY)]
)
def test_no_reverse_mode_from_init_to_end(name, dense_mass, monkeypatch):
    def raises(*_, **__):
        raise AssertionError("reverse mode")

    for function in ("grad", "value_and_grad", "vjp", "jacrev", "linearize"):
        monkeypatch.setattr(jax, function, raises)
    with pytest.raises(AssertionError, match="reverse mode"):
        jax.grad(lambda x: x)(1.0)
    kernel = getattr(numpyro_fwd, name)(looping, dense_mass=dense_mass)
    _, after = fields_of(kernel, 40, 10, num_chains=2)
    assert np.isfinite(after["accept_prob"]).all()


@pytest.mark.long
def test_chains_that_are_put_elsewhere_do_not_all_start_at_one_point():
    """Chains with one start agree with each other, and R-hat is blind, wherever it is."""

    def narrow(x):
        near = -0.5 * jnp.sum((x - 3) ** 2) - 0.05 * jnp.sum((x - 3) ** 4)
        return jnp.logaddexp(near, -0.5 * jnp.sum((x + 30) ** 2) - 100)

    x = jnp.array([[2.0, 2.0], *[[-31.0, -29.0]] * 7])
    draws, _ = find_all(narrow, x)
    assert len(np.unique(np.asarray(draws), axis=0)) == len(x)
