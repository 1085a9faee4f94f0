"""What curvature costs and what it buys: ``python benchmarks/second_order.py``.

Each section is a function that measures and returns a table. The sections are kept in
``docs/results/second_order.json``, from which ``docs/results/second_order.md`` is written.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.base import array_stats
from numpyro.infer import NUTS

import blackjax_ext
from benchmarks.harness.data import barro_colorado, standardized, swiss
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import Run, run_chains, worst_errors
from benchmarks.harness.timing import least_seconds
from blackjax_ext import metrics, schedules
from blackjax_ext.mcmc import alsmmala
from numpyro_fwd import (
    ALSMMALA,
    AMSMMALA,
    HPMALA,
    MALA,
    MMALA,
    SMMALA,
    BlackJAXKernel,
    RandomWalk,
)

REFRESH = 0.02


# What a step costs


def logistic_problem(size: int, num_rows: int) -> Callable:
    """Log density of a logistic regression with a standard normal prior."""
    key_x, key_y = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (num_rows, size))
    y = jax.random.bernoulli(key_y, 0.5, (num_rows,)).astype(float)

    def logdensity(beta):
        logits = x @ beta
        return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(beta**2)

    return logdensity


def chains_of(name: str, logdensity_fn: Callable, size: int, num_chains: int, num_steps: int):
    """A program that takes `num_steps` steps with `num_chains` chains, and its first states."""
    dense = jnp.eye(size) * 0.02
    kernel = getattr(blackjax_ext, name).build_kernel()
    sampler = getattr(blackjax_ext, name)(logdensity_fn, 0.1, dense)
    states = jax.vmap(lambda x: sampler.init(x, None))(jnp.zeros((num_chains, size)))
    metric = metrics.factorize(dense)

    def one(states, key):
        options = {}
        if name == "alsmmala":  # decided once for all chains: one run in every so many
            run = states.iteration[0] // alsmmala.RUN_LENGTH
            refresh = run % round(1 / REFRESH) == 1
            options = {"refresh": refresh, "is_current": states.is_current[0]}

        def step(key, state):
            return kernel(key, state, logdensity_fn, 0.1, metric, **options)[0]

        return jax.vmap(step)(jax.random.split(key, num_chains), states), None

    keys = jax.random.split(jax.random.key(1), num_steps)
    run = jax.jit(lambda states: jax.lax.scan(one, states, keys)[0])
    return run.lower(states).compile(), states


def seconds_per_step(name: str, size: int, num_chains: int, num_steps: int, repeats: int) -> float:
    """Least time of a step over `repeats` runs."""
    logdensity_fn = logistic_problem(size, 500)
    run, states = chains_of(name, logdensity_fn, size, num_chains, num_steps)
    return least_seconds(run, states, repeats=repeats) / num_steps


def cost(quick: bool) -> Section:
    """Time of a step with partial metric updates against Theorem 1."""
    rows, checks = [], []
    for size, num_chains in ((50, 64), (200, 1)):
        lengths = {"smmala": 40, "mala": 4_000, "alsmmala": 16_000}
        if quick:
            lengths = {name: max(8, n // 40) for name, n in lengths.items()}
        times = {
            name: seconds_per_step(name, size, num_chains, n, 1 if quick else 3)
            for name, n in lengths.items()
        }
        predicted = schedules.expected_cost(
            schedules.geometric(REFRESH), 1, times["smmala"], times["mala"]
        )
        for name, value in {**times, "Theorem 1": predicted}.items():
            rows.append([size, num_chains, name, 1e6 * value, value / times["mala"]])
        where = f"D = {size}, {num_chains} chain" + "s" * (num_chains > 1)
        checks.append((f"alsmmala / Theorem 1, {where}", times["alsmmala"] / predicted, 1.2))
        checks.append((f"alsmmala / smmala, {where}", times["alsmmala"] / times["smmala"], 0.2))
    return Section(
        "The cost of partial metric updates",
        "A logistic regression with 500 rows; metric: the absolute Hessian, with its eigenvalues; "
        f"SMMALA steps are a share {REFRESH}, one run of {alsmmala.RUN_LENGTH} in every "
        f"{alsmmala.RUN_LENGTH / REFRESH:.0f} steps, the same for all chains. Theorem 1 predicts "
        f"{REFRESH} c(smmala) + {1 - REFRESH} c(mala), MALA being preconditioned.",
        ["D", "chains", "step", "µs", "over mala"],
        rows,
        checks,
    )


def amsmmala_step(size: int, follow: bool) -> tuple[Any, tuple]:
    """A compiled step of AMSMMALA between refreshes, and its arguments."""
    kernel = blackjax_ext.amsmmala.build_kernel()

    def logdensity_fn(x):
        return -0.5 * jnp.sum(x**2)

    diagonal = metrics.diagonal_hessian(0.1)
    state = blackjax_ext.amsmmala.init(jnp.zeros(size), logdensity_fn, metric_fn=diagonal)

    def step(key, state):
        return kernel(
            key,
            state,
            logdensity_fn,
            0.1,
            metric_fn=diagonal,
            follow=follow,
            refresh=jnp.array(False),
        )[0]

    arguments = (jax.random.key(0), state)
    return jax.jit(step).lower(*arguments).compile(), arguments


def growth(quick: bool) -> Section:
    """How an AMSMMALA step between refreshes grows with the dimension."""
    sizes = (50, 100, 200) if quick else (50, 100, 200, 400, 800)
    rows, previous = [], None
    for size in sizes:
        step, arguments = amsmmala_step(size, follow=True)
        flops = step.cost_analysis()["flops"]
        seconds = least_seconds(step, *arguments, repeats=20 if quick else 200)
        row = [size, flops / size**2, 1e6 * seconds]
        rows.append([*row, flops / previous if previous else 1.0])
        previous = flops
    return Section(
        "An AMSMMALA step between refreshes",
        "Counted by XLA, and the least time, with the covariance learning from the draw "
        "(`follow=True`, as in the warm-up) on a standard normal. A factor of 4 for each doubling "
        "of D is D^2, 8 would be D^3.",
        ["D", "flops / D^2", "µs", "flops over those of half of D"],
        rows,
        [("flops at the largest D over those of half of it", rows[-1][-1], 4.4)],
    )


# Schedules

COOLING = {
    "exponential": schedules.exponential,
    "linear": schedules.linear,
    "quadratic": schedules.quadratic,
    "logarithmic": schedules.logarithmic,
}
# the schedules of figures 1a, 1b and 2: titles of the pictures, and (name, a, b) of the lines
PANELS = {
    "b = 0 (figure 1a)": [("exponential", a, 0.0) for a in (1.0, 5.0, 10.0, 30.0)],
    "b = 0.1 (figure 1b)": [("exponential", a, 0.1) for a in (1.0, 5.0, 10.0, 30.0)],
    "a = 30, b = 0 (figure 2)": [(name, 30.0, 0.0) for name in COOLING],
}


def counted_shares(
    schedule: schedules.Schedule, rng_key: jax.Array, num_steps: int, num_chains: int
) -> np.ndarray:
    """Share of SMMALA steps in each of some chains of ALSMMALA."""
    options: dict = {"schedule": schedule, "metric_fn": metrics.diagonal_hessian(0.1)}
    sampler = blackjax_ext.alsmmala(lambda x: -0.5 * jnp.sum(x**2), 1.0, **options)

    def chain(rng_key):
        keys = jax.random.split(rng_key, num_steps)

        def step(state, key):
            state, info = sampler.step(key, state)
            return state, info.is_refreshed

        return jax.lax.scan(step, sampler.init(jnp.zeros(2)), keys)[1].mean()

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(rng_key, num_chains)))


def cooling_picture() -> None:
    """Probability of a new metric at each iteration."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained", sharey=True)
    iterations = jnp.arange(1_000)
    for axis, (title, lines) in zip(axes, PANELS.items(), strict=True):
        for name, a, b in lines:
            label = name if title.startswith("a") else f"a = {a:g}"
            axis.plot(iterations / 1_000, COOLING[name](a, b, 1_000)(iterations), label=label)
        axis.set(title=title, xlabel="iteration / n")
        axis.legend(fontsize=7)
    axes[0].set_ylabel("p(i)")
    REPORT.picture(figure, "second_order_schedules.png")


