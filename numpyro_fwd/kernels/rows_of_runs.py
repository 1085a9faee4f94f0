"""The rows of a model as a run of a minibatch kernel knows them."""

from typing import cast

from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.kernels.strategy import Source

__all__ = ["rows_of"]


def rows_of(source: Source) -> RowModel:
    """The rows of a full view."""
    if source.known is None:
        return RowModel.of(source.model, *source.arguments)
    return cast(RowModel, source.known).having(*source.arguments)
