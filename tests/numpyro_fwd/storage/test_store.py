"""What a store holds, and the errors of paths and files."""

import errno
import itertools
import os
import sys
import threading
from pathlib import Path

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import xarray
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import Until, sample_to
from numpyro_fwd.mcmc.convergence import Worst
from numpyro_fwd.storage import writer
from numpyro_fwd.storage.folder import Folder
from numpyro_fwd.storage.run import Stored
from numpyro_fwd.storage.store import DrawStore, chunk_shape
from tests.numpyro_fwd.storage import runs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A path with 25 draws."""
    path = tmp_path_factory.mktemp("made") / "run"
    runs.run(path)
    return path


@pytest.fixture
def path(made, tmp_path):
    """A copy of it."""
    import shutil

    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.mark.long
def test_the_layout_is_that_of_from_numpyro(made):
    mcmc = runs.mcmc_of()
    mcmc.run(jax.random.key(0), *runs.data(), extra_fields=("potential_energy", "accept_prob"))
    expected, found = arviz_base.from_numpyro(mcmc, log_likelihood=False), runs.read(made)
    for group in ("posterior", "sample_stats"):
        for name in expected[group].variables:
            one, other = expected[group][name], found[group][name]
            assert (one.dims, one.shape, one.dtype) == (other.dims, other.shape, other.dtype)
    assert {"b_dim_0", "rows"}.isdisjoint(found.posterior.dims)
    assert {"diverging", "lp", "acceptance_rate", "n_steps"} == set(found.sample_stats.data_vars)


@pytest.mark.parametrize("name", ["MALA", pytest.param("NUTS", marks=pytest.mark.long)])
@pytest.mark.parametrize("thinning", [1, pytest.param(4, marks=pytest.mark.long)])
def test_draws_are_those_without_a_folder(name, thinning, tmp_path):
    """Bit for bit, and so are statistics, and where goals are reached."""
    until = Until(ess=30) if thinning == 1 else None
    given = runs.mcmc_of(name, thinning=thinning, num_samples=26)
    options = {k: getattr(given, k) for k in ("num_warmup", "num_samples", "thinning")}
    mcmc = numpyro_fwd.MCMC(
        *(given.sampler,), num_chains=2, chain_method="vectorized", progress_bar=False, **options
    )
    mcmc.until = until
    stored = sample_to(tmp_path, given, jax.random.key(0), *runs.data(), draws_per_write=10)
    if until is not None:
        stored = sample_to(tmp_path, mcmc, jax.random.key(0), *runs.data(), draws_per_write=10)
        assert stored.reason == "goal"
    mcmc.run(jax.random.key(0), *runs.data(), extra_fields=("potential_energy",))
    found = runs.draws_of(tmp_path)
    for site, draws in mcmc.get_samples(group_by_chain=True).items():
        np.testing.assert_array_equal(found[f"posterior/{site}"], draws)
    energy = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
    np.testing.assert_array_equal(found["sample_stats/lp"], -energy)
    assert energy.shape[1] == stored.num_draws >= 6


def test_pieces_of_any_length_are_put_together(tmp_path):
    store = DrawStore(tmp_path)
    store.create({"posterior": {"x": jax.ShapeDtypeStruct((2,), jnp.float32)}}, 3, {}, 4)
    draws = np.arange(66, dtype=np.float32).reshape(3, 11, 2)
    for start, stop in itertools.pairwise((0, 3, 4, 5, 10, 11)):
        store.append(start, {"posterior/x": draws[:, start:stop]})
    store.publish(11)
    np.testing.assert_array_equal(store.read("x", 11, 11), draws)
    np.testing.assert_array_equal(store.read("x", 11, 4), draws[:, ::3])
    np.testing.assert_array_equal(store.arrays["posterior/draw"][:], np.arange(11))


@pytest.mark.long
def test_readers_while_it_grows(tmp_path, monkeypatch):
    """After each write there is so much more, the same in all variables."""
    seen = []
    publish = DrawStore.publish

    def publish_and_look(self, num_draws):
        before = runs.draws_of(tmp_path) if seen else None
        publish(self, num_draws)
        after = runs.draws_of(tmp_path)
        seen.append(after["posterior/sum"].shape[1])
        for name in after if before else ():
            old = before[name]
            axis = 0 if name.endswith("/draw") else 1
            same = after[name].take(range(old.shape[axis]), axis) if old.ndim > axis else old
            np.testing.assert_array_equal(same, old)

    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after each write
    monkeypatch.setattr(DrawStore, "publish", publish_and_look)
    runs.run(str(tmp_path))  # an empty folder, as a string
    assert seen[0] == 0 and seen[-1] == 25 and seen == sorted(seen) and len(seen) >= 4


@pytest.mark.long
def test_extra_fields(tmp_path):
    fields = ("adapt_state.step_size", "z.slopes", "rng_key", "~z.sum")
    runs.run(tmp_path, 5, extra_fields=fields)
    found = runs.draws_of(tmp_path)
    assert found["sample_stats/step_size"].shape == (2, 5)
    np.testing.assert_array_equal(found["sample_stats/z.slopes"], found["posterior/slopes"])
    assert found["sample_stats/rng_key"].dtype == np.uint32
    assert "posterior/sum" not in found


@pytest.mark.parametrize(
    "name, message",
    [("momentum", "fields of the kernel's state, i, inner.*'momentum'"), ("inner", "one array")],
)
def test_unknown_fields(name, message, tmp_path):
    with pytest.raises(ValueError, match=f"extra_fields must .*{message}"):
        runs.run(tmp_path / "run", 5, extra_fields=(name,))


@pytest.mark.long
def test_a_potential_and_names_with_slashes(tmp_path):
    kernel = numpyro_fwd.MALA(potential_fn=lambda z: 0.5 * (z["a/b"] ** 2).sum())
    mcmc = MCMC(kernel, num_warmup=5, num_samples=7, progress_bar=False)
    stored = sample_to(
        tmp_path, mcmc, jax.random.key(0), init_params={"a/b": np.ones(2)}, draws_per_write=4
    )
    assert stored.num_draws == 7
    assert runs.draws_of(tmp_path)["posterior/a.b"].shape == (1, 7, 2)


def model_with(name, value):
    def with_site(x, y):
        runs.model(x, y)
        numpyro.deterministic(name, value)

    return with_site


@pytest.mark.long
@pytest.mark.parametrize(
    "name, message",
    [
        ("draw", "site 'draw' has the name of a dimension"),
        ("chain", r"extra_fields=\('~z.chain',\)"),
    ],
)
def test_sites_that_have_the_names_of_dimensions(name, message, tmp_path):
    mcmc = runs.mcmc_of(model=model_with(name, 1.0))
    with pytest.raises(ValueError, match=message):
        runs.run(tmp_path, 5, mcmc)
    without = runs.run(tmp_path, 5, mcmc, extra_fields=(f"~z.{name}",))
    assert without.num_draws == 5


@pytest.mark.long
def test_two_sites_of_one_name(tmp_path):
    def both(x, y):
        runs.model(x, y)
        numpyro.deterministic("a/b", 1.0)
        numpyro.deterministic("a.b", 2.0)

    with pytest.raises(ValueError, match=r"sites .* would both be 'a\.b'"):
        runs.run(tmp_path, 5, runs.mcmc_of(model=both))


@pytest.mark.long
@pytest.mark.parametrize(
    "value, dtype", [(jnp.zeros((0, 3)), "float32"), (jnp.ones(2, jnp.bfloat16), "float32")]
)
def test_sites_of_unusual_kinds(value, dtype, tmp_path):
    mcmc = runs.mcmc_of(model=model_with("unusual", value))
    runs.run(tmp_path, 5, mcmc, draws_per_write=100)  # more than a batch
    found = runs.draws_of(tmp_path)["posterior/unusual"]
    assert found.shape == (2, 5, *value.shape) and found.dtype == dtype
    assert (found == 1).all()


@pytest.mark.long
def test_from_a_post_warmup_state(tmp_path):
    mcmc = runs.mcmc_of()
    mcmc.warmup(jax.random.key(1), *runs.data())
    runs.run(tmp_path / "whole", 12, mcmc)
    runs.run(tmp_path / "pieces", 5, mcmc)
    runs.run(tmp_path / "pieces", 12, mcmc)
    runs.assert_same(tmp_path / "whole", tmp_path / "pieces")


@pytest.mark.long
def test_a_model_that_needs_its_values(tmp_path):
    """Data that decide on shapes become constants of the program."""

    def model(x, y):
        rows = np.asarray(y) > 0
        runs.model(x[rows], y[rows])

    arguments = tuple(map(np.asarray, runs.data()))
    for max_draws in (2, 4):
        runs.run(tmp_path, max_draws, runs.mcmc_of(model=model), arguments=arguments)
    assert runs.draws_of(tmp_path)["posterior/sum"].shape == (2, 4)


# --- what is on the path --------------------------------------------------------------------------


def test_something_else_on_the_path(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(FileExistsError, match=r"did not write \('thesis.tex'\)"):
        runs.run(tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        runs.run(tmp_path / "thesis.tex")
    xarray.Dataset({"x": ("draw", np.zeros(4))}).to_zarr(tmp_path / "zarr", zarr_format=2)
    with pytest.raises(FileExistsError, match="did not write"):
        runs.run(tmp_path / "zarr")
    assert (tmp_path / "thesis.tex").read_text() == "all of it"
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", "zarr"}


@pytest.mark.parametrize("path", [3, "s3://bucket/run"])
def test_not_a_path(path):
    with pytest.raises((TypeError, ValueError), match="path must be"):
        runs.run(path)


def test_a_path_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(self, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=f"cannot write to {tmp_path}/run: Permission denied"):
        runs.run(tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="cannot write to"):
        runs.run(tmp_path / "run")
    tmp_path.chmod(0o700)


@pytest.mark.long
def test_a_full_disk(path, monkeypatch):
    """What was written is readable, and the run goes on once there is room."""
    replace, num_files = os.replace, 0

    def fill_up(*names):
        nonlocal num_files
        num_files += 1
        if num_files > 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fill_up)
        with pytest.raises(OSError, match=r"No space left on device; the first \d+ draws") as error:
            runs.run(path, 200)
    assert error.value.errno == errno.ENOSPC
    num_draws = runs.draws_of(path)["posterior/sum"].shape[1]
    assert 25 <= num_draws < 200 and f"first {num_draws} draws" in str(error.value)
    assert not [*path.rglob("*.partial")]
    runs.run(path, 60)
    runs.run(path.parent / "whole", 60)
    runs.assert_same(path, path.parent / "whole")


@pytest.mark.first
@pytest.mark.parametrize(
    "name, damage",
    [
        ("posterior/slopes/0.1.0", "missing"),
        ("sample_stats/lp/0.0", "missing"),
        ("posterior/sum/0.2", "lost its end"),
        ("posterior/draw/0", "lost its end"),
        ("posterior/scale/0.0", "lost its end, and all else"),
        (".zmetadata", "metadata cannot be read"),
        (".sample_to/checkpoint.npz", "is missing"),
    ],
)
def test_a_truncated_store(name, damage, path):
    file = path / name
    if "all else" in damage:  # as after a power failure
        file.write_bytes(b"")
        damage = damage.split(",")[0]
    elif "end" in damage or "metadata" in damage:
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(ValueError, match=f"truncated: .*{damage}"):
        runs.run(path, 30)


def test_a_truncated_checkpoint(path):
    file = path / ".sample_to" / "checkpoint.npz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"checkpoint\.npz is truncated"):
        runs.run(path, 30)
    assert runs.draws_of(path)["posterior/sum"].shape == (2, 25)


def test_a_second_writer(path):
    with Folder(path).claimed(), pytest.raises(RuntimeError, match="by another call of sample_to"):
        runs.run(path, 30)


def test_a_second_writer_in_a_thread(path):
    errors = []

    def write():
        try:
            runs.run(path, 26)
        except RuntimeError as error:
            errors.append(str(error))

    with Folder(path).claimed():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "by another call of sample_to" in errors[0]


def test_files_of_more_than_two_gigabytes():
    with pytest.raises(ValueError, match=r"draws_per_write must be \d+ or less.*site 'x'"):
        chunk_shape("x", (2, 4, 3), np.dtype(float), 10**8)


@pytest.mark.parametrize("package", ["zarr", "filelock"])
def test_what_is_not_installed_is_asked_for(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs the package {package}.*extra store"):
        runs.run(tmp_path / "run", 5)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"draws_per_write": 0}, "draws_per_write must be 1 or more; got 0"),
        ({"draws_per_write": 2.5}, "draws_per_write must be an integer; got 2.5"),
        ({"until": 100}, "until must be an Until"),
        ({"extra_fields": "z"}, "extra_fields must be a tuple or a list of names; got 'z'"),
        ({"mcmc": numpyro_fwd.MALA(runs.model)}, "mcmc must be a numpyro.infer.MCMC; got MALA"),
        ({"until": Until(r_hat=1.01), "mcmc": runs.mcmc_of(num_chains=1)}, "r_hat takes two"),
        ({"arguments": (np.ma.masked_array([1.0], [True]),)}, "masked array"),
    ],
)
def test_bad_arguments(options, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        runs.run(tmp_path / "run", 5, **options)
    assert not (tmp_path / "run").exists()


def test_what_a_run_leaves_prints_on_a_line():
    stored = Stored(Path("draws"), 100, "goal", Worst(), 1.5, {"z": np.zeros(1000)})
    assert len(repr(stored)) < 200 and "num_draws=100" in repr(stored)
    assert "array" not in str(stored)
