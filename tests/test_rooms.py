"""Every part of the packages has tests of its own in the short suite, which see a bug in it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rooms import EVERYWHERE, LAWS, OTHERS, ROOMS, TESTS, paths_of

ROOT = TESTS.parent


class Bug(NamedTuple):
    """What a file of a part has, and what is planted in its place."""

    file: str
    words: str
    others: str


BUGS = {
    "acceptance": Bug(
        "blackjax_ext/acceptance.py",
        "row_tests import subsampled\n",
        "row_tests import subsampled as s\n",
    ),
    "bridge": Bug(
        "numpyro_fwd/bridge/log_terms.py",
        'return log_prob if site["scale"] is None else site["scale"] * log_prob',
        "return log_prob",
    ),
    "checks": Bug(
        "blackjax_ext/checks.py",
        "if not (np.isfinite(values).all() and (values > 0).all()):",
        "if not np.isfinite(values).all():",
    ),
    "compilation": Bug(
        "numpyro_fwd/compilation.py",
        'jax.config.update("jax_compilation_cache_dir", str(path))',
        "",
    ),
    "coordinates": Bug(
        "blackjax_ext/coordinates/laws.py",
        "slopes + jnp.log(jnp.abs(law.own_scale))",
        "slopes",
    ),
    "densities": Bug(
        "numpyro_fwd/densities.py",
        "return -self._log_density(x) - sum(jacobians)",
        "return -self._log_density(x)",
    ),
    "disk": Bug(
        "numpyro_fwd/disk.py", "np.asarray(rows_of[ordered])[places.ravel()]", "rows_of[ordered]"
    ),
    "file_rows": Bug(
        "numpyro_fwd/file_rows.py",
        "offset = mapped + source.ctypes.data - begin",
        "offset = mapped",
    ),
    "dependencies": Bug(
        "blackjax_ext/dependencies.py",
        "if version in KNOWN_FAULTS:",
        "if version not in KNOWN_FAULTS:",
    ),
    "kernels": Bug(
        "numpyro_fwd/kernels/state.py",
        "(rate - state.mean_accept_prob) / count",
        "rate / count",
    ),
    "lazy": Bug("blackjax_ext/lazy.py", "alias.asname or alias.name: ", "alias.name: "),
    "mcmc": Bug(
        "blackjax_ext/mcmc/langevin.py",
        "0.5 * (end.metric.log_det(size) - start.metric.log_det(size))",
        "0.5 * start.metric.log_det(size)",
    ),
    "meshes": Bug(
        "blackjax_ext/meshes.py", "return num if num_rows % num == 0 else 1", "return num"
    ),
    "metrics": Bug(
        "blackjax_ext/metrics/factors.py",
        "jnp.maximum(jnp.abs(values), floor)",
        "jnp.maximum(values, floor)",
    ),
    "stacking": Bug(
        "blackjax_ext/stacking.py", "uses[value.number] == 1 and", "uses[value.number] and"
    ),
    "factoring": Bug("blackjax_ext/factoring.py", "MOST_AT_ONCE = 2e5", "MOST_AT_ONCE = 5e9"),
    "partial_bayes": Bug(
        "numpyro_fwd/partial_bayes/training.py", "loss < best.loss", "loss > best.loss"
    ),
    "potentials": Bug(
        "blackjax_ext/potentials.py", "import minibatch\n", "import minibatch as batches\n"
    ),
    "primitives": Bug(
        "blackjax_ext/primitives.py", "STRUCTURAL = PLACING", 'STRUCTURAL = {"abs"} | PLACING'
    ),
    "equations": Bug(
        "blackjax_ext/equations.py",
        "wanted |= {v for v in equation.invars if not isinstance(v, Literal)}",
        "wanted |= {v for v in equation.invars[:2] if not isinstance(v, Literal)}",
    ),
    "precision": Bug(
        "blackjax_ext/precision.py",
        'with jax.default_matmul_precision("highest"):',
        'with jax.default_matmul_precision("default"):',
    ),
    "programs": Bug("blackjax_ext/programs.py", "1 if runs_once else FEW", "1"),
    "raising": Bug("blackjax_ext/raising.py", "except (OSError, MemoryError)", "except KeyError"),
    "rows": Bug(
        "blackjax_ext/rows/compensated_sums.py",
        "return Pair(high + carried, error - carried)",
        "return Pair(high + carried, error)",
    ),
    "sgmcmc": Bug(
        "blackjax_ext/sgmcmc/acceptance.py",
        "jnp.asarray(potential.num_rows, int)",
        "jnp.array(0)",
    ),
    "smc": Bug(
        "blackjax_ext/smc/langevin_smc.py",
        "log_evidence=population.log_evidence + increment * peak",
        "log_evidence=population.log_evidence",
    ),
    "storage": Bug(
        "numpyro_fwd/storage/store.py",
        "array[:, start:stop] = draws[name]",
        "array[:, : stop - start] = draws[name]",
    ),
    "subsampling": Bug(
        "blackjax_ext/subsampling/reaches.py",
        "~(is_cheap & is_within)",
        "~is_cheap",
    ),
    "table_file": Bug(
        "numpyro_fwd/table_file.py",
        "isinstance(other, TableFile) and self.digest == other.digest",
        "isinstance(other, TableFile)",
    ),
    "adaptation": Bug(
        "blackjax_ext/adaptation/windows.py", "jnp.minimum(mean, target) - PULL * target", "mean"
    ),
    "top_level": Bug(
        "blackjax_ext/top_level.py", "return given | (replaced or {})", "return given"
    ),
    "work": Bug("blackjax_ext/work.py", "return 2 * math.prod(shapes[-1]) * size", "return size"),
}


def test_every_test_belongs_to_a_part():
    found = {path for room in ROOMS for path in paths_of(room)}
    found |= {TESTS / name for name in EVERYWHERE} | {*(TESTS / "benchmarks").glob("*.py")}
    missing = {path for path in TESTS.glob("**/test_*.py")} - found
    assert not missing
    named = {f"laws/{name}" for name in LAWS} | set(OTHERS)
    assert all((TESTS / name).exists() for name in named | EVERYWHERE)


@pytest.mark.parametrize("room", ROOMS)
def test_every_part_has_tests(room):
    assert len(paths_of(room)) > 2  # its own, besides those that all have


@pytest.mark.parametrize("room", ROOMS)
def test_every_part_has_a_bug_to_plant(room):
    bug = BUGS[room]
    assert room in Path(bug.file).with_suffix("").parts
    assert bug.words in (ROOT / bug.file).read_text()


@pytest.mark.full
@pytest.mark.parametrize("room", BUGS)
def test_a_planted_bug_falls_in_the_short_suite(room, tmp_path):
    # the whole house: a page whose links lead nowhere would fail, too
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".git", ".venv"))
    file = copy / BUGS[room].file
    file.write_text(file.read_text().replace(BUGS[room].words, BUGS[room].others))
    paths = [path.relative_to(ROOT) for path in paths_of(room)]
    command = [sys.executable, "-m", "pytest", "--short", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *paths], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-2000:]  # and not 2, of what cannot be collected
