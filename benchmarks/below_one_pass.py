"""Exact draws for less than one pass over the data: ``python benchmarks/below_one_pass.py``.

Each section is a function that measures and returns a table. The sections are kept in
``docs/results/below_one_pass.json``, from which ``docs/results/below_one_pass.md`` is written.
"""

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

from benchmarks.harness.diagnostics import least_ess
from benchmarks.harness.timing import on_one_core, timed

if __name__ == "__main__":
    on_one_core()  # before blackjax is imported, which makes jax start its threads

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMCECS, NUTS, init_to_value

from benchmarks.harness import data as sources
from benchmarks.harness import models
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import worst_errors
from blackjax_ext import potentials
from numpyro_fwd import AMAGOLD, RandomWalk
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling.predictors import linear_predictor_of

BATCH, STEPS = 30, 5
SUBSAMPLED = "subsampled"
DEGREES = 4.0
GRADIENT = 3  # evaluations that a gradient costs
CHUNK = 200_000
DOUBLE = 1_000_000  # rows from which NUTS runs in double precision


class Problem(NamedTuple):
    """A regression.

    model
        NumPyro model of the data with one latent site, `slope`.
    data
        Covariates (N, D) and responses (N,).
    """

    model: Callable
    data: tuple


logistic_model = partial(models.minibatch_logistic, batch=BATCH)


def robust_model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.StudentT(DEGREES, x[rows] @ slope, 1.0), obs=y[rows])


