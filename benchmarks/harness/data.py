"""The data that benchmarks read, and where they are.

Files come from one folder: that of the command line's ``--data-dir``, else that of the environment
variable NUMPYRO_FWD_DATA, else ``../shared/data`` beside the repository. Where no folder is named
and that one lacks a set that NumPyro's examples have (MNIST), they download it. Nothing here is
standardized or split.
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "DEFAULT",
    "VARIABLE",
    "barro_colorado",
    "breast_cancer",
    "california",
    "diabetes",
    "drbayes",
    "folder",
    "images",
    "lynx_hare",
    "path",
    "standardized",
    "swiss",
    "uci",
    "use",
    "wine",
]

VARIABLE = "NUMPYRO_FWD_DATA"
DEFAULT = Path(__file__).parents[3] / "shared" / "data"
MNIST_MIRROR = "github.com/pyro-ppl/datasets, mnist"
# where each file is published: the archive, or a repository and the path of an identical file
PUBLISHED = {
    "drbayes/data.npy": (
        "github.com/wjmaddox/drbayes, experiments/synthetic_regression/ckpts/data.npy"
    ),
    "papamarkou/coarse_bei.csv": (
        "github.com/papamarkou/GAMCSampler.jl, examples/poisson/data/coarse_bei.csv at commit "
        "24018d408213"
    ),
    "swiss/swiss.txt": "github.com/papamarkou/GeometricMCMC.jl, test/swiss.txt",
    "uci/australian.dat": (
        "archive.ics.uci.edu, Statlog (Australian Credit Approval); the same values with a header: "
        "github.com/bdsul/grape, datasets/australian.dat"
    ),
    "uci/cal_housing.data": (
        "github.com/lapets/course-data-science, cal_housing.data (R. K. Pace and R. Barry 1997, "
        "StatLib)"
    ),
    "uci/heart.dat": (
        "archive.ics.uci.edu, Statlog (Heart); github.com/natixvi/Inne, Documents/heart.dat"
    ),
    "uci/winequality-red.csv": (
        "archive.ics.uci.edu, Wine Quality; github.com/Mikhaylov-yv/Vino, winequality-red.csv"
    ),
    "images/mnist": MNIST_MIRROR,
    "images/fashion": "github.com/zalandoresearch/fashion-mnist, data/fashion",
}


# Where

_chosen: Path | None = None


def use(chosen: Path | None) -> None:
    """Read from the folder `chosen` from now on; None: from that of the environment, or default."""
    global _chosen
    _chosen = chosen


def folder() -> Path:
    """The folder that is read from."""
    return _chosen or Path(os.environ.get(VARIABLE) or DEFAULT)


def is_named() -> bool:
    """Whether the command line or the environment names the folder."""
    return _chosen is not None or bool(os.environ.get(VARIABLE))


def missing(name: str) -> FileNotFoundError:
    """What to raise for a file that is not there: which, where it was sought, where to get it."""
    publisher = PUBLISHED.get(name) or PUBLISHED.get(name.rpartition("/")[0], "nobody we know of")
    by = "--data-dir" if _chosen else VARIABLE
    reason = f"the folder that {by} names" if is_named() else "the default folder"
    return FileNotFoundError(
        f"{name} is not in {folder()}, {reason}. It is published at {publisher}. Put a copy there, "
        f"or name the folder that has it with --data-dir or the environment variable {VARIABLE}."
    )


def path(name: str) -> Path:
    """Path of the file called `name`, relative to the folder; FileNotFoundError without it."""
    found = folder() / name
    if not found.is_file():
        raise missing(name)
    return found


# Tables


def standardized(x: np.ndarray, ddof: int = 0) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1, with the divisor N - `ddof`."""
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=ddof)


def uci(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Covariates, and whether the label is the larger of two: australian (690 x 14) or heart."""
    table = np.loadtxt(path(f"uci/{name}.dat"))
    return table[:, :-1], table[:, -1] == table[:, -1].max()


def wine() -> tuple[np.ndarray, np.ndarray]:
    """Red wine: 11 covariates of 1,599 wines, quality in points."""
    table = np.loadtxt(path("uci/winequality-red.csv"), delimiter=";", skiprows=1)
    return table[:, :-1], table[:, -1]


def california() -> tuple[np.ndarray, np.ndarray]:
    """Housing: 8 covariates of 20,640 block groups, median value in 100,000 dollars."""
    table = np.loadtxt(path("uci/cal_housing.data"), delimiter=",")
    return table[:, :8], table[:, 8] / 1e5


def drbayes() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs (400, 1) of the synthetic regression of Izmailov et al."""
    table = np.load(path("drbayes/data.npy"))
    return table[:, :1], table[:, 1:]


def swiss() -> tuple[np.ndarray, np.ndarray]:
    """Swiss bank notes: length, left, right and bottom of 200, and whether it is counterfeit."""
    table = np.loadtxt(path("swiss/swiss.txt"))
    return table[:, :4], table[:, 4]


def barro_colorado() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of trees, elevation and gradient in 200 cells of Barro Colorado."""
    table = np.loadtxt(path("papamarkou/coarse_bei.csv"), delimiter=",", skiprows=1)
    count, elevation, gradient = table.T
    return count, elevation, gradient


def lynx_hare() -> tuple[np.ndarray, np.ndarray]:
    """Years (21,), and pelts of hare and lynx in thousands (21, 2); the file is in this folder."""
    here = Path(__file__).parent
    table = np.loadtxt(here / "lynx_hare.csv", delimiter=",", comments="#", skiprows=5)
    return table[:, 0], table[:, [2, 1]]


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    """Covariates (569, 30) and labels of the set in scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True)


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Covariates (442, 10), and progression after a year, of the set in scikit-learn."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, scaled=False)


# Images


def images(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 28, 28) in [0, 1] and labels; name mnist or fashion, part train or t10k."""
    files = [f"images/{name}/{part}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")]
    is_here = all((folder() / file).is_file() for file in files)
    if name == "mnist" and not is_here and not is_named():
        return downloaded_mnist(part)
    pixels = unpacked(path(files[0]), 16).reshape(-1, 28, 28)
    return pixels / np.float32(255), unpacked(path(files[1]), 8).astype(np.int32)


def unpacked(file: Path, header: int) -> np.ndarray:
    """Bytes of a compressed idx file after its header."""
    with gzip.open(file) as opened:
        return np.frombuffer(opened.read(), np.uint8, offset=header)


def downloaded_mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    """MNIST from NumPyro's examples, which keep what they download."""
    try:
        # imported here: the import makes a folder, which not every installation allows
        from numpyro.examples import datasets

        load: Callable[..., Any] = datasets.load_dataset
        split = {"train": "train", "t10k": "test"}[part]
        init, fetch = load(datasets.MNIST, split=split, shuffle=False)
        x, y = fetch(0, init()[1])
    except OSError as error:
        raise missing(f"images/mnist/{part}-images-idx3-ubyte.gz") from error
    return np.asarray(x, np.float32), np.asarray(y, np.int32)
