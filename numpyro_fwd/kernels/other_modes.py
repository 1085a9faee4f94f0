"""Whether the mode that all chains share is the only one.

Chains that start around one anchor agree whatever else there is: R-hat sees one mode. So Newton's
paths (:mod:`blackjax_ext.adaptation.newton_path`) are sent out beside the search for the anchor,
from the chains' own starts and from others. They read a sample of the rows, weighted as all of
them, whose posterior is as wide and has the modes that all rows have, a few standard deviations
away. A path that ends elsewhere is only a suspicion: from there the mode of all rows is looked for.
The cost does not grow with N unless there is one.

What is found is compared by position, in standard deviations, and by log evidence in the normal
approximation. A place matters if its evidence is at most D + 10 below the best, as in
:func:`blackjax_ext.adaptation.newton_path.settle`.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from blackjax_ext.adaptation import newton_path, report
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.subsampling.newton import DerivativesFn, Stationary, in_double, newton
from numpyro_fwd.bridge.stochastic_potentials import density_of_some, share_of_some
from numpyro_fwd.disk import holds_rows_on_disk
from numpyro_fwd.kernels.strategy import Run, ravel_one

__all__ = ["MAX_PLACES", "Modes", "Passes", "Place", "look_elsewhere", "place_of", "warn_of_modes"]

NUM_ROWS_READ = 1024  # that the paths read
NUM_PATHS, MANY_DIMENSIONS_FOR_PATHS = 8, 32  # paths, of which half beyond so many dimensions
MAX_PLACES = 4  # from which all rows are searched

SEVERAL_MODES_ADVICE = (
    "Kernels whose chains start apart, such as MALA, AutoMALA or numpyro.infer.NUTS, show by R-hat "
    "whether they mix, and LangevinSMC weighs the places. If you mean one of them, constrain the "
    "model to it"
)


class Passes(NamedTuple):
    """Energy of all rows and its derivatives, as :mod:`blackjax_ext.subsampling.newton` asks."""

    energy: Callable[[Any], Pair]
    derivatives: DerivativesFn


class Place(NamedTuple):
    """A mode of all rows.

    x, sd
        Flat position and standard deviations there, shapes (D,).
    log_det
        Logarithm of the determinant of the curvature.
    found
        What Newton's method says of it; None for a mode that was found before.
    """

    x: np.ndarray
    sd: np.ndarray
    log_det: float
    found: Stationary | None = None


class Modes(NamedTuple):
    """Modes in which paths ended.

    places
        The modes that matter, the best first; at least one.
    evidence
        Log evidence of each.
    num_paths, num_agree
        How many paths ended anywhere, and how many at one of these.
    others
        Where the rest ended, shape (n, D).
    """

    places: list[Place]
    evidence: list[float]
    num_paths: int
    num_agree: int
    others: np.ndarray

    @property
    def is_settled(self) -> bool:
        """Whether one mode is all that matters, and enough paths agree that it is the best."""
        least = max(newton_path.LEAST_AGREEING, newton_path.LEAST_SHARE * self.num_paths)
        return len(self.places) == 1 and (not len(self.others) or self.num_agree >= least)


class PathEnds(NamedTuple):
    """Ends of the paths, each place once, the best first.

    x
        Positions, shape (M, D).
    evidence, num_paths
        Log evidence of the best path to each, and number of paths, shapes (M,).
    """

    x: np.ndarray
    evidence: np.ndarray
    num_paths: np.ndarray


def place_of(x: Any, metric: Any, stationary: Stationary | None = None) -> Place:
    """The place whose curvature is `metric`."""
    root = np.asarray(on_host(metric.inverse_sqrt), np.float64)
    log_det = float(on_host(metric.log_determinant))
    return Place(on_host(x), np.linalg.norm(root, axis=1), log_det, stationary)


def look_elsewhere(run: Run, z: Any, first: Place, passes_of: Callable[[], Passes]) -> Modes:
    """The modes that matter beside `first`, which the search for the anchor has found.

    Cost: paths on a thousand rows; with each place where they end and `first` is not, at most four,
    an evaluation of all rows, and a search on all of them if that is not far below.
    """
    alone = Modes([first], [np.nan], 0, 0, np.zeros((0, first.x.size)))
    if holds_rows_on_disk(run.model_args):  # of which a path would read some at each evaluation
        return alone
    run.say("looking for other modes on a few rows")
    share = share_of_some(run.rows(), NUM_ROWS_READ)
    ends = ends_of_paths(run, z)
    if not ends.num_paths.size:
        return alone
    distance = np.max(np.abs(ends.x - first.x) / first.sd, axis=1)
    nearest = int(np.argmin(distance))
    is_first = np.arange(len(distance)) == nearest
    is_first &= distance < newton_path.FAR / share**0.5
    if is_first.all():
        return alone
    return compare_ends(ends, is_first, share, first, passes_of())


def compare_ends(
    ends: PathEnds, is_first: np.ndarray, share: float, first: Place, passes: Passes
) -> Modes:
    """Compare the ends of paths on all rows; `is_first` are ends at the known mode."""
    margin = newton_path.negligible(first.x)
    energy = in_double(passes.energy(first.x))
    # the mode of some of the rows is off by so much on average, twice
    slack = margin + (2.0 * first.x.size / share if share < 1 else 0.0)
    places, evidence, count = [first], [-energy - 0.5 * first.log_det], [1]
    count[0] += int(ends.num_paths[is_first].sum())
    lost = []
    for i in np.flatnonzero(~is_first):
        is_poor = ends.evidence[i] < evidence[0] - margin
        if share < 1:
            is_poor = not in_double(passes.energy(ends.x[i])) < energy + slack
        stationary = None if is_poor or i >= MAX_PLACES else newton(*passes, ends.x[i])
        if stationary is None or not stationary.is_mode:
            lost.append(i)
            continue
        place = place_of(stationary.x, stationary.metric(), stationary)
        same = [j for j, other in enumerate(places) if are_same(place, other)]
        if same:
            count[same[0]] += int(ends.num_paths[i])
            continue
        places.append(place)
        evidence.append(-in_double(passes.energy(stationary.x)) - 0.5 * place.log_det)
        count.append(int(ends.num_paths[i]))
    order = np.argsort(-np.asarray(evidence), kind="stable")
    kept = [j for j in order if evidence[j] >= evidence[order[0]] - margin]
    others = [places[j].x for j in order if j not in kept] + [ends.x[i] for i in lost]
    return Modes(
        [places[j] for j in kept],
        [evidence[j] for j in kept],
        int(ends.num_paths.sum()) + 1,
        sum(count[j] for j in kept),
        np.reshape(others, (-1, first.x.size)),
    )


def are_same(one: Place, other: Place) -> bool:
    """Whether two modes are too near to each other to keep chains apart."""
    sd = np.maximum(one.sd, other.sd)
    return bool(np.max(np.abs(one.x - other.x) / sd) < newton_path.FAR)


def ends_of_paths(run: Run, z: Any) -> PathEnds:
    """Ends of Newton's paths on a few rows, from the chains' starts and from others."""
    x, unravel = ravel_each(z), ravel_one(z)
    size, differentiation = x.shape[1], run.source.view.differentiation

    def find(arrays, seed, x):
        key = jax.random.key(seed)
        logdensity_fn = density_of_some(run.rows(arrays), NUM_ROWS_READ)
        return newton_path.find_all(key, lambda x: logdensity_fn(unravel(x)), x, differentiation)

    num_paths = NUM_PATHS if size <= MANY_DIMENSIONS_FOR_PATHS else newton_path.MIN_PATHS
    own = np.unique(on_host(x)[: num_paths // 2], axis=0)
    # fixed numbers: what is found is a place, not a draw
    even = np.random.default_rng(0).uniform(-2.0, 2.0, (num_paths - len(own), size))
    starts = np.concatenate([own, even.astype(own.dtype)])
    approximations = on_host(run.search(find, np.zeros((), np.uint32), starts))
    sd = np.linalg.norm(np.asarray(approximations.metric.inverse_sqrt), axis=1)
    evidence, mean = approximations.evidence.ravel(), approximations.mean.reshape(-1, size)
    ends: list[int] = []
    count: list[int] = []
    for i in np.argsort(-evidence):
        if not np.isfinite(evidence[i]):
            continue
        near = [
            j
            for j, end in enumerate(ends)
            if np.max(np.abs(mean[i] - mean[end]) / sd) < newton_path.FAR
        ]
        if near:
            count[near[0]] += 1
        else:
            ends.append(int(i))
            count.append(1)
    return PathEnds(mean[ends], evidence[ends], np.array(count, int))


def warn_of_modes(modes: Modes, sites: report.SiteSizes, then: str) -> None:
    """Warn where one mode is not all that matters; `then` says what that means for the chains."""
    if not modes.is_settled and is_first_process():
        warnings.warn(modes_message(modes, sites, then), stacklevel=2)


def modes_message(modes: Modes, sites: report.SiteSizes, then: str) -> str:
    """That there are other modes, or may be."""
    best, *rest = modes.places
    away = np.concatenate(
        [np.reshape([place.x for place in rest], (-1, best.x.size)), modes.others]
    )
    is_elsewhere = (np.abs(away - best.x) > newton_path.FAR * best.sd).any(axis=0)
    names = report.listed(report.names_of(sites, np.flatnonzero(is_elsewhere)))
    ends = f"of {modes.num_paths}, {modes.num_agree} found "
    if rest:
        lower = ", ".join(f"{modes.evidence[0] - lesser:.1f}" for lesser in modes.evidence[1:])
        ends += (
            f"one of {len(modes.places)} modes that matter (log evidence of the best about "
            f"{modes.evidence[0]:.1f}, of the others lower by {lower})"
        )
    else:
        ends += (
            f"the best (log evidence about {modes.evidence[0]:.1f}), the others places that are "
            f"lower by more than {newton_path.negligible(best.x):.0f}"
        )
    return (
        f"paths to the anchor end in different places: {ends}; they differ in {names}. {then} "
        f"{SEVERAL_MODES_ADVICE}."
    )
