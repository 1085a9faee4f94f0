"""A Zarr store in ArviZ's layout that grows along its draws.

Files have Zarr's format 2, which every release of Zarr, xarray and ArviZ reads; the library itself
needs no more than the compressor. Draws are in chunks of `draws_per_write` draws, each a file that
is replaced as a whole. What a reader finds is what the consolidated metadata say, one file for all
groups, which is written last.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_fwd.storage.folder import METADATA, store_package

__all__ = ["DrawStore", "chunk_shape", "replace_file"]

COMPRESSOR = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
HEADER = 16  # bytes before the data of a chunk, the last four of which say how long it is
MAX_COMPRESSED_BYTES = 2**31 - 1024  # bytes that the compressor takes at once


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file: readers find the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.partial")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def chunk_shape(
    name: str, shape: tuple[int, ...], dtype: np.dtype, draws_per_write: int
) -> tuple[int, ...]:
    """Shape (C, draws_per_write, ...) of a chunk of draws: all that one write holds."""
    chunk = (max(shape[0], 1), draws_per_write, *(max(n, 1) for n in shape[2:]))
    num_bytes = math.prod(chunk) * dtype.itemsize
    if num_bytes > MAX_COMPRESSED_BYTES:
        most = draws_per_write * MAX_COMPRESSED_BYTES // num_bytes
        raise ValueError(
            f"draws_per_write must be {most} or less, for a write of site '{name}' to have less "
            f"than two gigabytes; got {draws_per_write}."
        )
    return chunk


class GrowingArray:
    """An array on disk whose files each hold `size` draws.

    Parameters
    ----------
    folder
        Where its files are.
    entry
        What the metadata of the store say of it; its shape grows.
    """

    def __init__(self, folder: Path, entry: dict[str, Any]):
        self.folder = folder
        self.entry = entry
        self.axis = 0 if folder.name == "draw" else 1
        self.size = entry["chunks"][self.axis]
        self.dtype = np.dtype(entry["dtype"])
        self.codec = store_package("numcodecs").get_codec(entry["compressor"])

    @property
    def is_empty(self) -> bool:
        """Whether a draw has no entries, so that there are no files."""
        shape = self.entry["shape"]
        return 0 in shape[: self.axis] + shape[self.axis + 1 :]

    def resize(self, num_draws: int) -> None:
        """Say that there are so many draws."""
        self.entry["shape"][self.axis] = num_draws

    def file(self, i: int) -> Path:
        """File of chunk `i`."""
        places = [0] * len(self.entry["shape"])
        places[self.axis] = i
        return self.folder / ".".join(map(str, places))

    def between(self, start: int, stop: int) -> tuple[slice, ...]:
        """Index of these draws."""
        return (*[slice(None)] * self.axis, slice(start, stop))

    def load(self, i: int) -> np.ndarray:
        """All of chunk `i`, read-only."""
        content = self.codec.decode(self.file(i).read_bytes())
        return np.frombuffer(content, self.dtype).reshape(self.entry["chunks"])

    def put(self, start: int, draws: np.ndarray) -> None:
        """Write `draws` after the first `start`."""
        stop = start + draws.shape[self.axis]
        for i in () if self.is_empty else range(start // self.size, -(-stop // self.size)):
            begin = i * self.size
            first, last = max(start, begin), min(stop, begin + self.size)
            is_new = first == begin
            chunk = np.zeros(self.entry["chunks"], self.dtype) if is_new else self.load(i).copy()
            new = draws[self.between(first - start, last - start)]
            chunk[self.between(first - begin, last - begin)] = new
            replace_file(self.file(i), self.codec.encode(chunk))

    def every(self, stride: int, num_draws: int) -> np.ndarray:
        """Each `stride`-th of the first draws, with one chunk at a time in memory."""
        wanted = np.arange(0, num_draws, stride)
        if self.is_empty:
            shape = list(self.entry["shape"])
            shape[self.axis] = len(wanted)
            return np.zeros(shape, self.dtype)
        of_chunk = np.split(wanted, np.flatnonzero(np.diff(wanted // self.size)) + 1)
        parts = [
            np.take(self.load(at[0] // self.size), at % self.size, self.axis) for at in of_chunk
        ]
        return np.concatenate(parts, self.axis)

    def damaged(self, num_draws: int) -> str:
        """Describe what is wrong with the files of the first draws; "" if nothing is.

        An empty file is what a power failure leaves, and says that its length is 0.
        """
        for i in () if self.is_empty else range(-(-num_draws // self.size)):
            path = self.file(i)
            if not path.exists():
                return f"the file {path} is missing"
            with path.open("rb") as file:
                length = int.from_bytes(file.read(HEADER)[-4:], "little")
            if length < HEADER or length != path.stat().st_size:
                return f"the file {path} has lost its end"
        return ""


class DrawStore:
    """The groups of a Zarr store on `path`, and their arrays that grow.

    Metadata are in memory, and in the one file that readers look at. What each array says of itself
    is brought up to date by :meth:`finish`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.arrays: dict[str, GrowingArray] = {}
        self.metadata: dict[str, dict[str, Any]] = {}  # by file, as readers see them

    def create(
        self,
        groups: dict[str, dict[str, Any]],
        num_chains: int,
        dims: dict[str, list[str]],
        draws_per_write: int,
    ) -> None:
        """Write groups without draws.

        Parameters
        ----------
        groups
            For each group, shapes and dtypes of one draw of its variables.
        num_chains
            Number of chains.
        dims
            Names of axes of sites in plates; others have ArviZ's names.
        draws_per_write
            Draws of each chain in a file.
        """
        self.metadata = {".zgroup": {"zarr_format": 2}}
        for group, variables in groups.items():
            if not variables:
                continue
            shutil.rmtree(self.path / group, ignore_errors=True)  # of a beginning that was killed
            self.metadata[f"{group}/.zgroup"] = {"zarr_format": 2}
            self.metadata[f"{group}/.zattrs"] = attributes()
            sizes = {"chain": num_chains}
            for name, one in variables.items():
                axes = names_of_axes(name, one.shape, dims.get(name, []), sizes, variables)
                shape, dtype = (num_chains, 0, *one.shape), np.dtype(one.dtype)
                chunks = chunk_shape(name, shape, dtype, draws_per_write)
                self.describe(f"{group}/{name}", ("chain", "draw", *axes), shape, dtype, chunks)
            self.describe(f"{group}/draw", ("draw",), (0,), np.dtype(int), (draws_per_write,))
            for dim, n in sizes.items():
                self.describe(f"{group}/{dim}", (dim,), (n,), np.dtype(int), (max(n, 1),))
                if n:
                    content = store_package("numcodecs").get_codec(COMPRESSOR).encode(np.arange(n))
                    replace_file(self.path / group / dim / "0", content)
        for key, entry in self.metadata.items():
            replace_file(self.path / key, json.dumps(entry).encode())
        self.open()

    def describe(
        self,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: np.dtype,
        chunks: tuple[int, ...],
    ) -> None:
        """Put an array among the metadata."""
        self.metadata[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": list(dims)}
        self.metadata[f"{name}/.zarray"] = {
            "zarr_format": 2,
            "shape": list(shape),
            "chunks": list(chunks),
            "dtype": dtype.str,
            "compressor": COMPRESSOR,
            "filters": None,
            "fill_value": None,
            "order": "C",
        }

    def open(self) -> None:
        """Look for the arrays that grow.

        Raises
        ------
        ValueError
            If the metadata of the store cannot be read.
        """
        try:
            if (self.path / METADATA).exists():
                self.metadata = json.loads((self.path / METADATA).read_bytes())["metadata"]
            else:  # killed after its first checkpoint
                self.metadata = dict(self.entries())
            names = [key.removesuffix("/.zarray") for key in self.metadata if "/.zarray" in key]
            self.arrays = {
                name: GrowingArray(self.path / name, self.metadata[f"{name}/.zarray"])
                for name in names
                if "draw" in self.metadata[f"{name}/.zattrs"]["_ARRAY_DIMENSIONS"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise self.damage(f"its metadata cannot be read ({error})") from error

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Metadata of each group and array, by file."""
        for file in sorted(self.path.glob("**/.z[ag]*")):
            yield file.relative_to(self.path).as_posix(), json.loads(file.read_bytes())

    def damage(self, what: str) -> ValueError:
        """An error for a store that has lost something."""
        return ValueError(
            f"the store on {self.path} is truncated: {what}. The run cannot continue; put the file "
            "back from a copy, or call sample_to on another path."
        )

    def append(self, start: int, draws: dict[str, np.ndarray]) -> None:
        """Put draws (C, n, ...) of all variables after the first `start`."""
        stop = start + next(iter(draws.values())).shape[1]
        for name, array in self.arrays.items():
            array.put(start, np.arange(start, stop) if array.axis == 0 else draws[name])

    def publish(self, num_draws: int) -> None:
        """Let readers see these draws and no more: one file, replaced at once."""
        for array in self.arrays.values():
            array.resize(num_draws)
        consolidated = {"zarr_consolidated_format": 1, "metadata": self.metadata}
        replace_file(self.path / METADATA, json.dumps(consolidated).encode())

    def finish(self) -> None:
        """Bring up to date what the arrays say of themselves, for readers of these alone."""
        for name, array in self.arrays.items():
            replace_file(self.path / name / ".zarray", json.dumps(array.entry).encode())

    def check(self, num_draws: int, names: set[str]) -> None:
        """Raise unless every variable is there, and every chunk of the first `num_draws`.

        Raises
        ------
        ValueError
            Naming the file that is missing or shorter than it was.
        """
        if missing := sorted(names - set(self.arrays)):
            raise self.damage(f"it has no array {missing[0]}")
        for array in self.arrays.values():
            for partial in array.folder.glob("*.partial"):
                partial.unlink()  # of a write that was killed
            if what := array.damaged(num_draws):
                raise self.damage(what)

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a variable of the posterior, evenly spaced."""
        return self.arrays[f"posterior/{name}"].every(-(-num_draws // most), num_draws)

    def element_shape(self, name: str) -> tuple[int, ...]:
        """Shape of one draw of a variable of the posterior."""
        return tuple(self.arrays[f"posterior/{name}"].entry["shape"][2:])


def names_of_axes(
    name: str, shape: tuple[int, ...], dims: list[str], sizes: dict[str, int], variables: Any
) -> list[str]:
    """Names of the axes of a draw: those of its plates, or ArviZ's; adds their lengths to `sizes`.

    A plate has no axis of its name where that is the name of a variable, or has another length
    elsewhere: xarray could not read the group.
    """
    names = []
    for i, n in enumerate(shape):
        dim = dims[i] if i < len(dims) else f"{name}_dim_{i}"
        if dim in variables or dim == "draw" or sizes.get(dim, n) != n:
            dim = f"{name}_dim_{i}"
        sizes[dim] = n
        names.append(dim)
    return names


def attributes() -> dict[str, Any]:
    """Attributes that ArviZ gives a group."""
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "numpyro",
        "inference_library_version": version("numpyro"),
        "sample_dims": ["chain", "draw"],
    }
