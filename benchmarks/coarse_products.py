"""Posteriors where products of matrices are coarse: ``python benchmarks/coarse_products.py``.

Emulated on a CPU: factors of float32 products are rounded to the 10 bits of NVIDIA's TF32 or the 7
of a TPU's bfloat16. The model's own product is asked for in full precision, as the warning of a run
says; what the library multiplies is as coarse as the library lets it be.
"""

import contextlib
import dataclasses
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy.optimize import minimize

from benchmarks.harness.diagnostics import ess_of, worst_rhat
from benchmarks.harness.report import Report, Section, by_name
from numpyro_fwd import AMAGOLD, MALA, AutoMALA, AutoNUTS, LangevinSMC
from tests.laws.coarse_products import BFLOAT16, TF32, coarse_products

SIZE, MEAN, NUM_GROUPS = 8, 10.0, 50  # covariates have a mean of MEAN of their sds
BATCH, STEPS, PARTICLES = 100, 1_000, 1_000
LARGE, NUM_WEIGHTED = 100_000, 20_000  # rows; weighted draws
FEW_PARTICLES = 200  # of many rows: each evaluation reads all
FORMATS = {"float32": None, "TF32": TF32, "bfloat16": BFLOAT16}
PRIOR_SDS = np.array([20.0, *[1.0] * SIZE])
COLUMNS = [
    *("rows", "products", "kernel", "worst mean, sds", "in standard errors"),
    *("least sd", "largest sd", "worst R-hat", "least ESS"),
]


