"""Draws on disk: a run that appends to a Zarr store, and survives being killed."""

from numpyro_fwd.storage.run import Stored, sample_to

__all__ = ["Stored", "sample_to"]
