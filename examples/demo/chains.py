"""Chains of a chapter: sampled, timed, and summed up."""

import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import arviz_base
import arviz_stats
import jax
import numpy as np
from numpyro.infer import MCMC


class Chains(NamedTuple):
    """A run, with seconds of its work (warm-up included) and of its compilation."""

    mcmc: MCMC
    seconds: float
    compilation: float

    def draws(self, site: str) -> np.ndarray:
        """Draws of a site, all chains in a row."""
        return np.asarray(self.mcmc.get_samples()[site], float)

    def worst(self) -> tuple[float, float]:
        """Least effective sample size and largest R-hat of all parameters."""
        idata = arviz_base.from_numpyro(self.mcmc, log_likelihood=False)
        summary = arviz_stats.summary(idata, kind="diagnostics", round_to="none")
        return float(summary["ess_bulk"].min()), float(summary["r_hat"].max())

    @property
    def times(self) -> tuple[str, str]:
        """Cells of the table: seconds, and of compilation."""
        return f"{self.seconds:.1f}", f"{self.compilation:.1f}"


def sample(
    kernel, key, *data, num_chains: int = 4, fields: tuple[str, ...] = (), **budget: Any
) -> Chains:
    """Sample with vectorized chains; warnings of short runs are left to the table."""
    options = {"chain_method": "vectorized", "progress_bar": False, **budget}
    mcmc = MCMC(kernel, num_chains=num_chains, **options)
    with Stopwatch() as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mcmc.run(key, *data, extra_fields=fields)
        jax.block_until_ready(mcmc.get_samples())
    return Chains(mcmc, watch.seconds, watch.compilation)


class Stopwatch:
    """Seconds within a ``with``: of work, and of tracing, lowering and compiling by JAX."""

    seconds: float
    compilation: float

    def __enter__(self):
        self.spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_time_span_listener(self.listen)
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *_) -> None:
        elapsed = time.perf_counter() - self.begin
        jax.monitoring.unregister_event_time_span_listener(self.listen)
        self.compilation = covered(self.spans)
        self.seconds = elapsed - self.compilation

    def listen(self, event: str, start_time: float, end_time: float, **_: Any) -> None:
        """Keep the span of an event of compilation."""
        if event.startswith("/jax/core/compile/"):
            self.spans.append((start_time, end_time))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of `spans`, which may nest."""
    total, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
