"""Measurements that outlive an interruption: what a section has measured so far, in a file.

A section measures units, a row of its table each or more. Each is kept as soon as it is there, so
that a run that stopped goes on where it was. What other versions of the packages, other sources or
another precision measured does not count, and is measured again.
"""

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

__all__ = ["Units", "source_digest"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("blackjax_ext", "numpyro_fwd", "benchmarks")


@functools.cache
def source_digest() -> str:
    """Digest of this project's own sources."""
    digest = hashlib.sha256()
    for file in sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*.py")):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def encode(value: Any) -> Any:
    """What JSON does not know: arrays, with their dtype, and NumPy's numbers."""
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return {"array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a unit returns numbers, strings, arrays, lists and dicts; got {value!r}.")


def decode(value: dict) -> Any:
    """Inverse of :func:`encode`."""
    return np.asarray(value["array"], value["dtype"]) if set(value) == {"array", "dtype"} else value


def brief(value: Any) -> str:
    """A unit's result on one line."""
    if isinstance(value, np.ndarray):
        return f"array {value.shape}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {brief(each)}" for name, each in value.items())
    if isinstance(value, list):
        shown = value if len(value) <= 12 else [*value[:12], "..."]
        return "[" + ", ".join(map(brief, shown)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Units:
    """The units of one section, in the file `path`; None keeps them nowhere.

    Parameters
    ----------
    path
        File, made with its folder when the first unit is there.
    versions
        What units must have been measured with to count, a dict of strings.
    """

    def __init__(self, path: Path | None, versions: dict[str, str]):
        self.path = path
        self.versions = {
            **versions,
            "sources": source_digest(),
            "double": str(jax.config.jax_enable_x64),
        }
        self.seconds = 0.0  # of the units that were taken from the file
        self.seen: set[str] = set()
        self.kept = self.load()

    def load(self) -> dict[str, Any]:
        """Units in the file that were measured with the same versions."""
        if self.path is None or not self.path.exists():
            return {}
        found = json.loads(self.path.read_text(), object_hook=decode)
        return found["units"] if found["versions"] == self.versions else {}

    def save(self) -> None:
        """Replace the file at once, so that an interruption leaves the one or the other."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}")
        found = {"versions": self.versions, "units": self.kept}
        partial.write_text(json.dumps(found, default=encode))
        partial.replace(self.path)

    def forget(self) -> None:
        """Remove the file."""
        self.kept = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def once(self, key: tuple, function: Callable, *arguments: Any) -> Any:
        """``function(*arguments)``, measured or taken from the file, and a line about it.

        `key` tells the unit from the others of the section: its name, and the arguments that
        matter. Results are what JSON makes of them in both cases: tuples are lists.
        """
        name = json.dumps(key, default=encode)
        if name in self.seen:
            raise ValueError(f"two units of a section are called {name}.")
        self.seen.add(name)
        is_kept = name in self.kept
        if not is_kept:
            start = time.perf_counter()
            value = json.loads(json.dumps(function(*arguments), default=encode), object_hook=decode)
            self.kept[name] = {"value": value, "seconds": time.perf_counter() - start}
            self.save()
        unit = self.kept[name]
        self.seconds += unit["seconds"] if is_kept else 0.0
        when = "from an interrupted run" if is_kept else f"{unit['seconds']:.1f} s"
        print(f"  {', '.join(map(str, key))}: {brief(unit['value'])} ({when})", flush=True)
        return unit["value"]
