"""Data and reference moments out of a clone of posteriordb.

``python -m benchmarks.harness.posteriordb.fetched CLONE [--write]`` puts data beyond 50 kB into the
user's cache and compares all with `checksums.json`; with ``--write`` it makes that file, the small
data and `reference.json` anew. CLONE may be bare.
"""

import argparse
import hashlib
import io
import json
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness.posteriordb.ports import COMMIT, FETCHED, HERE

ROOT = "posterior_database"
SMALL = 50_000  # bytes of a file that is kept in the repository


def git(clone: Path, *arguments: str) -> bytes:
    """What git prints of the clone."""
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True).stdout


def files(clone: Path, folder: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a folder that the clone has."""
    for path in git(clone, "ls-tree", "--name-only", COMMIT, f"{ROOT}/{folder}/").decode().split():
        try:
            yield Path(path).name, git(clone, "show", f"{COMMIT}:{path}")
        except subprocess.CalledProcessError:
            print(f"{path} is not in this clone")


def moments(content: bytes) -> dict[str, tuple[list, list]]:
    """Means and standard deviations of all draws by Stan's variable, in its shape."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".json") and "/" not in each]
        chains = json.loads(archive.read(name))
    entries: dict[str, dict[tuple, np.ndarray]] = {}
    for entry in chains[0]:
        site, index = re.fullmatch(r"(\w+)(?:\[([\d,]+)\])?", entry).groups()
        place = tuple(int(i) - 1 for i in index.split(",")) if index else ()
        entries.setdefault(site, {})[place] = np.concatenate([chain[entry] for chain in chains])
    return {
        site: (each_of(found, np.mean), each_of(found, np.std)) for site, found in entries.items()
    }


def each_of(entries: dict[tuple, np.ndarray], statistic: Callable) -> list:
    """A statistic of each entry, in the shape of the variable, to eight digits."""
    shape = np.max(list(entries), axis=0) + 1 if () not in entries else ()
    found = np.full(shape, np.nan)
    for place, draws in entries.items():
        found[place] = float(f"{statistic(draws):.8g}")
    return found.tolist()


def main() -> None:
    """Fetch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sums, path = {}, HERE / "checksums.json"
    FETCHED.mkdir(parents=True, exist_ok=True)
    for name, content in files(options.clone, "data/data"):
        sums[name] = hashlib.sha256(content).hexdigest()
        folder = HERE / "data" if len(content) <= SMALL else FETCHED
        if folder == FETCHED or options.write:
            (folder / name).write_bytes(content)
    if options.write:
        path.write_text(json.dumps(sums, indent=0) + "\n")
        draws = dict(files(options.clone, "reference_posteriors/draws/draws"))
        found = {name.removesuffix(".json.zip"): moments(draws[name]) for name in sorted(draws)}
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        (HERE / "reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if wrong := [name for name, each in json.loads(path.read_text()).items() if sums[name] != each]:
        raise SystemExit(f"other data than at {COMMIT}: {wrong}")


if __name__ == "__main__":
    main()
