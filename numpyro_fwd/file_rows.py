"""Rows of a file of NumPy, read without mapping them.

A page of a mapped file counts as memory of the process, and where the system keeps files in large
folios a single row maps half a megabyte: a few thousand random rows of a large file are gigabytes,
which the system takes back only when it must. What is read here is copied, and nothing else.
"""

import math
import mmap
import os
import weakref
from typing import Any

import numpy as np


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