def cooling(quick: bool) -> Section:
    """Share of steps with a new metric under each schedule, counted and expected."""
    num_steps, num_chains = (600, 16) if quick else (12_000, 64)
    rows, scores = [], []
    lines = list(dict.fromkeys(line for lines in PANELS.values() for line in lines))
    keys = jax.random.split(jax.random.key(2), len(lines))
    for (name, a, b), rng_key in zip(lines, keys, strict=True):
        schedule = COOLING[name](a, b, num_steps)
        counted = counted_shares(schedule, rng_key, num_steps, num_chains)
        expected = schedules.expected_cost(schedule, num_steps, 1.0, 0.0)
        error = counted.std(ddof=1) / num_chains**0.5
        rows.append([name, a, b, expected, float(counted.mean()), float(error)])
        scores.append(abs(counted.mean() - expected) / error)
    cooling_picture()
    return Section(
        "Schedules",
        "Figures 1 and 2 of the paper, and the share of SMMALA steps in ALSMMALA: the mean of p(i) "
        f"that Theorem 1 multiplies the cost by, and counted in {num_chains} chains of "
        f"{num_steps:,} steps, with its standard error. ALSMMALA draws for runs of "
        f"{alsmmala.RUN_LENGTH} steps at once.\n\n![p(i)](second_order_schedules.png)",
        ["schedule", "a", "b", "expected", "counted", "standard error"],
        rows,
        [("largest distance of counted and expected, in standard errors", max(scores), 4.0)],
    )


