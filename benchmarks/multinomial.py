"""Multinomial regression on MNIST, beside the paper: ``python benchmarks/multinomial.py``.

Table 2 of Cobb and Jha: 7,850 parameters with priors N(0, 1). `quality` runs every sampler on part
of the images and compares what it predicts with the mode and with a long run of NUTS; `steps` times
a step on all of them. ``--full`` takes the paper's number of images and of steps for `quality`.
The data come from the folder in the environment variable NUMPYRO_FWD_DATA, or ../shared/data.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn.linear_model import LogisticRegression

from benchmarks.harness.partial_networks import images, mixture_scores
from benchmarks.harness.problems import (
    FORWARD_MODE,
    Chains,
    Problem,
    diagnostics,
    nuts_chains,
    run_problem,
    samplers,
    tuned_chains,
)
from benchmarks.harness.report import Report, Section, plus_minus

CLASSES, BINS = 10, 100
SHOWN = 3  # images whose logits are watched
VALIDATION = 1_000
# Cobb and Jha, Table 2: NLL, accuracy, ECE, ms per step on a GPU
PUBLISHED = {
    "FMALA": (0.285, 0.920, 0.0187, 69.2),
    "Line-FMALA": (0.290, 0.919, 0.0188, 63.9),
    "PC-FMALA": (0.363, 0.891, 0.0186, 71.3),
    "PC-Line-FMALA": (0.281, 0.923, 0.0175, 64.8),
    "MALA": (0.277, 0.923, 0.0189, 85.7),
}
STEP_SIZES = np.geomspace(1e-4, 3.0, 12)


# Model and data


def logdensity(weights, x, y, scales):
    """Prior N(0, 1 / scales^2) on each row of the weights, (inputs, classes), and likelihood."""
    logits = jax.nn.log_softmax(x @ weights)
    likelihood = jnp.sum(jnp.take_along_axis(logits, y[:, None], axis=1))
    return likelihood - 0.5 * jnp.sum((scales[:, None] * weights) ** 2)


def keep(weights, *data):
    return weights


def start(rng_key, size: int = 785):
    """LeCun's normal law for the weights and zero for the intercepts, as in the authors' code."""
    weights = jax.random.normal(rng_key, (size, CLASSES)) / (size - 1) ** 0.5
    return weights.at[-1].set(0.0)


class Data(NamedTuple):
    """Standardized pixels with a one for the intercept, (N, 785), and labels (N,)."""

    x: np.ndarray
    y: np.ndarray


def mnist(kind: str, rows: slice) -> Data:
    """Images of MNIST, `kind` train or t10k, standardized by the authors' constants."""
    x, y = images("mnist", kind)
    pixels = (x[rows].reshape(-1, 784) - 0.1307) / 0.3081
    return Data(np.column_stack([pixels, np.ones(len(pixels))]).astype(np.float32), y[rows])


def problem_of(data: Data) -> Problem:
    arrays = (jnp.asarray(data.x), jnp.asarray(data.y), jnp.ones(data.x.shape[1]))
    return Problem(logdensity, keep, start, arrays)


# What is known of the posterior


def mode(data: Data) -> np.ndarray:
    """Penalized maximum likelihood, (785, 10), by scikit-learn."""
    fit = LogisticRegression(C=1.0, fit_intercept=False, max_iter=1_000, tol=1e-6)
    return fit.fit(data.x, data.y).coef_.T


