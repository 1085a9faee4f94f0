"""A convolutional network of 2.4 million parameters: ``python benchmarks/convolutions.py``.

Tables 4 to 7 of Cobb and Jha. `memory` and `wall`: what a step costs in memory and time against the
number of images, for which forward mode was made. Memory comes from XLA's analysis of the compiled
step, so it needs no machine that has as much. Images are of the size of CIFAR-10; their content
does not matter there. `accuracy`: what chains from a trained network add to its accuracy, on
FashionMNIST, since CIFAR-10 is not among the data at hand, and by default with a small network;
``--full`` takes the paper's and its 10,000 images. The data come from the folder in the environment
variable NUMPYRO_FWD_DATA, or ../shared/data.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import blackjax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import blackjax_ext
from benchmarks.harness.partial_networks import images, mixture_scores
from benchmarks.harness.problems import (
    FORWARD_MODE,
    Chains,
    Problem,
    diagnostics,
    nuts_chains,
    samplers,
    tuned_chains,
)
from benchmarks.harness.report import Report, Section, plus_minus
from benchmarks.harness.timing import timed

# Cobb and Jha, Table 6: seconds per step with 10,000 and 30,000 images, on a GPU
PUBLISHED = {
    "FMALA": (0.3979, 0.9645),
    "Line-FMALA": (0.3417, 0.9089),
    "PC-FMALA": (0.5283, 1.3480),
    "PC-Line-FMALA": (0.4706, 1.2877),
    "MALA": (0.5160, "out of memory"),
}
# Table 7: accuracy and calibration error on CIFAR-10
QUALITY = {
    "trained network": (0.7942, 0.0360),
    "FMALA": (0.7977, 0.0250),
    "Line-FMALA": (0.7971, 0.0287),
    "PC-Line-FMALA": (0.7964, 0.0285),
    "MALA": (0.7979, 0.0263),
}
STEP_SIZE = 1e-4
SD_PRIOR = 10.0


class Network(nn.Module):
    """Three blocks of two convolutions, then two dense layers.

    With a scale and a shift after each convolution it has the paper's 2,396,330 parameters for
    images of CIFAR-10.
    """

    channels: tuple[int, ...] = (32, 64, 128)
    width: int = 1024

    @nn.compact
    def __call__(self, x):
        for channels in self.channels:
            for _ in range(2):
                x = nn.relu(nn.GroupNorm(num_groups=8)(nn.Conv(channels, (3, 3))(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(self.width)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


PAPERS = Network()


def logdensity(position, images, labels, *_, network: Network = PAPERS):
    """Normal prior and categorical likelihood."""
    logits = network.apply(position, images)
    loss = jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))
    return -loss - 0.5 * squares / SD_PRIOR**2


def data_of(num_images: int) -> tuple:
    """Shapes of the data."""
    images = jax.ShapeDtypeStruct((num_images, 32, 32, 3), jnp.float32)
    return images, jax.ShapeDtypeStruct((num_images,), jnp.int32)


def parameters(rng_key):
    """Initial weights."""
    return PAPERS.init(rng_key, jnp.zeros((1, 32, 32, 3)))


def nuts_functions() -> tuple[Callable, Callable]:
    """The same of BlackJAX's NUTS with at most 7 leapfrog steps."""

    def init(rng_key, position, *data):
        return blackjax.nuts.init(position, lambda x: logdensity(x, *data))

    def step(rng_key, state, *data):
        metric = jnp.ones(ravel_pytree(state.position)[0].size)
        arguments = (rng_key, state, lambda x: logdensity(x, *data), STEP_SIZE, metric)
        return blackjax.nuts.build_kernel()(*arguments, max_num_doublings=3)[0]

    return init, step


def functions_of(name: str) -> tuple[Callable, Callable]:
    """Init and step of a sampler, with the data as arguments."""
    if name == "nuts":
        return nuts_functions()
    algorithm = getattr(blackjax_ext, name)

    def init(rng_key, position, *data):
        return algorithm.init(position, lambda x: logdensity(x, *data), rng_key)

    def step(rng_key, state, *data):
        kernel = algorithm.build_kernel()
        return kernel(rng_key, state, lambda x: logdensity(x, *data), STEP_SIZE)[0]

    return init, step


def gibibytes(name: str, num_images: int) -> float:
    """Temporary memory of a step."""
    key, data = jax.random.key(0), data_of(num_images)
    init, step = functions_of(name)
    state = jax.eval_shape(init, key, jax.eval_shape(parameters, key), *data)
    compiled = jax.jit(step).lower(key, state, *data).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**30


