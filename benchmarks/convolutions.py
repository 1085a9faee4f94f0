"""A convolutional network of 2.4 million parameters: ``python benchmarks/convolutions.py``.

Tables 5 and 6 of Cobb and Jha: what a step costs in memory and time against the number of images,
for which forward mode was made. Memory comes from XLA's analysis of the compiled step, so it needs
no machine that has as much. Images are of the size of CIFAR-10; their content does not matter here.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import blackjax_ext
from benchmarks.report import Report, Section

SAMPLERS = {
    "random walk": "random_walk",
    "FMALA": "fmala",
    "Line-FMALA": "line_fmala",
    "PC-FMALA": "pc_fmala",
    "PC-Line-FMALA": "pc_line_fmala",
    "MALA": "mala",
}
# Cobb and Jha, Table 6: seconds per step with 10,000 and 30,000 images, on a GPU
PUBLISHED = {
    "FMALA": (0.3979, 0.9645),
    "Line-FMALA": (0.3417, 0.9089),
    "PC-FMALA": (0.5283, 1.3480),
    "PC-Line-FMALA": (0.4706, 1.2877),
    "MALA": (0.5160, "out of memory"),
}
STEP_SIZE = 1e-4
SD_PRIOR = 10.0


class Network(nn.Module):
    """Three blocks of two convolutions, then two dense layers.

    With a scale and a shift after each convolution it has the paper's 2,396,330 parameters.
    """

    @nn.compact
    def __call__(self, x):
        for channels in (32, 64, 128):
            for _ in range(2):
                x = nn.relu(nn.GroupNorm(num_groups=8)(nn.Conv(channels, (3, 3))(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(1024)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def logdensity(position, images, labels):
    """Normal prior and categorical likelihood."""
    logits = Network().apply(position, images)
    loss = jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))
    return -loss - 0.5 * squares / SD_PRIOR**2


def data_of(num_images: int) -> tuple:
    """Shapes of the data."""
    images = jax.ShapeDtypeStruct((num_images, 32, 32, 3), jnp.float32)
    return images, jax.ShapeDtypeStruct((num_images,), jnp.int32)


def parameters(rng_key):
    """Initial weights."""
    return Network().init(rng_key, jnp.zeros((1, 32, 32, 3)))


def functions_of(name: str) -> tuple[Callable, Callable]:
    """Init and step of a sampler, with the data as arguments."""
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
    """Least time of a step, after compilation."""
    key_parameters, key_data, key_init, key = jax.random.split(jax.random.key(0), 4)
    data = (jax.random.normal(key_data, (num_images, 32, 32, 3)), jnp.arange(num_images) % 10)
    init, step = map(jax.jit, functions_of(name))
    state = init(key_init, parameters(key_parameters), *data)
    times = []
    for i in range(num_steps + 1):
        start = time.perf_counter()
        state = jax.block_until_ready(step(jax.random.fold_in(key, i), state, *data))
        times.append(time.perf_counter() - start)
    return min(times[1:])


def memory(quick: bool) -> Section:
    """Temporary memory of a step against the number of images."""
    numbers = (100, 300) if quick else (1_000, 10_000, 30_000)
    found = {
        label: [gibibytes(name, number) for number in numbers] for label, name in SAMPLERS.items()
    }
    rows = [
        [label, *used, used[-1] / found["MALA"][-1], PUBLISHED.get(label, ("", ""))[1]]
        for label, used in found.items()
    ]
    return Section(
        "Memory of a step on a convolutional network",
        "GiB of temporary memory by XLA's analysis of the compiled step, all images at once. The "
        "paper's column: seconds per step at 30,000 images on its GPU, where MALA did not fit. The "
        "line samplers evaluate twice, one after the other, yet XLA's CPU backend gives the second "
        "evaluation memory of its own, so that nothing of the advantage is left here.",
        ["sampler", *(f"{number:,} images" for number in numbers), "of MALA's", "paper"],
        rows,
    )


def wall(quick: bool) -> Section:
    """Time of a step at a number of images that a CPU can do."""
    number, num_steps = (8, 1) if quick else (128, 3)
    found = {label: seconds(name, number, num_steps) for label, name in SAMPLERS.items()}
    rows = []
    for label, value in found.items():
        published = PUBLISHED.get(label, ("", ""))[0]
        ratio = published / PUBLISHED["MALA"][0] if published else ""
        rows.append([label, value, value / found["MALA"], ratio])
    return Section(
        "Time of a step on a convolutional network",
        f"Seconds per step with {number} images, least of {num_steps}; the paper's ratio is that "
        "of its Table 6 with 10,000 images on a GPU.",
        ["sampler", "seconds", "in steps of MALA", "paper"],
        rows,
    )


REPORT = Report(
    "convolutions",
    "A convolutional network, beside the paper",
    {"memory": memory, "wall": wall},
)

if __name__ == "__main__":
    REPORT.main()