# What curvature buys where the truth is known


def rosenbrock():
    """Banana of the HP-MALA paper: x ~ N(1, 10), y | x ~ N(x^2, 1/2)."""
    x = numpyro.sample("x", dist.Normal(1, 10**0.5))
    numpyro.sample("y", dist.Normal(x**2, 0.5**0.5))


def funnel():
    """Funnel of the HP-MALA paper: v ~ N(0, 9), x | v ~ N(0, e^v)."""
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)))


# model, the site that is hard to explore, its mean and variance
TRUTHS = {"Rosenbrock": (rosenbrock, "x", 1.0, 10.0), "funnel": (funnel, "v", 0.0, 9.0)}


def hmc(model, **options):
    """HMC with ten steps."""
    return BlackJAXKernel(
        model, blackjax.hmc, num_integration_steps=10, target_accept_prob=0.8, **options
    )


def truth_samplers(size: int) -> dict[str, tuple[Callable, float]]:
    """Samplers, and the evaluations a step of each counts: D + 1 with a Hessian."""
    softabs = metrics.softabs_hessian(1.0)
    hessian = size + 1.0
    return {
        "RandomWalk": (RandomWalk, 1.0),
        "MALA": (MALA, 1.0),
        "HMC, 10 steps": (hmc, 10.0),
        "NUTS": (NUTS, np.nan),
        "HPMALA": (HPMALA, hessian),
        "HPMALA, floor 0.1": (partial(HPMALA, floor=0.1), hessian),
        "HPMALA, floor 3": (partial(HPMALA, floor=3.0), hessian),
        "SMMALA, SoftAbs": (partial(SMMALA, metric_fn=softabs), hessian),
        "MMALA, SoftAbs": (partial(MMALA, metric_fn=softabs), 2.0 * size + 1.0),
        "ALSMMALA": (ALSMMALA, 1.0 + 0.05 * hessian * (1 + 1 / alsmmala.RUN_LENGTH)),
        "AMSMMALA": (AMSMMALA, 1.0 + 2 / 7 * hessian),
    }


def truth_row(target: str, name: str, quick: bool) -> list:
    make, calls = truth_samplers(2)[name]
    model, site, mean, variance = TRUTHS[target]
    num_samples = (200 if quick else 10_000) // (10 if name in ("NUTS", "HMC, 10 steps") else 1)
    fields = ("accept_prob", "num_steps", "diverging")
    num_chains = 8 if quick else 64
    num_warmup = 50 if quick else 2_500
    run = run_chains(make(model), (), num_warmup, num_samples, num_chains, fields)
    per_step = float(run.fields["num_steps"].mean()) if np.isnan(calls) else calls
    budget = per_step * num_samples
    draws = np.asarray(run.draws[site], np.float64)
    # squared error of one chain's estimate, in units of the truth
    of_mean = np.mean((draws.mean(axis=1) - mean) ** 2) / variance
    of_variance = np.mean((draws.var(axis=1) / variance - 1) ** 2) / 2
    needed = [budget * error / 0.1**2 for error in (of_mean, of_variance)]
    return [
        *(target, name, float(run.fields["accept_prob"].mean())),
        *(per_step, num_samples, of_mean**0.5, of_variance**0.5),
        *needed,
        run.ess / num_chains / budget * 1e3,
        run.rhat,
    ]