def seconds(name: str, num_images: int, num_steps: int) -> float:
    """Least processor time of a step, after compilation."""
    key_parameters, key_data, key_init, key = jax.random.split(jax.random.key(0), 4)
    data = (jax.random.normal(key_data, (num_images, 32, 32, 3)), jnp.arange(num_images) % 10)
    init, step = map(jax.jit, functions_of(name))
    state = init(key_init, parameters(key_parameters), *data)
    times = []
    for i in range(num_steps + 1):
        arguments = (jax.random.fold_in(key, i), state, *data)
        state, spent = timed(step, *arguments, clock=time.process_time)
        times.append(spent)
    return min(times[1:])


def memory(quick: bool) -> Section:
    """Temporary memory of a step against the number of images."""
    numbers = (100, 300) if quick else (1_000, 10_000, 30_000)
    found = {
        label: [gibibytes(name, number) for number in numbers]
        for label, name in [*samplers(quick).items(), ("NUTS", "nuts")]
    }
    rows = [
        [label, *used, used[-1] / found["MALA"][-1], PUBLISHED.get(label, ("", ""))[1]]
        for label, used in found.items()
    ]
    return Section(
        "Memory of a step on a convolutional network",
        "GiB of temporary memory by XLA's analysis of the compiled step, all images at once. The "
        "paper's column: seconds per step at 30,000 images on its GPU, where MALA did not fit. The "
        "line samplers evaluate at both ends of a line in one loop, with the memory of one "
        "evaluation. NUTS is BlackJAX's, which evaluates one gradient after the other.",
        ["sampler", *(f"{number:,} images" for number in numbers), "of MALA's", "paper"],
        rows,
    )


def wall(quick: bool) -> Section:
    """Time of a step at numbers of images that a CPU can do."""
    numbers, num_steps = ((4, 8), 1) if quick else ((32, 128), 3)
    found = {
        label: [seconds(name, number, num_steps) for number in numbers]
        for label, name in samplers(quick).items()
    }
    rows = []
    for label, values in found.items():
        published = PUBLISHED.get(label, ("", ""))[0]
        ratio = published / PUBLISHED["MALA"][0] if published else ""
        ratios = [value / mala for value, mala in zip(values, found["MALA"], strict=True)]
        rows.append([label, *values, *ratios, ratio])
    return Section(
        "Time of a step on a convolutional network",
        f"Processor seconds per step, least of {num_steps}, and the same in steps of MALA; the "
        "paper's ratio is that of its Table 6 with 10,000 images on a GPU.",
        [
            "sampler",
            *(f"{number} images" for number in numbers),
            *(f"{number}, in steps of MALA" for number in numbers),
            "paper",
        ],
        rows,
    )


# Accuracy


class Size(NamedTuple):
    """How much `accuracy` does."""

    network: Network
    num_train: int
    num_validation: int
    num_test: int
    num_epochs: int
    num_search: int
    num_draws: int
    thinning: int
    num_chains: int
    nuts: tuple[int, int, int]  # warm-up steps, draws, tree depth


QUICK = Size(Network((8,), 16), 20, 20, 20, 1, 2, 4, 1, 2, (2, 4, 1))
DEFAULT = Size(Network((8, 16), 64), 200, 250, 1_000, 100, 4, 10, 5, 2, (10, 10, 3))
FULL = Size(PAPERS, 10_000, 5_000, 10_000, 60, 20, 100, 10, 5, (100, 100, 5))
STEP_SIZES = np.geomspace(3e-4, 3.0, 7)
BATCH = 50
ACCURACY_COLUMNS = [
    "sampler", "step size", "acceptance", "NLL", "accuracy", "paper", "ECE", "paper's", "ESS",
    "R-hat", "log density", "s per step",
]  # fmt: skip


@partial(jax.jit, static_argnames=("network", "num_epochs"))
def trained(rng_key, images, labels, network: Network, num_epochs: int):
    """Weights after SGD with momentum and the prior's weight decay, its rate falling to zero."""
    num_rows = len(labels)
    batch = min(BATCH, num_rows)
    num_steps = num_epochs * (num_rows // batch)
    optimizer = optax.sgd(optax.cosine_decay_schedule(0.02, num_steps), momentum=0.9)

    def loss(position, rows):
        logits = network.apply(position, images[rows])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows])
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))
        return losses.mean() + 0.5 * squares / (SD_PRIOR**2 * num_rows)

    def step(state, key):
        position, memory = state
        rows = jax.random.randint(key, (batch,), 0, num_rows)
        updates, memory = optimizer.update(jax.grad(loss)(position, rows), memory)
        return (optax.apply_updates(position, updates), memory), None

    key_init, key_run = jax.random.split(rng_key)
    position = network.init(key_init, images[:1])
    keys = jax.random.split(key_run, num_steps)
    return jax.lax.scan(step, (position, optimizer.init(position)), keys)[0][0]


