"""Every weight of a network sampled: ``python benchmarks/full_networks.py``.

The networks and splits of ``benchmarks/smc.py`` for red wine and California housing, where the
paper samples the first layer and optimizes the rest. Here NUTS, a random walk and Langevin samplers
have the posterior of all weights, on all rows at once: is sampling one layer worth it? ``--full``
takes longer chains. The data come from the folder in the environment variable NUMPYRO_FWD_DATA, or
../shared/data.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from benchmarks.harness import data as sources
from benchmarks.harness.partial_networks import FIRST, Dense3, Task, split_of
from benchmarks.harness.problems import (
    FORWARD_MODE,
    Chains,
    Problem,
    diagnostics,
    mixture_nll,
    nuts_chains,
    tuned_chains,
)
from benchmarks.harness.report import Report, Section, by_name
from benchmarks.peers_from_papers import mile

SCALE = 0.7  # median of the noise, where the optimized one of the other table starts
STEP_SIZES = np.geomspace(1e-3, 3.0, 9)
NAMES = ("random walk", "MALA", "FMALA", "PC-Line-FMALA")


# Model


class Position(NamedTuple):
    """All that is sampled, standard normal before the data: weights, and log(noise / 0.7)."""

    weights: Any
    log_noise: jax.Array


class Outputs(NamedTuple):
    """Of a draw: outputs at the test and validation points, and the standard deviation of noise."""

    test: jax.Array
    validation: jax.Array
    noise: jax.Array


def scaled(weights: dict) -> dict:
    """Weights of the network: N(0, 1) in the first layer and for biases, else N(0, 1 / inputs)."""

    def layer(name, leaves):
        inputs = len(leaves["kernel"])
        return leaves if name == FIRST else {**leaves, "kernel": leaves["kernel"] / inputs**0.5}

    return {name: layer(name, leaves) for name, leaves in weights.items()}


def outputs(net: Dense3, position: Position, x):
    return net.apply({"params": scaled(position.weights)}, x)


def logdensity(position: Position, x, y, *_, net: Dense3):
    """Posterior of the weights and the noise, with all rows."""
    prior = sum(jnp.sum(norm.logpdf(leaf)) for leaf in jax.tree.leaves(position))
    noise = SCALE * jnp.exp(position.log_noise)
    return prior + jnp.sum(norm.logpdf(y, outputs(net, position, x), noise))


def collect(position: Position, x, y, test, validation, *, net: Dense3) -> Outputs:
    both = outputs(net, position, jnp.concatenate([test, validation]))
    noise = SCALE * jnp.exp(position.log_noise)
    return Outputs(both[: len(test)], both[len(test) :], noise)


def start(rng_key, *, net: Dense3, num_inputs: int) -> Position:
    """A draw from the prior."""
    shapes = jax.eval_shape(net.init, rng_key, jnp.zeros((1, num_inputs)))["params"]
    like = Position(shapes, jnp.zeros(()))
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(rng_key, len(leaves))
    draws = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, draws)


def problem_of(width: int, task: Task) -> Problem:
    net, num_inputs = Dense3(width), task.train.x.shape[1]
    data = tuple(map(jnp.asarray, (*task.train, task.test.x, task.validation.x)))
    return Problem(
        partial(logdensity, net=net),
        partial(collect, net=net),
        partial(start, net=net, num_inputs=num_inputs),
        data,
        burn_in=0.5,
    )


# What the chains predict


def scores(kept: Outputs, task: Task) -> tuple[float, float]:
    """Squared error of the mean in raw units; minus mean log density in standardized ones."""
    error = np.mean((kept.test.mean(0) - task.test.y) ** 2) * task.scale**2
    return float(error), mixture_nll(kept.test, kept.noise[:, None], task.test.y)


def measure(found: Chains, task: Task, truth: np.ndarray | None = None) -> dict:
    """Scores of one chain, averaged over chains, and the mean outputs at the test points."""
    kept = jax.tree.map(lambda leaf: leaf.astype(float), found.kept)
    mean = kept.test.mean((0, 1))
    each = [scores(Outputs(*leaves), task) for leaves in zip(*kept, strict=True)]
    traces = np.concatenate([found.logdensity[..., None], kept.test[..., :20]], axis=-1)
    apart = kept.test.mean(1) - (mean if truth is None else truth)
    return {
        "numbers": [
            *(found.step_size, float(found.acceptance.mean()), *np.mean(each, axis=0)),
            *(float(np.mean(apart**2) ** 0.5), *diagnostics(traces)),
            *(float(found.logdensity.mean()), 1e3 * found.seconds),
        ],
        "mean": mean,
    }


COLUMNS = [
    "sampler", "step size", "acceptance", "test loss", "sd", "NLL", "distance", "ESS", "R-hat",
    "log density", "ms per step",
]  # fmt: skip


class Size(NamedTuple):
    """How much a section does."""

    num_seeds: int
    num_search: int
    num_draws: int
    thinning: int
    num_chains: int
    nuts: tuple[int, int, int]  # warm-up steps, draws, tree depth


QUICK = Size(2, 2, 8, 2, 2, (4, 4, 2))
SIZES = {
    "wine": Size(5, 20, 200, 50, 2, (300, 300, 7)),
    "california": Size(2, 10, 80, 25, 2, (200, 100, 6)),
}
FULL_SIZES = {
    "wine": Size(5, 100, 1_000, 100, 4, (1_000, 1_000, 10)),
    "california": Size(5, 100, 1_000, 100, 4, (1_000, 1_000, 10)),
}
DATA = {"wine": (sources.wine, 20), "california": (sources.california, 50)}


def reference(problem: Problem, task: Task, size: Size) -> dict:
    """NUTS, whose mean outputs the others are held against."""
    *lengths, depth = size.nuts
    return measure(nuts_chains(problem, *lengths, size.num_chains, depth), task)


def sampler(problem: Problem, task: Task, size: Size, name: str, truth: np.ndarray) -> dict:
    """A sampler with the step size of the least validation loss."""

    def loss(kept: Outputs) -> float:
        return float(np.mean((kept.validation.mean(0) - task.validation.y) ** 2))

    found = tuned_chains(
        *(problem, FORWARD_MODE[name], STEP_SIZES, loss),
        *(size.num_search, size.num_draws, size.thinning, size.num_chains),
    )
    return measure(found, task, truth)


def split_rows(data: str, size: Size, names: tuple[str, ...], seed: int) -> dict[str, list]:
    """Numbers of every sampler on one split."""
    read, width = DATA[data]
    task = split_of(read(), seed)
    problem = problem_of(width, task)
    nuts = REPORT.once(("NUTS", *size[1:], seed), reference, problem, task, size)
    found = {"NUTS": nuts["numbers"]}
    for name in names:
        key = (name, *size[1:], seed)
        unit = REPORT.once(key, sampler, problem, task, size, name, nuts["mean"])
        found[name] = unit["numbers"]
    return found


def table(data: str, title: str, units: str, quick: bool) -> Section:
    size = QUICK if quick else (FULL_SIZES if REPORT.is_full else SIZES)[data]
    names = NAMES[:2] if quick else NAMES
    splits = [split_rows(data, size, names, seed) for seed in range(size.num_seeds)]
    *lengths, depth = size.nuts
    rows = []
    for name in ("NUTS", *names):
        numbers = np.array([split[name] for split in splits], float)
        mean, deviation = numbers.mean(0), numbers[:, 2].std(ddof=1)
        step_size = "" if name == "NUTS" else float(np.median(numbers[:, 0]))
        rows.append([name, step_size, *mean[1:3], deviation, *mean[3:]])
    width = DATA[data][1]
    return Section(
        f"Every weight sampled, {title}",
        f"Three dense layers (width {width}, GeLU) as in the table of `benchmarks/smc.py {data}`, "
        "with the same splits, loss and NLL, but all weights and the noise are sampled, with all "
        "rows at once: priors N(0, 1) for the first layer and the biases, N(0, 1 / inputs) for "
        f"the other kernels. {size.num_draws * size.thinning:,} steps, half of them dropped, every "
        f"{size.thinning}th kept, {size.num_chains} chains from the prior; step sizes: of "
        f"{len(STEP_SIZES)} the one with the least validation loss in "
        f"{size.num_search * size.thinning:,} steps with another seed, the median over splits is "
        f"shown. NUTS: {lengths[1]:,} draws after {lengths[0]:,} warm-up steps, at most "
        f"{2**depth - 1} leapfrog steps. Scores are of one chain, averaged over chains and "
        f"{size.num_seeds} splits; sd: over the splits; the loss is in {units}. Distance: root "
        "mean square between the mean outputs of a chain and of all chains of NUTS at the test "
        "points, standardized. ESS (of the draws kept) and R-hat: the worst of the log density and "
        "the outputs at 20 test points. Processor time of a step of one chain, of a draw for NUTS.",
        COLUMNS,
        rows,
    )


def wine(quick: bool) -> Section:
    """Test loss of samplers of all weights on red wine."""
    return table("wine", "red wine", "points of quality squared", quick)


def california(quick: bool) -> Section:
    """Test loss of samplers of all weights on California housing."""
    return table("california", "California housing", "(100,000 dollars) squared", quick)


MEMBERS, OPTIMIZING = 4, 5_000  # of an ensemble; steps of Adam


def ensemble(problem: Problem, task: Task, size: Size, seed: int, is_quick: bool) -> dict:
    """Squared error and NLL of MILE's members, of their mixture, and of the members as trained."""
    logdensity = lambda p: problem.logdensity(p, *problem.data)  # noqa: E731
    collected = lambda p: problem.collect(p, *problem.data)  # noqa: E731

    def validation(position):
        return jnp.mean((collected(position).validation - task.validation.y) ** 2)

    def member(rng_key):
        key_start, key_run = jax.random.split(rng_key)
        steps = 100 if is_quick else OPTIMIZING
        best = mile.optimized(problem.start(key_start), logdensity, validation, steps)
        lengths = (size.num_draws * size.thinning, size.num_draws, size.thinning)
        return collected(best), mile.sampled(key_run, best, logdensity, collected, *lengths)

    start = time.process_time()
    keys = jax.random.split(jax.random.key(seed), 2 if is_quick else MEMBERS)
    trained, kept = jax.tree.map(np.asarray, jax.jit(lambda k: jax.lax.map(member, k))(keys))
    seconds = time.process_time() - start
    each = [scores(Outputs(*leaves), task) for leaves in zip(*kept, strict=True)]
    mixed = Outputs(*(np.concatenate(leaf) for leaf in kept))
    return {
        "ensemble as trained": [*scores(trained, task), float("nan")],
        "MILE, one member": [*np.mean(each, axis=0), seconds / len(keys)],
        "MILE": [*scores(mixed, task), seconds],
    }


