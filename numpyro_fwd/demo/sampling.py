"""The two targets of the demonstration, how they are sampled, and the table of what came out."""

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import arviz_base
import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from blackjax_ext.types import Function
from numpyro_fwd import (
    ALSMMALA,
    AMAGOLD,
    AMSMMALA,
    FMALA,
    HPMALA,
    L2MC,
    MALA,
    MMALA,
    PCFMALA,
    SGHMC,
    SMMALA,
    AutoMALA,
    AutoNUTS,
    LangevinSMC,
    LineFMALA,
    PCLineFMALA,
    RandomWalk,
    smc_summary,
)
from numpyro_fwd.types import Model

__all__ = [
    "NUM_CHAINS",
    "Budget",
    "SamplerRun",
    "Target",
    "funnel",
    "logistic_regression",
    "run",
    "run_table",
]

NUM_CHAINS = 4
FIRST_ORDER = (RandomWalk, MALA, FMALA, LineFMALA, PCFMALA, PCLineFMALA)
SECOND_ORDER = (HPMALA, SMMALA, MMALA)
SCHEDULED = (ALSMMALA, AMSMMALA)
ADAPTIVE = (AutoMALA,)
MINIBATCH = (AMAGOLD, SGHMC)
SAMPLERS = (
    NUTS,
    AutoNUTS,
    *FIRST_ORDER,
    *ADAPTIVE,
    *SECOND_ORDER,
    *SCHEDULED,
    L2MC,
    *MINIBATCH,
    LangevinSMC,
)
NUM_PARTICLES = 2000
QUICK_SAMPLERS = (NUTS, RandomWalk, FMALA)
FUNNEL_SIZE = 9  # of theta
BATCH_SIZE = 100


class Target(NamedTuple):
    """A model with its data.

    `truth` holds the exact mean and standard deviation of each site, or is None where NUTS is the
    reference. `minibatch_model` is the model on a part of the data, None if there are none.
    """

    name: str
    title: str
    model: Model
    data: tuple[Any, ...]
    dense_mass: bool
    labels: dict[str, Any]
    truth: dict[str, tuple[float, float]] | None
    minibatch_model: Model | None = None


class Budget(NamedTuple):
    """Warm-up steps, steps after it, and of how many steps one is kept."""

    num_warmup: int
    num_samples: int
    thinning: int


class SamplerRun(NamedTuple):
    """Run of one sampler: draws, seconds of its work and of compiling it, and its warnings."""

    sampler: str
    budget: Budget
    idata: Any  # xarray.DataTree: its groups are attributes that no type checker sees
    seconds: float
    compilation: float
    said: list[str]
    ess: float | None = None  # of particles, which are no chains

    @property
    def acceptance(self) -> float:
        """Mean acceptance probability after the warm-up."""
        return float(self.idata.sample_stats["acceptance_rate"].mean())


def logistic_regression() -> Target:
    """Malignant or benign: 569 biopsies, 30 standardised covariates, standard normal priors."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)

    def model(x, y, batch_size=None):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
        prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
        weights = numpyro.sample("weights", prior)
        with numpyro.plate("biopsies", len(y), subsample_size=batch_size):
            x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
            numpyro.sample("benign", dist.Bernoulli(logits=intercept + x @ weights), obs=y)

    labels = {
        "coords": {"covariate": list(data.feature_names)},
        "dims": {"weights": ["covariate"]},
    }
    title = "Logistic regression: breast cancer, 569 x 30"
    arrays = (jnp.asarray(x, jnp.float32), jnp.asarray(data.target))
    batches = partial(model, batch_size=BATCH_SIZE)
    return Target("regression", title, model, arrays, True, labels, None, batches)


def funnel() -> Target:
    """Neal's funnel: w ~ N(0, 3), then nine theta ~ N(0, exp(w / 2)); scales, not variances."""

    def model():
        w = numpyro.sample("w", dist.Normal(0.0, 3.0))
        conditional = dist.Normal(0.0, jnp.exp(w / 2)).expand([FUNNEL_SIZE]).to_event(1)
        numpyro.sample("theta", conditional)

    labels = {
        "coords": {"index": np.arange(1, FUNNEL_SIZE + 1)},
        "dims": {"theta": ["index"]},
    }
    truth = {"w": (0.0, 3.0), "theta": (0.0, float(np.exp(9 / 4)))}
    return Target("funnel", "Neal's funnel in 10 dimensions", model, (), False, labels, truth)


def budgets(target: Target, quick: bool) -> Iterator[tuple[Function, Budget]]:
    """Each sampler with its budget: a step of NUTS is a trajectory, one of SMMALA has a Hessian."""
    for sampler in QUICK_SAMPLERS if quick else SAMPLERS:
        if sampler in (NUTS, AutoNUTS):
            yield sampler, Budget(500, 500, 1) if quick else Budget(1000, 2500, 1)
        elif sampler in SECOND_ORDER:
            yield sampler, Budget(1000, 4000, 2)
        elif sampler in SCHEDULED:
            yield sampler, Budget(2000, 10_000, 4)
        elif sampler in (L2MC, *MINIBATCH):
            if sampler is L2MC or target.minibatch_model is not None:
                yield sampler, Budget(1000, 5000, 1)
        elif sampler in ADAPTIVE:
            yield sampler, Budget(5000, 25_000, 5)
        elif sampler is LangevinSMC:
            if target.truth is None:  # the funnel has no data, hence no likelihood to anneal
                yield sampler, Budget(5, 1, 1)
        else:
            yield sampler, Budget(2000, 5000, 5) if quick else Budget(10_000, 50_000, 10)