def probabilities_at(position, *data, network: Network):
    """Probabilities of the classes of the images that are the last of the data."""
    return jax.nn.softmax(network.apply(position, data[-1]))


def accuracy_row(name: str, found: Chains, y: np.ndarray) -> list:
    """A row of the table, beside the paper's: each chain's ensemble, mean ± sd over chains."""
    kept = found.kept[:, :, : len(y)].astype(float)
    each = kept.mean(1)
    values = np.array([mixture_scores(p, y) for p in each]).T
    nll, accuracy, ece = map(plus_minus, values)
    published = QUALITY.get(name, ("", ""))
    traces = np.log(kept[:, :, np.arange(20), y[:20]] + 1e-30)
    traces = np.concatenate([found.logdensity[..., None], traces], axis=-1)
    moved = kept.shape[1] > 1
    return [
        *(name, "" if np.isnan(found.step_size) else found.step_size),
        float(found.acceptance.mean()) if moved else "",
        *(nll, accuracy, published[0], ece, published[1]),
        *(diagnostics(traces) if moved else ("", "")),
        *(float(found.logdensity.mean()), found.seconds if moved else ""),
    ]


def start_row(position, problem: Problem, y: np.ndarray) -> list:
    """The row of the trained network, from which all chains start."""
    found = np.asarray(problem.collect(position, *problem.data))[None, None]
    value = np.full((1, 1), float(problem.logdensity(position, *problem.data)))
    alone = Chains(np.nan, found, value, np.full(1, np.nan), np.nan)
    return accuracy_row("trained network", alone, y)


def accuracy(quick: bool) -> Section:
    """Accuracy and calibration of ensembles of draws from a trained network."""
    size = QUICK if quick else FULL if REPORT.is_full else DEFAULT
    every, test = images("fashion", "train"), images("fashion", "t10k")
    x, y = (jnp.asarray(part[: size.num_train]) for part in every)
    x_validation, y_validation = (part[-size.num_validation :] for part in every)
    x_test, y_test = (part[: size.num_test] for part in test)
    position = trained(jax.random.key(0), x, y, size.network, size.num_epochs)
    problem = Problem(
        partial(logdensity, network=size.network),
        partial(probabilities_at, network=size.network),
        lambda key: position,
        (x, y, jnp.concatenate([x_test, x_validation])),
        burn_in=0.0,
        is_batched=False,
    )

    def loss(kept):
        return mixture_scores(kept[:, size.num_test :].astype(float).mean(0), y_validation)[0]

    *lengths, depth = size.nuts

    def measure(name):
        found = tuned_chains(
            *(problem, FORWARD_MODE[name], STEP_SIZES, loss, size.num_search),
            *(size.num_draws, size.thinning, size.num_chains),
        )
        return accuracy_row(name, found, y_test)

    def measure_nuts():
        found = nuts_chains(problem, *lengths, size.num_chains, depth)
        return accuracy_row(f"NUTS, at most {2**depth - 1} leapfrog steps", found, y_test)

    rows = [start_row(position, problem, y_test)]
    rows += [REPORT.once((name, *size[1:]), measure, name) for name in samplers(quick)]
    rows.append(REPORT.once(("NUTS", *size[1:]), measure_nuts))
    num_parameters = ravel_pytree(position)[0].size
    return Section(
        "Accuracy of a convolutional network",
        f"Cobb and Jha's Table 7 on FashionMNIST instead of CIFAR-10, with {size.num_train:,} "
        f"images of the paper's 10,000 and {num_parameters:,} parameters of its 2,396,330. SGD "
        f"trains one network; {size.num_chains} chains from there make "
        f"{size.num_draws * size.thinning:,} steps each, none dropped, every {size.thinning}th "
        f"kept. Step sizes: of {len(STEP_SIZES)} the one with the least NLL on "
        f"{size.num_validation:,} other images in "
        f"{size.num_search * size.thinning:,} steps with another seed (the paper takes the best "
        f"accuracy on the test images). Scores are on {size.num_test:,} test images "
        "of one chain's mean probabilities, mean ± sd over chains; ECE with 15 bins. ESS (of the "
        "draws kept) and R-hat: the worst of the log density and the log probabilities of 20 "
        "labels. A log density near the trained network's is of a chain that has not left the "
        f"mode. NUTS: {lengths[1]:,} draws after {lengths[0]:,} warm-up steps. Processor time of a "
        "step, of a draw for NUTS; Tables 5 and 6 are below.",
        ACCURACY_COLUMNS,
        rows,
    )


REPORT = Report(
    "convolutions",
    "A convolutional network, beside the paper",
    {"accuracy": accuracy, "memory": memory, "wall": wall},
    long=("accuracy",),
)

if __name__ == "__main__":
    REPORT.main()
