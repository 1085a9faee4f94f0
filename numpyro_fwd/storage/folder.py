"""The folder of a run on disk: whose it is, who writes to it, and its errors."""

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

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

    def has_draws(self) -> bool:
        """Whether a store was published, which is after its first checkpoint."""
        return (self.path / METADATA).exists()

    def begin(self) -> bool:
        """Whether the run begins; what is left of a beginning that was killed is overwritten.

        Raises
        ------
        ValueError
            For a store whose checkpoint is gone.
        """
        if self.checkpoint.exists():
            return False
        if self.has_draws():
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