def table(num_rows: int) -> tuple:
    """Covariates far from zero, groups, labels of a regression without and of one with effects."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, SIZE))
    eta = x @ rng.normal(size=SIZE) * 0.4
    group = rng.integers(0, NUM_GROUPS, num_rows)
    effect = 0.7 * rng.normal(size=NUM_GROUPS)
    y, mixed = (rng.random(num_rows) < 1 / (1 + np.exp(-e)) for e in (eta, eta + effect[group]))
    return x + MEAN, group, y, mixed


def linear(x):
    """Intercept and slopes of one predictor."""
    intercept = numpyro.sample("intercept", dist.Normal(0, PRIOR_SDS[0]))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    return lambda rows: intercept + jnp.matmul(x[rows], slope, precision="highest")


def logistic(x, group, y, batch=None) -> None:
    """Logistic regression."""
    predictor = linear(x)
    with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=predictor(rows)), obs=y[rows])


def grouped(x, group, y, batch=None) -> None:
    """The same with an effect of each group."""
    predictor = linear(x)
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", NUM_GROUPS):
        effect = numpyro.sample("effect", dist.Normal(0.0, spread))
    with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
        eta = predictor(rows) + effect[group[rows]]
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y[rows])


def energy_of(model, num_rows: int):
    """Minus the log density of intercept, slopes, log spread and effects, in double precision."""
    x, group, y, mixed = table(num_rows)
    x = np.concatenate([np.ones((num_rows, 1)), x], axis=1)

    def regression(b, labels, offset=0.0):
        eta = x @ b + offset
        return jnp.sum(jnp.logaddexp(0.0, eta) - labels * eta) + 0.5 * jnp.sum((b / PRIOR_SDS) ** 2)

    def with_groups(z):
        b, log_spread, effect = z[: SIZE + 1], z[SIZE + 1], z[SIZE + 2 :]
        of_spread = 0.5 * jnp.exp(2 * log_spread) + (NUM_GROUPS - 1) * log_spread
        of_effects = 0.5 * jnp.sum(effect**2) * jnp.exp(-2 * log_spread)
        return regression(b, mixed, effect[group]) + of_spread + of_effects

    return with_groups if model is grouped else lambda b: regression(b, y)


def fit(model, num_rows: int) -> list:
    """The mode in these coordinates, and the inverse of the curvature there."""
    size = SIZE + 1 + (1 + NUM_GROUPS if model is grouped else 0)
    with jax.enable_x64(True):
        energy = energy_of(model, num_rows)
        derivatives = [jax.jit(f) for f in (energy, jax.grad(energy), jax.hessian(energy))]
        value, slope, curvature = (lambda z, f=f: np.asarray(f(z)) for f in derivatives)
        found = minimize(value, np.zeros(size), jac=slope, hess=curvature, method="trust-exact")
        return [found.x.tolist(), np.linalg.inv(curvature(found.x)).tolist()]


def importance_moments(model, num_rows: int, num_draws: int) -> list:
    """Means and sds of all coordinates in double precision, and their effective draws.

    Draws from a normal distribution around the mode, weighted: the posterior is nearly that.
    """
    mode, covariance = map(np.asarray, fit(model, num_rows))
    noise = np.random.default_rng(1).normal(size=(num_draws, mode.size))
    draws = mode + noise @ np.linalg.cholesky(covariance).T
    with jax.enable_x64(True):
        energies = np.asarray(jax.lax.map(energy_of(model, num_rows), jnp.asarray(draws)))
    log_weights = -energies + 0.5 * np.sum(noise**2, axis=1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    if model is grouped:
        draws[:, SIZE + 1] = np.exp(draws[:, SIZE + 1])
    mean = weights @ draws
    sd = np.sqrt(weights @ (draws - mean) ** 2)
    return [mean.tolist(), sd.tolist(), [1 / np.sum(weights**2)] * mean.size]


def at_the_mode(model, num_rows: int) -> NUTS:
    """NUTS that starts at the mode and keeps the metric there: from defaults it takes an hour."""
    mode, covariance = map(np.asarray, fit(model, num_rows))
    values = {"intercept": mode[0], "slope": mode[1 : SIZE + 1]}
    order = np.arange(mode.size)  # NumPyro's is that of the names: effect, intercept, slope, spread
    if model is grouped:
        values |= {"spread": np.exp(mode[SIZE + 1]), "effect": mode[SIZE + 2 :]}
        order = np.r_[order[SIZE + 2 :], order[: SIZE + 2]]
    return NUTS(
        model,
        dense_mass=True,
        adapt_mass_matrix=False,
        inverse_mass_matrix=jnp.asarray(covariance[np.ix_(order, order)], jnp.float32),
        init_strategy=init_to_value(
            values={name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
        ),
    )


def nuts_moments(num_rows: int, num_steps: int) -> list:
    """Means, sds and effective draws of the regression with effects by NUTS in double precision."""
    x, group, _, y = table(num_rows)
    with jax.enable_x64(True):
        arguments = jnp.asarray(x), jnp.asarray(group), jnp.asarray(y, jnp.int32)
        return moments(NUTS(grouped, dense_mass=True), arguments, num_steps, 10)[:3]


def flat(draws: dict) -> np.ndarray:
    """Draws of all coordinates, (chains, draws, D)."""
    names = [name for name in ("intercept", "slope", "spread", "effect") if name in draws]
    parts = [np.asarray(draws[name], np.float64) for name in names]
    return np.concatenate([p.reshape(*p.shape[:2], -1) for p in parts], axis=2)


def moments(kernel, arguments: tuple, num_steps: int, seed: int = 0) -> list:
    """Means, sds and effective draws of each coordinate, and the worst R-hat."""
    is_smc = isinstance(kernel, LangevinSMC)
    particles = FEW_PARTICLES if len(arguments[0]) >= LARGE else PARTICLES
    mcmc = MCMC(
        kernel,
        num_warmup=5 if is_smc else num_steps,
        num_samples=1 if is_smc else num_steps,
        num_chains=particles if is_smc else 4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), *arguments)
    x = flat(mcmc.get_samples(group_by_chain=True))
    if is_smc:
        x = x.reshape(1, -1, x.shape[-1])
        ess, rhat = np.full(x.shape[-1], float(x.shape[1])), 1.0
    else:
        ess, rhat = ess_of(x, "mean"), worst_rhat(x)
    return [x.mean((0, 1)).tolist(), x.std((0, 1)).tolist(), np.asarray(ess).tolist(), rhat]


def kernels(model, num_rows: int) -> dict:
    """By name. NUTS with its model's product by default was stopped after five minutes here."""
    read = partial(model, batch=BATCH)
    amagold = {"AMAGOLD, subsampled": partial(AMAGOLD, read, acceptance="subsampled")}
    others = {
        "AMAGOLD, full": partial(AMAGOLD, read, acceptance="full"),
        "MALA": partial(MALA, model),
        "AutoMALA": partial(AutoMALA, model),
        "AutoNUTS": partial(AutoNUTS, model),
        "LangevinSMC": partial(LangevinSMC, model),
    }
    is_large = num_rows >= LARGE
    nuts = {
        "NUTS": partial(at_the_mode, model, num_rows)
        if is_large
        else partial(NUTS, model, dense_mass=True)
    }
    return nuts | amagold | (others if model is logistic else {})


