"""What a set-up takes and leaves: data are arguments of its programs, and nothing keeps them."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_fwd
from numpyro_fwd.kernels import subsampled_rows

pytestmark = pytest.mark.long

MEGABYTE = 2**20
COMPILING = 400  # MB that jax takes to compile
SIZE = 20


def model(x, y):
    """A logistic regression on minibatches."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=100) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def table(num_rows, seed=0):
    """Covariates and responses."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, SIZE)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray((x[:, 0] > rng.logistic(size=num_rows)).astype(np.float32))


def set_up(arguments, **options):
    """The first state of a chain."""
    kernel = numpyro_fwd.AMAGOLD(model, **options)
    return jax.block_until_ready(kernel.init(jax.random.key(0), 100, None, arguments, {}))


def live_bytes():
    """Bytes of all arrays that something holds."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def keep_no_arrays(**options):
    """Raise AssertionError if three set-ups, each on a table of its own, leave a column of one."""
    num_rows = 20_000
    set_up(table(num_rows), **options)  # constants of jax and of the modules
    before = live_bytes()
    for seed in (1, 2, 3):
        set_up(table(num_rows, seed), **options)
    left = live_bytes() - before
    assert left < 4 * num_rows, f"arrays of {left} bytes are kept"


@pytest.mark.parametrize("options", [{"acceptance": "subsampled"}, {}], ids=["subsampled", "full"])
def test_set_ups_keep_no_arrays(options):
    keep_no_arrays(**options)


def keeping(function, kept, which):
    """`function` that keeps what it was called with, or what it returned."""

    def called(*arguments, **keywords):
        found = function(*arguments, **keywords)
        kept.append({"arguments": arguments, "outcome": found}[which])
        return found

    return called


@pytest.mark.parametrize("which", ["arguments", "outcome"])
def test_a_cache_of_arrays_is_found(which, monkeypatch):
    monkeypatch.setattr(subsampled_rows, "expanded", keeping(subsampled_rows.expanded, [], which))
    with pytest.raises(AssertionError, match="are kept"):
        keep_no_arrays(acceptance="subsampled")


def resident(field):
    """MB of this process: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(field + ":")[1].split()[0]) / 1024


def peak_of_a_set_up(num_rows):
    """MB above those before it, and of the data."""
    arguments = table(num_rows)
    jax.block_until_ready(jnp.ones(3) @ jnp.ones(3))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    set_up(arguments, acceptance="subsampled")
    return resident("VmHWM") - before, sum(each.nbytes for each in arguments) / MEGABYTE


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory of Linux")
def test_a_set_up_takes_a_chunk_above_the_data():
    """In a process of its own, because another test's programs would be in the sum."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.numpyro_fwd.test_memory"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, data = json.loads(done.stdout.splitlines()[-1])
    assert peak <= COMPILING + 1.5 * data


if __name__ == "__main__":
    print(json.dumps(peak_of_a_set_up(1_000_000)))