def principal_components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrix `back` and scales of coordinates in which the posterior is nearly round.

    weights = back z is an exact change of variables: the inputs become ``x @ back`` and the prior
    of a row of z N(0, 1 / scale^2).
    """
    variances, rotation = np.linalg.eigh(x.T.astype(float) @ x)
    scales = 1 / np.sqrt(1 + 0.05 * np.maximum(variances, 0))
    return rotation * scales, scales


def reference(data: Data, num_warmup: int, num_draws: int, depth: int, num_chains: int) -> Chains:
    """NUTS on the principal components of the pixels, scaled by what the data say of each."""
    back, scales = principal_components(data.x)
    arrays = (data.x @ back, data.y, scales)
    problem = Problem(
        logdensity,
        keep,
        lambda key: jnp.asarray(np.linalg.inv(back)) @ start(key),
        tuple(jnp.asarray(a, a.dtype if a.dtype == np.int32 else np.float32) for a in arrays),
    )
    found = nuts_chains(problem, num_warmup, num_draws, num_chains, depth)
    return found._replace(kept=np.einsum("ij,cdjk->cdik", back, found.kept))


# What the chains predict


@jax.jit
def predictive(draws: Array, x: Array) -> Array:
    """Mean over draws (draws, 785, 10) of the probabilities of the classes, (N, 10)."""

    def add(total, weights):
        return total + jax.nn.softmax(x @ weights), None

    total, _ = jax.lax.scan(add, jnp.zeros((len(x), CLASSES)), draws)
    return total / len(draws)


def probabilities(chains: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Predictive probabilities of each chain, (chains, N, 10)."""
    return np.stack([predictive(jnp.asarray(draws, jnp.float32), x) for draws in chains])


def traces(found: Chains, x: np.ndarray) -> np.ndarray:
    """Numbers by which chains are compared: log density, and logits of some images."""
    logits = np.einsum("nj,cdjk->cdnk", x[:SHOWN], found.kept)
    logits -= logits.mean(-1, keepdims=True)
    parts = [found.logdensity[..., None], logits.reshape(*logits.shape[:2], -1)]
    return np.concatenate(parts, axis=-1)


def row(name: str, found: Chains, test: Data, truth: np.ndarray) -> list:
    """A row of the table, beside the paper's; scores are of one chain, averaged over chains."""
    each = probabilities(found.kept, test.x)
    nll, accuracy, ece = np.array([mixture_scores(p, test.y, BINS) for p in each]).T
    distance = 0.5 * np.abs(each - truth).sum(-1).mean()
    published = PUBLISHED.get(name, ("", "", "", ""))
    cells = [
        "" if np.isnan(found.step_size) else found.step_size,
        float(found.acceptance.mean()),
        *(plus_minus(nll, 4), published[0], float(accuracy.mean()), published[1]),
        *(float(ece.mean()), published[2], float(distance)),
        *(diagnostics(traces(found, test.x)) if len(each) > 1 else ("", "")),
        *(float(found.logdensity.mean()), 1e3 * found.seconds),
    ]
    return [name, *cells]


COLUMNS = [
    "sampler", "step size", "acceptance", "NLL", "paper", "accuracy", "paper's", "ECE", "paper's ",
    "distance", "ESS", "R-hat", "log density", "ms per step",
]  # fmt: skip


def point_row(weights: np.ndarray, data: Data, test: Data, truth: np.ndarray) -> list:
    """The row of the mode."""
    value = logdensity(*map(jnp.asarray, (weights.astype(np.float32), *data, np.ones(785))))
    found = Chains(np.nan, weights[None, None], np.full((1, 1), value), np.full(1, np.nan), np.nan)
    cells = row("mode", found, test, truth)
    return [*cells[:2], "", *cells[3:-1], ""]


class Size(NamedTuple):
    """How much `quality` does."""

    num_rows: int
    num_test: int
    num_search: int
    num_draws: int
    thinning: int
    num_chains: int
    nuts: tuple[int, int, int]  # warm-up steps, draws, tree depth
    reference: tuple[int, int, int]


QUICK = Size(50, 50, 2, 8, 2, 2, (3, 4, 2), (3, 4, 2))
DEFAULT = Size(1_000, 10_000, 20, 200, 50, 4, (60, 30, 6), (300, 300, 6))
FULL = Size(59_000, 10_000, 100, 1_000, 100, 4, (500, 500, 10), (500, 1_000, 10))


