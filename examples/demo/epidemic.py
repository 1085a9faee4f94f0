"""A likelihood with a while_loop.

Estimate the reproduction numbers of two outbreaks from how many people fell ill. The final size of
an outbreak is the root of an equation, which a loop iterates until it stops changing. Reverse mode
cannot pass such a loop; FMALA needs only directional derivatives, a random walk needs none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.infer import MCMC, NUTS

from examples.demo import style
from examples.demo.chains import Chains, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import FMALA, RandomWalk

CASES, POPULATION = np.array([512, 273]), np.array([763, 284])
CHANGE = ("mcmc = MCMC(NUTS(model), ...)", "mcmc = MCMC(FMALA(model, num_tangents=2), ...)")
GRID = np.linspace(1.01, 5.0, 4000)  # of reproduction numbers


def attack_rate(r):
    """The z with z = 1 - exp(-r z), iterated until it stops moving."""

    def is_moving(z):
        return jnp.any(jnp.abs(z + jnp.expm1(-r * z)) > 1e-6)

    return jax.lax.while_loop(is_moving, lambda z: -jnp.expm1(-r * z), jnp.ones_like(r))


def model(cases, population):
    """Final sizes of two outbreaks, given their reproduction numbers."""
    r = numpyro.sample("r", dist.LogNormal(0.5, 0.5).expand([2]).to_event(1))
    numpyro.sample("cases", dist.Binomial(population, attack_rate(r)), obs=cases)


def work_through(seed: int, quick: bool) -> Results:
    """Sample without reverse mode, and with NUTS in forward mode."""
    keys = jax.random.split(jax.random.key(seed), 4)
    size = {"num_warmup": 500, "num_samples": 500 if quick else 5000}
    kernels = {
        "FMALA": FMALA(model, num_tangents=2),
        "random walk": RandomWalk(model),
        "NUTS, forward mode": NUTS(model, forward_mode_differentiation=True),
    }
    runs = {
        name: sample(kernel, key, CASES, POPULATION, **size)
        for (name, kernel), key in zip(kernels.items(), keys[1:], strict=True)
    }
    exact = exact_densities()
    mean, sd = moments(exact)
    rows = [("exact", *(f"{value:.3f}" for value in mean), *[""] * 5)]
    rows += [("NUTS, defaults", "fails", "fails", *[""] * 5)]
    rows += [row(name, chains, mean, sd) for name, chains in runs.items()]
    return Results(
        ("", "mean of r1", "mean of r2", "off, in sd", "ESS", "R-hat", "ESS/s", "compile, s"),
        rows,
        "ESS and R-hat of the worst parameter, four chains; ESS/s with warm-up, not compilation.",
        draw(runs, exact),
        "Draws of each sampler against the exact posterior (a grid).",
        f"NUTS fails with its defaults: “{complaint(keys[0])}.” With gradients in forward mode it "
        "runs, and whether it is right depends on its start.",
        code_of(*CHANGE, attack_rate, model),
    )


def complaint(key) -> str:
    """The error of NUTS in one line."""
    try:
        MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False).run(
            key, CASES, POPULATION
        )
    except Exception as error:  # of whatever type this version of JAX raises
        return " ".join(str(error).split(". ")[0].split()).rstrip(".")
    return "no error"


def exact_densities() -> np.ndarray:
    """Posterior densities on the grid: the outbreaks are independent."""
    rates = np.asarray(attack_rate(jnp.asarray(GRID)), float)
    prior = scipy.stats.lognorm(0.5, scale=np.exp(0.5)).logpdf(GRID)
    log = prior + scipy.stats.binom.logpmf(CASES[:, None], POPULATION[:, None], rates)
    density = np.exp(log - log.max(axis=1, keepdims=True))
    return density / np.trapezoid(density, GRID, axis=1)[:, None]


def moments(densities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of densities on the grid."""
    mean = np.trapezoid(densities * GRID, GRID, axis=1)
    return mean, np.sqrt(np.trapezoid(densities * GRID**2, GRID, axis=1) - mean**2)


def row(name: str, chains: Chains, mean: np.ndarray, sd: np.ndarray) -> tuple[str, ...]:
    """Cells of a sampler."""
    (ess, r_hat), found = chains.worst(), chains.draws("r").mean(axis=0)
    cells = (*(f"{value:.3f}" for value in found), f"{np.max(np.abs(found - mean) / sd):.3f}")
    rate = f"{ess / chains.seconds:.0f}"
    return (name, *cells, f"{ess:.0f}", f"{r_hat:.3f}", rate, f"{chains.compilation:.1f}")


def draw(runs: dict[str, Chains], densities: np.ndarray):
    """Histograms of both reproduction numbers over their exact densities."""
    figure, axes = style.sheet(2)
    looks = (style.OURS, style.OTHER, style.NUTS)
    for i, axis in enumerate(axes):
        for (name, chains), look in zip(runs.items(), looks, strict=True):
            heights, edges = np.histogram(chains.draws("r")[:, i], 40, density=True)
            middle = (edges[1:] + edges[:-1]) / 2
            axis.plot(middle, heights, **look.line, marker=look.marker, ms=4, label=name)
        axis.plot(GRID, densities[i], **style.TRUTH.line, label="exact", zorder=3)
        shown = GRID[densities[i] > 1e-4 * densities[i].max()]
        axis.set(xlim=(shown[0], shown[-1]), ylim=(0, None), ylabel="posterior density")
        axis.set_xlabel(f"reproduction number of outbreak {i + 1}")
        style.legend_above(axis, columns=2)
    return figure
