r"""Approximate acceptance tests that read a part of the rows.

The exact test compares :math:`\Delta = \log \pi(\theta_*) - \log \pi(\theta) + \rho` with a random
number. With the rows of :mod:`blackjax_ext.rows.row_terms`,
:math:`\Delta = k(\theta_*) - k(\theta) + \rho + \sum_i \Delta_i`, and a mean of :math:`\Delta_i`
over rows drawn without replacement estimates :math:`\Delta`. Both tests read until the estimate is
good enough for what they need, and take it for normal. That is not exact: the chain has another
invariant distribution, near the posterior where few decisions are wrong.

How many rows that takes depends on how much :math:`\Delta_i` varies. Without a control variate it
takes nearly all: one of them moves the log likelihood of a row by :math:`O(N^{-1/2})`, and N such
changes scatter by :math:`N / \sqrt{n}` times that. With the expansion at an anchor
(:func:`blackjax_ext.potentials.control_variate`) :math:`\Delta_i` is what the expansion leaves, and
a batch or two suffice.

References: A. Korattikara, Y. Chen and M. Welling 2014, Austerity in MCMC land: cutting the
Metropolis-Hastings budget; D. Seita, X. Pan, H. Chen and J. Canny 2017, An efficient minibatch
acceptance test for Metropolis-Hastings; R. Bardenet, A. Doucet and C. Holmes 2017, On Markov chain
Monte Carlo methods for tall data.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.checks import check_count
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.rows.row_terms import Rows, change, gain
from blackjax_ext.rows.shuffles import shuffled
from blackjax_ext.sgmcmc.acceptance import Acceptance, Verdict

__all__ = ["barker_test", "sequential_test"]


class RowMoments(NamedTuple):
    """Moments of the differences of the rows that were read.

    Attributes
    ----------
    num_rows
        n, rows read.
    mean
        Their mean.
    squares
        Sum of squared deviations from it.
    """

    num_rows: Array
    mean: Array
    squares: Array

    def deviation(self, size: int) -> Array:
        """Standard deviation of the mean of n of `size` rows, drawn without replacement."""
        n = self.num_rows
        left = 1.0 - (n - 1) / max(size - 1, 1)
        return jnp.sqrt(self.squares / jnp.maximum(n - 1, 1) / n * jnp.maximum(left, 0.0))


def sequential_test(*, error: float = 0.01, batch_size: int = 500) -> Acceptance:
    r"""Approximate: the sequential test of Korattikara, Chen and Welling, Algorithm 1.

    The proposal is accepted if :math:`\bar\Delta`, the mean of :math:`\Delta_i` over all rows, is
    above :math:`\mu_0 = (\log u - \rho - k(\theta_*) + k(\theta)) / N`. After n rows with mean
    :math:`\bar\ell` and standard deviation :math:`s_\ell`,

    .. math::
        t = (\bar\ell - \mu_0) / s, \qquad
        s = \frac{s_\ell}{\sqrt n} \sqrt{1 - \frac{n - 1}{N - 1}},

    and the test decides by the sign of t once :math:`1 - \Phi_{n-1}(|t|) < \epsilon`, with the
    distribution function :math:`\Phi_{n-1}` of Student's t. All rows read, it is exact.

    Parameters
    ----------
    error
        epsilon, from 0 to 1/2, exclusive: probability of a wrong decision at each look.
    batch_size
        Rows between two looks, at least 2.

    Returns
    -------
    An :class:`Acceptance`, for potentials with rows. Cost: n rows at two places.

    Raises
    ------
    ValueError, TypeError
        For an error or batch size out of its range; for a potential without rows, when used.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import minibatch_tests, potentials
    >>> y = jnp.linspace(-1.0, 3.0, 10_000)
    >>> potential = potentials.minibatch(
    ...     lambda x: -0.5 * x**2, lambda x, y: -jnp.log(jnp.cosh(y - x)), y, batch_size=100
    ... )
    >>> potential = potentials.control_variate(potential, jnp.array(1.0), order=2)
    >>> amagold = blackjax_ext.amagold(
    ...     potential, 0.3, jnp.array([1e-4]), acceptance=minibatch_tests.sequential_test()
    ... )
    >>> _, info = jax.jit(amagold.step)(jax.random.key(1), amagold.init(jnp.array(1.0)))
    >>> int(info.num_rows)
    500
    """
    if not 0.0 < error < 0.5:
        raise ValueError(f"error must be between 0 and 1/2; got {error}.")
    check_count("batch_size", batch_size, least=2)  # for a variance
    return Acceptance(
        Partial(keep_nothing), Partial(partial(decide_sequentially, error, batch_size))
    )


def barker_test(*, batch_size: int = 500) -> Acceptance:
    r"""Approximate: the test of Seita, Pan, Chen and Canny, Algorithm 1.

    Barker's test accepts if :math:`\Delta + V > 0` with logistic V, that is with probability
    :math:`1 / (1 + e^{-\Delta})`. The estimate :math:`\Delta_*` of :math:`\Delta` from n rows has
    noise of its own, of variance :math:`s^2`. Rows are read until :math:`s^2 < 1`, and the noise
    becomes a part of V:

    .. math::
        \Delta_* + \mathcal{N}(0, 1 - s^2) + X > 0, \qquad
        \mathcal{N}(0, 1) + X \sim V,

    with a correction X that `correction` finds on a grid. The test is as good as the estimate
    is normal; the authors' check of its third moment is left to `batch_size`. The acceptance
    rate is at most one half, where that of Metropolis and Hastings is 1.

    Parameters
    ----------
    batch_size
        Rows between two looks, at least 2.

    Returns
    -------
    An :class:`Acceptance`, for potentials with rows. Cost: n rows at two places.

    Raises
    ------
    ValueError, TypeError
        For a batch size out of its range; for a potential without rows, when used.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import minibatch_tests, potentials
    >>> y = jnp.linspace(-1.0, 3.0, 10_000)
    >>> potential = potentials.minibatch(
    ...     lambda x: -0.5 * x**2, lambda x, y: -jnp.log(jnp.cosh(y - x)), y, batch_size=100
    ... )
    >>> potential = potentials.control_variate(potential, jnp.array(1.0), order=2)
    >>> amagold = blackjax_ext.amagold(
    ...     potential, 0.3, jnp.array([1e-4]), acceptance=minibatch_tests.barker_test()
    ... )
    >>> _, info = jax.jit(amagold.step)(jax.random.key(1), amagold.init(jnp.array(1.0)))
    >>> bool(0.4 < info.acceptance_rate < 0.6)
    True
    """
    check_count("batch_size", batch_size, least=2)  # for a variance
    return Acceptance(Partial(keep_nothing), Partial(partial(decide_by_barker, batch_size)))


def keep_nothing(potential: StochasticPotential, position: ArrayTree) -> tuple[()]:
    """Keep nothing about a position; ValueError for a potential without rows."""
    del position
    rows_of(potential)
    return ()


def rows_of(potential: StochasticPotential) -> Rows:
    """Rows of the potential; ValueError if it has none."""
    if potential.rows is None:
        raise ValueError(
            "potential must have rows for a test that reads some of them: one that "
            "blackjax_ext.potentials.minibatch makes, or a model in which no site lies inside two "
            "subsample plates; got one without."
        )
    return potential.rows


def decide_sequentially(
    error: float,
    batch_size: int,
    rng_key: PRNGKey,
    potential: StochasticPotential,
    old_position: ArrayTree,
    old_cache: tuple[()],
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Verdict once Student's t says on which side of the threshold the mean of all rows is."""
    key_accept, key_rows = jax.random.split(rng_key)
    rows = rows_of(potential)
    known = gain(rows, old_position, new_position) + rho
    log_uniform = -jax.random.exponential(key_accept, (), known.dtype)
    threshold = (log_uniform - known) / rows.num_rows

    def is_open(moments: RowMoments) -> Array:
        deviation = moments.deviation(rows.num_rows)
        t = jnp.abs(moments.mean - threshold) / deviation
        return (deviation > 0) & (student_tail(t, moments.num_rows - 1) >= error)

    moments = read_rows(key_rows, rows, old_position, new_position, batch_size, is_open)
    estimate = known + rows.num_rows * moments.mean
    is_divergent = ~jnp.isfinite(estimate)
    is_accepted = (moments.mean > threshold) & ~is_divergent
    rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(estimate, 0.0)))
    return Verdict(is_accepted, rate, is_divergent, old_cache, moments.num_rows)


