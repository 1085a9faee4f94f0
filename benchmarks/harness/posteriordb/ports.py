"""The table of ports, and what each needs: data, reference moments, and which half it is in."""

import hashlib
import inspect
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "COMMIT",
    "PORTS",
    "data_of",
    "is_held_out",
    "model_of",
    "parts_of",
    "port",
    "reference_of",
    "stan_data_of",
]

COMMIT = "28f8d3d6e975315f42aa274a8399f21e07a43b30"
HERE = Path(__file__).parent
FETCHED = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "numpyro_fwd" / "pdb"

PORTS: dict[str, Callable] = {}


def port(*posteriors: str) -> Callable[[Callable], Callable]:
    """Enters a model as that of posteriors, each named "data-model" as in the database."""

    def enter(model: Callable) -> Callable:
        for name in posteriors:
            if PORTS.get(name, model).__name__ != model.__name__:  # a file may be run again
                raise ValueError(f"{name} has two ports")
            PORTS[name] = model
        return model

    return enter


def stan_data_of(posterior: str) -> dict[str, Any]:
    """Stan's data as they are in the database."""
    name = f"{posterior.split('-')[0]}.json"
    paths = [folder / f"{name}.zip" for folder in (HERE / "data", FETCHED)]
    if not any(path.exists() for path in paths):
        raise FileNotFoundError(
            f"{name}.zip is neither in {HERE / 'data'} nor in {FETCHED}: fetch it by `python -m "
            "benchmarks.harness.posteriordb.fetched CLONE`, CLONE being a clone of posteriordb"
        )
    with zipfile.ZipFile(next(path for path in paths if path.exists())) as archive:
        values: dict[str, Any] = json.loads(archive.read(name))
    return values


def data_of(posterior: str) -> dict[str, Any]:
    """Stan's data by name: integers that say sizes as `int`, all else as arrays."""
    values = stan_data_of(posterior).items()
    return {key: x if isinstance(x, int) else np.asarray(x) for key, x in values}


def parts_of(posterior: str) -> tuple[Callable, tuple[Any, ...]]:
    """The port and its arguments."""
    model, data = PORTS[posterior], data_of(posterior)
    return model, tuple(data[name] for name in inspect.signature(model).parameters)


def model_of(posterior: str) -> Callable[[], None]:
    """The port with its data, a model without arguments that has the name of the program."""
    model, arguments = parts_of(posterior)
    found = partial(model, *arguments)
    found.__name__ = model.__name__  # type: ignore[attr-defined]
    return found


def reference_of(posterior: str) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """Means and standard deviations by site, of 10,000 published draws; None without them."""
    found = json.loads((HERE / "reference.json").read_text()).get(posterior)
    return found and {site: (np.array(mean), np.array(sd)) for site, (mean, sd) in found.items()}


def is_held_out(posterior: str) -> bool:
    """Whether it is in the half that is looked at only at the end: by a digest of its name."""
    return hashlib.sha256(posterior.encode()).digest()[0] % 2 == 1
