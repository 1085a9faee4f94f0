"""The rows of a model as a run of a minibatch kernel knows them."""

from typing import Any, cast

from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.kernels.strategy import Run, Source
from numpyro_fwd.types import Args, Kwargs

__all__ = ["rows_of", "rows_of_run"]


def rows_of(source: Source, model_args: Args, model_kwargs: Kwargs | None) -> RowModel:
    """The rows of a full view for these arguments."""
    if source.known is None:
        return RowModel.of(source.model, model_args, model_kwargs)
    return cast(RowModel, source.known).having(model_args, model_kwargs)


def rows_of_run(run: Run, arrays: list[Any] | None = None) -> RowModel:
    """The rows of a full view, with these arrays among its arguments or its own."""
    arrays = run.arguments.arrays if arrays is None else arrays
    return rows_of(run.source, *run.arguments.join(arrays))
