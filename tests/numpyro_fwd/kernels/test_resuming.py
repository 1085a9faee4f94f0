"""What a state carries from run to run: types, the length of its warm-up, whose data it knows."""

import contextlib
import warnings

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import AMAGOLD, MALA, BlackJAXKernel
from numpyro_fwd.bridge import fingerprints
from numpyro_fwd.bridge.fingerprints import fingerprint, is_other
from tests import fixed_seeds


def mcmc_of(kernel, num_warmup=60, num_samples=20, **options):
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False, **options}
    return MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **options)


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 3))
    y = (rng.random(300) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(float)
    return jnp.asarray(x), jnp.asarray(y)


# --- programs -------------------------------------------------------------------------------------


@contextlib.contextmanager
def counting(*functions):
    """A list of those of `functions` that are compiled while it is open."""
    compiled = []

    def listen(event, _, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.extend(name for name in functions if name in fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(listen)


KERNELS = {
    name: (name, fixed_seeds.regression, fixed_seeds.KERNELS[name]) for name in ("MALA",)
} | {
    "ALSMMALA": ("ALSMMALA", fixed_seeds.regression, {}),
    **{
        name: (algorithm, fixed_seeds.on_minibatches, options)
        for name, (algorithm, options) in fixed_seeds.MINIBATCH_KERNELS.items()
        if name in ("AMAGOLD", "AMAGOLD_subsampled", "SGHMC")
    },
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "has_progress_bar"), [("MALA", True), ("AMAGOLD_subsampled", False)]
)
def test_a_run_compiles_its_step_once(name, has_progress_bar):
    algorithm, model, options = KERNELS[name]
    mcmc = mcmc_of(getattr(numpyro_fwd, algorithm)(model, **options), num_chains=1)
    mcmc.progress_bar = has_progress_bar  # which NumPyro turns off in the workers of a test
    with counting("_body_fn", "_fori_collect_loop") as compiled:
        mcmc.run(jax.random.key(0), *data())
        again = len(compiled)
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(1), *data())
    assert again == 1 and len(compiled) <= 2, compiled


# --- types ----------------------------------------------------------------------------------------


def types(state):
    return [
        (leaf.shape, leaf.dtype, leaf.weak_type)
        for leaf in jax.tree.leaves(state)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_a_step_returns_the_types_it_is_given(name):
    """Otherwise it is compiled twice where it is called from Python, with a progress bar."""
    algorithm, model, options = KERNELS[name]
    kernel = getattr(numpyro_fwd, algorithm)(model, **options)
    state = kernel.init(jax.random.key(0), 60, None, data(), None)
    after = jax.jit(lambda state: kernel.sample(state, data(), None))(state)
    assert types(state) == types(after)


# --- the warm-up ----------------------------------------------------------------------------------


def normal():
    numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))


@pytest.mark.long
def test_resuming_never_adapts():
    """Another MCMC with the same kernel, and a longer warm-up, changes nothing."""
    kernel = MALA(normal)
    first, second = mcmc_of(kernel), mcmc_of(kernel, 500)
    first.run(jax.random.key(0))
    second.run(jax.random.key(1))
    first.post_warmup_state = first.last_state
    kept = first.last_state.adapt_state
    first.run(jax.random.key(2), extra_fields=("adapt_state.step_size",))
    assert int(first.last_state.num_warmup) == 60
    jax.tree.map(np.testing.assert_array_equal, kept, first.last_state.adapt_state)


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("jit_model_args", [False, True])
def test_a_state_of_other_data_is_refused(jit_model_args):
    kernel = AMAGOLD(fixed_seeds.on_minibatches, acceptance="subsampled")
    mcmc = mcmc_of(kernel, jit_model_args=jit_model_args)
    mcmc.run(jax.random.key(0), *data(0))
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), *map(jnp.array, data(0)))  # equal, in other arrays
    mcmc.get_samples()["w"].block_until_ready()
    with pytest.raises(Exception, match="made with other data"):
        mcmc.run(jax.random.key(1), *data(1))
        mcmc.get_samples()["w"].block_until_ready()


