"""What the packages leave alone: devices, programs, progress bars and trees of others."""

import operator
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import numpyro_fwd
from blackjax_ext.dependencies import KNOWN_FAULTS, check_jaxlib, log_on_host
from numpyro_fwd.kernels.notices import NOTHING, is_said


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def mcmc_of(kernel=numpyro_fwd.MALA, num_chains=1, **options):
    options = {"num_warmup": 20, "num_samples": 20, "progress_bar": False, **options}
    return MCMC(kernel(model), num_chains=num_chains, chain_method="vectorized", **options)


# --- imports --------------------------------------------------------------------------------------


def printed(code):
    """What a new process prints."""
    # the last jaxlib for Python 3.11
    warned = ["-W", "error", "-W", "ignore:jaxlib 0.10.2"]
    command = [sys.executable, *warned, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.long
@pytest.mark.parametrize("package", ["blackjax_ext", "numpyro_fwd"])
def test_an_import_takes_no_device(package):
    code = f"import {package}, jax, numpyro; numpyro.set_host_device_count(3)"
    assert printed(f"{code}; print(jax.local_device_count())") == ["3"]


@pytest.mark.long
def test_an_import_needs_no_extra():
    """Nor ArviZ, whose release is that of the packages beside this one."""
    extras = "arviz arviz_base arviz_stats cloudpickle filelock flax matplotlib numcodecs pandas "
    blocked = f"dict.fromkeys({(extras + 'diffrax sklearn xarray zarr').split()})"
    assert printed(f"import sys; sys.modules |= {blocked}; import numpyro_fwd; print(1)") == ["1"]


def test_the_logarithm_for_the_import_of_blackjax():
    log = log_on_host(jnp.log)
    assert type(log(2.0)) is float
    for x in (jnp.ones(2), np.float32(2), 2):
        np.testing.assert_array_equal(log(x), jnp.log(x))
    assert jax.grad(log)(2.0) == 0.5


@pytest.mark.parametrize("version", KNOWN_FAULTS)
def test_a_jaxlib_with_a_fault_is_named(version):
    with pytest.warns(UserWarning, match=f"jaxlib {version} .*JAX 0.12 needs"):
        check_jaxlib(version)
    check_jaxlib("0.12.0")


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2])
def test_programs_of_others_are_kept(num_chains):
    mine = jax.jit(lambda x: 2 * x)
    mine(1.0)
    y, mcmc = np.zeros(20, np.float32), mcmc_of(num_chains=num_chains)
    for value in (0.0, 9.0, 0.0):
        y[:] = value
        mcmc.run(jax.random.key(0), y)
        draws = mcmc.get_samples()["mean"]
        assert abs(draws.mean() - value) < 1.0 and draws.std() > 0.01
    assert mine._cache_size() == 1


# --- trees ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["one", "vectorized", "particles"])
def state(request):
    kernel = numpyro_fwd.LangevinSMC if request.param == "particles" else numpyro_fwd.MALA
    num_chains = {"one": 1, "vectorized": 2, "particles": 40}[request.param]
    mcmc = mcmc_of(kernel, num_chains, num_warmup=2 if num_chains == 40 else 150, num_samples=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(jax.random.key(0), np.zeros(20, np.float32))
    return mcmc.last_state


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def of_numbers(function):
    return lambda x: x if is_key(x) else function(x)


def same(x, y):
    return bool(jnp.array_equal(x, y, equal_nan=jnp.issubdtype(x.dtype, jnp.inexact)))


MAPS = {
    "equal": lambda x: jnp.array_equal(x, x),
    "finite": of_numbers(jnp.isfinite),
    "ones": of_numbers(jnp.ones_like),
    "zeros": of_numbers(jnp.zeros_like),
    "random": of_numbers(lambda x: jax.random.bits(jax.random.key(0), x.shape).astype(x.dtype)),
    "most": of_numbers(lambda x: jnp.full_like(x, 1 if x.dtype == bool else 100)),
    "doubled": of_numbers(lambda x: x + x),
    "host": of_numbers(np.asarray),
    "shape": jnp.shape,
    "text": str,
    "nothing": lambda x: None,
    "object": lambda x: object(),
}


@pytest.mark.first
@pytest.mark.parametrize("name", MAPS)
def test_a_state_is_a_tree_of_any_leaves(name, state):
    jax.tree.map(MAPS[name], state)
    jax.tree.map_with_path(lambda path, x: MAPS[name](x), state)


@pytest.mark.long
def test_functions_of_trees(state):
    leaves, structure = jax.tree.flatten(state)
    assert jax.tree.all(jax.tree.map(same, state, state))
    jax.tree.unflatten(structure, range(len(leaves)))
    pairs = jax.tree.map(lambda x: (x, x), state)
    for each in jax.tree.transpose(structure, jax.tree.structure((0, 0)), pairs):
        assert jax.tree.all(jax.tree.map(same, each, state))
    jax.tree.broadcast(1, state)
    sizes = jax.tree.map(jnp.size, state)
    assert jax.tree.reduce(operator.add, sizes) == sum(jax.tree.leaves(sizes))
    jax.eval_shape(lambda x: x, state)
    jax.jit(lambda x: jax.tree.map(of_numbers(jnp.ones_like), x))(state)


@pytest.mark.long
def test_a_checkpoint_of_orbax(state, tmp_path):
    checkpoints = pytest.importorskip("orbax.checkpoint")
    as_data = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)
    with checkpoints.StandardCheckpointer() as keeper:
        keeper.save(tmp_path / "state", as_data)
        keeper.wait_until_finished()
        found = keeper.restore(tmp_path / "state", as_data)
    assert jax.tree.all(jax.tree.map(same, as_data, found))


@pytest.mark.parametrize(
    "events, expected",
    [
        (NOTHING, False),
        (NOTHING + 1, True),
        (0, False),
        (1, False),
        (2**31 - 1, False),
        ([NOTHING, NOTHING + 2], True),
    ],
)
def test_what_is_said(events, expected):
    assert is_said(jnp.array(events)) is expected
    assert not is_said(events)
    assert not is_said(jnp.array(events, bool))