def truths(quick: bool) -> Section:
    """Errors against the truth per evaluation on the banana and the funnel."""
    names = ["NUTS", "HPMALA"] if quick else list(truth_samplers(2))
    rows = [
        REPORT.once((target, name), truth_row, target, name, quick)
        for target in TRUTHS
        for name in names
    ]
    return Section(
        "Errors against the truth",
        "Targets of the HP-MALA paper, in two dimensions; 64 chains, steps and metrics adapted in "
        "a warm-up of 2,500 steps, which does not count. Errors are root mean squares "
        "over chains of the estimate that one chain makes: of the mean of the coordinate that is "
        "hard to explore, in standard deviations, and of its variance, relative and over the "
        "square root of 2. Evaluations count calls of density and gradient, and D more for a "
        "Hessian (a Hessian-vector product each). 'Needed' is the number for an error of 0.1 at "
        "the rate of one over the square root. The effective sample size is the least of the two "
        "coordinates, and means little where the errors are large.",
        [
            *("target", "sampler", "acceptance", "evaluations per draw", "draws per chain"),
            *("error of mean", "error of variance", "needed for mean", "needed for variance"),
            *("ESS per 1000 evaluations", "R-hat"),
        ],
        rows,
    )


# The regressions and the t density of Papamarkou and Ford


