"""posteriordb (stan-dev, BSD-3) as NumPyro models, one function for each of its Stan programs.

The arguments of a model have the names of Stan's data, its sites and deterministic values those of
Stan's parameters and transformed parameters, with the same shapes. Data below 50 kB are files here;
``python -m benchmarks.harness.posteriordb.fetched CLONE`` writes all of them, and the reference
moments, from a clone of the database at `COMMIT`, and compares checksums.
"""

# each enters its ports
from benchmarks.harness.posteriordb import (  # noqa: F401
    books,
    ecology,
    equations,
    items,
    mixtures,
    processes,
    radon,
    regressions,
    series,
)
from benchmarks.harness.posteriordb.ports import (
    PORTS,
    is_held_out,
    model_of,
    parts_of,
    reference_of,
)

__all__ = ["PORTS", "is_held_out", "model_of", "parts_of", "reference_of"]
