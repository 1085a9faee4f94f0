"""Hierarchies as they are usually written, from defaults: ``python benchmarks/hierarchies.py``.

Steps that adapt to the place (AutoMALA) beside fixed ones and NUTS. The unit of cost is an
evaluation: a gradient, K JVPs at one place, or a metric.
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

import blackjax_ext
from benchmarks.harness import hierarchies as hierarchical_models
from benchmarks.harness import hierarchy_peers, large_models, nutpie_run
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.harness.runs import run_chains
from numpyro_fwd import (
    FMALA,
    HPMALA,
    MALA,
    MCMC,
    AutoMALA,
    AutoNUTS,
    PCLineFMALA,
    RandomWalk,
)
from tests.numpyro_fwd.kernels import posteriordb_models

SEEDS, FEW_SEEDS = 10, 1
WARMUP, DRAWS = 5_000, 100_000
FUNNEL_DRAWS, SCHOOLS_DRAWS = 200_000, 400_000  # of the samplers that are to reach the truth
SEED_OF_GRIDS = 100
GROUPS = "500 groups of 5 counts"
# a dense metric on hundreds of effects: one run was stopped after 14 minutes of a processor
WITHOUT_DENSE = (GROUPS, "200 groups, half of 2 rows, half of 100", "item response, 400 x 30")
NECK = 0.158655  # of a normal, below -1 sd
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


def horseshoe(is_centred: bool = True) -> None:
    """Regression of 60 rows on 10 covariates, two of which matter."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 10))
    y = x[:, 0] - 0.5 * x[:, 1] + 0.5 * rng.normal(size=60)
    tau = numpyro.sample("tau", dist.HalfCauchy(0.2))
    scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([10]).to_event(1))
    if is_centred:
        beta = numpyro.sample("beta", dist.Normal(0, tau * scale).to_event(1))
    else:
        beta = tau * scale * numpyro.sample("z", dist.Normal(0, 1).expand([10]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def volatility(is_centred: bool = True) -> None:
    """Stochastic volatility of 60 returns, log variances a random walk."""
    rng = np.random.default_rng(1)
    y = np.exp(0.5 * np.cumsum(0.2 * rng.normal(size=60))) * rng.normal(size=60)
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    if is_centred:
        h = numpyro.sample("h", dist.GaussianRandomWalk(tau, 60))
    else:
        h = tau * jnp.cumsum(numpyro.sample("z", dist.Normal(0, 1).expand([60]).to_event(1)))
    numpyro.sample("y", dist.Normal(0, jnp.exp(h / 2)), obs=y)


def logistic(is_centred: bool = True) -> None:
    """Logistic regression of 500 rows in 50 groups, with an intercept for each."""
    rng = np.random.default_rng(2)
    group = np.arange(500) % 50
    x = rng.normal(size=500)
    p = 1 / (1 + np.exp(-(0.5 * x + 0.4 * rng.normal(size=50)[group])))
    y = rng.binomial(1, p)
    slope, mu = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("slope", "mu"))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    if is_centred:
        a = numpyro.sample("a", dist.Normal(mu, tau).expand([50]).to_event(1))
    else:
        a = mu + tau * numpyro.sample("z", dist.Normal(0, 1).expand([50]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=slope * x + a[group]), obs=y)


def kernels(model) -> dict:
    """The samplers, from defaults: kernel, JVPs per evaluation, draws as a share of all."""
    return {
        "AutoMALA": (AutoMALA(model), 1, 1.0),
        "AutoMALA, centred": (AutoMALA(model, learn_coordinates=False), 1, 1.0),
        "MALA": (MALA(model), 1, 1.0),
        "FMALA, 1 tangent": (FMALA(model), 1, 1.0),
        "PC-Line-FMALA": (PCLineFMALA(model), 2, 0.5),
        "random walk": (RandomWalk(model), 1, 1.0),
        "HP-MALA": (HPMALA(model), 1, 0.2),
        "NUTS": (NUTS(model), 1, 0.1),
        "NUTS, not centred": (NUTS(partial_named(model, is_centred=False)), 1, 0.1),
    }


def low_of(draws: dict, site: str) -> tuple[np.ndarray, float]:
    """The unconstrained coordinate of the neck, (chains, draws), and where the neck begins."""
    return draws[site].astype(np.float64), -3.0 if site == "w" else 0.0


def measure(kernel, site: str, num_draws: int, seed: int) -> dict:
    """One run of four chains from defaults."""
    fields = ("num_steps",) if not isinstance(kernel, NUTS) else ("num_steps", "accept_prob")
    run = run_chains(kernel, (), min(WARMUP, num_draws), num_draws, fields=fields, seed=seed)
    x, neck = low_of(run.draws, site)
    evaluations = float(run.fields["num_steps"].astype(float).sum())
    moved = np.mean(np.diff(x, axis=1) != 0, axis=1)
    return {
        "rhat": worst_rhat(x),
        "ess": least_ess(x),
        "ess of low": least_ess((x < neck) * 1.0, "mean"),
        "mean": float((x if site == "w" else np.exp(x)).mean()),
        "sd": float(x.std()),
        "low": float((x < neck).mean()),
        "evaluations": evaluations,
        "per step": evaluations / x.size,
        "seconds": run.sampling,
        "least moved": float(moved.min()),
    }


COLUMNS = [
    *("sampler", "seeds", "draws of a chain", "evaluations of a step", "worst R-hat"),
    *("mean", "sd", "mass of the neck", "ESS of w", "ESS of the neck"),
    *("ESS per second", "least share moved"),
]


def spread(values: list[float]) -> str:
    """Least and largest over seeds."""
    return f"{min(values):.3f} to {max(values):.3f}"


def table(
    model, size: int, site: str, draws: tuple[int, int], seeds: tuple[int, int], names=None
) -> list:
    """A row for each sampler: with most draws and seeds for the first."""
    rows = []
    for i, (name, (kernel, cost, share)) in enumerate(kernels(model).items()):
        if names is not None and name not in names:
            continue
        num_draws, num_seeds = int(share * draws[i > 0]), seeds[i > 0]
        key = (model.__name__, size, name, num_draws)
        runs = [
            REPORT.once((*key, seed), measure, kernel, site, num_draws, seed)
            for seed in range(num_seeds)
        ]
        of = {each: [run[each] for run in runs] for each in runs[0]}
        cost = 1e5 / cost
        per = [np.mean(np.divide(of[e], of["evaluations"])) * cost for e in ("ess", "ess of low")]
        rows.append(
            [
                *(name, num_seeds, num_draws, float(np.mean(of["per step"])), max(of["rhat"])),
                *(spread(of[each]) for each in ("mean", "sd", "low")),
                *map(float, per),
                *(float(np.mean(np.divide(of["ess"], of["seconds"]))), min(of["least moved"])),
            ]
        )
    return rows


TEXT = (
    "Four vectorized chains from defaults, {warmup:,} steps of warm-up. {truth} Means, standard "
    "deviations and masses are the least and the largest over seeds; ESS is per 100,000 gradients "
    "or JVPs, of the draws after the warm-up."
)


def neck_of_the_funnel(quick: bool) -> Section:
    """Neal's funnel in 10 dimensions."""
    draws, seeds = (300, (1, 1)) if quick else (FUNNEL_DRAWS, (SEEDS, FEW_SEEDS))
    draws = draws, min(draws, DRAWS)
    truth = "In truth w has mean 0, sd 3, and the neck, w < -3, a mass of 0.159."
    rows = table(partial_named(funnel, 10), 10, "w", draws, seeds)
    return Section("Funnel, D = 10", TEXT.format(warmup=WARMUP, truth=truth), COLUMNS, rows)


def errors_on_the_funnel(quick: bool) -> Section:
    """What the draws are worth by their errors, since ESS does not know of a neck never seen."""
    num_seeds, evaluations = (1, 4_000) if quick else (SEEDS // 2, 1_000_000)
    model = partial_named(funnel, 10)
    made = {  # and the evaluations of a step; NUTS starts once, so each seed has a kernel
        "AutoMALA": (lambda: AutoMALA(model), 1.1),
        "AutoMALA, centred": (lambda: AutoMALA(model, learn_coordinates=False), 2.1),
        "MALA": (lambda: MALA(model), 1),
        "random walk": (lambda: RandomWalk(model), 1),
        "NUTS": (lambda: NUTS(model), 22),
        "NUTS, not centred": (lambda: NUTS(partial_named(model, is_centred=False)), 7),
    }
    rows = []
    for name, (make, cost) in made.items():
        draws = int(evaluations / (4 * cost))
        runs = [
            REPORT.once(("errors", name, draws, seed), measure, make(), "w", draws, seed)
            for seed in range(num_seeds)
        ]
        of = {each: np.array([run[each] for run in runs]) for each in runs[0]}
        mean, low = (np.sqrt(np.mean((of[e] - t) ** 2)) for e, t in (("mean", 0), ("low", NECK)))
        used = of["evaluations"].mean() / 1e5
        worth = (9 / mean**2 / used, NECK * (1 - NECK) / low**2 / used)
        claimed = [float(np.mean(of[e] / of["evaluations"]) * 1e5) for e in ("ess", "ess of low")]
        rows.append(
            [
                *(name, draws, used * 1e5, float(mean), float(low)),
                *map(float, worth),
                *claimed,
                float(of["rhat"].max()),
            ]
        )
    return Section(
        "Errors on the funnel",
        f"{num_seeds} seeds, four vectorized chains from defaults, about 1e6 evaluations after "
        f"{WARMUP:,} steps of warm-up. Root mean square errors of the mean of w and of the mass "
        "of the neck; the numbers of independent draws with these errors, per 100,000 evaluations; "
        "and what ESS claims, which is that of the places that were seen. The former are known to "
        "a factor of two.",
        [
            *("sampler", "draws of a chain", "evaluations", "error of the mean"),
            *("error of the mass", "worth, mean", "worth, mass"),
            *("ESS of w", "ESS of the neck", "worst R-hat"),
        ],
        rows,
    )


def schools(quick: bool) -> Section:
    """The centred eight schools."""
    draws, seeds = (300, (1, 1)) if quick else (SCHOOLS_DRAWS, (SEEDS, FEW_SEEDS))
    draws = draws, min(draws, DRAWS)
    truth = (
        "The mean is that of tau, 3.598 by quadrature, and the sd that of log tau; the neck is "
        "tau < 1, with a mass of 0.200."
    )
    rows = table(eight_schools, 10, "tau", draws, seeds)
    columns = [c.replace("ESS of w", "ESS of log tau") for c in COLUMNS]
    return Section("Eight schools, centred", TEXT.format(warmup=WARMUP, truth=truth), columns, rows)


def larger(quick: bool) -> Section:
    """Funnels in 50 and 100 dimensions, and other hierarchies."""
    draws = 300 if quick else DRAWS // 4
    names = (
        *("AutoMALA", "AutoMALA, centred", "MALA", "random walk"),
        *("HP-MALA", "NUTS", "NUTS, not centred"),
    )
    cases = [
        *((f"funnel, D = {d}", partial_named(funnel, d), d, "w") for d in (50, 100)),
        ("horseshoe", horseshoe, 22, "tau"),
        ("volatility", volatility, 61, "tau"),
        ("logistic, 50 groups", logistic, 53, "tau"),
    ]
    rows = []
    for title, model, size, site in cases[-1:] if quick else cases:
        found = table(model, size, site, (draws, draws), (1, 1), names[:1] if quick else names)
        rows += [[title, *row] for row in found]
    text = "One seed. The mean is that of w, or of tau, and the neck is w < -3, or tau < 1."
    return Section("Larger ones", text, ["target", *COLUMNS], rows)


def easy(quick: bool) -> Section:
    """What adaptive steps cost where fixed steps fit."""
    rows = []
    for name in posteriordb_models.POSTERIORS:
        model, arguments, _ = posteriordb_models.load(name)

        def ess(label, kernel, name=name, arguments=arguments):
            seeds = range(1 if quick else 4)
            measured = partial(least_per_evaluation, kernel, arguments, quick)
            return float(np.mean([REPORT.once((name, label, s), measured, s) for s in seeds]))

        plain, auto = ess("MALA", MALA(model)), ess("AutoMALA", AutoMALA(model))
        rows.append([name, plain, auto, auto / plain])
    return Section(
        "Easy posteriors",
        "Posteriors of posteriordb, non-centred where they are hierarchies. Least bulk ESS of a "
        "coordinate per 1,000 evaluations of MALA and AutoMALA, mean of four seeds.",
        ["posterior", "MALA", "AutoMALA", "AutoMALA / MALA"],
        rows,
    )


def least_per_evaluation(kernel, arguments, quick: bool, seed: int) -> float:
    """Least bulk ESS per 1,000 gradients."""
    draws = 200 if quick else 5_000
    run = run_chains(kernel, arguments, 1000, draws, fields=("num_steps",), seed=seed)
    return run.ess / float(run.fields["num_steps"].astype(float).sum()) * 1e3


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


def lock_step(quick: bool) -> Section:
    """What vectorized chains wait for each other."""
    num_steps = 50 if quick else 2000

    def mean_and_most(num_chains, logdensity, step_size, start):
        sampler = blackjax_ext.auto_mala(logdensity, step_size)

        def chain(key, x):
            def step(state, key):
                state, info = sampler.step(key, state)
                return state, info.num_evaluations

            return jax.lax.scan(step, sampler.init(x, key), jax.random.split(key, num_steps))[1]

        n = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), num_chains), start)
        return [float(n.mean()), float(n.max(0).mean())]

    def at(name, num_chains):
        rng = np.random.default_rng(0)
        w = 3 * rng.normal(size=(num_chains, 1)) if name == "funnel" else 0.0
        x = np.exp(np.asarray(w) / 2) * rng.normal(size=(num_chains, 9))
        first = np.broadcast_to(w, (num_chains, 1)) if name == "funnel" else x[:, :1]
        start = jnp.asarray(np.concatenate([first, x], 1), jnp.float32)
        found = {"funnel": (funnel_density, 0.3), "normal": (normal_density, 0.85)}[name]
        return mean_and_most(num_chains, *found, start)

    rows = []
    for name in ("funnel", "normal"):
        for num_chains in (1, 4, 16, 64):
            mean, most = REPORT.once((name, num_chains), at, name, num_chains)
            rows.append([name, num_chains, mean, most, most / mean])
    return Section(
        "Chains in lock step",
        "Trials of a step: the mean of a chain, and what a batch of chains evaluates, which is "
        "that of the chain with most. D = 10.",
        ["target", "chains", "mean", "batch", "ratio"],
        rows,
    )


def funnel_density(x):
    """The funnel of :func:`funnel`."""
    w, rest = x[0], x[1:]
    return -0.5 * (w / 3) ** 2 - 0.5 * jnp.sum(rest**2) * jnp.exp(-w) - 0.5 * rest.size * w


def normal_density(x):
    """Standard normal."""
    return -0.5 * jnp.sum(x**2)


REPORT = Report(
    "hierarchies",
    "Hierarchies as they are written",
    by_name(
        neck_of_the_funnel,
        errors_on_the_funnel,
        schools,
        larger,
        learned_coordinates,
        written_by_noise,
        walks,
        learned_peers,
        necks,
        easy,
        lock_step,
    ),
    long=("learned_peers",),
)

if __name__ == "__main__":
    REPORT.main()