def quality(quick: bool) -> Section:
    """What every sampler predicts after the paper's number of steps or a part of it."""
    size = QUICK if quick else FULL if REPORT.is_full else DEFAULT
    train = mnist("train", slice(size.num_rows))
    validation = mnist("train", slice(-VALIDATION, None))
    test = mnist("t10k", slice(size.num_test))
    problem = problem_of(train)

    def loss(draws):
        return mixture_scores(np.asarray(predictive(draws, validation.x)), validation.y, BINS)[0]

    *lengths, depth = size.nuts

    def measure_reference():
        found = reference(train, *size.reference, size.num_chains)
        truth = probabilities(found.kept, test.x).mean(0)
        return {"row": row("NUTS on principal components", found, test, truth), "truth": truth}

    def measure(name):
        found = tuned_chains(
            *(problem, FORWARD_MODE[name], STEP_SIZES, loss, size.num_search),
            *(size.num_draws, size.thinning, size.num_chains),
        )
        return row(name, found, test, truth)

    def measure_nuts():
        found = nuts_chains(problem, *lengths, size.num_chains, depth)
        return row(f"NUTS, at most {2**depth - 1} leapfrog steps", found, test, truth)

    known = REPORT.once(("reference", *size), measure_reference)
    truth = known["truth"]
    rows = [known["row"]]
    rows.append(REPORT.once(("mode", *size), lambda: point_row(mode(train), train, test, truth)))
    rows += [REPORT.once((name, *size), measure, name) for name in samplers(quick)]
    rows.append(REPORT.once(("NUTS", *size), measure_nuts))
    num_steps = size.num_draws * size.thinning
    return Section(
        "Multinomial regression on MNIST",
        f"Cobb and Jha's Table 2 on {size.num_rows:,} images of the paper's 60,000, with "
        f"{num_steps:,} steps of its 100,000: {size.num_chains} chains from the initial weights of "
        "a network, half of the steps dropped, every "
        f"{size.thinning}th kept. Step sizes: of {len(STEP_SIZES)} the one with the least NLL on "
        f"{VALIDATION:,} other images, in {size.num_search * size.thinning:,} steps with another "
        f"seed. Scores are of one chain's mean probabilities on {size.num_test:,} test images, "
        f"averaged over chains (NLL: ± sd); ECE with {BINS} bins. Distance: mean total variation "
        "between these probabilities and those of all chains of NUTS on the principal components "
        f"({size.reference[1]:,} draws each after {size.reference[0]:,} warm-up steps), which is "
        "the reference; ESS (of the draws kept) and R-hat: the worst of the log density and the "
        f"logits of {SHOWN} images. NUTS on the pixels: {lengths[1]:,} draws after "
        f"{lengths[0]:,} warm-up steps. Processor time of a step of one chain, chains "
        "together; for NUTS, of a draw.",
        COLUMNS,
        rows,
    )


def steps(quick: bool) -> Section:
    """Time of a step on all images."""
    num_rows, num_steps = (100, 2) if quick else (60_000, 5)
    problem = problem_of(mnist("train", slice(num_rows)))._replace(burn_in=0.0)
    seconds = {
        name: run_problem(problem, algorithm, np.full(1, 1e-3), jax.random.key(2), 1, num_steps)[-1]
        for name, algorithm in samplers(quick).items()
    }
    rows = []
    for name, value in seconds.items():
        published = PUBLISHED.get(name, ("",) * 4)[3]
        ratio = published / PUBLISHED["MALA"][3] if published else ""
        rows.append([name, 1e3 * value, value / seconds["MALA"], published, ratio])
    return Section(
        "Time of a step of the multinomial regression",
        f"Processor time of a step with {num_rows:,} images, one chain, mean of {num_steps}. The "
        "paper's milliseconds are those of a GPU; its step of FMALA takes two JVPs, ours one.",
        ["sampler", "ms per step", "in steps of MALA", "paper's ms", "paper's ratio"],
        rows,
    )


REPORT = Report(
    "multinomial",
    "Multinomial regression, beside the paper",
    {"quality": quality, "steps": steps},
    long=("quality",),
)

if __name__ == "__main__":
    REPORT.main()