def of_columns(table):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(mean, 1), obs=jnp.asarray(table["y"].to_numpy()))


@pytest.mark.long
def test_a_state_of_another_table_is_refused():
    """Columns are data: a chain of the old ones would stand still on the new."""
    pandas = pytest.importorskip("pandas")
    y = np.random.default_rng(0).normal(5, 1, 50)
    table = pandas.DataFrame({"name": ["a", "b"] * 25, "y": y})
    mcmc = mcmc_of(MALA(of_columns))
    mcmc.run(jax.random.key(0), table)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), table.copy())
    with pytest.raises(ValueError, match="made with other data"):
        mcmc.run(jax.random.key(1), table.assign(y=-y))


def normal_data(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


# steps above two sds lead away from the mode, where a refreshed chain begins far from it
OTHERS = {
    "MALA": numpyro_fwd.MALA(normal_data, target_accept_prob=0.8),
    "AutoMALA": numpyro_fwd.AutoMALA(normal_data),
    "ALSMMALA": numpyro_fwd.ALSMMALA(normal_data),
    "blackjax": BlackJAXKernel(normal_data, blackjax.mala),
}


@pytest.mark.long
@pytest.mark.parametrize(("jit_model_args", "has_progress_bar"), [(False, False), (True, True)])
def test_an_array_that_was_changed_in_place_is_sampled_as_it_is(jit_model_args, has_progress_bar):
    """NumPyro keeps its loop by the identity of the arguments, with what they held."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        numpyro.deterministic("twice", mean + y[0])
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    y = np.zeros(50)
    mcmc = mcmc_of(
        numpyro_fwd.MALA(model, target_accept_prob=0.8),
        300,
        200,
        num_chains=1,
        progress_bar=has_progress_bar,
        jit_model_args=jit_model_args,
    )
    for value in (0.0, 5.0):
        y[:] = value
        mcmc.run(jax.random.key(0), y)
        samples = mcmc.get_samples()
        assert abs(samples["mean"].mean() - value) < 0.3
        assert abs(samples["twice"].mean() - 2 * value) < 0.3
        assert samples["mean"].std() > 0.05  # a chain whose steps have other numbers stands still
    y[:] = 9.0
    mcmc.post_warmup_state = mcmc.sampler.refresh(mcmc.last_state, (y,), {})
    mcmc.run(jax.random.key(1), y)
    assert abs(mcmc.get_samples()["mean"].mean() - 9.0) < 0.5


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_particles_are_annealed_to_an_array_as_it_is(dtype):
    """Arrays of float64 become others on their way to JAX, so that their change is not seen."""
    y = np.zeros(50, dtype)
    mcmc = mcmc_of(numpyro_fwd.LangevinSMC(normal_data), 3, 2, num_chains=1000)
    evidence = []
    for value in (0.0, 5.0):
        y[:] = value
        mcmc.run(jax.random.key(0), y)
        assert abs(mcmc.get_samples()["mean"].mean() - value) < 0.1
        evidence.append(mcmc.last_state.log_evidence[0])
    assert abs(evidence[1] - evidence[0] + 5.0**2 / (2 * 10.0**2)) < 0.1


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("jit_model_args", [False, True])
def test_particles_of_other_data_are_refused(jit_model_args):
    """Their log densities, and their evidence, are those of the data they were annealed to."""
    y = np.random.default_rng(0).normal(size=50)
    options = {"num_chains": 200, "jit_model_args": jit_model_args}
    mcmc = mcmc_of(numpyro_fwd.LangevinSMC(normal_data), 3, 2, **options)
    mcmc.run(jax.random.key(0), y)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), y.copy())
    with pytest.raises(Exception, match=r"annealed to other data.*post_warmup_state = None"):
        mcmc.run(jax.random.key(1), y + 5.0)
        mcmc.get_samples()["mean"].block_until_ready()
    mcmc.post_warmup_state = None
    mcmc.run(jax.random.key(1), y + 5.0)
    assert abs(mcmc.get_samples()["mean"].mean() - 5.0 - y.mean()) < 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MALA", {"chain_method": "sequential", "jit_model_args": False}),
        ("AutoMALA", {"chain_method": "vectorized", "jit_model_args": True}),
        ("ALSMMALA", {"chain_method": "vectorized", "jit_model_args": True}),
        ("blackjax", {"chain_method": "sequential", "jit_model_args": False}),
    ],
)
def test_a_log_density_of_other_data_is_refused_and_refreshed(name, options):
    """Chains would stay where the old density is above any of the new."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=40), rng.normal(0.4, 1.1, size=50)
    mcmc = mcmc_of(OTHERS[name], 300, 2000, **options)
    mcmc.run(jax.random.key(0), first)
    state = mcmc.last_state
    mcmc.post_warmup_state = state
    with pytest.raises(Exception, match=r"made with other data.*refresh"):
        mcmc.run(jax.random.key(1), second)
        mcmc.get_samples()["mean"].block_until_ready()
    mcmc.post_warmup_state = mcmc.sampler.refresh(state, (second,), {})
    mcmc.run(jax.random.key(1), second)
    draws = mcmc.get_samples(group_by_chain=True)["mean"][:, 200:]  # the start is four sds off
    assert abs(draws.mean() - second.mean()) < 0.3 / np.sqrt(50)
    assert draws.std() == pytest.approx(1 / np.sqrt(50), rel=0.2)
    steps = (mcmc.last_state.adapt_state.step_size, state.adapt_state.step_size)
    assert steps[0] == pytest.approx(steps[1])


@pytest.mark.long
def test_a_new_kernel_refreshes_the_state_of_another():
    kernel = MALA(normal_data)
    mcmc = mcmc_of(kernel, num_samples=50)
    mcmc.run(jax.random.key(0), jnp.arange(5.0))
    again = mcmc_of(MALA(normal_data), num_samples=50)
    again.post_warmup_state = again.sampler.refresh(mcmc.last_state, (jnp.arange(9.0),), None)
    again.run(jax.random.key(1), jnp.arange(9.0))
    assert np.isfinite(again.get_samples()["mean"]).all()


@pytest.mark.long
def test_what_chains_share_is_not_refreshed():
    mcmc = mcmc_of(AMAGOLD(fixed_seeds.on_minibatches, acceptance="subsampled"))
    mcmc.run(jax.random.key(0), *data(0))
    mcmc.sampler.refresh(mcmc.last_state, data(0), {})
    with pytest.raises(ValueError, match="made with other data"):
        mcmc.sampler.refresh(mcmc.last_state, data(1), {})


NUMBERS = [
    *(np.array([[1.5, -2.0, 0.0], [3e4, 1e-3, 7.0]]).astype(t) for t in ("f2", "f4", "c8")),
    *(np.array([[-3, 100, 7]]).astype(t) for t in ("i1", "i4", "u1", "?")),
    *(jnp.array([1.0, 3.0], jnp.bfloat16), jax.random.key(3), 3, -2, 1.5, True, np.zeros((0, 3))),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(getattr(value, "dtype", value)))
def test_numpy_and_jax_find_the_same_fingerprint(value, monkeypatch):
    found = fingerprint((value,), None)
    traced = jax.jit(lambda *given: fingerprint(given, None))(value)
    monkeypatch.setattr(fingerprints, "MOST_ON_HOST", -1)
    compiled = fingerprint((value,), None)
    assert found == compiled == traced


@pytest.mark.parametrize(
    "one, other",
    [
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        (np.array(["2020-01-01"], "datetime64[D]"), np.array(["2020-01-02"], "datetime64[D]")),
        (np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4")),
        (np.str_("a"), np.str_("b")),
    ],
)
def test_fingerprints_of_what_jax_does_not_take(one, other):
    made = fingerprint((one,), None)
    assert not is_other(made, (np.array(one),), None) and is_other(made, (other,), None)


def test_fingerprints_of_tables():
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    one, other = ({"x": [1.0, 2.0], "name": ["a", last]} for last in "bc")
    for make in (pandas.DataFrame, lambda columns: xarray.Dataset(pandas.DataFrame(columns))):
        made = fingerprint((make(one),), None)
        assert not is_other(made, (make(one),), None) and is_other(made, (make(other),), None)
    made = fingerprint((), {"y": pandas.Series([1.0, 2.0])})
    assert is_other(made, (), {"y": pandas.Series([1.0, 3.0])})


@pytest.mark.parametrize(
    "other",
    [
        (jnp.arange(600.0).at[1].set(7.0), 3),
        (jnp.arange(600.0).reshape(2, 300), 3),
        (jnp.arange(600.0)[::-1], 3),
        (jnp.arange(600.0), 4),
    ],
)
def test_fingerprints_tell_arguments_apart(other):
    made = fingerprint((jnp.arange(600.0), 3), None)
    assert is_other(made, other, None)
    assert not is_other(made, (np.arange(600.0, dtype=np.float32), 3), {})
    traced = jax.jit(lambda *args: is_other(made, args, None))
    assert not traced(jnp.arange(600.0), 3)


# --- what does not move, and what cannot be adapted -----------------------------------------------


def spike(z):
    """Minus a log density with a place that no step leaves."""
    is_spike = jnp.sum((z - 50.0) ** 2) < 1e-12
    return jnp.where(is_spike, -1e6, 0.5 * jnp.sum(z**2))


@pytest.mark.long
def test_a_frozen_chain_is_named_once():
    kernel = numpyro_fwd.RandomWalk(potential_fn=spike, warm_start=False, step_size=2.0)
    mcmc = mcmc_of(kernel, 300, num_chains=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(0), init_params=jnp.array([50.0]))
    found = [str(w.message) for w in caught if "is frozen" in str(w.message)]
    assert len(found) == 1 and "a chain" in found[0] and "LocScaleReparam" in found[0]


@pytest.mark.long
@pytest.mark.parametrize("num_chains, name", [(1, "a chain"), (2, "chain 1 of 2")])
def test_a_chain_that_sticks_while_sampling_is_named_once(num_chains, name):
    kernel = numpyro_fwd.RandomWalk(potential_fn=spike, step_size=1.0)
    mcmc = mcmc_of(kernel, 0, num_samples=500, num_chains=num_chains)
    start = jnp.array([[1.0], [50.0]])[2 - num_chains :]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(0), init_params=start[0] if num_chains == 1 else start)
    (message,) = [str(w.message) for w in caught if "stuck" in str(w.message)]
    assert message.startswith(name) and "draw 199" in message


@pytest.mark.long
def test_collapsed_steps_are_named_where_the_metric_stays_too():
    kernel = numpyro_fwd.MALA(
        potential_fn=lambda z: 0.5 * (z[0] ** 2 + (1e4 * z[1]) ** 2), adapt_mass_matrix=False
    )
    with pytest.warns(UserWarning, match="steps have collapsed"):
        mcmc_of(kernel, 400).run(jax.random.key(0), init_params=jnp.zeros((2, 2)))


@pytest.mark.long
def test_an_algorithm_without_a_rate_is_not_adapted():
    kernel = BlackJAXKernel(normal, blackjax.mclmc, L=2.0)
    with pytest.raises(TypeError, match="adapt_step_size=False"):
        mcmc_of(kernel).run(jax.random.key(0))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"target_accept": 0.9}, "target_accept_prob instead of target_accept"),
        ({"dense_mass": ["m"]}, "dense_mass must name its blocks by tuples"),
        ({"dense_mass": "full"}, "dense_mass must be True"),
        ({"dense_mass": np.ones(2)}, "dense_mass must be True"),
        ({"inverse_mass_matrix": {"m": jnp.eye(2)}}, "inverse_mass_matrix must name its blocks"),
    ],
)
def test_options_that_would_be_misread(options, words):
    with pytest.raises(TypeError, match=words):
        MALA(normal, **options)