def measured(name: str, model, num_rows: int, bits: int | None, num_steps: int) -> list:
    """Moments of one kernel, with products of so many bits."""
    x, group, y, mixed = table(num_rows)
    labels = y if model is logistic else mixed
    data = (jnp.asarray(x, jnp.float32), jnp.asarray(group), jnp.asarray(labels, jnp.int32))
    with contextlib.nullcontext() if bits is None else coarse_products(bits):
        return moments(kernels(model, num_rows)[name](), data, num_steps)


def compared(model, num_rows: int, truth: list, quick: bool) -> list:
    """A row for each format and kernel; of NUTS one, which multiplies nothing but in its model."""
    rows = []
    num_steps = 50 if quick else STEPS
    mean, sd, ess = map(np.asarray, truth)
    for words, bits in (("TF32", TF32),) if quick else FORMATS.items():
        for name in kernels(model, num_rows):
            if quick and name not in ("MALA", "AMAGOLD, subsampled"):
                continue
            if bits is not None and name == "NUTS":
                continue
            key = (model.__name__, num_rows, words, name, num_steps)
            found = REPORT.once(key, measured, name, model, num_rows, bits, num_steps)
            its_mean, its_sd, its_ess = map(np.asarray, found[:3])
            error = np.abs(its_mean - mean) / sd
            ratio = its_sd / sd
            worst = np.max(error / np.sqrt(1 / its_ess + 1 / ess))
            figures = [error.max(), worst, ratio.min(), ratio.max(), found[3], its_ess.min()]
            rows.append([num_rows, words, name, *map(float, figures)])
    return rows


TEXT = (
    f"A logistic regression{{effects}} on covariates {MEAN:.0f} standard deviations from zero, "
    f"from defaults, {STEPS:,} steps of warm-up and draws of four chains, {PARTICLES:,} particles. "
    "Errors of means are those of the worst coordinate, in its standard deviations and in standard "
    "errors of Monte Carlo; standard deviations are shares of the true ones, {truth}."
)


WEIGHTED = f"by {NUM_WEIGHTED:,} weighted draws from a normal fit in double precision"
FEW = f"{FEW_PARTICLES} particles"
AT_THE_MODE = " NUTS starts at the mode and keeps the metric there; the others have their defaults."


def large(section: Section, title: str) -> Section:
    """The same on many rows."""
    return dataclasses.replace(
        section,
        title=title,
        text=section.text.replace(f"{PARTICLES:,} particles", FEW) + AT_THE_MODE,
    )


def regression(quick: bool, num_rows: int = 10_000) -> Section:
    """Every family of kernels on a regression."""
    num_rows, num = (1_000, 200) if quick else (num_rows, NUM_WEIGHTED)
    truth = REPORT.once(("truth", num_rows, num), importance_moments, logistic, num_rows, num)
    words = TEXT.format(effects="", truth=WEIGHTED)
    return Section("Regression", words, COLUMNS, compared(logistic, num_rows, truth, quick))


def groups(quick: bool, num_rows: int = 10_000) -> Section:
    """The subsampled test with an effect of each group."""
    is_large = num_rows >= LARGE
    num_rows, num = (1_000, 50) if quick else (num_rows, NUM_WEIGHTED if is_large else 4_000)
    truth = f"by NUTS in double precision, four chains of {num:,} draws"
    words = TEXT.format(
        effects=f" with {NUM_GROUPS} effects of groups", truth=WEIGHTED if is_large else truth
    )
    exact = partial(importance_moments, grouped) if is_large else nuts_moments
    truth = REPORT.once(("truth of groups", num_rows, num), exact, num_rows, num)
    return Section("Effects of groups", words, COLUMNS, compared(grouped, num_rows, truth, quick))


def large_regression(quick: bool) -> Section:
    """The same on ten times as many rows."""
    return large(regression(quick, LARGE), "Regression, 100,000 rows")


def large_groups(quick: bool) -> Section:
    """The same on ten times as many rows."""
    return large(groups(quick, LARGE), "Effects of groups, 100,000 rows")


REPORT = Report(
    "coarse_products",
    "Coarse products, emulated",
    by_name(regression, groups, large_regression, large_groups),
    long=("large_regression", "large_groups"),
)

if __name__ == "__main__":
    REPORT.main()
