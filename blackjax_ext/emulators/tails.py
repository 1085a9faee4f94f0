r"""How much of a posterior its emulator lacks beyond the points to which it was fitted.

A chain that follows the emulator hardly gets to where that has far less mass than the posterior,
and R-hat does not tell. For draws of a t law around the emulated posterior, of density :math:`t`,
the masses within and beyond the points are

.. math::
    \int_{\text{within}} \pi \approx \frac{1}{N} \sum_{\text{within}}
    \frac{\tilde\pi(x_i)}{t(x_i)}, \qquad
    \int_{\text{beyond}} \pi \approx \frac{N_{\text{beyond}}}{N} \cdot
    \frac{1}{n} \sum_{i=1}^n \frac{\pi(x_i)}{t(x_i)}.

Of the second only places count where :math:`\pi > e^2 \tilde\pi`: from there a chain takes more
than seven steps to come back.

Cost: n evaluations of the density, those of the second sum.
"""

from typing import Any

import jax
import numpy as np
from jax import Array

from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import Emulator, emulated_density

NUM_DRAWS, NUM_BEYOND = 1024, 16  # N, and n
LACKING = 2.0  # nats by which the emulator is below the posterior
FREEDOM = 2.0  # of the t law: tails that few posteriors have


def share_beyond(
    evaluations: Evaluations,
    rng: np.random.Generator,
    emulator: Emulator,
    mean: np.ndarray,
    covariance: np.ndarray,
) -> float:
    """Share of the mass that the emulator lacks beyond the points, by a few evaluations."""
    noise = rng.standard_normal((NUM_DRAWS, len(mean)))
    noise *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, NUM_DRAWS))[:, None]
    x = mean + noise @ np.linalg.cholesky(covariance).T
    log_t = -0.5 * (FREEDOM + len(mean)) * np.log1p((noise**2).sum(1) / FREEDOM)
    q = (x[:, emulator.active] - emulator.center) @ emulator.root.T
    is_beyond = (q**2).sum(1) > emulator.radius**2
    found = np.asarray(evaluations.run(emulated_at, evaluations.cast(emulator), x), float)
    far = np.flatnonzero(is_beyond)[:NUM_BEYOND]
    if not len(far):
        return 0.0
    exact = evaluations.logdensities(x[far], evaluations.outputs(x[far]))
    lacking = np.where(exact > found[far] + LACKING, exact, -np.inf)
    logs = [found[~is_beyond] - log_t[~is_beyond], lacking - log_t[far]]
    finite = [each[np.isfinite(each)] for each in logs]
    if not len(finite[0]):
        return 1.0
    top = max(each.max() for each in finite if len(each))
    within, beyond = (np.exp(each - top).sum() for each in finite)
    beyond *= is_beyond.sum() / len(far)
    return float(beyond / (within + beyond))


def emulated_at(dear: Dear, emulator: Emulator, x: Array) -> Any:
    """Emulated log densities."""
    return jax.vmap(emulated_density(dear.logdensity_fn, emulator))(x)
