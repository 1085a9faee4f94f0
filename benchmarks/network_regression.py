"""Network regression with 40,701 parameters, beside the paper.

``python benchmarks/network_regression.py``: Table 3 and figure 6 of Cobb and Jha, on the synthetic
data of Izmailov et al. (400 points). The paper states the posterior of the section `posterior`. The
script its authors published divides the log density by the number of points, which makes every
chain sample at the temperature 400: the section `tempered` does the same. ``--full`` takes the
paper's 50,000 steps. The data come from the folder in the environment variable NUMPYRO_FWD_DATA, or
../shared/data.
"""

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from benchmarks.harness import data as sources
from benchmarks.harness import models
from benchmarks.harness.problems import (
    FORWARD_MODE,
    Chains,
    Problem,
    diagnostics,
    mixture_nll,
    nuts_chains,
    samplers,
    tuned_chains,
)
from benchmarks.harness.report import Report, Section, by_name, plus_minus

SD_PRIOR, SD_NOISE = 0.1, 0.025
# Cobb and Jha, Table 3: NLL and mean squared error of the ensemble, ms per step on a GPU
PUBLISHED = {
    "FMALA": (-0.168, 0.011, 81.8),
    "Line-FMALA": (-0.671, 0.011, 35.4),
    "PC-FMALA": (12.371, 0.022, 88.4),
    "PC-Line-FMALA": (-0.691, 0.011, 38.1),
    "MALA": (-0.458, 0.011, 37.0),
}
STEP_SIZES = np.geomspace(1e-4, 3.0, 9)
GRID = np.linspace(-3.0, 3.0, 121)[:, None].astype(np.float32)


# Model and data


def drbayes() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs (400, 1), both standardized, as in the authors' script."""
    x, y = map(sources.standardized, sources.drbayes())
    return x.astype(np.float32), y.astype(np.float32)


def logdensity(network, x, y, temperature):
    """Priors N(0, 0.1^2), noise N(0, 0.025^2), both divided by the temperature."""
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(network)) / SD_PRIOR**2
    squares += jnp.sum((y - models.predict(network, x)) ** 2) / SD_NOISE**2
    return -0.5 * squares / temperature


class Curve(NamedTuple):
    """Outputs of a network at the data (N,) and on a grid (M,)."""

    at_data: jax.Array
    on_grid: jax.Array


def curve(network, x, *_) -> Curve:
    both = models.predict(network, jnp.concatenate([x, GRID]))[:, 0]
    return Curve(both[: len(x)], both[len(x) :])


def start(rng_key):
    """LeCun's normal law for the weights and zero for the biases, as in the authors' script."""
    network = models.make_network(rng_key)
    return [(w / (SD_PRIOR * len(w) ** 0.5), jnp.zeros_like(b)) for w, b in network]


def problem_of(temperature: float) -> Problem:
    x, y = map(jnp.asarray, drbayes())
    data = (x, y, jnp.float32(temperature))
    return Problem(logdensity, curve, start, data, burn_in=0.2)


@partial(jax.jit, static_argnames="num_steps")
def mode(data: tuple, num_steps: int):
    """Network with the highest density that Adam finds, the rate falling to zero."""
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, num_steps))

    def step(state, _):
        network, memory = state
        slopes = jax.grad(lambda network: -logdensity(network, *data) / len(data[0]))(network)
        updates, memory = optimizer.update(slopes, memory)
        return (optax.apply_updates(network, updates), memory), None

    network = start(jax.random.key(2))
    return jax.lax.scan(step, (network, optimizer.init(network)), length=num_steps)[0][0]


# What the chains predict


