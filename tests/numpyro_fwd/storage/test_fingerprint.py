"""A run goes on only with what it was begun with."""

import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_fwd import on_disk
from numpyro_fwd.storage import fingerprint
from tests.numpyro_fwd.storage import runs


def other_prior(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2.5).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.deterministic("sum", slopes.sum() + scale)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def other_site(x, y):
    slopes = numpyro.sample("slopes", dist.StudentT(3, 0, 2).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def one_entry():
    x, y = runs.data()
    return x.at[17, 1].add(1e-6), y


OTHERS = {
    "an entry of the data": ({"arguments": one_entry()}, r"other data: argument 0 "),
    "more data": ({"arguments": (*runs.data(), 1)}, r"other data: argument 2 was not there"),
    "the prior": ({"mcmc": {"model": other_prior}}, r"other model: "),
    "a site": (
        {"mcmc": {"model": other_site}},
        r"other model: site 'slopes' was Normal \(2,\), and is StudentT",
    ),
    "the key": ({"seed": 1}, r"other options: rng_key was "),
    "chains": ({"mcmc": {"num_chains": 3}}, r"other options: num_chains was 2, and is 3"),
    "chain method": ({"mcmc": {"chain_method": "sequential"}}, r"other options: chain_method"),
    "warm-up": ({"mcmc": {"num_warmup": 50}}, r"other options: num_warmup was 40, and is 50"),
    "thinning": ({"mcmc": {"thinning": 2}}, r"other options: thinning was 1"),
    "kernel": ({"mcmc": {"name": "NUTS"}}, r"other options: kernel was MALA, and is NUTS"),
    "step size": ({"mcmc": {"kernel": {"step_size": 0.5}}}, r"other options of the kernel: "),
    "target": ({"mcmc": {"kernel": {"target_accept_prob": 0.9}}}, "other options of the kernel"),
    "metric": ({"mcmc": {"kernel": {"dense_mass": False}}}, r"other options of the kernel: "),
    "fields": ({"extra_fields": ("i",)}, r"other options: extra_fields was \[\], and is \['i'\]"),
    "files": ({"draws_per_write": 5}, r"other options: draws_per_write was 10, and is 5"),
    "start": ({"init_params": {"scale": np.zeros(2)}}, r"other options: init_params"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("begun") / "run"
    runs.run(path, 3)
    return path


@pytest.mark.first
@pytest.mark.parametrize("what", OTHERS)
def test_other_calls_raise_and_leave_the_draws(what, path):
    options, message = OTHERS[what]
    options = dict(options)
    mcmc = runs.mcmc_of(**options.pop("mcmc", {}))
    before = runs.draws_of(path)
    with pytest.raises(ValueError, match=message) as error:
        runs.run(path, 6, mcmc, **options)
    assert str(path) in str(error.value)
    np.testing.assert_equal(runs.draws_of(path), before)


@pytest.mark.long
def test_a_constant_in_the_model_counts(tmp_path):
    """Arrays that a model refers to are data, too, and so are functions that it calls."""

    def with_constant(constant, slope):
        def model():
            z = numpyro.sample("z", dist.Normal(0, 1).expand([2]))
            numpyro.factor("f", slope(constant @ z))

        return runs.mcmc_of(model=model)

    def run_it(*arguments):
        mcmc = with_constant(np.array(arguments[0]), *arguments[1:])
        return runs.sample_to(tmp_path / "run", mcmc, jax.random.key(0), draws_per_write=5)

    run_it([1.0, 2.0], jnp.sin)
    run_it([1.0, 2.0], jnp.sin)
    for other in (([1.0, 2.0001], jnp.sin), ([1.0, 2.0], jnp.cos)):
        with pytest.raises(ValueError, match="other model: the code"):
            run_it(*other)


def test_rows_on_disk_and_tables_count():
    """They are no arrays of JAX; what is read of them is what a resumed state reads."""

    def describe(shift):
        x = np.arange(6.0, dtype=np.float32).reshape(3, 2) + shift
        table = {"a": x[:, 0], "b": x[:, 1]}
        return fingerprint.describe_arguments((on_disk(x), MappingProxyType(table)), {"x": x})

    assert describe(0.0) == describe(0.0) and len(describe(0.0)) == 3
    for name, what in describe(0.0).items():
        assert what != describe(1e-6 + 1)[name], name


DESCRIBE = """
import json
from tests.numpyro_fwd.storage import runs
from numpyro_fwd.storage import fingerprint
from numpyro_fwd.storage.programs import Piece, begin, fields_of
import jax
for name in ("MALA", "NUTS"):
    mcmc = runs.mcmc_of(name)
    state = begin(mcmc, jax.random.key(0), None, runs.data(), {})
    piece = Piece(mcmc, state, fields_of(mcmc, state, ()), 10, set(), runs.data(), {})
    print(fingerprint.describe_program(piece.traced.jaxpr))
    print(fingerprint.describe_model(runs.model, runs.data(), {}))
"""


@pytest.mark.slow
def test_the_same_in_every_process():
    """Whatever Python's hashes and addresses are."""
    said = {
        subprocess.run(
            [sys.executable, "-c", DESCRIBE],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and len(said.pop().splitlines()) == 4


def test_the_first_state_is_compared_up_to_rounding():
    state = {"x": jnp.array([1.0, -2.0, jnp.nan]), "n": jnp.array([1, 2])}
    old = fingerprint.describe_state(state)
    near = fingerprint.describe_state({**state, "x": state["x"] * (1 + 1e-6)})
    fingerprint.check_same("path", "state", old, near)
    for other in (
        {"x": state["x"] * 1.01, "n": state["n"]},
        {"x": state["x"][::-1], "n": state["n"]},
        {"x": state["x"], "n": state["n"] + 1},
        {"x": jnp.ones(2), "n": state["n"]},
    ):
        with pytest.raises(ValueError, match="other state"):
            fingerprint.check_same("path", "state", old, fingerprint.describe_state(other))


def shifted_by(shift):
    """A program whose calls and loops close over a constant."""
    shift = np.full(2, shift, np.float32)
    return lambda x, y: jax.lax.scan(lambda c, r: (c + r * shift, None), x, jax.jit(jnp.exp)(y))[0]


# programs that differ in one thing from a neighbour
PROGRAMS = (
    lambda x, y: jnp.sin(x) - jnp.cos(y),
    lambda x, y: jnp.sin(x) - jnp.cos(x),
    lambda x, y: jnp.cos(y) - jnp.sin(x),
    lambda x, y: jnp.sin(y) - jnp.cos(y),
    lambda x, y: jnp.sin(x) - 2.0 * jnp.cos(y),
    lambda x, y: jnp.sin(x) - 2.5 * jnp.cos(y),
    lambda x, y: (jnp.sin(x), jnp.cos(y)),
    lambda x, y: (jnp.cos(y), jnp.sin(x)),
    lambda x, y: (jnp.sin(x), jnp.sin(x)),
    lambda x, y: (jnp.sin(x), 0.0),
    lambda x, y: jnp.sum(jnp.stack([x, y]), 0),
    lambda x, y: jnp.sum(jnp.stack([x, y]), 1),
    shifted_by(1.0),
    shifted_by(2.0),
)


def test_programs_have_checksums_of_their_own():
    """Which results an operation works on, the numbers that stand in it, and the order of all."""
    x = jnp.ones(2)

    def checksum(program):
        # of a new object: JAX would remember the program
        return fingerprint.describe_program(jax.make_jaxpr(lambda x, y: program(x, y))(x, x))

    checksums = list(map(checksum, PROGRAMS))
    assert len(set(checksums)) == len(PROGRAMS)
    assert checksums == list(map(checksum, PROGRAMS))


@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="programs of another JAX are others")
def test_a_checksum_on_disk_stays_what_it_is():
    """A run goes on, however programs are read in the next version."""
    shift = np.arange(2, dtype=np.float32)

    def program(x, y):
        rows = jax.lax.scan(lambda c, r: (c * 0.5 + r, c), y, jax.jit(jnp.sin)(x))[1]
        return jnp.where(x > y, rows - 2.0, shift)

    closed = jax.make_jaxpr(program)(jnp.ones(2), 1.0)
    assert fingerprint.describe_program(closed) == "b025eda036379bcfdc8335cb"