def logistic_data() -> tuple:
    """Swiss bank notes: 200 x 4."""
    x, y = swiss()
    return jnp.asarray(standardized(x, ddof=1)), jnp.asarray(y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([4]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def logistic_information(z):
    """Expected information of the logistic regression, and the precision of its prior."""
    x, _ = logistic_data()
    p = jax.nn.sigmoid(x @ z["beta"])
    return (x.T * (p * (1 - p))) @ x + jnp.eye(4) / 100


def poisson_data() -> tuple:
    """Trees of Barro Colorado in 200 cells, on elevation, its square and the gradient."""
    count, elevation, gradient = barro_colorado()
    elevation, gradient = standardized(elevation, ddof=1), standardized(gradient, ddof=1)
    x = np.stack([np.ones(200), elevation, elevation**2, gradient], axis=1)
    return jnp.asarray(x), jnp.asarray(count)


def poisson(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([4]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


def poisson_information(z):
    """Expected information of the Poisson regression, and the precision of its prior."""
    x, _ = poisson_data()
    return (x.T * jnp.exp(x @ z["beta"])) @ x + jnp.eye(4) / 100


T_SIZE, T_FREEDOM = 20, 30.0


def t_density():
    """Multivariate t: 20 dimensions, 30 degrees of freedom, correlations 0.9^|i - j|."""
    i = np.arange(T_SIZE)
    sigma = 0.9 ** np.abs(i[:, None] - i) * (T_FREEDOM - 2) / T_FREEDOM
    root = jnp.asarray(np.linalg.cholesky(sigma))
    numpyro.sample("x", dist.MultivariateStudentT(T_FREEDOM, jnp.zeros(T_SIZE), root))


# model, data, metric, and a and b of the exponential schedule in the authors' scripts
REGRESSIONS: dict[str, tuple[Callable, Callable, metrics.MetricFn, tuple[float, float]]] = {
    "logistic": (logistic, logistic_data, metrics.fisher(logistic_information), (7.0, 0.0)),
    "Poisson": (poisson, poisson_data, metrics.fisher(poisson_information), (7.0, 0.0)),
    "t": (t_density, tuple, metrics.softabs_hessian(1000.0), (50.0, 0.15)),
}


def regression_samplers(target: str, num_steps: int) -> dict[str, Callable]:
    """Samplers of the paper, with preconditioned MALA, NUTS and a random walk as references."""
    plain = {"adapt_mass_matrix": False}
    _, _, metric_fn, cooling = REGRESSIONS[target]
    metric = {"metric_fn": metric_fn}
    paper = schedules.exponential(*cooling, num_steps)
    return {
        "RandomWalk": partial(RandomWalk, dense_mass=True),
        "MALA of the paper": partial(MALA, **plain),
        "MALA": partial(MALA, dense_mass=True),
        "SMMALA": partial(SMMALA, **metric, **plain),
        "AMSMMALA": partial(AMSMMALA, **metric, **plain),
        "ALSMMALA of the paper's schedule": partial(ALSMMALA, **metric, **plain, schedule=paper),
        "ALSMMALA": partial(ALSMMALA, **metric, dense_mass=True),
        "ALSMMALA, its own metric": partial(ALSMMALA, dense_mass=True),
        "NUTS": partial(NUTS, dense_mass=True),
    }


# acceptance, least ESS of 100,000 draws and speed-up in Tables 2 to 4 of the paper
PUBLISHED = {
    ("logistic", "MALA of the paper"): (0.60, 8039, 1.00),
    ("logistic", "SMMALA"): (0.69, 12989, 0.73),
    ("logistic", "AMSMMALA"): (0.25, 8803, 0.87),
    ("logistic", "ALSMMALA of the paper's schedule"): (0.63, 26535, 2.09),
    ("Poisson", "MALA of the paper"): (0.60, 12649, 1.00),
    ("Poisson", "SMMALA"): (0.71, 39522, 1.35),
    ("Poisson", "AMSMMALA"): (0.26, 11530, 0.69),
    ("Poisson", "ALSMMALA of the paper's schedule"): (0.60, 42892, 2.09),
    ("t", "MALA of the paper"): (0.60, 127, 1.00),
    ("t", "SMMALA"): (0.67, 103, 0.04),
    ("t", "AMSMMALA"): (0.16, 7753, 7.80),
    ("t", "ALSMMALA of the paper's schedule"): (0.96, 2465, 2.34),
}
SHOWN = [
    *("RandomWalk", "MALA of the paper", "SMMALA", "AMSMMALA"),
    *("ALSMMALA of the paper's schedule", "NUTS"),
]
LAGS = 100


def num_draws(quick: bool) -> int:
    """Draws of a chain; the paper's with ``--full``."""
    return 200 if quick else 100_000 if REPORT.is_full else 10_000


def regression_truth(target: str, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations: known for the t density, else those of a long run of NUTS."""
    if target == "t":
        return np.zeros(T_SIZE), np.ones(T_SIZE)
    model, data, *_ = REGRESSIONS[target]
    num_warmup = min(num_samples, 1_000)
    kernel = NUTS(model, dense_mass=True)
    return run_chains(kernel, data(), num_warmup, num_samples, 10, seed=1).moments


def regression_unit(target: str, name: str, make: Callable, num_samples: int, truth: tuple) -> dict:
    """A row of the table, and what the picture shows of the first coordinate."""
    model, data, *_ = REGRESSIONS[target]
    num_warmup = num_samples // 10 if "paper" in name or "AM" in name else 1_000
    num_warmup = min(num_warmup, num_samples)
    if name == "NUTS":
        num_samples //= 5
    run = run_chains(make(model), data(), num_warmup, num_samples, 10, ("accept_prob",), repeats=3)
    published = PUBLISHED.get((target, name), ("",) * 3)
    cells = [
        *(target, name, float(run.fields["accept_prob"].mean()), published[0]),
        *(10 * num_samples, *worst_errors(run.moments, truth), run.ess, published[1]),
        *(run.rhat, run.sampling, published[2], run.ess / run.sampling),
    ]
    return {"row": cells, **(course(run) if name in SHOWN else {})}


def course(run: Run) -> dict:
    """Of the first coordinate: the first steps of a chain, its running mean, autocorrelations."""
    (draws,) = run.draws.values()
    first = np.asarray(draws[..., 0], np.float64)
    counts = np.unique(np.geomspace(1, first.shape[1], 200).astype(int))
    return {
        "trace": first[0, :1_000],
        "counts": counts,
        "means": np.cumsum(first[0])[counts - 1] / counts,
        "autocorrelation": np.mean(array_stats.autocorr(first)[:, : LAGS + 1], axis=0),
    }


def regression_picture(target: str, units: dict[str, dict]) -> None:
    """Traces, running means and autocorrelations, as in figures 3 to 5 of the paper."""
    shown = {name: unit for name, unit in units.items() if "trace" in unit}
    layout = [[name, "means", "autocorrelation"] for name in shown]
    figure, axes = plt.subplot_mosaic(layout, figsize=(12, 6), layout="constrained")
    for i, (name, unit) in enumerate(shown.items()):
        color = f"C{i}"
        axes[name].plot(unit["trace"], color=color, linewidth=0.5)
        axes[name].set_title(name, fontsize=8, loc="left")
        axes[name].tick_params(labelsize=7)
        axes["means"].semilogx(unit["counts"], unit["means"], color=color, label=name)
        axes["autocorrelation"].plot(unit["autocorrelation"], color=color)
    axes["means"].set(title="running mean", xlabel="draws")
    axes["means"].legend(fontsize=7)
    axes["autocorrelation"].set(title="autocorrelation, mean of ten chains", xlabel="lag")
    REPORT.picture(figure, f"second_order_{target}.png")


def regressions(quick: bool) -> Section:
    """The regressions and the t density of Papamarkou and Ford."""
    rows, checks = [], []
    for target in ["logistic"] if quick else REGRESSIONS:
        num = num_draws(quick)
        samplers = regression_samplers(target, num + num // 10)
        names = ["MALA of the paper", "ALSMMALA"] if quick else list(samplers)
        truth = REPORT.once((target, "truth"), regression_truth, target, 2 * num)
        units = {
            name: REPORT.once(
                (target, name), regression_unit, target, name, samplers[name], num, truth
            )
            for name in names
        }
        regression_picture(target, units)
        found = {name: unit["row"] for name, unit in units.items()}
        base = found["MALA of the paper"][-1]
        rows += [[*row[:-2], row[-1], row[-1] / base, row[-2]] for row in found.values()]
        if target != "t":
            best = max(row[-1] for name, row in found.items() if name.startswith("ALSMMALA"))
            checks.append((f"MALA of the paper / ALSMMALA, {target}", base / best, 1 / 2.09))
    return Section(
        "Regressions and the t density",
        "Logistic regression on the Swiss bank notes, Poisson regression on the trees of Barro "
        "Colorado (four coefficients each, prior N(0, 100 I)) and a t density in 20 dimensions. "
        f"Ten vectorized chains of {num_draws(quick):,} draws (NUTS a fifth; `--full` takes the "
        "paper's 100,000). 'MALA of the paper' has no "
        "preconditioner; SMMALA, AMSMMALA and 'ALSMMALA of the paper's schedule' have none but "
        "their metric (expected Fisher information plus the prior's precision; SoftAbs with alpha "
        "= 1000 for the t density); the schedule is that of the authors' scripts, exp(-7 i / n), "
        "and 0.85 exp(-50 i / n) + 0.15 for the t density. The others adapt a dense one; "
        "'its own metric' is the default, the absolute Hessian with a floor of 1 in whitened "
        "coordinates. All are exact: what adapts is frozen after the warm-up. Errors are the "
        "largest of a coordinate, all draws together: of the mean, in standard deviations, and of "
        "the standard deviation, relative; the truth is known for the t density, and that of "
        f"{20 * num_draws(quick):,} draws of NUTS with another seed for the regressions. Least "
        "bulk ESS of the coordinates; seconds of sampling without warm-up and compilation, the "
        "least of three runs. The paper's columns are its Tables 2 to 4, of 100,000 draws (SMMALA "
        "on the t density: with reverse mode). The pictures "
        "have the first 1,000 steps of a chain, its running mean and autocorrelations, all of the "
        "first coordinate (figures 3, 4 and 5 of the paper).\n\n"
        + "\n\n".join(f"![{target}](second_order_{target}.png)" for target in REGRESSIONS),
        [
            *("target", "sampler", "acceptance", "paper", "draws", "error of mean", "error of sd"),
            *("ESS", "paper's", "R-hat", "seconds", "ESS/s", "over MALA of the paper", "paper's "),
        ],
        rows,
        checks,
    )


REPORT = Report(
    "second_order",
    "Second-order samplers: cost and yield",
    by_name(cost, growth, cooling, truths, regressions),
)

if __name__ == "__main__":
    REPORT.main()