def vague_model(x, y):
    """The logistic regression with a prior that does not hold separable data back."""
    slope = numpyro.sample("slope", dist.Normal(0, 100).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def simulated(model: Callable, num_rows: int, size: int, seed: int = 0) -> Problem:
    """Covariates of scales from 0.3 to 3 whose predictor has a variance of 5, in chunks."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.3, 3.0, size).astype(np.float32)
    slope = (rng.normal(size=size) * 0.5 * (20 / size) ** 0.5 / scales).astype(np.float32)
    x, y = np.empty((num_rows, size), np.float32), np.empty(num_rows, np.float32)
    for first in range(0, num_rows, CHUNK):
        part = slice(first, min(first + CHUNK, num_rows))
        x[part] = rng.standard_normal((part.stop - first, size), dtype=np.float32) * scales
        eta = x[part] @ slope
        if model is robust_model:
            y[part] = eta + rng.standard_t(DEGREES, eta.shape)
        else:
            y[part] = rng.random(eta.shape) < 1 / (1 + np.exp(-eta))
    return Problem(model, (jnp.asarray(x), jnp.asarray(y)))


def california() -> Problem:
    """Block groups of California: log house value on standardized covariates, and an intercept.

    The unit of the responses is 0.22, the scale of a t fitted to the residuals of least squares.
    """
    raw, price = sources.california()
    x, value = np.log1p(np.abs(raw[:, 2:])), np.log(price)
    x = sources.standardized(np.column_stack([raw[:, :2], x]))
    x = np.column_stack([np.ones(len(x)), x])
    y = (value - value.mean()) / 0.22
    return Problem(robust_model, (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)))


class Measured(NamedTuple):
    """What a sampler did.

    draws
        Shape (n, D).
    seconds, setup
        Of the draws, and of everything before them: compilation, search for the mode, warm-up.
    acceptance
        Mean acceptance probability.
    rows
        Mean number of rows read by the acceptance test.
    passes
        Rows read per draw over N, gradients counting three times.
    """

    draws: np.ndarray
    seconds: float
    setup: float
    acceptance: float
    rows: float
    passes: float

    @property
    def ess(self) -> float:
        """Least effective sample size of a coordinate."""
        return least_ess(self.draws[None])


def run(kernel: Any, problem: Problem, num_warmup: int, num_samples: int, facts: Callable):
    """Draws, what `facts` reads from each state, seconds of the draws and of the rest."""

    def steps(length):
        def scan(state, data):
            # not in the carry, which a program copies when it begins
            def step(state, _):
                state = kernel.sample(state, data, {})
                return state, (state.z["slope"], *facts(state))

            return jax.lax.scan(step, state, length=length)

        return jax.jit(scan)

    began = time.process_time()
    state = kernel.init(jax.random.key(1), num_warmup, None, problem.data, {})
    if num_warmup:
        state, _ = jax.block_until_ready(steps(num_warmup)(state, problem.data))
    program = steps(num_samples).lower(state, problem.data).compile()
    setup = time.process_time() - began
    (_, found), seconds = timed(program, state, problem.data, clock=time.process_time)
    return [np.asarray(each) for each in found], seconds, setup


def of_amagold(problem: Problem, num_samples: int, acceptance: Any = SUBSAMPLED) -> Measured:
    """AMAGOLD with one of its acceptance tests."""
    kernel = AMAGOLD(problem.model, acceptance=acceptance, num_integration_steps=STEPS)
    is_subsampled = acceptance == SUBSAMPLED
    num_rows = len(problem.data[1])

    def facts(state):
        rows = state.inner.num_rows if is_subsampled else jnp.array(num_rows)
        return state.accept_prob, rows

    (draws, rates, rows), seconds, setup = run(kernel, problem, 100, num_samples, facts)
    # a row of a gradient is read once, and once more at the anchor; one of the test at three places
    per_row = GRADIENT if is_subsampled else 1
    reads = 2 * GRADIENT * STEPS * BATCH * (not is_subsampled) + per_row * rows.mean()
    rates, rows = float(rates.mean()), float(rows.mean())
    return Measured(draws, seconds, setup, rates, rows, reads / num_rows)


def as_double(leaf: Any) -> Any:
    """A floating array in double precision."""
    is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.asarray(np.asarray(leaf), jnp.float64) if is_floating else leaf


def of_nuts(problem: Problem, num_samples: int, expansion: Any) -> Measured:
    """NUTS that is given the mode to start from and the curvature there as its metric."""
    if problem.data[0].shape[0] >= DOUBLE and not jax.config.jax_enable_x64:
        # in single precision the rounding of the energy exceeds its changes, and NUTS stands still
        with jax.enable_x64(True):
            data = tuple(np.asarray(each, np.float64) for each in problem.data)
            wide = Problem(problem.model, tuple(jnp.asarray(each) for each in data))
            return of_nuts(wide, num_samples, jax.tree.map(as_double, expansion))
    mode = {"slope": expansion.position["slope"]}
    is_tuned = problem.data[0].shape[0] < DOUBLE
    kernel = NUTS(
        FullView(problem.model),
        # a step for whitened coordinates where there is no time for a warm-up
        step_size=1.0 if is_tuned else 0.7,
        adapt_step_size=is_tuned,
        inverse_mass_matrix=expansion.metric.inverse(),
        adapt_mass_matrix=False,
        dense_mass=True,
        init_strategy=init_to_value(values=mode),
    )

    def facts(state):
        return state.accept_prob, state.num_steps

    num_warmup = min(100, num_samples) if is_tuned else 2
    (draws, rates, steps), seconds, setup = run(kernel, problem, num_warmup, num_samples, facts)
    passes = GRADIENT * float(steps.mean())
    return Measured(draws, seconds, setup, float(rates.mean()), 0.0, passes)


def of_hmcecs(
    problem: Problem, num_samples: int, expansion: Any, batch: int = 100, num_warmup: int = 100
) -> Measured:
    """HMCECS around NUTS, with the Taylor proxy of second order at the mode.

    It is given the metric, and finds one itself in a warm-up of more than 100 steps.
    """
    mode = {"slope": expansion.position["slope"]}
    adapts = num_warmup > 100
    inner = NUTS(
        partial(problem.model, batch=batch),
        inverse_mass_matrix=None if adapts else expansion.metric.inverse(),
        adapt_mass_matrix=adapts,
        dense_mass=True,
        init_strategy=init_to_value(values=mode),
    )
    kernel = HMCECS(inner, num_blocks=10, proxy=HMCECS.taylor_proxy(mode, degree=2))

    def facts(state):
        return state.hmc_state.accept_prob, state.hmc_state.num_steps

    (draws, rates, steps), seconds, setup = run(kernel, problem, num_warmup, num_samples, facts)
    passes = GRADIENT * float(steps.mean()) * batch / len(problem.data[1])
    return Measured(draws, seconds, setup, float(rates.mean()), 0.0, passes)


def of_random_walk(problem: Problem, num_samples: int, expansion: Any) -> Measured:
    """A random walk preconditioned by the curvature at the mode."""
    size = len(expansion.frame.root)
    kernel = RandomWalk(
        FullView(problem.model),
        step_size=2.38 / size**0.5,
        inverse_mass_matrix=expansion.metric.inverse(),
        adapt_step_size=False,
        adapt_mass_matrix=False,
        warm_start=False,
        init_strategy=init_to_value(values={"slope": expansion.position["slope"]}),
    )

    def facts(state):
        return (state.accept_prob,)

    (draws, rates), seconds, setup = run(kernel, problem, 0, num_samples, facts)
    return Measured(draws, seconds, setup, float(rates.mean()), 0.0, 1.0)


def of_laplace(problem: Problem, num_samples: int, expansion: Any) -> Measured:
    """Draws of the normal at the mode, resampled by importance; `acceptance` is ESS per draw."""
    rows = RowModel.of(FullView(problem.model), problem.data, {})
    posterior = linear_predictor_of(rows, expansion.position)
    noise = jax.random.normal(jax.random.key(2), (num_samples, len(expansion.frame.root)))
    a = expansion.position["slope"]

    @jax.jit
    def energies(posterior, noise):
        def change(z):
            x = {"slope": a + expansion.metric.inverse_sqrt_times(z)}
            pair = potentials.energy(posterior, x)
            return (pair.high - origin.high) + (pair.low - origin.low)

        origin = potentials.energy(posterior, expansion.position)
        return jax.lax.map(change, noise)

    began = time.process_time()
    program = energies.lower(posterior, noise).compile()
    setup = time.process_time() - began
    began = time.process_time()
    log_weights = 0.5 * np.sum(np.square(noise), axis=1) - np.asarray(program(posterior, noise))
    seconds = time.process_time() - began
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    draws = np.asarray(a + expansion.metric.inverse_sqrt_times(noise))
    chosen = np.random.default_rng(3).choice(num_samples, num_samples, p=weights)
    ess = 1 / np.sum(weights**2)
    return Measured(draws[chosen], seconds, setup, ess / num_samples, 0.0, 1.0)


def expansion_of(problem: Problem) -> tuple[Any, float]:
    """The expansion at the mode, and the seconds that it took, with compilation."""

    def expand() -> Any:
        start = {"slope": jnp.zeros(problem.data[0].shape[1])}
        rows = RowModel.of(FullView(problem.model), problem.data, {})
        posterior = linear_predictor_of(rows, start)
        return potentials.expand(posterior, start)

    return timed(expand, clock=time.process_time)


COLUMNS = [
    *("N", "D", "sampler", "acceptance", "rows per test", "ESS per draw"),
    *("passes per ESS", "ESS/s", "setup, s"),
]


def line(problem: Problem, name: str, run: Callable[[], Measured]) -> list:
    """A row of a table from what `run` measures."""
    num_rows, size = problem.data[0].shape
    found = run()
    ess = found.ess
    per_draw = ess / len(found.draws)
    return [
        *(num_rows, size, name, found.acceptance, found.rows, per_draw),
        *(found.passes / per_draw, ess / found.seconds, found.setup),
    ]


def rate(rows: list, name: str, num_rows: int, size: int) -> float:
    """ESS/s in a table."""
    found = [row[7] for row in rows if row[:3] == [num_rows, size, name]]
    return found[0] if found else np.nan


OURS, WHOLE = "AMAGOLD, subsampled", "AMAGOLD, full"
NUTS_NAME, WALK = "NUTS", "random walk"
# approximate: with the rows of a minibatch of 100 and the metric given, and as one finds it
ECS, ECS_FOUND = "HMCECS, 100 rows, metric given", "HMCECS, 1,000 rows, adapted"


def compared(problem: Problem, quick: bool, names: tuple[str, ...]) -> list:
    """Lines of our sampler and of those named."""
    num_rows, size = problem.data[0].shape
    expansion = expansion_of(problem)[0].without_data()
    few = 30 if quick else int(np.clip(2e8 / (num_rows * size), 30, 1000))
    runs = {
        OURS: lambda: of_amagold(problem, 100 if quick else 5000),
        WHOLE: lambda: of_amagold(problem, few, "full"),
        NUTS_NAME: lambda: of_nuts(problem, few, expansion),
        WALK: lambda: of_random_walk(problem, 10 * few, expansion),
        ECS: lambda: of_hmcecs(problem, 100 if quick else 1000, expansion),
        ECS_FOUND: lambda: of_hmcecs(problem, 1000, expansion, 1000, 1000),
    }
    return [
        REPORT.once((name, num_rows, size), line, problem, name, runs[name])
        for name in (OURS, *names)
    ]


def ratios(rows: list) -> list:
    """What was aimed at, as ratios that should be at most one."""
    aims = [
        (100_000, NUTS_NAME, 100),
        (100_000, ECS, 20),
        (100_000, ECS_FOUND, 20),
        (1_000_000, NUTS_NAME, 500),
    ]
    return [
        (
            f"{aim} x {name} / {OURS}, ESS/s at N = {num_rows:,}, D = 20",
            aim * rate(rows, name, num_rows, 20) / rate(rows, OURS, num_rows, 20),
            1.0,
        )
        for num_rows, name, aim in aims
        if rate(rows, name, num_rows, 20) > 0
    ]


TEXT = (
    f"T = {STEPS} steps with {BATCH} rows each; the step size is adapted in 100 iterations. NUTS "
    "and the random walk are given the mode and the curvature there. HMCECS is approximate; it is "
    "given the mode, and the curvature or 1,000 steps of warm-up to find a dense metric. Passes "
    "count the rows of gradients three times, and those of our expansions at the anchor too. "
    "Seconds are CPU time on one core, because the machine had other work; those of draws are "
    "without compilation and warm-up, which the last column has. "
)


def logistic(quick: bool) -> Section:
    """Logistic regression with 100,000 rows: effective draws per second and per pass."""
    num_rows, size = (1000, 5) if quick else (100_000, 20)
    names = (NUTS_NAME,) if quick else (NUTS_NAME, ECS, ECS_FOUND, WHOLE, WALK)
    rows = compared(simulated(logistic_model, num_rows, size), quick, names)
    return Section("Logistic regression", TEXT, COLUMNS, rows, ratios(rows))


def million(quick: bool) -> Section:
    """Logistic regression with a million rows."""
    num_rows, size = (1000, 5) if quick else (1_000_000, 20)
    rows = compared(simulated(logistic_model, num_rows, size), quick, (NUTS_NAME, WALK))
    text = TEXT + (
        "NUTS is in double precision here: in single precision the rounding of the energy exceeds "
        "its changes, and NUTS accepts nothing. It is given the step size too, 0.7 in whitened "
        "coordinates, and has 30 draws, so its ESS is known to a factor of two."
    )
    return Section("A million rows", text, COLUMNS, rows, ratios(rows))


def robust(quick: bool) -> Section:
    """Robust regression with a t of four degrees of freedom."""
    num_rows, size = (1000, 5) if quick else (100_000, 20)
    rows = compared(simulated(robust_model, num_rows, size), quick, (NUTS_NAME, WALK))
    return Section("Robust regression", TEXT, COLUMNS, rows)


def dimensions(quick: bool) -> Section:
    """A hundred coefficients."""
    sizes = {100_000: (NUTS_NAME,), 1_000_000: ()}
    rows = []
    for num_rows, names in {1000: ()}.items() if quick else sizes.items():
        rows += compared(simulated(logistic_model, num_rows, 10 if quick else 100), quick, names)
    return Section("A hundred coefficients", TEXT, COLUMNS, rows)


def errors(draws: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Largest error of a mean, in standard deviations, and of a standard deviation, relative."""
    return worst_errors(*((each.mean(axis=0), each.std(axis=0)) for each in (draws, reference)))


def kept(name: str, run: Callable, problem: Problem, num_samples: int, *rest: Any) -> Measured:
    """What a sampler did, now or in an interrupted run."""
    return Measured(*REPORT.once((name, num_samples), run, problem, num_samples, *rest))


def accuracy(quick: bool) -> Section:
    """Posterior mean and standard deviation against long runs of NUTS."""
    rows = []
    problem = simulated(robust_model, 1000, 5) if quick else california()
    name = "simulated" if quick else "California"
    expansion, _ = expansion_of(problem)
    length = 100 if quick else 1500
    nuts = kept("NUTS", of_nuts, problem, length, expansion)
    ours = kept(OURS, of_amagold, problem, length if quick else 10_000)
    full = kept(WHOLE, of_amagold, problem, length, "full")
    walk = kept(WALK, of_random_walk, problem, 10 * length, expansion)
    laplace = kept("Laplace", of_laplace, problem, length // 4, expansion)
    normal = np.random.default_rng(4).multivariate_normal(
        np.asarray(expansion.position["slope"]), np.asarray(expansion.metric.inverse()), 100_000
    )
    half = len(nuts.draws) // 2
    found = {
        OURS: ours,
        WHOLE: full,
        "Laplace, resampled by importance": laplace,
        "NUTS": nuts,
        WALK: walk,
    }
    for sampler, each in found.items():
        ess = each.acceptance * len(each.draws) if "Laplace" in sampler else each.ess
        against = nuts.draws[:half] if sampler == "NUTS" else nuts.draws
        draws = nuts.draws[half:] if sampler == "NUTS" else each.draws
        rows.append(
            [
                name,
                sampler,
                *map(float, (each.acceptance, ess / each.seconds, each.rows)),
                *errors(draws, against),
                float(ess),
            ]
        )
    rows.append([name, "Laplace", 1.0, np.inf, 0.0, *errors(normal, nuts.draws), np.inf])
    return Section(
        "Accuracy",
        "The reference is NUTS; its own line compares the halves of its run. The errors of exact "
        "samplers are those of a finite run: about 2.5 over the root of the lesser ESS, for the "
        "largest of ten. Resampled by importance, the draws of the Laplace approximation are exact "
        "for many of them, each costs a pass, and acceptance stands for their ESS per draw. "
        f"California: {20_640:,} rows, 9 coefficients, a t of {DEGREES:.0f} degrees of freedom.",
        [
            "posterior",
            "sampler",
            "acceptance",
            "ESS/s",
            "rows per test",
            "mean off, sd",
            "sd off",
            "ESS",
        ],
        rows,
    )


def per_step(problem: Problem, num_steps: int) -> tuple[float, Measured, float]:
    """Seconds of a step, with what it did and the setup."""
    found = of_amagold(problem, num_steps)
    return found.seconds / num_steps, found, found.setup


def cost_row(num_rows: int, quick: bool) -> list:
    """A row of the table of `cost`."""
    problem = simulated(logistic_model, num_rows, 5 if quick else 20)
    seconds, found, setup = per_step(problem, 100 if quick else 10_000)
    jax.clear_caches()  # programs hold the data that they were made for
    return [num_rows, 1e6 * seconds, found.rows, found.acceptance, setup]


def cost(quick: bool) -> Section:
    """Time of a step over the number of rows."""
    sizes = (1000, 4000) if quick else (10_000, 100_000, 1_000_000, 10_000_000)
    rows = [REPORT.once((num_rows,), cost_row, num_rows, quick) for num_rows in sizes]
    times = {num_rows: microseconds for num_rows, microseconds, *_ in rows}
    least, most = min(times), max(times)
    return Section(
        "A step does not grow with N",
        f"Logistic regression, D = {5 if quick else 20}. The setup, which does grow, holds the "
        "search for the mode, all passes over the rows, the alias table, compilation and the "
        "warm-up.",
        ["N", "µs per step", "rows per test", "acceptance", "setup, s"],
        rows,
        [(f"step at N = {most:,} / at N = {least:,}", times[most] / times[least], 1.5)],
    )


def size_row(model: Callable, size: int, num_rows: int, quick: bool) -> list:
    """A row of the table of `sizes`."""
    problem = simulated(model, num_rows, size)
    ours = of_amagold(problem, 100 if quick else 5000)
    # as many draws as a thousand passes over a hundred thousand rows pay for
    few = int(np.clip(2e9 / (num_rows * size), 20, 1000))
    off: list = ["", ""]
    if few >= 100 and not quick:
        off = list(errors(ours.draws, of_amagold(problem, few, "full").draws))
    per_draw = ours.ess / len(ours.draws)
    read = ours.rows / per_draw
    del problem
    jax.clear_caches()  # programs hold the data that they were made for
    gc.collect()
    return [
        *(name_of(model), size, num_rows, ours.acceptance, ours.rows, per_draw, read),
        *(ours.ess / ours.seconds, *off, few if off[0] else "", ours.setup),
    ]


def name_of(model: Callable) -> str:
    return "logistic" if model is logistic_model else "robust"


def sizes(quick: bool) -> Section:
    """What a draw takes as rows and coefficients grow, and how far it is from the full test."""
    cases = [
        (model, size, num_rows)
        for model in (logistic_model, robust_model)
        for size in (20, 100)
        for num_rows in (10_000, 100_000, 1_000_000, 10_000_000)
        if num_rows * size <= 2e8
    ]
    rows = [
        REPORT.once((name_of(model), size, num_rows), size_row, model, size, num_rows, quick)
        for model, size, num_rows in ([(robust_model, 3, 1000)] if quick else cases)
    ]
    return Section(
        "Rows and coefficients",
        "Logistic regression, and a t of four degrees of freedom. Rows per effective draw are "
        "those of the test; gradients read none. The last distances are those to a run of the full "
        "test with the number of draws beside them, whose own error is about 2.5 over the root of "
        "its effective draws for the largest of many; none where it would take too long.",
        [
            *("regression", "D", "N", "acceptance", "rows per test", "ESS per draw"),
            *("rows per ESS", "ESS/s", "mean off, sd", "sd off", "draws of the full test"),
            "setup, s",
        ],
        rows,
    )


def failing(quick: bool) -> Section:
    """Where it fails, and how the acceptance and the rows tell."""
    rows = []
    sizes = ((500, 5),) if quick else ((1_000, 20), (10_000, 100))
    problems = {
        f"logistic, N = {num_rows:,}, D = {size}": simulated(logistic_model, num_rows, size)
        for num_rows, size in sizes
    }
    x, _ = simulated(logistic_model, 500 if quick else 2000, 5).data
    separable = Problem(vague_model, (x, jnp.asarray(x[:, 0] > 0, jnp.float32)))
    problems["separable, prior N(0, 100²)"] = separable
    for name, problem in problems.items():
        tests = ((OURS, SUBSAMPLED), (WHOLE, "full"))
        for sampler, acceptance in tests if problem is separable else tests[:1]:
            found = of_amagold(problem, 50 if quick else 1000, acceptance)
            per_draw = found.ess / len(found.draws)
            share = found.rows / len(problem.data[1])
            rows.append(
                [name, sampler, found.acceptance, share, per_draw, found.ess / found.seconds]
            )
            print(rows[-1], flush=True)
    return Section(
        "Where it fails",
        "Rows per test grow as D^3 / sqrt(N), and where they pass N, all rows are read: exact "
        "still, and no gain. The factorised test also accepts less than the full one.",
        ["posterior", "sampler", "acceptance", "rows per test / N", "ESS per draw", "ESS/s"],
        rows,
    )


REPORT = Report(
    "below_one_pass",
    "Exact draws below one pass over the data",
    by_name(logistic, million, cost, sizes, failing, dimensions, accuracy, robust),
    long=("sizes",),
)

if __name__ == "__main__":
    REPORT.main()
