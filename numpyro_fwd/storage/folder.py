"""The folder of a run on disk: whose it is, who writes to it, its errors, and its checkpoints.

A checkpoint is the state of a run as one file, which is there whole or not at all: it is written
under another name, synchronized and renamed. orbax keeps a folder of files for each checkpoint,
which suits the parameters of a network more than the few numbers of a chain.
"""

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

METADATA = ".zmetadata"
OWN = ".sample_to"  # beside the groups of the store, which readers of Zarr do not look at


def store_package(name: str) -> Any:
    """A package of the extra "store".

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"sample_to needs the package {name}: install it, or install this package with its "
            "extra store, pip install '.[store]'."
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end: readers find the old or the new, whole."""
    new = path.with_name(f"{path.name}.partial")
    try:
        with new.open("wb") as file:
            yield file
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


class Folder:
    """A path of :func:`numpyro_fwd.sample_to`.

    Attributes
    ----------
    path
        The folder, which is a Zarr store.
    checkpoint
        The file of the last checkpoint.
    """

    def __init__(self, path: Any):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a str or a Path; got {type(path).__name__}.")
        if "://" in os.fspath(path):
            raise ValueError(f"path must be a folder of this machine; got {os.fspath(path)!r}.")
        self.path = Path(path).expanduser()
        self.checkpoint = self.path / OWN / "checkpoint.npz"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """While this process, and no other, writes to the folder.

        Raises
        ------
        FileExistsError
            If there is something else on the path.
        RuntimeError
            If another one writes to it.
        OSError
            If nothing can be written there.
        """
        self.check_whose()
        filelock = store_package("filelock")
        with naming_path(self.path, "nothing was written"):
            (self.path / OWN).mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / OWN / "lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout as error:
                raise RuntimeError(
                    f"path {self.path} is being written to by another call of sample_to: wait for "
                    "it, or give another path."
                ) from error
        try:
            yield
        finally:
            lock.release()

    def check_whose(self) -> None:
        """Raise FileExistsError if something else is on the path."""
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir():
            raise FileExistsError(f"path {self.path} is a file: give a folder, or a new path.")
        try:
            entries = sorted(entry.name for entry in self.path.iterdir())
        except PermissionError as error:
            raise PermissionError(f"path {self.path} cannot be read: {error}") from error
        if entries and OWN not in entries:
            raise FileExistsError(
                f"path {self.path} holds something that sample_to did not write ('{entries[0]}'): "
                "give an empty folder, or a new path."
            )

    def begin(self) -> bool:
        """Whether the run begins; what is left of a beginning that was killed is overwritten.

        Raises
        ------
        ValueError
            For a store whose checkpoint is gone.
        """
        if self.checkpoint.exists():
            return False
        if (self.path / METADATA).exists():  # published, which is after its first checkpoint
            raise ValueError(
                f"the store on {self.path} is truncated: the file {self.checkpoint} is missing. "
                "The run cannot continue; put the file back from a copy, or call sample_to on "
                "another path. The draws are readable with xarray."
            )
        return True


@contextlib.contextmanager
def naming_path(path: Path, what: str) -> Iterator[None]:
    """Say in the errors of the system on which path it was, and what is there.

    Raises
    ------
    OSError
        Of the same kind, with its number.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise
        reason = error.strerror or str(error)
        new = type(error)(error.errno, f"sample_to cannot write to {path}: {reason}; {what}")
        raise new from error


def leaves_of(state: Any) -> list[np.ndarray]:
    """Copies of the arrays of a state; keys as their numbers.

    Copies, because an array of JAX on the CPU shares its memory with NumPy, and the next piece of
    the run takes that memory.
    """
    return [np.array(key_data_of(leaf)) for leaf in jax.tree.leaves(state)]


def key_data_of(leaf: Any) -> Any:
    """The numbers of a typed key; anything else is what it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed keys."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def put_back(like: Any, leaves: list[np.ndarray]) -> Any:
    """A state as `like`, with the arrays `leaves`."""
    old, treedef = jax.tree.flatten(like)
    if len(old) != len(leaves):
        raise ValueError(f"the state has {len(old)} arrays; the checkpoint has {len(leaves)}.")
    new = [as_leaf(*pair) for pair in zip(old, leaves, strict=True)]
    return jax.tree.unflatten(treedef, new)


def as_leaf(old: Any, saved: np.ndarray) -> jax.Array:
    """`saved` as an array of the kind of `old`, where `old` is."""
    if is_key(old):
        new = jax.random.wrap_key_data(jnp.array(saved), impl=jax.random.key_impl(old))
    else:
        # dtypes that are not NumPy's own come back without their name
        new = jnp.array(saved.view(old.dtype) if saved.dtype.kind == "V" else saved)
    if new.shape != old.shape or new.dtype != old.dtype:
        raise ValueError(
            f"the state has {old.dtype}{old.shape} where the checkpoint has {new.dtype}{new.shape}."
        )
    return jax.device_put(new, old.sharding)


def save(path: Path, leaves: list[np.ndarray], **facts: Any) -> None:
    """Write arrays and what JSON can hold to `path`, in the place of what was there.

    A fact may be bytes, for one that is the JSON of it already.
    """
    kinds = [(leaf.dtype.str, leaf.shape) for leaf in leaves]
    arrays: dict[str, Any] = {
        "leaves": np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves), np.uint8),
        **{name: as_bytes(fact) for name, fact in {"kinds": kinds, **facts}.items()},
    }
    with replacing(path) as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())


def as_bytes(fact: Any) -> np.ndarray:
    """JSON as an array."""
    text = fact if isinstance(fact, bytes) else json.dumps(fact).encode()
    return np.frombuffer(text, np.uint8)


def load(path: Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Load the arrays and facts of a checkpoint.

    Raises
    ------
    ValueError
        For a file that is not whole, by name.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            facts = {name: file[name].tobytes() for name in file.files}
        rest = facts.pop("leaves")
        facts = {name: json.loads(text) for name, text in facts.items()}
        leaves = []
        for kind, shape in facts.pop("kinds"):
            num_bytes = np.dtype(kind).itemsize * math.prod(shape)
            leaves.append(np.frombuffer(rest[:num_bytes], kind).reshape(shape))
            rest = rest[num_bytes:]
        return leaves, facts
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a checkpoint ({error}): the run cannot continue. The "
            "draws beside it are readable with xarray; put the file back from a copy, or "
            "call sample_to on another path."
        ) from error
