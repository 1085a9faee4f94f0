"""Numbers of all rows in a file that has no name: what a chain needs now and then of each of them.

A state that holds an array of each row costs a long loop twice its bytes, since a program copies
what it returns. Where the rows themselves are on disk, their bounds and their alias table are too.
"""

import hashlib
import os
import tempfile
from typing import Any

import jax
import numpy as np

from numpyro_fwd.disk import FileRows, OnDisk


@jax.tree_util.register_static
class TableFile(OnDisk):
    """An array on disk that is the same as another one with the same numbers.

    So the states of chains are alike, each of which had its own set-up. The file goes with it.

    Attributes
    ----------
    digest
        A checksum of the numbers.
    """

    def __init__(self, array: np.ndarray):
        self.digest = hashlib.blake2b(array.data, digest_size=16).hexdigest()
        with tempfile.TemporaryFile(buffering=0) as file:
            array.tofile(file)
            descriptor = os.dup(file.fileno())
        super().__init__(FileRows(descriptor, 0, array.shape, array.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableFile) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((TableFile, self.digest))

    def __getstate__(self) -> Any:
        """The numbers, to be pickled."""
        return self.source[:]

    def __setstate__(self, array: np.ndarray) -> None:
        self.__init__(array)  # type: ignore[misc]
