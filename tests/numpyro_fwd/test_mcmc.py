"""MCMC that compiles once: draws are NumPyro's, second runs compile nothing, Ctrl-C keeps draws."""

import os
import pickle
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS, BarkerMH
from numpyro.infer import MCMC as NumPyroMCMC

import numpyro_fwd
from numpyro_fwd import AMAGOLD, MALA, MCMC, AutoNUTS, LangevinSMC, Until
from numpyro_fwd.mcmc.loop import Loop

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    numpyro.deterministic("twice", 2 * tau)
    numpyro.sample("y", dist.Normal(mu, 10 + tau), obs=y)


def mcmc_of(kernel, make=MCMC, num_warmup=20, num_samples=12, **options):
    options = {"progress_bar": False, "chain_method": "vectorized"} | options
    return make(kernel, num_warmup=num_warmup, num_samples=num_samples, **options)


def is_same(first, second):
    """Whether trees of arrays are equal."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


WAYS = {
    "one": {"num_chains": 1},
    "vectorized": {"num_chains": 3, "thinning": 5},
    "one after the other": {"num_chains": 2, "chain_method": "sequential", "thinning": 2},
}


@pytest.mark.parametrize("kernel", [MALA, NUTS])
@pytest.mark.parametrize("way", WAYS)
def test_draws_are_those_of_numpyro(kernel, way):
    """Where NumPyro's program takes the data as arguments, too: as constants they round otherwise.

    Several runs, of which the second goes on from the first.
    """
    found = []
    for make, options in ((NumPyroMCMC, {"jit_model_args": True}), (MCMC, {})):
        mcmc = mcmc_of(kernel(model), make, **WAYS[way], **options)
        mcmc.run(jax.random.key(1), Y, extra_fields=("num_steps", "~z.mu"))
        first = mcmc.get_samples(True), mcmc.get_extra_fields()
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(2), Y)
        found.append((first, mcmc.get_samples()))
    assert "mu" not in found[1][0][0] and is_same(*found)


@pytest.mark.parametrize("kernel", [MALA, AutoNUTS, NUTS, HMC])
def test_other_keys_and_other_data_compile_nothing(kernel):
    mcmc = mcmc_of(kernel(model), num_chains=2)
    for seed in range(3):
        mcmc.run(jax.random.key(seed), Y + 10 * seed)
    (programs,) = mcmc._known.programs.values()
    assert programs.advance.program._cache_size() == 1
    assert programs.finish.program._cache_size() == 1
    alone = mcmc_of(kernel(model), num_chains=2)
    alone.run(jax.random.key(2), Y + 20)
    assert is_same(mcmc.get_samples(), alone.get_samples())


def on_rows(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y), subsample_size=2) as rows:
        numpyro.sample("y", dist.Normal(mu, 10), obs=y[rows])


@pytest.mark.parametrize(
    "kernel",
    [
        BarkerMH(model),
        AMAGOLD(on_rows),
        pytest.param(AMAGOLD(on_rows, acceptance="subsampled"), marks=pytest.mark.long),
        LangevinSMC(model),
    ],
    ids=["BarkerMH", "AMAGOLD", "subsampled", "LangevinSMC"],
)
def test_steps_that_are_known_by_their_program(kernel):
    """Which holds data or not: those of the last run are taken where they are the same."""
    options = {"num_chains": 40 if isinstance(kernel, LangevinSMC) else 2, "num_warmup": 100}
    if isinstance(kernel, BarkerMH):
        options["chain_method"] = "sequential"
    mcmc = mcmc_of(kernel, **options)
    for seed in range(3):
        mcmc.run(jax.random.key(seed), Y + 40 * (seed // 2))
    (programs, *others) = mcmc._known.programs.values()
    assert programs.advance.program._cache_size() == 1
    assert len(others) == int(isinstance(kernel, BarkerMH))  # whose program holds the data
    found = mcmc.get_samples()
    alone = mcmc_of(kernel, **options)
    alone.run(jax.random.key(2), Y + 40)
    assert is_same(found, alone.get_samples()) and found["mu"].mean() > 5


def compiled_in(mcmc, caplog, *given):
    """Programs that a run compiles."""
    caplog.clear()
    with jax.log_compiles():
        mcmc.run(*given)
    return [line for line in caplog.messages if line.startswith("Compiling")]


@pytest.mark.parametrize("kernel", [AutoNUTS, pytest.param(MALA, marks=pytest.mark.long)])
def test_a_start_compiles_nothing_again(kernel, caplog):
    mcmc = mcmc_of(kernel(effects), num_chains=2)
    for seed in range(2):
        mcmc.run(jax.random.key(seed), Y)
    assert compiled_in(mcmc, caplog, jax.random.key(2), Y + 1) == []


def effects(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 10), obs=y)


PLACE = {"at": 0.0}


def moved(y):
    mu = numpyro.sample("mu", dist.Normal(PLACE["at"], 1))
    numpyro.sample("y", dist.Normal(mu, 100), obs=y)


def moved_end(y):
    """The density is the same, and the support is another."""
    end = 1 + PLACE["at"]
    interval = dist.constraints.interval(-end, end)
    numpyro.sample("mu", dist.ImproperUniform(interval, (), ()))
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def moved_param(y):
    at = numpyro.param("at", lambda key: 100 * jax.random.normal(key))
    mu = numpyro.sample("mu", dist.Normal(at, 1))
    numpyro.sample("y", dist.Normal(mu, 100), obs=y)


def moved_callback(y):
    at = np.float32(PLACE["at"])
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.deterministic("at", mu + jax.pure_callback(lambda: at, shape))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def moved_gradient(y):
    at = PLACE["at"]

    @jax.custom_vjp
    def energy(x):
        return -(x**2)

    energy.defvjp(lambda x: (energy(x), x), lambda x, g: (-g * jnp.clip(x, -1 - at, 1 + at),))
    numpyro.factor("energy", energy(numpyro.sample("mu", dist.Normal(0, 1))))
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def moved_draws(position):
    return {"mu": position["mu"] + PLACE["at"]}


def of_potential(kernel):
    return kernel(potential_fn=lambda z: jnp.sum((z["mu"] - PLACE["at"]) ** 2))


def check_same_as_alone(mcmc, change, *args, **options):
    """The second of two runs, with a change between them, has the draws of an MCMC of its own."""
    options = {"init_params": {"mu": jnp.zeros(mcmc.num_chains)}} | options
    if mcmc.num_chains == 1:
        options["init_params"] = {"mu": jnp.zeros(())}
    mcmc.run(jax.random.key(0), *args, **options)
    change(mcmc)
    mcmc.run(jax.random.key(1), *args, **options)
    names = "num_warmup", "num_samples", "num_chains", "thinning", "postprocess_fn", "chain_method"
    of_run = {name: getattr(mcmc, name) for name in names}
    alone = MCMC(mcmc.sampler, progress_bar=False, **of_run)
    alone.run(jax.random.key(1), *args, **options)
    assert is_same(mcmc.get_samples(True), alone.get_samples(True))


@pytest.mark.parametrize(
    "kernel", [NUTS, pytest.param(MALA, marks=pytest.mark.long)], ids=lambda kernel: kernel.__name__
)
@pytest.mark.parametrize(
    "given",
    [moved, moved_end, moved_param, moved_callback, moved_gradient, moved_draws, of_potential],
    ids=lambda given: given.__name__,
)
def test_what_is_read_besides_arguments_may_change(monkeypatch, kernel, given):
    if given is of_potential:
        mcmc, args = mcmc_of(of_potential(kernel), num_chains=3), ()
    elif given is moved_draws:
        mcmc, args = mcmc_of(kernel(moved), postprocess_fn=moved_draws), (Y,)
    elif given is moved_param and kernel is MALA:
        pytest.skip("kernels of the library refuse parameters without a prior")
    else:
        mcmc, args = mcmc_of(kernel(given)), (Y,)
    check_same_as_alone(mcmc, lambda _: monkeypatch.setitem(PLACE, "at", 50.0), *args)


def more_warmup(mcmc):
    mcmc.num_warmup = 40
    mcmc._set_collection_params()  # as the next run of NumPyro's, which keeps those of the last


def other_options(mcmc):
    mcmc.sampler._max_tree_depth = 1


def sequential(mcmc):
    mcmc.chain_method = "sequential"


def thinned(mcmc):
    mcmc.thinning = 3


@pytest.mark.parametrize(
    "change",
    [
        other_options,
        sequential,
        *(pytest.param(c, marks=pytest.mark.long) for c in (more_warmup, thinned)),
    ],
)
def test_options_may_change(change):
    """With as many chains as draws, so that shapes do not tell sequential from vectorized ones."""
    mcmc = mcmc_of(NUTS(moved), num_chains=4, num_samples=4)
    check_same_as_alone(mcmc, change, Y)


@pytest.mark.long
def test_a_heuristic_of_step_sizes_sees_the_new_data():
    kernel = NUTS(model, find_heuristic_step_size=True)
    mcmc, alone = mcmc_of(kernel), mcmc_of(NUTS(model, find_heuristic_step_size=True))
    for scale in (1, 100):
        mcmc.run(jax.random.key(1), scale * Y)
    alone.run(jax.random.key(1), 100 * Y)
    assert is_same(mcmc.get_samples(), alone.get_samples())


def test_a_kernel_of_two_mcmc():
    """Its steps are made for the warm-up of the MCMC that began last."""
    kernel = NUTS(moved)
    short, long = mcmc_of(kernel, num_samples=30), mcmc_of(kernel, num_warmup=200)
    short.warmup(jax.random.key(0), Y, collect_warmup=True)
    long.run(jax.random.key(0), Y)
    short.run(jax.random.key(1), Y)
    short.post_warmup_state = None
    check_same_as_alone(short, lambda _: None, Y)


def test_programs_are_few(monkeypatch):
    mcmc = mcmc_of(NUTS(moved), num_warmup=2, num_samples=2)
    mcmc._known.most = 2
    for at in (0.0, 1.0, 2.0, 1.0):
        monkeypatch.setitem(PLACE, "at", at)
        before = set(mcmc._known.programs)
        mcmc.run(jax.random.key(0), Y)
    assert len(mcmc._known.programs) == 2 and set(mcmc._known.programs) == before


def test_a_model_that_needs_the_values_of_its_data():
    def positive(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[y > 0])

    mcmc = mcmc_of(MALA(positive), num_warmup=200, num_samples=200)
    for sign in (1.0, -1.0):
        mcmc.run(jax.random.key(0), sign * Y)
        expected = np.mean(sign * Y[sign * Y > 0])
        assert abs(mcmc.get_samples()["mu"].mean() - expected) < 2


PARALLEL = """
import jax, jax.numpy as jnp, numpy as np
from numpyro_fwd import MALA, MCMC
from tests.numpyro_fwd.test_mcmc import Y, mcmc_of, model

