"""A likelihood with a `while_loop`: reverse mode fails on it, directional derivatives do not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.infer import MCMC, NUTS

from numpyro_fwd import FMALA, RandomWalk
from numpyro_fwd.demo import style
from numpyro_fwd.demo.chains import Chains, pooled_draws, sample, worst
from numpyro_fwd.demo.chapter import Chapter, Setting, code_of

__all__ = ["NAME", "chapter"]

NAME = "A likelihood with a while_loop"
QUESTION = (
    "Estimate the reproduction number of an outbreak from the number of people who fell ill. The "
    "final size of an outbreak is the root of an equation, and a loop iterates until it stops "
    "changing. FMALA needs only directional derivatives, a random walk needs none."
)
HEADER = ("", "mean of r1", "mean of r2", "off, in sd", "ESS", "R-hat", "ESS/s", "compile, s")
CAPTION = "Draws of both samplers against the exact posterior (a grid)."
READING = (
    "ESS and R-hat of the worst parameter over four chains; ESS/s with the warm-up, without "
    "compilation."
)
CASES, POPULATION = (512, 273), (763, 284)
DATA = (jnp.array(CASES), jnp.array(POPULATION))
REPRODUCTION_GRID = np.linspace(1.01, 5.0, 4000)  # of reproduction numbers


def attack_rate(r):
    """The z with z = 1 - exp(-r z), iterated until it stops moving."""

    def is_moving(z):
        return jnp.any(jnp.abs(z + jnp.expm1(-r * z)) > 1e-6)

    return jax.lax.while_loop(is_moving, lambda z: -jnp.expm1(-r * z), jnp.ones_like(r))


def model(cases, population):
    """Final sizes of two outbreaks, given their reproduction numbers."""
    r = numpyro.sample("r", dist.LogNormal(0.5, 0.5).expand([2]).to_event(1))
    numpyro.sample("cases", dist.Binomial(population, attack_rate(r)), obs=cases)


def exact_densities() -> np.ndarray:
    """Posterior densities on the grid: the outbreaks are independent."""
    r = jnp.asarray(REPRODUCTION_GRID)
    rates = np.asarray(attack_rate(r), float)
    prior = scipy.stats.lognorm(0.5, scale=np.exp(0.5)).logpdf(REPRODUCTION_GRID)
    densities = [
        np.exp((log := prior + scipy.stats.binom.logpmf(k, n, rates)) - log.max())
        for k, n in zip(CASES, POPULATION, strict=True)
    ]
    return np.stack([density / np.trapezoid(density, REPRODUCTION_GRID) for density in densities])


def grid_moments(densities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of densities on the grid."""
    mean = np.trapezoid(densities * REPRODUCTION_GRID, REPRODUCTION_GRID, axis=1)
    square = np.trapezoid(densities * REPRODUCTION_GRID**2, REPRODUCTION_GRID, axis=1)
    return np.asarray(mean), np.sqrt(square - mean**2)


def complaint(key) -> str:
    """The error of NUTS in one line."""
    try:
        MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False).run(key, *DATA)
    except Exception as error:  # of whatever type this version of JAX raises
        return " ".join(str(error).split(". ")[0].split()).rstrip(".")
    return "no error"


def row(name: str, chains: Chains, truth: tuple[Any, ...]) -> tuple[str, ...]:
    """Cells of a sampler."""
    ess, r_hat = worst(chains.idata)
    draws = pooled_draws(chains, "r")
    off = np.max(np.abs(draws.mean(axis=0) - truth[0]) / truth[1])
    means = (f"{value:.3f}" for value in draws.mean(axis=0))
    cells = (f"{off:.3f}", f"{ess:.0f}", f"{r_hat:.3f}")
    return (name, *means, *cells, f"{ess / chains.seconds:.0f}", f"{chains.compilation:.1f}")


def draw(samplers: dict[str, Chains], densities: np.ndarray, setting: Setting) -> str:
    """Histograms of both reproduction numbers over their exact densities."""
    figure, axes = style.sheet(2, sharey=False)
    looks = (style.OURS, style.OTHER_SAMPLER)
    for i, axis in enumerate(axes):
        for (name, chains), look in zip(samplers.items(), looks, strict=True):
            heights, edges = np.histogram(pooled_draws(chains, "r")[:, i], 40, density=True)
            middle = (edges[1:] + edges[:-1]) / 2
            axis.plot(middle, heights, **look.line, marker=look.marker, ms=4, label=name)
        axis.plot(REPRODUCTION_GRID, densities[i], **style.TRUTH.line, label="exact", zorder=3)
        shown = REPRODUCTION_GRID[densities[i] > 1e-4 * densities[i].max()]
        axis.set(xlim=(shown[0], shown[-1]), ylim=(0, None), ylabel="posterior density")
        axis.set_xlabel(f"reproduction number of outbreak {i + 1}")
        style.legend_above(axis)
    return style.save_picture(figure, setting.out / "1_while_loop.png")


def chapter(setting: Setting) -> Chapter:
    """Sample two reproduction numbers without reverse mode."""
    keys = jax.random.split(jax.random.key(setting.seed), 4)
    error = complaint(keys[0])
    size: dict[str, Any] = {"num_warmup": 500, "num_samples": 500 if setting.quick else 5000}
    samplers = {
        "FMALA": sample(FMALA(model, num_tangents=2), keys[1], *DATA, **size),
        "random walk": sample(RandomWalk(model), keys[2], *DATA, **size),
    }
    densities = exact_densities()
    truth = grid_moments(densities)
    forward = NUTS(model, forward_mode_differentiation=True)
    nuts = row("NUTS, forward mode", sample(forward, keys[3], *DATA, **size), truth)
    ours = [row(name, chains, truth) for name, chains in samplers.items()]
    rows = [("exact", *(f"{value:.3f}" for value in truth[0]), "", "", "", "", ""), *ours]
    rows += [("NUTS, defaults", "fails", "fails", "", "", "", "", ""), nuts]
    said = (
        f"NUTS fails with its defaults: “{error}.” With gradients in forward mode it runs, and "
        f"whether it is right depends on its start. {fastest_sampler([*ours, nuts])}"
    )
    picture = draw(samplers, densities, setting)
    files = tuple(
        chains.write(setting.out, f"1_{name.replace(' ', '_')}")
        for name, chains in samplers.items()
    )
    change = ("mcmc = MCMC(NUTS(model), ...)", "mcmc = MCMC(FMALA(model, num_tangents=2), ...)")
    code = code_of(*change, attack_rate, model)
    return Chapter(NAME, QUESTION, HEADER, rows, picture, CAPTION, READING, said, files, code)


def fastest_sampler(rows: list[tuple[str, ...]]) -> str:
    """Which is the fastest of those that converged, and by how much."""
    rates = {cells[0]: float(cells[6]) for cells in rows if float(cells[5]) <= 1.01}
    if not rates:
        return "No sampler has an R-hat of at most 1.01 here."
    first, *others = sorted(rates, key=lambda name: -rates[name])
    ahead = [f"{rates[first] / max(1e-9, rates[name]):.1f} times {name}" for name in others]
    found = ", ".join([first, *ahead])
    return f"Most effective draws per second, with an R-hat of at most 1.01: {found}."
