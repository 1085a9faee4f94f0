"""What a training that went wrong is told of: errors and warnings after the last step."""

import warnings

import jax.numpy as jnp
import numpy as np

from numpyro_fwd.partial_bayes.training import Result

__all__ = ["is_lost", "warn_of"]

LOW_SHARE = 0.1  # of the particles: an effective sample size below it is warned of
LATE_SHARE, MIN_LATE = 0.1, 10  # of the steps, whose median loss is held against the first one
MAX_RISE = 1.0  # of the loss per observed value: by then nothing is left of what was learnt


def is_lost(result: Result) -> bool:
    """Whether no particle had a weight from the first step on."""
    return not bool(jnp.isfinite(result.losses[0]))


def warn_of(result: Result, num_particles: int, num_values: float) -> None:
    """Warn of a training that diverged, and of particles that are copies of a few.

    Parameters
    ----------
    result
        What the training left.
    num_particles
        Number of particles.
    num_values
        Number of observed values, in which the loss is large or small.
    """
    found = diverged(result, num_values)
    # copies of one particle have equal weights: the least size tells, not the last
    ess = float(jnp.nanmin(result.ess))
    if not found and ess < LOW_SHARE * num_particles:
        found = (
            f"the effective sample size fell to {ess:.1f} of {num_particles} particles: a "
            "few of them are the ancestors of all that came after. Take larger batches, a "
            "shorter step_size, or a weight_ess closer to 1."
        )
    if found:
        warnings.warn(found, stacklevel=3)


def diverged(result: Result, num_values: float) -> str:
    """How the loss shows that the training diverged; "" if it does not."""
    losses = np.asarray(result.losses)
    where = np.flatnonzero(~np.isfinite(losses))
    advice = "take a smaller learning rate, a shorter step_size, or optax.clip_by_global_norm."
    if len(where):
        kept = "" if jnp.isposinf(result.state.best.loss) else ", the result is the best before"
        return (
            f"the training diverged: at step {where[0]} of {losses.size} no particle had a finite "
            f"density{kept}; {advice}"
        )
    late = float(np.median(losses[-max(int(LATE_SHARE * losses.size), MIN_LATE) :]))
    if late - losses[0] > MAX_RISE * num_values + abs(losses[0]):
        return f"the training diverged: the loss rose from {losses[0]:.4g} to {late:.4g}; {advice}"
    return ""