def scores(curves: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """NLL of the mixture of the draws' normal laws, and squared error of their mean."""
    return mixture_nll(curves, SD_NOISE, y), float(np.mean((curves.mean(0) - y) ** 2))


def row(name: str, found: Chains, y: np.ndarray, truth: np.ndarray) -> list:
    """A row of the table, beside the paper's; scores are of one chain, averaged over chains."""
    at_data = found.kept.at_data.astype(float)
    nll, error = np.array([scores(draws, y) for draws in at_data]).T
    distance = np.mean((at_data.mean(1) - truth) ** 2) ** 0.5
    published = PUBLISHED.get(name, ("",) * 3)
    traces = np.concatenate([found.logdensity[..., None], at_data[..., ::20]], axis=-1)
    cells = [
        "" if np.isnan(found.step_size) else found.step_size,
        float(found.acceptance.mean()),
        *(plus_minus(nll, 3), published[0]),
        *(float(error.mean()), published[1], float(distance)),
        float(at_data.std(1).mean()),
        *(*diagnostics(traces), float(found.logdensity.mean())),
        *(1e3 * found.seconds, published[2]),
    ]
    return [name, *cells]


COLUMNS = [
    "sampler", "step size", "acceptance", "NLL", "paper", "squared error", "paper's", "distance",
    "sd", "ESS", "R-hat", "log density", "ms per step", "paper's ",
]  # fmt: skip


def mode_row(problem: Problem, num_steps: int, y: np.ndarray, truth: np.ndarray) -> list:
    """The row of the mode."""
    network = mode(problem.data, num_steps)
    at_data = np.asarray(curve(network, *problem.data).at_data, float)
    nll, error = scores(at_data[None], y)
    distance = np.mean((at_data - truth) ** 2) ** 0.5
    value = float(logdensity(network, *problem.data))
    return ["mode", "", "", f"{nll:.3f}", "", error, "", distance, 0.0, "", "", value, "", ""]


def picture(title: str, name: str, problem: Problem, found: dict[str, np.ndarray]) -> None:
    """Predictive mean and two standard deviations of the first chain, as in figure 6."""
    x, y, _ = problem.data
    fig, axes = plt.subplots(
        1, len(found), figsize=(4 * len(found), 3), sharey=True, layout="constrained"
    )
    for axis, (label, curves) in zip(axes, found.items(), strict=True):
        mean, sd = curves.mean(0), np.hypot(curves.std(0), SD_NOISE)
        axis.plot(x, y, ".", color="gray", markersize=2)
        axis.plot(GRID, mean)
        axis.fill_between(GRID[:, 0], mean - 2 * sd, mean + 2 * sd, alpha=0.3)
        axis.set(title=f"{label}, {title}", xlabel="x", ylim=(-4, 4))
    REPORT.picture(fig, f"{name}.png")


class Size(NamedTuple):
    """How much a section does."""

    num_search: int
    num_draws: int
    thinning: int
    num_chains: int
    reference: tuple[int, int, int]  # warm-up steps, draws, tree depth
    num_mode: int


QUICK = Size(2, 5, 2, 2, (3, 4, 2), 5)
DEFAULT = Size(8, 80, 50, 2, (100, 60, 7), 5_000)
FULL = Size(100, 500, 100, 4, (500, 500, 10), 20_000)


def measure(name: str, found: Chains, y: np.ndarray, truth: np.ndarray) -> dict:
    """A row, and the curves on the grid of the first chain."""
    return {"row": row(name, found, y, truth), "curves": found.kept.on_grid[0]}


def reference(problem: Problem, size: Size, label: str, y: np.ndarray) -> dict:
    """NUTS: a row, the curves, and the mean curve at the data, against which others are held."""
    *lengths, depth = size.reference
    found = nuts_chains(problem, *lengths, size.num_chains, depth)
    truth = found.kept.at_data.astype(float).mean((0, 1))
    return {**measure(label, found, y, truth), "truth": truth}


def sampler(problem: Problem, size: Size, name: str, y: np.ndarray, truth: np.ndarray) -> dict:
    """A sampler with the step size of the least NLL."""
    found = tuned_chains(
        *(problem, FORWARD_MODE[name], STEP_SIZES, lambda kept: scores(kept.at_data, y)[0]),
        *(size.num_search, size.num_draws, size.thinning, size.num_chains),
    )
    return measure(name, found, y, truth)


def table(temperature: float, title: str, text: str, quick: bool) -> Section:
    """Every sampler at a temperature."""
    size = QUICK if quick else FULL if REPORT.is_full else DEFAULT
    problem = problem_of(temperature)
    y = np.asarray(problem.data[1], float)[:, 0]
    *lengths, depth = size.reference
    label = f"NUTS, at most {2**depth - 1} leapfrog steps"
    found = {"NUTS": REPORT.once(("NUTS", *size), reference, problem, size, label, y)}
    truth = found["NUTS"]["truth"]
    rows = [found["NUTS"]["row"]]
    rows.append(REPORT.once(("mode", *size), mode_row, problem, size.num_mode, y, truth))
    for name in samplers(quick):
        found[name] = REPORT.once((name, *size), sampler, problem, size, name, y, truth)
        rows.append(found[name]["row"])
    file = f"network_regression_{temperature:.0f}"
    curves = {
        name: found[name]["curves"] for name in ("NUTS", "MALA", "PC-Line-FMALA") if name in found
    }
    picture(f"T = {temperature:.0f}", file, problem, curves)
    num_steps = size.num_draws * size.thinning
    return Section(
        title,
        f"{text} Inputs and outputs are standardized, and scores are those of the 400 points that "
        f"the chains see, as in the paper. {num_steps:,} steps of the paper's 50,000, a fifth "
        f"dropped, every {size.thinning}th kept; {size.num_chains} chains from the initial weights "
        f"of a network. Step sizes: of {len(STEP_SIZES)} the one with the least NLL in "
        f"{size.num_search * size.thinning:,} steps with another seed. NLL: of the mixture of "
        "the draws' normal laws with sd 0.025, of one chain, mean ± sd over chains. Distance: root "
        "mean square between the mean curves of a chain and of all chains of NUTS "
        f"({lengths[1]:,} draws each after {lengths[0]:,} warm-up steps); sd: of the curves at a "
        "point. ESS (of the draws kept) and R-hat: the worst of the log density and the outputs at "
        "20 points. Processor time of a step of one chain, of a draw for NUTS; the paper's on a "
        f"GPU.\n\n![Predictive laws]({file}.png)",
        COLUMNS,
        rows,
    )


def posterior(quick: bool) -> Section:
    """The posterior that the paper states."""
    return table(
        1.0,
        "Network regression, the posterior of the paper's text",
        "Cobb and Jha's Table 3: five hidden layers of 100, 40,701 parameters, priors N(0, 0.1^2), "
        "noise N(0, 0.025^2).",
        quick,
    )


def tempered(quick: bool) -> Section:
    """What the authors' script samples: the log density divided by the number of points."""
    return table(
        400.0,
        "Network regression, the density of the authors' script",
        "The same with the log density divided by 400, as the script published with the paper "
        "does (`scripts/regression/sample_regression.py` of SRI-CSL/fojax): priors N(0, 2^2) and "
        "noise N(0, 0.5^2) in effect. The NLL keeps the noise of the text, as it does there.",
        quick,
    )


REPORT = Report(
    "network_regression",
    "Network regression, beside the paper",
    by_name(posterior, tempered),
    long=("posterior", "tempered"),
)

if __name__ == "__main__":
    REPORT.main()
