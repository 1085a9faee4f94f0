"""Minibatch samplers: what they yield and where they are wrong: ``python benchmarks/amagold.py``.

Each section is a function that measures and returns a table. The sections are kept in
``docs/results/amagold.json``, from which ``docs/results/amagold.md`` is written.
``--full`` takes all 60,000 images of MNIST and the 5 million draws of the paper.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

from benchmarks.runs import on_one_core, run_chains

# a network needs all cores
if __name__ == "__main__" and {"network", "memory"}.isdisjoint(sys.argv):
    on_one_core()  # before blackjax is imported, which makes jax start its threads

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from blackjax.adaptation.step_size import dual_averaging_adaptation
from flax import linen
from numpyro.contrib.ecs_proxies import taylor_proxy
from numpyro.contrib.module import random_flax_module
from numpyro.infer import HMCECS, NUTS, Predictive, init_to_uniform

import blackjax_ext
from benchmarks.data import images, standardized, uci
from benchmarks.report import Report, Section
from blackjax_ext import potentials
from numpyro_fwd import AMAGOLD, L2MC, SGHMC, RandomWalk
from numpyro_fwd.bridge.plates import FullView

SIZE, BATCH = 20, 1000
SHORT_STEPS, STEPS = 4, 8  # with full gradients and with those of minibatches
SINGLE = 1_000_000  # rows that are too many for a plain sum in single precision
FORWARD_AND_BACK = 3  # evaluations that a gradient costs
ESTIMATES = {None: 1, "first_order": 2, "second_order": 3}  # gradients in one estimate


# Logistic regression with many rows


def simulate(num_rows: int) -> tuple:
    """Covariates of scales from 0.3 to 3 and binary responses, in single precision."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.3, 3.0, SIZE)
    x = rng.normal(size=(num_rows, SIZE)) * scales
    slope = rng.normal(size=SIZE) * 0.5 / scales
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ slope))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def plain(x, y):
    """The model as one writes it for NUTS: rows in a plate are gathered, here they are read."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


class Sampler(NamedTuple):
    """A kernel, the passes of a draw given N, mean leapfrog steps and mean rows of its test.

    `sums_plainly` tells that it sums the rows in one float, which a million of them overtax in
    single precision.
    """

    make: Callable[[], Any]
    passes: Callable[[int, float, float], float]
    sums_plainly: bool = False


def amagold(control_variate, acceptance="full") -> Sampler:
    reads = STEPS * BATCH * FORWARD_AND_BACK * ESTIMATES[control_variate]
    # an approximate test reads a row at both ends, with an expansion at the anchor for each
    per_row = 1 if acceptance == "full" else 8
    return Sampler(
        lambda: AMAGOLD(
            model,
            control_variate=control_variate,
            num_integration_steps=STEPS,
            acceptance=acceptance,
            dense_mass=True,
        ),
        lambda num_rows, _, tested: (reads + per_row * tested) / num_rows,
    )


def by_steps(make: Callable, per_step: Callable[[int], float] | None = None) -> Sampler:
    """A sampler that costs a gradient of `per_step` passes, one by default, per leapfrog step."""
    share = per_step or (lambda _: 1.0)
    return Sampler(
        make, lambda n, num_steps, _: FORWARD_AND_BACK * num_steps * share(n), per_step is None
    )


def full_batch(friction: float) -> Sampler:
    return Sampler(
        lambda: L2MC(model, num_integration_steps=SHORT_STEPS, friction=friction, dense_mass=True),
        lambda _, num_steps, tested: FORWARD_AND_BACK * num_steps + 1.0,
    )


def ecs(mode) -> Sampler:
    """HMCECS with its Taylor proxy at the mode."""
    proxy = taylor_proxy({"slope": jnp.asarray(mode)}, degree=2)
    inner = NUTS(model, dense_mass=True)
    return by_steps(lambda: HMCECS(inner, num_blocks=10, proxy=proxy), lambda n: BATCH / n)


FULL_GRADIENTS = {"L2MC": 0.25, "HMC (L2MC without friction)": 0.0}  # and their friction
SAMPLERS = {
    "NUTS, dense": by_steps(lambda: NUTS(plain, dense_mass=True)),
    "AMAGOLD, second order": amagold("second_order"),
    "AMAGOLD, first order": amagold("first_order"),
    "AMAGOLD, none": amagold(None),
    "AMAGOLD, second order, sequential test": amagold("second_order", "sequential"),
    "AMAGOLD, second order, Barker test": amagold("second_order", "barker"),
    "AMAGOLD, subsampled test": amagold("second_order", "subsampled"),
    **{name: full_batch(friction) for name, friction in FULL_GRADIENTS.items()},
    "RandomWalk": Sampler(lambda: RandomWalk(plain, dense_mass=True), lambda *_: 1.0, True),
}


def facts(state: Any) -> tuple:
    """Draw, acceptance probability, leapfrog steps and rows of the test of a state."""
    inner = getattr(state, "hmc_state", state)
    rows = getattr(getattr(state, "inner", None), "num_rows", 0)
    return state.z["slope"], inner.accept_prob, inner.num_steps, rows


def timed(function: Callable, *arguments: Any) -> tuple[Any, float]:
    """Result, and seconds of processor time on one core, which other processes do not change."""
    start = time.process_time()
    return jax.block_until_ready(function(*arguments)), time.process_time() - start


def least_ess(values: np.ndarray) -> float:
    """Least effective sample size of a coordinate of one chain, (draws, D)."""
    return float(az.ess(az.convert_to_dataset({"x": values[None].astype(float)}))["x"].min())


def measure(sampler: Sampler, data: tuple, num_warmup: int, num_samples: int) -> dict:
    """Draws after a warm-up, and what they cost."""
    kernel = sampler.make()
    start = time.process_time()
    state = kernel.init(jax.random.key(1), num_warmup, None, data, {})

    def steps(length):
        def step(data, state, _):
            state = kernel.sample(state, data, {})
            return state, facts(state)

        run = jax.jit(lambda data, state: jax.lax.scan(partial(step, data), state, length=length))
        return run.lower(data, state).compile()

    warm, draw = steps(num_warmup), steps(num_samples)
    state, _ = jax.block_until_ready(warm(data, state))
    before = time.process_time() - start
    (_, found), seconds = timed(draw, data, state)
    draws, rates, num_steps, rows = (np.asarray(leaf) for leaf in found)
    ess = least_ess(draws)
    squares = least_ess((draws - draws.mean(axis=0)) ** 2)
    cost = sampler.passes(len(data[1]), float(num_steps.mean()), float(rows.mean()))
    return {
        "draws": draws,
        "row": [
            *(float(rates.mean()), num_samples, ess / num_samples, ess / seconds),
            *(squares / seconds, cost * num_samples / ess, float(rows.mean()), before),
        ],
    }


def logistic(num_rows: int, num_samples: int, num_slow: int, names: list[str]) -> Section:
    """Draws of all samplers on one data set, compared with those of the first."""
    data, rows, found = simulate(num_rows), [], {}
    for name in names:
        num = num_slow if name in ("NUTS, dense", *FULL_GRADIENTS) else num_samples
        if name == "HMCECS, Taylor proxy":
            sampler = ecs(found["AMAGOLD, second order"]["draws"].mean(axis=0))
        else:
            sampler = SAMPLERS[name]
        with jax.enable_x64(sampler.sums_plainly and num_rows >= SINGLE):
            given = tuple(jnp.asarray(leaf, float) for leaf in data)
            key = (name, num_rows, num)
            found[name] = REPORT.once(key, measure, sampler, given, min(200, 2 * num), num)
        draws = found[name]["draws"].astype(float)
        mean, sd = (f(found[names[0]]["draws"].astype(float), axis=0) for f in (np.mean, np.std))
        off = np.abs(draws.mean(axis=0) - mean) / sd
        wide = np.abs(draws.std(axis=0) / sd - 1)
        rows.append([name, *found[name]["row"], off.max(), off.mean(), wide.max(), wide.mean()])
        print(f"  {name}: {rows[-1][1:7]}", flush=True)
    is_large = num_rows >= SINGLE
    of = {row[0]: row for row in rows}
    best, checks = of["AMAGOLD, second order"], []
    if nuts := of.get("NUTS, dense"):
        checks += [
            ("ESS/s: NUTS / AMAGOLD", nuts[4] / best[4], 1 / 20),
            ("passes: AMAGOLD / NUTS", best[6] / nuts[6], 1 / 40),
        ]
    if nuts and num_slow >= 1000:  # with fewer draws NUTS itself is off by as much
        checks += [
            ("mean of AMAGOLD off, in sd, mean over coordinates", best[10], 0.05),
            ("sd of AMAGOLD off, mean over coordinates", best[12], 0.03),
        ]
    if "HMCECS, Taylor proxy" in of:
        ecs_rate = of["HMCECS, Taylor proxy"][4]
        checks.append(("ESS/s: HMCECS / AMAGOLD", ecs_rate / best[4], 1 / 3))
        if few := of.get("AMAGOLD, subsampled test"):
            checks.append(("ESS/s: HMCECS / AMAGOLD, subsampled test", ecs_rate / few[4], 1 / 3))
    return Section(
        f"Logistic regression with {num_rows:,} rows",
        f"{SIZE} coefficients, prior N(0, 1), minibatches of {BATCH} rows, T = {STEPS}, "
        f"or {SHORT_STEPS} with full gradients; one chain, "
        "a warm-up of 200 steps, or two for each draw if that is less. A pass is an evaluation of "
        "the likelihood of all rows; a gradient counts three, the control variates two or three "
        "gradients. Seconds are of the "
        "processor on one core, since the machine was shared; 'before' is compilation, search for "
        f"a start and warm-up. Distances are those to {names[0]}, whose {num_slow:,} draws have "
        f"errors of their own of about {(num_slow / 2) ** -0.5:.2f} sd. Long "
        "trajectories overshoot: means have an ESS above one per draw, squares do not. NUTS and "
        "the random walk have "
        "the model without a plate, where rows are read and not gathered"
        + (", in double precision, without which the rounding of the energy decides" * is_large)
        + ". HMCECS is approximate, and was given the mode. The tests called sequential and Barker "
        "are approximate.",
        [
            *("sampler", "acceptance", "draws", "ESS per draw", "ESS/s", "of squares, ESS/s"),
            *(
                "passes per ESS",
                "rows per test",
                "seconds before",
                "mean off (max)",
                "(mean)",
                "sd off (max)",
            ),
            "(mean)",
        ],
        rows,
        checks,
    )


def rows_1e5(quick: bool) -> Section:
    """Logistic regression with 100,000 rows."""
    names = [*SAMPLERS, "HMCECS, Taylor proxy"]
    if quick:
        return logistic(2000, 60, 60, ["NUTS, dense", "AMAGOLD, second order"])
    return logistic(100_000, 2000, 2000, names)


def rows_1e6(quick: bool) -> Section:
    """Logistic regression with 1,000,000 rows."""
    names = [*SAMPLERS, "HMCECS, Taylor proxy"]
    if quick:
        return logistic(2000, 60, 60, ["NUTS, dense", "AMAGOLD, second order"])
    return logistic(1_000_000, 1000, 400, names)


def few_rows(quick: bool) -> Section:
    """A million rows: the exact test that reads them all, that which reads a few, and HMCECS."""
    names = ["AMAGOLD, second order", "AMAGOLD, subsampled test", "HMCECS, Taylor proxy"]
    section = logistic(*((2000, 60, 60) if quick else (1_000_000, 2000, 2000)), names)
    section.title += ", exact tests"
    return section


# Distributions in one and two dimensions


def double_well(x):
    return -((x + 4) * (x + 1) * (x - 1) * (x - 3) / 14 + 0.5)


def dist1(z):
    return -0.5 * (z[0] - z[1] ** 2 / 4) ** 2 - z[1] ** 2 / 8


def dist2(z):
    def normal(sign):
        return -0.5 * (2 * z[0] ** 2 - sign * 3.6 * z[0] * z[1] + 2 * z[1] ** 2) / (4 - 1.8**2)

    return jnp.logaddexp(normal(1.0), normal(-1.0))


# density, dimension, edges of the histogram's cells
GRIDS = {
    "double well": (double_well, 1, np.linspace(-6.0, 6.0, 61)),
    "Dist1": (dist1, 2, np.linspace(-8.0, 12.0, 41)),
    "Dist2": (dist2, 2, np.linspace(-6.0, 6.0, 41)),
}
SHORT = {"num_integration_steps": 10, "friction": 0.25}
SYNTHETIC = {
    "SGHMC": ("sghmc", 1.0, SHORT),
    "AMAGOLD": ("amagold", 1.0, SHORT),
    "L2MC": ("l2mc", 0.0, SHORT),
    "HMC": ("l2mc", 0.0, SHORT | {"friction": 0.0}),
}


WALK = "random walk"
WALK_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)


def make_sampler(name: str, logdensity: Callable, potential: Any, step_size: Any):
    """The sampler of a name: on minibatches of the potential, or on the density."""
    if name == WALK:
        return blackjax_ext.random_walk(logdensity, step_size)
    algorithm, _, arguments = SYNTHETIC[name]
    return getattr(blackjax_ext, algorithm)(potential, step_size, **arguments)


def cells(name: str) -> np.ndarray:
    """Probability of each cell, by a fine sum."""
    logdensity, size, edges = GRIDS[name]
    fine = 8
    points = edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(fine) + 0.5) / fine
    axis = jnp.asarray(points.ravel())
    grid = axis if size == 1 else jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), -1)
    values = np.exp(np.asarray(jax.vmap(logdensity)(grid.reshape(-1, *grid.shape[size:])), float))
    shape = (len(edges) - 1, fine) * size
    mass = values.reshape(shape).sum(axis=tuple(range(1, 2 * size, 2)))
    return mass / mass.sum()


def symmetric_kl(draws: np.ndarray, name: str) -> float:
    """Between the histogram of draws, half a draw spread over the cells, and the truth."""
    _, size, edges = GRIDS[name]
    return from_counts(np.histogramdd(draws.reshape(-1, size), [edges] * size)[0].ravel(), name)


def from_counts(counts: np.ndarray, name: str) -> float:
    """Symmetric KL of numbers of draws in the cells."""
    truth = np.maximum(cells(name).ravel(), 1e-12)
    found = (counts + 0.5 / truth.size) / (counts.sum() + 0.5)
    return float(np.sum((found - truth) * np.log(found / truth)))


def starts_of(target: str) -> jax.Array:
    """Where the 20 chains begin."""
    size = GRIDS[target][1]
    return jax.random.normal(jax.random.key(2), (20, *((size,) if size > 1 else ())))


def nuts_divergence(target: str, num_samples: int) -> tuple[float, float]:
    """That of NumPyro's NUTS from the same starts, after 500 steps of its own warm-up."""
    kernel = NUTS(potential_fn=lambda z: -GRIDS[target][0](z["x"]))
    init = {"x": starts_of(target)}
    run = run_chains(kernel, (), 500, num_samples // 20, 20, ("accept_prob",), 3, init)
    return symmetric_kl(run.draws["x"], target), float(run.fields["accept_prob"].mean())


def divergences(target: str, name: str, steps: tuple, num_samples: int) -> list:
    """Symmetric KL of the draws of 20 chains, and their acceptance, for each step size."""
    logdensity = GRIDS[target][0]
    potential = potentials.gaussian_noise(logdensity, 0.0 if name == WALK else SYNTHETIC[name][1])
    starts = starts_of(target)

    def chain(step_size, start, key):
        sampler = make_sampler(name, logdensity, potential, step_size)
        key_init, key_steps = jax.random.split(key)

        def step(state, key):
            state, info = sampler.step(key, state)
            return state, (state.position, info.acceptance_rate)

        keys = jax.random.split(key_steps, num_samples // 20 + 100)
        return jax.lax.scan(step, sampler.init(start, key_init), keys)[1]

    keys = jax.random.split(jax.random.key(3), 20)
    chains = jax.vmap(jax.vmap(chain, (None, 0, 0)), (0, None, None))
    draws, rates = jax.jit(chains)(jnp.array(steps), starts, keys)
    draws = np.nan_to_num(np.asarray(draws[:, :, 100:], float), nan=1e9)
    return [
        (symmetric_kl(each, target), float(jnp.mean(rate)))
        for each, rate in zip(draws, rates, strict=True)
    ]


def tuned_step(target: str, num_samples: int) -> float:
    """Step size of AMAGOLD at an acceptance of 0.85, found from 0.01 by dual averaging."""
    logdensity, _, _ = GRIDS[target]
    _, noise, arguments = SYNTHETIC["AMAGOLD"]
    potential = potentials.gaussian_noise(logdensity, noise)
    init, update, final = dual_averaging_adaptation(0.85)

    def step(carry, key):
        state, averaging = carry
        sampler = blackjax_ext.amagold(potential, jnp.exp(averaging.log_step_size), **arguments)
        state, info = sampler.step(key, state)
        return (state, update(averaging, info.acceptance_rate)), None

    first = blackjax_ext.amagold.init(jnp.zeros(()), potential, jax.random.key(10)), init(0.01)
    keys = jax.random.split(jax.random.key(11), num_samples)
    return float(final(jax.jit(lambda first: jax.lax.scan(step, first, keys)[0][1])(first)))


def synthetic(quick: bool) -> Section:
    """Distance to the truth as the step grows."""
    steps = (0.05, 0.25) if quick else (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5)
    num_samples = 2000 if quick else 100_000
    rows = []
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, target in zip(axes, GRIDS, strict=True):
        counts = np.random.default_rng(9).multinomial(num_samples, cells(target).ravel())
        least = from_counts(counts, target)
        rows.append([target, "independent draws", "", least, 1.0])
        axis.axhline(least, color="black", linestyle=":", label="independent draws")
        for name in SYNTHETIC:
            key = (target, name, steps, num_samples)
            found = REPORT.once(key, divergences, *key)
            rows += [[target, name, step, *each] for step, each in zip(steps, found, strict=True)]
            axis.plot(steps, [kl for kl, _ in found], marker=".", label=name)
        key = (target, WALK, WALK_STEPS, num_samples)
        found = REPORT.once(key, divergences, *key)
        rows += [[target, WALK, step, *each] for step, each in zip(WALK_STEPS, found, strict=True)]
        key = (target, "NUTS", num_samples)
        nuts, rate = REPORT.once(key, nuts_divergence, target, num_samples)
        rows.append([target, "NUTS", "", nuts, rate])
        best = min(kl for kl, _ in found)
        axis.axhline(best, color="C4", linestyle="--", label="random walk, best step")
        axis.axhline(nuts, color="C5", linestyle="--", label="NUTS")
        axis.set(title=target, xlabel="step size", yscale="log")
    axes[0].set_ylabel("symmetric KL")
    axes[0].legend(fontsize=7)
    step = tuned_step("double well", 1000)
    found = divergences("double well", "AMAGOLD", (step,), num_samples)
    rows.append(["double well", "AMAGOLD, tuned from 0.01", step, *found[0]])
    REPORT.picture(figure, "amagold_synthetic.png")
    of = {(target, name, step): kl for target, name, step, kl, _ in rows}
    checks = [
        (f"{target}, step 0.25: AMAGOLD / SGHMC", of[target, "AMAGOLD", 0.25] / kl, 0.5)
        for target in GRIDS
        if (kl := of[target, "SGHMC", 0.25])
    ]
    return Section(
        "The double well, Dist1 and Dist2 of the paper",
        "Gradients have noise N(0, I) for SGHMC and AMAGOLD, none for the others; T = 10, friction "
        "1/4 (HMC: none), fresh momentum. Symmetric Kullback-Leibler divergence between the truth "
        f"and the histogram of {num_samples:,} draws of 20 chains, 100 of each dropped, next "
        "to that of as many independent draws; the random walk and NUTS have as many, and exact "
        "densities. Much at small steps is slow mixing; 'tuned' finds "
        "the step with an acceptance of 0.85 in 1,000 draws, as in figure 1c.\n\n"
        "![Symmetric KL against the step size](amagold_synthetic.png)",
        ["target", "sampler", "step size", "symmetric KL", "acceptance"],
        rows,
        checks,
    )


# Bayesian logistic regression on small data


def design(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardized covariates with an intercept, and labels of zero and one."""
    x, y = uci(name)
    x = np.column_stack([np.ones(len(x)), standardized(x)])
    return x.astype(np.float32), y.astype(np.float32)


def regression(x, y, batch):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def means(name: str, x, y, batch: int, steps: tuple, num_samples: int) -> tuple:
    """Means of the draws of a chain for each step size, without a tenth of them; acceptance."""

    def loglikelihood(slope, row):
        logit = row[0] @ slope
        return row[1] * logit - jax.nn.softplus(logit)

    def logdensity(slope):
        return -0.5 * slope @ slope + jnp.sum(jax.vmap(partial(loglikelihood, slope))((x, y)))

    potential = potentials.minibatch(lambda b: -0.5 * b @ b, loglikelihood, (x, y), batch)
    keys = jax.random.split(jax.random.key(4), num_samples)

    def chain(step_size):
        sampler = make_sampler(name, logdensity, potential, step_size)

        def step(state, key):
            state, info = sampler.step(key, state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(step, sampler.init(jnp.zeros(x.shape[1]), keys[0]), keys)[1]

    draws, rates = jax.jit(jax.vmap(chain))(jnp.array(steps))
    draws = np.asarray(draws[:, num_samples // 10 :], float)
    return draws.mean(axis=1), np.asarray(rates, float).mean(axis=1)


WALK_STEPS_SMALL = (0.02, 0.05, 0.1, 0.2, 0.4)  # scales of the random walk


def small_data_picture(rows: list) -> None:
    """Errors and acceptance against the step size, as in figures 4 and 8 of the paper."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for data, axis in zip(("australian", "heart"), axes, strict=False):
        for sampler in (*SYNTHETIC, WALK):
            line = np.array([row[2:] for row in rows if row[:2] == [data, sampler]], float).T
            axis.loglog(line[0], line[1], ".-", label=sampler)
            if sampler == "AMAGOLD":
                axes[2].semilogx(line[0], line[2], ".-", label=data)
        axis.set(title=data, xlabel="step size", ylabel="mean squared error")
        axis.legend(fontsize=7)
    axes[2].set(title="AMAGOLD", xlabel="step size", ylabel="acceptance", ylim=(0, 1.02))
    axes[2].legend(fontsize=7)
    REPORT.picture(figure, "amagold_small_data.png")


def small_data(quick: bool) -> Section:
    """Error of the posterior mean on Australian and Heart."""
    num_samples = 200 if quick else 5_000_000 if REPORT.is_full else 20_000
    num_nuts = min(num_samples, 200_000)
    steps = (0.02,) if quick else (1e-3, 2e-3, 5e-3, 0.01, 0.02)
    rows = []
    for name, batch in (("australian", 32), ("heart", 16)):
        x, y = design(name)
        kernel = NUTS(FullView(partial(regression, batch=batch)), dense_mass=True)
        run = run_chains(kernel, (x, y), 500, num_nuts, 3, ("accept_prob",), 6)
        chains = np.asarray(run.draws["slope"], float).mean(axis=1)
        truth = chains[:2].mean(axis=0)
        rate = float(run.fields["accept_prob"][2].mean())
        rows.append([name, "NUTS", "", float(np.mean((chains[2] - truth) ** 2)), rate])
        for sampler in (*SYNTHETIC, WALK):
            sizes = WALK_STEPS_SMALL if sampler == WALK else steps
            found = zip(sizes, *means(sampler, x, y, batch, sizes, num_samples), strict=True)
            for step, mean, rate in found:
                rows.append([name, sampler, step, float(np.mean((mean - truth) ** 2)), rate])
            errors = [f"{row[3]:.2g}" for row in rows[-len(sizes) :]]
            print(f"  {name}, {sampler}: {errors}", flush=True)
    small_data_picture(rows)
    best = {
        (data, sampler): min(row[3] for row in rows if row[:2] == [data, sampler])
        for data, sampler, *_ in rows
    }
    checks = [
        (f"{d}: best AMAGOLD / best SGHMC", best[d, "AMAGOLD"] / best[d, "SGHMC"], 1.0)
        for d in ("australian", "heart")
    ]
    return Section(
        "Australian and Heart",
        "Logistic regression with an intercept, covariates standardized, prior N(0, 1), batches of "
        "32 and 16 rows, T = 10, friction 1/4, fresh momentum, no preconditioner, start at zero. "
        "Mean squared error over coordinates of the posterior mean from one chain of "
        f"{num_samples:,} draws, a tenth dropped, against {2 * num_nuts:,} draws of NUTS. The "
        "The third chain of NUTS is compared with the other two. The "
        "step size is that of the leapfrog; the paper's 1e-6 to 5e-3 may be its square.\n\n"
        "![errors and acceptance](amagold_small_data.png)",
        ["data", "sampler", "step size", "mean squared error", "acceptance"],
        rows,
        checks,
    )


# A Bayesian neural network


def pixels(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 784) from 0 to 1, and labels (N,)."""
    x, y = images(name, part)
    return x.reshape(len(x), -1), y


class Network(linen.Module):
    """The paper's, of two hidden layers."""

    @linen.compact
    def __call__(self, x):
        for width in (500, 256):
            x = linen.relu(linen.Dense(width)(x))
        return linen.Dense(10)(x)


def classifier(x, y=None, batch=None):
    net = random_flax_module("net", Network(), dist.Normal(0, 1), input_shape=(784,))
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        logits = numpyro.deterministic("logits", net(x[rows]))
        numpyro.sample("y", dist.Categorical(logits=logits), obs=None if y is None else y[rows])


def ensemble(
    kernel: Any, data: tuple, num_samples: int, thinning: int, num_warmup: int = 0, z: Any = None
) -> tuple:
    """Draws of the network's parameters after a warm-up, and the acceptance; `z` is the start."""
    state = kernel.init(jax.random.key(7), max(num_warmup, 1), z, data, {})

    def step(data, state, _):
        state = kernel.sample(state, data, {})
        return state, state.accept_prob

    @partial(jax.jit, static_argnums=2)
    def steps(data, state, length):
        return jax.lax.scan(partial(step, data), state, length=length)

    if num_warmup:
        state, _ = steps(data, state, num_warmup)
    draws, rates = [], []
    for _ in range(num_samples):
        state, rate = steps(data, state, thinning)
        draws.append(state.z)
        rates.append(float(jnp.mean(rate)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws), float(np.mean(rates))


def predict(draws: Any, x: np.ndarray) -> np.ndarray:
    """Predictive probabilities (N, 10)."""
    predictive = Predictive(classifier, draws, return_sites=["logits"])
    logits = predictive(jax.random.key(8), jnp.asarray(x))["logits"]
    return np.asarray(jax.nn.softmax(logits.astype(float)).mean(axis=0))


def entropy(probabilities: np.ndarray) -> float:
    """Mean entropy of the predictive distributions; log 10 = 2.30 at most."""
    return float(-np.sum(probabilities * np.log(probabilities + 1e-12), axis=1).mean())


# Zhang, Cooper and De Sa, Table 2: test errors in percent by sampler, b and h
ERRORS = {
    ("SGHMC", 0.01, 0.0005): 3.69,
    ("SGHMC", 0.01, 0.001): 3.77,
    ("SGHMC", 5e-6, 0.0005): 89.95,
    ("SGHMC", 5e-6, 0.001): 89.70,
    ("AMAGOLD", 0.01, 0.0005): 3.63,
    ("AMAGOLD", 0.01, 0.001): 3.65,
    ("AMAGOLD", 5e-6, 0.0005): 3.65,
    ("AMAGOLD", 5e-6, 0.001): 3.63,
}


def minibatch_kernel(name: str, b: float, h: float, num_rows: int) -> Any:
    """AMAGOLD or SGHMC with the settings of the paper, from a network that SGD has trained."""
    step_size = (h / num_rows) ** 0.5
    options: dict[str, Any] = {
        "control_variate": None,
        "resample_momentum": False,
        "num_integration_steps": 10,
        "friction": b / step_size,
        "step_size": step_size,
        "adapt_mass_matrix": False,
        "init_strategy": init_to_uniform(radius=0.06),
        "num_epochs": 3,
        "optimizer": optax.sgd(0.1, momentum=0.9),
    }
    if name == "AMAGOLD":
        options["adapt_step_size"] = False
    make = {"AMAGOLD": AMAGOLD, "SGHMC": SGHMC}[name]
    return make(partial(classifier, batch=num_rows // 30), **options)


def predictions(draws: Any, tests: tuple) -> tuple[float, float, float]:
    """Test error in percent, and mean entropies on the test images and on the shifted ones."""
    (x, y), (shifted, _) = tests
    probabilities = predict(draws, x)
    error = float(100 * np.mean(probabilities.argmax(axis=1) != y))
    return error, entropy(probabilities), entropy(predict(draws, shifted))


def network_row(name: str, b: float, h: float, data: tuple, tests: tuple, num_samples: int) -> list:
    """A row of AMAGOLD or SGHMC."""
    # three transitions of ten minibatches are one epoch
    draws, rate = ensemble(minibatch_kernel(name, b, h, len(data[1])), data, num_samples, 3)
    error, *entropies = predictions(draws, tests)
    return [name, b, h, error, ERRORS[name, b, h], rate, *entropies]


DEPTH = 3  # of the trees of NUTS
NUTS_WARMUP = 19  # from 20 on it restarts in windows, and the last of two steps knows nothing


def peer_rows(data: tuple, tests: tuple, num_samples: int) -> list[list]:
    """The trained network alone, and NUTS and a random walk on all images from there."""
    trained = minibatch_kernel("AMAGOLD", *next(iter(ERRORS))[1:], len(data[1]))
    z = trained.init(jax.random.key(7), 1, None, data, {}).z
    fixed = {"adapt_mass_matrix": False, "step_size": 1e-3}
    nuts = NUTS(classifier, max_tree_depth=DEPTH, **fixed)
    kernels = {  # with steps in a draw and in the warm-up
        "random walk": (RandomWalk(classifier, **fixed), 30, 30 * num_samples),
        f"NUTS, at most {2**DEPTH - 1} leapfrog steps": (nuts, 1, NUTS_WARMUP),
    }
    error, *entropies = predictions(jax.tree.map(lambda leaf: leaf[None], z), tests)
    rows = [["trained network", "", "", error, "", "", *entropies]]
    for name, (kernel, thinning, num_warmup) in kernels.items():
        draws, rate = ensemble(kernel, data, num_samples, thinning, num_warmup, z)
        error, *entropies = predictions(draws, tests)
        rows.append([name, "", "", error, "", rate, *entropies])
    return rows


def network(quick: bool) -> Section:
    """MNIST, with FashionMNIST as the shift."""
    num_rows = 600 if quick else 60_000 if REPORT.is_full else 12_000
    num_test = min(num_rows // 3, 10_000)
    x, y = pixels("mnist", "train")
    data = (jnp.asarray(x[:num_rows]), jnp.asarray(y[:num_rows]))
    tests = tuple(
        tuple(part[:num_test] for part in pixels(name, "t10k")) for name in ("mnist", "fashion")
    )
    settings = [(b, h) for b in (0.01, 5e-6) for h in (0.0005, 0.001)]
    num_draws = 2 if quick else 20
    rows = [
        REPORT.once(
            (name, b, h, num_rows, num_draws), network_row, name, b, h, data, tests, num_draws
        )
        for name in ("SGHMC", "AMAGOLD")
        for b, h in (settings[:1] if quick else settings)
    ]
    errors = {name: [row[3] for row in rows if row[0] == name] for name in ("SGHMC", "AMAGOLD")}
    peers = REPORT.once(("peers", num_rows, num_draws), peer_rows, data, tests, num_draws)
    return Section(
        "A Bayesian network on MNIST",
        f"Two hidden layers of 500 and 256 (523,326 parameters), priors N(0, 1), {num_rows:,} "
        "images in 30 batches, T = 10, irreversible; 3 epochs of SGD with momentum as the start; "
        "20 draws, one per epoch; no adaptation. b and h as in Table 2, with h in units of the "
        "number of rows: step size sqrt(h / N), friction b / step size; the paper does not say its "
        "units, and its SGHMC diverges where b is small, which ours does not. Errors on "
        f"{num_test:,} test images; mean entropies of the predictive distributions there and on "
        "FashionMNIST, where larger is better. The trained network is the start of all; from there "
        f"NUTS and a random walk, on all images, adapt their step size, in {NUTS_WARMUP} steps and "
        "in as many as are sampled: a draw is a tree of NUTS, and 30 steps of the random walk. "
        "`--full` takes the paper's 60,000 images, of which its errors are.",
        [
            *("sampler", "b", "h", "test error, %", "paper, %", "acceptance", "entropy"),
            "entropy, shifted",
        ],
        [*peers, *rows],
        [("worst / best error of AMAGOLD", max(errors["AMAGOLD"]) / min(errors["AMAGOLD"]), 1.1)],
    )


# Memory


BY_DEFAULT = "by default"


def memory(quick: bool) -> Section:
    """Temporary memory of a full pass."""
    rows = []
    for num_rows in (10_000, 400_000) if quick else (100_000, 1_000_000, 10_000_000):
        for chunk in (1024, None, num_rows):
            x = jax.ShapeDtypeStruct((num_rows, SIZE), jnp.float32)
            y = jax.ShapeDtypeStruct((num_rows,), jnp.float32)

            def energy(x, y, z, chunk=chunk):
                def loglikelihood(slope, row):
                    logit = row[0] @ slope
                    return row[1] * logit - jax.nn.softplus(logit)

                leaves = (x, y)
                potential = potentials.minibatch(
                    lambda b: -0.5 * b @ b, loglikelihood, leaves, BATCH, chunk_size=chunk
                )
                return potential.potential(z).value()

            z = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
            sizes = [
                jax.jit(f).lower(x, y, z).compile().memory_analysis().temp_size_in_bytes / 2**20
                for f in (energy, jax.grad(energy, argnums=2))
            ]
            name = "all rows" if chunk == num_rows else f"{chunk:,}" if chunk else BY_DEFAULT
            rows.append([f"{num_rows:,}", name, *sizes])
    default = [row for row in rows if row[1] == BY_DEFAULT]
    return Section(
        "Temporary memory of a full pass",
        "Of the energy and of its gradient on the logistic regression, counted by XLA; MiB.",
        ["rows", "rows in a chunk", "energy", "gradient"],
        rows,
        [
            (
                f"gradient of {default[-1][0]} rows / {default[-2][0]}",
                default[-1][3] / default[-2][3],
                1.1,
            )
        ],
    )


SECTIONS: dict[str, Callable[[bool], Section]] = {
    f.__name__: f for f in (rows_1e5, rows_1e6, few_rows, synthetic, small_data, network, memory)
}
REPORT = Report(
    "amagold", "Minibatch samplers: yield and exactness", SECTIONS, long=("rows_1e6", "network")
)

if __name__ == "__main__":
    REPORT.main()
