"""Hierarchies as they are usually written, from defaults: ``python benchmarks/hierarchies.py``.

Coordinates that a warm-up learns beside both forms of NUTS and samplers of others. The unit of
cost is a gradient.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS

from benchmarks.harness import hierarchies as hierarchical_models
from benchmarks.harness import hierarchy_peers, large_models, nutpie_run
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import run_chains
from numpyro_fwd import (
    MCMC,
    AutoMALA,
    AutoNUTS,
)

SEEDS, FEW_SEEDS = 10, 1
SEED_OF_GRIDS = 100
GROUPS = "500 groups of 5 counts"
# a dense metric on hundreds of effects: one run was stopped after 14 minutes of a processor
WITHOUT_DENSE = (GROUPS, "200 groups, half of 2 rows, half of 100", "item response, 400 x 30")
Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def partial_named(model, *arguments, **keywords):
    """A model with arguments, and its name."""
    found = partial(model, *arguments, **keywords)
    found.__name__ = model.__name__
    return found


def funnel(size: int = 10, is_centred: bool = True) -> None:
    """Neal's funnel: w ~ N(0, 3^2), and size - 1 coordinates ~ N(0, exp(w))."""
    w = numpyro.sample("w", dist.Normal(0, 3))
    hierarchical_models.effect("x", 0.0, jnp.exp(w / 2), size - 1, is_centred)