def run(target: Target, sampler: Function, budget: Budget, rng_key) -> SamplerRun:
    """Sample `target` with four vectorized chains, or with particles."""
    mcmc = MCMC(
        kernel_of(target, sampler),
        **budget._asdict(),
        num_chains=NUM_PARTICLES if sampler is LangevinSMC else NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    fields = ("accept_prob", "ancestors" if sampler is LangevinSMC else "num_steps")
    begin = time.perf_counter()
    with compilation() as spans, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        mcmc.run(rng_key, *target.data, extra_fields=fields)
        jax.block_until_ready(mcmc.get_samples())
    elapsed = time.perf_counter() - begin
    compiled = covered(spans)
    said = [str(warning.message) for warning in caught]
    ess = None
    if sampler is LangevinSMC:
        idata, ess = particles(mcmc, target), least_ess(mcmc)
    else:
        idata = arviz_base.from_numpyro(mcmc, log_likelihood=False, **target.labels)
    return SamplerRun(sampler.__name__, budget, idata, elapsed - compiled, compiled, said, ess)


def kernel_of(target: Target, sampler: Function) -> Any:
    """The sampler on the model, or on minibatches of it."""
    if sampler is LangevinSMC:
        return sampler(target.model)
    model = target.minibatch_model if sampler in MINIBATCH else target.model
    return sampler(model, dense_mass=target.dense_mass)


def particles(mcmc: MCMC, target: Target) -> Any:
    """The last population, in four groups that take the place of chains in pictures."""

    def grouped(values):
        last = np.asarray(values)[:, -1]
        return last.reshape(NUM_CHAINS, -1, *last.shape[1:])

    samples = mcmc.get_samples(group_by_chain=True)
    accepted = mcmc.get_extra_fields(group_by_chain=True)["accept_prob"]
    return arviz_base.from_dict(
        {
            "posterior": {name: grouped(values) for name, values in samples.items()},
            "sample_stats": {"acceptance_rate": grouped(accepted)},
        },
        **target.labels,
    )


def least_ess(mcmc: MCMC) -> float:
    """Effective number of particles of the worst parameter."""
    return min(float(site["ess"].min()) for site in smc_summary(mcmc).sites.values())


@contextmanager
def compilation() -> Iterator[list[tuple[float, float]]]:
    """Collect the spans of time in which JAX traces, lowers and compiles; they may nest."""
    spans: list[tuple[float, float]] = []

    def listen(event: str, start_time: float, end_time: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            spans.append((start_time, end_time))

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield spans
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of `spans`."""
    total, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def errors(run: SamplerRun, target: Target, reference: SamplerRun) -> tuple[float, float]:
    """Largest error of a mean in sds of the truth, and the ratio of sds that is farthest from 1."""
    shifts: list[float] = []
    ratios: list[float] = []
    for site, draws in run.idata.posterior.data_vars.items():
        truth = target.truth
        mean, sd = truth[site] if truth else moments(reference.idata.posterior[site])
        found_mean, found_sd = moments(draws)
        shifts.append(np.max(np.abs(found_mean - mean) / sd))
        ratios.extend(np.ravel(found_sd / sd))
    return float(max(shifts)), float(max(ratios, key=lambda ratio: abs(np.log(ratio))))


def moments(draws: Any) -> tuple[Any, Any]:
    """Mean and standard deviation over chains and draws."""
    values = draws.values.astype(float)
    return values.mean(axis=(0, 1)), values.std(axis=(0, 1))


def run_table(target: Target, runs: list[SamplerRun]) -> str:
    """Aligned table, one row per run; the first run is the reference where no truth is known."""
    header = "sampler accept min-ESS ESS/s R-hat mean-error sd-ratio steps seconds compile".split()
    rows = [header, *(row(other, target, runs[0]) for other in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
        for cells in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([target.title, rule, lines[0], rule, *lines[1:], rule])


def row(run: SamplerRun, target: Target, reference: SamplerRun) -> list[str]:
    """Cells of one run."""
    diagnostics = arviz_stats.summary(run.idata, kind="diagnostics", round_to="none")
    ess = diagnostics["ess_bulk"].min() if run.ess is None else run.ess
    is_reference = target.truth is None and run is reference
    shift, ratio = errors(run, target, reference)
    return [
        run.sampler,
        f"{run.acceptance:.2f}",
        f"{ess:.0f}",
        f"{ess / run.seconds:.0f}",
        f"{diagnostics['r_hat'].max():.3f}" if run.ess is None else "none",
        "reference" if is_reference else f"{shift:.2f}",
        "" if is_reference else f"{ratio:.2f}",
        f"{run.budget.num_warmup + run.budget.num_samples}",
        f"{run.seconds:.1f}",
        f"{run.compilation:.1f}",
    ]
