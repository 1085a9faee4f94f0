"""Partially Bayesian networks on images: ``python benchmarks/image_networks.py``.

Tables 2, 3 and 5 of the paper on guided open-horizon SMC, with fewer images, epochs and particles;
``--full`` takes the paper's, for which two cores need days. The data come from the folder in the
environment variable NUMPYRO_FWD_DATA, or ../shared/data.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import flax.linen as nn
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score, roc_curve

from benchmarks.harness import partial_networks as networks
from benchmarks.harness.partial_networks import METHODS, Settings
from benchmarks.harness.report import Report, Section, by_name, plus_minus


def ood_scores(inside: np.ndarray, outside: np.ndarray, threshold: float) -> list[float]:
    """Scores of calling everything above the threshold of the energy unknown."""
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    score = np.r_[inside, outside]
    called = score > threshold
    return [
        float(np.mean(called == truth)),
        float(f1_score(truth, called, zero_division=0)),
        float(precision_score(truth, called, zero_division=0)),
        float(recall_score(truth, called)),
        float(np.mean(~called[truth == 0])),
        float(roc_auc_score(truth, score)),
    ]


# channels of the first convolution, activation, and the particles of the paper
PROBLEMS = {"mnist": (16, nn.tanh, 100), "fashion": (32, networks.relu, 50)}


class ImageSize(NamedTuple):
    """How much a section with images does; None takes as many particles as the paper."""

    num_train: int
    num_test: int
    num_epochs: int
    num_particles: int | None
    batch_sizes: tuple[int, ...]
    num_seeds: int


QUICK_IMAGES = ImageSize(300, 200, 1, 2, (100,), 1)
# by network, of which the second is the larger
IMAGES = {
    "mnist": ImageSize(10_000, 2_000, 10, 10, (100,), 1),
    "fashion": ImageSize(5_000, 2_000, 6, 10, (100,), 1),
}
FULL_IMAGES = ImageSize(60_000, 10_000, 30, None, (100, 500, 1_000), 10)
# Tables 2 and 3: test loss and accuracy by batch size, methods in the order of METHODS
PAPER_IMAGES = {
    ("mnist", 100): ((0.0541, 0.9842), (0.0532, 0.9843), (0.0685, 0.9788), (0.0780, 0.9760)),
    ("mnist", 500): ((0.0412, 0.9873), (0.0422, 0.9871), (0.0971, 0.9699), (0.0530, 0.9836)),
    ("mnist", 1_000): ((0.0389, 0.9879), (0.0377, 0.9881), (0.1472, 0.9563), (0.0511, 0.9842)),
    ("fashion", 100): ((0.2858, 0.9005), (0.3121, 0.8918), (0.3803, 0.8671), (0.4322, 0.8431)),
    ("fashion", 500): ((0.2794, 0.9032), (0.2913, 0.8988), (0.4068, 0.8583), (0.3798, 0.8639)),
    ("fashion", 1_000): ((0.2758, 0.9048), (0.2899, 0.9011), (0.4742, 0.8348), (0.3581, 0.8721)),
}
# Table 5: accuracy, F1, precision, recall, specificity, AUROC
PAPER_UNKNOWN = (
    (0.9704, 0.9710, 0.9495, 0.9936, 0.9471, 0.9966),
    (0.9744, 0.9751, 0.9516, 0.9997, 0.9491, 0.9994),
    (0.8871, 0.8667, 0.9392, 0.8244, 0.9497, 0.9682),
    (0.9737, 0.9743, 0.9503, 0.9996, 0.9477, 0.9978),
)


def image_size(network: str, quick: bool) -> ImageSize:
    return QUICK_IMAGES if quick else FULL_IMAGES if REPORT.is_full else IMAGES[network]


def image_unit(problem, settings: Settings, method: str, tasks: tuple, seed: int) -> dict:
    """Scores and curves of one method; the other task has images that it does not know."""
    task, other = tasks
    trained = METHODS[method](problem, settings)(task, seed)
    parts = (task.test.x, task.validation.x, other.test.x)
    outputs = [networks.image_outputs(problem, trained, x) for x in parts]
    inside, validation, outside = (networks.energies(each, trained) for each in outputs)
    threshold = float(np.quantile(validation, 0.95))
    unknown = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    share = np.linspace(0, 1, 201)  # of the known images that are called unknown
    caught = np.interp(share, *roc_curve(unknown, np.r_[inside, outside])[:2])
    return {
        "scores": networks.image_scores(outputs[0], trained, task.test.y),
        "unknown": ood_scores(inside, outside, threshold),
        "seconds": trained.seconds,
        "losses": trained.losses,
        "curve": [share, caught],
    }


def image_units(data: str, network: str, quick: bool) -> dict[tuple[int, str], list[dict]]:
    """Units by batch size and method, one for each seed, on the images called `data`."""
    size = image_size(network, quick)
    *shape, paper = PROBLEMS[network]
    problem = networks.classification(*shape)
    tasks = tuple(
        networks.image_task(name, size.num_train, size.num_test, 0)
        for name in sorted(PROBLEMS, key=lambda name: name != data)
    )
    found = {}
    for batch_size in size.batch_sizes:
        settings = Settings(
            batch_size, size.num_epochs, size.num_particles or paper, learning_rate=0.002
        )
        for method in METHODS:
            key = (method, *settings, size.num_train, size.num_test)
            found[batch_size, method] = [
                REPORT.once((*key, seed), image_unit, problem, settings, method, tasks, seed)
                for seed in range(size.num_seeds)
            ]
    return found


def image_picture(name: str, found: dict[tuple[int, str], list[dict]]) -> None:
    """Validation losses, and how many unknown images are found, as in figures 2, 3 and 5."""
    batch_sizes = list(dict.fromkeys(batch_size for batch_size, _ in found))
    figure, axes = plt.subplots(
        *(len(batch_sizes), 2), figsize=(9, 3.5 * len(batch_sizes)), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for (batch_size, method), units in found.items():
        left, right = axes[batch_sizes.index(batch_size)]
        losses = np.mean([unit["losses"] for unit in units], axis=0)
        left.plot(np.arange(1, len(losses) + 1), losses, ".-", label=method)
        right.plot(*np.mean([unit["curve"] for unit in units], axis=0), label=method)
        left.set(title=f"validation loss, batches of {batch_size}", xlabel="epoch")
        right.set(title="unknown images", xlabel="false alarms", ylabel="found")
    axes[0, 0].legend(fontsize=7)
    REPORT.picture(figure, f"image_networks_{name}.png")


def image_text(network: str, quick: bool) -> str:
    """What was trained, and on how much."""
    features, activation, paper = PROBLEMS[network]
    size = image_size(network, quick)
    return (
        "LeNet with 3 x 3 convolutions, the first Bayesian "
        f"({10 * features} weights), {activation.__name__}; Adam with 0.002, step 0.01; "
        f"{size.num_train:,} images (a tenth for validation) of the paper's 60,000, "
        f"{size.num_test:,} test images, {size.num_epochs} epochs of 30, "
        f"{size.num_particles or paper} particles of {paper}, {size.num_seeds} of 10 seeds; "
        "`--full` takes the paper's. The paper's network for FashionMNIST has batch normalization, "
        "whose running statistics would depend on the order of the particles, and is larger. Loss, "
        "accuracy and calibration (ECE, 15 bins) are those of the mixture with the least "
        "validation loss. Of one short training: small differences between methods may be those "
        "of the seed."
    )


def image_section(data: str, title: str, quick: bool) -> Section:
    found = image_units(data, data, quick)
    image_picture(data, found)
    rows = []
    for (batch_size, method), units in found.items():
        loss, accuracy, ece = map(plus_minus, np.array([unit["scores"] for unit in units]).T)
        paper = PAPER_IMAGES[data, batch_size][list(METHODS).index(method)]
        area = plus_minus(np.array([unit["unknown"][-1] for unit in units]))
        seconds = float(np.mean([unit["seconds"] for unit in units]))
        rows.append([batch_size, method, loss, paper[0], accuracy, paper[1], ece, area, seconds])
    return Section(
        title,
        f"{image_text(data, quick)} AUROC: of the energy, which should tell test images of the "
        f"other set.\n\n![curves](image_networks_{data}.png)",
        ["batch", "method", "loss", "paper", "accuracy", "paper's", "ECE", "AUROC", "seconds"],
        rows,
    )


def mnist(quick: bool) -> Section:
    """Loss, accuracy and calibration on MNIST."""
    return image_section("mnist", "MNIST", quick)


def fashion(quick: bool) -> Section:
    """Loss, accuracy and calibration on FashionMNIST."""
    return image_section("fashion", "FashionMNIST", quick)


def unknown(quick: bool) -> Section:
    """FashionMNIST unknown to the larger network trained on MNIST."""
    found = image_units("mnist", "fashion", quick)
    image_picture("unknown", found)
    rows: list[list] = []
    for (batch_size, method), units in found.items():
        scores = np.mean([unit["unknown"] for unit in units], axis=0)
        accuracy = float(np.mean([unit["scores"][1] for unit in units]))
        rows.append([batch_size, method, accuracy, *scores])
        rows.append(["", "paper", "", *PAPER_UNKNOWN[list(METHODS).index(method)]])
    return Section(
        "Unknown images",
        "The paper's Table 5: the network for FashionMNIST, trained on MNIST, is shown test images "
        "of both. Images are called unknown by an energy above the 95 percent quantile of "
        f"validation images. {image_text('fashion', quick)}"
        "\n\n![curves](image_networks_unknown.png)",
        [
            *("batch", "method", "accuracy on MNIST", "accuracy of the call", "F1", "precision"),
            *("recall", "specificity", "AUROC"),
        ],
        rows,
    )


REPORT = Report(
    "image_networks",
    "Partially Bayesian networks on images",
    by_name(mnist, fashion, unknown),
    long=("mnist", "fashion", "unknown"),
)

if __name__ == "__main__":
    REPORT.main()
