"""The pictures of the demonstration: traces and ranks per target, and the funnel against truth."""

from pathlib import Path
from typing import Any

import arviz_stats
import matplotlib.pyplot as plt
import numpy as np
from arviz_stats.base import array_stats

from numpyro_fwd.demo.sampling import NUM_CHAINS, SamplerRun, Target

__all__ = ["funnel_scatter", "slowest", "traces_and_ranks"]

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]  # of the chains
NUM_SCATTERED = 4000  # of the scatter
NUM_BINS = 20  # of the ranks
COLUMNS = ("density, one line per chain", "trace", "ranks, above or below even, by chain")


def slowest(runs: list[SamplerRun]) -> tuple[str, dict[str, Any]]:
    """Site and coordinates of the parameter with the lowest ESS of all."""
    lowest = np.inf
    worst: tuple[str, dict[str, Any]] = ("", {})
    for run in runs:
        for site, ess in arviz_stats.ess(run.idata.posterior.to_dataset()).items():
            if ess.min() < lowest:
                lowest, worst = float(ess.min()), (str(site), {})
                for dim, at in ess.argmin(...).items():
                    worst[1][dim] = [ess[dim].values[int(at)]]
    return worst


def traces_and_ranks(target: Target, runs: list[SamplerRun], path: Path) -> None:
    """One row per sampler: density, trace and ranks of the parameter that is hardest to sample."""
    site, coords = slowest(runs) if target.truth is None else ("w", {})
    name = " ".join([site, *(str(value) for values in coords.values() for value in values)])
    figure, axes = plt.subplots(
        len(runs),
        3,
        figsize=(13, 1.9 * len(runs) + 1),
        layout="constrained",
        squeeze=False,
        gridspec_kw={"width_ratios": [1, 2.4, 1.4]},
    )
    figure.suptitle(f"{target.title}: {name}", fontsize=14)
    for run, (density, trace, ranks) in zip(runs, axes, strict=True):
        draw_row(run, site, coords, density, trace, ranks)
    for axis, title in zip(axes[0], COLUMNS, strict=True):
        axis.set_title(title, fontsize=11)
    for axis, label in zip(axes[-1], (name, "kept draw", "rank among all draws"), strict=True):
        axis.set_xlabel(label, fontsize=10)
    share_limits(axes[:, 0], axes[:, 1])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_row(run: SamplerRun, site: str, coords: dict[str, Any], density, trace, ranks) -> None:
    """Density, trace and ranks of one parameter under one sampler, chain by chain."""
    draws = run.idata.posterior[site].sel(coords).values.reshape(NUM_CHAINS, -1)
    places = draws.ravel().argsort().argsort().reshape(draws.shape)
    bins = np.linspace(0, draws.size, NUM_BINS + 1)
    for chain, (values, ranked, colour) in enumerate(zip(draws, places, COLOURS, strict=True)):
        grid, heights, _ = array_stats.kde(values)
        density.plot(grid, heights, color=colour, linewidth=1)
        trace.plot(values, color=colour, alpha=0.6, linewidth=0.4)
        share = np.histogram(ranked, bins)[0] * NUM_BINS / values.size  # 1 where chains agree
        ranks.bar(bins[:-1], (share - 1) / 2, bins[1], chain + 1, color=colour, align="edge")
        ranks.axhline(chain + 1, color="black", linewidth=0.5)
    for axis in (density, trace, ranks):
        axis.tick_params(labelsize=8)
    ranks.locator_params(axis="x", nbins=5)
    density.set_yticks([])
    density.set_ylabel(run.sampler, fontsize=12)
    ranks.set_yticks(range(1, NUM_CHAINS + 1), [f"chain {i + 1}" for i in range(NUM_CHAINS)])


def share_limits(densities, traces) -> None:
    """Give every row one range of the parameter, so that rows can be compared."""
    low = min(axis.get_ylim()[0] for axis in traces)
    high = max(axis.get_ylim()[1] for axis in traces)
    for density, trace in zip(densities, traces, strict=True):
        density.set_xlim(low, high)
        trace.set_ylim(low, high)


def funnel_scatter(runs: list[SamplerRun], path: Path, seed: int) -> None:
    """W against theta_1: each sampler over exact draws."""
    rng = np.random.default_rng(seed)
    w = 3 * rng.standard_normal(NUM_SCATTERED)
    exact = np.exp(w / 2) * rng.standard_normal(w.size)
    num_columns = min(4, len(runs) + 1)
    num_rows = -(-(len(runs) + 1) // num_columns)
    figure, axes = plt.subplots(
        num_rows,
        num_columns,
        figsize=(3.4 * num_columns, 3.6 * num_rows),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    figure.suptitle(
        "Neal's funnel: draws of each sampler (blue) over exact draws (grey)", fontsize=14
    )
    panels = axes.flat
    draw_panel(next(panels), "exact", exact, w, exact, w)
    for run in runs:
        draws = run.idata.posterior.to_dataset().stack(sample=("chain", "draw"))
        kept = rng.choice(
            draws.sizes["sample"], min(NUM_SCATTERED, draws.sizes["sample"]), replace=False
        )
        theta = draws["theta"].sel(index=1).values
        draw_panel(next(panels), run.sampler, theta, draws["w"].values, exact, w, kept)
    for panel in panels:
        panel.set_axis_off()
    axes[0, 0].set(xlim=(-25, 25), ylim=(-11, 11))
    figure.supxlabel(r"$\theta_1$")
    figure.supylabel("w")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_panel(axis, name, theta, w, exact_theta, exact_w, kept=slice(None)) -> None:
    """Points of one sampler in blue over exact draws in grey; mean and sd of w from all draws."""
    axis.scatter(exact_theta, exact_w, s=3, color="0.8", linewidths=0, rasterized=True)
    if name != "exact":
        style = {"s": 3, "alpha": 0.5, "linewidths": 0, "rasterized": True}
        axis.scatter(theta[kept], w[kept], color=COLOURS[0], **style)
        neck = np.mean(w < -3)
        text = f"mean of w {w.mean():.2f}\nsd of w {w.std():.2f}\nw < -3: {100 * neck:.1f} %"
    else:
        text = "mean of w 0\nsd of w 3\nw < -3: 15.9 %"
    axis.set_title(name, fontsize=11)
    axis.text(0.03, 0.03, text, transform=axis.transAxes, fontsize=8, va="bottom")
