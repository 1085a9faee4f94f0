r"""Step sizes with which a doubled trajectory ends just after half a turn, which cost least.

Where a metric makes all scales 1, coordinates go around together, half a turn in :math:`\pi`. A
trajectory of n = 3, 7, 15, ... steps has turned if :math:`n \epsilon > \pi`; with a step that is a
little shorter it is doubled once more, for as many gradients again and no better a draw. So a
warm-up of a doubling algorithm tries the next :math:`\pi / n` in the second half of its last
window, if that is near. It stays there if trajectories do turn after n steps, not too many
proposals are rejected, and hardly any trajectory is lost.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

TURNS = (3, 7, 15, 31)  # steps of a doubled trajectory
# On six posteriors 1.05 and 1.09 changed effective draws per gradient by up to a quarter, up or
# down, and rejected more.
BEYOND = 1.02
# A step that is at most so often as long is tried, and kept if it rejects at most so often as much
# as the target says. Thirteen of the seventeen posteriors of benchmarks/acceptance_targets.py keep
# it, with 1.4 to 2.7 times the effective draws per gradient, of squares 1.0 to 2.4 times.
LONGEST, REJECTS = 1.7, 2.5
# No more than this share of trajectories may be lost, which is to say diverge or be accepted with
# at most that probability. Where others diverged with the longer step (local_level of the
# leaderboard, centred schools) two to four per cent were lost, elsewhere at most one.
LOST, MOST_LOST = 0.02, 0.01
# Trajectories may take so many times n gradients in the mean. Where the metric fits it is 1.0 to
# 1.1; on a spatial field, which gains nothing (.6 and .96 of the effective draws per gradient, in
# two runs), 1.6 to 1.8, and on a latent process 3.8.
MOST_GRADIENTS = 1.25


class Trial(NamedTuple):
    """What all chains have done with a longer step size.

    num_steps
        Steps of the chains.
    accepted
        Sum of their acceptance probabilities.
    num_lost
        Trajectories that diverged, or that are hardly ever accepted.
    num_gradients
        Gradients that they took.
    """

    num_steps: Array
    accepted: Array
    num_lost: Array
    num_gradients: Array

    def is_kept(self, step_size: Array, target: float) -> Array:
        """Whether the longer `step_size` is kept."""
        num_steps = self.num_steps
        is_kept = num_steps - self.accepted <= REJECTS * (1 - target) * num_steps
        is_kept &= self.num_lost <= MOST_LOST * num_steps
        half_turn = BEYOND * np.pi / step_size
        return is_kept & (self.num_gradients <= MOST_GRADIENTS * half_turn * num_steps)


def no_trial(step_size: Array) -> Trial:
    """A trial that has seen nothing."""
    none = jnp.zeros((), int)
    return Trial(none, jnp.zeros((), step_size.dtype), none, none)


def longer(step_size: Array) -> Array:
    """Step sizes just above the next half turn where that is near; others as they are."""
    found = step_size
    for n in TURNS:
        edge = BEYOND * np.pi / n
        found = jnp.where((step_size < edge) & (LONGEST * step_size > edge), edge, found)
    return found


def tried(before: Any, after: Any, i: Array, info: Any, target: float) -> Any:
    """What is adapted after step i, an ``AdaptState``: `after`, but while a longer step is tried.

    From the middle of the last window on the average of `before` stays what it is, and the longer
    step is taken; the last step decides.
    """
    schedule, trial = after.schedule, before.trial
    is_last = i == schedule.num_steps - 1
    settled = jnp.where(is_last, off_resonance(after.step_size), after.step_size)
    if schedule.ends.size == 0:  # of a warm-up that is too short to try
        return after._replace(step_size=settled)
    middle = (schedule.ends[-1] + schedule.num_steps) // 2
    average = jnp.exp(before.averaging.log_x_avg)
    long = longer(average)
    is_on = (i >= middle) & (long > average).all()
    rate = info.tuning_rate
    seen = Trial(
        jnp.asarray(rate.size),
        jnp.sum(rate),
        jnp.sum(info.is_divergent | (rate < LOST)),
        jnp.sum(info.num_steps),
    )
    # the step after which the trial begins is not of it
    trial = Trial(
        *(
            sums + ((i > middle) * new).astype(sums.dtype)
            for sums, new in zip(trial, seen, strict=True)
        )
    )
    taken = jnp.where(is_last & ~trial.is_kept(long, target), off_resonance(average), long)
    return after._replace(
        step_size=jnp.where(is_on, taken, settled),
        averaging=jax.tree.map(partial(jnp.where, is_on), before.averaging, after.averaging),
        trial=trial,
    )


def off_resonance(step_size: Array) -> Array:
    r"""Step sizes at which doubled trajectories turn; those at which they do not are lengthened.

    A trajectory of n steps that is a little less than half a turn has not turned, and if 2 n + 1
    steps are a little more than a whole one, its ends look as if they had not turned either; nor do
    those of the next doublings, up to hundreds of steps. So it is where :math:`2\pi / (2n + 1) <
    \epsilon < \pi / n`: for n = 7 between .419 and .449, which is the step size of 130 dimensions.
    Just above that n steps are enough.
    """
    for n in TURNS[1:]:  # of 3 the step size is that of few dimensions
        is_within = (step_size > 1.98 * np.pi / (2 * n + 1)) & (step_size < np.pi / n)
        step_size = jnp.where(is_within, 1.01 * np.pi / n, step_size)
    return step_size