def decide_by_barker(
    batch_size: int,
    rng_key: PRNGKey,
    potential: StochasticPotential,
    old_position: ArrayTree,
    old_cache: tuple[()],
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Verdict once the noise of the rows read fits into that of Barker's test."""
    key_rows, key_noise, key_correction = jax.random.split(rng_key, 3)
    rows = rows_of(potential)

    def variance(moments: RowMoments) -> Array:
        return (rows.num_rows * moments.deviation(rows.num_rows)) ** 2

    def is_open(moments: RowMoments) -> Array:
        return variance(moments) >= 1.0

    moments = read_rows(key_rows, rows, old_position, new_position, batch_size, is_open)
    known = gain(rows, old_position, new_position) + rho
    estimate = known + rows.num_rows * moments.mean
    missing = jnp.sqrt(jnp.maximum(1.0 - variance(moments), 0.0))
    noise = missing * jax.random.normal(key_noise, (), estimate.dtype)
    is_divergent = ~jnp.isfinite(estimate)
    is_accepted = (estimate + noise + draw_correction(key_correction) > 0) & ~is_divergent
    rate = jnp.where(is_divergent, 0.0, jax.nn.sigmoid(estimate))
    return Verdict(is_accepted, rate, is_divergent, old_cache, moments.num_rows)


def read_rows(
    rng_key: PRNGKey,
    rows: Rows,
    old: ArrayTree,
    new: ArrayTree,
    batch_size: int,
    is_open: Callable[[RowMoments], Array],
) -> RowMoments:
    """Moments of rows read in random order, batch by batch, while `is_open` and some are left."""
    length = min(batch_size, rows.num_rows)

    def batch(moments: RowMoments) -> RowMoments:
        places = moments.num_rows + jnp.arange(length)
        is_new = places < rows.num_rows
        places = jnp.minimum(places, rows.num_rows - 1)
        values = change(rows, old, new, shuffled(rng_key, places, rows.num_rows))
        return merge(moments, values, is_new)

    def is_going(moments: RowMoments) -> Array:
        return (moments.num_rows < rows.num_rows) & is_open(moments)

    dtype = jax.eval_shape(rows.known, old).dtype
    empty = RowMoments(jnp.array(0), jnp.zeros((), dtype), jnp.zeros((), dtype))
    moments: RowMoments = jax.lax.while_loop(is_going, batch, batch(empty))
    return moments


def merge(moments: RowMoments, values: Array, is_new: Array) -> RowMoments:
    """Moments with further rows (Chan, Golub and LeVeque 1983)."""
    count = jnp.sum(is_new)
    mean = jnp.sum(jnp.where(is_new, values, 0.0)) / count
    squares = jnp.sum(jnp.where(is_new, (values - mean) ** 2, 0.0))
    n = moments.num_rows + count
    apart = mean - moments.mean
    return RowMoments(
        n,
        moments.mean + apart * (count / n),
        moments.squares + squares + apart**2 * (moments.num_rows * (count / n)),
    )


def student_tail(t: Array, degrees: Array) -> Array:
    """Probability that a Student variable is above t >= 0, in float32 right to half a percent."""
    x = jnp.where(jnp.isinf(t), 1.0, t**2 / (degrees + t**2))
    return 0.5 * (1.0 - jax.scipy.special.betainc(0.5, 0.5 * degrees, x))


RANGE, NUM_CELLS, CORRECTION_RIDGE = 10.0, 1000, 0.25


@functools.cache
def correction() -> tuple[np.ndarray, np.ndarray]:
    r"""Values of X and their cumulated probabilities, with N(0, 1) + X nearly logistic.

    As in section 4 of Seita et al.: on a grid of values :math:`x_j` in [-10, 10] and of places
    :math:`y_i` in [-20, 20], the probabilities minimize :math:`|M u - v|^2 + \lambda |u|^2` with
    :math:`M_{ij} = \Phi(y_i - x_j)` and :math:`v_i` the logistic distribution function; what is
    negative of them is set to zero. The distribution functions differ by less than 1e-3.
    """
    x = np.linspace(-RANGE, RANGE, NUM_CELLS + 1)
    y = np.linspace(-2 * RANGE, 2 * RANGE, NUM_CELLS + 1)
    normal = scipy.special.ndtr(y[:, None] - x)
    logistic = scipy.special.expit(y)
    ridge = normal.T @ normal + CORRECTION_RIDGE * np.eye(len(x))
    probabilities = scipy.linalg.solve(ridge, normal.T @ logistic, assume_a="pos")
    probabilities = np.maximum(probabilities + probabilities[::-1], 0.0)
    return x, np.cumsum(probabilities / probabilities.sum())


def draw_correction(rng_key: PRNGKey) -> Array:
    """One draw of X."""
    x, cumulated = correction()
    place = jnp.searchsorted(jnp.asarray(cumulated), jax.random.uniform(rng_key))
    return jnp.asarray(x)[jnp.minimum(place, len(x) - 1)]
