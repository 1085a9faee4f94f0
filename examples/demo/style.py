"""Colours of Okabe and Ito, each with its own marker and line style, and how pictures are kept."""

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt

GREY = "0.75"


class Look(NamedTuple):
    """Colour, marker and line style of a method."""

    color: str
    marker: str
    linestyle: str

    @property
    def line(self) -> dict[str, str]:
        """Arguments of a line without markers."""
        return {"color": self.color, "linestyle": self.linestyle}


OURS = Look("#0072B2", "o", "-")
NUTS = Look("#D55E00", "s", "--")
OTHER = Look("#009E73", "^", "-.")
TRUTH = Look("black", "x", ":")


def sheet(num_columns: int, **options):
    """A figure with one row of axes."""
    return plt.subplots(1, num_columns, figsize=(9, 3.8), layout="constrained", **options)


def legend_above(axis, columns: int = 3) -> None:
    """A legend above the axes, where it covers no data."""
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axis.legend(**place, ncol=columns, frameon=False, fontsize=9)


def save_picture(figure, path: Path) -> None:
    """Write a picture."""
    figure.savefig(path, dpi=110)
    plt.close(figure)
