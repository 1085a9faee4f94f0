"""A Zarr store in ArviZ's layout, and under ArviZ's names, that grows along its draws.

Zarr writes it, in its format 2: consolidated metadata, one file for all arrays, belong to it, and
each release of Zarr, xarray and ArviZ reads it. A chunk holds `draws_per_write` draws, and is a
file that Zarr replaces as a whole.

Draws come to count in this order. Chunks are written; a checkpoint says how many draws are whole;
the consolidated metadata let readers see these. What a run that was killed had written beyond its
checkpoint is seen by nobody, and written again.
"""

import json
import math
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.bridge.numpyro_private import nested_attrgetter
from numpyro_fwd.mcmc.memory import by_name
from numpyro_fwd.storage.folder import METADATA, key_data_of, replacing, store_package

GROUPS = ("posterior", "sample_stats")
DIMENSIONS = "_ARRAY_DIMENSIONS"  # where xarray looks for the names of axes
COMPRESSOR = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
HEADER = 16  # bytes before the data of a chunk, the last four of which say how long it is
CONFIG = {"write_empty_chunks": True}  # zeros are draws, too


def chunk_shape(
    name: str, shape: tuple[int, ...], dtype: np.dtype, draws_per_write: int
) -> tuple[int, ...]:
    """Shape (C, draws_per_write, ...) of a chunk of draws: all that one write holds."""
    chunk = (max(shape[0], 1), draws_per_write, *(max(n, 1) for n in shape[2:]))
    num_bytes = math.prod(chunk) * dtype.itemsize
    at_once = 2**31 - 1024  # bytes that the compressor takes
    if num_bytes > at_once:
        most = draws_per_write * at_once // num_bytes
        raise ValueError(
            f"draws_per_write must be {most} or less, for a write of site '{name}' to have less "
            f"than two gigabytes; got {draws_per_write}."
        )
    return chunk


