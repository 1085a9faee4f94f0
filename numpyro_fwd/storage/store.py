"""A Zarr store in ArviZ's layout that grows along its draws.

Draws are in chunks of `draws_per_write` draws, each a file that is replaced as a whole. What a
reader finds is what the consolidated metadata say, one file for all groups, which is written last.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DrawStore", "layout", "zarr"]

METADATA = ".zmetadata"
HEADER = 16  # bytes before the data of a chunk, the last four of which say how long it is
LONGEST = 2**31 - 1024  # bytes that the compressor takes at once


def zarr() -> Any:
    """The package zarr, which is an optional dependency.

    Raises
    ------
    ImportError
        If there is none, or one that ArviZ does not read with.
    """
    hint = "install it with pip install 'zarr>=2.18.7,<3', or with the extra store of this package."
    try:
        module = import_module("zarr")
    except ImportError as error:
        raise ImportError(f"sample_to needs the package zarr, which is missing: {hint}") from error
    if not module.__version__.startswith("2."):
        raise ImportError(
            f"sample_to needs zarr 2, which az.from_zarr reads with; got {module.__version__}: "
            f"{hint}"
        )
    return module


def layout(
    draws: dict[str, dict[str, Any]], num_chains: int, dims: dict[str, list[str]] | None
) -> Any:
    """``InferenceData`` without draws: the names, coordinates and types of a store.

    Parameters
    ----------
    draws
        For each group, shapes and dtypes of its variables, without the axes of chains and draws.
    num_chains
        Number of chains.
    dims
        Names of the further axes of sites in plates.
    """
    import arviz as az  # which takes a second or two

    # ArviZ warns of fewer draws than chains
    axes = (num_chains, num_chains)
    groups: dict[str, Any] = {
        name: {
            each: np.broadcast_to(np.zeros((), one.dtype), (*axes, *one.shape))
            for each, one in variables.items()
        }
        for name, variables in draws.items()
        if variables
    }
    return az.from_dict(**groups, dims=dims)


class DrawStore:
    """The groups of a Zarr store on `path`, and their arrays that grow."""

    def __init__(self, path: Path):
        self.path = path
        self.store = zarr().storage.DirectoryStore(str(path))
        self.arrays: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}  # as readers see them
        self.texts: dict[str, bytes] = {}  # as Zarr does, by file

    def create(self, empty: Any, draws_per_write: int) -> None:
        """Write the groups of an ``InferenceData``, none of whose draws is kept."""
        zarr().open_group(self.store, mode="w-" if not any(self.path.iterdir()) else "a")
        for name in empty.groups():
            dataset = empty[name].isel(draw=slice(0, 0))
            growing = {
                each: {"chunks": self.chunks(dataset[each], draws_per_write)}
                for each in dataset.variables
                if "draw" in dataset[each].dims
            }
            dataset.to_zarr(
                self.store,
                group=name,
                mode="w",
                encoding=growing,
                consolidated=False,
                zarr_format=2,
            )
        self.open()

    @staticmethod
    def chunks(variable: Any, draws_per_write: int) -> tuple[int, ...]:
        """Shape of a chunk: all that one write holds."""
        sizes = zip(variable.dims, variable.shape, strict=True)
        shape = tuple(draws_per_write if dim == "draw" else max(n, 1) for dim, n in sizes)
        num_bytes = int(np.prod(shape, dtype=object)) * variable.dtype.itemsize
        if num_bytes > LONGEST:
            raise ValueError(
                f"draws_per_write must be {draws_per_write * LONGEST // num_bytes} or less, for a "
                f"write of site '{variable.name}' to have less than two gigabytes; got "
                f"{draws_per_write}."
            )
        return shape

    def open(self) -> None:
        """Look for the arrays that grow.

        Their metadata are in memory, and in the one file that readers look at. What each array says
        of itself is brought up to date by :meth:`finish`.

        Raises
        ------
        ValueError
            If the metadata of the store cannot be read.
        """
        try:
            if METADATA not in self.store:
                zarr().consolidate_metadata(self.store)
            self.metadata = json.loads(self.store[METADATA])
            self.texts = {
                key: json.dumps(one).encode() for key, one in self.metadata["metadata"].items()
            }
            root = zarr().open_group(self.texts, mode="r+", chunk_store=self.store)
            self.arrays = {
                f"{group}/{name}": array
                for group, members in root.groups()
                for name, array in members.arrays()
                if "draw" in array.attrs["_ARRAY_DIMENSIONS"]
            }
        except (KeyError, ValueError) as error:  # of Zarr, and of JSON
            raise self.damage(f"its metadata cannot be read ({error})") from error

    def damage(self, what: str) -> ValueError:
        """An error for a store that has lost something."""
        return ValueError(
            f"the store on {self.path} is truncated: {what}. The run cannot continue; put the file "
            "back from a copy, or call sample_to on another path."
        )

    def append(self, start: int, draws: dict[str, np.ndarray]) -> None:
        """Put draws (C, n, ...) of all variables after the first `start`."""
        num_draws = next(iter(draws.values())).shape[1]
        stop = start + num_draws
        self.resize(stop)
        for name, array in self.arrays.items():
            axis = axis_of(name)
            values = np.arange(start, stop) if axis == 0 else draws[name]
            array[(slice(None),) * axis + (slice(start, stop),)] = values

    def resize(self, num_draws: int) -> None:
        """Give the arrays so many draws, in memory."""
        for name, array in self.arrays.items():
            axis, shape = axis_of(name), array.shape
            if shape[axis] != num_draws:
                array.resize(*shape[:axis], num_draws, *shape[axis + 1 :])
                self.metadata["metadata"][f"{name}/.zarray"]["shape"] = list(array.shape)

    def publish(self, num_draws: int) -> None:
        """Let readers see these draws and no more: one file, replaced at once."""
        self.resize(num_draws)
        self.store[METADATA] = json.dumps(self.metadata).encode()

    def finish(self) -> None:
        """Bring up to date what the arrays say of themselves, for readers of these alone."""
        for name in self.arrays:
            self.store[f"{name}/.zarray"] = self.texts[f"{name}/.zarray"]

    def check(self, num_draws: int, names: set[str]) -> None:
        """Raise unless every variable is there, and every chunk of the first `num_draws`.

        Raises
        ------
        ValueError
            Naming the file that is missing or shorter than it was.
        """
        if missing := sorted(names - set(self.arrays)):
            raise self.damage(f"it has no array {missing[0]}")
        for name, array in self.arrays.items():
            for partial in (self.path / name).glob("*.partial"):
                partial.unlink()  # of a write that was killed
            if 0 not in array.shape[:1] + array.shape[2:] or axis_of(name) == 0:
                self.check_chunks(name, array, num_draws)

    def check_chunks(self, name: str, array: Any, num_draws: int) -> None:
        """Raise unless the files of the chunks are as long as they say."""
        axis = axis_of(name)
        for i in range(-(-num_draws // array.chunks[axis])):
            key = ".".join(str(i) if j == axis else "0" for j in range(array.ndim))
            path = self.path / name / key
            if not path.exists():
                raise self.damage(f"the file {path} is missing")
            with path.open("rb") as file:
                length = int.from_bytes(file.read(HEADER)[-4:], "little")
            # an empty file is what a power failure leaves, and says that its length is 0
            if length < HEADER or length != path.stat().st_size:
                raise self.damage(f"the file {path} has lost its end")

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a variable of the posterior, evenly spaced.

        Only these and one chunk at a time are in memory.
        """
        stride = -(-num_draws // most)
        return self.arrays[f"posterior/{name}"][:, 0:num_draws:stride]

    def element_shape(self, name: str) -> tuple[int, ...]:
        """Shape of one draw of a variable of the posterior."""
        return self.arrays[f"posterior/{name}"].shape[2:]


def axis_of(name: str) -> int:
    """The axis of draws: the first of the coordinate, the second of draws."""
    return 0 if name.endswith("/draw") else 1
