"""Mixtures and hidden Markov models."""

from benchmarks.harness.posteriordb.ports import port
from tests.numpyro_fwd.kernels import posteriordb_models

__all__: list[str] = []

port("low_dim_gauss_mix-low_dim_gauss_mix")(posteriordb_models.low_dim_gauss_mix)
