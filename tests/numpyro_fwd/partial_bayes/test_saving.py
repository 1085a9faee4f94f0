"""A training that is saved in one process goes on in another as if it had not stopped."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from numpyro_fwd import GOHSMC, OHSMC, SGSMC
from tests.numpyro_fwd.partial_bayes.test_open_horizon import data, network, scale_of

pytestmark = pytest.mark.long

ocp = pytest.importorskip("orbax.checkpoint")
NUM_STEPS = 6
RUN = {"progress_bar": False, "validation": scale_of, "validate_every": 3}
# trains NUM_STEPS more steps from what the folder holds, and leaves the state there
GO_ON = """
import pickle
import sys
from pathlib import Path
import jax
from tests.numpyro_fwd.partial_bayes import test_saving as saved

folder = Path(sys.argv[1])
smc = pickle.loads((folder / "sampler").read_bytes())
if sys.argv[2] == "orbax":
    like = smc.init(jax.random.key(1), *saved.data())
    state = saved.restored(folder / "state", like)
    result = saved.restored_result(folder / "result", smc.result(like))
else:
    state, result = pickle.loads((folder / "both").read_bytes())
print(repr(jax.tree.map(lambda a, b: (a == b).all(), state, result.state)))
key = jax.random.key(9)
rest = smc.run(key, saved.NUM_STEPS, *saved.data(), init_state=state, **saved.RUN)
prediction = smc.predictive(key, result, saved.data()[0])["y"]
(folder / "rest").write_bytes(pickle.dumps((rest, result, prediction)))
"""


def restored(path, like):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, like)


def restored_result(path, like):
    """Histories have the lengths that are stored, whatever those of `like` are."""
    with ocp.PyTreeCheckpointer() as checkpointer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sharding info not provided")
        return checkpointer.restore(path, item=like)


def bits(tree):
    """Leaves as arrays, those of keys too."""
    leaves = jax.tree.leaves(tree)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [jax.random.key_data(x) if key else x for x, key in zip(leaves, is_key, strict=True)]


def assert_equal(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, bits(tree), bits(other))


@pytest.mark.parametrize("how", ["pickle", "orbax"])
def test_a_new_process_goes_on_bit_for_bit(how, tmp_path):
    smc = GOHSMC(network, optax.adam(optax.cosine_decay_schedule(0.03, 50)), num_particles=5)
    half = smc.run(jax.random.key(3), NUM_STEPS, *data(), **RUN)
    whole = smc.run(jax.random.key(3), 2 * NUM_STEPS, *data(), **RUN)
    (tmp_path / "sampler").write_bytes(pickle.dumps(smc))
    if how == "orbax":
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", half.state)
            checkpointer.save(tmp_path / "result", half)
    else:
        (tmp_path / "both").write_bytes(pickle.dumps((half.state, half)))
    done = subprocess.run(
        [sys.executable, "-c", GO_ON, str(tmp_path), how],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    rest, result, prediction = pickle.loads((tmp_path / "rest").read_bytes())
    assert_equal(result, half)
    assert_equal(rest.state, whole.state)
    np.testing.assert_array_equal(rest.losses, whole.losses[NUM_STEPS:])
    found = smc.predictive(jax.random.key(9), half, data()[0])["y"]
    np.testing.assert_array_equal(prediction, found)


@pytest.mark.parametrize("cls", [OHSMC, SGSMC])
def test_samplers_are_pickled_after_a_run(cls):
    smc = cls(network, optax.chain(optax.clip(1.0), optax.sgd(0.01)), num_particles=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the effective sample size fell")
        result = smc.run(jax.random.key(0), 2, *data(), progress_bar=False)
        again = pickle.loads(pickle.dumps(smc))
        assert type(again) is cls
        other = again.run(jax.random.key(0), 2, *data(), progress_bar=False)
    assert_equal(result, other)


def test_the_state_is_arrays_of_one_form():
    """No placeholder of a layer with a prior, and a first state has the form of every later one."""
    smc = GOHSMC(network, optax.adam(0.03), num_particles=5)
    first = smc.init(jax.random.key(3), *data())
    result = smc.run(jax.random.key(3), 3, *data(), **RUN)
    assert jax.tree.structure(first) == jax.tree.structure(result.state)
    assert set(result.params["net$params"]["Dense_0"]) == {"bias"}
    # without a validation the result is the last step, with one the best
    assert_equal(smc.result(first).particles, first.inner.position)
    assert_equal(smc.result(result.state).params, result.params)
