"""Nothing is compiled twice where compiled programs are kept: no program has what rules that out.

A callback, a constant that depends on the process, or types that change from step to step would.
"""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src.compilation_cache import decompress_executable
from jax.experimental.compilation_cache import compilation_cache
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import keep_compiled
from tests import fixed_seeds
from tests.numpyro_fwd.kernels.test_resuming import data

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def cache(tmp_path):
    """A directory of compiled programs of its own."""
    old = {name: getattr(jax.config, name) for name in OPTIONS}
    compilation_cache.reset_cache()
    jax.clear_caches()  # what is compiled already would not be written
    yield keep_compiled(tmp_path / "programs")
    for name, value in old.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


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


# programs of a set-up in a process that has compiled nothing: those of the model as it is run once
# to see its sites, which are operations of NumPyro, and ours
PROGRAMS = {
    "RandomWalk": 11,
    "MALA": 11,
    "FMALA": 11,
    "AutoMALA": 11,
    "HPMALA": 15,
    "SMMALA": 15,
    "AMAGOLD": 25,
}
COUNT = """
import sys
import jax
from numpyro.infer import init_to_uniform
import numpyro_fwd
from numpyro_fwd.bridge.traces import first_sites
from tests import fixed_seeds
from tests.numpyro_fwd.kernels.test_resuming import data

name = sys.argv[1]
arguments = jax.tree.map(jax.numpy.asarray, data())
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, fun_name="", **__: (
        programs.append(fun_name) if event.endswith("backend_compile_duration") else None
    )
)
model = fixed_seeds.on_minibatches if name == "AMAGOLD" else fixed_seeds.regression
options = {"acceptance": "subsampled"} if name == "AMAGOLD" else {}
kernel = getattr(numpyro_fwd, name)(model, **options)
key = jax.random.key(0)
first_sites(key, kernel.model, arguments, {}, init_to_uniform)
programs.clear()
kernel.init(key, 100, None, arguments, {})
print(len(programs), *programs)
"""


@pytest.mark.parametrize("name", PROGRAMS)
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
