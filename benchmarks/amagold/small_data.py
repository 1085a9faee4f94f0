"""Bayesian logistic regression on small data: error of the posterior mean."""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import NUTS

from benchmarks.amagold.report import REPORT
from benchmarks.amagold.samplers import SETTINGS, WALK, make_sampler
from benchmarks.harness import models
from benchmarks.harness.data import standardized, uci
from benchmarks.harness.report import Section
from benchmarks.harness.runs import run_chains
from blackjax_ext import potentials
from numpyro_fwd.bridge.plates import FullView


def design(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardized covariates with an intercept, and labels of zero and one."""
    x, y = uci(name)
    x = np.column_stack([np.ones(len(x)), standardized(x)])
    return x.astype(np.float32), y.astype(np.float32)


def means(name: str, x, y, batch: int, steps: tuple, num_samples: int) -> tuple:
    """Means of the draws of a chain for each step size, without a tenth of them; acceptance."""

    def logdensity(slope):
        terms = jax.vmap(partial(models.logistic_term, slope))((x, y))
        return -0.5 * slope @ slope + jnp.sum(terms)

    potential = potentials.minibatch(lambda b: -0.5 * b @ b, models.logistic_term, (x, y), batch)
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
        for sampler in (*SETTINGS, WALK):
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
        kernel = NUTS(FullView(partial(models.minibatch_logistic, batch=batch)), dense_mass=True)
        run = run_chains(kernel, (x, y), 500, num_nuts, 3, ("accept_prob",), 6)
        chains = np.asarray(run.draws["slope"], float).mean(axis=1)
        truth = chains[:2].mean(axis=0)
        rate = float(run.fields["accept_prob"][2].mean())
        rows.append([name, "NUTS", "", float(np.mean((chains[2] - truth) ** 2)), rate])
        for sampler in (*SETTINGS, WALK):
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
        f"{num_samples:,} draws, a tenth dropped, against {2 * num_nuts:,} draws of NUTS. "
        "The third chain of NUTS is compared with the other two. The "
        "step size is that of the leapfrog; the paper's 1e-6 to 5e-3 may be its square.\n\n"
        "![errors and acceptance](amagold_small_data.png)",
        ["data", "sampler", "step size", "mean squared error", "acceptance"],
        rows,
        checks,
    )
