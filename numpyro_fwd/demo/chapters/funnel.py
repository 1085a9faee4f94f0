"""Neal's funnel as it is usually written: a step size for each place reaches the neck."""

from typing import Any

import jax
import numpy as np
import scipy.stats
from numpyro.infer import NUTS

from numpyro_fwd import AutoMALA
from numpyro_fwd.demo import sampling, style
from numpyro_fwd.demo.chains import Chains, flat, sample, worst
from numpyro_fwd.demo.chapter import Chapter, Setting

__all__ = ["NAME", "chapter"]

NAME = "A funnel"
QUESTION = (
    "A scale exp(w / 2) and nine values of that scale: the shape of a hierarchy that is not "
    "written non-centred. One step size cannot suit both its mouth and its neck. AutoMALA selects "
    "one at each place, exactly."
)
HEADER = ("", "mass of the neck", "mean of w", "sd of w", "ESS", "R-hat", "seconds", "compile, s")
CAPTION = "Draws of each sampler over exact draws, the neck below the line; densities of w."
READING = "Four chains. The neck is w < -3. ESS and R-hat of the worst parameter."
NECK, MASS = -3.0, 0.1587  # w below it, and how much of the posterior is there
NUM_POINTS = 4000
LIMITS = {"xlim": (-25, 25), "ylim": (-11, 11)}


def row(name: str, chains: Chains) -> tuple[str, ...]:
    """Cells of a sampler."""
    ess, r_hat = worst(chains.idata)
    w = flat(chains, "w")
    facts = (f"{np.mean(w < NECK):.3f}", f"{w.mean():.2f}", f"{w.std():.2f}")
    return (
        name,
        *facts,
        f"{ess:.0f}",
        f"{r_hat:.3f}",
        f"{chains.seconds:.1f}",
        f"{chains.compilation:.1f}",
    )


def exact_draws(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of w and of one theta."""
    rng = np.random.default_rng(seed)
    w = 3 * rng.standard_normal(NUM_POINTS)
    return w, np.exp(w / 2) * rng.standard_normal(NUM_POINTS)


def draw(found: dict[str, Chains], setting: Setting) -> str:
    """Draws over exact draws, and the line under which the neck is."""
    figure, axes = style.sheet(len(found) + 1)
    w, theta = exact_draws(setting.seed)
    looks = (style.OURS, style.NUTS)
    for axis, (name, chains), look in zip(axes[:2], found.items(), looks, strict=True):
        axis.scatter(theta, w, s=4, color=style.GREY, linewidths=0, label="exact draws")
        step = max(1, len(flat(chains, "w")) // NUM_POINTS)
        points = (flat(chains, "theta")[::step, 0], flat(chains, "w")[::step])
        axis.scatter(*points, s=5, color=look.color, marker=look.marker, alpha=0.5, label=name)
        axis.axhline(NECK, **style.TRUTH.line)
        axis.annotate("neck", (24, NECK - 0.4), ha="right", va="top")
        axis.set(xlabel=r"$\theta_1$", ylabel="w", **LIMITS)
        style.legend_above(axis)
    marginal(axes[2], found, looks)
    return style.save(figure, setting.out / "3_funnel.png")


def marginal(axis, found: dict[str, Chains], looks: tuple) -> None:
    """Density of w under each sampler and in truth."""
    grid, bins = np.linspace(-11, 11, 300), np.linspace(-11, 11, 56)
    for (name, chains), look in zip(found.items(), looks, strict=True):
        heights = np.histogram(flat(chains, "w"), bins, density=True)[0]
        axis.stairs(heights, bins, **look.line, label=name)
    axis.plot(grid, scipy.stats.norm(0, 3).pdf(grid), **style.TRUTH.line, label="exact")
    axis.axvspan(-11, NECK, color=style.GREY, alpha=0.3, linewidth=0)
    axis.set(xlabel="w (grey: the neck)", ylabel="density", xlim=(-11, 11), ylim=(0, None))
    style.legend_above(axis, columns=2)


def chapter(setting: Setting) -> Chapter:
    """Sample the funnel by AutoMALA and by NUTS."""
    model = sampling.funnel().model
    keys = jax.random.split(jax.random.key(setting.seed + 3), 2)
    long: dict[str, Any] = {"num_warmup": 500, "num_samples": 500}
    if not setting.quick:
        long = {"num_warmup": 5000, "num_samples": 200_000, "thinning": 20}
    short: dict[str, Any] = {"num_warmup": 500, "num_samples": 500 if setting.quick else 4000}
    found = {
        "AutoMALA": sample(AutoMALA(model), keys[0], **long),
        "NUTS": sample(NUTS(model), keys[1], **short),
    }
    rows: list[tuple[str, ...]] = [("exact", f"{MASS:.3f}", "0.00", "3.00", "", "", "", "")]
    rows += [row(name, chains) for name, chains in found.items()]
    picture = draw(found, setting)
    files = tuple(chains.write(setting.out, f"3_{name}") for name, chains in found.items())
    return Chapter(NAME, QUESTION, HEADER, rows, picture, CAPTION, READING, verdict(found), files)


def verdict(found: dict[str, Chains]) -> str:
    """Which one came closer to the mass of the neck, and whether to believe its draws."""
    errors = {name: abs(np.mean(flat(each, "w") < NECK) - MASS) for name, each in found.items()}
    nearest = min(errors, key=lambda name: errors[name])
    worst_ones = ", ".join(f"{name} {worst(each.idata)[1]:.3f}" for name, each in found.items())
    return (
        f"Nearer to the truth: {nearest}. R-hat: {worst_ones}; above 1.01 do "
        "not trust the draws. Where a hierarchy can be written non-centred, do that and use NUTS."
    )
