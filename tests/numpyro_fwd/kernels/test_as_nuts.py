"""What NumPyro's own tests ask of MCMC with NUTS and HMC, asked of MCMC with these kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import MCMC
from numpyro.infer.hmc import HMCState
from numpyro.infer.util import potential_energy
from numpyro.util import nested_attrgetter

import numpyro_fwd
from numpyro_fwd import AMAGOLD, FMALA, MALA, AutoMALA, AutoNUTS

KERNELS = {"MALA": MALA, "AutoMALA": AutoMALA, "FMALA": FMALA, "AutoNUTS": AutoNUTS}
# one kernel in every way, the others at the full size: most of what is asked is not the kernel's
each_kernel = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=name, marks=[] if name == "AutoNUTS" else pytest.mark.full)
        for name, kernel in KERNELS.items()
    ],
)
METHODS = ("sequential", "parallel", "vectorized")
each_method = pytest.mark.parametrize("chain_method", METHODS)
# one kernel in the other ways as well, and all of them at the full size
in_full = [pytest.param(name, marks=[] if name == "MALA" else pytest.mark.full) for name in KERNELS]
few_devices = pytest.mark.filterwarnings("ignore:There are not enough devices:UserWarning")


def mcmc_of(kernel, num_warmup=20, num_samples=10, **options):
    options = {"progress_bar": False, **options}
    return MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **options)


def located(y=None):
    """A mean and a scale, with what follows from them."""
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    scale = numpyro.sample("scale", dist.HalfCauchy(3))
    numpyro.deterministic("ratio", mean / scale)
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def rows(mean, num=50, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(mean, 0.5, num), jnp.float32)


# --- one object, several runs --------------------------------------------------------------------


@pytest.mark.long
@each_kernel
def test_second_run_has_the_posterior_of_its_own_data(kernel):
    check_second_run(kernel, True)


@pytest.mark.long
@pytest.mark.parametrize("name", in_full)
def test_second_run_with_arguments_as_constants(name):
    check_second_run(KERNELS[name], False)


def check_second_run(kernel, jit_model_args):
    mcmc = mcmc_of(kernel(located), 200, 300, jit_model_args=jit_model_args)
    for mean, num in ((3.0, 50), (-3.0, 50), (2.0, 20)):
        mcmc.run(jax.random.key(0), rows(mean, num))
        np.testing.assert_allclose(mcmc.get_samples()["mean"].mean(), mean, atol=0.5)


@pytest.mark.long
@each_kernel
def test_warmup_and_run(kernel):
    """The draws of a warm-up are there if asked for, and a run goes on from its end."""
    whole, parts = (mcmc_of(kernel(located), 200, 60) for _ in range(2))
    whole.run(jax.random.key(0), rows(1.0))
    parts.warmup(jax.random.key(0), rows(1.0), collect_warmup=True, extra_fields=("diverging",))
    assert parts.get_samples()["ratio"].shape == (200,)
    assert parts.get_extra_fields()["diverging"].shape == (200,)
    parts.run(parts.post_warmup_state.rng_key, rows(1.0))
    np.testing.assert_array_equal(parts.get_samples()["mean"], whole.get_samples()["mean"])
    parts.post_warmup_state = parts.last_state
    parts.run(parts.post_warmup_state.rng_key, rows(1.0))
    assert (parts.get_samples()["mean"] != whole.get_samples()["mean"]).any()


@pytest.mark.long
@each_kernel
def test_paths_of_a_model(kernel):
    """Sites come and go with the arguments."""

    def model(a=None, b=None, y=None):
        mean = numpyro.sample("level", dist.Normal(0, 0.2))
        if a is not None:
            mean = mean + a * numpyro.sample("slope_a", dist.HalfNormal(0.5))
        if b is not None:
            mean = mean + b * numpyro.sample("slope_b", dist.HalfNormal(0.5))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    mcmc, x = mcmc_of(kernel(model)), rows(0.0, 10)
    for given in ("a", "b", "ab"):
        mcmc.run(jax.random.key(0), **dict.fromkeys(given, x), y=x)
        assert set(mcmc.get_samples()) == {"level", *(f"slope_{name}" for name in given)}


@pytest.mark.long
@each_kernel
def test_another_number_of_groups(kernel):
    """A state of four groups says what is wrong with five, and a run of its own has five."""

    def model(group, y, num_groups):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(mean, 1))
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)

    mcmc = mcmc_of(kernel(model), 5, num_chains=2, chain_method="vectorized")
    index = jnp.arange(50)
    mcmc.warmup(jax.random.key(0), index % 4, rows(1.0), 4)
    with pytest.raises(ValueError, match=r"site 'effect' has \(5,\) .*, and had \(4,\)"):
        mcmc.run(jax.random.key(1), index % 5, rows(1.0), 5)
    mcmc.post_warmup_state = None
    mcmc.run(jax.random.key(1), index % 5, rows(1.0), 5)
    assert mcmc.get_samples()["effect"].shape == (20, 5)


# --- inside jit ----------------------------------------------------------------------------------


@pytest.mark.long
@each_kernel
def test_vectorized_inside_jit(kernel):
    check_inside_jit(kernel, "vectorized")


@pytest.mark.long
@pytest.mark.parametrize("name", in_full)
def test_sequential_inside_jit(name):
    check_inside_jit(KERNELS[name], "sequential")


def check_inside_jit(kernel, chain_method):
    """Data, key, step size and target may be traced."""
    kept = []

    @jax.jit
    def draws(rng_key, y, step_size, target):
        made = kernel(located, step_size=step_size, target_accept_prob=target)
        mcmc = mcmc_of(made, 100, 300, num_chains=2, chain_method=chain_method)
        mcmc.run(rng_key, y)
        kept.append(made)
        return mcmc.get_samples()["mean"]

    for mean in (2.0, -1.0):
        found = draws(jax.random.key(1), rows(mean), 0.7, 0.6)
        np.testing.assert_allclose(found.mean(), mean, atol=0.4)
    assert len(kept) == 1


@pytest.mark.long
def test_minibatches_inside_jit():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        with numpyro.plate("rows", 50, subsample_size=10) as index:
            numpyro.sample("y", dist.Normal(mean, 1), obs=y[index])

    @jax.jit
    def draws(rng_key, y, step_size, target):
        options = {"step_size": step_size, "target_accept_prob": target, "control_variate": None}
        mcmc = mcmc_of(AMAGOLD(model, **options), 100, 300)
        mcmc.run(rng_key, y)
        return mcmc.get_samples()["mean"]

    np.testing.assert_allclose(draws(jax.random.key(1), rows(2.0), 0.7, 0.6).mean(), 2.0, atol=0.3)


# --- nothing to sample ---------------------------------------------------------------------------


def empty():
    pass


def fixed():
    numpyro.deterministic("table", jnp.arange(6.0).reshape(2, 3))
    numpyro.sample("y", dist.Normal(0, 1), obs=0.5)


def trivial():
    numpyro.sample("x", dist.Dirichlet(jnp.ones(1)).expand([4]))
    numpyro.sample("none", dist.Normal(0, 1).expand([0]))


def beside():
    x = numpyro.sample("x", dist.Dirichlet(jnp.ones(1)))
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean + x, 1), obs=2.0)


NOTHING = {
    "empty": (empty, {}),
    "fixed": (fixed, {"table": (2, 3)}),
    "trivial": (trivial, {"x": (4, 1), "none": (0,)}),
    "beside": (beside, {"x": (1,), "mean": ()}),
}
# of each kind of state
EVERY = ("PCFMALA", "AutoMALA", "RandomWalk", "HPMALA", "ALSMMALA", "AMSMMALA", "L2MC")


def check_nothing(kernel, name, **options):
    model, shapes = NOTHING[name]
    mcmc = mcmc_of(kernel(model), num_chains=2, **options)
    mcmc.run(jax.random.key(0))
    draws = mcmc.get_samples(group_by_chain=True)
    assert {site: leaf.shape[2:] for site, leaf in draws.items()} == shapes
    assert all(leaf.shape[:2] == (2, 10) for leaf in draws.values())
    if "x" in draws:
        assert (draws["x"] == 1.0).all()
    if "table" in draws:
        assert (draws["table"] == jnp.arange(6.0).reshape(2, 3)).all()
    if "x" not in draws:  # NumPyro divides by the variance of draws, and by their number
        mcmc.print_summary()


@pytest.mark.first
@each_kernel
@pytest.mark.parametrize("name", NOTHING)
def test_models_without_coordinates(kernel, name):
    check_nothing(kernel, name, chain_method="vectorized")


@pytest.mark.first
@few_devices
@each_method
def test_chains_without_coordinates(chain_method):
    check_nothing(MALA, "fixed", chain_method=chain_method)


@pytest.mark.long
@pytest.mark.parametrize("kernel", EVERY)
def test_every_kernel_without_coordinates(kernel):
    check_nothing(getattr(numpyro_fwd, kernel), "trivial", chain_method="vectorized")


# --- chains, fields, starts ----------------------------------------------------------------------


@pytest.mark.long
@few_devices
@pytest.mark.parametrize("name", in_full)
@each_method
def test_chains(name, chain_method):
    kernel = KERNELS[name]
    start = {"mean": jnp.array([0.5, 1.0]), "scale": jnp.zeros(2)}
    mcmc = mcmc_of(kernel(located), num_chains=2, thinning=2, chain_method=chain_method)
    fields = ("num_steps", "adapt_state.step_size", "z.scale", "~z.ratio")
    mcmc.run(jax.random.key(0), rows(1.0), init_params=start, extra_fields=fields)
    draws = mcmc.get_samples(group_by_chain=True)
    assert set(draws) == {"mean", "scale"}
    found = mcmc.get_extra_fields(group_by_chain=True)
    assert all(leaf.shape == (2, 5) for leaf in (*draws.values(), *found.values()))
    np.testing.assert_allclose(draws["scale"], jnp.exp(found["z.scale"]), rtol=1e-5)
    assert (draws["mean"][0] != draws["mean"][1]).any()


def in_plate(y):
    """:func:`located` with minibatches for the kernels that take them."""
    mean, scale = numpyro.sample("mean", dist.Normal()), numpyro.sample("scale", dist.HalfNormal())
    with numpyro.plate("rows", len(y), subsample_size=len(y) // 5) as index:
        numpyro.sample("y", dist.Normal(mean, scale), obs=y[index])


WITH_GRADIENTS = ("MALA", "AutoMALA", "AutoNUTS", "HPMALA", "SMMALA", "MMALA", "ALSMMALA")
IN_ALL = ("i", "z", "accept_prob", "diverging", "rng_key", "potential_energy")
BY_ROWS = ("AMAGOLD", "L2MC", "SGHMC")
WITH_FIELDS = [
    pytest.param(name, marks=pytest.mark.full if name in ("HPMALA", "MMALA", "L2MC") else ())
    for name in (*WITH_GRADIENTS, *EVERY[:3:2], "LangevinSMC", *BY_ROWS)
]


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_FIELDS)
def test_every_field_of_nuts_is_given_or_those_there_are_are_listed(name):
    model, y = in_plate if name in BY_ROWS else located, rows(1.0)
    options = {} if name == "LangevinSMC" else {"warm_start": False}
    kernel = getattr(numpyro_fwd, name)(model, **options)
    keys = jax.random.split(jax.random.key(0), 50 if name == "LangevinSMC" else 2)
    state = kernel.sample(kernel.init(keys, 5, None, (y,), {}), (y,), {})
    given = {}
    for field in (*HMCState._fields, "adapt_state.step_size", "adapt_state.none", "no_such_field"):
        try:
            given[field] = nested_attrgetter(field)(state)
        except KeyError as error:
            listed = str(error).split("which has ")[1].split(". Name")[0].split(", ")
            of = getattr(state, "adapt_state", state) if field == "adapt_state.none" else state
            assert field not in listed and all(hasattr(of, each) for each in listed)
    assert given.keys() >= {*IN_ALL} and all(value is not None for value in given.values())
    assert ("z_grad" in given) == (name in WITH_GRADIENTS)
    if name in BY_ROWS:
        return
    energy = jax.vmap(jax.value_and_grad(lambda z: potential_energy(model, (y,), {}, z)))
    found, gradient = energy(state.z)
    np.testing.assert_allclose(given["potential_energy"], found, rtol=1e-4)
    for site, leaf in given.get("z_grad", {}).items():
        np.testing.assert_allclose(leaf, gradient[site], rtol=1e-3, atol=1e-3)


@pytest.mark.first
@few_devices
@pytest.mark.parametrize(
    ("chain_method", "field"),
    [*zip(METHODS, ["r", "trajectory_length", "adapt_state.mm_state"], strict=True)],
)
def test_an_extra_field_that_is_not_there(chain_method, field):
    mcmc = mcmc_of(AutoNUTS(located), num_chains=2, chain_method=chain_method)
    with pytest.raises(KeyError, match=rf"no field '{field.split('.')[-1]}' in its .*step_size"):
        mcmc.run(jax.random.key(0), rows(1.0), extra_fields=(field,))


@pytest.mark.long
@pytest.mark.parametrize("mean", [2, [2.0, 1.0], np.arange(2), np.array([2.0, 1.0])], ids=str)
def test_starts_may_be_whole_numbers_and_lists(mean):
    """A count stays one."""

    def model(y):
        shape = np.shape(mean)
        at = numpyro.sample("mean", dist.Normal(0, 10).expand(shape).to_event(len(shape)))
        numpyro.sample("y", dist.Normal(jnp.sum(at), 1.0), obs=y)

    start = numpyro.infer.init_to_value(values={"mean": mean})
    options = dict(init_strategy=start, warm_start=False, step_size=1e-6, adapt_step_size=False)
    mcmc = mcmc_of(MALA(model, **options))
    mcmc.run(jax.random.key(0), rows(1.0))
    np.testing.assert_allclose(mcmc.get_samples()["mean"][0], mean, atol=1e-3)


# --- supports ------------------------------------------------------------------------------------


def improper(y):
    """Flat priors of three kinds."""
    mean = numpyro.sample("mean", dist.Normal(0, 1).mask(False))
    scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def nested(y):
    """The end of an interval is a latent itself."""
    end = numpyro.sample("end", dist.Uniform(0, 4))
    mean = numpyro.sample("mean", dist.Uniform(0, end))
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def lifted(y):
    """A param site with a prior."""
    mean = numpyro.param("mean", jnp.array(1.0), constraint=constraints.positive)
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


SUPPORTS = {
    "improper": improper,
    "nested": nested,
    "lifted": numpyro.handlers.lift(lifted, prior={"mean": dist.Gamma(0.01, 0.01)}),
}


@pytest.mark.long
@each_kernel
@pytest.mark.parametrize("name", SUPPORTS)
def test_supports(kernel, name):
    mcmc = mcmc_of(kernel(SUPPORTS[name]), 400, 1500, num_chains=2, chain_method="vectorized")
    mcmc.run(jax.random.key(0), rows(1.0, 200))
    error = rows(1.0, 200).mean() - mcmc.get_samples()["mean"].mean()
    np.testing.assert_allclose(error / (0.5 / 200**0.5), 0.0, atol=0.4)


@pytest.mark.long
@each_kernel
def test_direction_and_pytree(kernel):
    """A circular latent, and an energy of a nested position."""

    def circular():
        with numpyro.handlers.reparam(config={"at": numpyro.infer.reparam.CircularReparam()}):
            numpyro.sample("at", dist.VonMises(0.5, 4.0))

    mcmc = mcmc_of(kernel(circular), 200, 2000, num_chains=2, chain_method="vectorized")
    mcmc.run(jax.random.key(0))
    at = mcmc.get_samples()["at"]
    np.testing.assert_allclose(jnp.mean(jnp.sin(at - 0.5)), 0.0, atol=0.1)
    assert (jnp.abs(at) <= jnp.pi + 1e-5).all()
    energy = lambda z: 0.5 * (z["a"][0] ** 2 + jnp.sum((z["a"][1] - 1) ** 2))  # noqa: E731
    mcmc = mcmc_of(kernel(potential_fn=energy), 200, 2000)
    mcmc.run(jax.random.key(0), init_params={"a": (jnp.zeros(()), jnp.zeros(2))})
    np.testing.assert_allclose(mcmc.get_samples()["a"][1].mean(), 1.0, atol=0.25)
