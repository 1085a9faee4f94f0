"""Nothing is compiled twice where compiled programs are kept: no program has what rules that out.

A callback, a constant that depends on the process, or types that change from step to step would.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax._src.compilation_cache import decompress_executable
from jax.experimental.compilation_cache import compilation_cache
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import keep_compiled
from tests import fixed_seeds
from tests.numpyro_fwd.kernels.test_resuming import data

BEFORE_012 = jax.__version_info__ < (0, 12)
OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def cache(tmp_path):
    """A directory of compiled programs of its own."""
    old = {name: getattr(jax.config, name) for name in OPTIONS}
    compilation_cache.reset_cache()  # JAX stays with the first directory that it has used
    jax.clear_caches()  # what is compiled already would not be written
    yield keep_compiled(tmp_path / "programs")
    for name, value in old.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def keep_one(factor):
    """Compile a program that no one else does."""
    jax.jit(lambda x: factor * x)(jnp.arange(3.0))


def test_programs_are_kept_in_the_directory(cache):
    keep_one(18.0)
    assert len(list(cache.glob("*lambda*-cache"))) == 1


BEFORE = """
import sys
import jax, jax.numpy as jnp
from numpyro_fwd import keep_compiled

jnp.ones(3) + 1
folder = keep_compiled(sys.argv[1])
jax.jit(lambda x: 2 * x)(jnp.ones(3))
print(len(list(folder.glob("*lambda*-cache"))))
"""


@pytest.mark.long
def test_jax_may_have_compiled_before_if_it_kept_nothing(tmp_path):
    rest = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE, str(tmp_path)],
        env=rest,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 1


def test_the_directory_is_one_of_this_machine(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keep_compiled("~/kept") == tmp_path / "kept"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "kept")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/programs")
    with pytest.raises(ValueError, match=r"directory must be a folder .* got 'gs://bucket"):
        keep_compiled()


@pytest.fixture
def compiled():
    """What has been compiled instead of read from the cache."""
    names = []

    def listen(event, **facts):
        if event == "/jax/compilation_cache/cache_misses":
            names.append(facts)

    jax.monitoring.register_event_listener(listen)
    yield names
    jax.monitoring.unregister_event_listener(listen)


KERNELS = {
    "MALA": (fixed_seeds.regression, {}),
    "FMALA": (fixed_seeds.regression, {}),
    "AMAGOLD": (fixed_seeds.on_minibatches, {"acceptance": "subsampled"}),
    "LangevinSMC": (fixed_seeds.regression, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_a_second_run_compiles_nothing(name, cache, compiled):
    """In the same object, and in a new kernel and MCMC."""
    model, options = KERNELS[name]

    def mcmc():
        kernel = getattr(numpyro_fwd, name)(model, **options)
        chains = {"num_chains": 20, "chain_method": "vectorized"} if name == "LangevinSMC" else {}
        return MCMC(kernel, num_warmup=30, num_samples=20, progress_bar=False, **chains)

    first = mcmc()
    first.run(jax.random.key(0), *data())
    assert compiled and any("_fori_collect_loop" in path.name for path in cache.iterdir())
    before = {path.name for path in cache.iterdir()}
    compiled.clear()
    jax.clear_caches()
    first.run(jax.random.key(0), *data())
    mcmc().run(jax.random.key(0), *data())
    after = {path.name for path in cache.iterdir()}
    assert before == after
    assert not compiled


@pytest.mark.long
def test_other_data_and_seeds_compile_nothing_and_are_not_on_the_disk(cache, compiled):
    """With `jit_model_args`; without, the loop has the data as constants."""

    def run(seed, jit_model_args):
        mcmc = MCMC(
            numpyro_fwd.MALA(fixed_seeds.regression),
            num_warmup=30,
            num_samples=20,
            progress_bar=False,
            jit_model_args=jit_model_args,
        )
        mcmc.run(jax.random.key(seed), *data(seed))

    def on_the_disk(seed):
        piece = np.asarray(data(seed)[0]).ravel()[30:50].tobytes()
        kept = (path.read_bytes() for path in cache.glob("*-cache"))
        programs = [decompress_executable(each) for each in kept]
        return any(piece in program for program in programs)

    run(0, True)
    compiled.clear()
    run(1, True)
    assert not compiled and not on_the_disk(0) and not on_the_disk(1)
    run(1, False)
    assert on_the_disk(1)


@pytest.fixture
def built():
    """Names of what XLA has built, or read from the cache."""
    names = []

    def listen(event, _, fun_name="", **facts):
        if event.endswith("backend_compile_duration"):
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


CHECKED = """
import sys
import equinox, jax, jax.numpy as jnp
from numpyro_fwd import keep_compiled

