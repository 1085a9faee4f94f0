r"""How AMAGOLD decides whether to accept: a pass over all rows, or something cheaper.

A trajectory from :math:`\theta` to :math:`\theta_*` ends with the accumulator :math:`\rho`, and the
exact test accepts with probability

.. math::
    \min\left(1, \exp\left[ U(\theta) - U(\theta_*) + \rho \right]\right),

which reads all rows: :func:`full_pass`. Any other rule of the form :class:`Acceptance` may take its
place. It keeps the chain exact if its probabilities :math:`\alpha` obey

.. math::
    \alpha(\theta, \theta_*, \rho) / \alpha(\theta_*, \theta, -\rho)
    = \exp\left[ U(\theta) - U(\theta_*) + \rho \right],

since the way back has the accumulator :math:`-\rho`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.mcmc import langevin
from blackjax_ext.rows.compensated_sums import Pair, difference
from blackjax_ext.rows.potentials import StochasticPotential, energy_at


class Verdict(NamedTuple):
    """Outcome of a test.

    Attributes
    ----------
    is_accepted
        Whether the chain moves.
    acceptance_rate
        Probability of that, or an estimate of it.
    is_divergent
        Whether the proposal was rejected because something there was not finite.
    cache
        What ``Acceptance.init`` gives at the proposal.
    num_rows
        Rows that were read, a row that is read twice counting twice.
    """

    is_accepted: Array
    acceptance_rate: Array
    is_divergent: Array
    cache: Any
    num_rows: Array


class Acceptance(NamedTuple):
    """A rule to accept or reject the end of a trajectory.

    Attributes
    ----------
    init
        ``init(potential, position)`` gives what the state keeps about its position, a pytree of
        arrays: the exact energy, or something small that is known without a pass over the data.
    test
        ``test(rng_key, potential, old_position, old_cache, new_position, rho) -> Verdict``.
    """

    init: Callable[[StochasticPotential, ArrayTree], Any]
    test: Callable[..., Verdict]


def full_pass() -> Acceptance:
    """The exact test, of Algorithm 2: one exact energy per proposal, which the state keeps.

    Cost: a pass over the data.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import acceptance, potentials
    >>> potential = potentials.full_batch(lambda x: -0.5 * x**2)
    >>> amagold = blackjax_ext.amagold(potential, 0.3, acceptance=acceptance.full_pass())
    >>> float(amagold.init(jnp.array(2.0)).logdensity)
    -2.0
    """
    return Acceptance(Partial(energy_at), Partial(read_all_rows))


def read_all_rows(
    rng_key: PRNGKey,
    potential: StochasticPotential,
    old_position: ArrayTree,
    old_cache: Pair,
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Verdict of the Metropolis-Hastings test with the exact energies."""
    del old_position
    energy = energy_at(potential, new_position)
    log_ratio = difference(old_cache, energy) + rho
    _, rate, is_accepted, is_divergent = langevin.accept(
        rng_key, log_ratio, energy.value(), energy, old_cache
    )
    num_rows = jnp.asarray(potential.num_rows, int)
    return Verdict(is_accepted, rate, is_divergent, energy, num_rows)


FULL_PASS = full_pass()


def check_acceptance(acceptance: Acceptance) -> Acceptance:
    """Return `acceptance`; raise TypeError unless it is two functions."""
    if not isinstance(acceptance, Acceptance) or not all(callable(part) for part in acceptance):
        raise TypeError(
            "acceptance must be an Acceptance of two functions, such as that which "
            f"blackjax_ext.acceptance.full_pass makes; got {type(acceptance).__name__}."
        )
    return acceptance
