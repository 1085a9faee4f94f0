"""Steps of every kernel lower for accelerators that are not here, with nothing they lack."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import export

import blackjax_ext
from numpyro_fwd import AMAGOLD, MALA, on_disk
from tests.laws import groups, minibatch, samplers, subsampled
from tests.laws.targets import LOG_GAMMA, TARGETS

PLATFORMS = ("cuda", "tpu")
CHAINS = {
    name: samplers.CASES[name]
    for name in (
        "random_walk_dense",
        "emulated_dense",
        "mala_dense",
        "fmala_dense",
        "line_dense",
        "pc_fmala_dense",
        "pc_line_dense",
        "auto_mala_dense",
        "smmala_dense",
        "hp_mala",
        "mmala",
        "alsmmala",
        "amsmmala",
    )
}
OF_ROWS = {
    "amagold": minibatch.CASES["second_order"],
    "l2mc": minibatch.CASES["l2mc"],
    "sghmc": minibatch.BIASED,
    "subsampled": subsampled.CASES["minibatches"],
    "subsampled, local": subsampled.CASES["counted"],
}


def module(step, *arguments):
    """The program of a step for both platforms, as text; JAX refuses what only one place has."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    return str(export.export(jax.jit(step), platforms=PLATFORMS)(*shapes).mlir_module())


def check(text):
    """Nothing in double precision, and nothing that waits for the host."""
    assert not re.search(r"tensor<[^>]*f64>", text), "double precision"
    assert not re.search(r"custom_call @[\w.]*callback", text), "callback"


def check_steps(sampler, position):
    """Of one chain, and of several at once."""
    key = jax.random.key(0)
    state = sampler.init(position, key)
    check(module(sampler.step, key, state))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    check(module(jax.vmap(sampler.step), jax.random.split(key, 3), states))


@pytest.mark.first
@pytest.mark.parametrize("name", CHAINS)
def test_a_step_on_a_density_lowers(name):
    check_steps(CHAINS[name].build(LOG_GAMMA), jnp.zeros(3))


@pytest.mark.first
@pytest.mark.parametrize("name", OF_ROWS)
def test_a_step_on_rows_lowers(name):
    check_steps(OF_ROWS[name].build(), jnp.zeros(3))


def test_a_sweep_over_groups_lowers():
    sampler = blackjax_ext.group_sweeps(groups.expansion(3), 0.5)
    check_steps(sampler, groups.start())


def model(x, y, batch_size=None):
    """Logistic regression."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ slope), obs=y[i])


def kernel_step(kernel, *data, num_chains=2):
    """A step of chains of a kernel of NumPyro, with its adaptation, on these data."""
    keys = jax.random.split(jax.random.key(0), num_chains)
    state = kernel.init(keys, 5, None, data, {})
    return lambda state: kernel.sample(state, data, {}), state


@pytest.mark.long
def test_a_step_of_a_kernel_lowers_and_rows_on_disk_are_its_only_callback(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)).astype(np.float32), rng.random(40) < 0.5
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.float32)
    check(module(*kernel_step(MALA(model), x, y)))

    np.save(tmp_path / "x.npy", x)
    rows = on_disk(np.load(tmp_path / "x.npy", mmap_mode="r"))
    kernel = AMAGOLD(lambda x, y: model(x, y, batch_size=5), control_variate=None)
    check(module(*kernel_step(kernel, x, y)))
    step, state = kernel_step(kernel, rows, y)
    assert "callback" in jax.jit(step).lower(state).as_text()


def test_the_law_finds_a_callback_and_double_precision():
    with pytest.raises(AssertionError, match="callback"):
        check("stablehlo.custom_call @xla_ffi_python_gpu_callback(%0) : tensor<2xf32>")
    with jax.enable_x64(True), pytest.raises(AssertionError, match="double"):
        check(module(lambda x: x * np.float64(2.0), np.zeros(2)))


def test_the_tables_name_every_algorithm():
    """A new algorithm is lowered, too."""
    assert {case.algorithm for case in samplers.CASES.values()} == {
        case.algorithm for case in CHAINS.values()
    }
    assert {case.algorithm for case in minibatch.CASES.values()} <= {
        case.algorithm for case in OF_ROWS.values() if hasattr(case, "algorithm")
    }
    assert LOG_GAMMA.name in TARGETS
