"""Chains of a chapter: sampled, timed, written, and summed up in one line."""

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import arviz_base
import arviz_stats
import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_fwd.demo.sampling import compilation, covered

__all__ = ["Chains", "pooled_draws", "sample", "worst"]


class Chains(NamedTuple):
    """Draws, seconds of work (warm-up included) and seconds of compilation."""

    idata: Any
    mcmc: MCMC
    seconds: float
    compilation: float

    def write(self, folder: Path, name: str) -> str:
        """Write the draws as NetCDF; the name of the file."""
        self.idata.to_netcdf(str(folder / f"{name}.nc"))
        return f"{name}.nc"


def sample(
    kernel, key, *data, num_chains: int = 4, fields: tuple[Any, ...] = (), **budget: Any
) -> Chains:
    """Sample with vectorized chains; warnings of short runs are left to the table."""
    options = {"chain_method": "vectorized", "progress_bar": False, **budget}
    mcmc = MCMC(kernel, num_chains=num_chains, **options)
    begin = time.perf_counter()
    with compilation() as spans, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mcmc.run(key, *data, extra_fields=fields)
        jax.block_until_ready(mcmc.get_samples())
        elapsed, compiled = time.perf_counter() - begin, covered(spans)
        idata = arviz_base.from_numpyro(mcmc, log_likelihood=False)
    return Chains(idata, mcmc, elapsed - compiled, compiled)


def worst(idata) -> tuple[float, float]:
    """Least effective sample size and largest R-hat of all parameters."""
    summary = arviz_stats.summary(idata, kind="diagnostics", round_to="none")
    return float(summary["ess_bulk"].min()), float(summary["r_hat"].max())


def pooled_draws(chains: Chains, site: str) -> np.ndarray:
    """Draws of a site, all chains in a row."""
    values = chains.idata.posterior[site].values.astype(float)
    return values.reshape(-1, *values.shape[2:])
