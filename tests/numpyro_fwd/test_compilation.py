"""Nothing is compiled twice where compiled programs are kept: no program has what rules that out.

A callback, a constant that depends on the process, or types that change from step to step would.
"""

import jax
import pytest
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
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_second_run_compiles_nothing(name, cache, compiled):
    """In the same object, in a new kernel and MCMC, with other data and another seed."""
    model, options = KERNELS[name]

    def mcmc():
        kernel = getattr(numpyro_fwd, name)(model, **options)
        return MCMC(kernel, num_warmup=30, num_samples=20, progress_bar=False)

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
