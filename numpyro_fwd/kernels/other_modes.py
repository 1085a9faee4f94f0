"""Whether the mode that all chains share is the only one.

Chains that start around one anchor agree whatever else there is: R-hat sees one mode. So Newton's
paths (:mod:`blackjax_ext.adaptation.newton_path`) are sent out beside the search for the anchor,
from the chains' own starts and from others. They read a sample of the rows, weighted as all of
them, whose posterior is as wide and has the modes that all rows have, a few standard deviations
away. A path that ends elsewhere is only a suspicion: from there the mode of all rows is looked for.
The cost does not grow with N unless there is one.

What is found is compared by position, in standard deviations, and by log evidence in the normal
approximation. A place matters if its evidence is at most D + 10 below the best, as in
:func:`blackjax_ext.adaptation.start.choose_starts`.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.adaptation.newton_path import negligible
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.adaptation.start import FAR, agree, find_starts
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.rows.compensated_sums import Pair
from blackjax_ext.rows.newton import DerivativesFn, Stationary, in_double, newton
from numpyro_fwd.bridge.row_models import density_of_some, share_of_some
from numpyro_fwd.disk import holds_rows_on_disk
from numpyro_fwd.kernels.row_strategies import rows_of
from numpyro_fwd.kernels.strategy import Run, ravel_one

SEVERAL_MODES_ADVICE = (
    "Kernels whose chains start apart, such as MALA, AutoMALA or numpyro.infer.NUTS, show by R-hat "
    "whether they mix, and LangevinSMC weighs the places. If you mean one of them, constrain the "
    "model to it"
)


class Passes(NamedTuple):
    """Energy of all rows and its derivatives, as :mod:`blackjax_ext.rows.newton` asks."""

    energy: Callable[[Any], Pair]
    derivatives: DerivativesFn


class Place(NamedTuple):
    """A mode of all rows, or the end of a path.

    x, sd
        Flat position and standard deviations there, shapes (D,).
    log_det
        Logarithm of the determinant of the curvature.
    stationary
        What Newton's method says of it; None for a mode that was found before, and an end.
    evidence, num_paths
        Log evidence in the normal approximation, and how many paths ended there.
    """

    x: np.ndarray
    sd: np.ndarray
    log_det: float = np.nan
    stationary: Stationary | None = None
    evidence: float = np.nan
    num_paths: int = 1


class Modes(NamedTuple):
    """Modes in which paths ended.

    places
        The modes that matter, the best first; at least one.
    others
        Where other paths ended.
    """

    places: list[Place]
    others: list[Place]

    @property
    def num_agree(self) -> int:
        """How many paths ended at a mode that matters."""
        return sum(place.num_paths for place in self.places)

    @property
    def num_paths(self) -> int:
        """How many paths ended anywhere."""
        return self.num_agree + sum(place.num_paths for place in self.others)

    @property
    def is_settled(self) -> bool:
        """Whether one mode is all that matters, and enough paths agree that it is the best."""
        is_best = not self.others or agree(self.num_agree, self.num_paths)
        return len(self.places) == 1 and is_best


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
    alone = Modes([first], [])
    if holds_rows_on_disk(run.source.arguments):  # each evaluation of a path would read some
        return alone
    run.say("looking for other modes on a few rows")
    share = share_of_some(rows_of(run.source), BUDGET.mode_rows)
    ends = ends_of_paths(run, z)
    distance = [np.max(np.abs(end.x - first.x) / first.sd) for end in ends]
    is_near = min(distance, default=np.inf) < FAR / share**0.5
    at_first = int(np.argmin(distance)) if is_near else None
    if not ends or (is_near and len(ends) == 1):
        return alone
    return compare_ends(ends, at_first, share, first, passes_of())


def compare_ends(
    ends: list[Place], at_first: int | None, share: float, first: Place, passes: Passes
) -> Modes:
    """Compare the ends of paths on all rows; the end `at_first` is at `first`, the known mode."""
    margin, energy = negligible(first.x), in_double(passes.energy(first.x))
    # the mode of some of the rows is off by so much on average, twice
    slack = margin + (2.0 * first.x.size / share if share < 1 else 0.0)
    evidence = -energy - 0.5 * first.log_det
    places, lost = [first._replace(evidence=evidence)], []
    for i, end in enumerate(ends):
        if i == at_first:
            places[0] = places[0]._replace(num_paths=1 + end.num_paths)
            continue
        is_lesser = end.evidence < evidence - margin
        if share < 1:
            is_lesser = not in_double(passes.energy(end.x)) < energy + slack
        stationary = None if is_lesser or i >= BUDGET.mode_places else newton(*passes, end.x)
        if stationary is None or not stationary.is_mode:
            lost.append(end)
            continue
        place = place_of(stationary.x, stationary.metric(), stationary)
        if add_place(places, place._replace(num_paths=end.num_paths)):
            here = -in_double(passes.energy(place.x)) - 0.5 * place.log_det
            places[-1] = places[-1]._replace(evidence=here)
    places = [places[j] for j in np.argsort([-each.evidence for each in places], kind="stable")]
    kept = that_matter(places, margin)
    return Modes(kept, places[len(kept) :] + lost)


def that_matter(places: list[Place], margin: float) -> list[Place]:
    """Those of the places, best first, that are not lower than the best by more than `margin`."""
    return [each for each in places if not each.evidence < places[0].evidence - margin]


def add_place(places: list[Place], new: Place) -> bool:
    """Add a place, or its paths to one that is too near to it to keep chains apart."""
    for j, place in enumerate(places):
        if np.max(np.abs(place.x - new.x) / np.maximum(place.sd, new.sd)) < FAR:
            places[j] = place._replace(num_paths=place.num_paths + new.num_paths)
            return False
    places.append(new)
    return True


def ends_of_paths(run: Run, z: Any) -> list[Place]:
    """Ends of Newton's paths on a few rows, from the chains' starts and from others, best first."""
    x, unravel = ravel_each(z), ravel_one(z)
    size, differentiation = x.shape[1], run.source.view.differentiation

    def find(arrays, seed, x):
        key = jax.random.key(seed)
        logdensity_fn = density_of_some(rows_of(run.at(arrays)), BUDGET.mode_rows)
        return find_starts(key, lambda x: logdensity_fn(unravel(x)), x, differentiation)

    num_paths = BUDGET.mode_paths if size <= BUDGET.mode_dimensions else BUDGET.min_paths
    own = np.unique(on_host(x)[: num_paths // 2], axis=0)
    # fixed numbers: what is found is a place, not a draw
    even = np.random.default_rng(0).uniform(-2.0, 2.0, (num_paths - len(own), size))
    starts = np.concatenate([own, even.astype(own.dtype)])
    search = on_host(run.search(find, np.zeros((), np.uint32), starts))
    sd = np.linalg.norm(np.asarray(search.metric.inverse_sqrt), axis=1)
    evidence, mean = search.evidence.ravel(), search.mean.reshape(-1, size)
    ends: list[Place] = []
    for i in np.argsort(-evidence):
        if np.isfinite(evidence[i]):
            add_place(ends, Place(mean[i], sd, evidence=evidence[i]))
    return ends


def warn_of_modes(modes: Modes, sites: report.SiteSizes, then: str) -> None:
    """Warn where one mode is not all that matters; `then` says what that means for the chains."""
    if not modes.is_settled and is_first_process():
        warnings.warn(modes_message(modes, sites, then), stacklevel=2)


def modes_message(modes: Modes, sites: report.SiteSizes, then: str) -> str:
    """That there are other modes, or may be."""
    best, *rest = modes.places
    elsewhere = np.stack([place.x for place in rest + modes.others])
    is_elsewhere = (np.abs(elsewhere - best.x) > FAR * best.sd).any(axis=0)
    names = report.listed(report.names_of(sites, np.flatnonzero(is_elsewhere)))
    ends = f"of {modes.num_paths}, {modes.num_agree} found "
    if rest:
        lower = ", ".join(f"{best.evidence - lesser.evidence:.1f}" for lesser in rest)
        ends += (
            f"one of {len(modes.places)} modes that matter (log evidence of the best about "
            f"{best.evidence:.1f}, of the others lower by {lower})"
        )
    else:
        ends += (
            f"the best (log evidence about {best.evidence:.1f}), the others places that are "
            f"lower by more than {negligible(best.x):.0f}"
        )
    return (
        f"paths to the anchor end in different places: {ends}; they differ in {names}. {then} "
        f"{SEVERAL_MODES_ADVICE}."
    )
