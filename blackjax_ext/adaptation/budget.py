r"""What a search for starts or for other modes may cost: all limits in one record.

A search takes no more than `Budget.operations`, or `Budget.gradients` for each chain, whichever is
more. Operations are counted in the density's program (:mod:`blackjax_ext.equations`); no clock is
read. Where that is not enough for all paths, fewer are sent, with fewer steps and no further
rounds; where it is not enough for `Budget.least_turns` of one path for each chain, paths take
gradients alone (:mod:`blackjax_ext.adaptation.start`), and where not for as many of these, none is
sent.

Memory is that of three steps of all chains, or `Budget.room`. Rows of a Hessian that have no room,
and then paths, go after the others; and of each batch of paths its ends alone are kept.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax import Array

from blackjax_ext import equations
from blackjax_ext.adaptation.windows import MANY
from blackjax_ext.mcmc.derivatives import Differentiation, derivatives
from blackjax_ext.types import LogDensity


class Budget(NamedTuple):
    """Limits of all searches, each with a reason or a measurement beside it."""

    # --- cost ---
    operations: float = 2e10  # of a search: of logistic regressions that have no more, 0.2 s
    gradients: int = 1200  # for each chain: 300 steps of AutoMALA, of four gradients each
    # turns of a path. Of five posteriors of posteriordb, with 32 paths each, 9 to 100 % of the
    # paths are within a nat of what they find after 8 turns, 90 to 100 % after 16, all after 31
    least_turns: int = 8
    max_steps: int = 60
    # coordinates with Hessians. Of 540, the eigenvalues of the least search (8 turns, 4 paths) take
    # all operations; of 128, its million JVPs leave 2e4 operations for each
    dimensions: Mapping[Differentiation, int] = MappingProxyType(
        {"forward": 128, "reverse": 512, "gradients": 512, "none": 0}
    )
    # --- paths ---
    min_paths: int = 4  # of a round: one chain alone cannot disagree
    # of all rounds, unless there are more chains: what a path in six finds, 16 miss in 5 % of runs
    max_paths: int = 16
    # --- evaluations of a turn ---
    nudges: int = 5  # at the point and beside it, for the rounding of values
    rungs: int = 16  # of the ladder of lengths, 4 to 2^-13
    draws: int = 16  # that weigh an approximation
    # --- memory; numbers of arrays are by XLA's analysis, or above it ---
    # bytes of paths at once. Without a limit a start of 1,000 chains took 131 MB in 64 dimensions
    # and 5.4 GB in 512
    room: int = 2**24
    large: int = 2**23  # bytes of all points' largest arrays; beyond, they go one by one
    rows: int = 16  # of a Hessian at once: those of 512 dimensions would be 512 gradients
    step_arrays: int = 3  # as large as the largest of an evaluation, that a step of a chain takes
    path_matrices: int = 7  # (D, D), that a path along Hessians takes; seen: 5.3
    path_vectors: int = 190  # (D,), that a path along gradients takes; seen: 155
    noise_arrays: int = 7  # of its size, that are in memory while noise is drawn; seen: 3
    # --- other modes than the anchor of many rows ---
    mode_rows: int = 1024  # that paths read: the cost does not grow with N
    mode_paths: int = 8  # what a path in three finds, 8 miss in 4 % of runs
    mode_dimensions: int = 32  # beyond, `min_paths`: a Hessian has D gradients
    mode_places: int = 4  # from which all rows are searched, each in about ten passes

    @property
    def points(self) -> int:
        """Evaluations of a turn, without pairs of draws."""
        return self.nudges + self.rungs + self.draws

    def points_of_turn(self, size: int) -> int:
        """Evaluations of a turn: with a pair of draws at each rung and at the point itself."""
        return self.points + (self.rungs + 2 if size > MANY else 0)

    def room_for(self, num_chains: int, evaluation: int) -> int:
        """Bytes that a start may take, if `evaluation` is the largest array of an evaluation."""
        return max(self.room, 3 * self.step_arrays * num_chains * evaluation)

    def is_light_noise(self, num_paths: int, x: Array) -> bool:
        """Whether the noise of so many paths may be drawn at once; one starts at `x`, (D,)."""
        return self.noise_arrays * self.draws * num_paths * x.nbytes <= self.room


BUDGET = Budget()


class Effort(NamedTuple):
    """How much one search may do."""

    num_paths: int  # of a round
    max_turns: int  # of a round's paths, in all rounds
    is_large: bool  # whether arrays are so large that points are evaluated one by one
    num_rows: int  # of a Hessian that a path computes at once
    at_once: int  # paths in memory

    @property
    def is_worthwhile(self) -> bool:
        """Whether it is enough for paths of this kind."""
        return self.max_turns >= BUDGET.least_turns


def effort_of_hessians(
    logdensity_fn: LogDensity, program: Any, x: Array, differentiation: Differentiation
) -> Effort:
    """Effort along Hessians for C chains at x, (C, D); `program` is that of `logdensity_fn`."""
    num_chains, size = x.shape
    num_paths = max(BUDGET.min_paths, num_chains)
    most = (BUDGET.max_steps + 1) * -(-BUDGET.max_paths // num_paths)
    value = equations.operations(program)
    gradients, eigen = gradients_of_turn(size, differentiation), 4.0 * size**3
    evaluation = equations.largest(program)
    num_points = BUDGET.points_of_turn(size)
    is_large = num_points * num_paths * evaluation > BUDGET.large
    room = BUDGET.room_for(num_chains, evaluation)
    per_row = 2 * evaluation * (size if differentiation == "forward" else 1)
    num_rows = min(BUDGET.rows, max(1, room // (num_paths * max(per_row, 1)) - 1))
    points = 0 if is_large else 2 * num_points * evaluation
    matrices = BUDGET.path_matrices * size**2 * x.dtype.itemsize
    at_once = max(1, room // (max(per_row * (num_rows + 1), points) + matrices))
    if num_paths * most * (4.0 * value * gradients + eigen) > BUDGET.operations:
        # a count of the derivatives' own program: much of it is shared by the rows of a Hessian
        second = partial(derivatives, logdensity_fn, differentiation=differentiation)
        traced = jax.make_jaxpr(partial(second, num_rows=BUDGET.rows))(x[0])
        turn = equations.operations(traced) + num_points * value + eigen
        turns = max(BUDGET.gradients * num_chains / gradients, BUDGET.operations / turn)
        if turns < BUDGET.least_turns * num_paths:
            num_paths = num_chains
        most = min(most, int(turns / num_paths))
    return Effort(num_paths, most, is_large, num_rows, min(at_once, num_paths))


def gradients_of_turn(size: int, differentiation: Differentiation) -> float:
    """What a turn along Hessians costs, in gradients; in forward mode, in JVPs."""
    rows = {"reverse": 2 * size, "gradients": 6 * size, "forward": 2 * size**2, "none": 0}
    gradient = size if differentiation == "forward" else 1
    pair = 2 * gradient if size > MANY else 0
    return rows[differentiation] + pair + 1 + BUDGET.points_of_turn(size) / 3


def takes_hessians(size: int, differentiation: Differentiation) -> bool:
    """Whether paths take Hessians whatever an evaluation costs."""
    turns = BUDGET.gradients / gradients_of_turn(size, differentiation)
    return turns >= BUDGET.least_turns and size <= BUDGET.dimensions[differentiation]


def effort_of_gradients(program: Any, x: Array, differentiation: Differentiation) -> Effort:
    """Effort along gradients for C chains at x, (C, D); `program` is that of their density."""
    num_chains, size = x.shape
    num_jvps = size if differentiation == "forward" else 1
    gradients = num_jvps + BUDGET.points / 3
    cost = max(4.0 * gradients * equations.operations(program), 1.0)
    turns = max(BUDGET.gradients / gradients, BUDGET.operations / (BUDGET.min_paths * cost))
    evaluation = equations.largest(program)
    is_large = num_chains * BUDGET.points * evaluation > BUDGET.large
    num_evaluations = max(1 if is_large else BUDGET.points, num_jvps)
    own = BUDGET.path_vectors * size * x.dtype.itemsize
    room = BUDGET.room_for(num_chains, evaluation)
    at_once = max(1, room // (2 * num_evaluations * evaluation + own))
    most = int(min(turns, BUDGET.max_steps + 1))
    return Effort(num_chains, most, is_large, 1, min(at_once, num_chains))
