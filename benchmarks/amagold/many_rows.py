"""Logistic regression with many rows: what each sampler yields per second and per pass."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.ecs_proxies import taylor_proxy
from numpyro.infer import HMCECS, NUTS

from benchmarks.amagold.report import REPORT
from benchmarks.harness import models
from benchmarks.harness.diagnostics import least_ess
from benchmarks.harness.report import Section
from benchmarks.harness.timing import timed
from numpyro_fwd import AMAGOLD, L2MC, RandomWalk

SIZE, BATCH = 20, 1000
SHORT_STEPS, STEPS = 4, 8  # with full gradients and with those of minibatches
SINGLE = 1_000_000  # rows that are too many for a plain sum in single precision
FORWARD_AND_BACK = 3  # evaluations that a gradient costs
ESTIMATES = {None: 1, "second_order": 3}  # gradients in one estimate


def simulate(num_rows: int) -> tuple:
    """Covariates of scales from 0.3 to 3 and binary responses, in single precision."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.3, 3.0, SIZE)
    x = rng.normal(size=(num_rows, SIZE)) * scales
    slope = rng.normal(size=SIZE) * 0.5 / scales
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ slope))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def model(x, y):
    models.minibatch_logistic(x, y, BATCH)


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
    # the subsampled test reads a row at both ends, with an expansion at the anchor for each
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
    "AMAGOLD, none": amagold(None),
    "AMAGOLD, subsampled test": amagold("second_order", "subsampled"),
    **{name: full_batch(friction) for name, friction in FULL_GRADIENTS.items()},
    "RandomWalk": Sampler(lambda: RandomWalk(plain, dense_mass=True), lambda *_: 1.0, True),
}


def facts(state: Any) -> tuple:
    """Draw, acceptance probability, leapfrog steps and rows of the test of a state."""
    inner = getattr(state, "hmc_state", state)
    rows = getattr(getattr(state, "inner", None), "num_rows", 0)
    return state.z["slope"], inner.accept_prob, inner.num_steps, rows


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
    (_, found), seconds = timed(draw, data, state, clock=time.process_time)
    draws, rates, num_steps, rows = (np.asarray(leaf) for leaf in found)
    ess = least_ess(draws[None])
    squares = least_ess((draws - draws.mean(axis=0))[None] ** 2)
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
        "the likelihood of all rows; a gradient counts three, the control variate three "
        "gradients. Seconds are of the "
        "processor on one core, since the machine was shared; 'before' is compilation, search for "
        f"a start and warm-up. Distances are those to {names[0]}, whose {num_slow:,} draws have "
        f"errors of their own of about {(num_slow / 2) ** -0.5:.2f} sd. Long "
        "trajectories overshoot: means have an ESS above one per draw, squares do not. NUTS and "
        "the random walk have "
        "the model without a plate, where rows are read and not gathered"
        + (", in double precision, without which the rounding of the energy decides" * is_large)
        + ". HMCECS is approximate, and was given the mode.",
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
