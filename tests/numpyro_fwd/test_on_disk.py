"""Rows on disk: what is sampled is what the same rows in memory give, in the memory of a chunk."""

import copy
import json
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC

from numpyro_fwd import AMAGOLD, GOHSMC, L2MC, SGHMC, on_disk
from numpyro_fwd.disk import FileRows
from numpyro_fwd.kernels import subsampled_rows
from numpyro_fwd.table_file import TableFile

NUM_ROWS = 3_000
KERNELS = {
    "full": lambda: AMAGOLD(model, chunk_size=700),
    "no control variate": lambda: AMAGOLD(model, control_variate=None),
    "subsampled": lambda: AMAGOLD(model, acceptance="subsampled"),
    "sghmc": lambda: SGHMC(model),
    "l2mc": lambda: L2MC(model),
}


def model(x, y):
    """A logistic regression on minibatches."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=100) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def trained(x, y):
    """The same with a mean that is trained."""
    mean = numpyro.param("mean", 0.0)
    slope = numpyro.sample("slope", dist.Normal(mean, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=100) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


@pytest.fixture(scope="module")
def table():
    """Covariates and responses."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 3)).astype(np.float32)
    return x, (x[:, 0] > rng.logistic(size=NUM_ROWS)).astype(np.float32)


@pytest.fixture(scope="module")
def files(table, tmp_path_factory):
    """The same in files."""
    folder = tmp_path_factory.mktemp("rows")
    for name, array in zip("xy", table, strict=True):
        np.save(folder / f"{name}.npy", array)
    return tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")


@pytest.fixture
def rows(files):
    """The same on disk."""
    return tuple(map(on_disk, files))


def draws(kernel, arguments, **options):
    """Draws of two chains."""
    options = {"num_chains": 2, "chain_method": "vectorized", **options}
    mcmc = MCMC(kernel, num_warmup=15, num_samples=15, progress_bar=False, **options)
    mcmc.run(jax.random.key(1), *arguments)
    return np.asarray(mcmc.get_samples()["slope"])


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_draws_are_those_of_arrays_in_memory(name, table, rows):
    found = draws(KERNELS[name](), rows)
    expected = draws(KERNELS[name](), tuple(map(jnp.asarray, table)))
    assert len(np.unique(found[:, 0])) > 5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"jit_model_args": True}, {"chain_method": "sequential"}])
def test_chains_of_every_kind_run(options, rows):
    kernel = AMAGOLD(model, acceptance="subsampled")
    assert np.isfinite(draws(kernel, rows, **options)).all()


@pytest.mark.long
def test_only_the_responses_are_on_disk(table, rows):
    found = draws(KERNELS["subsampled"](), (jnp.asarray(table[0]), rows[1]))
    np.testing.assert_array_equal(found, draws(KERNELS["subsampled"](), rows))


@pytest.mark.long
def test_particles_are_those_of_arrays_in_memory(table, rows):
    def particles(arguments):
        sampler = GOHSMC(trained, optax.adam(0.1), num_particles=20, step_size=0.05)
        result = sampler.run(jax.random.key(0), 30, *arguments, progress_bar=False)
        return np.asarray(result.particles["slope"])

    np.testing.assert_allclose(
        particles(rows), particles(tuple(map(jnp.asarray, table))), rtol=1e-4, atol=1e-5
    )


@pytest.mark.long
def test_state_goes_on_and_other_data_are_noticed(table, rows):
    mcmc = MCMC(KERNELS["subsampled"](), num_warmup=15, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(1), *rows)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(2), *rows)
    other = on_disk(1 + table[0])
    with pytest.raises(ValueError, match="data"):
        mcmc.run(jax.random.key(2), other, rows[1])


@pytest.mark.long
def test_states_of_many_rows_hold_no_array_of_them(rows, table, monkeypatch):
    """Bounds and alias table are on disk, too; a state that is pickled takes them along."""
    monkeypatch.setattr(subsampled_rows, "LARGE_TABLE", NUM_ROWS)
    expected = draws(KERNELS["subsampled"](), tuple(map(jnp.asarray, table)))
    np.testing.assert_allclose(draws(KERNELS["subsampled"](), rows), expected, rtol=1e-4, atol=1e-5)
    in_sequence = draws(KERNELS["subsampled"](), rows, chain_method="sequential")
    assert np.isfinite(in_sequence).all()
    mcmc = MCMC(KERNELS["subsampled"](), num_warmup=15, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(1), *rows)
    state = mcmc.last_state
    assert max(np.size(leaf) for leaf in jax.tree.leaves(state)) < NUM_ROWS
    shared = state.shared
    assert all(isinstance(x, TableFile) for x in (shared.bound, shared.threshold, shared.alias))
    again = pickle.loads(pickle.dumps(shared.bound))
    assert again == shared.bound != shared.threshold and hash(again) == hash(shared.bound)
    np.testing.assert_array_equal(again[:], shared.bound[:])


# Indices


