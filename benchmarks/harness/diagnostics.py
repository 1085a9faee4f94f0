"""Effective sample sizes and R-hats of all benchmarks, by arviz_stats as Stan defines them.

They are those of split chains and ranks (Vehtari et al. 2021). Draws are arrays (chains, draws,
...), or several of them in a dict, of which the worst entry counts.
"""

from collections.abc import Callable, Mapping

import numpy as np
from arviz_stats.base import array_stats

__all__ = ["ess_of", "least_ess", "least_ess_of_squares", "rhat_of", "worst_rhat"]

Draws = np.ndarray | Mapping[str, np.ndarray]
TAILS = (0.05, 0.95)


def ess_of(draws: np.ndarray, method: str = "bulk") -> np.ndarray:
    """Effective sample size of each entry, (...): "bulk", "tail", or "mean" (not of ranks)."""
    prob = TAILS if method == "tail" else None
    values = np.asarray(draws, np.float64)
    return np.asarray(array_stats.ess(values, chain_axis=0, draw_axis=1, method=method, prob=prob))


def rhat_of(draws: np.ndarray) -> np.ndarray:
    """R-hat of each entry, (...), the larger of those of ranks and of folded ranks.

    One chain counts as two, its halves: arviz_stats has no R-hat of one.
    """
    values = np.asarray(draws, np.float64)
    if len(values) == 1:
        half = values.shape[1] // 2
        values = np.concatenate([values[:, :half], values[:, half : 2 * half]])
    return np.asarray(array_stats.rhat(values, chain_axis=0, draw_axis=1))


def least_ess(draws: Draws, method: str = "bulk") -> float:
    """Of all entries; 0 if one of them is not a number."""
    return min(float(np.nan_to_num(x, nan=0.0).min()) for x in of_each(ess_of, draws, method))


def least_ess_of_squares(draws: np.ndarray) -> float:
    """The least bulk size of squared distances from the mean.

    Trajectories whose ends are on the other side of the mean (NUTS) have more effective draws
    than draws of the mean, and fewer of the square.
    """
    values = np.asarray(draws, np.float64)
    return least_ess((values - values.mean((0, 1))) ** 2)


def worst_rhat(draws: Draws) -> float:
    """Of all entries; infinite if one of them is not a number."""
    return max(float(np.nan_to_num(x, nan=np.inf).max()) for x in of_each(rhat_of, draws))


def of_each(function: Callable, draws: Draws, *arguments: str) -> list[np.ndarray]:
    """A function of each array that has entries."""
    arrays = draws.values() if isinstance(draws, Mapping) else [draws]
    return [function(x, *arguments) for x in arrays if np.size(x)]
