"""Every part of the packages has a bug that short tests find: those of its name, or others."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PARTS = sorted(
    path.stem
    for package in ("blackjax_ext", "numpyro_fwd")
    for path in (ROOT / package).iterdir()
    if path.suffix in {"", ".py"} and not path.name.startswith("__")
    if path.stem != "types"  # in which nothing runs
)


class Bug(NamedTuple):
    """What a file of a part has, and what is planted in its place.

    tests
        That find it, where they are not those in a folder or a file of the part's name.
    """

    file: str
    words: str
    others: str
    tests: str = ""


BUGS = {
    "acceptance": Bug(
        "blackjax_ext/acceptance.py",
        "row_tests import subsampled\n",
        "row_tests import subsampled as s\n",
        tests="tests/laws/test_subsampled.py",
    ),
    "bridge": Bug(
        "numpyro_fwd/bridge/log_terms.py",
        'return log_prob if site["scale"] is None else site["scale"] * log_prob',
        "return log_prob",
        tests="tests/numpyro_fwd/bridge/test_log_terms.py",
    ),
    "checks": Bug(
        "blackjax_ext/checks.py",
        "if not (np.isfinite(values).all() and (values > 0).all()):",
        "if not np.isfinite(values).all():",
        tests="tests/blackjax_ext/mcmc/test_arguments.py",
    ),
    "compilation": Bug(
        "numpyro_fwd/compilation.py",
        'jax.config.update("jax_compilation_cache_dir", str(path))',
        "",
    ),
    "coordinates": Bug(
        "blackjax_ext/coordinates/maps.py",
        "slopes + jnp.log(jnp.abs(law.own_scale))",
        "slopes",
    ),
    "densities": Bug(
        "numpyro_fwd/densities.py",
        "return -self._log_density(x) - sum(jacobians)",
        "return -self._log_density(x)",
    ),
    "disk": Bug(
        "numpyro_fwd/disk.py",
        "np.asarray(rows_of[ordered])[places.ravel()]",
        "rows_of[ordered]",
        tests="tests/numpyro_fwd/test_on_disk.py",
    ),
    "emulators": Bug(
        "blackjax_ext/emulators/polynomials.py",
        "slopes = np.where(is_log[:, None], slopes / safe[..., None], slopes)",
        "pass",
    ),
    "dependencies": Bug(
        "blackjax_ext/dependencies.py",
        "if version in KNOWN_FAULTS:",
        "if version not in KNOWN_FAULTS:",
    ),
    "kernels": Bug(
        "numpyro_fwd/kernels/chains.py",
        "(rate - state.mean_accept_prob) / count",
        "rate / count",
        tests="tests/numpyro_fwd/kernels/test_base.py",
    ),
    "lazy": Bug(
        "blackjax_ext/lazy.py", "has no attribute {name!r}", "has no attribute {package!r}"
    ),
    "mcmc": Bug(
        "blackjax_ext/mcmc/langevin.py",
        "0.5 * (end.metric.log_det(size) - start.metric.log_det(size))",
        "0.5 * start.metric.log_det(size)",
        tests="tests/laws/test_proposal.py",
    ),
    "meshes": Bug(
        "blackjax_ext/meshes.py",
        "return num if num_rows % num == 0 else 1",
        "return num",
        tests="tests/test_mesh.py",
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
        "blackjax_ext/potentials.py",
        "control_variate, minibatch\n",
        "control_variate, minibatch as batches\n",
        tests="tests/blackjax_ext/rows/test_potentials.py",
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
        tests="tests/laws/test_coarse_products.py",
    ),
    "programs": Bug("blackjax_ext/programs.py", "1 if runs_once else 60", "1"),
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
        tests="tests/blackjax_ext/sgmcmc/test_acceptance.py",
    ),
    "smc": Bug(
        "blackjax_ext/smc/langevin_smc.py",
        "log_evidence=population.log_evidence + increment * peak",
        "log_evidence=population.log_evidence",
        tests="tests/laws/test_smc.py",
    ),
    "storage": Bug(
        "numpyro_fwd/storage/store.py",
        "array[:, start:stop] = draws[name]",
        "array[:, : stop - start] = draws[name]",
    ),
    "subsampling": Bug(
        "blackjax_ext/subsampling/remainders.py",
        "~(is_cheap & is_within)",
        "~is_cheap",
        tests="tests/laws/test_subsampled.py",
    ),
    "table_file": Bug(
        "numpyro_fwd/table_file.py",
        "isinstance(other, TableFile) and self.digest == other.digest",
        "isinstance(other, TableFile)",
    ),
    "adaptation": Bug(
        "blackjax_ext/adaptation/windows.py", "jnp.minimum(mean, target) - 0.25 * target", "mean"
    ),
    "top_level": Bug(
        "blackjax_ext/top_level.py", "return given | (replaced or {})", "return given"
    ),
}


def finders_of(part: str) -> list[str]:
    """Folders and files of tests that find the bug of a part."""
    named = (f"tests/*/{part}", f"tests/**/test_{part}.py")
    paths = {str(path.relative_to(ROOT)) for name in named for path in ROOT.glob(name)}
    return [BUGS[part].tests] if BUGS[part].tests else sorted(paths)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_a_bug_to_plant_and_tests(part):
    bug = BUGS[part]
    assert part in Path(bug.file).with_suffix("").parts
    assert bug.words in (ROOT / bug.file).read_text()
    finders = finders_of(part)
    assert finders and all((ROOT / name).exists() for name in finders)


@pytest.mark.full
@pytest.mark.parametrize("part", BUGS)
def test_a_planted_bug_falls_in_the_short_suite(part, tmp_path):
    # the whole house: a page whose links lead nowhere would fail, too
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".git", ".venv"))
    file = copy / BUGS[part].file
    file.write_text(file.read_text().replace(BUGS[part].words, BUGS[part].others))
    command = [sys.executable, "-m", "pytest", "--short", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *finders_of(part)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-2000:]  # and not 2, of what cannot be collected
