"""Rows that stay on disk, for models that read some of them at a time.

Of a file of NumPy they are read without mapping them (:class:`FileRows`).
"""

import copy
import math
import mmap
import operator
import os
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class FileRows:
    """Rows that lie one after the other in a file, indexed by slices and arrays of row numbers.

    Parameters
    ----------
    descriptor
        Of the open file, which is closed with this.
    offset
        Bytes before the first row.
    shape, dtype
        Of all rows.
    """

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, ...], dtype: np.dtype):
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self.offset = offset
        self.shape, self.dtype = shape, dtype
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize

    @classmethod
    def of(cls, source: Any) -> "FileRows | None":
        """Rows of the file of a mapped array, whose rows are in order; None for anything else."""
        path, pages = getattr(source, "filename", None), getattr(source, "_mmap", None)
        if not isinstance(pages, mmap.mmap) or path is None or not source.flags.c_contiguous:
            return None
        if source.mode not in ("r", "r+", "w+"):  # what is written to the pages stays there
            return None
        # of a slice of a mapped array too, whose own `offset` is that of the whole
        begin = np.frombuffer(pages, np.uint8).ctypes.data
        mapped = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:  # a file that has been removed is still mapped
            return None
        offset = mapped + source.ctypes.data - begin
        return cls(descriptor, offset, source.shape, source.dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows of a slice with step one, or of an array of numbers that are not negative."""
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(self.shape[0])
            num_rows = max(stop - first, 0)
            data = self._bytes(first, num_rows)
            return np.frombuffer(data, self.dtype).reshape(num_rows, *self.shape[1:])
        data = b"".join([self._bytes(row, 1) for row in rows.tolist()])
        return np.frombuffer(data, self.dtype).reshape(len(rows), *self.shape[1:])

    def _bytes(self, first: int, num_rows: int) -> bytes:
        """Bytes of some consecutive rows in the file."""
        length, place = num_rows * self.row_bytes, self.offset + first * self.row_bytes
        data = os.pread(self.descriptor, length, place)
        while len(data) < length:  # the system may give less than it was asked for
            more = os.pread(self.descriptor, length - len(data), place + len(data))
            if not more:
                raise OSError(f"a file of rows on disk has lost rows from {first} on")
            data += more
        return data


PLATFORMS = "jax_platforms"  # of jax.config
HOW_TO_READ = (
    "index it with the rows of a plate first, as in `with numpyro.plate(..., subsample_size=...) "
    "as rows: x[rows]`; what that gives is an array."
)


def on_disk(source: Any) -> "OnDisk":
    """Rows on disk as an argument of a model, which indexes them with the rows of a plate.

    ``x[rows]`` in the model is a call to the host, which reads these rows and no others. So AMAGOLD
    with any acceptance test, SGHMC, and GOHSMC's minibatches sample data that do not fit into
    memory; a pass over all rows reads one chunk after the other. See the page on rows on disk for
    what does not work.

    Parameters
    ----------
    source
        Anything with a `shape`, a `dtype` of numbers, and NumPy's indexing by slices and by an
        array of row numbers: ``numpy.memmap`` (or ``numpy.load(path, mmap_mode="r")``), an array of
        zarr. It must not change while it is sampled.

    Returns
    -------
    An :class:`~numpyro_fwd.disk.OnDisk`.

    Raises
    ------
    TypeError, ValueError
        For a source without a shape or a dtype, of a dtype that is not of numbers, with a mask, or
        without rows.

    Examples
    --------
    >>> import tempfile, jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import AMAGOLD, on_disk
    >>> path = tempfile.mkdtemp() + "/y.npy"
    >>> np.save(path, np.random.default_rng(0).normal(2.0, 1.0, 5_000).astype("float32"))
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     with numpyro.plate("rows", len(y), subsample_size=100) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])
    >>> y = on_disk(np.load(path, mmap_mode="r"))
    >>> mcmc = MCMC(AMAGOLD(model), num_warmup=50, num_samples=100, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), y)
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.1)
    True
    """
    return OnDisk(source)


@jax.tree_util.register_static
class OnDisk:
    """Rows on disk; made by :func:`numpyro_fwd.on_disk`.

    For JAX it is not an array but a constant without leaves: programs are distinguished by the
    source itself, and read it when they run.

    Attributes
    ----------
    source
        What is read.
    shape, dtype, ndim, size
        As of an array of JAX; the dtype is the one that its rows have there, float32 for a file of
        float64 unless x64 is enabled.
    """

    # numpy shall leave ``array + x`` to this class, which explains itself
    __array_ufunc__ = None

    def __init__(self, source: Any):
        shape, dtype = getattr(source, "shape", None), getattr(source, "dtype", None)
        if shape is None or dtype is None:
            raise TypeError(
                "source must have a shape and a dtype, as a numpy.memmap or an array of zarr; "
                f"got {type(source).__name__}."
            )
        if isinstance(source, (jax.Array, OnDisk)):
            raise TypeError(
                f"source must be on disk, as a numpy.memmap or an array of zarr; got "
                f"{type(source).__name__}, which a model takes as it is."
            )
        if isinstance(source, np.ma.MaskedArray):
            raise TypeError(
                "source must not be a masked array, whose mask would be lost; got one of shape "
                f"{shape}: leave the masked rows out."
            )
        dtype = np.dtype(dtype)
        if not (np.issubdtype(dtype, np.number) or dtype.kind == "b"):
            raise TypeError(f"source must have a dtype of numbers; got {dtype}.")
        if not shape or not shape[0]:
            raise ValueError(f"source must have rows along its first axis; got shape {shape}.")
        self.source = source
        self.shape = tuple(map(operator.index, shape))
        self._in_file = source if isinstance(source, FileRows) else FileRows.of(source)
        self._state: object = None  # of what is on disk: programs of another one are not taken

    @property
    def dtype(self) -> np.dtype:
        """Dtype of its rows as JAX computes with them."""
        # in the order of bytes of this machine, whatever that of the file is
        return jax.dtypes.canonicalize_dtype(np.dtype(self.source.dtype).newbyteorder("="))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"on_disk({type(self.source).__name__}, shape={self.shape}, dtype={self.dtype})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OnDisk):
            return False
        return self.source is other.source and self._state is other._state

    def __hash__(self) -> int:
        return hash((OnDisk, id(self.source)))

    def renewed(self) -> "OnDisk":
        """A copy for rows that have changed, for which programs are made anew."""
        new = copy.copy(self)
        new._state = object()
        return new

    def __getitem__(self, index: Any) -> Any:
        """Some rows: ``x[rows]``, or ``x[rows, ...]`` with numbers and slices behind them.

        Rows of JAX are read when the program runs; those of NumPy, numbers and slices at once.

        Raises
        ------
        TypeError, IndexError
            For an index that is neither, or rows that are not there.
        """
        rows, *rest = index if isinstance(index, tuple) else (index,)
        if rest and not all(is_basic(index) for index in rest):
            raise TypeError(
                f"rows on disk take numbers and slices behind the rows; got {rest}: write "
                "x[rows][:, columns]."
            )
        if isinstance(rows, slice):
            rows_read = np.asarray(self.source[rows], self.dtype)
            return rows_read[(slice(None), *rest)] if rest else rows_read
        if not is_rows(rows):
            raise TypeError(
                "rows on disk are indexed by whole numbers, an array of them, or a slice, as in "
                f"x[rows]; got {rows!r}. A condition on rows must be applied before the model."
            )
        some = self._traced(rows) if isinstance(rows, jax.Array) else self.read(rows)
        return some[(slice(None),) * np.ndim(rows) + tuple(rest)] if rest else some

    def _traced(self, rows: Array) -> Array:
        """Rows whose numbers are known when a program runs; constants for any derivative."""
        if math.prod(jax.sharding.get_abstract_mesh().axis_sizes) > 1:
            raise ValueError(
                "rows on disk are not read on a mesh of several devices; pass the arrays that "
                "numpyro_fwd.shard_rows makes of them: of a file mapped by NumPy each process "
                "reads its own part."
            )
        check_has_cpu()
        shape = jax.ShapeDtypeStruct(rows.shape + self.shape[1:], self.dtype)
        # whole numbers have no tangents, and a call to the host none either
        return jax.pure_callback(self.read, shape, rows, vmap_method="expand_dims")

    def read(self, rows: Any) -> np.ndarray:
        """Rows as an array of NumPy, of the shape of `rows` and then of a row.

        Consecutive rows are read as a slice. No function of JAX may be called here: a program waits
        for this one.

        Raises
        ------
        IndexError
            For rows that are not there.
        """
        rows = np.asarray(rows)
        flat = rows.ravel().astype(np.int64)  # small integers would not hold the number of rows
        flat = np.where(flat < 0, flat + len(self), flat)
        if flat.size and not (0 <= flat.min() and flat.max() < len(self)):
            raise IndexError(f"rows must be from 0 to {len(self) - 1}; got {rows}.")
        rows_of = self.source if self._in_file is None else self._in_file
        is_run = (
            flat.size > 0 and flat[-1] - flat[0] == flat.size - 1 and np.all(np.diff(flat) == 1)
        )
        if is_run:
            rows_read = rows_of[int(flat[0]) : int(flat[-1]) + 1]
        elif isinstance(rows_of, (np.ndarray, FileRows)):
            rows_read = rows_of[flat]
        else:  # formats in chunks read each of them once, and HDF5 takes rows in order alone
            ordered, places = np.unique(flat, return_inverse=True)
            rows_read = np.asarray(rows_of[ordered])[places.ravel()]
        return np.array(rows_read, self.dtype).reshape(rows.shape + self.shape[1:])

    def __getstate__(self) -> Any:
        """The source alone: an open file is not pickled."""
        return self.source

    def __setstate__(self, source: Any) -> None:
        self.__init__(source)  # type: ignore[misc]

    def sample(self) -> np.ndarray:
        """A few rows from everywhere, which stand for all of them where data are compared."""
        places = np.linspace(0, len(self) - 1, min(256, len(self)))
        return self.read(np.unique(places.astype(int)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"rows on disk are no array: {HOW_TO_READ}")

    def __jax_array__(self) -> Array:
        raise TypeError(f"rows on disk are no array: {HOW_TO_READ}")

    def __iter__(self) -> Any:
        raise TypeError(f"rows on disk are not iterated over: {HOW_TO_READ}")


def check_has_cpu() -> None:
    """Raise RuntimeError where JAX has no CPU beside its accelerator, to hand rows to."""
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        raise RuntimeError(
            "rows on disk are read by the host's CPU, which JAX does not have here: list it after "
            'the accelerator, as JAX_PLATFORMS="cuda,cpu" in the environment; got '
            f"{getattr(jax.config, PLATFORMS)!r}."
        ) from error


def refused(name: str) -> Any:
    """A method that says that whole files are not computed with."""

    def method(self: OnDisk, *_: Any) -> Any:
        raise TypeError(f"rows on disk do not support {name} as a whole: {HOW_TO_READ}")

    return method


OPERATORS = "add sub mul matmul truediv floordiv mod pow".split()
for operation in OPERATORS:
    setattr(OnDisk, f"__{operation}__", refused(operation))
    setattr(OnDisk, f"__r{operation}__", refused(operation))
for operation in ("neg", "abs", "lt", "le", "gt", "ge"):
    setattr(OnDisk, f"__{operation}__", refused(operation))


def is_basic(index: Any) -> bool:
    """Whether an index is a number, a slice, or a new axis."""
    return isinstance(index, (int, np.integer, slice)) or index is None or index is Ellipsis


def is_rows(index: Any) -> bool:
    """Whether an index is a whole number or an array of them."""
    if isinstance(index, (list, int)) and not isinstance(index, bool):
        index = np.asarray(index)
    return hasattr(index, "dtype") and jnp.issubdtype(index.dtype, np.integer)


def holds_rows_on_disk(arguments: Any) -> bool:
    """Whether any of the arguments of a model are rows on disk."""
    return num_rows_on_disk(arguments) > 0


def num_rows_on_disk(arguments: Any) -> int:
    """Rows of the longest of the arguments of a model that are on disk; 0 if none is."""
    leaves = leaves_with_rows_on_disk(arguments)
    return max((len(leaf) for leaf in leaves if isinstance(leaf, OnDisk)), default=0)


def leaves_with_rows_on_disk(arguments: Any) -> list[Any]:
    """Leaves of a pytree, with the rows on disk that JAX does not count among them."""
    return jax.tree.leaves(arguments, is_leaf=lambda leaf: isinstance(leaf, OnDisk))