on_one = jax.device_put(jnp.asarray(Y), jax.devices()[0])
found = []
for way in ("parallel", "sequential"):
    mcmc = mcmc_of(MALA(model), num_chains=2, chain_method=way)
    for key in range(2):
        mcmc.run(jax.random.key(key), on_one)
    found.append(mcmc.get_samples(True)["mu"])
np.testing.assert_array_equal(*found)
"""


@pytest.mark.long
def test_parallel_chains_are_sequential_ones():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", PARALLEL], env=env, check=True)


def test_warmup_and_run():
    mcmc = mcmc_of(MALA(model), num_chains=2)
    mcmc.warmup(jax.random.key(0), Y, collect_warmup=True)
    assert mcmc.get_samples(True)["mu"].shape == (2, 20)
    mcmc.run(jax.random.key(1), Y)
    assert mcmc.get_samples(True)["twice"].shape == (2, 12)


def test_a_position_without_coordinates():
    def fixed(y):
        numpyro.deterministic("a", jnp.ones(2))
        numpyro.sample("y", dist.Normal(0, 1), obs=y)

    mcmc = mcmc_of(MALA(fixed), num_chains=3)
    mcmc.run(jax.random.key(0), Y)
    assert mcmc.get_samples(True)["a"].shape == (3, 12, 2)


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: what runs in the background may have it switched off."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def pressed_after(num_steps):
    """A callback that presses Ctrl-C after so many steps."""

    def callback(progress):
        if progress.num_steps >= num_steps:
            os.kill(os.getpid(), signal.SIGINT)

    return callback


@pytest.mark.usefixtures("ctrl_c")
def test_a_run_that_is_stopped_keeps_its_draws():
    whole = mcmc_of(MALA(model), num_samples=400, num_chains=2)
    whole.run(jax.random.key(0), Y)
    mcmc = mcmc_of(MALA(model), num_samples=400, num_chains=2, callback=pressed_after(21))
    with pytest.warns(UserWarning, match=r"stopped, and \d+ draws of each chain are kept"):
        mcmc.run(jax.random.key(0), Y)
    kept = mcmc.get_samples(True)["mu"]
    assert 0 < kept.shape[1] < 400
    np.testing.assert_array_equal(kept, whole.get_samples(True)["mu"][:, : kept.shape[1]])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    mcmc.callback = None
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), Y)
    assert mcmc.get_samples(True)["mu"].shape == (2, 400)


@pytest.mark.usefixtures("ctrl_c")
def test_a_warmup_that_is_stopped_is_an_error():
    mcmc = mcmc_of(MALA(model), num_warmup=1000, callback=pressed_after(0))
    with pytest.raises(KeyboardInterrupt, match=r"of 1000 of the warm-up"):
        mcmc.run(jax.random.key(0), Y)
    assert 0 < int(mcmc.last_state.i) < 1000


@pytest.mark.usefixtures("ctrl_c")
def test_a_run_that_is_stopped_while_sites_are_computed_keeps_its_draws(monkeypatch):
    mcmc = mcmc_of(MALA(model))
    mcmc.run(jax.random.key(0), Y)
    whole, finished = mcmc.get_samples(), Loop.finished

    def pressed(loop, num_draws):
        if num_draws:
            os.kill(os.getpid(), signal.SIGINT)
        return finished(loop, num_draws)

    monkeypatch.setattr(Loop, "finished", pressed)
    with pytest.warns(UserWarning, match="in its last piece: all 12 draws"):
        mcmc.run(jax.random.key(0), Y)
    assert is_same(mcmc.get_samples(), whole)


@pytest.mark.usefixtures("ctrl_c")
def test_a_run_that_is_stopped_before_its_first_draw_says_so():
    mcmc = mcmc_of(MALA(model), num_samples=400, thinning=390, callback=pressed_after(21))
    with pytest.raises(KeyboardInterrupt, match="before the first: no draws"):
        mcmc.run(jax.random.key(0), Y)


def test_the_line_says_how_far_chains_are(capfd):
    mcmc = mcmc_of(MALA(model), num_chains=2, num_samples=100)
    mcmc.progress_bar = True
    mcmc.run(jax.random.key(0), Y)
    text = capfd.readouterr().err
    # what matters most comes first: a terminal of 80 columns shows no more
    words = "R-hat ", "ESS ", "0 divergences", "100 draws"
    places = [text.rfind(word) for word in words]
    assert places == sorted(places) and min(places) > 0 and "120/120" in text


def test_pickled():
    mcmc = mcmc_of(MALA(model), num_chains=2)
    mcmc.run(jax.random.key(0), Y)
    other = pickle.loads(pickle.dumps(mcmc))
    assert is_same(other.get_samples(), mcmc.get_samples()) and not other._known.programs


def test_within_another_program():
    def mean(key, y):
        mcmc = numpyro_fwd.MCMC(MALA(model), num_warmup=20, num_samples=20, progress_bar=False)
        mcmc.run(key, y)
        return mcmc.get_samples()["mu"].mean()

    found = jax.jit(jax.vmap(mean))(jax.random.split(jax.random.key(0), 2), jnp.stack([Y, Y]))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("given", [jnp.zeros(3), "mu"])
def test_bad_arguments(given):
    mcmc = mcmc_of(MALA(model), num_chains=2)
    if isinstance(given, str):
        with pytest.raises(TypeError, match="extra_fields must be a tuple or a list"):
            mcmc.run(jax.random.key(0), Y, extra_fields=given)
    else:
        with pytest.raises(ValueError, match="init_params"):
            mcmc.run(jax.random.key(0), Y, init_params={"mu": given, "tau": given})


@pytest.mark.usefixtures("ctrl_c")
def test_a_stopped_warmup_does_not_count_as_finished():
    mcmc = mcmc_of(MALA(model), num_warmup=1000, callback=pressed_after(0))
    with pytest.raises(KeyboardInterrupt, match="the warm-up was stopped after step"):
        mcmc.warmup(jax.random.key(0), Y, collect_warmup=True)
    assert mcmc.post_warmup_state is None and 0 < mcmc.get_samples()["mu"].size < 1000


def test_until_goals_are_reached():
    mcmc = mcmc_of(NUTS(model), num_warmup=300, num_chains=2, until=Until(ess=50, max_draws=5000))
    mcmc.run(jax.random.key(0), Y)
    few = mcmc.get_samples(True)["mu"].shape[1]
    mcmc.until = Until(max_draws=1300)  # more than there is room for at once
    mcmc.run(jax.random.key(0), Y)
    many = mcmc.get_samples(True)
    assert 100 <= few < 1300 and many["mu"].shape == (2, 1300)
    whole = mcmc_of(NUTS(model), num_warmup=300, num_samples=1300, num_chains=2)
    whole.run(jax.random.key(0), Y)
    assert is_same(whole.get_samples(True), many)
    assert len(mcmc._known.programs) == 1


def test_a_callback_is_told_all_draws():
    told = []
    mcmc = mcmc_of(NUTS(model), num_chains=2, num_samples=200, callback=told.append)
    mcmc.run(jax.random.key(0), Y, extra_fields=("num_steps",))
    assert [each.phase for each in told][:: len(told) - 1] == ["warmup", "sample"]
    pieces = [each.draws["mu"] for each in told if each.draws]
    np.testing.assert_array_equal(np.concatenate(pieces, 1), mcmc.get_samples(True)["mu"])
    last, fields = told[-1], mcmc.get_extra_fields()
    assert (last.num_steps, last.num_draws) == (220, 200)
    assert last.divergences == fields["diverging"].sum()
    assert last.gradients == pytest.approx(fields["num_steps"].mean())
    assert last.worst.ess > 4 and last.worst.parameter in ("mu", "tau")


def test_an_error_of_a_callback_loses_nothing():
    def fails(progress):
        if progress.num_draws:
            raise RuntimeError("enough")

    mcmc = mcmc_of(MALA(model), num_samples=10_000, callback=fails)
    with pytest.raises(RuntimeError, match="enough"):
        mcmc.run(jax.random.key(0), Y)
    num_draws = len(mcmc.get_samples()["mu"])
    assert 0 < num_draws < 10_000 and int(mcmc.last_state.i) == 20 + num_draws


def test_a_handle():
    mcmc = mcmc_of(NUTS(model), num_warmup=300, num_chains=2, num_samples=1000)
    mcmc.run(jax.random.key(0), Y)
    whole = mcmc.get_samples(True)
    mcmc.num_samples, mcmc.until = 1000, Until(seconds=600)
    run = mcmc.run(jax.random.key(0), Y, blocking=False)
    with pytest.raises(RuntimeError, match="a run of this MCMC goes on"):
        mcmc.run(jax.random.key(0), Y)
    while not run.draws():
        assert not run.wait(0.01)
    run.pause()
    run.wait(2.0)  # until its piece is over
    paused = run.progress.num_draws
    assert not run.wait(0.5) and run.progress.num_draws == paused
    assert len(run.draws()["mu"]) == 2 * paused and "running" in repr(run)
    run.resume()
    while run.progress.num_draws == paused:
        run.wait(0.01)
    run.stop()
    found = mcmc.get_samples(True)
    num_draws = found["mu"].shape[1]
    assert run.wait() and num_draws > paused and "over" in repr(run)
    assert is_same(run.draws(group_by_chain=True), found)
    n = min(num_draws, 1000)
    assert is_same(*(jax.tree.map(lambda x: x[:, :n], each) for each in (whole, found)))


def test_a_handle_raises_what_the_run_raises():
    def fails(progress):
        raise RuntimeError("enough")

    mcmc = mcmc_of(MALA(model), callback=fails)
    run = mcmc.run(jax.random.key(0), Y, blocking=False)
    with pytest.raises(RuntimeError, match="enough"):
        run.wait()
    with pytest.raises(TypeError, match="callback must be a function"):
        mcmc_of(MALA(model), callback=3)
