"""Models with marked functions: one evaluation a draw."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC as MCMC_OF_NUMPYRO
from numpyro.infer.util import log_density

from blackjax_ext.emulators import rounds
from numpyro_fwd import MCMC, Emulated, RandomWalk, expensive, sample_to

TIMES = np.arange(6.0)
Y = np.array([9.7, 6.2, 3.5, 2.4, 1.2, 0.9])


def solve(rate):
    """Decay, which the solver cannot follow at rates below 0.3."""
    return jnp.where(rate > 0.3, 10.0 * jnp.exp(-rate * TIMES), jnp.nan)


marked = expensive(solve)


def model(y, solve=marked):
    rate = numpyro.sample("rate", dist.HalfNormal(1.0))
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    outputs = solve(rate)
    is_solved = jnp.isfinite(outputs).all()
    numpyro.factor("solved", jnp.where(is_solved, 0.0, -jnp.inf))
    numpyro.deterministic("last", outputs[-1])
    numpyro.sample("y", dist.Normal(jnp.where(is_solved, outputs, 0.0), scale), obs=y)


def moments():
    """Posterior mean and sd of both, by quadrature."""
    rate, scale = np.linspace(0.3001, 1.2, 400), np.exp(np.linspace(-4.0, 2.0, 400))
    outputs = 10.0 * np.exp(-rate[:, None] * TIMES)
    log_y = -0.5 * ((Y - outputs)[:, None] / scale[:, None]) ** 2 - np.log(scale)[:, None]
    logs = log_y.sum(-1) - 0.5 * rate[:, None] ** 2 - 0.5 * ((np.log(scale) + 1.0) / 0.5) ** 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    means = [(weights.sum(1 - i) @ x) for i, x in enumerate((rate, scale))]
    return [
        (mean, np.sqrt(weights.sum(1 - i) @ (x - mean) ** 2))
        for i, (x, mean) in enumerate(zip((rate, scale), means, strict=True))
    ]


def run(kernel, num_samples=1000, *args, make=MCMC, **options):
    options = {"num_chains": 2, "chain_method": "vectorized"} | options
    mcmc = make(kernel, num_warmup=20, num_samples=num_samples, progress_bar=False, **options)
    mcmc.run(jax.random.key(0), *(args or (Y,)), extra_fields=("num_solves", "diverging"))
    return mcmc


@pytest.fixture(scope="module")
def mcmc():
    return run(Emulated(model))


@pytest.mark.statistical
def test_posterior_is_that_of_quadrature(mcmc):
    samples = mcmc.get_samples()
    for name, (mean, sd) in zip(("rate", "scale"), moments(), strict=True):
        assert abs(samples[name].mean() - mean) < 0.15 * sd, name
        assert abs(samples[name].std() / sd - 1) < 0.12, name


def test_evaluations_are_counted_and_told(mcmc):
    report = mcmc.sampler.emulator(mcmc)
    assert report.acceptance > 0.9
    assert 0 < report.num_solves < 400
    assert report.num_jvps > 0  # along the rate alone
    assert "emulator from" in str(report)
    fields = mcmc.get_extra_fields()
    np.testing.assert_array_equal(fields["num_solves"][:3], [22, 23, 24])
    assert np.all(np.isfinite(mcmc.get_samples()["last"]))


def test_the_emulator_of_a_run_on_disk_is_told(mcmc, tmp_path):
    kernel = Emulated(model)
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    on_disk = MCMC(kernel, num_warmup=20, num_samples=20, **options)
    stored = sample_to(tmp_path / "run", on_disk, jax.random.key(0), Y)
    assert kernel.emulator(stored) == mcmc.sampler.emulator(mcmc)


def test_the_emulator_is_learned_once_for_the_same_data():
    seen = []

    def counted(rate):
        jax.debug.callback(lambda: seen.append(1))
        return solve(rate)

    kernel = Emulated(lambda y: model(y, expensive(counted)))
    first = run(kernel, 5)
    jax.effects_barrier()
    report, count = kernel.emulator(first), len(seen)
    assert count > report.num_solves
    second = run(kernel, 5)  # two chains, 25 steps each, and their starts
    jax.effects_barrier()
    assert len(seen) - count <= 2 * 25 + 20
    assert kernel.emulator(second) == report
    other = run(kernel, 5, 0.9 * Y)
    assert kernel.emulator(other) != report


@pytest.mark.parametrize("make", [MCMC, MCMC_OF_NUMPYRO])
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_chains_of_every_kind_share_it(make, method):
    kernel = Emulated(model)
    done = run(kernel, 50, make=make, chain_method=method)
    assert done.get_samples(group_by_chain=True)["rate"].shape == (2, 50)
    assert kernel.emulator(done).num_solves < 400


def test_chains_start_where_their_keys_are_traced():
    kernel = Emulated(model)  # as NumPyro's parallel chains do
    state = jax.jit(lambda key: kernel.init(key, 10, None, (Y,), {}))(jax.random.key(0))
    assert 0.3 < jnp.exp(state.z["rate"]) < 1.2


def test_a_kernel_is_pickled_with_its_model(mcmc):
    kernel = pickle.loads(pickle.dumps(Emulated(model, seed=3)))
    assert run(kernel, 5).get_samples()["rate"].shape == (10,)


def test_others_see_the_function_as_it_is():
    value, _ = log_density(model, (Y,), {}, {"rate": 0.5, "scale": 0.4})
    plain, _ = log_density(model, (Y, solve), {}, {"rate": 0.5, "scale": 0.4})
    assert value == plain
    draws = [run_walk(function) for function in (expensive(solve), solve)]
    np.testing.assert_array_equal(*draws)


def run_walk(function):
    walk = MCMC(RandomWalk(model), num_warmup=20, num_samples=20, progress_bar=False)
    walk.run(jax.random.key(0), Y, function)
    return walk.get_samples()["rate"]


def test_what_cannot_be_emulated_is_named():
    with pytest.raises(ValueError, match="calls no function that is marked"):
        run(Emulated(lambda y: model(y, solve)), 5)
    with pytest.raises(ValueError, match="no start"):
        run(Emulated(lambda y: model(y, expensive(lambda rate: jnp.nan * solve(rate)))), 5)
    with pytest.raises(ValueError, match=r"walk_probability must be between 0 and 1; got 2"):
        Emulated(model, walk_probability=2.0)
    with pytest.raises(ValueError, match="num_trajectories must be at least 1; got 0"):
        Emulated(model, num_trajectories=0)


def test_the_emulator_of_another_kernel_is_refused():
    walk = MCMC(RandomWalk(model), num_warmup=20, num_samples=5, progress_bar=False)
    walk.run(jax.random.key(0), Y)
    with pytest.raises(TypeError, match=r"mcmc must be a run of Emulated.* got one of RandomWalk"):
        Emulated(model).emulator(walk)


def test_chains_on_the_emulator_that_mix_slowly_are_warned_of(monkeypatch):
    learn = rounds.learn
    monkeypatch.setattr(
        "numpyro_fwd.kernels.emulated.learn", lambda *args: learn(*args)._replace(r_hat=1.5)
    )
    with pytest.warns(UserWarning, match=r"mix slowly: R-hat of eight short chains is 1\.50"):
        run(Emulated(model), 5)


def test_an_emulator_that_is_not_accepted_is_warned_of():
    def rough(rate):
        noise = jnp.sin(1e5 * jnp.round(rate, 4) * (1.0 + TIMES))  # without a slope
        return solve(rate) + 4.0 * noise

    with pytest.warns(UserWarning, match="expected to be accepted in"):
        run(Emulated(lambda y: model(y, expensive(rough))), 5)


def test_the_walk_takes_the_place_of_moves_that_would_be_rejected(monkeypatch):
    learn = rounds.learn
    monkeypatch.setattr(
        "numpyro_fwd.kernels.emulated.learn", lambda *args: learn(*args)._replace(acceptance=0.0)
    )
    with pytest.warns(UserWarning, match="expected to be accepted in 0%"):
        draws = [run(Emulated(model, num_trajectories=k), 20).get_samples()["rate"] for k in (1, 2)]
    np.testing.assert_array_equal(*draws)


def test_modes_that_chains_leave_out_are_warned_of():
    def two(y):
        x = numpyro.sample("x", dist.Normal(0.1, 1.0))
        numpyro.sample("y", dist.Normal(expensive(jnp.square)(x), 0.3), obs=y)

    with pytest.warns(UserWarning, match=r"around which 5\d% of their mass is"):
        run(Emulated(two), 5, 2.0)


def test_a_solver_that_raises_is_rejected_until_draws_are_kept():
    def host(rate):
        if rate < 0.3:
            raise RuntimeError("no convergence")
        return np.float32(10.0 * np.exp(-rate * TIMES))

    def called(rate):
        shape = jax.ShapeDtypeStruct(Y.shape, jnp.float32)
        return jax.pure_callback(host, shape, rate, vmap_method="sequential")

    kernel = Emulated(lambda y: model(y, expensive(called)))
    assert run(kernel, 1).get_samples()["rate"].min() > 0.3


def failing_model(y, least):
    """A solver that fails at most draws of the prior, in a law that NumPyro checks."""
    rate = numpyro.sample("rate", dist.HalfNormal(1.0))
    outputs = expensive(lambda rate: jnp.where(rate > least, solve(rate), jnp.nan))(rate)
    numpyro.sample("y", dist.Normal(outputs, 0.5), obs=y)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_of_the_prior_at_which_a_solver_fails_are_passed_over(seed):
    kernel, data = Emulated(failing_model), (10.0 * np.exp(-1.3 * TIMES), 1.0)
    state = kernel.init(jax.random.key(seed), 0, None, data, {})
    assert jnp.isfinite(state.potential_energy)
    with pytest.raises(ValueError, match="invalid loc parameter"):
        kernel.init(jax.random.key(seed), 0, None, (data[0], 100.0), {})


@pytest.mark.parametrize("error", [0.01, np.inf])
def test_failures_alone_are_not_taken_for_rough_functions(monkeypatch, error):
    learn, of_failures = rounds.learn, {"acceptance": 0.3, "error": error, "num_failed": 50}
    monkeypatch.setattr(
        "numpyro_fwd.kernels.emulated.learn", lambda *args: learn(*args)._replace(**of_failures)
    )
    with pytest.warns(UserWarning, match="or the density with their outputs, fail at 50 of these"):
        run(Emulated(model), 5)


def test_an_emulated_posterior_without_width_is_named():
    def sums(y):
        a, b = (numpyro.sample(name, dist.Normal(0.0, 1e4)) for name in ("a", "b"))
        numpyro.sample("y", dist.Normal(expensive(jnp.add)(a, b), 1e-2), obs=y)

    with pytest.raises(ValueError, match="no width in one direction, of the sites a, b"):
        run(Emulated(sums), 5, 1.0)


def test_a_potential_is_sampled_without_a_prior_to_draw_from():
    def potential(z):
        return 0.5 * z["x"] ** 2 + jnp.sum((expensive(jnp.exp)(z["x"]) - 1.2) ** 2)

    kernel = Emulated(potential_fn=potential)
    done = MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    done.run(jax.random.key(0), init_params={"x": jnp.array(0.1)})
    assert done.get_samples()["x"].shape == (5,)


def test_a_solver_with_a_reverse_mode_alone():
    @jax.custom_vjp
    def backwards(rate):
        return solve(rate)

    backwards.defvjp(lambda rate: jax.vjp(solve, rate), lambda pull, slope: pull(slope))
    kernel = Emulated(lambda y: model(y, expensive(backwards)))
    report = kernel.emulator(run(kernel, 5))
    assert report.acceptance > 0.9
    assert report.num_jvps > 0


def test_chains_without_a_warmup_start_on_the_emulated_posterior():
    chains = {"num_chains": 32, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(Emulated(model), num_warmup=0, num_samples=2, **chains)
    mcmc.run(jax.random.key(0), Y)
    (mean, sd), _ = moments()
    first = mcmc.get_samples(group_by_chain=True)["rate"][:, 0]
    assert abs(first.mean() - mean) < sd and first.std() < 2 * sd
    # but for chains that continue from where they are told
    mcmc.run(jax.random.key(0), Y, init_params={name: jnp.ones(32) for name in ("rate", "scale")})
    assert abs(mcmc.get_samples(group_by_chain=True)["rate"][:, 0].mean() - mean) > sd


def test_a_seed_of_more_than_32_bits_is_refused():
    with pytest.raises(ValueError, match="seed must be from 0 to the 4294967295 of 32 bits"):
        Emulated(model, seed=2**32)