def eight_schools(is_centred: bool = True) -> None:
    """Of Rubin 1981."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = hierarchical_models.effect("theta", mu, tau, 8, is_centred)
    numpyro.sample("y", dist.Normal(theta, SIGMA).to_event(1), obs=Y)


def spread(values: list[float]) -> str:
    """Least and largest over seeds."""
    return f"{min(values):.3f} to {max(values):.3f}"


def chains_of(kernel, num_steps: int) -> MCMC:
    """Four chains of as many steps of warm-up as draws, whose programs all seeds share."""
    return MCMC(
        kernel,
        num_warmup=num_steps,
        num_samples=num_steps,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )


def from_defaults(mcmc: MCMC, seed: int) -> dict:
    """What chains found, and what all of them cost."""
    key_warmup, key_run = jax.random.split(jax.random.key(seed))
    mcmc.warmup(key_warmup, extra_fields=("num_steps",), collect_warmup=True)
    in_warmup = mcmc.get_extra_fields()["num_steps"].astype(float).sum() / 4
    mcmc.run(key_run, extra_fields=("num_steps", "diverging"))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    gradients = fields["num_steps"].astype(float).sum()
    diverging = fields["diverging"].sum()
    return worth_of(mcmc.get_samples(True), gradients, in_warmup, diverging)


def worth_of(draws: dict, gradients: float, in_warmup: float, diverging: int) -> dict:
    """Of the draws (chains, draws, ...) of the sites of a centred model, and all gradients."""
    num_draws = next(iter(draws.values())).shape[1]
    draws = {k: np.asarray(leaf, float) for k, leaf in draws.items()}
    draws = {k: x for k, x in draws.items() if not k.endswith(hierarchical_models.NOISE)}
    draws = {k: np.log(x) if (x > 0).all() else x for k, x in draws.items()}  # scales
    low = draws["w"] < -3.0 if "w" in draws else draws.get("tau", np.zeros(1)) < 0.0
    return {
        "worth": least_ess(draws) / gradients * 1e3,
        "rhat": worst_rhat(draws),
        "gradients": float(gradients / (4 * num_draws)),
        "in warm-up": float(in_warmup),
        "diverging": int(diverging),
        "low": float(low.mean()),
    }


COLUMNS_OF_LEARNING = [
    *("posterior", "sampler", "seeds", "ESS per 1,000 gradients", "over seeds"),
    *("worst R-hat", "gradients of a draw", "gradients of the warm-up"),
    *("divergences", "mass of the neck"),
]


def models_in_both_forms(quick: bool) -> dict:
    """By name, what makes a hierarchy, centred or not."""
    models = {
        "funnel, D = 10": partial(partial, funnel, 10),
        "eight schools": partial(partial, eight_schools),
        **hierarchical_models.MODELS,
    }
    return dict(list(models.items())[: 2 if quick else None])


def row_of(name: str, label: str, kernel, seeds: int, num_steps: int, has_neck: bool) -> list:
    """A kernel from defaults, with several seeds."""
    jax.clear_caches()  # the programs of all kernels are more than a process may map
    mcmc, key = chains_of(kernel, num_steps), ("learned", name, label, num_steps)
    runs = [REPORT.once((*key, seed), from_defaults, mcmc, seed) for seed in range(seeds)]
    of = {each: [run[each] for run in runs] for each in runs[0]}
    means = [float(np.mean(of[each])) for each in ("worth", "gradients", "in warm-up")]
    low = f"{np.mean(of['low']):.3f}" if has_neck else ""
    row = [name, label, seeds, means[0], spread(of["worth"]), max(of["rhat"]), *means[1:]]
    return [*row, float(np.mean(of["diverging"])), low]


def written_by_noise(quick: bool) -> Section:
    """AutoNUTS on models that are not centred."""
    num_steps = 100 if quick else 1_000
    rows = [
        row_of(
            *(name, "AutoNUTS, not centred", AutoNUTS(make(is_centred=False))),
            *(1 if quick else 3, num_steps),
            has_neck=name in ("funnel, D = 10", "eight schools"),
        )
        for name, make in models_in_both_forms(quick).items()
    ]
    return Section(
        "Effects that are written by their noise",
        "The same posteriors, written with `mu + tau * z`, as in the table of coordinates that are "
        "learned.",
        COLUMNS_OF_LEARNING,
        rows,
    )


def learned_coordinates(quick: bool) -> Section:
    """AutoNUTS beside both forms of NUTS, and AutoMALA."""
    num_steps = 100 if quick else 1_000
    rows = []
    for name, make in models_in_both_forms(quick).items():
        few, many = (1, 1) if quick else (3 if len(rows) < 12 else FEW_SEEDS, SEEDS)
        samplers = {
            "AutoNUTS": (AutoNUTS, True, many),
            "NUTS": (NUTS, True, few),
            "NUTS, not centred": (NUTS, False, few),
            "NUTS, dense": (partial(NUTS, dense_mass=True), True, few),
            "NUTS, dense, not centred": (partial(NUTS, dense_mass=True), False, few),
            "AutoMALA": (AutoMALA, True, few),
        }
        for label, (kernel, is_centred, seeds) in samplers.items():
            if "dense" in label and name in WITHOUT_DENSE:
                continue
            kernel = kernel(make(is_centred=is_centred))
            rows.append(row_of(name, label, kernel, seeds, num_steps, has_neck=len(rows) < 12))
    return Section(
        "Coordinates that are learned",
        "Four vectorized chains from defaults, 1,000 steps of warm-up and 1,000 draws. ESS is the "
        "least bulk ESS of a site of the centred model, scales in logarithms, per 1,000 gradients: "
        "the mean over seeds, and the least and the largest. A dense metric of NUTS is left out "
        "where there are 200 effects and more: on 500 groups a run was stopped after 14 minutes "
        "of a processor. The neck has a mass of 0.159 on the funnel (w < -3) and of 0.200 on the "
        "eight schools (tau < 1). Gradients of the warm-up are per chain.",
        COLUMNS_OF_LEARNING,
        rows,
    )


def walks(quick: bool) -> Section:
    """AutoNUTS and NUTS on random walks, in both forms."""
    num_steps, rows = 100 if quick else 1_000, []
    (y,) = large_models.returns_data()
    for days in (60,) if quick else (100, 1_000):
        for is_centred, form in ((True, ""), (False, ", not centred")):
            for kernel, seeds in ((AutoNUTS, 3), (NUTS, FEW_SEEDS)):
                model = partial_named(large_models.returns, y[:days], is_centred=is_centred)
                seeds = 1 if quick else seeds
                label = f"{kernel.__name__}{form}"
                row = row_of(
                    f"{days:,} days", label, kernel(model), seeds, num_steps, has_neck=False
                )
                rows.append(row[:-1])
    return Section(
        "Random walks",
        "Stochastic volatility: daily returns, log scales a random walk of unknown step, "
        "written as `GaussianRandomWalk` or as `step * cumsum(z)`. As in the table of "
        "coordinates that are learned.",
        COLUMNS_OF_LEARNING[:-1],
        rows,
    )


def of_nutpie(model, num_steps: int, seed: int) -> dict:
    """As :func:`from_defaults`."""
    found = nutpie_run.nutpie_chains(model, num_steps, seed)
    return worth_of(found["draws"], found["gradients"], found["in warm-up"], found["diverging"])


def best_setting(name: str, label: str, make, num_steps: int, quick: bool) -> dict:
    """The setting of the grid of the sampler `label` with most ESS per gradient, on one seed."""
    settings = hierarchy_peers.GRIDS[label][: 1 if quick else None]
    if len(settings) == 1:
        return settings[0]
    worth = []
    for setting in settings:
        key = ("grid", name, label, hierarchy_peers.setting_name(setting), num_steps)
        mcmc = chains_of(hierarchy_peers.kernel_of(label, setting, make), num_steps)
        worth.append(REPORT.once(key, from_defaults, mcmc, SEED_OF_GRIDS)["worth"])
    return settings[int(np.argmax(worth))]


def peers_on(name: str, make, num_steps: int, seeds: int, quick: bool) -> list:
    """Rows of one posterior."""

    def row(label, setting, run):
        key = ("peers", name, label, num_steps)
        runs = [REPORT.once((*key, seed), run, seed) for seed in range(seeds)]
        of = {each: [found[each] for found in runs] for each in runs[0]}
        means = {each: float(np.mean(values)) for each, values in of.items()}
        return [
            *(name, label, setting, seeds, means["worth"], spread(of["worth"]), max(of["rhat"])),
            *(means["gradients"], means["in warm-up"], means["diverging"]),
            f"{means['low']:.3f}" if "groups" not in name else "",
        ]

    rows = []
    for label in hierarchy_peers.GRIDS:
        jax.clear_caches()  # the programs of all kernels are more than a process may map
        setting = best_setting(name, label, make, num_steps, quick)
        mcmc = chains_of(hierarchy_peers.kernel_of(label, setting, make), num_steps)
        run = partial(from_defaults, mcmc)
        rows.append(row(label, hierarchy_peers.setting_name(setting), run))
    for label, is_centred in (("nutpie", True), ("nutpie, not centred", False)):
        if nutpie_run.is_installed():
            rows.append(
                row(label, "defaults", partial(of_nutpie, make(is_centred=is_centred), num_steps))
            )
    return rows


PEERS_TEXT = (
    "Four vectorized chains, 1,000 steps of warm-up and 1,000 draws; columns and truths are those "
    "of 'Coordinates that are learned'. Where a sampler has settings, the row has those with most "
    "ESS per gradient of a small grid, on a seed of its own: {grids}. A draw of interleaved HMC "
    "(arXiv 1906.03028) is a transition of NumPyro's NUTS in each form. AutoStep HMC is "
    "`blackjax.gist_step_size`, from a step of 0.3 that it doubles or halves. WALNUTS (arXiv "
    "2506.18746) is written from what its authors have published; 'finer' is how often it halves "
    "its steps once more, and its macro step is adapted to an acceptance of 0.8, as in their code. "
    "Of MAKLA (arXiv 2509.09162) what is certain is here: generalized HMC of single BCSS2 steps, "
    "eight of them a draw, adapted to an acceptance of 0.9. These three have the start and the "
    "variances of the warm-up of `BlackJAXKernel`. All gradients of steps count, those of searches "
    "for a step size, of checks that a step can be undone, and of changes of the form with them; "
    "those of the start of `BlackJAXKernel` and of AutoNUTS, before the first step, do not. nutpie "
    "has its defaults, and not centred it is given coordinates that a user chose. automcmc, of the "
    "authors of AutoStep, could not be installed from the package index. ESS is that of the places "
    "that were seen: beside it stands the mass of the neck. {above}"
)


def above_ours(rows: list) -> str:
    """Where another sampler has more than AutoNUTS, the first row of each posterior."""
    ours = {row[0]: row[4] for row in reversed(rows) if row[1] == "AutoNUTS"}
    above = [f"{row[1]} ({row[0]})" for row in rows if row[4] > ours[row[0]]]
    return f"More ESS per gradient than AutoNUTS: {', '.join(above) or 'none of them'}."


def grids_in_words() -> str:
    """The grids of settings."""
    return "; ".join(
        f"{label}: {' or '.join(map(hierarchy_peers.setting_name, grid))}"
        for label, grid in hierarchy_peers.GRIDS.items()
        if len(grid) > 1
    )


def learned_peers(quick: bool) -> Section:
    """AutoNUTS beside other samplers that change coordinates or step sizes."""
    models = {
        "funnel, D = 10": partial(partial, funnel, 10),
        "eight schools": partial(partial, eight_schools),
        GROUPS: hierarchical_models.MODELS[GROUPS],
    }
    num_steps, rows = 50 if quick else 1_000, []
    for name, make in dict(list(models.items())[: 1 if quick else None]).items():
        seeds = 1 if quick or name == GROUPS else 3
        rows += peers_on(name, make, num_steps, seeds, quick)
    return Section(
        "Peers of learned coordinates",
        PEERS_TEXT.format(grids=grids_in_words(), above=above_ours(rows)),
        [
            *("posterior", "sampler", "setting", "seeds", "ESS per 1,000 gradients", "over seeds"),
            *("worst R-hat", "gradients of a draw", "gradients of the warm-up"),
            *("divergences", "mass of the neck"),
        ],
        rows,
    )


def draws_of_the_funnel(kernel, num_steps: int) -> dict:
    """The draws of w of four chains from defaults, and the gradients of a chain."""
    fields = ("num_steps",)
    run = run_chains(kernel, (), num_steps, num_steps, fields=fields, seed=0)
    return {"w": run.draws["w"], "gradients": float(run.fields["num_steps"].sum() / 4)}


def necks(quick: bool) -> Section:
    """A picture of what samplers find of the funnel, over the truth."""
    num_steps = 100 if quick else 1_000
    samplers = {"NUTS": NUTS, "AutoMALA": AutoMALA, "AutoNUTS": AutoNUTS}
    w = np.linspace(-10, 10, 200)
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharex=True, sharey=True)
    rows = []
    for ax, (label, kernel) in zip(axes, samplers.items(), strict=True):
        key = ("necks", label, num_steps)
        found = REPORT.once(key, draws_of_the_funnel, kernel(funnel), num_steps)
        draws = np.asarray(found["w"])
        ax.hist(draws.ravel(), bins=40, range=(-10, 10), density=True, alpha=0.5)
        ax.plot(w, np.exp(-(w**2) / 18) / np.sqrt(18 * np.pi), "k", lw=1)
        ax.axvline(-3, color="grey", lw=0.8, ls=":")
        low, rhat = float((draws < -3).mean()), worst_rhat(draws)
        ax.set(title=f"{label}: {low:.3f} below -3", xlabel="w", yticks=[])
        rows.append([label, low, rhat, found["gradients"]])
    figure.tight_layout()
    REPORT.picture(figure, "hierarchies_necks.png")
    return Section(
        "Necks",
        "Draws of w on the ten-dimensional funnel, four vectorized chains from defaults with seed "
        "0, 1,000 steps of warm-up and 1,000 draws; the line is the truth, with 0.159 below -3."
        "\n\n![Draws of three samplers over the truth](hierarchies_necks.png)",
        ["sampler", "mass of the neck", "R-hat", "gradients of a chain"],
        rows,
    )


REPORT = Report(
    "hierarchies",
    "Hierarchies as they are written",
    by_name(
        learned_coordinates,
        written_by_noise,
        walks,
        learned_peers,
        necks,
    ),
    long=("learned_peers",),
)

if __name__ == "__main__":
    REPORT.main()
