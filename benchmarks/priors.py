"""Hierarchies without data beside forward draws, by rank tests: ``python benchmarks/priors.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import numpy as np
from scipy import stats

from benchmarks.harness import priors
from benchmarks.harness.diagnostics import ess_of, worst_rhat
from benchmarks.harness.report import Report, Section, by_name
from numpyro_fwd import MCMC, AutoMALA, AutoNUTS

SEEDS = 3
NUM_FORWARD = 20_000
PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_ENTRIES = 6  # of a site that are looked at
KERNELS = {"AutoNUTS": (AutoNUTS, 1_000), "AutoMALA": (AutoMALA, 4_000)}
IN_DOUBT = 1e-4  # p-value below which a run is made again, with another seed


def entries(values: np.ndarray, lead: int) -> np.ndarray:
    """A few entries of a site, those at its ends among them, (*lead, entries)."""
    flat = values.reshape(*values.shape[:lead], -1).astype(np.float64)
    size = flat.shape[-1]
    return flat[..., np.unique(np.linspace(0, size - 1, min(size, MOST_ENTRIES)).astype(int))]


def varies(exact: np.ndarray) -> np.ndarray:
    """Which of these entries are not constant, as those above the diagonal of a factor are."""
    return np.ptp(entries(exact, 1), axis=0) > 0


def z_scores(draws: dict, exact: dict) -> np.ndarray:
    """Of the shares of draws (chains, draws, ...) below quantiles of exact draws (num, ...).

    Standard errors are those of the effective sample size of being below, at most that of
    independent draws, and of the exact draws. Entries that do not vary are left out.
    """
    found = []
    for name in draws:
        x, truth = entries(draws[name], 2), entries(exact[name], 1)
        for i in np.flatnonzero(varies(exact[name])):
            for cut in np.quantile(truth[:, i], PLACES):
                is_low = (x[..., i] < cut).astype(float)
                share = (truth[:, i] < cut).mean()
                ess = min(ess_of(is_low, "mean"), is_low.size) if np.ptp(is_low) else 4.0
                error = np.sqrt(share * (1 - share) * (1 / ess + 1 / len(truth)))
                found.append((is_low.mean() - share) / error)
    return np.array(found)


def measured(mcmc: MCMC, exact: dict, seed: int) -> dict:
    """One run: the least p-value of its z-scores times their number, and how it went."""
    mcmc.run(jax.random.key(seed), extra_fields=("num_steps", "diverging"))
    every = mcmc.get_samples(group_by_chain=True)
    draws = {name: np.asarray(every[name]) for name in sorted(set(every) & set(exact))}
    z, fields = z_scores(draws, exact), mcmc.get_extra_fields()
    varying = {k: entries(x, 2)[..., varies(exact[k])] for k, x in draws.items()}
    return {
        "p": float(min(1.0, 2 * stats.norm.sf(np.abs(z).max()) * z.size)),
        "scores": int(z.size),
        "spread": float(np.sqrt(np.mean(z**2))),
        "rhat": worst_rhat(varying),
        "gradients": float(np.mean(fields["num_steps"])),
        "diverging": int(np.sum(fields["diverging"])),
    }


def row_of(name: str, label: str, quick: bool) -> list:
    """A structure and a kernel from defaults, with several seeds."""
    model, (kernel, num_steps) = priors.STRUCTURES[name], KERNELS[label]
    num_steps = 50 if quick else num_steps
    mcmc = MCMC(
        kernel(model),
        num_warmup=num_steps,
        num_samples=num_steps,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    exact = priors.forward_draws(model, 500 if quick else NUM_FORWARD, jax.random.key(1_000))

    def run(seed: int) -> dict:
        return REPORT.once((name, label, num_steps, seed), measured, mcmc, exact, seed)

    runs = [run(seed) for seed in range(1 if quick else SEEDS)]
    again = [run(100 + i)["p"] for i, found in enumerate(runs) if found["p"] < IN_DOUBT]
    of = {each: [found[each] for found in runs] for each in runs[0]}
    jax.clear_caches()  # the programs of all kernels are more than a process may map
    return [
        *(name, label, of["scores"][0], min(of["p"]), f"{min(again):#.2g}" if again else ""),
        *(float(np.sqrt(np.mean(np.square(of["spread"])))), max(of["rhat"])),
        *(float(np.mean(of["gradients"])), float(np.mean(of["diverging"]))),
    ]


def ranks(quick: bool) -> Section:
    """Marginals of hierarchies without data beside forward draws."""
    names = list(priors.STRUCTURES)[: 2 if quick else None]
    rows = [row_of(name, label, quick) for name in names for label in KERNELS]
    return Section(
        "Priors alone",
        f"Hierarchies without data: four vectorized chains from defaults, as many steps of warm-up "
        f"as draws ({', '.join(f'{label} {num:,}' for label, (_, num) in KERNELS.items())}), "
        f"{SEEDS} seeds, beside {NUM_FORWARD:,} forward draws of the model. A score is the share "
        "of draws below a quantile "
        f"({', '.join(f'{100 * p:.0f}' for p in PLACES)} %) of the forward draws, less the "
        "quantile, over its standard error from the effective sample size of being below, for up "
        f"to {MOST_ENTRIES} entries of each site. The p-value is that of the largest score times "
        "the number of scores (Bonferroni), the least over seeds; a run with less than "
        f"{IN_DOUBT:.0e} was made again with another seed. Scores of right draws have a root mean "
        "square of about one. R-hat is rank-normalized, the worst of entries and seeds; gradients "
        "are per draw, divergences per run.",
        [
            *("structure", "sampler", "scores", "least p-value", "with another seed"),
            *("rms of scores", "worst R-hat", "gradients of a draw", "divergences"),
        ],
        rows,
    )


REPORT = Report("priors", "Priors alone", by_name(ranks))

if __name__ == "__main__":
    REPORT.main()
