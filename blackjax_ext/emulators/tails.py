r"""How much of a posterior its emulator lacks.

A chain that follows the emulator hardly gets to where that has far less mass than the posterior,
and R-hat does not tell. With N draws from a density :math:`t` around the emulated posterior,

.. math::
    \int \tilde\pi \approx \frac{1}{N} \sum_i \frac{\tilde\pi(x_i)}{t(x_i)}, \qquad
    \int_{\text{lacking}} \pi \approx
    \frac{1}{N} \sum_{j=1}^n \frac{\pi(x_j)}{n q_j t(x_j)},

where the second sum is over n of the draws that are farther out than most of the emulated
posterior, and of these over places where :math:`\pi > e^2 \tilde\pi`: from there a chain takes more
than seven steps to come back. They are chosen with probabilities :math:`q_j`: three fifths of that
evenly, the rest by the mass and by what would be lacking if the outputs there were those at the end
of the emulator. The draws are of two laws with tails of a t law: one of them is far in all
directions alike, the other along one coordinate at a time, near which others are narrow.

A thin curved ridge, as of a banana or a ring, is not where these draws are. Another estimate takes
for :math:`t` the emulated posterior itself, flatter, and with polynomials that go on to twice the
radius of their points: of its draws, n of those beyond that radius are evaluated. If these
polynomials predict them, they go on to there.

Cost: at most 160 evaluations of the density.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc.resampling import systematic
from jax import Array

from blackjax_ext.emulators.evaluations import Dear, Evaluations
from blackjax_ext.emulators.polynomials import Emulator, emulated_density

NUM_DRAWS, NUM_FAR = 4096, 128  # N, and n
NUM_BEYOND = 32  # n of the other estimate
MOST = 0.95  # of the emulated posterior
# acceptance at which polynomials are right beyond their points: 0.81 and more on five of five sharp
# bananas; with those of the shorter lynx and hare, 0.07, half as many effective draws were left
RIGHT = 0.5
LACKING = 2.0  # nats by which the emulator is below the posterior
# of the far draws, whatever they seem to weigh: with a Cauchy prior, where two emulators lack about
# .16 and .22, 16 estimates are .08 to .33, and with a logistic one, where they lack about .04 and
# .01, at most .049; of 32 draws they are .04 to .65 and up to .12
EVENLY = 0.6
FREEDOM = 1.0  # of the t law


def share_lacking(
    evaluations: Evaluations,
    rng: np.random.Generator,
    emulator: Emulator,
    draws: np.ndarray,
    covariance: np.ndarray,
) -> float:
    """Share of the mass where the emulator, of which these are draws, (N, D), has far less."""
    mean, root = draws.mean(0), np.linalg.cholesky(covariance)
    size = len(mean)
    noise = rng.standard_normal((NUM_DRAWS, size))
    scales = rng.chisquare(FREEDOM, (NUM_DRAWS, size))
    scales[::2] = scales[::2, :1]
    noise *= np.sqrt(FREEDOM / scales)
    x, log_t = mean + noise @ root.T, log_density_of_both(noise)
    found = np.asarray(evaluations.run(emulated_at, evaluations.cast(emulator), x), float)
    usual = (np.linalg.solve(root, (draws - mean).T) ** 2).sum(0)
    is_far = (noise**2).sum(1) > np.quantile(usual, MOST)
    if not is_far.any():
        return 0.0
    fall, far = emulator.distance(x), np.flatnonzero(is_far)
    mass = found + fall - log_t
    expected = np.where(fall > LACKING, mass, -np.inf)
    far, factors = chosen(rng, far, (mass[far], expected[far]))
    exact = evaluations.logdensities(x[far], evaluations.outputs(x[far]))
    return share_of(exact, found, log_t, far, factors)


def chosen(
    rng: np.random.Generator, far: np.ndarray, log_weights: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """At most n of the draws with indices `far`, and for how many of them each stands."""
    q = np.full(len(far), EVENLY / len(far))
    for logs in log_weights:
        logs = np.nan_to_num(logs, nan=-np.inf, posinf=-np.inf)
        shares = np.exp(logs - logs.max()) if np.isfinite(logs).any() else np.ones(len(far))
        q += (1.0 - EVENLY) / len(log_weights) * shares / shares.sum()
    drawn = systematic(jax.random.key(rng.integers(2**31)), jnp.asarray(q), NUM_FAR)
    found, counts = np.unique(drawn, return_counts=True)
    return far[found], counts / (NUM_FAR * q[found])


def better_end(
    evaluations: Evaluations,
    emulator: Emulator,
    wider: Emulator,
    draws: np.ndarray,
    temperature: float,
) -> tuple[Emulator, float]:
    """The one of two emulators that is right beyond the radius of the first, and what it lacks.

    By draws, (N, D), of the other one, flatter by a temperature; a share of the mass.
    """
    # a chain that stands still says once how right a place is
    distinct = np.sort(np.unique(draws, axis=0, return_index=True)[1])
    beyond = distinct[emulator.is_beyond(draws[distinct])]
    if not len(beyond):
        return emulator, 0.0
    found, wide = (
        np.asarray(evaluations.run(emulated_at, evaluations.cast(each), draws), float)
        for each in (emulator, wider)
    )
    some = beyond[:: -(-len(beyond) // NUM_BEYOND)]
    exact = evaluations.logdensities(draws[some], evaluations.outputs(draws[some]))
    log_t = wide / temperature
    factors = np.full(len(some), emulator.is_beyond(draws).sum() / len(some))
    errors = (exact - wide[some])[~wider.is_beyond(draws[some])]
    if len(errors) and acceptance_of(errors) > RIGHT:
        emulator, found = wider, wide
    return emulator, share_of(exact, found, log_t, some, factors)


def share_of(
    exact: np.ndarray, found: np.ndarray, log_t: np.ndarray, far: np.ndarray, factors: np.ndarray
) -> float:
    """Share of what the emulator lacks, by some of N draws of a density t.

    `found` are emulated log densities at all of them, `exact` those of the posterior at the ones
    with indices `far`, each of which stands for as many as `factors` say.
    """
    lacking = np.where(exact > found[far] + LACKING, exact - log_t[far], -np.inf)
    logs = np.concatenate([lacking + np.log(factors), found - log_t])
    masses = np.exp(logs - logs.max(initial=-np.inf, where=np.isfinite(logs)))
    masses[~np.isfinite(logs)] = 0.0
    return float(masses[: len(far)].sum() / masses.sum())


def acceptance_of(errors: np.ndarray) -> float:
    """Mean acceptance probability of moves between draws with these errors.

    From draws of the emulated posterior: the chain is at one of them as often as its weight says.
    """
    errors = np.where(np.isfinite(errors), errors, -np.inf)
    if errors.max() == -np.inf:
        return 0.0
    weights = np.exp(errors - errors.max())
    # the ratio of two weights, without overflow: a move that starts at a small one is accepted
    rates = np.minimum(weights[:, None], weights[None]).mean(1)
    return float(rates.sum() / weights.sum())


def log_density_of_both(noise: np.ndarray) -> np.ndarray:
    """Log density of the mixture of two laws at (N, D), up to that of a normal at zero."""
    size, nu = noise.shape[1], FREEDOM
    each = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu / 2)
    joint = math.lgamma((nu + size) / 2) - math.lgamma(nu / 2) - 0.5 * size * math.log(nu / 2)
    alone = size * each - 0.5 * (nu + 1) * np.log1p(noise**2 / nu).sum(1)
    both: np.ndarray = np.logaddexp(
        alone, joint - 0.5 * (nu + size) * np.log1p((noise**2).sum(1) / nu)
    )
    return both


def emulated_at(dear: Dear, emulator: Emulator, x: Array) -> Any:
    """Emulated log densities."""
    return jax.vmap(emulated_density(dear.logdensity_fn, emulator))(x)