class DrawStore:
    """The groups of a Zarr store on `path`, and their arrays that grow.

    Attributes
    ----------
    arrays
        Those that grow, by ``group/name``: draws (C, n, ...), and their numbers (n,). They know in
        memory how many draws there are. On the disk the consolidated metadata say so, and what each
        array says of itself follows in :meth:`finish`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.zarr = store_package("zarr")
        self.arrays: dict[str, Any] = {}
        self.consolidated: dict[str, Any] = {}

    def create(
        self,
        groups: dict[str, dict[str, Any]],
        num_chains: int,
        dims: dict[str, list[str]],
        draws_per_write: int,
    ) -> None:
        """Write groups without draws, in the place of a beginning that was killed.

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
        root = self.zarr.open_group(self.path, mode="a", zarr_format=2)
        for name_of_group, variables in groups.items():
            if not variables:
                continue
            group = root.create_group(name_of_group, overwrite=True, attributes=attributes())
            sizes = {"chain": num_chains}
            for name, one in variables.items():
                axes = names_of_axes(name, one.shape, dims.get(name, []), sizes, variables)
                shape, dtype = (num_chains, 0, *one.shape), np.dtype(one.dtype)
                chunks = chunk_shape(name, shape, dtype, draws_per_write)
                create_array(group, name, ("chain", "draw", *axes), shape, dtype, chunks)
            create_array(group, "draw", ("draw",), (0,), np.dtype(int), (draws_per_write,))
            for dim, n in sizes.items():
                places = create_array(group, dim, (dim,), (n,), np.dtype(int), (max(n, 1),))
                places[:] = np.arange(n)
        self.open()

    def open(self) -> None:
        """Look for the arrays that grow.

        Raises
        ------
        ValueError
            If the metadata of the store cannot be read.
        """
        try:
            if (self.path / METADATA).exists():
                self.consolidated = json.loads((self.path / METADATA).read_bytes())
            # groups by name: of the folder of checkpoints among them Zarr would warn
            options = {"mode": "r+", "zarr_format": 2, "use_consolidated": False}
            self.arrays = {
                f"{group}/{name}": array
                for group in GROUPS
                if (self.path / group).exists()
                for name, array in self.zarr.open_group(self.path / group, **options).arrays()
                if "draw" in array.attrs[DIMENSIONS]
            }
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise self.damage(f"its metadata cannot be read ({error})") from error

    def damage(self, what: str) -> ValueError:
        """An error for a store that has lost something."""
        return ValueError(
            f"the store on {self.path} is truncated: {what}. The run cannot continue; put the file "
            "back from a copy, or call sample_to on another path."
        )

    def resize(self, num_draws: int) -> None:
        """Let the arrays in memory have so many draws; on the disk nothing changes."""
        for name, array in self.arrays.items():
            shape = list(array.shape)
            shape[0 if array.ndim == 1 else 1] = num_draws
            metadata = array.metadata.update_shape(tuple(shape))
            grown = self.zarr.AsyncArray(metadata, array.store_path, CONFIG)
            self.arrays[name] = self.zarr.Array(grown)

    def append(self, start: int, draws: dict[str, np.ndarray]) -> None:
        """Put draws (C, n, ...) of all variables after the first `start`."""
        stop = start + next(iter(draws.values())).shape[1]
        self.resize(stop)
        for name, array in self.arrays.items():
            if array.ndim == 1:
                array[start:stop] = np.arange(start, stop)
            else:
                array[:, start:stop] = draws[name]

    def publish(self, num_draws: int) -> None:
        """Let readers see these draws and no more: one file, replaced at once."""
        if not self.consolidated:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the folder of checkpoints
                self.zarr.consolidate_metadata(self.path, zarr_format=2)
            self.consolidated = json.loads((self.path / METADATA).read_bytes())
        self.resize(num_draws)
        for name, array in self.arrays.items():
            self.consolidated["metadata"][f"{name}/.zarray"]["shape"] = list(array.shape)
        with replacing(self.path / METADATA) as file:
            file.write(json.dumps(self.consolidated).encode())

    def finish(self) -> None:
        """Bring up to date what the arrays say of themselves, for readers of these alone."""
        for array in self.arrays.values():
            array.resize(array.shape)

    def check(self, num_draws: int, names: set[str]) -> None:
        """Raise unless every variable is there, and every chunk of the first `num_draws`.

        Raises
        ------
        ValueError
            Naming the file that is missing or shorter than it was.
        """
        if missing := sorted(names - set(self.arrays)):
            raise self.damage(f"it has no array {missing[0]}")
        for partial in self.path.rglob("*.partial"):
            partial.unlink()  # of a write that was killed
        self.resize(num_draws)
        for name, array in self.arrays.items():
            num_chunks = -(-np.array(array.shape) // array.chunks)
            for chunk in np.ndindex(*num_chunks):
                self.check_chunk(self.path / name / array.metadata.encode_chunk_key(chunk))

    def check_chunk(self, file: Path) -> None:
        """Raise unless a file is as long as its header says; after a power failure it is empty."""
        if not file.exists():
            raise self.damage(f"the file {file} is missing")
        with file.open("rb") as content:
            length = int.from_bytes(content.read(HEADER)[-4:], "little")
        if length < HEADER or length != file.stat().st_size:
            raise self.damage(f"the file {file} has lost its end")

    def read(self, name: str, num_draws: int, most: int) -> np.ndarray:
        """At most `most` of the first draws of a variable of the posterior, evenly spaced.

        One chunk at a time is in memory.
        """
        array = self.arrays[f"posterior/{name}"]
        stride, size = max(-(-num_draws // most), 1), array.chunks[1]
        parts = [array[:, :0]]
        for begin in range(0, num_draws, size):
            first, end = -(-begin // stride) * stride, min(begin + size, num_draws)
            if first < end:
                parts.append(array[:, first:end:stride])
        return np.concatenate(parts, axis=1)


def create_array(
    group: Any,
    name: str,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    dtype: np.dtype,
    chunks: tuple[int, ...],
) -> Any:
    """An array with named axes; without a fill value, which xarray would take for a missing one."""
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        compressors=COMPRESSOR,
        fill_value=None,
        attributes={DIMENSIONS: list(dims)},
        config=CONFIG,
    )


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


# statistics that are stored wherever the state of a kernel has them
STATISTICS = ("diverging", "potential_energy", "energy", "accept_prob", "num_steps")
# ArviZ's names of them
STATISTIC_NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}


def field_of(state: Any, name: str) -> Any:
    """A field of a state, or of one of its fields, "adapt_state.step_size"; None if it has none."""
    try:
        return nested_attrgetter(name)(state)
    except (AttributeError, KeyError, TypeError):
        return None


def fields_of(kernel: Any, state: Any, extra_fields: tuple[str, ...]) -> tuple[str, ...]:
    """Fields of the state that are stored, the position first.

    Raises
    ------
    ValueError
        For a field that the state has not, or that is not one array.
    """
    usual = [name for name in kernel.default_fields if name != kernel.sample_field]
    usual += [name for name in STATISTICS if field_of(state, name) is not None]
    asked = [name for name in extra_fields if not name.startswith("~")]
    for name in asked:
        if (value := field_of(state, name)) is None:
            known = getattr(state, "_fields", ())
            raise ValueError(
                f"extra_fields must be fields of the kernel's state, {', '.join(known)}, or fields "
                f"of these as 'adapt_state.step_size'; got {name!r}."
            )
        if not hasattr(value, "shape"):
            raise ValueError(f"extra_fields must each be one array; {name!r} holds several.")
    return tuple(dict.fromkeys((kernel.sample_field, *usual, *asked)))


def named(position: str, found: dict[str, Any]) -> dict[str, Any]:
    """Draws by ``group/name``, from those by field."""
    sites = by_name(found[position])
    check_sites(list(sites))
    stored = {f"posterior/{name.replace('/', '.')}": storable(x) for name, x in sites.items()}
    for field, value in found.items():
        if field != position:
            name = STATISTIC_NAMES.get(field, field).replace("/", ".")
            value = -value if field == "potential_energy" else key_data_of(value)
            stored[f"sample_stats/{name}"] = value
    return stored


def shapes_of(position: str, shapes: dict[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of one draw of one chain, by ``group/name``."""
    found = jax.eval_shape(lambda found: named(position, found), shapes)
    return {name: jax.ShapeDtypeStruct(one.shape[2:], one.dtype) for name, one in found.items()}


def check_sites(names: list[str]) -> None:
    """Raise ValueError for sites that the store cannot hold under their names."""
    stored: dict[str, str] = {}
    for name in names:
        stored_as = name.replace("/", ".")
        if stored_as in ("chain", "draw"):
            raise ValueError(
                f"site '{name}' has the name of a dimension of the store: give it another name, or "
                f"leave it out with extra_fields=('~z.{name}',)."
            )
        if stored_as in stored:
            raise ValueError(
                f"sites '{stored[stored_as]}' and '{name}' would both be '{stored_as}' in the "
                "store, where a '/' is a '.': give one of them another name."
            )
        stored[stored_as] = name


def storable(value: Any) -> Any:
    """A value in a dtype that Zarr knows: bfloat16 is not one, and float32 holds its numbers."""
    return value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value