def ensembles(quick: bool) -> Section:
    """Microcanonical Langevin ensembles on both."""
    rows = []
    for data in ("wine",) if quick else DATA:
        read, width = DATA[data]
        size = QUICK if quick else (FULL_SIZES if REPORT.is_full else SIZES)[data]
        splits = []
        for seed in range(size.num_seeds):
            task = split_of(read(), seed)
            key = ("MILE", data, *size, seed, quick)
            problem = problem_of(width, task)
            splits.append(REPORT.once(key, ensemble, problem, task, size, seed, quick))
        for name in splits[0]:
            numbers = np.array([split[name] for split in splits], float)
            mean, deviation = numbers.mean(0), numbers.std(0, ddof=1)
            rows.append([data, name, mean[0], deviation[0], mean[1], deviation[1], mean[2]])
    return Section(
        "Microcanonical Langevin ensembles",
        "MILE (Sommer et al. 2025), written in `benchmarks/peers_from_papers/mile.py`, on the "
        f"networks, priors and splits above: {MEMBERS} members, each {OPTIMIZING:,} steps of Adam "
        "on all rows to the least validation loss, then MCLMC of BlackJAX for as many steps as the "
        "chains above, after as many for its tuning. Scores of the mixture of all members; of one "
        "member, averaged; and of the members as they were trained. Processor seconds.",
        ["data", "method", "test loss", "sd of the loss", "NLL", "sd of the NLL", "seconds"],
        rows,
    )


REPORT = Report(
    "full_networks",
    "Every weight of a network sampled",
    by_name(wine, california, ensembles),
    long=("wine", "california", "ensembles"),
)

if __name__ == "__main__":
    REPORT.main()
