"""The exact test that reads a few rows, as a rule for AMAGOLD to accept or reject a trajectory."""

from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.sgmcmc.acceptance import Acceptance, Verdict
from blackjax_ext.subsampling import thinning
from blackjax_ext.subsampling.expansion import Expansion, surrogate

__all__ = ["subsampled"]


def subsampled(expansion: Expansion) -> Acceptance:
    r"""An exact test that reads a few rows, drawn in proportion to bounds of what they can change.

    See :mod:`blackjax_ext.subsampling.thinning` for the derivation. The potential must be that of
    the same posterior, such as :func:`blackjax_ext.potentials.expanded_minibatch` of `expansion`.

    Parameters
    ----------
    expansion
        Of :func:`blackjax_ext.potentials.expand`. It must not depend on the chain.

    Returns
    -------
    The test. Cost: D^2, one log prior, and `num_rows` rows, each at two positions; on average about
    :math:`2 \Psi P^{(k+1)/2}` rows near the mode, for P coordinates that the rows see, and never
    much more than all N. The state keeps no exact energy: its `logdensity` is NaN.

    Raises
    ------
    TypeError
        For something that is no expansion.
    """
    is_expansion = isinstance(expansion, Expansion)
    if not is_expansion or expansion.has_groups:
        given = "one by groups, for group_sweeps" if is_expansion else type(expansion).__name__
        raise TypeError(
            f"expansion must be one that blackjax_ext.potentials.expand makes; got {given}."
        )
    return Acceptance(Partial(known_energy, expansion), Partial(read_few_rows, expansion))


def known_energy(expansion: Expansion, potential: StochasticPotential, x: ArrayTree) -> Array:
    """The energy at a position less the remainders of its rows, which the subsampled test keeps."""
    del potential
    return surrogate(expansion, x)


def read_few_rows(
    expansion: Expansion,
    rng_key: PRNGKey,
    potential: StochasticPotential,
    old_position: ArrayTree,
    old_cache: Array,
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Verdict of the test by thinning."""
    del potential
    decision = thinning.thinning_test(
        rng_key, expansion, old_position, old_cache, new_position, rho
    )
    return Verdict(
        decision.is_accepted,
        decision.acceptance_rate,
        decision.is_divergent,
        decision.surrogate,
        decision.num_rows,
    )
