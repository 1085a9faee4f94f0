"""Diagnostics of a training: errors and warnings after the last step."""

import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.meshes import is_first_process
from blackjax_ext.smc.sampler import ravel
from numpyro_fwd.partial_bayes.training import Result

MAX_WANDER = 1.0  # of the particles' own sds: they then claim less than half of their squared error


def has_no_weights(result: Result) -> bool:
    """Whether no particle had a weight from the first step on."""
    return not bool(jnp.isfinite(result.losses[0]))


class Softening(NamedTuple):
    """How the particles of a training were moved and weighed.

    step_size
        Of the last step, times the number of its leapfrog steps.
    weight_ess
        Share of the conditional effective sample size that a batch may leave; 0 for exact weights.
    """

    step_size: float
    weight_ess: float


def warn_of(
    result: Result, num_particles: int, num_values: float, softening: Softening | None = None
) -> None:
    """Warn of a training that diverged, and of particles that are no draws of a posterior.

    Parameters
    ----------
    result
        What the training left.
    num_particles
        Number of particles.
    num_values
        Number of observed values, in which the loss is large or small.
    softening
        How particles were moved and weighed; None where they forget the batches before.
    """
    message = diverged(result, num_values) or collapsed(result, num_particles)
    if not message and softening is not None:
        message = wandered(result, softening)
    message = message or unknown_losses(result)
    if message and is_first_process():
        warnings.warn(message, stacklevel=3)


def collapsed(result: Result, num_particles: int) -> str:
    """Message if the effective sample size shows copies of a few particles, else ""."""
    # copies of one particle have equal weights: the least size tells, not the last
    ess = float(jnp.nanmin(result.ess))
    # of the particles: an effective sample size below it is warned of
    if ess >= 0.1 * num_particles:
        return ""
    return (
        f"the effective sample size fell to {ess:.1f} of {num_particles} particles: all later "
        "particles descend from a few of them. Use larger batches, a shorter step_size, or a "
        "weight_ess closer to 1."
    )


def wandered(result: Result, softening: Softening) -> str:
    """Message if the powers of the weights show particles that follow the batches, else ""."""
    # the powers of fewer are those of the way to the posterior
    if softening.weight_ess == 0 or len(result.weight_power) < 50:
        return ""
    off = wander(result, softening)
    if off <= MAX_WANDER:
        return ""
    return (
        f"the particles are not a posterior: batches differ so much that the weights were raised "
        f"to a power of {np.median(late(result.weight_power)):.2g}, and the particles follow the "
        f"last batches. Their centre is off by about {off:.1f} of their own standard deviations. "
        "Use larger batches, or a shorter step_size (for example a decreasing schedule)."
    )


def wander(result: Result, softening: Softening) -> float:
    r"""Root mean square distance of particles that follow batches, in their own sds.

    Factors of the weights whose logarithms have the sd s over the particles leave the share
    ``exp(-alpha^2 s^2)`` of the effective sample size at the power alpha, whence s. Let gradients
    of batches have the noise v in latents that the particles spread over by `sd`: then s^2 is the
    sum of ``2 v^2 sd^2`` over the latents. What Langevin steps epsilon make of such gradients is an
    autoregression with the coefficient ``1 - epsilon^2 / (2 sd^2)``, of variance ``epsilon^2 v^2
    sd^2 / 4``, that is ``epsilon^2 v^2 / 4`` in units of the particles' own, in the long run, and
    of ``1 - exp(-n epsilon^2 / sd^2)`` of that after n steps.

    It is a mean over all latents: those of which the data say nothing count, too.
    """
    if softening.weight_ess == 0:
        return float("nan")
    power = late(result.weight_power)
    squares = power**-2.0
    # a step at which particles were lost says nothing of the others
    # the square of a normal exceeds its median by more once in a thousand
    squares = np.minimum(squares, 25.0 * np.median(squares))
    spread = -np.log(softening.weight_ess) * np.mean(squares)
    inner = result.state.inner
    flat = ravel(inner.position)[0]
    weights = jnp.exp(inner.log_weights)
    variances = np.asarray(weights @ jnp.square(flat - weights @ flat), np.float64)
    if not np.all(variances > 0):  # copies of one particle
        return float("nan")
    shares = softening.step_size**2 / variances
    # after a few steps it has not been forgotten where they began
    is_reached = -np.expm1(-float(result.state.i) * shares)
    return float(np.sqrt(spread * np.mean(shares * is_reached) / (8.0 * variances.size)))


def late(column: Array) -> np.ndarray:
    """The second half of what the steps left."""
    return np.asarray(column[len(column) // 2 :], np.float64)


def unknown_losses(result: Result) -> str:
    """Message if validation losses are not finite, else ""."""
    losses = np.asarray(result.validation_losses)
    where = np.flatnonzero(~np.isfinite(losses))
    if not len(where):
        return ""
    return (
        f"{len(where)} of {losses.size} validation losses are not finite, the first of them that "
        f"of validation {where[0]}: some value has no density under any particle, or validation "
        "returned NaN."
    )


def diverged(result: Result, num_values: float) -> str:
    """Message if the loss shows that the training diverged, else ""."""
    losses = np.asarray(result.losses)
    where = np.flatnonzero(~np.isfinite(losses))
    advice = "use a shorter step_size, a smaller learning rate, or optax.clip_by_global_norm."
    if len(where):
        kept = "" if jnp.isposinf(result.state.best.loss) else ", the result is the best before it"
        return (
            f"the training diverged: at step {where[0]} of {losses.size} no particle had a finite "
            f"density{kept}; {advice}"
        )
    # of the steps, whose median loss is held against the first one
    late = float(np.median(losses[-max(int(0.1 * losses.size), 10) :]))
    # a rise of the loss by one per observed value: by then nothing is left of what was learnt
    if not late - losses[0] <= num_values + abs(losses[0]):
        return f"the training diverged: the loss rose from {losses[0]:.4g} to {late:.4g}; {advice}"
    return ""
