"""The tour of every kernel: a regression, a funnel and a small network."""

import argparse
import textwrap
import time
import warnings

import jax
import numpy as np
import optax
from tqdm import tqdm

from numpyro_fwd import GOHSMC, OHSMC, SGSMC
from numpyro_fwd.demo import pictures, sampling
from numpyro_fwd.demo.chapter import text_table
from numpyro_fwd.demo.chapters import network

__all__ = ["tour"]

READING = """
ESS and R-hat: of the worst parameter, over four chains. ESS/s: warm-up included, compilation not.
mean-error: largest error of a posterior mean in sds of the reference (regression: NUTS; funnel: the
exact distribution); sd-ratio: posterior sd over that of the reference where it is farthest from 1.
Trust a row with R-hat below 1.01 and several hundred ESS. On the funnel expect none: a step size
that suits its mouth is too long for its neck, NUTS included (funnel_scatter.png). LangevinSMC has
particles for chains: no R-hat, an ESS by their families, four groups of them in pictures (on the
funnel there is no likelihood to anneal). SGHMC is biased."""


def tour(options: argparse.Namespace) -> None:
    """Sample both targets with every kernel of chains or particles."""
    for target in (sampling.logistic_regression(), sampling.funnel()):
        demonstrate(target, options)
    print(READING)
    print(networks(options))


def networks(options: argparse.Namespace) -> str:
    """A small network with one Bayesian layer, by the samplers of partial networks."""
    rng = np.random.default_rng(options.seed)
    train, test = network.network_data(150, rng), network.network_data(200, rng)
    rows: list[tuple[str, ...]] = []
    for sampler in (GOHSMC, OHSMC, SGSMC):
        smc = sampler(network.model, optax.adam(0.01), num_particles=40)
        key, begin = jax.random.key(options.seed), time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = smc.run(key, 100 if options.quick else 1500, *train, progress_bar=False)
        say(sampler.__name__, [str(warning.message) for warning in caught])
        prediction = smc.predict(jax.random.fold_in(key, 1), result, *test, num_samples=200)
        assert prediction.log_score is not None
        nll = -float(np.mean(prediction.log_score["y"]))
        seconds = f"{time.perf_counter() - begin:.1f}"
        rows.append((sampler.__name__, f"{nll:.2f}", f"{result.params['noise']:.2f}", seconds))
    header = ("network", "NLL, new rows", "noise (truth 0.15)", "seconds with compilation")
    return text_table(header, rows)


def say(sampler: str, said: list[str]) -> None:
    """Print what a sampler warned of."""
    for text in said:
        print(textwrap.fill(f"Said by {sampler}: {text}", 100, subsequent_indent="  "))


def demonstrate(target: sampling.Target, options: argparse.Namespace) -> None:
    """Sample one target with every sampler; write its files and print its table."""
    runs = []
    bar = tqdm(
        list(sampling.budgets(target, options.quick)),
        bar_format="{desc} {bar:30} {n}/{total} {elapsed}",
    )
    for i, (sampler, budget) in enumerate(bar):
        bar.set_description(f"{target.name}: {sampler.__name__:<12}")
        key = jax.random.fold_in(jax.random.key(options.seed), i)
        runs.append(sampling.run(target, sampler, budget, key))
        runs[-1].idata.to_netcdf(str(options.out / f"{target.name}_{sampler.__name__}.nc"))
    print(f"\n{sampling.run_table(target, runs)}\n", flush=True)
    for run in runs:
        say(run.sampler, run.said)
    pictures.traces_and_ranks(target, runs, options.out / f"{target.name}_traces.png")
    if target.name == "funnel":
        pictures.funnel_scatter(runs, options.out / "funnel_scatter.png", options.seed)