def test_rows_are_read_like_those_of_an_array(table, rows):
    x, _ = rows
    some = np.array([5, 0, 5, NUM_ROWS - 1])
    for read in (lambda x, i: x[i], lambda x, i: x[i, 2], lambda x, i: x[i][:, 1:]):
        expected = read(table[0], some)
        np.testing.assert_array_equal(read(x, some), expected)
        np.testing.assert_array_equal(jax.jit(lambda i, read=read: read(x, i))(some), expected)
    np.testing.assert_array_equal(x[3:6, 1], table[0][3:6, 1])
    np.testing.assert_array_equal(x[-1], table[0][-1])
    by_two = some.reshape(2, 2)
    np.testing.assert_array_equal(jax.vmap(lambda i: x[i])(by_two), table[0][by_two])
    assert (len(x), x.shape, x.ndim, x.size) == (NUM_ROWS, (NUM_ROWS, 3), 2, 3 * NUM_ROWS)


@pytest.mark.long
def test_rows_are_constants_of_derivatives(table, rows):
    x, _ = rows

    def chunks(b):
        def add(sum, i):
            return sum + jnp.sum(x[i * 10 + jnp.arange(10)] @ b), None

        return jax.lax.scan(add, 0.0, jnp.arange(5))[0]

    slope = table[0][:50].sum(0)
    b = jnp.ones(3)
    np.testing.assert_allclose(jax.jit(jax.grad(chunks))(b), slope, rtol=1e-4)
    np.testing.assert_allclose(jax.jvp(chunks, (b,), (b,))[1], slope.sum(), rtol=1e-4)
    np.testing.assert_allclose(jax.linearize(chunks, b)[1](b), slope.sum(), rtol=1e-4)
    assert not np.any(jax.hessian(chunks)(b))


def test_dtype_is_that_of_arrays_of_jax():
    x = on_disk(np.arange(4.0, dtype=np.float64))
    assert x.dtype == jnp.zeros(0, float).dtype == jax.jit(lambda i: x[i])(jnp.arange(2)).dtype
    with jax.enable_x64(True):
        assert x.dtype == np.float64


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2"])
def test_other_orders_of_bytes_are_read(dtype, table, tmp_path):
    np.save(tmp_path / "x.npy", table[0].astype(dtype))
    x = on_disk(np.load(tmp_path / "x.npy", mmap_mode="r"))
    found = jax.jit(lambda rows: x[rows] + 0.0)(jnp.arange(7))
    assert x.dtype.isnative and np.array_equal(found, table[0].astype(dtype)[:7])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_rows_in_small_integers(dtype, rows, table):
    few = np.array([3, 100, 0], dtype)
    assert np.array_equal(rows[0][few], table[0][few])
    assert np.array_equal(rows[0][jnp.asarray(few)], table[0][few])


def test_rows_without_columns(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 0), np.float32))
    x = on_disk(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert x[np.array([2])].shape == (1, 0) and x[3].shape == (0,)


@pytest.mark.long
def test_a_file_that_changes_between_two_runs(table, tmp_path):
    x, y = table
    np.save(tmp_path / "x.npy", x)
    file = np.load(tmp_path / "x.npy", mmap_mode="r+")
    arguments = on_disk(file), jnp.asarray(y)
    mcmc = MCMC(AMAGOLD(model), num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), *arguments)
    file[:] = -x
    file.flush()
    mcmc.run(jax.random.key(0), *arguments)
    fresh = MCMC(AMAGOLD(model), num_warmup=5, num_samples=5, progress_bar=False)
    fresh.run(jax.random.key(0), *arguments)
    assert np.array_equal(mcmc.get_samples()["slope"], fresh.get_samples()["slope"])


def test_mapped_files_are_read_and_not_mapped(files, table):
    """Also those of which a part is given, or a column, or that are mapped to be written on."""
    some = np.array([3, 0, 3, 70])
    for cut in (np.s_[:], np.s_[100:2000], np.s_[7:, :2]):
        x = on_disk(files[0][cut])
        assert (FileRows.of(files[0][cut]) is None) == (cut != np.s_[:] and isinstance(cut, tuple))
        np.testing.assert_array_equal(x[some], table[0][cut][some])
        np.testing.assert_array_equal(x[10:90], table[0][cut][10:90])
        np.testing.assert_array_equal(x[np.arange(5, 9)], table[0][cut][5:9])
    written = np.load(files[0].filename, mmap_mode="c")
    written[0] = 7.0
    np.testing.assert_array_equal(on_disk(written)[np.array([0, 2])][:, 0], [7.0, table[0][2, 0]])


def test_a_file_that_becomes_shorter_raises(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000.0))
    x = on_disk(np.load(path, mmap_mode="r"))
    os.truncate(path, 4000)
    np.testing.assert_array_equal(x[np.array([0, 400])], [0.0, 400.0])
    with pytest.raises(OSError, match="lost rows from 900 on"):
        x[np.array([900])]