folder = keep_compiled(sys.argv[1])
checked = lambda x: equinox.error_if(x, x < 0, "x must be positive")
checked.__name__ = "checked"
jax.jit(checked)(jnp.ones(()))
print(len(list(folder.glob("jit_checked*-cache"))))
"""


@pytest.mark.long
@pytest.mark.parametrize("on_error, number", [("raise", 0 if BEFORE_012 else 1), ("nan", 1)])
def test_programs_with_checks_of_equinox_are_kept_if_they_give_nan(on_error, number, tmp_path):
    """As docs/howto/long_start.md says: those that raise call back into Python.

    JAX 0.12 keeps these, too.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, str(tmp_path)],
        env={**os.environ, "EQX_ON_ERROR": on_error},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == number


SHIFT, SHIFTS = 0.0, np.zeros(30)


def shifted(y):
    """A model that reads a number and an array which are not among its arguments."""
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("rows", len(y), subsample_size=10) as rows:
        seen = numpyro.subsample(y + jnp.asarray(SHIFTS)[0], 0)
        del rows
        numpyro.sample("y", dist.Normal(mean - SHIFT, 0.1), obs=seen)


def changes_are_sampled(kernel, monkeypatch):
    """The law: what a model reads is read by each run."""
    for number, entry in ((0.0, 0.0), (1.0, 0.0), (1.0, 2.0)):
        monkeypatch.setitem(globals(), "SHIFT", number)
        monkeypatch.setitem(globals(), "SHIFTS", np.full(30, entry))
        mcmc = MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        mcmc.run(jax.random.key(0), jnp.zeros(200))
        assert abs(np.mean(mcmc.get_samples()["mean"]) - number - entry) < 0.1


OF_ROWS = {"acceptance": "subsampled"}


@pytest.mark.long
def test_a_model_that_reads_globals_is_sampled_as_it_is(monkeypatch):
    changes_are_sampled(numpyro_fwd.AMAGOLD(shifted, **OF_ROWS), monkeypatch)


# programs of a set-up in a process that has compiled nothing: those of the model as it is run once
# to see its sites, which are operations of NumPyro, and ours
PROGRAMS = {
    "RandomWalk": 11,
    "MALA": 11,
    "FMALA": 11,
    "AutoMALA": 11,
    "HPMALA": 11,
    "SMMALA": 11,
    "AMAGOLD": 16 if BEFORE_012 else 17,  # one of them is compiled twice
    "AMAGOLD_groups": 16 if BEFORE_012 else 17,
}
COUNT = """
import sys
import jax
from numpyro.infer import init_to_uniform
import numpyro_fwd
from numpyro_fwd.bridge.traces import first_sites
from tests import fixed_seeds
from tests.numpyro_fwd.bridge.test_row_models import in_groups
from tests.numpyro_fwd.kernels.test_resuming import data

name = sys.argv[1]
arguments = jax.tree.map(jax.numpy.asarray, data())
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, fun_name="", **__: (
        programs.append(fun_name) if event.endswith("backend_compile_duration") else None
    )
)
on_rows = {"AMAGOLD": fixed_seeds.on_minibatches, "AMAGOLD_groups": in_groups}
options = {"acceptance": "subsampled"} if name in on_rows else {}
kernel = getattr(numpyro_fwd, name.split("_")[0])
kernel = kernel(on_rows.get(name, fixed_seeds.regression), **options)
key = jax.random.key(0)
first_sites(key, kernel.model, arguments, {}, init_to_uniform)
programs.clear()
kernel.init(key, 100, None, arguments, {})
print(len(programs), *programs)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("MALA", "AMAGOLD_groups") else pytest.mark.full)
        for name in PROGRAMS
    ],
)
def test_a_set_up_compiles_few_programs(name):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, name],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    number, *programs = done.stdout.split()
    assert int(number) <= PROGRAMS[name], programs
