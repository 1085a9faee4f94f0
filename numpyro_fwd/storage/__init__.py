"""Draws on disk: a run that appends to a Zarr store, survives being killed, and stops when done."""

from numpyro_fwd.storage.run import Stored
from numpyro_fwd.storage.sampling import sample_to
from numpyro_fwd.storage.stopping import Until

__all__ = ["Stored", "Until", "sample_to"]