@pytest.mark.parametrize("package", ["zarr", "h5py"])
def test_other_formats(package, table, tmp_path):
    module = pytest.importorskip(package)
    if package == "zarr":
        source = module.open(str(tmp_path / "x"), mode="w", shape=(NUM_ROWS, 3), dtype="f4")
        source[:] = table[0]
    else:
        source = module.File(tmp_path / "x.h5", "w").create_dataset("x", data=table[0])
    some = np.array([5, 0, 5, NUM_ROWS - 1])
    x = on_disk(source)
    np.testing.assert_array_equal(jax.jit(lambda i: x[i])(some), table[0][some])
    np.testing.assert_array_equal(x[jnp.arange(3, 9)], table[0][3:9])


def test_copies_are_of_the_same_rows(files):
    x = on_disk(files[0])
    assert x == on_disk(files[0]) != on_disk(np.array(files[0]))
    assert hash(x) == hash(on_disk(files[0])) and "memmap" in repr(x)
    assert copy.copy(x) == x
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x))[:3], x[:3])


# Errors


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x @ jnp.ones(3),
        lambda x: jnp.ones(NUM_ROWS) @ x,
        lambda x: x + 1,
        lambda x: np.ones(3) * x,
        lambda x: x < 0,
        lambda x: -x,
        jnp.asarray,
        jnp.sum,
        np.asarray,
        list,
    ],
)
def test_whole_files_are_not_computed_with(use, rows):
    with pytest.raises(TypeError, match=r"x\[rows\]"):
        use(rows[0])


@pytest.mark.parametrize("index", [0.5, np.ones(NUM_ROWS, bool), "a", jnp.ones(2), None])
def test_other_indices_raise(index, rows):
    with pytest.raises(TypeError, match="whole numbers"):
        rows[0][index]


def test_arrays_behind_the_rows_raise(rows):
    with pytest.raises(TypeError, match="numbers and slices behind"):
        rows[0][np.arange(2), np.arange(2)]


def test_rows_that_are_not_there_raise(rows):
    with pytest.raises(IndexError, match=f"0 to {NUM_ROWS - 1}"):
        rows[0][NUM_ROWS]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([1.0, 2.0], TypeError, "list"),
        (np.array(["a"]), TypeError, "dtype of numbers"),
        (np.ma.masked_array([1.0], [True]), TypeError, "masked array"),
        (np.zeros(()), ValueError, r"shape \(\)"),
        (np.zeros((0, 2)), ValueError, r"shape \(0, 2\)"),
        (jnp.zeros(3), TypeError, "ArrayImpl"),
    ],
)
def test_sources_that_are_none_raise(source, error, words):
    with pytest.raises(error, match=f"source must .*{words}"):
        on_disk(source)


def test_plate_longer_than_the_file_raises(table, rows):
    def long(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", 2 * NUM_ROWS, subsample_size=100) as i:
            numpyro.sample("y", dist.Bernoulli(logits=x[i] @ slope), obs=y[i])

    with pytest.raises(ValueError, match="rows that are not there"):
        draws(AMAGOLD(long), rows)


def test_kernels_for_all_rows_say_what_to_do(rows):
    def whole(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)

    with pytest.raises((TypeError, ValueError), match=r"x\[rows\]"):
        draws(L2MC(whole), rows)


# Memory

PROGRAM = """
import json, sys
import jax, numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC
from numpyro_fwd import AMAGOLD, on_disk

def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([20]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=100) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

x, y = (on_disk(np.load(path, mmap_mode="r")) for path in sys.argv[1:])
mcmc = MCMC(AMAGOLD(model, acceptance="subsampled"), num_warmup=5, num_samples=5,
            progress_bar=False)
mcmc.run(jax.random.key(0), x, y)
print(json.dumps(peak()))
"""


def peak_memory(folder, num_rows):
    """Bytes that a process has at most while it samples files of that many rows."""
    rng = np.random.default_rng(0)
    paths = [str(folder / f"{name}{num_rows}.npy") for name in "xy"]
    x = np.lib.format.open_memmap(paths[0], "w+", np.float32, (num_rows, 20))
    x[:] = rng.standard_normal(x.shape, np.float32)
    np.save(paths[1], (x[:, 0] > rng.logistic(size=num_rows)).astype(np.float32))
    command = [sys.executable, "-c", PROGRAM, *paths]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_files(tmp_path):
    few, many = 100_000, 1_000_000
    grown = (peak_memory(tmp_path, many) - peak_memory(tmp_path, few)) / (many - few)
    # of 84 bytes a row in the files, 12 are kept: bounds and alias table
    assert grown < 60, f"{grown:.0f} bytes for each row"


def test_an_accelerator_alone_is_told_what_to_set(tmp_path, monkeypatch):
    def none(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    np.save(tmp_path / "x.npy", np.zeros((5, 2), np.float32))
    x = on_disk(np.load(tmp_path / "x.npy", mmap_mode="r"))
    monkeypatch.setattr(jax, "local_devices", none)
    with pytest.raises(RuntimeError, match='JAX_PLATFORMS="cuda,cpu"'):
        jax.jit(lambda rows: x[rows])(np.arange(2))
